"""Generating one token at a time: the choice of the next token, the loop, the cache of keys and values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.functions import softmax
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.transformer import forward
from pellucid.reference.weights import Weights

Choice = Callable[[np.ndarray], int]  # logits [v] -> token


# Choosing -----------------------------------------------------------------------------------------


def greedy(logits: np.ndarray) -> int:
    """argmax_i P_S(i), the smallest index among equals   [v] -> token.   S0 4.3"""
    return int(np.argmax(logits))


def truncated(p: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The distribution that is sampled from, given logits   [v] -> [v]

    softmax(logits / temperature); then the top_k most probable tokens (0: all); then the fewest most probable tokens
    whose probabilities reach top_p; renormalised. S0 4.3 P_S(i); Fan et al. 2018, Holtzman et al. 2020. Tokens of
    equal probability are ordered by index. Raises ValueError unless temperature > 0 and 0 < top_p <= 1.
    """
    if temperature <= 0 or not 0 < top_p <= 1 or top_k < 0:
        raise ValueError(
            f"temperature = {temperature}, top_k = {top_k}, top_p = {top_p}: expected temperature "
            "> 0, top_k >= 0, 0 < top_p <= 1"
        )
    p = softmax(np.asarray(p, np.float64) / temperature)
    order = np.argsort(-p, kind="stable")
    if top_k:
        p = np.where(np.isin(np.arange(len(p)), order[:top_k]), p, 0.0)
        p = p / p.sum()
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
        p = np.where(np.isin(np.arange(len(p)), order[before < top_p]), p, 0.0)
        p = p / p.sum()
    return p


def sample(rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Choice:
    """A choice that draws from `truncated`: the token in whose interval of the cumulative sum a uniform number falls

    S0 4.3 "the probability that the model assigns".
    """

    def choose(logits: np.ndarray) -> int:
        p = truncated(logits, temperature, top_k, top_p)
        token = int(np.searchsorted(np.cumsum(p), rng.random(), side="right"))
        return min(token, int(np.flatnonzero(p)[-1]))  # the sum of p may round to just below 1

    return choose


def generate_by_definition(
    next_logits: Callable[[list[int]], np.ndarray], tokens: Sequence[int], n_new: int, choose: Choice = greedy,
    eos: int | None = None,
) -> list[int]:  # fmt: skip
    """The tokens and up to n_new more, each chosen given all before it; stops after eos

    S0 4.3 "Predicting one token at a time", S4 "Break the task into smaller subtasks"; with eos a sample of
    Delta(L), S3 slide 1 and erratum E-55.
    """
    out = list(tokens)
    for _ in range(n_new):
        out.append(choose(next_logits(out)))
        if out[-1] == eos:
            break
    return out


# The cache ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceCache:
    """Keys and values of the positions so far, name -> [1, g, length, d], and tokens.   S1 1.1.2, S4 "KV caching"."""

    length: int = 0
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    tokens: tuple[int, ...] = ()

    def crop(self, length: int) -> "ReferenceCache":
        """The cache as it was after `length` positions.   S4 "backtracking mistakes"."""
        return ReferenceCache(length, {name: x[:, :, :length] for name, x in self.kept.items()}, self.tokens[:length])


def transformer_step(
    architecture: Architecture, weights: Weights, tokens: Sequence[int], cache: ReferenceCache, **reading
) -> tuple[np.ndarray, ReferenceCache]:
    """The logits [n, v] of the next n tokens, given the cache of the tokens before them; and the cache after them

    S1 1.1.2 "key-value pairs do not need to be re-computed", S4 "Next Token Prediction". The same as the last n rows
    of a pass over everything. Raises ValueError for a mask that lets positions read later ones.
    """
    a = architecture
    if a.attention.mask == "bidirectional":
        raise ValueError("a bidirectional transformer has no cache: a new token changes what earlier ones read")
    if 0 < cache.length <= a.frequency_border < cache.length + len(tokens):
        # the longer text has other frequencies: all of it is read again
        logits, cache = transformer_step(a, weights, [*cache.tokens, *tokens], ReferenceCache(), **reading)
        return logits[-len(tokens) :], cache
    kept: dict[str, np.ndarray] = {}

    def extended(name: str) -> Callable[[np.ndarray], np.ndarray]:
        def edit(new: np.ndarray) -> np.ndarray:
            kept[name] = np.concatenate([cache.kept[name], new], axis=2) if cache.length else new
            return kept[name]

        return edit

    names = [f"blocks.{l}.attn.{x}" for l in range(a.n_layers) for x in ("rot_k" if a.rotates(l) else "k", "v")]
    end = cache.length + len(tokens)
    tap = TensorRecorder({name: extended(name) for name in names})
    before = np.asarray(cache.tokens, np.int64)
    positions = np.arange(cache.length, end)
    logits = forward(a, weights, np.asarray(tokens), positions=positions, before=before, tap=tap, **reading)
    return logits, ReferenceCache(end, kept, (*cache.tokens, *tokens))


def generate_with_cache(
    architecture: Architecture, weights: Weights, tokens: Sequence[int], n_new: int, choose: Choice = greedy,
    eos: int | None = None,
) -> list[int]:  # fmt: skip
    """`generate` for a transformer, each position computed once.   S1 1.1.2 (kv-cache), S4 "KV caching"."""
    out, seen, cache = list(tokens), 0, ReferenceCache()
    for _ in range(n_new):
        logits, cache = transformer_step(architecture, weights, out[seen:], cache)
        seen = len(out)
        out.append(choose(logits[-1]))
        if out[-1] == eos:
            break
    return out


def cache_size(architecture: Architecture, n: int, bytes_per_number: int = 4) -> int:
    """2 n_layers n n_kv_heads d_head numbers, in bytes.   S1 1.1.2 and footnote 9 (why multi-query attention)."""
    a = architecture
    return 2 * a.n_layers * n * a.n_kv_heads * a.d_head * bytes_per_number
