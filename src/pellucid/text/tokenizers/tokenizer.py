"""Train a tokenizer on a text, or load one from its files."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from pellucid.json_files import JSONFileError, parse_json_object, read_regular
from pellucid.text.tokenizers.base import (
    IDS_FILE,
    OPTIONS_FILE,
    SEPARATOR,
    NoEndError,
    Stream,
    Tokenizer,
    TokenizerError,
    options_in,
    token_name,
)
from pellucid.text.tokenizers.beside import with_tokens_beside
from pellucid.text.tokenizers.bpe import BPETokenizer, cut_at_borders
from pellucid.text.tokenizers.external import ExternalTokenizer, read_external, wordpiece_json
from pellucid.text.tokenizers.symbols import ByteTokenizer, CharTokenizer, read_symbols
from pellucid.text.tokenizers.words import WordTokenizer, read_words
from pellucid.trust import Trust, check_trust

__all__ = [
    "SEPARATOR",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "Stream",
    "Tokenizer",
    "TokenizerError",
    "TokenizerKind",
    "WordTokenizer",
    "learn_tokenizer",
    "load_tokenizer",
]

TokenizerKind = Literal["bpe", "word", "char", "byte"]
#: the kinds that take n_vocab
LEARNED = ("bpe", "word")
#: the least n_vocab of these kinds, and what it consists of
LEAST_VOCABULARY = {
    "bpe": (257, "the 256 bytes and the separator"),
    "word": (3, "a word, the separator and the unknown"),
}
#: characters in a chunk of a sample
SAMPLE_CHUNK = 4096
#: bytes of a tokenizer's file; the largest in use have half of it
LONGEST_FILE = 1 << 26


def learn_tokenizer(
    kind: str, texts: Iterable[str], n_vocab: int | None = None, *, pattern: str = "gpt2", sample: float = 1.0
) -> Tokenizer:
    """Train a tokenizer on `texts`, or on an evenly spread `sample` (a share) of them (its `notes` say so).

    bpe   byte-level BPE of `n_vocab` ids, or fewer where the texts hold no more pairs (its `notes` say so)
    word  the most frequent words of the texts, the separator and the unknown, `n_vocab` ids or fewer
    char  the characters of the texts, the separator and the unknown
    byte  the 256 bytes and the separator; the texts are not read

    bpe first divides text by a `pattern`: gpt2, gpt4, word-end (the blank after a word belongs to it) or none.
    Only bpe and word take `n_vocab`: the other two have as many ids as their units. Raises TokenizerError.
    """
    check_learning(kind, n_vocab, pattern=pattern, sample=sample)
    if kind in LEARNED:
        assert n_vocab is not None
        if sample < 1:
            texts = evenly(texts, sample)
        tokenizer = (
            BPETokenizer.train(texts, n_vocab, pattern) if kind == "bpe" else WordTokenizer.train(texts, n_vocab)
        )
        if sample < 1:
            tokenizer.notes = (
                *tokenizer.notes,
                f"the tokenizer was trained on {sample:.3g} of the training text, evenly spread",
            )
        return tokenizer
    return CharTokenizer.train(texts) if kind == "char" else ByteTokenizer()


def check_learning(kind: str, n_vocab: int | None, *, pattern: str = "gpt2", sample: float = 1.0) -> None:
    """Raise TokenizerError if these options of `learn_tokenizer` do not go together, before any text is read."""
    if kind not in get_args(TokenizerKind):
        raise TokenizerError(f"tokenizer kind {kind!r}: choose one of {', '.join(get_args(TokenizerKind))}")
    if kind != "bpe" and pattern != "gpt2":
        raise TokenizerError(f"pattern = {pattern!r}: tokenizer kind {kind!r} has none; leave it out")
    if not 0 < sample <= 1:
        raise TokenizerError(f"sample = {sample}: expected a share of the text above 0, and 1 for all of it")
    if kind in LEARNED and n_vocab is None:
        raise TokenizerError(f"tokenizer kind {kind!r} needs n_vocab, the number of ids to learn")
    if kind in LEARNED and n_vocab is not None and n_vocab < (least := LEAST_VOCABULARY[kind])[0]:
        raise TokenizerError(f"n_vocab = {n_vocab}: tokenizer kind {kind!r} needs at least {least[0]}, {least[1]}")
    if kind not in LEARNED and sample < 1:
        raise TokenizerError(f"sample = {sample}: tokenizer kind {kind!r} is trained on all of the text; leave it out")
    if kind not in LEARNED and n_vocab is not None:
        raise TokenizerError(f"n_vocab = {n_vocab}: tokenizer kind {kind!r} has as many ids as its units; leave it out")


def evenly(texts: Iterable[str], share: float) -> Iterator[str]:
    """Chunks of about SAMPLE_CHUNK characters, spread evenly over the texts, that make up `share` of them."""
    taken = 0
    for seen, chunk in enumerate(cut_at_borders(texts, size=SAMPLE_CHUNK)):
        if taken <= seen * share:
            taken += 1
            yield chunk


def load_tokenizer(path: str | Path, *, trust: Trust = False, ends: Sequence[int] = ()) -> Tokenizer:
    """Load a tokenizer from a tokenizer.json or a vocab.txt, or from a folder with one of these or with GPT-2's two
    files.

    trust   accept patterns and normalizers that are not known to be safe
    ends    ids that may end a text, such as eos_token_id of a model's config.json; the first is taken where neither a
            special token of a known name nor eos_token in the tokenizer_config.json beside the file does

    Tokens that the files beside it list or name, and that it lacks, are added (`with_tokens_beside`). What an ids.json
    beside the file says is taken over (`Tokenizer.with_model_ids`), unless a config.json stands there too, which says
    it in Hugging Face's folders. Raises TokenizerError, and NoEndError where nothing says which token ends a text.
    """
    check_trust(trust)
    path = Path(path)
    files = tokenizer_files(path)
    if not files:
        file = path / "tokenizer.json" if path.is_dir() else path.with_name("tokenizer.json")
        raise TokenizerError(
            f"{file}: there is no such tokenizer; expected a tokenizer.json, a vocab.txt or a folder holding one"
        )
    first = files[0]
    texts = [_read_text_file(file) for file in files]
    try:
        try:
            tokenizer = _tokenizer_of(first, texts, trust)
        except NoEndError:
            tokenizer = _tokenizer_of(first, texts, trust, (*_ends_named_beside(first), *ends))
        return _with_ids_beside(first, tokenizer)
    except TokenizerError as error:
        raise type(error)(f"{first}: {error}") from None
    except JSONFileError as error:
        raise TokenizerError(f"{first}: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"{first} is damaged: {error!r}") from error


def _tokenizer_of(first: Path, texts: Sequence[str], trust: Trust, ends: Sequence[str | int] = ()) -> Tokenizer:
    """The tokenizer of the files with these texts, of which `first` is the first."""
    if first.suffix == ".txt":
        text = wordpiece_json(*texts)
        return ExternalTokenizer(with_tokens_beside(text, json.loads(text), first.parent), ends=ends)
    if len(texts) > 1:
        plain = BPETokenizer.from_merges(*texts)
        text = with_tokens_beside(plain.to_json(), json.loads(plain.to_json()), first.parent)
        return plain if text == plain.to_json() else BPETokenizer(text, ends=(plain.separator,))
    content = parse_json_object(texts[0], "this tokenizer")
    if not isinstance(content.get("model"), dict):
        raise TokenizerError("this JSON is not a tokenizer.json: it has no model entry")
    text = with_tokens_beside(texts[0], content, first.parent)
    content = content if text is texts[0] else json.loads(text)
    own = read_symbols(content) or read_words(content) or read_external(text, content, trust=trust, ends=ends)
    return own or BPETokenizer(text, trust=trust, ends=ends)


def _ends_named_beside(file: Path) -> list[str]:
    """The name of the token that ends a text, if the tokenizer_config.json beside a tokenizer's file has it."""
    path = file.with_name(OPTIONS_FILE)
    if not path.exists():
        return []
    name = token_name(options_in(_read_text_file(path)).get("eos_token"))
    return [name] if name else []


