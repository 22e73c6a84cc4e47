"""A report on text before anything is trained on it: shares of files, passages, scripts, what is left out."""

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Any

import numpy as np

from pellucid.text.read.chunks import counted
from pellucid.text.read.decompress import Origin
from pellucid.text.read.documents import Corpus
from pellucid.text.read.find import DESCRIPTION, FOLDER_OF_RUN, HIDDEN, Skipped
from pellucid.text.read.formats import unit_of
from pellucid.text.read.scan import documents_of
from pellucid.text.sanitize import sanitize

#: passages of a report, and the characters of each
N_PASSAGES, PASSAGE_CHARACTERS = 10, 200
#: how far into a file passages lie, in characters and in rows, so that those of a large file are found at once
CHARACTER_REACH, ROW_REACH = 1 << 22, 1 << 14
#: files that are printed of those that are read, and of those that are left out for one reason
LISTED_FILES, LISTED_SKIPPED = 20, 3
#: columns of the printed report, at most, and those below which the list of files has shares and names alone
WIDEST, FULL_TABLE_COLUMNS = 100, 60


@dataclass(frozen=True)
class TextFile:
    """A file of text; `share` is that of its characters among all, `n_bytes` are those of its text."""

    path: str
    format: str
    n_documents: int
    n_characters: int
    n_bytes: int
    share: float


@dataclass(frozen=True)
class Passage:
    """Characters of a file as they were extracted; `position` says where they stand, "" at its beginning."""

    path: str
    position: str
    text: str


@dataclass(frozen=True)
class TokenEstimate:
    """About how many tokens a text is with a tokenizer of `n_vocab` ids, and the seconds that encoding it takes."""

    n_tokens: int
    n_vocab: int
    seconds: float


