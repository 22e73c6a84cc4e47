"""What a person sees of a run in a terminal: a live panel.

It stands apart from the plain lines because rich is loaded for it, which takes as long as opening a small model.
"""

import itertools
import sys
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pellucid.runs.interrupt import Phase
from pellucid.runs.options import RecipeError, RunRecipe
from pellucid.runs.pace import Pace
from pellucid.runs.reporter import JsonReporter, NotebookReporter, PlainReporter, QuietReporter, clock, how_far
from pellucid.text.sanitize import sanitize

#: columns of a window in which two figures stand side by side
SIDE_BY_SIDE_COLUMNS = 72
#: what is printed of a run
RunOutput = bool | Literal["warnings", "json"]


class LiveReporter(PlainReporter):
    """The same in one panel that is drawn anew a few times a second."""

    def __init__(self, console: Console, explains: bool = False):
        super().__init__(explains=explains)
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

    def begin(self, recipe: RunRecipe, step: int, peak: float | None = None, pace: Pace | None = None) -> None:
        super().begin(recipe, step, peak, pace)
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
        amounts = {"completed": phase.done, "total": phase.total or None}
        self.bar.update(self.bar.task_ids[0], description=how_far(phase), **amounts)

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
        held, left = self.held_out, self.speed.remaining(self.n_steps)
        known = [self.speed_now(self.row), clock(left)]
        speed, eta = known if left is not None else ["after the next step"] * 2
        figures = [
            ("loss", f"{self.smooth or float('nan'):.4f} {self.loss_unit}"),
            ("learning rate", f"{self.row['learning_rate']:.2e}"),
            ("held-out loss", f"{held['held_out_loss']:.4f} nats/token" if held else "not yet"),
            ("bits per byte", f"{held['bits_per_byte']:.4f}" if held else "not yet"),
            ("speed", speed),
            ("ETA", eta),
        ]
        table, beside = Table.grid(padding=(0, 2)), 2 if self.console.width >= SIDE_BY_SIDE_COLUMNS else 1
        for k in range(0, len(figures), beside):
            table.add_row(*itertools.chain(*figures[k : k + beside]))
        # in a cell of its own: a bar does not end its line
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=1.0, completed=self.speed.share_done(self.n_steps)))
        of_steps = f"step {self.row['step']:,} of {'about ' * bool(self.speed.pace)}{self.n_steps:,}"
        parts: list[Any] = [Text(f"{self.speed.time_of_run()}  {of_steps}  {self.now}".rstrip()), bar, table]
        if self.text:
            parts.append(Panel(Text(sanitize(self.text[-600:])), title="sample", title_align="left"))
        return Group(*parts)


def make_reporter(show: RunOutput = True, explains: bool = False) -> PlainReporter:
    """What shows a run: the live panel in a terminal, one line that changes in a notebook, plain lines elsewhere.

    With `show` = False nothing is printed, with "warnings" these alone, and with "json" one object a line. Raises
    RecipeError for another value.
    """
    if show not in (True, False, "warnings", "json"):
        raise RecipeError(f"show = {show!r}: expected True, False, 'warnings' or 'json'")
    if show == "json":
        return JsonReporter()
    if show is not True:
        return QuietReporter(warns=show == "warnings")
    console = Console()
    return NotebookReporter(explains) if console.is_jupyter else reporter_on(console, explains)


def reporter_on(console: Console, explains: bool = False) -> PlainReporter:
    """The live panel where the console is a terminal, plain lines otherwise."""
    if console.is_terminal:
        return LiveReporter(console, explains)
    return PlainReporter(sys.stderr if console.stderr else None, explains=explains)
