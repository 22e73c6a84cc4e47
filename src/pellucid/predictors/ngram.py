"""N-gram predictors: they predict the next token from counts of what followed the last order - 1 tokens.

The text is one row of ids in which separators are tokens like any other. Where `separator` is given,
contexts do not reach across it: a token reads its own document alone, and separators before that.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensors_as_bytes

from pellucid.destination import atomic_output, write_durably
from pellucid.json_files import JSONFileError, read_json_file, read_regular
from pellucid.option_values import ArchitectureError, build, check_types
from pellucid.predictors.counting import NGramLevel, count, locate, older_tokens

Smoothing = Literal["maximum-likelihood", "add-alpha", "kneser-ney", "modified-kneser-ney"]
FORMAT = 1
#: discounts of counts of 1, 2, and 3 or more, used where the counts of counts do not determine them
FALLBACK = {"kneser-ney": (0.5, 0.5, 0.5), "modified-kneser-ney": (0.5, 1.0, 1.5)}
#: tokens that are scored at a time
SCORED_AT_ONCE = 1 << 20


class NGramError(ValueError):
    """Options that contradict each other, ids outside the vocabulary, or damaged files."""


class UnseenContextError(NGramError):
    """A context that has no continuation in the training text, for which maximum likelihood has no prediction."""


@dataclass(frozen=True, kw_only=True)
class NGramOptions:
    """An n-gram predictor. h are the last `order` - 1 tokens, and h' the same without the oldest.

    maximum-likelihood   P(w|h) = c(hw) / c(h), undefined where c(h) = 0   (Shannon 1948)
    add-alpha            P(w|h) = (c(hw) + alpha) / (c(h) + alpha n_vocab)
    kneser-ney           P(w|h) = max(c(hw) - D, 0) / c(h) + D N(h) / c(h) P(w|h'),  D = n_1 / (n_1 + 2 n_2)
    modified-kneser-ney  the same with D_1, D_2, D_3+ for counts 1, 2, more   (Chen and Goodman 1999, section 3)

    In the last two, c counts different left neighbours in all but the longest contexts, n_k is the number of events
    with count k at a level, N(h) the number of events after h, and unigrams back off to 1 / n_vocab.
    """

    n_vocab: int
    order: int = 5
    """how many tokens an n-gram has: one more than a prediction reads"""
    smoothing: Smoothing = "modified-kneser-ney"
    """how probabilities follow from counts, as in the table above"""
    alpha: float = 0.1
    """what add-alpha adds to every count"""
    separator: int | None = None  # None: contexts reach across documents

    def __post_init__(self):
        check_types(self)
        if self.n_vocab < 1 or self.order < 1:
            raise NGramError(f"n_vocab = {self.n_vocab}, order = {self.order}: expected at least 1 of each")
        if not self.alpha > 0:
            raise NGramError(f"alpha = {self.alpha}: expected a number above 0; maximum-likelihood adds nothing")
        if self.separator is not None and not 0 <= self.separator < self.n_vocab:
            raise NGramError(f"separator = {self.separator}: expected an id from 0 to {self.n_vocab - 1}, or None")


@dataclass(frozen=True)
class Weights:
    """One level of a predictor: P(w|h) = own[event hw] + below[context h] * P(w|h')."""

    own: np.ndarray
    below: np.ndarray


@dataclass(frozen=True)
class ContextLevel:
    """What an n-gram predictor knows of a context of one length: P(w|h) = own[w] + below * P(w|h').

    context  the tokens h, the oldest first
    counts   c(hw) of every token w, int64 [n_vocab]; all 0 where the context was never continued in training
    own      the share of each token that comes from these counts, float64 [n_vocab]
    below    the weight of the prediction from the context without its oldest token
    probs    P(w|h), float64 [n_vocab]; NaN where maximum likelihood says nothing
    """

    context: tuple[int, ...]
    counts: np.ndarray
    own: np.ndarray
    below: float
    probs: np.ndarray


@dataclass
class NGram:
    """Counts and the distribution that follows from them. `notes` are sentences about discounts that were replaced."""

    choices: NGramOptions
    levels: list[NGramLevel]
    n_tokens: int = 0
    discounts: list[tuple[float, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def train(
        cls,
        ids: np.ndarray,
        n_vocab: int,
        order: int = 5,
        smoothing: Smoothing = "modified-kneser-ney",
        *,
        alpha: float = 0.1,
        separator: int | None = None,
        poll: Callable[[], object] = lambda: None,
    ) -> Self:
        """Count `ids`, int [n], in at most `counts.peak_bytes(n, order)` bytes; `poll` is called repeatedly.

        Raises NGramError for options that contradict each other, ids outside the vocabulary and fewer ids than order.
        """
        choices = NGramOptions(n_vocab=n_vocab, order=order, smoothing=smoothing, alpha=alpha, separator=separator)
        ids = checked(ids, n_vocab)
        if len(ids) < order:
            raise NGramError(f"{len(ids)} tokens are too few for order {order}: give more text, or a lower order")
        lower = "types" if smoothing.endswith("kneser-ney") else "sum"
        return cls(choices, count(ids, n_vocab, order, separator, lower, poll), len(ids))

    def __post_init__(self):
        self.is_interpolated = self.choices.smoothing.endswith("kneser-ney")
        if self.is_interpolated:
            discounts = [discounts_of(level.counts, self.choices.smoothing) for level in self.levels]
            self.discounts = [d for d, _ in discounts]
            self.notes = [
                f"order {k + 1}: the counts of counts {n} do not determine the discounts, "
                f"which are {', '.join(f'{x:g}' for x in d)} instead"
                for k, (d, n) in enumerate(discounts)
                if n
            ]

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.choices.order - 1

    @property
    def n_parameters(self) -> int:
        """How many counts are kept."""
        return sum(len(level.events) for level in self.levels)

    @cached_property
    def weights(self) -> list[Weights]:
        """The own term of each level, and the weight of the level below it; see NGramOptions."""
        return [self._weights(k, level) for k, level in enumerate(self.levels)]

    def _weights(self, k: int, level: NGramLevel) -> Weights:
        totals = level.totals(level.counts).astype(np.float64)
        if self.is_interpolated:
            taken = np.array([0.0, *self.discounts[k]])[np.minimum(level.counts, 3)]
            own, left = level.counts - taken, level.totals(taken)
        else:
            added = self.choices.alpha * self.choices.n_vocab if self.choices.smoothing == "add-alpha" else 0.0
            own, left = level.counts.astype(np.float64), np.full(len(totals), added)
            totals += added
        # a context at the very beginning of the text may have no left neighbour: only the level below counts
        empty = totals == 0
        safe = np.where(empty, 1.0, totals)
        return Weights(own / np.repeat(safe, np.diff(level.starts)), np.where(empty, 1.0, left / safe))

    # Predicting -----------------------------------------------------------------------------

    def log_probs(self, ids: np.ndarray, poll: Callable[[], object] = lambda: None) -> np.ndarray:
        """log P of each token after the first given those before it, nats, float64 [len(ids) - 1].

        Maximum likelihood gives NaN where the context is unseen, and -inf where only the next token is. `poll` is
        called repeatedly.
        """
        ids = checked(ids, self.choices.n_vocab)
        out = np.empty(max(len(ids) - 1, 0))
        for start in range(1, len(ids), SCORED_AT_ONCE):
            poll()
            stop = min(start + SCORED_AT_ONCE, len(ids))
            begin = max(0, start - self.reach)
            p = self._probs(ids[begin:stop])[start - begin :]
            with np.errstate(divide="ignore"):
                out[start - 1 : stop - 1] = np.log(p)
        return out

    def _probs(self, ids: np.ndarray) -> np.ndarray:
        """P of every token of `ids`; the first ones have shorter contexts."""
        v, uniform = self.choices.n_vocab, 1.0 / self.choices.n_vocab
        numbers, p = np.zeros(len(ids), dtype=np.int64), np.full(len(ids), uniform)
        older = older_tokens(ids, self.choices.order, self.choices.separator)
        for k, (level, weights) in enumerate(zip(self.levels, self.weights, strict=True)):
            there = np.ones(len(ids), dtype=bool)
            if k:
                token = next(older)
                there = token >= 0
                numbers = locate(level.contexts, np.where(there & (numbers >= 0), numbers * v + token, -1))
            seen = numbers >= 0
            event = locate(level.events, np.where(seen, numbers * v + ids, -1))
            below = p if self.is_interpolated else uniform
            known = np.where(event >= 0, weights.own[event], 0.0) + weights.below[numbers] * below
            p = np.where(seen, known, np.where(there, self._unseen(p), p))
        return p

    def _unseen(self, p: Any) -> Any:
        """The probability where the context was never seen, from that of the shorter context."""
        if self.is_interpolated:
            return p
        return np.nan if self.choices.smoothing == "maximum-likelihood" else 1.0 / self.choices.n_vocab

    def next_probs(self, context: Any) -> np.ndarray:
        """P(w | context) for every token w, float64 [n_vocab]; tokens before the last order - 1 are not read.

        Raises UnseenContextError where maximum likelihood knows no continuation of the context.
        """
        context = checked(np.asarray(context, dtype=np.int64), self.choices.n_vocab)
        padded = np.full((1, self.reach), -1, dtype=np.int64)
        last = context[max(len(context) - self.reach, 0) :]
        padded[0, self.reach - len(last) :] = last
        return self.distributions(padded)[0]

    def context_levels(self, context: Any) -> list[ContextLevel]:
        """What each level says after a context, int [n], the shortest context first.

        `probs` of the last one are `next_probs(context)`. There are fewer levels than `order` where the context is
        shorter than what the predictor reads.
        """
        context = checked(np.asarray(context, dtype=np.int64), self.choices.n_vocab)
        padded = np.full((1, self.reach), -1, dtype=np.int64)
        last = context[max(len(context) - self.reach, 0) :]
        padded[0, self.reach - len(last) :] = last
        tokens, v = self._inside(padded)[0].tolist(), self.choices.n_vocab
        levels: list[ContextLevel] = []
        number, p = 0, np.full(v, 1.0 / v)
        for k, (level, weights) in enumerate(zip(self.levels, self.weights, strict=True)):
            if k and tokens[-k] < 0:
                break
            if k:
                number = int(locate(level.contexts, np.array([number * v + tokens[-k] if number >= 0 else -1]))[0])
            counts, own, below = np.zeros(v, dtype=np.int64), np.zeros(v), 1.0
            if number >= 0:
                events = slice(level.starts[number], level.starts[number + 1])
                followers = level.events[events] % v
                counts[followers], own[followers] = level.counts[events], weights.own[events]
                below = float(weights.below[number])
                p = own + below * (p if self.is_interpolated else 1.0 / v)
            else:
                p = np.broadcast_to(self._unseen(p), (v,))
            levels.append(ContextLevel(tuple(tokens[len(tokens) - k :]), counts, own, below, p))
        return levels

    def distributions(self, contexts: np.ndarray) -> np.ndarray:
        """P(w | context) for every row of `contexts`, int64 [rows, order - 1], -1 for nothing -> [rows, n_vocab]."""
        v, rows = self.choices.n_vocab, np.arange(len(contexts))
        numbers, p = np.zeros(len(contexts), dtype=np.int64), np.full((len(contexts), v), 1.0 / v)
        contexts = self._inside(contexts)
        for k, (level, weights) in enumerate(zip(self.levels, self.weights, strict=True)):
            there = np.ones(len(contexts), dtype=bool)
            if k:
                token = contexts[:, -k]
                there = token >= 0
                numbers = locate(level.contexts, np.where(there & (numbers >= 0), numbers * v + token, -1))
            seen = numbers >= 0
            p[there & ~seen] = self._unseen(p[there & ~seen])
            if not self.is_interpolated:
                p[seen] = 1.0 / v
            p[seen] *= weights.below[numbers[seen], None]
            first, last = level.starts[numbers[seen]], level.starts[numbers[seen] + 1]
            row = np.repeat(rows[seen], last - first)
            event = np.arange(len(row)) + np.repeat(first - np.cumsum(last - first) + (last - first), last - first)
            p[row, level.events[event] % v] += weights.own[event]
        if unseen := np.flatnonzero(np.isnan(p[:, 0])).tolist():
            raise UnseenContextError(
                f"the context {contexts[unseen[0]].tolist()} was never continued in training, so maximum likelihood "
                "says nothing about what follows: use a smoothed predictor, or a lower order"
            )
        return p

    def _inside(self, contexts: np.ndarray) -> np.ndarray:
        """The contexts with separators in place of tokens of earlier documents; unchanged without a separator."""
        if self.choices.separator is None:
            return contexts
        contexts = np.where(contexts < 0, self.choices.separator, contexts)
        ends = np.flip(np.cumsum(np.flip(contexts == self.choices.separator, 1), 1), 1)
        return np.where(ends > 0, self.choices.separator, contexts)

    # On disk --------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write ngram.json and ngram.safetensors into the new folder `folder`, complete or not at all."""
        folder = Path(folder)
        if folder.exists():
            raise NGramError(f"{folder} exists: choose a new folder")
        tensors = {f"{k}.{name}": getattr(level, name) for k, level in enumerate(self.levels) for name in FIELDS}
        content = tensors_as_bytes(tensors)
        about = {
            "format": FORMAT,
            "choices": dataclasses.asdict(self.choices),
            "n_tokens": self.n_tokens,
            "discounts": self.discounts,
            "notes": self.notes,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        with atomic_output(folder) as aside:
            write_durably(aside / "ngram.safetensors", content)
            write_durably(aside / "ngram.json", (json.dumps(about, indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save` wrote. Raises NGramError for a folder that is missing files, damaged, or of another format."""
        folder = Path(folder)
        try:
            about, content = (
                read_json_file(folder / "ngram.json"),
                read_regular(folder / "ngram.safetensors"),
            )
            if about["format"] != FORMAT:
                raise NGramError(f"{folder} is of format {about['format']}, expected {FORMAT}: train it again")
            if hashlib.sha256(content).hexdigest() != about["sha256"]:
                raise NGramError(f"{folder}/ngram.safetensors has changed since it was written: train it again")
            choices, arrays = build(NGramOptions, about["choices"], "choices"), read_tensors(content)
            levels = [
                NGramLevel(choices.n_vocab, *(arrays[f"{k}.{name}"] for name in FIELDS)) for k in range(choices.order)
            ]
            return cls(choices, levels, about["n_tokens"])
        except OSError as error:
            raise NGramError(f"{folder} holds no n-gram predictor: {error.filename} cannot be read") from None
        except (LookupError, TypeError, JSONFileError, ArchitectureError, SafetensorError) as error:
            raise NGramError(f"{folder} is damaged ({error!r}): train it again") from None


FIELDS = ("contexts", "events", "counts")


def discounts_of(counts: np.ndarray, smoothing: str) -> tuple[tuple[float, ...], list[int]]:
    """The discounts of counts of 1, 2, and 3 or more; and the counts of counts where these do not determine them.

    Chen and Goodman 1999, equations (12) and (17): D = n_1 / (n_1 + 2 n_2);  D_k = k - (k + 1) D n_{k+1} / n_k.
    They do where no n_k in a denominator is 0, and each discount is above 0 and at most its count.
    """
    n = [int((counts == k).sum()) for k in (1, 2, 3, 4)]
    if smoothing == "kneser-ney":
        if not n[0]:
            return FALLBACK[smoothing], n[:2]
        return (n[0] / (n[0] + 2 * n[1]),) * 3, []
    if not all(n):
        return FALLBACK[smoothing], n
    d = n[0] / (n[0] + 2 * n[1])
    discounts = tuple(k - (k + 1) * d * n[k] / n[k - 1] for k in (1, 2, 3))
    are_possible = all(0 < x <= k for k, x in zip((1, 2, 3), discounts, strict=True))
    return (discounts, []) if are_possible else (FALLBACK[smoothing], n)


def checked(ids: Any, n_vocab: int) -> np.ndarray:
    """Ids as one row of int64. Raises NGramError where an id is outside the vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise NGramError(f"ids of shape {list(ids.shape)} and type {ids.dtype}: expected one row of whole numbers")
    ids = ids.astype(np.int64, copy=False)
    if ids.size and (ids.min() < 0 or ids.max() >= n_vocab):
        wrong = ids[(ids < 0) | (ids >= n_vocab)][0]
        raise NGramError(f"id {wrong} is outside the vocabulary: expected 0 to {n_vocab - 1}")
    return ids
