"""Rows of files that hold one item on each line: what pairs and conversations have in common.

A row keeps the file and the line it was read from, so that every error can name both.
"""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar, cast

import numpy as np

from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError, counted
from pellucid.text.read.decompress import PACKED, HashingFile, unpacked
from pellucid.text.read.find import (
    FoundFile,
    ReadOptions,
    Skipped,
    Unreadable,
    find_files,
    leave_out,
    origin_of,
    refuse_or_skip,
)
from pellucid.text.read.formats import utf8_lines
from pellucid.text.read.scan import Source
from pellucid.text.split import SPLIT_PARTS

#: lines read between two progress reports
LINES_AT_ONCE = 4096

Progress = Callable[..., None] | None
T = TypeVar("T")


@dataclass(frozen=True)
class RowFormat(Generic[T]):
    """How files of rows are read.

    noun      what a row is, in the plural
    expected  the suffixes, as an error names them
    hint      what an error adds for another file
    readers   the function that reads a line, by the suffix of its file; it raises ValueError for a line that is no row
    error     what is raised where a file or a line cannot be read
    headers   the first line, by the suffix of its file, that names the columns and is no row, in small letters
    """

    noun: str
    expected: str
    hint: str
    readers: Mapping[str, Callable[[str], T]]
    error: type[DocumentError]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows(Generic[T]):
    """Rows in the order of their files: row k is line `lines[k]`, counted from 1, of `files[places[k]]`."""

    rows: list[T]
    places: np.ndarray
    lines: np.ndarray
    files: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()
    licence: str = ""
    noun: str = "rows"

    def about(self) -> dict[str, Any]:
        """A summary of what was read, in plain JSON types."""
        content = [list(file.key) for file in self.files]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        sizes = {self.noun: len(self), "bytes": self.n_bytes, "licence": self.licence}
        return {"hash": digest, **sizes, "skipped": [list(skipped) for skipped in self.skipped]}

    def with_held_out(self, other: Self) -> Self:
        """The rows of `other`, marked as held out, followed by these."""
        marked = tuple(replace(file, held_out=True) for file in other.files)
        skipped = [Skipped(path, f"{reason} (of the files to hold out)") for path, reason in other.skipped]
        return replace(
            self,
            rows=other.rows + self.rows,
            places=np.concatenate([other.places, self.places + len(other.files)]),
            lines=np.concatenate([other.lines, self.lines]),
            files=(*marked, *self.files),
            skipped=(*self.skipped, *skipped),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        """Bytes of the texts in UTF-8."""
        raise NotImplementedError

    def place(self, row: int) -> str:
        """Where a row was read, as FILE:LINE."""
        return f"{self.files[self.places[row]].path}:{self.lines[row]}"


RowsT = TypeVar("RowsT", bound=Rows[Any])


def read_rows(
    kind: type[RowsT],
    form: RowFormat[Any],
    paths: str | Path | Sequence[str | Path],
    held_out: Sequence[str | Path] = (),
    progress: Progress = None,
    reading: ReadOptions | None = None,
) -> RowsT:
    """Every row of these files, and of the files in these folders, in the order of their paths; before them the rows of
    `held_out`, which are held out and not trained on.

    A file of `held_out` inside a folder of `paths` is read once, as held out. Of the `reading` options, `include`,
    `exclude` and `skip_bad` apply. Raises the format's error, naming file and line, for the first line of each file
    that is not a row (unless `reading.skip_bad` leaves such files out), and for input without rows.
    """
    named = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not named:
        raise form.error(f"no input was named: give at least one {form.expected} file, or a folder of them")
    reading = reading or ReadOptions()
    if not held_out:
        return _read_rows(kind, form, named, progress, reading)
    apart = [Path(path) for path in held_out]
    resolved = {file.path.resolve() for file in find_files(apart, [], reading).values()}
    measured = _read_rows(kind, form, apart, progress, reading)
    return _read_rows(kind, form, named, progress, reading, resolved).with_held_out(measured)


def _read_rows(
    kind: type[RowsT],
    form: RowFormat[Any],
    named: list[Path],
    progress: Progress,
    reading: ReadOptions,
    without: Collection[Path] = (),
) -> RowsT:
    """The rows of these files and folders, but not of the files in `without`, which are resolved paths."""
    skipped: list[Skipped] = []
    bad: list[Unreadable] = []
    files = find_files(named, skipped, reading, bad)
    leave_out(files, without, skipped)
    rows = _RowsSoFar(form)
    for relative in sorted(files):
        try:
            if reason := _why_no_rows(files[relative], form):
                skipped.append(Skipped(relative, reason))
            else:
                rows.add(relative, files[relative].path, progress)
        except DocumentError as error:
            bad.append(Unreadable(relative, str(files[relative].path), str(error)))
        except OSError as error:
            reason = f"{relative}: it cannot be read: {error.strerror}"
            bad.append(Unreadable(relative, str(files[relative].path), reason))
    refuse_or_skip(bad, skipped, reading, len(files), form.error)
    if not rows.rows:
        raise form.error(
            f"{', '.join(map(str, named))}: there are no {form.noun} to read; expected {form.expected} files"
        )
    where = np.array(rows.places, dtype=np.int32), np.array(rows.lines, dtype=np.int64)
    return kind(rows.rows, *where, tuple(rows.files), tuple(skipped), reading.licence, form.noun)


def row_suffix(path: Path) -> str:
    """The suffix that says how the rows of a file are written, without that of its compression."""
    return Path(path.stem if path.suffix.lower() in PACKED else path.name).suffix.lower()


def lines_of_file(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file, decompressed, in UTF-8 if a byte order mark names another Unicode encoding."""
    origin = origin_of(path, str(path), ReadOptions())
    return utf8_lines(unpacked(file, origin), origin)


def _why_no_rows(file: FoundFile, form: RowFormat[Any]) -> str:
    """Why a file in a folder holds no rows, empty if it may. Raises the format's error for a file that was named."""
    if row_suffix(file.path) in form.readers and file.path.is_file():
        return ""
    reason = f"not a {form.expected} file" if file.path.exists() else "it does not exist"
    if file.explicit:
        raise form.error(f"{file.path}: {reason}; {form.hint}")
    return reason


@dataclass
class _RowsSoFar:
    """The rows read so far, as columns like those of `Rows`."""

    form: RowFormat[Any]
    rows: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    files: list[Source] = field(default_factory=list)

    def add(self, relative: str, path: Path, progress: Progress) -> None:
        """Add every row of a file. Raises the format's error, and adds none, if a line is not a row."""
        rows, lines = [], []
        with path.open("rb") as file:
            hashed = HashingFile(file)
            content = lines_of_file(path, cast(BinaryIO, io.BufferedReader(hashed, CHUNK_BYTES)))
            for number, row in read_lines(path, content, self.form):
                rows.append(row)
                lines.append(number)
                if progress and not len(lines) % LINES_AT_ONCE:
                    progress("reading", len(self.lines) + len(lines), 0)
            hashed.exhaust()
        self.rows += rows
        self.places += [len(self.files)] * len(rows)
        self.lines += lines
        self.files.append(Source(relative, hashed.n_bytes, hashed.digest.hexdigest(), len(rows), 0))


def read_lines(path: Path, lines: Iterator[bytes], form: RowFormat[T]) -> Iterator[tuple[int, T]]:
    """The rows of one file with their line numbers, from 1."""
    read, header = form.readers[row_suffix(path)], form.headers.get(row_suffix(path))
    for number, ended in enumerate(lines, 1):
        raw = ended.removesuffix(b"\n").removesuffix(b"\r")
        if not raw.strip(b" \r\n"):
            continue
        try:
            line = raw.decode()
            names_columns, header = line.lower() == header, None
            if names_columns:
                continue
            row = read(line)
        except UnicodeDecodeError as error:
            raise form.error(
                f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8: convert the file to UTF-8"
            ) from None
        except UnicodeEncodeError:
            raise form.error(f"{path}:{number}: a lone surrogate, which is half a character") from None
        except ValueError as error:
            raise form.error(f"{path}:{number}: {error}") from None
        yield number, row


def read_json_object(line: str, expected: str) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError, which says what was expected of it."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}), expected one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__}, expected {expected}")
    return row


# Setting rows aside -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSplit(Generic[RowsT]):
    """Which rows are held out, bool [rows]; the rest is trained on. `note` explains the split in a sentence.

    `rule` is what rows are held out by: all that share it are on one side.
    """

    corpus: RowsT
    held_out: float
    seed: int
    held: np.ndarray
    note: str
    rule: str = ""

    def numbers(self, part: str) -> np.ndarray:
        """The numbers of the rows of one part, in order."""
        if part not in SPLIT_PARTS:
            raise DocumentError(f"there is no part {part!r}: choose one of {', '.join(SPLIT_PARTS)}")
        return np.flatnonzero(self.held == (part == "held_out"))

    @property
    def has_named_files(self) -> bool:
        """Whether files were named to be held out."""
        return any(file.held_out for file in self.corpus.files)

    def to_dict(self) -> dict[str, Any]:
        """The options that decide the split, in plain JSON types."""
        return {
            "held_out": self.held_out,
            "seed": self.seed,
            "rule": "files" if self.has_named_files else self.rule,
        }


def held_out_rows(
    form: RowFormat[Any], keys: Sequence[str], sizes: Sequence[int], held_out: float, seed: int, of_key: str
) -> tuple[np.ndarray, str]:
    """Hold out about `held_out` of the bytes: all rows of a key, in the order of a hash with the seed.

    keys, sizes  of every row: what must not be on both sides, and its bytes
    of_key       what a key is, for errors

    Returns which rows are held out, bool [rows], and a sentence. Raises the format's error for a share outside (0, 1)
    and for rows that share a single key.
    """
    if not 0 < held_out < 1:
        raise form.error(f"held_out = {held_out}: expected a share above 0 and below 1, such as 0.1")
    of: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        of[key].append(row)
    if len(of) < 2:
        raise form.error(
            f"{len(keys)} {form.noun} of one {of_key}: two different {of_key}s are needed, one of them held out"
        )
    salt = str(seed).encode() + b"\0"
    order = sorted(of, key=lambda key: hashlib.sha256(salt + key.encode()).digest())
    reached = np.cumsum([sum(sizes[row] for row in of[key]) for key in order])
    n = 1 + int(np.argmin(np.abs(reached[:-1] - held_out * reached[-1])))
    held = np.zeros(len(keys), dtype=bool)
    held[[row for key in order[:n] for row in of[key]]] = True
    are = "is" if held.sum() == 1 else "are"
    return held, (
        f"{held.sum():,} of {len(keys):,} {form.noun} {are} held out, {reached[n - 1] / reached[-1]:.1%} of the "
        f"bytes ({held_out:.1%} requested)"
    )


def rows_of_named_files(rows: Rows[Any], keys: Sequence[str], of_key: str) -> tuple[np.ndarray, str]:
    """Hold out the rows of the files that were named for it, and train on all others; see `held_out_rows`."""
    files = np.array([file.held_out for file in rows.files])
    held = files[rows.places]
    trained = {key for key, apart in zip(keys, held, strict=True) if not apart}
    known = sum(keys[k] in trained for k in np.flatnonzero(held).tolist())
    singular = rows.noun.removesuffix("s")
    note = f"held out: {counted(int(held.sum()), singular)} of {counted(int(files.sum()), 'file')} of your own"
    if known:
        note += (
            f"; warning: the {of_key}s of {known:,} of them are also trained on, so the loss on these {rows.noun} is "
            "too low"
        )
    return held, note
