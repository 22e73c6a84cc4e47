"""Batches as a pure function of (seed, step): nothing to save, nothing to skip, the same for any number of processes.

The training tokens are a ring, its end joined to its beginning. Each epoch cuts the ring into
windows of n_ctx + 1 tokens, each beginning with the last token of the one before, so that every
token is a target once; where the cutting begins is drawn anew for each epoch, and so is the order of
the windows. len(tokens) mod n_ctx tokens, other ones each epoch, are left over as targets.

Windows are numbered through the epochs: step s holds numbers s * batch ... s * batch + batch - 1, and
number g is window g mod n_windows, in drawn order, of epoch g // n_windows. The order is written out for
up to a million windows; beyond that it is a Feistel permutation (Luby and Rackoff 1988), computed for the
windows asked for, so that a billion of them take no memory. Neither uses a library's random numbers,
which a new version may change.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pellucid.text.tokens.store import Tokens, TokenSequence, check_ids

#: rounds of the Feistel permutation
ROUNDS = 6
#: the largest number of windows whose order is held in memory instead
WRITTEN_OUT = 1 << 20


class BatchesError(ValueError):
    """The requested window or batch size gives no batches."""


@dataclass(frozen=True)
class Batch:
    """inputs and targets int64 [batch, pos]: targets[b, i] is the token after inputs[b, i].

    Where document borders were requested, `documents` numbers documents from 0 within each window and `positions`
    counts positions from 0 within each document, or within the part of it that the window shows; both describe the
    inputs. A separator belongs to the document it ends.
    """

    inputs: np.ndarray
    targets: np.ndarray
    documents: np.ndarray | None = None
    positions: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.inputs, self.targets))


@dataclass(frozen=True)
class ScoredBatch(Batch):
    """A batch for measuring: `counts` bool [batch, pos] is True where a target is scored, exactly once over all
    batches.
    """

    counts: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        assert self.counts is not None
        return iter((self.inputs, self.targets, self.counts))


class Batches:
    """Training batches of `batch` windows of `n_ctx` inputs each, and of the `before` inputs before them in the ring.

    `tokens` is a part, or prepared tokens, of which the training part is used. Raises BatchesError if there are too few
    tokens for one window.
    """

    def __init__(
        self,
        tokens: TokenSequence | Tokens,
        n_ctx: int,
        batch: int,
        seed: int = 0,
        *,
        inside_documents: bool = False,
        before: int = 0,
    ):
        self.part = tokens.part("train") if isinstance(tokens, Tokens) else tokens
        if n_ctx < 1 or batch < 1:
            raise BatchesError(f"n_ctx = {n_ctx}, batch = {batch}: expected at least 1 of each")
        if len(self.part) < n_ctx + 1:
            raise BatchesError(
                f"{self.part.name} has {len(self.part)} tokens, too few for one window of n_ctx + 1 = {n_ctx + 1}: "
                "give more text or a smaller n_ctx"
            )
        self.n_ctx, self.batch, self.seed = n_ctx, batch, seed
        self.inside_documents, self.before = inside_documents, before
        self.n_windows = len(self.part) // n_ctx
        self._checked = -1

    def epoch(self, step: int) -> float:
        """The number of passes over the text before `step`."""
        return step * self.batch / self.n_windows

    def starts(self, step: int, micro: int = 0, of: int = 1) -> np.ndarray:
        """The ring positions at which the windows of a step begin, int64 [batch / of]."""
        if step < 0 or not 0 <= micro < of:
            raise BatchesError(f"step = {step}, micro = {micro} of {of}: expected step >= 0 and 0 <= micro < of")
        if self.batch % of:
            raise BatchesError(
                f"a batch of {self.batch} cannot be cut into {of} equal parts: choose a divisor of the batch"
            )
        share = self.batch // of
        first = step * self.batch + micro * share
        starts = np.empty(share, dtype=np.int64)
        done = 0
        while done < share:
            epoch, j = divmod(first + done, self.n_windows)
            n = min(share - done, self.n_windows - j)
            windows = permute(np.arange(j, j + n, dtype=np.uint64), self.n_windows, self.seed, epoch)
            phase = _draw(self.seed, epoch, ROUNDS) % len(self.part)
            starts[done : done + n] = (phase + windows.astype(np.int64) * self.n_ctx) % len(self.part)
            done += n
        return starts

    def at(self, step: int, micro: int = 0, of: int = 1) -> Batch:
        """The batch of a step, or part `micro` of its `of` equal parts, which in order make up the batch."""
        starts, width = self.starts(step, micro, of) - self.before, self.before + self.n_ctx
        self._check_files(step)
        rows = np.stack([self._read_ring(int(start), width + 1) for start in starts])
        check_ids(rows, self.part.n_vocab)
        borders = _borders(self.part, starts, width, ring=True) if self.inside_documents else (None, None)
        return Batch(rows[:, :-1], rows[:, 1:], *borders)

    def _read_ring(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from `start` on; the text continues at its beginning."""
        pieces, n = [], len(self.part)
        while length:
            start %= n
            pieces.append(self.part.read(start, min(n, start + length)))
            start, length = start + len(pieces[-1]), length - len(pieces[-1])
        return np.concatenate(pieces)

    def _check_files(self, step: int) -> None:
        """Check, once an epoch, that no file was cut short: a shorter memory-mapped file would kill the process."""
        epoch = step * self.batch // self.n_windows
        if epoch != self._checked:
            self.part.check_files()
            self._checked = epoch