@dataclass(frozen=True)
class TextReport:
    """What `pellucid.read` says of text before training. `print(report)` shows it as `pellucid read` does.

    files      the files that are read, the largest first
    passages   ten passages of extracted text, of the files of each kind first
    skipped    the files that are left out, with the reasons
    stops      what would stop training: files that cannot be read, and a text that is too short
    scripts    the share of the characters that are in documents of each script, the largest first
    warnings   sentences about what should probably be changed before training
    notes      sentences about how the text is read that its owner should know
    tokens     an estimate of the tokens; None where the text is too short for one
    size       with `minutes`: lines about the size that a run of these minutes would have here
    seconds    how long reading took
    """

    files: tuple[TextFile, ...]
    passages: tuple[Passage, ...]
    skipped: tuple[Skipped, ...]
    stops: tuple[str, ...]
    scripts: dict[str, float]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    tokens: TokenEstimate | None
    size: tuple[str, ...]
    seconds: float

    @property
    def n_documents(self) -> int:
        return sum(file.n_documents for file in self.files)

    @property
    def n_characters(self) -> int:
        return sum(file.n_characters for file in self.files)

    @property
    def n_bytes(self) -> int:
        """Bytes of the text."""
        return sum(file.n_bytes for file in self.files)

    def skipped_by_reason(self) -> list[tuple[str, list[str]]]:
        """The reasons for leaving files out, each with the files: hidden files and folders last, and before them what
        is of runs and data sets.
        """
        ranks = {HIDDEN: 2, FOLDER_OF_RUN: 1, DESCRIPTION: 1}
        ordered = sorted(self.skipped, key=lambda file: (ranks.get(file.reason, 0), file.reason))
        groups = [(reason, [file.path for file in files]) for reason, files in groupby(ordered, lambda f: f.reason)]
        return sorted(groups, key=lambda group: (ranks.get(group[0], 0), -len(group[1])))

    def to_dict(self) -> dict[str, Any]:
        """The report in plain JSON types, with the totals."""
        totals = {name: getattr(self, name) for name in ("n_documents", "n_characters", "n_bytes")}
        skipped = [{"reason": reason, "files": files} for reason, files in self.skipped_by_reason()]
        return {**totals, **asdict(self), "skipped": skipped}

    def __str__(self) -> str:
        return "\n".join(self.lines(min(shutil.get_terminal_size().columns, WIDEST)))

    def lines(self, width: int) -> list[str]:
        """The printed report, in lines of at most `width` columns."""
        parts = [
            self._lines_on_files(width),
            self._lines_on_passages(width),
            self._lines_on_skipped(width),
            [line for total in self._totals() for line in _wrapped(total, width)],
            [line for note in self.notes for line in _wrapped(f"note: {note}", width)],
            [line for warning in self.warnings for line in _wrapped(f"warning: {warning}", width)],
            [line for reason in self.stops for line in _wrapped(f"training would stop: {reason}", width)],
        ]
        return [line for part in parts if part for line in ("", *part)][1:]

    def _lines_on_files(self, width: int) -> list[str]:
        rows = [(f.share, f.n_characters, f.n_documents, f.path) for f in self.files[:LISTED_FILES]]
        if others := self.files[LISTED_FILES:]:
            name = f"{counted(len(others), 'smaller file')} (--json lists all)"
            share, n_characters = sum(f.share for f in others), sum(f.n_characters for f in others)
            rows.append((share, n_characters, sum(f.n_documents for f in others), name))
        if width < FULL_TABLE_COLUMNS:
            named = [f"  {share:6.1%}  {_shortened(path, width - 10)}" for share, _, _, path in rows]
            return ["   share  file", *named]
        return [
            "   share   characters  documents  file",
            *(
                f"  {share:6.1%}  {n_characters:11,}  {n_documents:9,}  {_shortened(path, width - 34)}"
                for share, n_characters, n_documents, path in rows
            ),
        ]

    def _lines_on_passages(self, width: int) -> list[str]:
        lines = _wrapped("passages, as a model would read them (/ is the end of a line)", width)
        for passage in self.passages:
            where = f", {passage.position}" * bool(passage.position)
            text = textwrap.wrap(_on_one_line(passage.text), width - 4, max_lines=2, placeholder=" ...")
            lines += [f"  {_shortened(passage.path, width - 2 - len(where))}{where}", *(f"    {line}" for line in text)]
        return lines

    def _lines_on_skipped(self, width: int) -> list[str]:
        lines = ["not read"] if self.skipped else []
        for reason, files in self.skipped_by_reason():
            more = [f"{len(files) - LISTED_SKIPPED:,} more"] if len(files) > LISTED_SKIPPED else []
            names = "" if reason == HIDDEN else ": " + ", ".join([*files[:LISTED_SKIPPED], *more])
            lines += _wrapped(f"{reason}{names}", width, f"  {len(files):5,}  ")
        return lines

    def _totals(self) -> list[str]:
        scripts = ", ".join(f"{script} {share:.1%}" for script, share in self.scripts.items())
        lines = [
            f"text: {counted(len(self.files), 'file')}, {counted(self.n_documents, 'document')}, "
            f"{counted(self.n_characters, 'character')}, {self.n_bytes:,} bytes; read in {self.seconds:.1f} s",
            f"scripts: {scripts}",
        ]
        if self.tokens:
            lines.append(
                f"tokens: about {_rounded(self.tokens.n_tokens):,} with a bpe tokenizer of {self.tokens.n_vocab:,} "
                f"ids, {self.n_bytes / self.tokens.n_tokens:.2f} bytes each; one core encodes them in about "
                f"{self.tokens.seconds:.1f} s"
            )
        return [*lines, *self.size]


def _rounded(n: int) -> int:
    """The number with three digits."""
    return round(n, 2 - math.floor(math.log10(n))) if n else 0


def _shortened(path: str, width: int) -> str:
    """The path in at most `width` columns: its beginning gives way, since a file is known by its name."""
    path = sanitize(path)
    return path if len(path) <= width else "..." + path[len(path) - max(width, 8) + 3 :]


def _on_one_line(text: str) -> str:
    return " / ".join(" ".join(line.split()) for line in sanitize(text).splitlines() if line.strip())


