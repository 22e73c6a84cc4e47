"""metrics.jsonl: one JSON object a line, one line a step, an evaluation, a sample or a note.

A run that was killed is resumed at its last checkpoint and takes the steps after it again. Their first lines stay in
the file until a newer checkpoint is on disk, and readers leave them out; then they are removed, so that the file reads
as if nothing had happened. Fields of WALL_CLOCK alone differ. Numbers that are not finite are written as null.
"""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pellucid.destination import naming, replace_file
from pellucid.json_files import JSONFileError, parse_json_line, read_regular
from pellucid.json_shapes import COUNT, FLAG, NUMBER, TEXT, Fields, OrNull
from pellucid.runs.checkpoint import strict
from pellucid.runs.tracking import Tracked
from pellucid.text.read.chunks import counted

#: figures of time: how long the run has taken, the speed of a step, which share of the peak and of waiting it was, and
#: how long mixing with an n-gram took
WALL_CLOCK = ("seconds", "tokens_per_second", "share_of_peak", "waiting", "mixing_seconds")


#: the fields of a row by which anything is computed or said; a number that is not finite is null
ROW = Fields(
    {
        "step": COUNT,
        **dict.fromkeys(("tokens", "read", "cut", "mixed_tokens", "mixed_step"), COUNT),
        **dict.fromkeys(("loss", "grad_norm", "learning_rate", "share_of_peak", "accuracy"), OrNull(NUMBER)),
        **dict.fromkeys(("held_out_loss", "held_out_part", "bits_per_byte", "mixture_weight"), OrNull(NUMBER)),
        **dict.fromkeys(("mixed_bits_per_byte", "unmixed_bits_per_byte", "least_used", "most_used"), OrNull(NUMBER)),
        **dict.fromkeys(("seconds", "tokens_per_second"), OrNull(NUMBER)),
        **dict.fromkeys(("whole", "skipped"), FLAG),
        "sample": OrNull(TEXT),
        "warning": TEXT,
    },
    needed=("step",),
)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of every line that can be read; of steps that a resumed run took again, those of the last time."""
    return [row for _, row in current_lines(read_regular(path) if path.exists() else b"") if row is not None]


def current_lines(content: bytes) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Each line and its row, None where it is none; without the lines of steps that were taken again after them."""
    lines: list[tuple[bytes, dict[str, Any] | None]] = []
    last = 0
    for line in filter(None, content.splitlines()):
        row = metrics_row(line)
        if row is not None:
            newest = row["step"] - is_of_training_step(row)
            if last > newest:
                lines = [(text, old) for text, old in lines if old is None or old["step"] <= newest]
            last = row["step"]
        lines.append((line, row))
    return lines


def metrics_row(line: bytes) -> dict[str, Any] | None:
    """The row of a line, None where the line is none: a crash has cut it, or something else wrote it."""
    try:
        row = parse_json_line(line, "a line")
        ROW.check(row, "a line")
    except JSONFileError:
        return None
    return row


def is_of_training_step(row: Mapping[str, Any]) -> bool:
    """Whether this is the row of a training step, and not of an evaluation, a sample or a warning."""
    return "learning_rate" in row


def tokens_per_second(path: Path) -> float | None:
    """The speed of the median step; None where no speed was written."""
    speeds = [speed for row in read_metrics(path) if (speed := row.get("tokens_per_second"))]
    return statistics.median(speeds) if speeds else None


