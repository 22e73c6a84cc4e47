"""Show the progress of a long command, and turn signals into KeyboardInterrupt."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pellucid.runs.interrupt import stopping_signals

#: called with what is being done, how much is done, and of how much; 0 of 0 if unknown
Progress = Callable[[str, int, int], None]


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does, so that unfinished files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(128 + number)

    numbers = [number for number in stopping_signals() if number != signal.SIGINT]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_on_stderr(name: str) -> Iterator[Progress]:
    """Show work that takes longer than a second on standard error; a signal raises KeyboardInterrupt."""
    from rich.console import Console

    from pellucid.runs.interrupt import Interruption
    from pellucid.runs.live_reporter import reporter_on

    with Interruption(reporter_on(Console(stderr=True)), at_once=True) as watch, watch.phase(name) as phase:
        yield phase.stage
