"""What a person sees of a run: a live panel in a terminal, plain lines anywhere else."""

import os
import sys
import time
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pellucid.runs.interrupt import Phase
from pellucid.runs.options import RunRecipe
from pellucid.text.sanitize import sanitize


class PlainReporter:
    """A line now and then, for logs and pipes."""

    def __init__(self, file: TextIO | None = None, every_seconds: float = 10.0):
        self.file = file or sys.stdout
        self.every = every_seconds
        self.last = -1e9
        #: when the last line about a phase was written, and whether steps are being taken
        self.told = -1e9
        self.is_training = False
        #: what one target is
        self.unit = "token"

    def line(self, text: str) -> None:
        text = sanitize(text)
        try:
            print(text, file=self.file, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=self.file, flush=True)
        except BrokenPipeError:
            # whoever read this has gone (`| head`); the run goes on, and says nothing to nobody
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def start(self, lines: list[str]) -> None:
        for text in lines:
            self.line(text)

    def begin(self, recipe: RunRecipe, step: int, unit: str = "token", peak: float | None = None) -> None:
        """Training begins at this step; losses are in nats per `unit`, and `peak` is in units a second."""
        self.speed, self.unit, self.peak = ProgressRate(recipe, step), unit, peak
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
            loss = "skipped" if row["loss"] is None else f"{row['loss']:.4f} nats/{self.unit}"
            self.line(
                f"step {row['step']}/{n_steps}  loss {loss}  lr {row['learning_rate']:.2e}  "
                f"{self.speed_now(row)}  ETA {clock(left)}"
            )

    def speed_now(self, row: dict[str, Any]) -> str:
        """Targets per second, and which share of the peak and of waiting that is, where these are known."""
        speed = self.speed.tokens_per_second()
        peak = f", {speed / self.peak:.0%} of peak" if self.peak else ""
        return f"{speed:,.0f} {self.unit}s/s{peak}{waiting_of(row)}"

    def now_and_then(self, text: str, is_last: bool) -> None:
        """A line that stands for those like it of the last seconds; the last of them is always written."""
        now = time.monotonic()
        if is_last or now - self.last >= self.every:
            self.last = now
            self.line(text)

    def evaluation(self, row: dict[str, Any]) -> None:
        """The row of an evaluation: its loss, and bits per byte of text or the accuracy on images."""
        bits = row.get("bits_per_byte")
        second = f"{row['accuracy']:.2%} right" if bits is None else f"{bits:.4f} bits/byte"
        loss = f"held-out loss {row['held_out_loss']:.4f} nats/{self.unit}"
        self.line(f"step {row['step']}  {loss}, {second}" + ("" if row["whole"] else " (on a part)"))

    def sample(self, step: int, text: str) -> None:
        self.line(f"--- sample at step {step}\n{text}\n---")

    def note(self, text: str) -> None:
        self.line(text)

    def close(self) -> None:
        self.is_training = False


