"""Ctrl-C and SIGTERM ask a run to stop; it stops where nothing is lost."""

import signal
import threading
from types import FrameType
from typing import Self


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """A signal came where there is nothing to save yet."""


class Interruption:
    """While entered, the first SIGINT or SIGTERM sets `signal`; a second one stops at once.

    Whoever works in a loop looks at it: reading text after each piece, training after each step, evaluation
    after each batch.
    """

    def __init__(self):
        self.signal = 0
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 0 where nothing came."""
        return 128 + self.signal if self.signal else 0

    def poll(self, *_: object) -> None:
        """Raise Interrupted where a signal has come; as a `progress` it ends the reading of text."""
        if self.signal:
            raise Interrupted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt(128 + number)
        self.signal = number

    def __enter__(self) -> Self:
        # signals can be handled in the main thread alone; elsewhere the caller's own handling stays
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
