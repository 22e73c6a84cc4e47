"""Exact counts of which token followed which context, without a Python loop over tokens.

A context is numbered one token at a time, the nearest token first: the context (.., t_2, t_1) of length
k has the key number(t_{k-1} .. t_1) * n_vocab + t_k, and its number is the rank of that key among all
contexts of its length. Keys therefore fit 64 bits whatever the order and the vocabulary, no hash can
collide, and the context one token shorter is the key divided by n_vocab.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np


def peak_bytes(n_tokens: int, order: int) -> int:
    """Upper bound in bytes for counting and predicting, besides the ids: the case where all n-grams are different.

    Text repeats itself: English in bytes takes a tenth of this, in words about half.
    """
    return n_tokens * (64 + 40 * order)


@dataclass(frozen=True)
class NGramLevel:
    """The contexts of one length, and the tokens that followed each of them.

    contexts  int64 [n_contexts], increasing: number of the context one token shorter * n_vocab + oldest token;
              one key, 0, for the empty context
    events    int64 [n_events], increasing: number of the context * n_vocab + the token after it
    counts    int64 [n_events], how often
    """

    n_vocab: int
    contexts: np.ndarray
    events: np.ndarray
    counts: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """The index of the first event of each context, int64 [n_contexts + 1]."""
        return np.searchsorted(self.events, np.arange(len(self.contexts) + 1) * self.n_vocab)

    def totals(self, values: np.ndarray) -> np.ndarray:
        """The sum of one value per event over the events of each context, [n_contexts]."""
        sums = np.concatenate([np.zeros(1, dtype=values.dtype), np.cumsum(values)])
        return np.diff(sums[self.starts])


def older_tokens(ids: np.ndarray, order: int, separator: int | None) -> Iterator[np.ndarray]:
    """For d = 1 ... order - 1, the token d places before each of `ids`, int64 [len(ids)].

    With a separator, contexts do not reach across it: all tokens before the last separator of a context, and before
    the beginning, are replaced by the separator. Without one, -1 marks that there is no token.
    """
    cut = np.zeros(len(ids), dtype=bool)
    for d in range(1, order):
        older = np.full(len(ids), -1 if separator is None else separator, dtype=np.int64)
        older[d:] = ids[: max(len(ids) - d, 0)]
        if separator is not None:
            older[cut] = separator
            cut |= older == separator
        yield older


def count(
    ids: np.ndarray,
    n_vocab: int,
    order: int,
    separator: int | None,
    lower: "Lower",
    poll: Callable[[], object] = lambda: None,
) -> list[NGramLevel]:
    """The levels of contexts of length 0 ... order - 1, shortest first; `poll` is called repeatedly and may raise.

    The longest contexts have the counts of the text. Counts of shorter contexts follow from them: with `sum`, how often
    a token followed; with `types`, how many different tokens preceded the context and the token (continuation
    counts, Kneser and Ney 1995).
    """
    contexts, first = [np.zeros(1, dtype=np.int64)], []
    numbers = np.zeros(len(ids), dtype=np.int64)
    for older in older_tokens(ids, order, separator):
        if separator is None:  # the first remaining token has no context this long and is an event of its own
            first.append(numbers[0] * n_vocab + ids[len(ids) - len(numbers)])
            numbers, older = numbers[1:], older[len(ids) - len(numbers) + 1 :]
        numbers *= n_vocab
        numbers += older
        poll()
        keys, numbers = rank(numbers, len(contexts[-1]) * n_vocab)
        contexts.append(keys)
    numbers *= n_vocab
    numbers += ids[len(ids) - len(numbers) :]
    poll()
    events, counts = tally(numbers, len(contexts[-1]) * n_vocab)
    levels = [NGramLevel(n_vocab, contexts[-1], events, counts)]
    for length in range(order - 2, -1, -1):
        poll()
        shorter, token = np.divmod(events, n_vocab)
        keys = (contexts[length + 1] // n_vocab)[shorter] * n_vocab + token
        weights = counts if lower == "sum" else np.ones_like(counts)
        if separator is None:
            keys = np.append(keys, first[length])
            weights = np.append(weights, 1 if lower == "sum" else 0)
        events, counts = sum_by_key(keys, weights)
        levels.append(NGramLevel(n_vocab, contexts[length], events, counts))
    return levels[::-1]


Lower = Literal["sum", "types"]


def rank(keys: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """The different keys in increasing order, and the index of each of `keys`, all below `bound`, among them."""
    if bound <= len(keys):
        there = np.zeros(bound, dtype=bool)
        there[keys] = True
        return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]
    order = sorting_order(keys, bound)
    ordered = keys[order]
    new = np.empty(len(keys), dtype=bool)
    new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    ranks = np.empty(len(keys), dtype=np.int64)
    ranks[order] = np.cumsum(new) - 1
    return ordered[new], ranks


def sorting_order(keys: np.ndarray, bound: int) -> np.ndarray:
    """The indices that sort `keys`: sorting numbers is several times faster than sorting their indices."""
    bits = max(1, (len(keys) - 1).bit_length())
    if int(bound) << bits >= 1 << 63:
        return np.argsort(keys, kind="stable")
    packed = keys << bits
    packed |= np.arange(len(keys))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def tally(keys: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """The different keys in increasing order, and how many there are of each; `keys`, below `bound`, are sorted."""
    if bound <= len(keys):
        counts = np.bincount(keys, minlength=bound)
        there = np.flatnonzero(counts)
        return there, counts[there]
    keys.sort()
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.diff(np.append(starts, len(keys)))


def sum_by_key(keys: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different keys in increasing order, and the sum of the weights of each."""
    order = sorting_order(keys, int(keys.max()) + 1)
    ordered, sums = keys[order], np.cumsum(weights[order])
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    return ordered[ends], np.diff(sums[ends], prepend=0)


def locate(table: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The index of each key in the increasing `table`, -1 where it is absent; keys below 0 are always absent."""
    order = sorting_order(np.maximum(keys, 0), int(keys.max(initial=0)) + 1)
    wanted = keys[order]
    candidates = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    indices = np.empty(len(keys), dtype=np.int64)
    indices[order] = np.where(table[candidates] == wanted, candidates, -1)
    return indices