class LiveReporter(PlainReporter):
    """The same in one panel that is drawn anew a few times a second."""

    def __init__(self, console: Console):
        super().__init__()
        self.console = console
        self.row: dict[str, Any] = {}
        self.smooth: float | None = None
        self.held_out: dict[str, Any] = {}
        self.text = ""
        self.live: Live | None = None
        #: of a phase before training, and the text about one within it
        self.bar: Progress | None = None
        self.now = ""

    def line(self, text: str) -> None:
        self.console.print(Text(sanitize(text)))

    def begin(self, recipe: RunRecipe, step: int, unit: str = "token", peak: float | None = None) -> None:
        super().begin(recipe, step, unit, peak)
        self.n_steps = recipe.n_steps
        self.live = Live(self, console=self.console, refresh_per_second=4, transient=True)
        self.live.start()

    def step(self, row: dict[str, Any], n_steps: int) -> None:
        self.speed.see(row)
        self.row, self.n_steps = row, n_steps
        if row["loss"] is not None:
            self.smooth = row["loss"] if self.smooth is None else 0.9 * self.smooth + 0.1 * row["loss"]

    def doing(self, phase: Phase) -> None:
        if self.live:
            self.now = how_far(phase)
            return
        if self.bar is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.add_task(phase.name)
            self.bar.start()
        given = {"completed": phase.done, "total": phase.total or None}
        self.bar.update(self.bar.task_ids[0], description=how_far(phase), **given)

    def finished(self, phase: Phase) -> None:
        self.now = ""
        if self.bar:
            self.bar.stop()
            self.bar = None

    def evaluation(self, row: dict[str, Any]) -> None:
        self.held_out = row
        super().evaluation(row)

    def sample(self, step: int, text: str) -> None:
        self.text = text

    def close(self) -> None:
        super().close()
        if self.live:
            self.live.stop()
            self.live = None
            if self.text:
                self.console.print(Panel(Text(sanitize(self.text)), title="sample", title_align="left"))

    def __rich__(self) -> Group | Text:
        if not self.row:
            return Text(self.now or "first step ...")
        table = Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column()
        held = self.held_out
        table.add_row(
            "loss",
            f"{self.smooth or float('nan'):.4f} nats/{self.unit}",
            "learning rate",
            f"{self.row['learning_rate']:.2e}",
        )
        measures_images = self.unit == "image"
        accuracy, bits = held.get("accuracy"), held.get("bits_per_byte")
        table.add_row(
            "held-out loss",
            f"{held['held_out_loss']:.4f} nats/{self.unit}" if held else "not yet",
            "accuracy" if measures_images else "bits per byte",
            "not yet" if not held else f"{accuracy:.2%}" if measures_images else f"{bits:.4f}",
        )
        left = self.speed.remaining(self.n_steps)
        known = [self.speed_now(self.row), clock(left)]
        speed, eta = known if left is not None else ["after the next step"] * 2
        table.add_row("speed", speed, "ETA", eta)
        # in a cell of its own: a bar does not end its line
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=self.n_steps, completed=self.row["step"]))
        parts: list[Any] = [Text(f"step {self.row['step']} of {self.n_steps}  {self.now}"), bar, table]
        if self.text:
            parts.append(Panel(Text(sanitize(self.text[-600:])), title="sample", title_align="left"))
        return Group(*parts)


class ProgressRate:
    """Tokens per second and time left, from the steps of this sitting after its first, which may compile."""

    def __init__(self, recipe: RunRecipe, step: int):
        self.recipe, self.first = recipe, None
        self.now: tuple[int, float] = (step, time.monotonic())
        self.began = self.now

    def see(self, row: dict[str, Any]) -> None:
        self.now = (row["step"], time.monotonic())
        self.first = self.first or self.now

    @property
    def is_known(self) -> bool:
        """Whether two steps were seen: how long one takes is not known before."""
        return self.first is not None and self.now[0] > self.first[0]

    def steps_per_second(self) -> float:
        first = self.first if self.is_known and self.first else self.began
        return (self.now[0] - first[0]) / max(self.now[1] - first[1], 1e-9)

    def tokens_per_second(self) -> float:
        return self.steps_per_second() * self.recipe.tokens_per_step

    def remaining(self, n_steps: int) -> float | None:
        """Seconds to the last step, None before anything can be said."""
        if self.now[0] >= n_steps:
            return 0.0
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


def make_reporter() -> PlainReporter:
    """The live panel in a terminal, plain lines otherwise."""
    return reporter_on(Console())


def reporter_on(console: Console) -> PlainReporter:
    """The live panel where the console is a terminal, plain lines otherwise."""
    return LiveReporter(console) if console.is_terminal else PlainReporter(sys.stderr if console.stderr else None)


class QuietReporter(PlainReporter):
    """Says nothing."""

    def line(self, text: str) -> None:
        pass
