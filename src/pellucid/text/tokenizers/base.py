"""What every tokenizer offers, whatever its units: text to ids and back, without loss and without surprises.

Two laws hold for all of them. Text never yields a special id unless the caller names it in
`allow_special`, so nobody can type a separator into a prompt or a corpus. And bytes are the truth:
a token is a byte string, text is what those bytes spell, and bytes are counted, never guessed
through U+FFFD.
"""

import abc
import codecs
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

#: the separator between documents, declared in every vocabulary
SEPARATOR = "<|endoftext|>"
#: chunks of a text that are encoded in one call
TOGETHER = 16


#: what stands for a hidden token, ours first, in other projects' vocabularies
MASKS = ("<|mask|>", "[MASK]", "<mask>")


class TokenizerError(ValueError):
    """Text that cannot be encoded, ids that cannot be decoded, or a tokenizer file that cannot be used."""


class Tokenizer(abc.ABC):
    """Text to ids and back.

    kind       bpe, word, char or byte
    units      what the ids stand for, in the plural
    n_vocab    how many ids there are, special ones included: 0 ... n_vocab - 1
    special    name -> id of the ids that no text reaches by itself
    unknown    the id of a character or word never seen in training, None where every text can be written
    notes      what a person should know about how it was made, in whole sentences
    """

    kind: str
    units: str = "tokens"
    n_vocab: int
    special: dict[str, int]
    separator: int
    unknown: int | None = None
    #: whether every text without unknown characters comes back as it was
    lossless: bool = True
    notes: tuple[str, ...] = ()

    @abc.abstractmethod
    def to_json(self) -> str:
        """The whole tokenizer as the text of a Hugging Face tokenizer.json."""

    @abc.abstractmethod
    def with_special(self, *names: str) -> "Tokenizer":
        """The same tokenizer with more special ids behind its last one, such as `<|mask|>`; TokenizerError if taken."""

    @abc.abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of text without special tokens in it; `text` has been checked."""

    @abc.abstractmethod
    def _table(self) -> Sequence[bytes]:
        """The bytes of every id; b"" for special ones."""

    @property
    def mask(self) -> int | None:
        """The id that stands where a token is hidden, None where no special token is made for it."""
        return next((self.special[name] for name in MASKS if name in self.special), None)

    @property
    def start(self) -> int:
        """The id with which a target begins where a source is read: the separator, or <pad> in T5's vocabularies."""
        padded = "<extra_id_0>" in self.special and "<pad>" in self.special
        return self.special["<pad>"] if padded else self.separator

    @property
    def ends(self) -> list[int]:
        """The ids at which generation ends: the separator, where there is one."""
        return [self.separator]

    def source_ids(self, ids: Sequence[int]) -> list[int]:
        """What an encoder is given for these ids: the separator behind them, and <s> before where there is one."""
        first = [self.special["<s>"]] if "<s>" in self.special else []
        return [*first, *(int(i) for i in ids), self.separator]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content, independent of how the JSON was laid out."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder` and return its path."""
        path = Path(folder) / "tokenizer.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8", newline="\n")
        return path

    # Text to ids ----------------------------------------------------------------------------

    def encode(self, text: str, allow_special: Collection[str] = ()) -> list[int]:
        """Ids of `text`. Names of special tokens in it are ordinary text unless `allow_special` lists them.

        Raises TokenizerError for lone surrogates and for names that are not special tokens.
        """
        check_text(text)
        if not allow_special:
            return self._encode(text)
        names = {allow_special} if isinstance(allow_special, str) else set(allow_special)
        if strange := sorted(names - set(self.special)):
            known = ", ".join(self.special)
            raise TokenizerError(
                f"allow_special names {strange[0]!r}, which is not a special token: say one of {known}"
            )
        ids: list[int] = []
        longest_first = sorted(names, key=len, reverse=True)
        for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text):
            ids += [self.special[part]] if part in names else self._encode(part)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, int64; no special ids."""
        texts = list(texts)
        for text in texts:
            check_text(text)
        return self._encode_batch(texts)

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of texts that have been checked."""
        return [np.asarray(self._encode(text), dtype=np.int64) for text in texts]

    def chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same text cut so that the ids of the chunks, one after another, are those of the joined text."""
        return iter(pieces)

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of one text that comes in pieces: concatenated, the ids of the joined text.

        In bounded memory where it is known at which borders a text may be cut; joined first where it is not.
        Exception: a run of more than 16 million characters without a border is cut where it stands.
        """
        chunks = self.chunks(pieces)
        while batch := list(itertools.islice(chunks, TOGETHER)):
            yield from self.encode_batch(batch)

    # Ids to text ----------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The text that `ids` spell; special ids add nothing.

        `errors` says what becomes of bytes that are not UTF-8, as in `bytes.decode`.
        """
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` spell; special ids add nothing."""
        return b"".join(self.token_bytes(i) for i in _integers(ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, b"" for a special one."""
        table = self._table()
        if not 0 <= token < len(table):
            raise TokenizerError(f"token {token} is outside this vocabulary: ids run from 0 to {self.n_vocab - 1}")
        return table[token]

    def token_str(self, token: int) -> str:
        """One token for people to read: its text, its name if special, \\x escapes for part of a character."""
        for name, special in self.special.items():
            if special == token:
                return name
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    def bytes_of(self, ids: Iterable[int]) -> int:
        """How many bytes of text `ids` stand for; special ids count nothing.

        Raises TokenizerError for the id of an unknown character: its bytes are in the text alone.
        """
        listed = _integers(ids)
        if self.unknown is not None and self.unknown in listed:
            raise TokenizerError(
                f"these ids hold unknown {self.units}, whose bytes are lost: count the text's bytes instead"
            )
        return sum(len(self.token_bytes(i)) for i in listed)

    def pieces_of(self, text: str, ids: Sequence[int]) -> list[bytes]:
        """The bytes of `text` that each of its `ids` stands for; together they are the text's own.

        Where the ids do not spell the text (an unknown word, a tokenizer that changes the text before it cuts it), an
        id stands for what it was made from. Raises TokenizerError where nothing says what that is.
        """
        if (pieces := self.spelled_by(text, ids)) is not None:
            return pieces
        spans = self._spans(text)
        if spans is None or len(spans) != len(ids):
            raise TokenizerError(
                "the tokenizer changes this text before encoding it and does not say what each of its ids was made "
                "from, so that their bytes cannot be counted"
            )
        # what stands between two spans, a space that is left out, belongs to the earlier one
        starts = np.maximum.accumulate([0, *(start for start, _ in spans[1:])]).tolist() if ids else []
        return [text[a:b].encode() for a, b in itertools.pairwise([*starts, len(text)])] if ids else []

    def spelled_by(self, text: str, ids: Sequence[int]) -> list[bytes] | None:
        """The bytes of each id, where together they are `text`; None where they are not.

        An unknown character's id says nothing of its bytes: the character is looked up in the text. A blank that the
        tokenizer of another project puts before every text is no part of it.
        """
        data = text.encode("utf-8")
        if b"".join(pieces := self._spelled(data, ids)) == data:
            return pieces
        if self.lossless or b"".join(pieces := self._spelled(b" " + data, ids)) != b" " + data:
            return None
        return [pieces[0].removeprefix(b" "), *pieces[1:]]

    def _spelled(self, data: bytes, ids: Sequence[int]) -> list[bytes]:
        pieces, at = [], 0
        for token in ids:
            known = token != self.unknown or at >= len(data)
            pieces.append(self.token_bytes(token) if known else data[at : at + _character_length(data[at])])
            at += len(pieces[-1])
        return pieces

    def _spans(self, text: str) -> list[tuple[int, int]] | None:
        """The characters of `text` that each of its ids was made from; None where that is not known."""
        return None

    def stream(self) -> "Stream":
        """A decoder for ids that arrive one at a time."""
        return Stream(self)


class Stream:
    """Ids in, complete characters out: everything pushed, plus `finish()`, is exactly `decode(ids)`."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes, possibly none."""
        return self._decoder.decode(self.tokenizer.token_bytes(int(token)))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _character_length(lead: int) -> int:
    """Bytes of the UTF-8 character that begins with this byte."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def check_special(tokenizer: "Tokenizer", names: Sequence[str]) -> None:
    """Refuse names that are no names, are given twice, or have an id already."""
    for i, name in enumerate(names):
        if len(name) < 2 or name in names[:i] or name in tokenizer.special:
            raise TokenizerError(f"special token {name!r}: expected two characters or more, named once, not taken yet")


def check_text(text: Any) -> None:
    """Refuse what is not text: other types, and lone surrogates, which UTF-8 cannot write."""
    if not isinstance(text, str):
        raise TokenizerError(f"expected text as str, got {type(text).__name__}: decode bytes as UTF-8 first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
        raise TokenizerError(
            f"character {error.start} of the text is the lone surrogate {surrogate}, which is half a character: "
            "replace it, for example by U+FFFD"
        ) from None


def _integers(ids: Any) -> list[int]:
    """Ids as plain integers, from lists, arrays and tensors."""
    return ids.tolist() if hasattr(ids, "tolist") else [int(i) for i in ids]
