"""Read text: files and folders become documents, in a fixed order, with a record of what was read.

Each file is one document; in JSONL, CSV, Parquet and Arrow files, each row is. A document is read in chunks, so that
one larger than memory can be counted, hashed, split and encoded; memory holds a few numbers for each document, not its
text. Line ends stay as they are in the file; a leading byte order mark is dropped. Formats are in formats.py, and
find.py finds the files.
"""

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.read.chunks import ChangedError, DocumentError, TextChunk, counted
from pellucid.text.read.decompress import Origin
from pellucid.text.read.find import (
    STANDARD_INPUT,
    UNREADABLE,
    ReadOptions,
    Skipped,
    Unreadable,
    find_files,
    leave_out,
    origin_of,
    refuse_or_skip,
)
from pellucid.text.read.formats import ROWS
from pellucid.text.read.known_scans import KnownScans
from pellucid.text.read.scan import (
    Document,
    Documents,
    FileToScan,
    Source,
    as_counted,
    changed_file_error,
    documents_of,
    drain,
    scan_file,
)
from pellucid.text.read.tables import FIELD
from pellucid.text.tokenizers.base import SEPARATOR

__all__ = ["Corpus", "Document", "DocumentError", "ReadOptions", "Skipped", "Source", "bundled", "read_corpus"]


