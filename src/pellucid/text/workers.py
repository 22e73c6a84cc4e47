"""Processes of this machine that answer messages, so that all cores encode.

A worker is a process of its own (`python -m MODULE`) fed through a pipe: it ends when the pipe is closed, and shares no
state, such as threads, with the caller.
"""

import contextlib
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any, TypeVar

#: bytes of text that are worth starting workers for
MIN_BYTES = 1 << 23
MOST_WORKERS = 16
#: how a message gives the length of what follows it
LENGTH = struct.Struct("<Q")

ItemT = TypeVar("ItemT")


class WorkerError(ValueError):
    """A worker process ended unexpectedly."""


def n_cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(n_bytes: int) -> int:
    """How many workers to start for this many bytes; 0: this process does the work."""
    return 0 if n_bytes < MIN_BYTES or n_cores() < 2 else min(n_cores(), MOST_WORKERS)


class WorkerPool:
    """Up to `n` workers; a context manager, which ends them.

    module   `python -m MODULE` with these `words` answers each message that it reads with another one (`answer_all`)
    purpose  what such a process does, in an error
    """

    def __init__(self, n: int, module: str, words: Sequence[str], purpose: str):
        self.n, self.command, self.purpose = n, ["-m", module, *words], purpose
        self.processes: list[subprocess.Popen] = []
        self._own = local()
        self._threads = ThreadPoolExecutor(n)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self.processes:
            process.kill()  # a thread may have started one meanwhile
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError, AttributeError):  # what was not sent is not needed
                    pipe.close()  # type: ignore[union-attr]

    def answers(
        self, items: Iterable[ItemT], message: Callable[[ItemT], bytes], ahead: int
    ) -> Iterator[tuple[ItemT, bytes]]:
        """Every item with the answer to its message, in order. At most `ahead` items for each worker are in memory."""
        waiting: deque[tuple[ItemT, Future[bytes]]] = deque()
        for item in items:
            waiting.append((item, self._threads.submit(self._ask, message, item)))
            if len(waiting) > ahead * self.n:
                item, answer = waiting.popleft()
                yield item, answer.result()
        for item, answer in waiting:
            yield item, answer.result()

    def _ask(self, message: Callable[[ItemT], bytes], item: ItemT) -> bytes:
        """The answer of this thread's worker, which is started with its first message."""
        if not hasattr(self._own, "process"):
            self._own.process = self._start()
        process = self._own.process
        try:
            write_frame(process.stdin, message(item))
            answer = read_frame(process.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise WorkerError(
                f"a process that {self.purpose} ended with code {process.wait()}: the machine may be short of memory"
            )
        return answer

    def _start(self) -> subprocess.Popen:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        process = subprocess.Popen(
            [sys.executable, *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0 if os.name == "posix" else None,  # the caller handles Ctrl-C
        )
        self.processes.append(process)
        return process


def answer_all(answer: Callable[[bytes], bytes]) -> None:
    """Answer every message of standard input on standard output, until the input ends: what a worker does."""
    while (content := read_frame(sys.stdin.buffer)) is not None:
        write_frame(sys.stdout.buffer, answer(content))


def write_frame(pipe: Any, content: bytes) -> None:
    """Write the length of the content, then the content."""
    pipe.write(LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def read_frame(pipe: Any) -> bytes | None:
    """The next message's content, or None at the end."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    content = pipe.read(size)
    return content if len(content) == size else None
