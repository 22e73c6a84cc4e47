"""Baselines of the held-out text: n-grams with no context up to four tokens of context."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pellucid.predictors.ngram import NGram
from pellucid.text.tokens.store import TokenSequence

ORDERS = {1: "unigram", 2: "bigram", 3: "trigram", 5: "5-gram"}
#: training tokens that are counted at most, which takes seconds and under 1 GiB
COUNTED = 1 << 22
#: length of the pieces that are read where not all tokens are
PIECE_TOKENS = 1 << 14


class Sized(Protocol):
    """A part of a text: its length in tokens, separators included, and the bytes of the original."""

    def __len__(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...


class Baseline(NamedTuple):
    """The held-out loss of a predictor, on the same tokens as a trained model's."""

    name: str
    nats_per_token: float
    bits_per_byte: float


def score_baselines(
    train: np.ndarray,
    held_out: np.ndarray,
    part: Sized,
    n_vocab: int,
    *,
    longest: int = 5,
    separator: int | None = None,
    poll: Callable[[], object] = lambda: None,
) -> list[Baseline]:
    """Uniform, and n-grams of 1, 2, 3 and 5 tokens (interpolated modified Kneser-Ney) counted on `train`.

    train, held_out  ids, int64 [n]; every token of the second after its first is scored, given those before it
    part             the part that `held_out` is from; its tokens per byte turn nats per token into bits per byte
    longest          larger orders are left out, and so are orders that `train` is too short for
    separator        if given, contexts do not reach across it
    poll             is called while they are counted and scored; it may raise
    """
    scores = [baseline("uniform", math.log(n_vocab), part)]
    for name, ngram in count_ngrams(train, n_vocab, longest=longest, separator=separator, poll=poll):
        scores.append(baseline(name, -float(ngram.log_probs(held_out, poll).mean()), part))
    return scores


def count_ngrams(
    train: np.ndarray,
    n_vocab: int,
    *,
    longest: int = 5,
    separator: int | None = None,
    poll: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, NGram]]:
    """The n-grams of `score_baselines` by name, each counted when it is asked for."""
    for order, name in ORDERS.items():
        if order <= min(longest, len(train)):
            poll()
            yield name, NGram.train(train, n_vocab, order, separator=separator, poll=poll)


def spread(part: TokenSequence, limit: int) -> np.ndarray:
    """All ids of a part, or about `limit` of them, in pieces evenly spread over it."""
    if len(part) <= limit:
        return part.read(0, len(part))
    starts = np.linspace(0, len(part) - PIECE_TOKENS, max(1, limit // PIECE_TOKENS)).astype(np.int64)
    return np.concatenate([part.read(int(start), int(start) + PIECE_TOKENS) for start in starts])


def baseline(name: str, nats: float, part: Sized) -> Baseline:
    """A baseline from its nats per token, with the bits per byte of the original text."""
    return Baseline(name, nats, nats / math.log(2) * len(part) / part.n_bytes)


def rows_of(title: str, rows: Sequence[tuple[str, float, float]]) -> list[str]:
    """The losses of several predictors, as the lines of a table."""
    width = max(len(title), *(len(name) for name, *_ in rows))
    return [
        f"{title:<{width}}  {'nats/token':>10}  {'bits/byte':>9}",
        *(f"{name:<{width}}  {nats:>10.4f}  {bits:>9.4f}" for name, nats, bits in rows),
    ]
