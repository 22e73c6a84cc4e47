"""Suffix arrays over token ids: every place of a sequence by two binary searches (Manber and Myers 1993).

The order is that of the bytes of the ids as their files hold them, little-endian. It is not the order of the ids, but
equal beginnings stand together in it, which is all that a search needs, and a comparison is one of mapped bytes.
"""

import bisect
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: positions that are taken from the sorted bytes at a time
BLOCK = 1 << 20
#: tokens that are compared first of a text whose match may go on
FIRST_COMPARED = 16
#: seconds between two looks at a sort that goes on
WAITING = 0.1


class SourcesError(ValueError):
    """A text cannot be looked up, or there is nothing to look it up in."""


def sorted_positions(ids: np.ndarray, wait: Callable[[], object] = lambda: None) -> np.ndarray:
    """The positions of all suffixes of `ids` (uint16 or uint32, little-endian) in the order of their bytes, int32.

    All byte positions are sorted (pydivsufsort, Mori's divsufsort), and those where no id begins are dropped in place:
    8 bytes of memory for each id of two bytes and 16 for each of four, beside a copy of the ids. `wait` is called while
    the sort goes on in a thread of its own, so that Ctrl-C is heard.
    """
    if not len(ids):
        return np.zeros(0, np.int32)
    order = _in_thread(lambda: _divsufsort(np.array(ids).view(np.uint8)), wait)
    width, n = ids.itemsize, 0
    for first in range(0, len(order), BLOCK):
        block = order[first : first + BLOCK]
        own = block[block % width == 0] // width
        order[n : n + len(own)] = own
        n += len(own)
    return order[:n]


def _divsufsort(text: np.ndarray) -> np.ndarray:
    try:
        module = importlib.import_module("pydivsufsort")
    except ImportError:
        raise SourcesError("the search for sources needs pydivsufsort: pip install 'pellucid[sources]'") from None
    return module.divsufsort(text)


def _in_thread(work: Callable[[], np.ndarray], wait: Callable[[], object]) -> np.ndarray:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(WAITING)
        wait()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


class SuffixArray:
    """A stretch of a text with its sorted positions.

    ids     arrays of ids that follow one another, which may be mapped files
    order   the sorted positions in them, int32, which may be a mapped file
    first   the position of the stretch in the whole text
    """

    def __init__(self, ids: Sequence[np.ndarray], order: np.ndarray, first: int = 0):
        self.order, self.first = order, first
        self.width = ids[0].itemsize if ids else 2
        self._positions = order.view(np.uint8).data.cast("i")  # its elements are integers of Python
        self._views = [np.ascontiguousarray(one).view(np.uint8).data for one in ids]
        self._ends = np.cumsum([len(view) for view in self._views]).tolist()

    def slice_bytes(self, position: int, n_bytes: int) -> bytes:
        """The next `n_bytes` bytes of the text from a position of an id on; fewer at its end."""
        start = position * self.width
        k = bisect.bisect_right(self._ends, start)
        if k == len(self._views):
            return b""
        view = self._views[k]
        at = start - (self._ends[k] - len(view))
        read = bytes(view[at : at + n_bytes])
        while len(read) < n_bytes and (k := k + 1) < len(self._views):
            read += bytes(self._views[k][: n_bytes - len(read)])
        return read

    def _key(self, n_bytes: int) -> Callable[[int], bytes]:
        """The function that gives the next `n_bytes` bytes of the text from a position on."""
        if len(self._views) > 1:
            return lambda position: self.slice_bytes(position, n_bytes)
        (view,), width = self._views, self.width
        return lambda position: view[(start := position * width) : start + n_bytes].tobytes()

    def range_of(self, query: bytes) -> tuple[int, int]:
        """Where the suffixes that begin with these bytes stand in `order`: from the first up to the second number."""
        key = self._key(len(query))
        low = bisect.bisect_left(self._positions, query, key=key)
        return low, bisect.bisect_right(self._positions, query, low, key=key)

    def longest_match(self, query: bytes, at: int = 0, compared: int = FIRST_COMPARED) -> int:
        """How many ids of the query from its id number `at` on occur together, the most at any place.

        compared   how many ids are compared first; the search is repeated with more where all of them occur
        """
        start = at * self.width
        while True:
            part = query[start : start + compared * self.width]
            n = self._match_bytes(part) // self.width
            if n < compared or start + len(part) == len(query):
                return n
            compared *= 4

    def _match_bytes(self, query: bytes) -> int:
        key = self._key(len(query))
        at = bisect.bisect_left(self._positions, query, key=key)
        # the longest match is that with one of the two suffixes between which the query stands
        neighbours = self._positions[max(at - 1, 0) : at + 1]
        return max((common_prefix(query, key(position)) for position in neighbours), default=0)


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two strings have in common at their beginnings."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the first `low` bytes are equal, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
