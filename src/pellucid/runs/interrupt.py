"""Ctrl-C, SIGTERM and SIGHUP ask a run to stop, and phases say what it is doing.

A signal is answered within a second: the work stops where nothing is lost, or a line says what is being finished.
Python runs a handler of signals between two of its instructions, and one call of a library may last for minutes;
a thread therefore looks at signals and at the clock while the main thread works.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, Self

#: seconds after which a phase is shown
PHASE_DELAY = 1.0
#: seconds after which a signal that was not obeyed is answered in words
ANSWERED_AFTER = 0.5
#: seconds between two looks at the clock
TICK = 0.1


def stopping_signals() -> list[signal.Signals]:
    """The signals that ask a command to stop: SIGHUP, of a closed terminal, is one unless it is ignored (nohup)."""
    signals = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        signals.append(hangup)
    return signals


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """A signal came where there is nothing to save yet."""


class Phase:
    """One thing that is being done: its name, how much of it is done, and in which unit; `total` is 0 where unknown.

    Whoever does the work calls it with `done` and `total`, or with nothing; then Interrupted is raised where a
    signal has come.
    """

    def __init__(self, name: str, unit: str, interruption: "Interruption"):
        self.name, self.unit, self.interruption = name, unit, interruption
        self.done = self.first = self.total = 0
        self.began = time.monotonic()
        self.shown = False

    def __call__(self, done: int | None = None, total: int = 0) -> None:
        if done is not None:
            self.set(done, total)
        self.interruption.poll()

    def set(self, done: int, total: int) -> None:
        """Say how far the work is, whether or not a signal has come."""
        self.done, self.total = done, total

    def stage(self, name: str, done: int, total: int) -> None:
        """As calling it; a new name begins a new phase in its place."""
        if name != self.name:
            self.interruption.end(self)
            self.name, self.first, self.began = name, done, time.monotonic()
        self(done, total)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began


class Listener(Protocol):
    """Who is told what is being done."""

    def note(self, text: str) -> None: ...
    def doing(self, phase: Phase) -> None: ...
    def finished(self, phase: Phase) -> None: ...


class Interruption:
    """While entered, the first of `stopping_signals` sets `signal`; a second one stops at once.

    Whoever works in a loop looks at it: reading text after each piece, training after each pass, evaluation
    after each batch. Phases that are entered are shown by `reporter` when they take longer than a second.
    Where there is nothing to save, `at_once`, the first signal stops the work as the second one does elsewhere.
    """

    def __init__(self, reporter: Listener | None = None, *, at_once: bool = False):
        self.signal = 0
        self.came = float("inf")
        self.at_once = at_once
        self._reporter = reporter
        self._before: dict[int, object] = {}
        self._phases: list[Phase] = []
        self._lock, self._over = threading.RLock(), threading.Event()
        self._pipe: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 0 where nothing came."""
        return 128 + self.signal if self.signal else 0

    def poll(self, *_: object) -> None:
        """Raise Interrupted where a signal has come."""
        if self.signal:
            raise Interrupted

    @property
    def is_overdue(self) -> bool:
        """Whether a signal has been waiting for so long that work should be left unfinished."""
        return time.monotonic() - self.came > ANSWERED_AFTER

    @contextmanager
    def phase(self, name: str, unit: str = "") -> Iterator[Phase]:
        """What is done inside, by its name (`measuring a step`); how far it is, is said by the Phase that this gives.

        The unit is a plural (`tokens`), or "bytes", or "" where only the time can be shown.
        """
        phase = Phase(name, unit, self)
        self._phases.append(phase)
        try:
            yield phase
        finally:
            self._phases.remove(phase)
            self.end(phase)

    def end(self, phase: Phase) -> None:
        """Take away what is shown of a phase."""
        with self._lock:
            if phase.shown and self._reporter:
                phase.shown = False
                self._reporter.finished(phase)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal or self.at_once:
            raise KeyboardInterrupt(128 + number)
        self.signal, self.came = number, time.monotonic()

    def __enter__(self) -> Self:
        # signals can be handled in the main thread alone; elsewhere the caller's own handling stays
        if threading.current_thread() is threading.main_thread():
            for number in stopping_signals():
                self._before[number] = signal.signal(number, self._handle)
            self._pipe = socket.socketpair()
            for end in self._pipe:
                end.setblocking(False)
            # the byte arrives when the signal does, and not when Python comes to its handler
            self._fd = signal.set_wakeup_fd(self._pipe[1].fileno(), warn_on_full_buffer=False)
        if self._reporter:
            self._over.clear()
            self._thread = threading.Thread(target=self._watch, args=(self._reporter,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._over.set()
            self._thread.join()
            self._thread = None
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
        if self._pipe:
            signal.set_wakeup_fd(self._fd, warn_on_full_buffer=False)
            for end in self._pipe:
                end.close()
            self._pipe = None

    # In a thread of its own ------------------------------------------------------------------

    def _watch(self, reporter: Listener) -> None:
        """Show the phase that takes long, and say what is being finished where a signal cannot be obeyed at once."""
        arrived, answered = float("inf"), False
        while not self._over.wait(TICK):
            if arrived == float("inf") and self._has_arrived():
                arrived = time.monotonic()
            with self._lock:
                phase = self._phases[-1] if self._phases else None
                if not answered and time.monotonic() - arrived > ANSWERED_AFTER:
                    answered = True
                    what = phase.name if phase else "what has begun"
                    reporter.note(f"finishing: {what} ... (once more, Ctrl-C or SIGTERM stops at once)")
                elif phase and phase.seconds > PHASE_DELAY:
                    reporter.doing(phase)
                    phase.shown = True

    def _has_arrived(self) -> bool:
        if self._pipe is None:
            return False
        with contextlib.suppress(BlockingIOError):
            caught = set(self._pipe[0].recv(64))
            return bool(caught & set(self._before))
        return False
