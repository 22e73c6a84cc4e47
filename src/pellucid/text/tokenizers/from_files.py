"""Train a tokenizer on files: `pellucid.train_tokenizer` and `pellucid tokenizer train`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pellucid.destination import check_destination
from pellucid.text.read.documents import read_corpus
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import LEARNED, Tokenizer, TokenizerError, check_learning
from pellucid.text.tokenizers.tokenizer import learn_tokenizer as make_tokenizer
from pellucid.text.tokens.prepare import Progress


def train_tokenizer(
    *inputs: str | Path,
    kind: str = "bpe",
    vocabulary: int | None = None,
    field: str = "",
    out: str | Path | None = None,
    reading: ReadOptions | None = None,
    progress: Progress = None,
    pattern: str = "gpt2",
    sample: float = 1.0,
) -> Tokenizer:
    """A tokenizer made from texts, written to `out`/tokenizer.json; `pattern` and `sample` as in `pellucid.text`.

    `vocabulary` is of bpe and word, 8192 unless given; `field` of JSON lines, or column of tables, holds the text;
    `reading` says the rest of how files are found and read. The tokenizer's notes say what became of the files.
    `progress(stage, done, total)` is told what is being done, in bytes while the text is read and then in characters.
    """
    if out is not None and (Path(out) / "tokenizer.json").exists():
        raise TokenizerError(f"{Path(out) / 'tokenizer.json'} exists: choose another folder")
    if out is not None:
        check_destination(Path(out) / "tokenizer.json")
    n_vocab = vocabulary or (8192 if kind in LEARNED else None)
    check_learning(kind, n_vocab, pattern=pattern, sample=sample)
    reading = replace(reading or ReadOptions(), field=field) if field else reading
    corpus = read_corpus([str(path) for path in inputs], progress, reading)
    texts = with_progress(corpus.texts(), int(corpus.documents.rows["n_characters"].sum()), progress)
    tokenizer = make_tokenizer(kind, texts, n_vocab, pattern=pattern, sample=sample)
    tokenizer.notes = (
        *tokenizer.notes,
        *corpus.notes,
        *(f"skipped {file.path}: {file.reason}" for file in corpus.unreadable),
    )
    if out is not None:
        tokenizer.save(out)
    return tokenizer


def with_progress(texts: Iterable[str], total: int, progress: Progress) -> Iterator[str]:
    """Yield the texts and report to `progress`, which may raise, how many of their characters have been read."""
    n = 0
    for text in texts:
        if progress:
            progress("making the tokenizer", n, total)
        yield text
        n += len(text)
    if progress:
        progress("learning the vocabulary", 0, 0)
