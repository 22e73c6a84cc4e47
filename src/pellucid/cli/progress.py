"""What a command is doing, shown while it takes long; and signals, which end it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: is told what is being done, how much of it is done, and of how much; 0 of 0 where nobody knows
Progress = Callable[[str, int, int], None]


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that what was begun is cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress_on_stderr(name: str) -> Iterator[Progress]:
    """Inside, what takes longer than a second is shown on standard error; a signal raises KeyboardInterrupt."""
    from rich.console import Console

    from pellucid.training.interrupt import Interruption
    from pellucid.training.reporter import reporter_on

    with Interruption(reporter_on(Console(stderr=True)), at_once=True) as watch, watch.phase(name) as phase:
        yield phase.stage
