"""Ctrl-C and SIGTERM ask a run to stop; it stops where nothing is lost."""

import signal
import threading
from types import FrameType
from typing import Self


class Interruption:
    """While entered, the first SIGINT or SIGTERM sets `signal`; a second one stops at once.

    Whoever works in a loop looks at it: training after each step, evaluation and sampling after each batch.
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
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