@dataclass(frozen=True)
class Corpus:
    """What was read: documents in the order of their paths, the files they come from, and the files left out."""

    documents: Documents
    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()
    reading: ReadOptions = field(default_factory=ReadOptions)

    @property
    def n_bytes(self) -> int:
        """Bytes of text, without byte order marks."""
        return int(self.documents.rows["n_bytes"].sum())

    @property
    def replaced(self) -> int:
        """The number of byte sequences that were not UTF-8 and became U+FFFD."""
        return sum(source.replaced for source in self.sources)

    @property
    def hash(self) -> str:
        """SHA-256 of the files' names and contents and of the reading options."""
        content = [[list(source.key) for source in self.sources], self.reading.to_dict()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def unreadable(self) -> list[Skipped]:
        """The unreadable files that were left out, as `skip_bad` requested."""
        return [file for file in self.skipped if file.reason.startswith(UNREADABLE)]

    @property
    def notes(self) -> list[str]:
        """Sentences about how the input was read that its owner should know."""
        notes = []
        if bad := len(self.unreadable):
            notes.append(f"{counted(bad, 'file')} that cannot be read {'was' if bad == 1 else 'were'} left out")
        notes += [
            *self.notes_on_bytes,
            *self._notes_on_marks(),
            *self._notes_on_halves(),
            *self._notes_on_front_matter(),
            *self._notes_on_main_text(),
            *self._notes_on_fields(),
            *self._notes_on_empty_rows(),
        ]
        if self.reading.field and not bad and not any(origin.format in ROWS for origin in self.documents.origins):
            notes.append(
                f"--field {self.reading.field} has no effect: only JSON lines and tables have fields, and none of "
                "these files is one; if a file's name does not show its format, name it: --format jsonl"
            )
        for pattern, name in self.reading.field_patterns.items():
            is_skipped = any(fnmatch.fnmatch(Path(file.path).name, pattern) for file in self.skipped)
            if not is_skipped and not any(origin.field == name for origin in self.documents.origins):
                notes.append(f"--field '{pattern}={name}' has no effect: no file that is read matches {pattern}")
        return notes

    @property
    def notes_on_bytes(self) -> list[str]:
        """A sentence about bytes that are not UTF-8; none where all are."""
        if not self.replaced:
            return []
        files = [source for source in self.sources if source.replaced]
        are, first = ("is", "") if self.replaced == 1 else ("are", "the first ")
        return [
            f"{counted(self.replaced, 'sequence')} of bytes {are} not UTF-8 and became U+FFFD, in {len(files):,} "
            f"of the files, {first}in {files[0].path} at {files[0].first_replaced}; if the files have "
            "another encoding, name it: --encoding latin-1"
        ]

    def _notes_on_marks(self) -> list[str]:
        """A sentence about marks between documents that are read as text, or that no file has; none otherwise."""
        notes, split_at = [], self.reading.split_at
        if marks := sum(source.end_marks for source in self.sources):
            files = [source.path for source in self.sources if source.end_marks]
            more = f" and {counted(len(files) - 1, 'more file')} hold" if len(files) > 1 else " holds"
            notes.append(
                f"{files[0]}{more} the characters {SEPARATOR} {marks:,} {'time' if marks == 1 else 'times'}; they are "
                f'read as text and end no document: to begin a new document there, add --split-at "{SEPARATOR}"'
            )
        if split_at and not any(source.divisions for source in self.sources):
            notes.append(f"--split-at {split_at!r} has no effect: no file has these characters between two texts")
        return notes

    def _notes_on_halves(self) -> list[str]:
        """A sentence about halves of characters that JSON escapes; none where there are none."""
        files = [source for source in self.sources if source.halves]
        if not files:
            return []
        halves = sum(source.halves for source in files)
        are, first = ("is", "") if halves == 1 else ("are", "the first ")
        return [
            f"{counted(halves, 'escape')} in JSON {are} half of a character (as \\ud83d is without the \\ude00 behind "
            f"it) and became U+FFFD, in {len(files):,} of the files, {first}in {files[0].path} at "
            f"{files[0].first_half}; no encoding mends this: the program that wrote the file cut the text inside a "
            "character"
        ]

    def _notes_on_front_matter(self) -> list[str]:
        """A sentence about front matter of Markdown; none where there is none."""
        files = [source for source in self.sources if source.front_matter]
        if not files:
            return []
        n_bytes = sum(source.front_matter for source in files)
        of = f"{files[0].path} is" if len(files) == 1 else f"{len(files):,} files of Markdown is"
        return [f"the front matter of {of} left out, {n_bytes:,} bytes: --format plain reads it too"]

    def _notes_on_main_text(self) -> list[str]:
        """A sentence about pages without a clear main text, or about none being a page; none where `html` is all."""
        if self.reading.html == "all":
            return []
        pages = sum(origin.format == "html" for origin in self.documents.origins)
        whole = [source for source in self.sources if source.main_missing]
        if not pages:
            return [f"--html {self.reading.html} has no effect: none of these files is an HTML page"]
        if not whole:
            return []
        were = f"{whole[0].path} was" if len(whole) == 1 else f"{len(whole):,} of {counted(pages, 'page')} were"
        return [f"{were} read as a whole: no part is clearly the main text"]

    def _notes_on_fields(self) -> list[str]:
        """A sentence about a field that was read because no other holds text; none where it is `text`."""
        files = [source for source in self.sources if source.field not in ("", FIELD)]
        if self.reading.field or not files:
            return []
        more = f" and of {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        return [
            f"no field is called {FIELD!r}: the only one of text was read, {files[0].field!r} of "
            f"{files[0].path}{more}; if it is not the text, name the text's: --field NAME"
        ]

    def _notes_on_empty_rows(self) -> list[str]:
        """A sentence about rows, or with `split_at` documents, without text; none where all have some."""
        files = [source for source in self.sources if source.empty]
        if not files:
            return []
        empty = sum(source.empty for source in files)
        rows = empty + sum(source.n_documents + source.duplicates for source in files)
        most = max(files, key=lambda source: source.empty)
        field = f" in the field {most.field!r}" if most.field else ""
        of_files, where = (f" of {len(files):,} files", f", the most in {most.path}") if len(files) > 1 else ("", "")
        unit = "document" if self.reading.split_at else "row"
        have, were = ("has", "was") if empty == 1 else ("have", "were")
        line = f"{empty:,} of {counted(rows, unit)}{of_files} {have} no text{field} and {were} left out{where}"
        others = f"; other fields are {most.other_fields}: if one holds the text, name it: --field NAME"
        return [line + (others if most.other_fields else "")]

    def with_held_out(self, other: "Corpus") -> "Corpus":
        """The documents of `other`, marked as held out, followed by those of this corpus.

        If duplicates are left out, a held-out text is removed from the training documents.
        """
        marked = tuple(replace(source, held_out=True) for source in other.sources)
        skipped = [Skipped(path, f"{reason} (of the files to hold out)") for path, reason in other.skipped]
        joined = replace(
            self,
            documents=Documents.joined([other.documents, self.documents]),
            sources=(*marked, *self.sources),
            skipped=(*self.skipped, *skipped),
        )
        return _without_duplicates(joined) if self.reading.drop_duplicates else joined

    def about(self) -> dict[str, Any]:
        """A summary of what was read, in plain JSON types."""
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

    def stream(self, wanted: Callable[[int], bool] | None = None) -> Iterator[tuple[int, Iterator[TextChunk]]]:
        """The number and the chunks of every document, or of those for which `wanted` is True. Each file is opened
        once.

        The rest of a document is read when the next one is requested. Raises DocumentError, naming the file, if a text
        changed since it was counted.
        """
        first = 0
        for source, origin in zip(self.sources, self.documents.origins, strict=True):
            numbers = range(first, first + source.n_documents)
            first += source.n_documents
            yield from self._stream_file(origin, iter(numbers if wanted is None else filter(wanted, numbers)))

    def _stream_file(self, origin: Origin, numbers: Iterator[int]) -> Iterator[tuple[int, Iterator[TextChunk]]]:
        k = next(numbers, None)
        if k is None:
            return
        indices = self.documents.rows["index"]
        for index, pieces in enumerate(documents_of(origin)):
            if index == indices[k]:
                pieces = as_counted(pieces, self.documents.digest(k), origin)
                yield k, pieces
                drain(pieces)
                if (k := next(numbers, None)) is None:
                    return
        raise changed_file_error(origin)

    def texts(self) -> Iterator[str]:
        """All of the text, in chunks."""
        for _, pieces in self.stream():
            yield from (piece.text for piece in pieces)


