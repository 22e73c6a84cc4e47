"""The predictors before the transformer: counts, and small parametrised models of the next token."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import log2

import numpy as np

from pellucid.reference.functions import log_softmax
from pellucid.reference.tape import Array, real

Counts = Mapping[tuple, Counter]


# Counting -----------------------------------------------------------------------------------------


def ngram_counts(documents: Iterable[Sequence[Hashable]], n: int | None = None) -> dict[tuple, Counter]:
    """#(prefix v) for every prefix of at most n - 1 symbols (any length if n is None) and every symbol v

    S4 "Empirical Next-Token Predictor", occurrences as substrings: erratum E-64. The key None of each counter holds
    how often the prefix ends a document.
    """
    counts: dict[tuple, Counter] = {}
    for document in documents:
        symbols = tuple(document)
        longest = len(symbols) if n is None else n - 1
        for end in range(len(symbols) + 1):
            following = symbols[end] if end < len(symbols) else None
            for start in range(max(0, end - longest), end + 1):
                counts.setdefault(symbols[start:end], Counter())[following] += 1
    return counts


def ngram_probability(
    counts: Counts, prefix: Sequence[Hashable], v: Hashable, denominator: str = "continued"
) -> Fraction | None:
    """#(prefix v) / sum_u #(prefix u), exactly; None where the prefix was never continued

    S4 "Empirical Next-Token Predictor" and its "Challenges": undefined for an unseen prefix, never a silent uniform.
    denominator all divides by every occurrence of the prefix, as printed; rows then miss the ends. Erratum E-64.
    """
    if denominator not in ("continued", "all"):
        raise ValueError(f"denominator = {denominator!r}: expected continued or all")
    followers = counts.get(tuple(prefix), Counter())
    total = sum(c for symbol, c in followers.items() if symbol is not None or denominator == "all")
    return Fraction(followers[v], total) if total else None


def shannon_approximation(symbols: Sequence[str], order: int, length: int, rng: np.random.Generator) -> list[str]:
    """A sample whose runs of `order` symbols have the frequencies they have in the text; order 0 is uniform

    S4 "The Series of Approximations to English" (Shannon 1948), where the symbols are letters or words. The end of the
    text is joined to its beginning, so that every context has a continuation.
    """
    alphabet = sorted(set(symbols))
    if order == 0:
        return [alphabet[k] for k in rng.integers(len(alphabet), size=length)]
    circle = [*symbols, *symbols[: order - 1]]
    followers: dict[tuple, list[str]] = {}
    for k in range(len(symbols)):
        followers.setdefault(tuple(circle[k : k + order - 1]), []).append(circle[k + order - 1])
    start = int(rng.integers(len(symbols)))
    out = circle[start : start + order - 1]
    draws = rng.random(length)
    while len(out) < length:
        options = followers[tuple(out[len(out) - order + 1 :])]
        out.append(options[int(draws[len(out)] * len(options))])
    return out[:length]


def conditional_entropies(symbols: Sequence[Hashable], orders: int, n_symbols: int | None = None) -> list[float]:
    """F_0 = log2 of the alphabet's size, F_N = H(N symbols) - H(N - 1 symbols), in bits   -> [F_0 ... F_orders]

    S4 "Empirical Next-Token Predictor" (Shannon 1948, 1951): the uncertainty of a symbol given the N - 1 before it.
    """
    n_symbols = len(set(symbols)) if n_symbols is None else n_symbols

    def block_entropy(n: int) -> float:
        counts = Counter(zip(*(symbols[k : len(symbols) - n + 1 + k] for k in range(n)), strict=True)) if n else {}
        total = sum(counts.values())
        return -sum(c / total * log2(c / total) for c in counts.values())

    blocks = [block_entropy(n) for n in range(orders + 1)]
    return [log2(n_symbols), *(b - a for a, b in pairwise(blocks))]


# Parametrised -------------------------------------------------------------------------------------


def logistic_lm(context: np.ndarray, W: Array, b: Array) -> Array:
    """log softmax(b + sum_k W_k[t_{-k}]): logistic regression on the one-hot tokens of a context

    S4 "How to Parametrize P?". context [..., c], W [c, n_vocab, n_vocab] (position, token, next), b [n_vocab]
    -> log-probabilities [..., n_vocab].
    """
    context, W = np.asarray(context), real(W)
    return log_softmax(sum((W[k][context[..., k]] for k in range(context.shape[-1])), real(b)))


def recurrent_lm(tokens: Sequence[int], C: Array, W: Array, U: Array, b: Array, V: Array, c: Array) -> Array:
    """h_i = tanh(C[t_i] U^T + h_{i-1} W^T + b), h_{-1} = 0; log softmax(h_i V^T + c)

    S4 "How to Parametrize P?" (RNN; Elman 1990). tokens [n], C [n_vocab, m], W [h, h], U [h, m], b [h],
    V [n_vocab, h], c [n_vocab] -> log-probabilities of the next token [n, n_vocab].
    """
    C, W, U, V = real(C), real(W), real(U), real(V)
    h, states = np.zeros(W.shape[0]), []
    for t in tokens:
        h = np.tanh(U @ C[int(t)] + W @ h + b)
        states.append(h)
    return log_softmax(np.stack(states) @ V.T + c)


def neural_probabilistic_lm(
    context: np.ndarray, C: Array, H: Array, d: Array, U: Array, b: Array, W: Array | None = None
) -> Array:
    """log softmax(y), y = b + W x + U tanh(d + H x), x = (C(w_{t-1}), ..., C(w_{t-n+1}))

    S4 "Distributed Representations for Language Modeling"; Bengio et al. 2000, 2003; erratum E-79. context
    [..., n - 1], nearest word first; C [n_vocab, m], H [h, (n-1)m], d [h], U [n_vocab, h], b [n_vocab],
    W [n_vocab, (n-1)m] or None for no direct connections -> [..., n_vocab].
    """
    x = real(C)[np.asarray(context)]
    x = np.reshape(x, (*x.shape[:-2], -1))
    y = np.tanh(x @ real(H).T + d) @ real(U).T + b
    return log_softmax(y if W is None else y + x @ real(W).T)
