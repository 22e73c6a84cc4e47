"""What a person sees of a run: plain lines, or nothing. `live_reporter` has the panel of a terminal."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from pellucid.runs.interrupt import Phase
from pellucid.runs.options import RunRecipe
from pellucid.runs.pace import Pace
from pellucid.text.sanitize import sanitize


def discard(file: TextIO) -> None:
    """Let what is written to this file from now on, and what is still in its buffer, go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # it is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def say_on_stderr(text: str) -> None:
    """Print a line there, or nothing where that cannot be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


class Detail(str):
    """A line about a choice that was made: --explain prints it, and the report of the run shows it."""


class PlainReporter:
    """A line now and then, for logs and pipes.

    explains  whether lines of class `Detail` are printed too
    choices   all lines that came before training, details too
    """

    def __init__(self, file: TextIO | None = None, every_seconds: float = 10.0, explains: bool = False):
        self.file = file or sys.stdout
        self.explains, self.choices = explains, list[str]()
        self.every = every_seconds
        self.last = -1e9
        #: when the last line about a phase was written, and whether steps are being taken
        self.told = -1e9
        self.is_training = False
        #: what the loss of a step is counted in
        self.loss_unit = "nats/token"

    def line(self, text: str) -> None:
        text = sanitize(text)
        try:
            print(text, file=self.file, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=self.file, flush=True)
        except OSError as error:
            # whoever read this has gone (`| head`), or the disk of the log is full: the run goes on and says no more
            discard(self.file)
            if not isinstance(error, BrokenPipeError):
                say_on_stderr(f"pellucid: the output cannot be written ({error.strerror}): training goes on without")

    def start(self, lines: list[str]) -> None:
        """Lines about what is read and chosen before training."""
        self.choices += lines
        for text in lines:
            if self.explains or not isinstance(text, Detail):
                self.line(text)

    def begin(self, recipe: RunRecipe, step: int, peak: float | None = None, pace: Pace | None = None) -> None:
        """Training begins at this step; `peak` is in tokens a second, and `pace` is the clock of a run of minutes."""
        self.speed, self.peak = ProgressRate(recipe, step, pace), peak
        self.is_training = True

    def doing(self, phase: Phase) -> None:
        """Show a phase that takes long: at once before training, then every few seconds, between lines about steps."""
        now = time.monotonic()
        spoke = max(self.told, self.last) if phase.shown or self.is_training else -1e9
        if now - spoke >= self.every:
            self.told = now
            self.line(how_far(phase))

    def finished(self, phase: Phase) -> None:
        """Take away what is shown of a phase; lines stay."""

    def step(self, row: dict[str, Any], n_steps: int) -> None:
        self.speed.see(row)
        now, left = time.monotonic(), self.speed.remaining(n_steps)
        # nothing before the speed is known, nor shortly before the last step, which has its line
        is_due = left is not None and left > self.every and now - self.last >= self.every
        if is_due or row["step"] == n_steps:
            self.last = now
            self.line(self.step_line(row, n_steps))

    def step_line(self, row: dict[str, Any], n_steps: int) -> str:
        """One line about a step: how much of the run is done, the loss, the speed, and the time."""
        loss = "skipped" if row["loss"] is None else f"{row['loss']:.4f} {self.loss_unit}"
        done, left = self.speed.time_of_run(), self.speed.remaining(n_steps)
        return f"step {row['step']:,}/{n_steps:,}  loss {loss}  {self.speed_now(row)}  {done}, ETA {clock(left)}"

    def speed_now(self, row: dict[str, Any]) -> str:
        """Targets per second, and which share of the peak and of waiting that is, where these are known."""
        speed = self.speed.tokens_per_second()
        peak = f", {speed / self.peak:.0%} of peak" if self.peak else ""
        return f"{speed:,.0f} tokens/s{peak}{waiting_of(row)}"

    def evaluation(self, row: dict[str, Any]) -> None:
        """The row of an evaluation."""
        loss = f"held-out loss {row['held_out_loss']:.4f} nats/token, {row['bits_per_byte']:.4f} bits/byte"
        at = f"step {row['step']}" if row["step"] else "before the first step"
        self.line(f"{at}  {loss}" + ("" if row["whole"] else " (on a part)"))

    def sample(self, step: int, text: str) -> None:
        self.line(f"--- sample at step {step}\n{text}\n---")

    def note(self, text: str) -> None:
        self.line(text)

    def close(self) -> None:
        self.is_training = False


class ProgressRate:
    """Tokens per second and time left, from the steps of this sitting after its first, which may compile.

    Rows come some steps after they were taken, the last ones at once: their own `seconds` say when that was. A run of
    minutes ends by its clock, its `pace`, whatever its steps take.
    """

    def __init__(self, recipe: RunRecipe, step: int, pace: Pace | None = None):
        self.recipe, self.first, self.pace = recipe, None, pace
        self.now: tuple[int, float] = (step, time.monotonic())
        self.began = self.now

    def see(self, row: dict[str, Any]) -> None:
        self.now = (row["step"], row.get("seconds", time.monotonic()))
        self.first = self.first or self.now

    @property
    def is_known(self) -> bool:
        """Whether two steps were seen: how long one takes is not known before."""
        return self.first is not None and self.now[0] > self.first[0]

    def steps_per_second(self) -> float:
        if not self.is_known or self.first is None:
            return (self.now[0] - self.began[0]) / max(time.monotonic() - self.began[1], 1e-9)
        return (self.now[0] - self.first[0]) / max(self.now[1] - self.first[1], 1e-9)

    def tokens_per_second(self) -> float:
        return self.steps_per_second() * self.recipe.tokens_per_step

    def elapsed(self) -> float:
        """Seconds since the run of minutes began, and of another one since its first step of this sitting."""
        return self.pace.total - self.pace.left if self.pace else time.monotonic() - self.began[1]

    def time_of_run(self) -> str:
        """The time that has gone by, and of a run of minutes that which it has."""
        return clock(self.elapsed()) + (f" of {clock(self.pace.total)}" if self.pace else "")

    def share_done(self, n_steps: int) -> float:
        """The share of the run that is done, between 0 and 1: of its minutes if it has any, else of its steps."""
        return min(1.0, self.elapsed() / self.pace.total if self.pace else self.now[0] / max(n_steps, 1))

    def remaining(self, n_steps: int) -> float | None:
        """Seconds to the last step, of a run of minutes to its end; None before anything can be said."""
        if self.now[0] >= n_steps:
            return 0.0
        if self.pace and self.is_known:
            return max(self.pace.left, 0.0)
        return (n_steps - self.now[0]) / self.steps_per_second() if self.is_known else None


def waiting_of(row: dict[str, Any]) -> str:
    """Which share of the step was waiting, where several processes train; "" elsewhere."""
    return f", {row['waiting']:.0%} waiting" if "waiting" in row else ""


def how_far(phase: Phase) -> str:
    """One line about a phase: its name, how much of it is done, and how long it will take where that can be said."""
    done, total, seconds = phase.done, phase.total, phase.seconds
    speed = (done - phase.first) / max(seconds, 1e-9)
    left = f", ETA {clock((total - done) / speed)}" if total and speed > 0 else ""
    if phase.unit == "bytes" and total:
        rate = f", {speed / 1e6:.1f} MB/s" if speed > 0 else ""
        return f"{phase.name}: {done / total:.0%} of {total / 1e6:,.1f} MB{rate}{left}"
    if total:
        return f"{phase.name}: {done:,} of {total:,} {phase.unit}".rstrip() + left
    return f"{phase.name}: " + (f"{done:,} {phase.unit}, " if done and phase.unit else "") + clock(seconds)


def clock(seconds: float | None) -> str:
    """3:05 for 185 seconds, 2:00:07 for 7,207."""
    if seconds is None:
        return "--:--"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class QuietReporter(PlainReporter):
    """Prints nothing, or warnings alone on standard error."""

    def __init__(self, warns: bool = False):
        super().__init__(sys.stderr)
        self.warns = warns

    def line(self, text: str) -> None:
        if self.warns and "warning:" in text:
            super().line(text)


class NotebookReporter(PlainReporter):
    """Lines as in a pipe, but those about steps and phases each in the place of the one before."""

    def __init__(self, explains: bool = False):
        super().__init__(every_seconds=0.5, explains=explains)
        #: the length of the line that the next one may take the place of
        self.open = 0

    def line(self, text: str) -> None:
        if self.open:
            print(file=self.file)
            self.open = 0
        super().line(text)

    def replace(self, text: str) -> None:
        """Print a line in the place of the last one about steps."""
        text = sanitize(text)
        print(f"\r{text:{self.open}}", end="", file=self.file, flush=True)
        self.open = len(text)

    def doing(self, phase: Phase) -> None:
        self.replace(how_far(phase))

    def step(self, row: dict[str, Any], n_steps: int) -> None:
        self.speed.see(row)
        if row["step"] == n_steps or time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            self.replace(self.step_line(row, n_steps))


class JsonReporter(PlainReporter):
    """One JSON object a line, for scripts. Its `event` says what it is:

    choice      a `text` about what is read and chosen before training
    step        a row of metrics.jsonl, and the number of `steps` that are expected
    evaluation  a row of metrics.jsonl
    sample      a `text` that was written at a `step`
    note        any other `text`: warnings, and the lines at the end
    """

    def event(self, name: str, values: Mapping[str, Any]) -> None:
        super().line(json.dumps({"event": name, **values}))

    def line(self, text: str) -> None:
        self.event("note", {"text": text})

    def start(self, lines: list[str]) -> None:
        self.choices += lines
        for text in lines:
            self.event("choice", {"text": text})

    def step(self, row: dict[str, Any], n_steps: int) -> None:
        self.event("step", {**row, "steps": n_steps})

    def evaluation(self, row: dict[str, Any]) -> None:
        self.event("evaluation", row)

    def sample(self, step: int, text: str) -> None:
        self.event("sample", {"step": step, "text": text})

    def doing(self, phase: Phase) -> None:
        """Phases are for people."""
