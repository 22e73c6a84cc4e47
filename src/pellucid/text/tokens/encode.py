"""Encode on all cores. The text is cut into units; processes encode them separately, and the ids come back in order.

The text and the tokenizer alone decide where a unit ends, so the ids do not depend on the number of workers. A worker
is a process of its own (`python -m pellucid.text.tokens.worker`) fed through a pipe: it ends when the pipe is closed,
and shares no state, such as threads, with the caller.
"""

import contextlib
import itertools
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any, NamedTuple

import numpy as np

from pellucid.text.read.chunks import TextChunk
from pellucid.text.tokenizers.base import Tokenizer, TokenizerError

#: characters per unit; a longer document is cut where its tokenizer allows it. A worker needs some 100 bytes for each
#: character while it encodes (docs/log.md)
UNIT = 1 << 17
#: how many bytes of text are worth starting workers for, and the largest number of workers
WORTH_WORKERS, MOST_WORKERS = 1 << 23, 16
_SIZE = struct.Struct("<Q")


class EncodingError(ValueError):
    """A worker process ended unexpectedly."""


class Unit(NamedTuple):
    """Texts that are encoded together; `ends` marks those that end a document.

    `n_bytes` is the number of bytes of the corpus read so far when the unit was complete.
    """

    texts: Sequence[str]
    ends: Sequence[bool]
    n_bytes: int = 0


class Encoded(NamedTuple):
    """The ids of a unit with its separators, and the positions after a separator, where the next document begins."""

    ids: np.ndarray
    ends: np.ndarray


class Counter:
    """Counts the bytes and characters of the chunks that pass through it."""

    def __init__(self):
        self.n_bytes = self.n_characters = 0

    def texts(self, pieces: Iterator[TextChunk]) -> Iterator[str]:
        """The text of every chunk that is not empty."""
        for piece in pieces:
            self.n_bytes += piece.n_bytes
            self.n_characters += len(piece.text)
            if piece.text:
                yield piece.text


def units_of(documents: Iterable[Iterator[TextChunk]], tokenizer: Tokenizer, counted: Counter) -> Iterator[Unit]:
    """Group documents into units of about UNIT characters."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for pieces in documents:
        for text, last in _with_last(tokenizer.chunks(counted.texts(pieces))):
            texts.append(text)
            ends.append(last)
            size += len(text)
            if size >= UNIT:
                yield Unit(texts, ends, counted.n_bytes)
                texts, ends, size = [], [], 0
    if texts:
        yield Unit(texts, ends, counted.n_bytes)


def _with_last(chunks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Each chunk with True for the last one."""
    held = next(chunks, None)
    for chunk in chunks:
        assert held is not None
        yield held, False
        held = chunk
    if held is not None:
        yield held, True


def encode_unit(tokenizer: Tokenizer, unit: Unit) -> Encoded:
    """The ids of a unit's texts, with a separator after each text that ends a document."""
    parts, separator = [], np.array([tokenizer.separator])
    ends, n = [], 0
    for ids, last in zip(tokenizer.encode_batch(unit.texts), unit.ends, strict=True):
        parts += [ids, separator] if last else [ids]
        n += len(ids) + last
        if last:
            ends.append(n)
    return Encoded(np.concatenate(parts), np.array(ends, dtype=np.int64))


def n_cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(n_bytes: int) -> int:
    """How many workers to start for this many bytes; 0 means that this process encodes by itself."""
    return 0 if n_bytes < WORTH_WORKERS or n_cores() < 2 else min(n_cores(), MOST_WORKERS)


class Encoders:
    """Encodes units with `n` worker processes that load the tokenizer from `folder`; a context manager.

    With n = 0 this process encodes by itself.
    """

    def __init__(self, tokenizer: Tokenizer, folder: Path, n: int):
        self.tokenizer, self.folder, self.n = tokenizer, folder, n
        self.workers: list[subprocess.Popen] = []
        self._own = local()
        self._pool = ThreadPoolExecutor(n) if n else None

    def __enter__(self) -> "Encoders":
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers:
            worker.kill()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError, AttributeError):  # what was not sent is not needed
                    pipe.close()  # type: ignore[union-attr]

    def encode(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, Encoded]]:
        """Every unit with its ids, in order. At most two units for each worker are in memory."""
        if self._pool is None:
            yield from ((unit, encode_unit(self.tokenizer, unit)) for unit in units)
            return
        waiting: deque[tuple[Unit, Future]] = deque()
        for unit in units:
            waiting.append((unit, self._pool.submit(self._ask, unit)))
            if len(waiting) > 2 * self.n:
                unit, answer = waiting.popleft()
                yield unit, answer.result()
        for unit, answer in waiting:
            yield unit, answer.result()

    def _ask(self, unit: Unit) -> Encoded:
        """Send a unit to this thread's worker, which is started with its first unit, and return the answer."""
        if not hasattr(self._own, "worker"):
            self._own.worker = self._start()
        worker = self._own.worker
        try:
            write_frame(worker.stdin, pack_texts(unit))
            answer = read_frame(worker.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise EncodingError(
                f"a process that encodes text ended with code {worker.wait()}: the machine may be short of memory"
            )
        return unpack_ids(answer)

    def _start(self) -> subprocess.Popen:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        worker = subprocess.Popen(
            [sys.executable, "-m", "pellucid.text.tokens.worker", str(self.folder), self.tokenizer.hash],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0 if os.name == "posix" else None,  # the caller handles Ctrl-C
        )
        self.workers.append(worker)
        return worker


# Messages through the pipe -----------------------------------------------------------------------


def write_frame(pipe: Any, content: bytes) -> None:
    """Write the length of the content, then the content."""
    pipe.write(_SIZE.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def read_frame(pipe: Any) -> bytes | None:
    """The next message's content, or None at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    content = pipe.read(size)
    return content if len(content) == size else None


def pack_texts(unit: Unit) -> bytes:
    """A unit as bytes: the number of texts, their lengths, which of them end a document, the texts in UTF-8."""
    raw = [text.encode() for text in unit.texts]
    lengths = np.array([len(text) for text in raw], dtype="<u8")
    return b"".join([_SIZE.pack(len(raw)), lengths.tobytes(), bytes(unit.ends), *raw])


def unpack_texts(content: bytes) -> Unit:
    """The inverse of `pack_texts`."""
    (n,) = _SIZE.unpack_from(content)
    start = 9 * n + _SIZE.size
    bounds = start + np.cumsum([0, *np.frombuffer(content, "<u8", n, _SIZE.size).tolist()])
    texts = [content[a:b].decode() for a, b in itertools.pairwise(bounds)]
    return Unit(texts, [bool(end) for end in content[start - n : start]])


def pack_ids(encoded: Encoded) -> bytes:
    """An answer as bytes: how many documents end, the positions, and the ids."""
    ids = encoded.ids.astype("<u4")
    return b"".join([_SIZE.pack(len(encoded.ends)), encoded.ends.astype("<i8").tobytes(), ids.tobytes()])


def pack_error(error: TokenizerError) -> bytes:
    """The answer of a worker that could not encode its unit."""
    return _SIZE.pack(2**64 - 1) + str(error).encode()


def unpack_ids(content: bytes) -> Encoded:
    """The inverse of `pack_ids`. Raises the TokenizerError that `pack_error` packed."""
    (n,) = _SIZE.unpack_from(content)
    if n == 2**64 - 1:
        raise TokenizerError(content[_SIZE.size :].decode())
    ends = np.frombuffer(content, "<i8", n, _SIZE.size)
    return Encoded(np.frombuffer(content, "<u4", offset=_SIZE.size + 8 * n), ends)
