"""Pairs of texts, a source and its target, for training an encoder-decoder.

    .tsv     source, a tab, target                    no quoting: a side cannot contain a tab or a newline
    .jsonl   {"source": "...", "target": "..."}       other fields are ignored

There is one pair on each line, in UTF-8 (or the encoding of a byte order mark); blank lines are skipped, and so is a
first line of a .tsv file that names the columns, source and target. Files may be compressed (.gz, .zst). An error names
the file and line of an unreadable pair.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from pellucid.text.read.chunks import DocumentError, counted
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.formats import QUOTED
from pellucid.text.read.rows import (
    Progress,
    RowFormat,
    Rows,
    RowSplit,
    held_out_rows,
    read_json_object,
    read_rows,
    row_suffix,
    rows_of_named_files,
)


class PairsError(DocumentError):
    """A file of pairs is unreadable, or there are too few pairs, or pairs are too long."""


class Pairs(Rows[tuple[str, str]]):
    """Pairs (source, target) in the order of their files."""

    @cached_property
    def sources(self) -> list[str]:
        return [source for source, _ in self.rows]

    @cached_property
    def targets(self) -> list[str]:
        return [target for _, target in self.rows]

    @property
    def n_bytes(self) -> int:
        """Bytes of both sides in UTF-8."""
        return sum(len(text.encode()) for pair in self.rows for text in pair)

    @property
    def notes(self) -> list[str]:
        """A sentence about sides in quotation marks, which are text here; spreadsheet programs write them around it."""
        is_tsv = [row_suffix(Path(file.path)) == ".tsv" for file in self.files]
        quoted = [k for k, pair in enumerate(self.rows) if is_tsv[self.places[k]] and any(map(QUOTED.match, pair))]
        if not quoted:
            return []
        have, first = ("has", "") if len(quoted) == 1 else ("have", "the first ")
        return [
            f"{counted(len(quoted), 'pair')} {have} a side that is all in quotation marks, {first}at "
            f"{self.place(quoted[0])}; they are read as text: if a spreadsheet program wrote them, write the pairs as "
            ".jsonl, or remove the marks"
        ]


def read_pairs(
    paths: str | Path | Sequence[str | Path],
    held_out: Sequence[str | Path] = (),
    progress: Progress = None,
    reading: ReadOptions | None = None,
) -> Pairs:
    """The pairs of these .tsv and .jsonl files and folders, and those of `held_out`; see `read_rows`. Raises
    PairsError.
    """
    return read_rows(Pairs, PAIRS, paths, held_out, progress, reading)


def _columns(line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"{len(columns)} column{'s' * (len(columns) > 1)}, expected two: source, a tab, target")
    return _checked(columns[0], columns[1])


def _fields(line: str) -> tuple[str, str]:
    row = read_json_object(line, "an object with the fields source and target")
    for name in ("source", "target"):
        if not isinstance(row.get(name), str):
            has = "no" if name not in row else f"a {type(row[name]).__name__} as"
            raise ValueError(f"{has} field {name!r}, expected text; the fields are {', '.join(row) or 'none'}")
    return _checked(row["source"], row["target"])


def _checked(source: str, target: str) -> tuple[str, str]:
    for name, text in (("source", source), ("target", target)):
        if not text.strip():
            raise ValueError(f"the {name} is empty, expected text on both sides")
        text.encode()
    return source, target


PAIRS = RowFormat(
    "pairs",
    ".tsv or .jsonl",
    "pairs are read from .tsv (two columns) and .jsonl files",
    {".tsv": _columns, ".jsonl": _fields},
    PairsError,
    {".tsv": "source\ttarget"},
)


# Setting pairs aside ----------------------------------------------------------------------------


class PairSplit(RowSplit[Pairs]):
    """Pairs, of which some are held out."""

    def texts(self, part: str) -> Iterator[str]:
        """Both sides of every pair of one part, such as the shared tokenizer is trained on."""
        for pair in self.numbers(part):
            yield from self.corpus.rows[pair]

    @property
    def n_bytes(self) -> int:
        """Bytes of both sides of the pairs, without the files that were named to be held out."""
        return sum(len(text.encode()) for text in self.texts("train")) if self.has_named_files else self.corpus.n_bytes


def split_pairs(pairs: Pairs, held_out: float = 0.1, seed: int = 0) -> PairSplit:
    """Hold out about `held_out` of the bytes: whole sources, in the order of a hash with the seed.

    If files were named to be held out, exactly their pairs are, and the share and the seed have no effect. Otherwise
    all pairs of one source are on one side, so that a model never trains on a target of a source it is measured on.
    Raises PairsError for a share outside (0, 1) and for pairs that share a single source.
    """
    if any(file.held_out for file in pairs.files):
        return PairSplit(pairs, 0.0, 0, *rows_of_named_files(pairs, pairs.sources, "source"), "sources")
    sizes = [sum(len(text.encode()) for text in pair) for pair in pairs.rows]
    chosen = held_out_rows(PAIRS, pairs.sources, sizes, held_out, seed, "source")
    return PairSplit(pairs, held_out, seed, *chosen, "sources")
