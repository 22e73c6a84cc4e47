"""metrics.jsonl: one JSON object a line, one line a step, an evaluation, a sample or a note.

A run that was killed is resumed at its last checkpoint: lines behind it are dropped then, so that the
file reads as if nothing had happened. Fields of WALL_CLOCK alone differ.
Numbers that are not finite are written as null.
"""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pellucid.destination import naming, replace_file
from pellucid.runs.checkpoint import strict
from pellucid.runs.tracking import Tracked

#: figures of time: how long the run has taken, the speed of a step, which share of the peak and of waiting it was, and
#: how long mixing with an n-gram took
WALL_CLOCK = ("seconds", "tokens_per_second", "images_per_second", "share_of_peak", "waiting", "mixing_seconds")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that a crash cut short is left out."""
    rows = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "step" in row:
                rows.append(row)
    return rows


def units_per_second(path: Path, unit: str) -> float | None:
    """The speed of the median step, in tokens or images (`unit`) a second; None where no speed was written."""
    speeds = [speed for row in read_metrics(path) if (speed := row.get(f"{unit}s_per_second"))]
    return statistics.median(speeds) if speeds else None


def last_evaluation(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of a run's last evaluation on text whose losses are finite; empty where there is none."""
    return next((row for row in reversed(rows) if row.get("held_out_loss") and row.get("bits_per_byte")), {})


def predicted_tokens(data: Mapping[str, Any], part: str) -> int:
    """The tokens of a part ("train" or "held_out") that a model learns to predict, as data.json counts them: of
    conversations those of the answers, of pairs those of the targets. 0 where it does not count them.
    """
    counts = data.get("parts", {}).get(part, {})
    n = next((counts[name] for name in ("answer_tokens", "tokens", "target_tokens") if name in counts), 0)
    return n if isinstance(n, int) else 0


def part_measured(row: Mapping[str, Any], evaluate_tokens: int, n_held_out: int) -> int:
    """How many held-out tokens an evaluation read, from the first on; 0 where it read all of them.

    evaluate_tokens  the tokens that an evaluation during training reads
    n_held_out       the held-out tokens of the run, 0 where their number is not known
    """
    if row.get("cut"):  # the time of the run was over
        return row["cut"]
    if "read" in row:
        return row["read"]
    # earlier versions did not write how many tokens an evaluation during training read
    return 0 if row.get("whole", True) or evaluate_tokens >= n_held_out else evaluate_tokens


class MetricsFile:
    """Appends rows, after dropping those of steps later than `step`; unless `writes`, it only remembers them.

    `copy_to`, where it is set, gets every row that is written too. An OSError of writing names the file.
    """

    copy_to: Tracked | None = None

    def __init__(self, path: Path, step: int = 0, writes: bool = True):
        rows = [strict(row) for row in read_metrics(path) if row["step"] <= step]
        if writes:
            replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self.file: TextIO = open(path if writes else os.devnull, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self.path, self.kept, self.writes = path, rows, writes

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
