"""The yardstick: what counting alone makes of the held-out text, from nothing to five words of context."""

import math
from typing import NamedTuple

import numpy as np

from pellucid.predictors.ngram import NGram
from pellucid.text.tokens import Part, Tokens

#: at most this many training tokens are counted: more could take over 4 GiB
LIMIT = 1 << 24
ORDERS = {1: "unigram", 2: "bigram", 3: "trigram", 5: "5-gram"}


class Baseline(NamedTuple):
    """A predictor's held-out loss; the same tokens are scored as for a trained model."""

    name: str
    nats_per_token: float
    bits_per_byte: float


def baselines(tokens: Tokens, *, limit: int = LIMIT) -> list[Baseline]:
    """Uniform, unigram, bigram, trigram and 5-gram (interpolated modified Kneser-Ney) on the held-out part.

    Every token of it but the first is scored. At most the first `limit` training tokens are counted, which
    the names then say.
    """
    train, held_out = tokens.part("train"), tokens.part("held_out")
    read = min(len(train), limit)
    counted = f" of the first {read:,} tokens" if read < len(train) else ""
    ids, text = train.read(0, read), held_out.read(0, len(held_out))
    found = [baseline("uniform", math.log(tokens.n_vocab), held_out)]
    for order, name in ORDERS.items():
        if order <= len(ids):
            loss = float(-np.mean(NGram.train(ids, tokens.n_vocab, order).log_probs(text)))
            found.append(baseline(name + counted, loss, held_out))
    return found


def baseline(name: str, nats: float, part: Part) -> Baseline:
    """Nats per token, and the bits per byte of the original text that they come to."""
    return Baseline(name, nats, nats / math.log(2) * len(part) / part.n_bytes)
