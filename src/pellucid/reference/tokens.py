"""Text as symbols: UTF-8, vocabularies of bytes, characters and words, documents, chunks."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

END_OF_TEXT = "<|endoftext|>"
END_OF_WORD = "</w>"
UNKNOWN = "<unk>"

#: the characters with the Unicode property White_Space
WHITE_SPACE = frozenset(
    map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)


def utf8_encode(text: str) -> list[bytes]:
    """E_UTF-8: every character's string of one to four bytes.   S0 (1.1)"""
    return [character.encode() for character in text]


def base_vocabulary(
    unit: str = "byte", alphabet: Iterable[str] | None = None, special: Sequence[str] = (END_OF_TEXT,)
) -> list[bytes | str]:
    """V_0: the byte strings of the alphabet, and special characters, which are str and so equal to none of them

    S0 1.1 "The Base Vocabulary". unit byte: the 256 single bytes (GPT-2's reading); unit character: one symbol per
    character of `alphabet` (the literal reading). Errata E-09, E-71.
    """
    if unit == "byte":
        return [*(bytes([b]) for b in range(256)), *special]
    if unit == "character" and alphabet is not None:
        return [*utf8_encode("".join(sorted(set(alphabet)))), *special]
    raise ValueError(f"unit = {unit!r}: expected byte, or character with an alphabet")


def pretokenise(text: str) -> list[str]:
    """GPT-2's division of text into pieces across whose borders no pair is merged

    '(?:[sdmt]|ll|ve|re) | ?letters+ | ?numbers+ | ?others+ | spaces+ (not before a non-space) | spaces+,
    the first that matches, by Unicode category. S0 1.1 names an end-of-word character but no rule: erratum E-10.
    """
    kinds = [_character_class(c) for c in text]
    pieces, i = [], 0
    while i < len(text):
        end = _piece_end(text, kinds, i)
        pieces.append(text[i:end])
        i = end
    return pieces


def _character_class(character: str) -> str:
    if character in WHITE_SPACE:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def _piece_end(text: str, kinds: list[str], i: int) -> int:
    """The end of the piece that starts at i."""
    if text[i] == "'":
        for ending in ("s", "d", "m", "t", "ll", "ve", "re"):
            if text.startswith(ending, i + 1):
                return i + 1 + len(ending)
    start = i + 1 if text[i] == " " and i + 1 < len(text) and kinds[i + 1] != "space" else i
    end = start
    while end < len(text) and kinds[end] == kinds[start]:
        end += 1
    # of several spaces before a word the last one belongs to the word
    if kinds[start] == "space" and end < len(text) and end - i > 1:
        end -= 1
    return end


def split_words(text: str) -> list[str]:
    """Runs of letters and digits, and every other character but white space by itself.   S4 "Symbol Representation"."""
    words: list[str] = []
    for piece in text.split():
        start = True
        for c in piece:
            if c.isalnum() and not start:
                words[-1] += c
            else:
                words.append(c)
            start = not c.isalnum()
    return words


def char_vocabulary(text: str) -> list[str]:
    """The characters of the text, sorted.   S4 "Symbol Representation" (letters)."""
    return sorted(set(text))


def word_vocabulary(text: str, n_vocab: int) -> list[str]:
    """<unk> and the n_vocab - 1 most frequent words, ties by alphabet.   S4 "Symbol Representation" (words)."""
    counts = Counter(split_words(text))
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: n_vocab - 1]]


def encode_symbols(symbols: Iterable[str], vocabulary: Sequence[str]) -> list[int]:
    """Ind: the index of every symbol; unknown ones are <unk> where the vocabulary has it, else a ValueError

    S3 slide 1 Ind, S4 "Symbol Representation".
    """
    index = {symbol: k for k, symbol in enumerate(vocabulary)}
    unknown = index.get(UNKNOWN)
    ids = [index.get(symbol, unknown) for symbol in symbols]
    if None in ids:
        raise ValueError(
            f"a symbol is not among the {len(vocabulary)} of the vocabulary, which has no "
            f"{UNKNOWN}: add one or the other"
        )
    return [k for k in ids if k is not None]


# Documents ----------------------------------------------------------------------------------------


def join_documents(documents: Iterable[Sequence[int]], separator: int) -> list[int]:
    """One stream, the separator before every document   S0 1.1 (the special character between artefacts)

    Each document starts with the separator, so that its first token is predicted too: errata E-15, E-76.
    """
    return [t for document in documents for t in (separator, *document)]


def split_documents(stream: Sequence[int], separator: int) -> list[list[int]]:
    """The documents that `join_documents` joined.   S0 1.1"""
    documents: list[list[int]] = []
    for t in stream:
        if t == separator:
            documents.append([])
        elif not documents:
            raise ValueError("the stream does not begin with the separator")
        else:
            documents[-1].append(t)
    return documents


def chunk(tokens: Sequence[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [k, length] with y[b, s] = x[b, s + 1], the next token also across chunk borders

    S1 1.1 step 2. Only a rest at the end that does not fill a chunk of length + 1 tokens is left out.
    """
    k = (len(tokens) - 1) // length
    if k < 1:
        raise ValueError(f"{len(tokens)} tokens: expected at least {length + 1} for one chunk")
    used = np.asarray(tokens[: k * length + 1])
    return used[:-1].reshape(k, length), used[1:].reshape(k, length)