def last_evaluation(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of a run's last evaluation on text whose losses are finite; empty where there is none."""
    return next((row for row in reversed(rows) if row.get("held_out_loss") and row.get("bits_per_byte")), {})


def predicted_tokens(data: Mapping[str, Any], part: str) -> int:
    """The tokens of a part ("train" or "held_out") that a model learns to predict, as data.json counts them: of
    conversations those of the answers. 0 where it does not count them.
    """
    counts = data.get("parts", {}).get(part, {})
    return next((counts[name] for name in ("answer_tokens", "tokens") if name in counts), 0)


def part_measured(row: Mapping[str, Any]) -> int:
    """How many held-out tokens an evaluation read, from the first on; 0 where it read all of them."""
    return row.get("cut") or row.get("read", 0)  # cut where the time of the run was over


class MetricsFile:
    """Appends rows after those of the steps up to `step`; unless `writes`, it only remembers these.

    kept      the rows of the file up to `step`
    damages   sentences that say what is wrong with the file
    copy_to   where it is set, it gets every row that is written too

    Lines of later steps, and what follows the last line up to `step`, stay in the file until `remove_superseded`. An
    OSError of writing names the file.
    """

    copy_to: Tracked | None = None

    def __init__(self, path: Path, step: int = 0, writes: bool = True):
        self.path, self.step, self.writes = path, step, writes
        is_missing, content = not path.exists(), read_regular(path) if path.exists() else b""
        lines = current_lines(content)
        end = max((n for n, (_, row) in enumerate(lines, 1) if row is not None and row["step"] <= step), default=0)
        before = [(line, row) for line, row in lines[:end] if row is None or row["step"] <= step]
        self.kept = [row for _, row in before if row is not None]
        self.damages = self.find_damages(content, lines[end:], is_missing)
        #: what the file is to hold of the lines that are there now, None where it holds just that
        self.head: bytes | None = b"".join(line + b"\n" for line, _ in before)
        ending = b"\n" if content and not content.endswith(b"\n") else b""
        self.n_before = len(content + ending)
        if self.head == content:
            self.head = None
        self.file: TextIO = open(path if writes else os.devnull, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by close)
        self.file.write(ending.decode())

    def find_damages(self, content: bytes, after: Sequence[tuple[bytes, Any]], is_missing: bool) -> list[str]:
        """Sentences on lines that cannot be read and on steps without a line; `after` are the lines after `kept`."""
        if is_missing and self.step:
            return [f"{self.path.name} is missing: the lines of the first {self.step:,} steps are lost"]
        bad = [n for n, line in enumerate(content.splitlines(), 1) if line and metrics_row(line) is None]
        n_after = sum(1 for _, row in after if row is None)
        sentences = []
        if n := len(bad) - n_after:
            sentences.append(
                f"{counted(n, 'line')} of {self.path.name} cannot be read and stay there (from line {bad[0]} on)"
            )
        if n_after:
            sentences.append(
                f"{counted(n_after, 'line')} at the end of {self.path.name} cannot be read: their steps are taken again"
            )
        steps = {row["step"] for row in self.kept if is_of_training_step(row)}
        if missing := [step for step in range(1, self.step + 1) if step not in steps]:
            sentences.append(
                f"{self.path.name} has no line of {counted(len(missing), 'step')} that the run has taken, from step "
                f"{missing[0]:,} on: curves and the report are without them"
            )
        return sentences

    def remove_superseded(self, saved: int) -> None:
        """Remove the lines of steps that were taken again, once a checkpoint of the later step `saved` is on disk."""
        if self.head is None or not self.writes or saved <= self.step:
            return
        self.file.close()
        replace_file(self.path, self.head + self.path.read_bytes()[self.n_before :])
        self.head = None
        self.file = open(self.path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by close)

    def write(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write one line, hand it to the system at once, and return what a reader of the file sees."""
        row = strict(row)
        with naming(self.path):
            self.file.write(json.dumps(row, allow_nan=False) + "\n")
            self.file.flush()
        if self.copy_to:
            self.copy_to.write(row)
        return row

    def sync(self) -> None:
        """What was written is on disk when this returns: a checkpoint may not outlive its rows."""
        if self.writes:
            with naming(self.path):
                os.fsync(self.file.fileno())
        if self.copy_to:
            self.copy_to.flush()

    def close(self) -> None:
        with naming(self.path):
            self.file.close()
        if self.copy_to:
            self.copy_to.close()