def drawn_numbers(step: int, batch: int, n: int, seed: int) -> np.ndarray:
    """The numbers of a step's items, int64 [batch]: item g of a run is the g-th of the epochs' orders of `n` items."""
    epochs, indices = np.divmod(np.arange(step * batch, (step + 1) * batch), n)
    numbers = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        numbers[here] = permute(indices[here].astype(np.uint64), n, seed, int(epoch))
    return numbers


def windows(
    tokens: TokenSequence, n_ctx: int, stride: int | None = None, batch: int = 1, *, inside_documents: bool = False
) -> Iterator[ScoredBatch]:
    """Windows that score every token after the first exactly once, in order.

    Windows of `n_ctx` inputs begin `stride` apart (n_ctx by default: no overlap), and each scores the targets that no
    earlier window scored. With a smaller stride these have at least n_ctx - stride tokens of context, except in the
    first window. The last window is moved back to end with the text; a text shorter than a window gives one short
    window. The last batch may hold fewer windows. Raises BatchesError.
    """
    stride = n_ctx if stride is None else stride
    if n_ctx < 1 or batch < 1 or not 1 <= stride <= n_ctx:
        raise BatchesError(
            f"n_ctx = {n_ctx}, stride = {stride}, batch = {batch}: expected 1 <= stride <= n_ctx, batch >= 1"
        )
    n_targets = len(tokens) - 1
    if n_targets < 1:
        raise BatchesError(
            f"{tokens.name} has {len(tokens)} tokens: expected at least 2, one to predict the other from"
        )
    tokens.check_files()
    length = min(n_ctx, n_targets)
    return _windows(tokens, length, stride, batch, inside_documents)


def lay_windows(n: int, n_ctx: int, stride: int, first: int = 1) -> Iterator[tuple[int, int, int]]:
    """Windows (begin, end, scored) over targets 1 ... n: inputs begin ... end - 1 give targets scored ... end.

    All have min(n, n_ctx) inputs, and each target from `first` on is scored in exactly one of them.
    """
    end = min(n, max(n_ctx, first - 1 + stride))
    while True:
        yield max(0, end - n_ctx), end, first
        if end == n:
            return
        first, end = end + 1, min(n, end + stride)


