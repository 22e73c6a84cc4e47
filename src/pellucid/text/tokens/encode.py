"""Encoding on all cores: text is cut into units, each encoded by itself, in order, by one of several processes.

Where a unit ends is decided by the text and the tokenizer alone, so the ids are the same for any number
of workers. A worker is a process of its own (`python -m pellucid.text.tokens.worker`), fed through a pipe: it
ends when its pipe does, and needs nothing of what the caller's process has done, threads among it.
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

#: characters per unit; a document longer than that is cut where its tokenizer allows it. A worker needs some 100 bytes
#: for each while it encodes them (docs/log.md)
UNIT = 1 << 17
#: bytes of text that are worth starting workers, and the most of them
WORTH_WORKERS, MOST_WORKERS = 1 << 23, 16
_SIZE = struct.Struct("<Q")


class EncodingError(ValueError):
    """A worker that ended by itself."""


class Unit(NamedTuple):
    """Texts that are encoded together; `ends` says which of them end a document.

    `n_bytes` is how much of the corpus had been read when the unit was complete.
    """

    texts: Sequence[str]
    ends: Sequence[bool]
    n_bytes: int = 0


class Encoded(NamedTuple):
    """Ids of a unit with its separators, and where behind a separator the next document begins."""

    ids: np.ndarray
    ends: np.ndarray


class Counter:
    """Counts bytes and characters of the pieces that pass."""

    def __init__(self):
        self.n_bytes = self.n_characters = 0

    def texts(self, pieces: Iterator[TextChunk]) -> Iterator[str]:
        """The text of pieces that have any."""
        for piece in pieces:
            self.n_bytes += piece.n_bytes
            self.n_characters += len(piece.text)
            if piece.text:
                yield piece.text


def units_of(documents: Iterable[Iterator[TextChunk]], tokenizer: Tokenizer, counted: Counter) -> Iterator[Unit]:
    """Documents in units of about UNIT characters."""
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
    """Each with whether it is the last."""
    held = next(chunks, None)
    for chunk in chunks:
        assert held is not None
        yield held, False
        held = chunk
    if held is not None:
        yield held, True


def encode_unit(tokenizer: Tokenizer, unit: Unit) -> Encoded:
    """The ids of a unit's texts, with the separator behind each that ends a document."""
    parts, separator = [], np.array([tokenizer.separator])
    ends, n = [], 0
    for ids, last in zip(tokenizer.encode_batch(unit.texts), unit.ends, strict=True):
        parts += [ids, separator] if last else [ids]
        n += len(ids) + last
        if last:
            ends.append(n)
    return Encoded(np.concatenate(parts), np.array(ends, dtype=np.int64))


def n_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(n_bytes: int) -> int:
    """How many workers so much text is worth; 0: this process encodes."""
    return 0 if n_bytes < WORTH_WORKERS or n_cores() < 2 else min(n_cores(), MOST_WORKERS)


class Encoders:
    """Units in, ids out, in order, by `n` workers with the tokenizer saved in `folder`; a context manager.

    With n = 0 the process encodes by itself.
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
        """Every unit with its ids; no more than two units a worker are in memory."""
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
        """The answer of this thread's worker, started with its first unit."""
        if not hasattr(self._own, "worker"):
            self._own.worker = self._start()
        worker = self._own.worker
        try:
            write_frame(worker.stdin, pack_texts(unit))
            answer = read_frame(worker.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise EncodingError(f"a process that encodes text ended with code {worker.wait()}: is memory short?")
        return unpack_ids(answer)

    def _start(self) -> subprocess.Popen:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        worker = subprocess.Popen(
            [sys.executable, "-m", "pellucid.text.tokens.worker", str(self.folder), self.tokenizer.hash],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the caller to answer
        )
        self.workers.append(worker)
        return worker


# Through the pipe -------------------------------------------------------------------------------


def write_frame(pipe: Any, content: bytes) -> None:
    """Its size, and the content."""
    pipe.write(_SIZE.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def read_frame(pipe: Any) -> bytes | None:
    """The next content, None at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    content = pipe.read(size)
    return content if len(content) == size else None


def pack_texts(unit: Unit) -> bytes:
    """A unit as bytes: how many texts, their lengths, which end a document, the texts in UTF-8."""
    raw = [text.encode() for text in unit.texts]
    lengths = np.array([len(text) for text in raw], dtype="<u8")
    return b"".join([_SIZE.pack(len(raw)), lengths.tobytes(), bytes(unit.ends), *raw])


def unpack_texts(content: bytes) -> Unit:
    """What `pack` packed."""
    (n,) = _SIZE.unpack_from(content)
    start = 9 * n + _SIZE.size
    bounds = start + np.cumsum([0, *np.frombuffer(content, "<u8", n, _SIZE.size).tolist()])
    texts = [content[a:b].decode() for a, b in itertools.pairwise(bounds)]
    return Unit(texts, [bool(end) for end in content[start - n : start]])


def pack_ids(encoded: Encoded) -> bytes:
    """An answer as bytes: how many documents end, where, and the ids."""
    ids = encoded.ids.astype("<u4")
    return b"".join([_SIZE.pack(len(encoded.ends)), encoded.ends.astype("<i8").tobytes(), ids.tobytes()])


def pack_error(error: TokenizerError) -> bytes:
    """The answer of a worker that has no ids to give."""
    return _SIZE.pack(2**64 - 1) + str(error).encode()


def unpack_ids(content: bytes) -> Encoded:
    """What `pack_ids` packed; TokenizerError where the worker had none to give."""
    (n,) = _SIZE.unpack_from(content)
    if n == 2**64 - 1:
        raise TokenizerError(content[_SIZE.size :].decode())
    ends = np.frombuffer(content, "<i8", n, _SIZE.size)
    return Encoded(np.frombuffer(content, "<u4", offset=_SIZE.size + 8 * n), ends)