def _wrapped(text: str, width: int, start: str = "") -> list[str]:
    """The text in lines: the first begins with `start`, the others are indented as far, or by two blanks."""
    indent = " " * (len(start) or 2)
    return textwrap.wrap(sanitize(text), width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


# What a corpus gives ----------------------------------------------------------------------------


def text_files_of(corpus: Corpus) -> tuple[TextFile, ...]:
    """The files that have text, the largest first."""
    rows, n = corpus.documents.rows, len(corpus.sources)
    counts = [np.bincount(rows["source"], rows[name], n).astype(int).tolist() for name in ("n_characters", "n_bytes")]
    total = max(int(rows["n_characters"].sum()), 1)
    files = [
        TextFile(source.path, origin.format, source.n_documents, n_characters, n_bytes, n_characters / total)
        for source, origin, n_characters, n_bytes in zip(corpus.sources, corpus.documents.origins, *counts, strict=True)
        if source.n_documents
    ]
    return tuple(sorted(files, key=lambda file: (-file.n_characters, file.path)))


def scripts_of(corpus: Corpus) -> dict[str, float]:
    """The share of the characters in documents of each script, the largest first."""
    rows, names = corpus.documents.rows, corpus.documents.scripts
    shares = np.bincount(rows["script"], rows["n_characters"], len(names)) / rows["n_characters"].sum()
    named = sorted(zip(names, shares.tolist(), strict=True), key=lambda pair: -pair[1])
    return {name: share for name, share in named if share}


def passages_of(corpus: Corpus) -> tuple[Passage, ...]:
    """Ten passages of extracted text: the beginning of the largest file of each kind, then of other files, and what
    lies further inside where there are fewer files.
    """
    rows, sources = corpus.documents.rows, corpus.sources
    sizes = np.bincount(rows["source"], rows["n_characters"], len(sources))
    by_size = sorted(np.flatnonzero(sizes).tolist(), key=lambda k: -sizes[k])
    kinds = [PurePath(sources[k].path).suffix.lower() for k in by_size]
    firsts = [k for i, k in enumerate(by_size) if kinds[i] not in kinds[:i]]
    chosen = [*firsts, *(k for k in by_size if k not in firsts)][:N_PASSAGES]
    most = [_most_passages(rows[rows["source"] == k]) for k in chosen]
    turns = [i for turn in range(N_PASSAGES) for i in range(len(chosen)) if most[i] > turn]
    counts = Counter(turns[:N_PASSAGES])
    return tuple(
        Passage(sources[k].path, position, text)
        for i, k in enumerate(chosen)
        for position, text in _spread_passages(corpus.documents.origins[k], rows[rows["source"] == k], counts[i])
    )


def _most_passages(documents: np.ndarray) -> int:
    """How many passages of a file do not overlap: one of each document, or several of a single one."""
    return len(documents) if len(documents) > 1 else 1 + int(documents["n_characters"][0]) // (2 * PASSAGE_CHARACTERS)


def _spread_passages(origin: Origin, documents: np.ndarray, n: int) -> Iterator[tuple[str, str]]:
    """`n` passages of one file, each with its position: beginnings of documents, or parts of a single one."""
    reach, n_characters = min(len(documents), ROW_REACH), min(int(documents["n_characters"][0]), CHARACTER_REACH)
    starts = [n_characters * i // n for i in range(n)] if len(documents) == 1 else [0]
    indices = {int(documents["index"][reach * i // n]) for i in range(n)}
    for index, chunks in enumerate(documents_of(origin)):
        if index not in indices:
            continue
        text = ""
        for chunk in chunks:
            text += chunk.text
            if len(text) >= starts[-1] + PASSAGE_CHARACTERS:
                break
        row = f"{unit_of(origin)} {index + 1:,}" if unit_of(origin) else ""
        for start in starts:
            passage = text[start : start + PASSAGE_CHARACTERS]
            whole_words = passage.partition(" ")[2] if start else ""
            yield row or (f"character {start + 1:,}" if start else ""), whole_words or passage
        if index == max(indices):
            return