def _windows(
    tokens: TokenSequence, length: int, stride: int, batch: int, inside_documents: bool
) -> Iterator[ScoredBatch]:
    laid = lay_windows(len(tokens) - 1, length, stride)
    while group := list(itertools.islice(laid, batch)):
        starts, _, scored = (np.array(column) for column in zip(*group, strict=True))
        rows = np.stack([tokens.read(start, start + length + 1) for start, _, _ in group])
        check_ids(rows, tokens.n_vocab)
        # row entry i is target start + i + 1
        counts = starts[:, None] + np.arange(length) + 1 >= scored[:, None]
        borders = _borders(tokens, starts, length, ring=False) if inside_documents else (None, None)
        yield ScoredBatch(rows[:, :-1], rows[:, 1:], *borders, counts=counts)


def _borders(part: TokenSequence, starts: np.ndarray, n_ctx: int, ring: bool) -> tuple[np.ndarray, np.ndarray]:
    """Document numbers, and positions within documents, of the inputs of windows, int64 [batch, n_ctx]."""
    at = starts[:, None] + np.arange(n_ctx)
    laps, at = np.divmod(at, len(part)) if ring else (np.zeros_like(at), at)
    documents = np.searchsorted(part.starts, at, side="right") + laps * len(part.starts)
    new = np.diff(documents, axis=1, prepend=documents[:, :1]) > 0
    begins = np.maximum.accumulate(np.where(new, np.arange(n_ctx), 0), axis=1)
    return documents - documents[:, :1], np.arange(n_ctx) - begins


# Order --------------------------------------------------------------------------------------


def permute(i: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """The positions of `i`, uint64 below n, in the permutation of 0 ... n - 1 that (seed, epoch) determines."""
    return _order(n, seed, epoch)[i] if n <= WRITTEN_OUT else feistel(i, n, seed, epoch)


@functools.lru_cache(maxsize=4)
def _order(n: int, seed: int, epoch: int) -> np.ndarray:
    """A whole permutation: the numbers 0 ... n - 1 sorted by a hash of each."""
    keys = _mix(np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(_draw(seed, epoch, 0)))
    return np.argsort(keys, kind="stable").astype(np.uint64)


def feistel(i: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """The same as `permute` for large n. For small n there are too few such permutations to draw evenly.

    A Feistel network permutes 0 ... 4^h - 1, the smallest such range that holds n. A value outside 0 ... n - 1 is
    mapped again until it falls inside, which keeps the map a bijection (cycle walking, Black and Rogaway 2002).
    """
    half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(_draw(seed, epoch, r)) for r in range(ROUNDS)]
    out = i.astype(np.uint64)
    todo = np.arange(len(out))
    while len(todo):
        value = out[todo]
        left, right = value >> half, value & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        out[todo] = value = (left << half) | right
        todo = todo[value >= n]
    return out


def noise(seed: int, step: int, rows: np.ndarray, n: int) -> np.ndarray:
    """Random numbers, uint64 [len(rows), n], for each of `n` positions of each row of a batch: a pure function of
    (seed, step, row, position).
    """
    start = np.uint64(_draw(seed, step, ROUNDS + 1))
    return _mix(_mix(start + rows.astype(np.uint64))[:, None] + np.arange(n, dtype=np.uint64))


def row_numbers(seed: int, step: int, rows: np.ndarray) -> np.ndarray:
    """A random number for each of these rows of a step's batch, int64 [len(rows)]: its dropout is drawn from it."""
    start = np.uint64(_draw(seed, step, ROUNDS + 2))
    return _mix(start + rows.astype(np.uint64)).view(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every input bit changes about half of the
    output bits.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _draw(seed: int, epoch: int, k: int) -> int:
    """The k-th 64-bit random number of (seed, epoch)."""
    x = np.zeros(1, dtype=np.uint64)
    for word in (seed, epoch, k):
        x = _mix(x + np.uint64((word + 0x9E3779B97F4A7C15) % (1 << 64)))
    return int(x[0])
