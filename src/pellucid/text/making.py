"""A tokenizer from files: what `pellucid.train_tokenizer` and `pellucid tokenizer train` do."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pellucid.destination import check_destination
from pellucid.text.documents import read_corpus
from pellucid.text.files import Reading
from pellucid.text.preparation import Progress
from pellucid.text.tokenizer import LEARNED, Tokenizer, TokenizerError, check_learning
from pellucid.text.tokenizer import train_tokenizer as make_tokenizer


def train_tokenizer(
    *inputs: str | Path,
    kind: str = "bpe",
    vocabulary: int | None = None,
    field: str = "",
    out: str | Path | None = None,
    reading: Reading | None = None,
    progress: Progress = None,
    **how: Any,
) -> Tokenizer:
    """A tokenizer made from texts, written to `out`/tokenizer.json; `how`: pattern and share, as in `pellucid.text`.

    `vocabulary` is of bpe and word, 8192 unless given; `field` of JSON lines, or column of tables, holds the text;
    `reading` says the rest of how files are found and read. The tokenizer's notes say what became of the files.
    `progress(stage, done, total)` is told what is being done, in bytes while the text is read and then in characters.
    """
    if out is not None and (Path(out) / "tokenizer.json").exists():
        raise TokenizerError(f"{Path(out) / 'tokenizer.json'} exists: choose another folder")
    if out is not None:
        check_destination(Path(out) / "tokenizer.json")
    n_vocab = vocabulary or (8192 if kind in LEARNED else None)
    check_learning(kind, n_vocab, **how)
    reading = replace(reading or Reading(), field=field) if field else reading
    corpus = read_corpus([str(path) for path in inputs], progress, reading)
    texts = told(corpus.texts(), sum(corpus.documents.n_characters), progress)
    made = make_tokenizer(kind, texts, n_vocab, **how)
    made.notes = (*made.notes, *corpus.notes, *(f"skipped {file.path}: {file.reason}" for file in corpus.unreadable))
    if out is not None:
        made.save(out)
    return made


def told(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    """The same texts; how many of their characters have been read is said to `progress`, which may raise."""
    n = 0
    for text in texts:
        if progress:
            progress("making the tokenizer", n, total)
        yield text
        n += len(text)
    if progress:
        progress("learning the vocabulary", 0, 0)