def _with_ids_beside(file: Path, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer of this file with the ids that our IDS_FILE beside it names, if there is one."""
    path = file.with_name(IDS_FILE)
    # beside a config.json, which says the same, a file of this name is somebody else's
    if not path.exists() or file.with_name("config.json").exists():
        return tokenizer
    content = options_in(_read_text_file(path), IDS_FILE)
    start, ends = content.get("start"), content.get("ends", [])
    if not isinstance(ends, list) or any(type(i) is not int or i < 0 for i in [*ends, 0 if start is None else start]):
        raise TokenizerError(
            f"{IDS_FILE} beside it holds ends = {str(ends)[:60]} and start = {str(start)[:60]}: expected a list of "
            "ids and an id, whole numbers from 0"
        )
    if beyond := [i for i in ends if i >= tokenizer.n_vocab]:
        raise TokenizerError(
            f"{IDS_FILE} beside it says that id {beyond[0]} ends a text: expected an id of this tokenizer, from 0 to "
            f"{tokenizer.n_vocab - 1}"
        )
    return tokenizer.with_model_ids(start, ends)


def tokenizer_files(path: Path) -> list[Path]:
    """The files of the tokenizer at a path: tokenizer.json; or GPT-2's two files, or vocab.txt, and their
    tokenizer_config.json if it exists. An empty list if there is no tokenizer.
    """
    if path.is_dir() and not (path / "tokenizer.json").exists():
        for pair in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
            files = [path / name for name in pair]
            if all(file.exists() for file in files):
                return _with_options(files)
    if path.is_dir():
        path = path / ("tokenizer.json" if (path / "tokenizer.json").exists() else "vocab.txt")
    if not path.exists():
        return []
    return _with_options([path]) if path.suffix == ".txt" else [path]


def _with_options(files: list[Path]) -> list[Path]:
    """The files, and the tokenizer_config.json beside them if it exists."""
    options = files[0].with_name(OPTIONS_FILE)
    return [*files, options] if options.exists() else files


def _read_text_file(path: Path) -> str:
    """The text of a regular file."""
    try:
        return read_regular(path, LONGEST_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not valid UTF-8: {error}") from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from None
