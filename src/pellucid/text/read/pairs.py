"""Pairs of texts, a source and its target, for training an encoder-decoder.

    .tsv     source, a tab, target                    no quoting: a side cannot contain a tab or a newline
    .jsonl   {"source": "...", "target": "..."}       other fields are ignored

There is one pair on each line, in UTF-8; blank lines are skipped. An error names the file and line of an unreadable
pair.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.read.chunks import DocumentError, counted
from pellucid.text.read.find import FoundFile, ReadOptions, Skipped, Unreadable, find_files, leave_out, refuse_or_skip
from pellucid.text.read.scan import Source
from pellucid.text.split import PARTS

#: lines read between two progress reports
TOGETHER = 4096

Progress = Callable[..., None] | None


class PairsError(DocumentError):
    """A file of pairs is unreadable, or there are too few pairs, or pairs are too long."""


@dataclass(frozen=True)
class Pairs:
    """Pairs in the order of their files: pair k is line `lines[k]`, counted from 1, of `files[places[k]]`."""

    sources: list[str]
    targets: list[str]
    places: np.ndarray
    lines: np.ndarray
    files: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()
    licence: str = ""

    def about(self) -> dict[str, Any]:
        """A summary of what was read, in plain JSON types."""
        content = [list(file.key) for file in self.files]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        sizes = {"pairs": len(self), "bytes": self.n_bytes, "licence": self.licence}
        return {"hash": digest, **sizes, "skipped": [list(skipped) for skipped in self.skipped]}

    def with_held_out(self, other: "Pairs") -> "Pairs":
        """The pairs of `other`, marked as held out, followed by these."""
        marked = tuple(replace(file, held_out=True) for file in other.files)
        skipped = [Skipped(path, f"{reason} (of the files to hold out)") for path, reason in other.skipped]
        return Pairs(
            other.sources + self.sources,
            other.targets + self.targets,
            np.concatenate([other.places, self.places + len(other.files)]),
            np.concatenate([other.lines, self.lines]),
            (*marked, *self.files),
            (*self.skipped, *skipped),
            self.licence,
        )

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def n_bytes(self) -> int:
        """Bytes of both sides in UTF-8."""
        return sum(len(text.encode()) for side in (self.sources, self.targets) for text in side)

    def place(self, pair: int) -> str:
        """Where a pair was read, as FILE:LINE."""
        return f"{self.files[self.places[pair]].path}:{self.lines[pair]}"


def read_pairs(
    paths: str | Path | list[str] | tuple[str, ...],
    progress: Progress = None,
    reading: ReadOptions | None = None,
    without: Collection[Path] = (),
) -> Pairs:
    """Every pair of these .tsv and .jsonl files, and of those in these folders, in the order of their paths.

    Of the `reading` options, `include`, `exclude` and `skip_bad` apply. Files in `without` (resolved paths) are left
    out.
    Raises PairsError, naming file and line, for the first line of each file that is not a pair (unless
    `reading.skip_bad`
    leaves such files out), and for input without pairs.
    """
    named = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not named:
        raise PairsError("no input was named: give at least one .tsv or .jsonl file, or a folder of them")
    reading = reading or ReadOptions()
    skipped: list[Skipped] = []
    bad: list[Unreadable] = []
    files = find_files(named, skipped, reading, bad)
    leave_out(files, without, skipped)
    pairs = _PairsSoFar()
    for relative in sorted(files):
        try:
            if reason := _why_no_pairs(files[relative]):
                skipped.append(Skipped(relative, reason))
            else:
                pairs.add(relative, files[relative].path, progress)
        except PairsError as error:
            bad.append(Unreadable(relative, str(files[relative].path), str(error)))
    refuse_or_skip(bad, skipped, reading, len(files), PairsError)
    if not pairs.sources:
        raise PairsError(f"{', '.join(map(str, named))}: there are no pairs to read; expected .tsv or .jsonl files")
    where = np.array(pairs.places, dtype=np.int32), np.array(pairs.lines, dtype=np.int64)
    return Pairs(pairs.sources, pairs.targets, *where, tuple(pairs.files), tuple(skipped), reading.licence)


def read_pairs_with_held_out(
    paths: list[str] | tuple[str, ...],
    held_out: list[str] | tuple[str, ...],
    progress: Progress = None,
    reading: ReadOptions | None = None,
) -> Pairs:
    """The pairs of `paths`, and those of the files `held_out`, which are held out and not trained on.

    A file of `held_out` inside a folder of `paths` is read once, as held out.
    """
    apart: list[Skipped] = []
    files = find_files([Path(path) for path in held_out], apart, reading)
    resolved = {file.path.resolve() for file in files.values()}
    measured = read_pairs(held_out, progress, reading)
    return read_pairs(paths, progress, reading, without=resolved).with_held_out(measured)


def _why_no_pairs(file: FoundFile) -> str:
    """Why a file in a folder holds no pairs, empty if it may. Raises PairsError for a file that was named itself."""
    if file.path.suffix.lower() in READERS and file.path.is_file():
        return ""
    reason = "not a .tsv or .jsonl file" if file.path.exists() else "it does not exist"
    if file.explicit:
        raise PairsError(f"{file.path}: {reason}; pairs are read from .tsv (two columns) and .jsonl files")
    return reason


class _PairsSoFar:
    """The pairs read so far, as columns like those of `Pairs`."""

    def __init__(self):
        self.sources: list[str] = []
        self.targets: list[str] = []
        self.places: list[int] = []
        self.lines: list[int] = []
        self.files: list[Source] = []

    def add(self, relative: str, path: Path, progress: Progress) -> None:
        """Add every pair of a file. Raises PairsError, and adds none, if a line is not a pair."""
        pairs, lines, hashed = [], [], _HashedLines(path)
        for number, pair in read_lines(path, hashed):
            pairs.append(pair)
            lines.append(number)
            if progress and not len(lines) % TOGETHER:
                progress("reading", len(self.lines) + len(lines), 0)
        self.sources += [source for source, _ in pairs]
        self.targets += [target for _, target in pairs]
        self.places += [len(self.files)] * len(pairs)
        self.lines += lines
        self.files.append(Source(relative, hashed.n_bytes, hashed.digest.hexdigest(), len(pairs), 0))


class _HashedLines:
    """The lines of a file as bytes without their line ends, hashed and counted as they are read."""

    def __init__(self, path: Path):
        self.path, self.digest, self.n_bytes = path, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                self.digest.update(line)
                first = not self.n_bytes
                self.n_bytes += len(line)
                yield (line.removeprefix(b"\xef\xbb\xbf") if first else line).removesuffix(b"\n").removesuffix(b"\r")


def read_lines(path: Path, lines: Any) -> Iterator[tuple[int, tuple[str, str]]]:
    """The pairs of one file with their line numbers, from 1."""
    read = READERS[path.suffix.lower()]
    for number, raw in enumerate(lines, 1):
        if not raw.strip(b" \r\n"):
            continue
        try:
            source, target = pair = read(raw.decode())
            for name, text in (("source", source), ("target", target)):
                if not text.strip():
                    raise ValueError(f"the {name} is empty, expected text on both sides")
                text.encode()
        except UnicodeDecodeError as error:
            raise PairsError(f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8") from None
        except UnicodeEncodeError:
            raise PairsError(f"{path}:{number}: a lone surrogate, which is half a character") from None
        except ValueError as error:
            raise PairsError(f"{path}:{number}: {error}") from None
        yield number, pair


def _columns(line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"{len(columns)} column{'s' * (len(columns) > 1)}, expected two: source, a tab, target")
    return columns[0], columns[1]


def _fields(line: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}), expected one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{type(row).__name__}, expected an object with the fields source and target")
    for name in ("source", "target"):
        if not isinstance(row.get(name), str):
            has = "no" if name not in row else f"a {type(row[name]).__name__} as"
            raise ValueError(f"{has} field {name!r}, expected text; the fields are {', '.join(row) or 'none'}")
    return row["source"], row["target"]


READERS: dict[str, Callable[[str], tuple[str, str]]] = {".tsv": _columns, ".jsonl": _fields}


# Setting pairs aside ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PairSplit:
    """Which pairs are held out, bool [pairs]; the rest is trained on. `note` explains the split in a sentence."""

    corpus: Pairs
    held_out: float
    seed: int
    held: np.ndarray
    note: str

    def numbers(self, part: str) -> np.ndarray:
        """The numbers of the pairs of one part, in order."""
        if part not in PARTS:
            raise PairsError(f"there is no part {part!r}: choose one of {', '.join(PARTS)}")
        return np.flatnonzero(self.held == (part == "held_out"))

    def texts(self, part: str) -> Iterator[str]:
        """Both sides of every pair of one part, such as the shared tokenizer is trained on."""
        for pair in self.numbers(part):
            yield self.corpus.sources[pair]
            yield self.corpus.targets[pair]

    @property
    def n_bytes(self) -> int:
        """Bytes of both sides of the pairs, without the files that were named to be held out."""
        named = any(file.held_out for file in self.corpus.files)
        return sum(len(text.encode()) for text in self.texts("train")) if named else self.corpus.n_bytes

    def to_dict(self) -> dict[str, Any]:
        """The options that decide the split, in plain JSON types."""
        rule = "files" if any(file.held_out for file in self.corpus.files) else "sources"
        return {"held_out": self.held_out, "seed": self.seed, "rule": rule}


def split_pairs(pairs: Pairs, held_out: float = 0.1, seed: int = 0) -> PairSplit:
    """Hold out about `held_out` of the bytes: whole sources, in the order of a hash with the seed.

    If files were named to be held out, exactly their pairs are, and the share and the seed have no effect. Otherwise
    all
    pairs of one source are on one side, so that a model never trains on a target of a source it is measured on. Raises
    PairsError for a share outside (0, 1) and for pairs that share a single source.
    """
    if any(file.held_out for file in pairs.files):
        return _split_as_named(pairs)
    if not 0 < held_out < 1:
        raise PairsError(f"held_out = {held_out}: expected a share above 0 and below 1, such as 0.1")
    of: dict[str, list[int]] = defaultdict(list)
    for pair, source in enumerate(pairs.sources):
        of[source].append(pair)
    if len(of) < 2:
        raise PairsError(f"{len(pairs)} pairs of one source: two different sources are needed, one of them held out")
    salt = str(seed).encode() + b"\0"
    order = sorted(of, key=lambda source: hashlib.sha256(salt + source.encode()).digest())
    sizes = [sum(len(s.encode()) + len(pairs.targets[pair].encode()) for pair in of[s]) for s in order]
    reached = np.cumsum(sizes)
    n = 1 + int(np.argmin(np.abs(reached[:-1] - held_out * reached[-1])))
    held = np.zeros(len(pairs), dtype=bool)
    held[[pair for source in order[:n] for pair in of[source]]] = True
    are = "is" if held.sum() == 1 else "are"
    note = (
        f"{held.sum():,} of {len(pairs):,} pairs {are} held out, {reached[n - 1] / reached[-1]:.1%} of the "
        f"bytes ({held_out:.1%} requested)"
    )
    return PairSplit(pairs, held_out, seed, held, note)


def _split_as_named(pairs: Pairs) -> PairSplit:
    """Hold out the pairs of the files that were named for it, and train on all others."""
    files = np.array([file.held_out for file in pairs.files])
    held = files[pairs.places]
    trained = {source for source, apart in zip(pairs.sources, held, strict=True) if not apart}
    known = sum(pairs.sources[k] in trained for k in np.flatnonzero(held))
    note = f"held out: {counted(int(held.sum()), 'pair')} of {counted(int(files.sum()), 'file')} of your own"
    if known:
        note += (
            f"; warning: the sources of {known:,} of them are also trained on, so the loss on these pairs is too low"
        )
    return PairSplit(pairs, 0.0, 0, held, note)
