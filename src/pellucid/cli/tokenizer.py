"""The commands about tokenizers: make one, use it, look at it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from pellucid.cli.commands import OK

if TYPE_CHECKING:
    from pellucid.text.documents import Corpus


def tokenizer_train(
    paths: Positional[tuple[str, ...]],
    *,
    out: Path,
    kind: Literal["bpe", "word", "char", "byte"] = "bpe",
    vocabulary: int | None = None,
    field: str = "",
    pattern: Literal["gpt2", "gpt4", "word-end", "none"] = "gpt2",
    share: float = 1.0,
) -> int:
    """Make a tokenizer from text.

    Args:
        paths: files and folders of text, in every format that training reads.
        out: the folder to write tokenizer.json into; an existing tokenizer.json is refused.
        kind: byte-level byte-pair encoding, words, characters, or bytes.
        vocabulary: how many ids byte-pair encoding learns, or words take; 8192 unless given.
        field: of JSON lines, or column of a table, that holds the text; text, or the only one, unless given.
        pattern: how byte-pair encoding divides text first; word-end: the blank behind a word is part of it.
        share: of the text that it is trained on, evenly spread.
    """
    import pellucid

    how: dict[str, Any] = {"pattern": pattern, "share": share}
    made = pellucid.train_tokenizer(*paths, kind=kind, vocabulary=vocabulary, field=field, out=out, **how)
    print(f"{made.n_vocab:,} ids, written to {out / 'tokenizer.json'}")
    for note in made.notes:
        print(note)
    return OK


def tokenizer_encode(tokenizer: Positional[str], text: Positional[str] = "-", *, allow_special: bool = False) -> int:
    """Show the ids of a text and what each stands for.

    Args:
        tokenizer: a tokenizer.json, or a folder or run that holds one.
        text: the text; - reads standard input.
        allow_special: read <|endoftext|> and the like as special tokens.
    """
    from pellucid.text.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    text = sys.stdin.read() if text == "-" else text
    ids = loaded.encode(text, allow_special=tuple(loaded.special) if allow_special else ())
    for i in ids:
        print(f"{i}\t{loaded.token_str(i)!r}")
    return OK


def tokenizer_decode(tokenizer: Positional[str], ids: Positional[tuple[int, ...]]) -> int:
    """The text that ids stand for.

    Args:
        tokenizer: a tokenizer.json, or a folder or run that holds one.
        ids: token ids, separated by spaces.
    """
    from pellucid.text.tokenizer import load_tokenizer

    print(load_tokenizer(tokenizer).decode(list(ids)))
    return OK


def tokenizer_show(
    tokenizer: Positional[str],
    paths: Positional[tuple[str, ...]] = (),
    *,
    word: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="WORD")] = (),
    rows: int = 10,
) -> int:
    """Show what a tokenizer is made of, and how far it compresses texts.

    Args:
        tokenizer: a tokenizer.json, or a folder or run that holds one.
        paths: files and folders of text to measure: bytes per token, tokens per word, by file and by script.
        word: draw what this word's tokens were merged from; may be given several times.
        rows: how many files and tokens each table shows.
    """
    from pellucid.cli.tokenizer_tables import print_survey
    from pellucid.text.documents import read_corpus
    from pellucid.text.survey import survey
    from pellucid.text.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    corpus = read_corpus(list(paths)) if paths else None
    texts = [] if corpus is None else texts_by_file(corpus)
    print_survey(survey(loaded, texts), word, rows)
    return OK


def texts_by_file(corpus: "Corpus") -> Iterator[tuple[str, str]]:
    """Every document with the name of its file."""
    for k, pieces in corpus.stream():
        yield corpus.sources[corpus.documents[k].source].path, "".join(piece.text for piece in pieces)


TOKENIZER_COMMANDS: dict[str, Callable[..., int]] = {
    "train": tokenizer_train,
    "encode": tokenizer_encode,
    "decode": tokenizer_decode,
    "show": tokenizer_show,
}