def read_corpus(
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    progress: Callable | None = None,
    reading: ReadOptions | None = None,
    held_out: Iterable[str | os.PathLike] = (),
    kept: Path | None = None,
) -> Corpus:
    """Count and hash every document of these files and folders. Their text is read again when it is used.

    Folders are searched; hidden files and folders are left out. `paths` may hold patterns (`texts/*.md`), and - for
    standard input. `progress(stage, done, total)` is called with bytes. The files of `held_out` come first; they are
    held out and not trained on, also where they lie in a folder of `paths`. `kept` is a folder in which what was read
    is kept, so that files that do not change are not read again the next time.

    Raises DocumentError for paths that do not exist, for input without any text, for a file that both `paths` and
    `held_out` name, and, naming all of them, for damaged files and for named files that are not text, unless
    `reading.skip_bad` leaves these out.
    """
    reading = reading or ReadOptions()
    if not (held_out := list(held_out)):
        return _read_corpus(paths, progress, reading, (), kept)
    apart = _read_corpus(held_out, progress, reading, (), kept)
    files = {origin.path.resolve() for origin in apart.documents.origins}
    return _read_corpus(paths, progress, reading, files, kept).with_held_out(apart)


def _read_corpus(
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    progress: Callable | None,
    reading: ReadOptions,
    without: Collection[Path],
    kept: Path | None,
) -> Corpus:
    """The documents of these files and folders, but not of the files in `without`, which are resolved paths."""
    named = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not named:
        raise DocumentError("no input was named: give at least one file or folder of text")
    skipped: list[Skipped] = []
    bad: list[Unreadable] = []
    files = find_files(named, skipped, reading, bad)
    leave_out(files, without, skipped)
    to_scan = []
    for relative, (path, _) in sorted(files.items()):
        name = "standard input" if relative == STANDARD_INPUT else str(path)
        to_scan.append(FileToScan(relative, origin_of(path, name, reading, relative)))
    known = KnownScans(kept, to_scan, reading) if kept else None
    earlier = [known and known.get(file) for file in to_scan]
    new = [file.origin.path for file, scanned in zip(to_scan, earlier, strict=True) if scanned is None]
    total = sum(path.stat().st_size for path in new if path.exists())
    parts, sources, n_read = [], [], 0
    for file, scanned in zip(to_scan, earlier, strict=True):
        relative, origin = file
        if scanned is None:
            scanned = scan_file(file, reading, partial(_report, progress, total, n_read))
            n_read += scanned.source.n_bytes if scanned.source else 0
            if known:
                known.add(file, scanned)
        source, why, is_named = scanned.source, scanned.reason, files[relative].explicit
        if isinstance(scanned.error, ChangedError):
            raise scanned.error
        if scanned.error or (why and is_named):
            error = str(scanned.error or f"{origin.name}: {why}")
            bad.append(Unreadable(relative, origin.name, error))
        elif source is None or not source.n_documents:
            skipped.append(Skipped(relative, why or "empty"))
        else:
            parts.append(scanned.documents)
            sources.append(source)
    if known:
        known.write()
    refuse_or_skip(bad, skipped, reading, len(files))
    if not parts:
        raise DocumentError(_no_text_message(named, skipped))
    corpus = Corpus(Documents.joined(parts), tuple(sources), tuple(skipped), reading)
    return _without_duplicates(corpus) if reading.drop_duplicates else corpus


def bundled(name: str) -> Path:
    """The path of a text that ships with the package, such as shakespeare."""
    folder = Path(str(resources.files("pellucid"))) / "data"
    path = folder / f"{name}.txt"
    if not path.is_file():
        raise DocumentError(
            f"no bundled text {name!r}: choose one of {', '.join(sorted(p.stem for p in folder.glob('*.txt')))}"
        )
    return path


def _without_duplicates(corpus: Corpus) -> Corpus:
    """The corpus with only the first document of each text."""
    documents = corpus.documents
    is_first = np.zeros(len(documents), dtype=bool)
    is_first[documents.same_text()[0]] = True
    counts = np.bincount(documents.rows["source"][is_first], minlength=len(corpus.sources)).tolist()
    sources = [
        replace(source, n_documents=n, duplicates=source.duplicates + source.n_documents - n)
        for source, n in zip(corpus.sources, counts, strict=True)
    ]
    return replace(corpus, documents=replace(documents, rows=documents.rows[is_first]), sources=tuple(sources))


def _report(progress: Callable | None, total: int, before: int, here: int) -> None:
    if progress:
        progress("reading", before + here, total)


def _no_text_message(named: list[Path], skipped: list[Skipped]) -> str:
    names = ", ".join(map(str, named))
    reasons = "; ".join(f"{path}: {reason}" for path, reason in skipped[:3]) or "no files were found"
    return f"{names}: there is no text to read ({reasons}); expected at least one non-empty file of text"
