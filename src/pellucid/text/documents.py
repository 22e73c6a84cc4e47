"""Reading text: files and folders become documents, in a fixed order, with an account of what was read.

A document is a file, or a row of one: a line of JSON, a row of a table. It is read in pieces, so that
one larger than memory can be counted, hashed, split and encoded, and a few numbers are kept of each,
not its text. Newlines stay as the file has them; a leading byte order mark is dropped. Formats are in
formats.py, the finding of files in files.py.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.files import STANDARD_INPUT, Reading, Skipped, find_files, origin_of
from pellucid.text.opening import Origin
from pellucid.text.pieces import DocumentError, Piece
from pellucid.text.scan import Document, Documents, Source, as_counted, changed, documents_of, scan, use_up, why_not

__all__ = ["Corpus", "Document", "DocumentError", "Reading", "Skipped", "Source", "bundled", "read_corpus"]


@dataclass(frozen=True)
class Corpus:
    """What was read: documents in the order of their paths, the files they are from, and what was left out."""

    documents: Documents
    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()
    reading: Reading = field(default_factory=Reading)

    @property
    def n_bytes(self) -> int:
        """Bytes of text, byte order marks left out."""
        return sum(self.documents.n_bytes)

    @property
    def replaced(self) -> int:
        """How many sequences of bytes were not UTF-8 and became U+FFFD."""
        return sum(source.replaced for source in self.sources)

    @property
    def hash(self) -> str:
        """SHA-256 of the files' names and contents and of how they were read: another where any file is another."""
        content = [[[source.path, source.sha256] for source in self.sources], self.reading.to_dict()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def about(self) -> dict[str, Any]:
        """The account of what was read, in plain JSON types."""
        totals = {"documents": len(self.documents), "bytes": self.n_bytes}
        duplicates = sum(source.duplicates for source in self.sources)
        return {
            "hash": self.hash,
            **totals,
            "duplicates": duplicates,
            "licence": self.reading.licence,
            "reading": self.reading.to_dict(),
            "sources": [vars(source) for source in self.sources],
            "skipped": [list(skipped) for skipped in self.skipped],
        }

    def stream(self, wanted: Callable[[int], bool] | None = None) -> Iterator[tuple[int, Iterator[Piece]]]:
        """The number and the pieces of every document, or of those `wanted`, each file opened once.

        What is left of a document's pieces is read over when the next one is asked for. Raises DocumentError, naming
        the file, where a text is not what was counted.
        """
        first = 0
        for source, origin in zip(self.sources, self.documents.origins, strict=True):
            numbers = range(first, first + source.n_documents)
            first += source.n_documents
            yield from self._stream_file(origin, iter(numbers if wanted is None else filter(wanted, numbers)))

    def _stream_file(self, origin: Origin, numbers: Iterator[int]) -> Iterator[tuple[int, Iterator[Piece]]]:
        k = next(numbers, None)
        if k is None:
            return
        for index, pieces in enumerate(documents_of(origin)):
            if index == self.documents.index[k]:
                pieces = as_counted(pieces, self.documents.digest(k), origin)
                yield k, pieces
            use_up(pieces)
            if index == self.documents.index[k] and (k := next(numbers, None)) is None:
                return
        raise changed(origin)

    def texts(self) -> Iterator[str]:
        """All of the text, in pieces."""
        for _, pieces in self.stream():
            yield from (piece.text for piece in pieces)


def read_corpus(
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    progress: Callable | None = None,
    reading: Reading | None = None,
) -> Corpus:
    """Every document of these files and folders, counted and hashed; their text is read again when it is used.

    Folders are searched through; hidden files and folders are left out. `paths` may hold patterns (`texts/*.md`),
    and - for standard input. `progress(stage, done, total)` is called in bytes. Raises DocumentError for a path that
    does not exist, a named file that is not text, one that is damaged, and input without any text.
    """
    reading = reading or Reading()
    named = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not named:
        raise DocumentError("no input was named: give at least one file or folder of text")
    skipped: list[Skipped] = []
    files = find_files(named, skipped, reading)
    total, before = sum(path.stat().st_size for path, _ in files.values() if path.exists()), 0
    documents, sources = Documents(), []
    for relative in sorted(files):
        path, explicit = files[relative]
        origin = origin_of(path, "standard input" if relative == STANDARD_INPUT else str(path), reading)
        if reason := why_not(origin, reading):
            if explicit:
                raise DocumentError(f"{origin.name}: {reason}")
            skipped.append(Skipped(relative, reason))
            continue
        source = scan(origin, relative, documents, reading, partial(_report, progress, before, total))
        before += source.n_bytes
        if source.n_documents:
            sources.append(source)
        else:
            documents.origins.pop()
            skipped.append(Skipped(relative, "empty"))
    if not documents:
        raise DocumentError(_nothing(named, skipped))
    corpus = Corpus(documents, tuple(sources), tuple(skipped), reading)
    return _without_duplicates(corpus) if reading.drop_duplicates else corpus


def bundled(name: str) -> Path:
    """The path of a text that ships with the package: shakespeare."""
    folder = Path(__file__).parent.parent / "data"
    path = folder / f"{name}.txt"
    if not path.is_file():
        raise DocumentError(
            f"no bundled text {name!r}: say one of {', '.join(sorted(p.stem for p in folder.glob('*.txt')))}"
        )
    return path


def _without_duplicates(corpus: Corpus) -> Corpus:
    """The corpus with the first document of each text alone."""
    documents = corpus.documents
    kept = np.zeros(len(documents), dtype=bool)
    kept[documents.same_text()[0]] = True
    counts = np.bincount(np.asarray(documents.source)[kept], minlength=len(corpus.sources)).tolist()
    sources = [
        replace(source, n_documents=n, duplicates=source.n_documents - n)
        for source, n in zip(corpus.sources, counts, strict=True)
    ]
    return replace(corpus, documents=documents.only(kept), sources=tuple(sources))


def _report(progress: Callable | None, before: int, total: int, here: int) -> None:
    if progress:
        progress("reading", before + here, total)


def _nothing(named: list[Path], skipped: list[Skipped]) -> str:
    names = ", ".join(map(str, named))
    found = "; ".join(f"{path}: {reason}" for path, reason in skipped[:3]) or "no files were found"
    return f"{names}: there is no text to read ({found}); expected at least one non-empty file of text"
