"""Checkpoints are written by a thread while training goes on, one at a time."""

import threading
import time
from collections.abc import Callable


class Saver:
    """The thread that writes a checkpoint; an error of it is raised by whoever waits for it."""

    def __init__(self):
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        #: how long the last write took
        self.seconds = 0.0

    def start(self, write: Callable[[], object]) -> None:
        """Write in a thread; the one before must be done. A second Ctrl-C does not wait for it."""
        began = time.monotonic()

        def do() -> None:
            try:
                write()
            except Exception as error:
                self._error = error
            self.seconds = time.monotonic() - began

        self._thread = threading.Thread(target=do, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether something has been started and nobody has waited for it yet."""
        return self._thread is not None

    @property
    def is_writing(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Whether what was started has failed already."""
        return self._error is not None

    def wait(self) -> None:
        """Return when it is written or has failed."""
        if self._thread:
            self._thread.join()

    def finish(self) -> None:
        """Wait for it, and raise its error."""
        self.wait()
        error, self._thread, self._error = self._error, None, None
        if error:
            raise error
