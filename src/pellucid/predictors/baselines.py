"""What counting alone makes of the held-out text, from nothing to four tokens of context."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pellucid.predictors.ngram import NGram

ORDERS = {1: "unigram", 2: "bigram", 3: "trigram", 5: "5-gram"}


class Sized(Protocol):
    """A part of a text: its length in tokens, separators included, and the bytes of the original."""

    def __len__(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...


class Baseline(NamedTuple):
    """A predictor's held-out loss; the same tokens are scored as for a trained model."""

    name: str
    nats_per_token: float
    bits_per_byte: float


def baselines(
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

    train, held_out  ids, int64 [n]; every token of the second but its first is scored
    part             that those are from, whose tokens per byte turn nats per token into bits per byte
    longest          orders above this one are left out, and those that `train` is too short for
    separator        given: contexts do not reach across it
    poll             is called while they are counted and scored; it may raise
    """
    found = [baseline("uniform", math.log(n_vocab), part)]
    for order, name in ORDERS.items():
        if order <= min(longest, len(train)):
            poll()
            predictor = NGram.train(train, n_vocab, order, separator=separator, poll=poll)
            found.append(baseline(name, -float(predictor.log_probs(held_out, poll).mean()), part))
    return found


def baseline(name: str, nats: float, part: Sized) -> Baseline:
    """Nats per token, and the bits per byte of the original text that they come to."""
    return Baseline(name, nats, nats / math.log(2) * len(part) / part.n_bytes)
