"""How far the reading of text is: a bar in a terminal, a line now and then anywhere else."""

import time
from typing import Any, Self

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from pellucid.training.display import LiveReporter, PlainReporter, clock
from pellucid.training.interrupt import Interruption

#: seconds before anything is said, and between lines
PATIENCE, EVERY = 1.0, 10.0


class ReadingProgress:
    """Called with what is being done, how many bytes of it are, and how many there are; a context manager.

    A signal that has come ends the work: Interrupted. What is done within a second is not worth a bar.
    """

    def __init__(self, reporter: PlainReporter, interruption: Interruption):
        self.reporter, self.interruption = reporter, interruption
        self.stage, self.began, self.said, self.first = "", 0.0, 0.0, 0
        self.bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.interruption.poll()
        now = time.monotonic()
        if stage != self.stage:
            self._stop()
            self.stage, self.began, self.said, self.first = stage, now, now, done
        if now - self.began < PATIENCE:
            return
        if isinstance(self.reporter, LiveReporter):
            self._draw(done, total)
        elif now - self.said >= EVERY:
            self.said = now
            speed = (done - self.first) / max(now - self.began, 1e-9)
            left = clock((total - done) / speed) if speed else "--:--"
            self.reporter.line(
                f"{stage}: {done / max(total, 1):.0%} of {total / 1e6:,.1f} MB, {speed / 1e6:.1f} MB/s, ETA {left}"
            )

    def _draw(self, done: int, total: int) -> None:
        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            console = self.reporter.console  # type: ignore[attr-defined]
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self.bar.add_task(self.stage, total=total)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=done, total=total)

    def _stop(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
