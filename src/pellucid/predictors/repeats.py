"""Measures how much of the held-out text occurs verbatim in the training text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pellucid.text.tokens.store import TokenSequence

#: least length of a window, in bytes of text: unrelated texts share shorter passages
WINDOW_BYTES = 100
#: the most windows that are searched for
WINDOWS = 1 << 14
#: the most training tokens that are searched
SEARCHED = 1 << 27
#: training tokens that are hashed at a time
HASHED_AT_ONCE = 1 << 20
#: odd multipliers of the hash: for tokens, for the second half of a window, for the final mixing (Steele et al. 2014)
ODD = tuple(np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Repeats:
    """`share` of `windows` held-out windows of `length` tokens stand verbatim in `searched` training tokens."""

    share: float
    windows: int
    length: int
    searched: int


def repeats(train: TokenSequence, held_out: TokenSequence, poll: Callable[[], object] = lambda: None) -> Repeats:
    """Search the training text, at every position, for adjacent windows of the held-out text.

    Windows are a power of two tokens long, at least about 100 bytes, and are compared by hashes of 64 bits. At most
    WINDOWS windows are searched for, evenly spread, in the first SEARCHED tokens of the training text.
    """
    length = window_length(held_out)
    n = len(held_out) // length
    if not n:
        return Repeats(0.0, 0, length, 0)
    starts = np.unique(np.linspace(0, n - 1, min(n, WINDOWS)).astype(np.int64))
    rows = np.stack([held_out.read(int(k) * length, int(k + 1) * length) for k in starts])
    wanted = window_hashes(rows, length)[:, 0]
    known, searched = np.unique(wanted), min(len(train), SEARCHED)
    there = np.zeros(len(known), dtype=bool)
    for hashes in _overlapping_chunks(train, searched, length):
        poll()
        there[_indices_in_sorted(known, hashes)] = True
    return Repeats(float(there[np.searchsorted(known, wanted)].mean()), len(starts), length, searched)


def window_length(part: TokenSequence) -> int:
    """The least power of two, from 16 to 128, whose windows are about 100 bytes long or more."""
    wanted = WINDOW_BYTES * len(part) / max(part.n_bytes, 1)
    return min(128, max(16, 1 << int(np.ceil(np.log2(max(wanted, 1))))))


def window_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """A hash of every window of `length`, a power of two, of ids [..., n]: uint64 [..., n - length + 1].

    Two adjacent windows make one of twice the length: h_2k(i) = mix(h_k(i) + c h_k(i + k)).
    """
    hashes = (ids.astype(np.uint64) + np.uint64(1)) * ODD[0]
    width = 1
    while width < length:
        hashes = hashes[..., :-width] + ODD[1] * hashes[..., width:]
        hashes ^= hashes >> np.uint64(29)
        hashes *= ODD[2]
        width *= 2
    return hashes


def _overlapping_chunks(part: TokenSequence, stop: int, length: int) -> Iterator[np.ndarray]:
    for start in range(0, max(stop - length + 1, 0), HASHED_AT_ONCE):
        yield window_hashes(part.read(start, min(start + HASHED_AT_ONCE + length - 1, stop)), length)


def _indices_in_sorted(known: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """The indices in the increasing `known` of those `hashes` that it contains."""
    # a table of one bit for each possible prefix excludes most hashes quickly
    shift = np.uint64(64 - 22)
    table = np.zeros(1 << 22, dtype=bool)
    table[known >> shift] = True
    likely = hashes[table[hashes >> shift]]
    candidates = np.minimum(np.searchsorted(known, likely), len(known) - 1)
    return candidates[known[candidates] == likely]
