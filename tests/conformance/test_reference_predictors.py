"""Counting, and the predictors before the transformer: S4 "Empirical Next-Token Predictor" to "Embeddings"."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from pellucid.reference import predictors as P
from pellucid.reference.feedforward import network, network_preactivations
from pellucid.reference.functions import log_softmax, softmax, tanh
from pellucid.reference.tape import gradient

DOCUMENTS = ["abab", "abba"]


def letters(text):
    """Twenty-six letters and the space, as Shannon counted."""
    return " ".join("".join(c if "a" <= c <= "z" else " " for c in text.lower()).split())


@pytest.mark.item("S4-emp-a")
def test_the_empirical_predictor_by_hand():
    """E-64: as printed the rows miss the prefixes that end a document."""
    counts = P.ngram_counts(DOCUMENTS)
    assert P.ngram_probability(counts, "a", "b") == 1
    assert P.ngram_probability(counts, "ab", "a") == Fraction(1, 2)
    assert P.ngram_probability(counts, "b", "a") == Fraction(2, 3)
    assert P.ngram_probability(counts, "b", "b") == Fraction(1, 3)
    for prefix, expected in (("a", Fraction(3, 4)), ("ab", Fraction(2, 3))):
        assert sum(P.ngram_probability(counts, prefix, v) for v in "ab") == 1
        assert sum(P.ngram_probability(counts, prefix, v, "all") for v in "ab") == expected
    assert P.ngram_counts(DOCUMENTS, 2)[()] == Counter({"a": 4, "b": 4, None: 2})
    assert set(P.ngram_counts(DOCUMENTS, 2)) == {(), ("a",), ("b",)}
    with pytest.raises(ValueError, match="continued or all"):
        P.ngram_probability(counts, "a", "b", "some")


@pytest.mark.item("S4-emp-c", "S4-emp-d")
def test_an_unseen_prefix_has_no_prediction(shakespeare):
    counts = P.ngram_counts(DOCUMENTS)
    assert P.ngram_probability(counts, "bbb", "a") is None
    words = shakespeare.split()
    held_out, seen = words[-2000:], P.ngram_counts([words[:-2000]], 6)
    unseen = [np.mean([tuple(held_out[i - n : i]) not in seen for i in range(n, len(held_out))]) for n in range(1, 6)]
    assert unseen == sorted(unseen)
    assert unseen[0] < 0.35
    assert unseen[4] > 0.98
    # one word replaced by another of the vocabulary: undefined here, finite for a parametrised model
    known = tuple(words[100:105])
    assert known in seen
    assert P.ngram_probability(seen, (*known[:2], "citizens", *known[3:]), words[105]) is None


@pytest.mark.item("S4-emp-b")
def test_the_series_of_approximations(shakespeare):
    """Order k has the k-gram frequencies of the text and not those of k + 1."""
    text = letters(shakespeare[:40_000])

    def distance(a, b, n):
        f, g = (Counter(zip(*(x[k:] for k in range(n)), strict=False)) for x in (a, b))
        return 0.5 * sum(abs(f[s] / (len(a) - n + 1) - g[s] / (len(b) - n + 1)) for s in {*f, *g})

    for order in (0, 1, 2, 3):
        sample = P.shannon_approximation(text, order, 120_000, np.random.default_rng(order))
        assert len(sample) == 120_000
        if order:
            assert distance(sample, text, order) < 0.06
        assert distance(sample, text, order + 1) > 2 * (distance(sample, text, order) if order else 0.05)
    words = text.split()
    assert set(P.shannon_approximation(words, 2, 500, np.random.default_rng(0))) <= set(words)
    assert P.shannon_approximation(text, 3, 50, np.random.default_rng(1)) == P.shannon_approximation(
        text, 3, 50, np.random.default_rng(1)
    )


@pytest.mark.item("S4-emp-b")
def test_entropies_by_hand():
    """aabb: of four letters two each; of three pairs one each."""
    F = P.conditional_entropies("aabb", 2, n_symbols=4)
    assert pytest.approx([2, 1, np.log2(3) - 1]) == F
    assert P.conditional_entropies("ab", 2) == [1, 1, -1]
    assert P.conditional_entropies("aaaa", 3, n_symbols=2) == [1, 0, 0, 0]


@pytest.mark.item("S4-emp-b")
def test_shannons_entropies(shakespeare):
    text = letters(shakespeare)
    F = P.conditional_entropies(text, 3)
    assert F[0] == pytest.approx(4.755, abs=1e-3)
    assert sorted(F, reverse=True) == F
    assert F[1] == pytest.approx(4.03, abs=0.1)
    assert F[2] == pytest.approx(3.32, abs=0.25)
    assert F[3] < 3.1  # a text of 100 kB makes F_3 too small
    alphabet = Counter(text.replace(" ", ""))
    assert 0.11 < alphabet["e"] / alphabet.total() < 0.135
    assert 0.015 < alphabet["w"] / alphabet.total() < 0.027


@pytest.mark.item("S4-emp-a")
def test_bigrams_of_the_names(needs_data):
    """A known teaching number: the loss of the bigram table on the names it was counted on."""
    names = (needs_data / "names.txt").read_text(encoding="utf-8").split()
    counts = P.ngram_counts([f".{name}." for name in names], 2)
    pairs = {(a, b): c for (a,), row in ((k, r) for k, r in counts.items() if k) for b, c in row.items() if b}
    total = sum(pairs.values())
    assert total == 228_146
    loss = -sum(c * np.log(float(P.ngram_probability(counts, (a,), b) or 0)) for (a, b), c in pairs.items()) / total
    assert loss == pytest.approx(2.454014489154874, rel=1e-12)


@pytest.mark.item("S4-emb-e", "S4-alt-a")
def test_the_neural_probabilistic_model(rng, same):
    n_vocab, m, h, n = 7, 3, 4, 3
    C, H, d = rng.normal(size=(n_vocab, m)), rng.normal(size=(h, (n - 1) * m)), rng.normal(size=h)
    U, b, W = rng.normal(size=(n_vocab, h)), rng.normal(size=n_vocab), rng.normal(size=(n_vocab, (n - 1) * m))
    context = np.array([[2, 5], [0, 0]])
    logp = P.neural_probabilistic_lm(context, C, H, d, U, b, W)
    same(np.exp(logp).sum(-1), [1, 1])
    x = np.concatenate([C[2], C[5]])
    same(logp[0], log_softmax(b + W @ x + U @ np.tanh(d + H @ x)))
    assert sum(z.size for z in (C, H, d, U, b, W)) == n_vocab * (1 + n * m + h) + h * (1 + (n - 1) * m)
    same(P.neural_probabilistic_lm(context, C, H, d, U, b), P.neural_probabilistic_lm(context, C, H, d, U, b, 0 * W))
    # the same as a network on a graph whose edges skip the hidden layer (S0 2.1)
    inputs, hidden, outputs = [("x", k) for k in range(6)], [("h", k) for k in range(h)], [("y", k) for k in range(7)]
    weights = {(i, o): H[o[1], i[1]] for i in inputs for o in hidden}
    weights |= {(i, o): U[o[1], i[1]] for i in hidden for o in outputs}
    weights |= {(i, o): W[o[1], i[1]] for i in inputs for o in outputs}
    biases = {v: d[v[1]] for v in hidden} | {v: b[v[1]] for v in outputs}
    z = network_preactivations(network([*inputs, *hidden, *outputs], list(weights), tanh), weights, biases, x)
    same(log_softmax(np.array([z[v] for v in outputs])), logp[0])


@pytest.mark.item("S4-par-a")
def test_any_parametrisation_gives_distributions(rng, same):
    n_vocab, m, h = 5, 3, 4
    C, W, U = rng.normal(size=(n_vocab, m)), rng.normal(size=(h, h)), rng.normal(size=(h, m))
    b, V, c = rng.normal(size=h), rng.normal(size=(n_vocab, h)), rng.normal(size=n_vocab)
    tokens = [1, 4, 0, 4]
    logp = P.recurrent_lm(tokens, C, W, U, b, V, c)
    same(np.exp(logp).sum(-1), np.ones(4))
    h_1 = np.tanh(U @ C[1] + b)
    same(logp[1], log_softmax(V @ np.tanh(U @ C[4] + W @ h_1 + b) + c))
    assert np.array_equal(P.recurrent_lm(tokens[:2], C, W, U, b, V, c), logp[:2])
    table = rng.normal(size=(2, n_vocab, n_vocab))
    same(P.logistic_lm(np.array([1, 4]), table, c), log_softmax(c + table[0, 1] + table[1, 4]))

    def loss(v):
        return -np.sum(P.recurrent_lm(tokens, v["C"], v["W"], U, b, V, c)[np.arange(3), tokens[1:]])

    _, g = gradient(loss, {"C": C, "W": W})
    step = 1e-6
    moved = {"C": C, "W": W.copy()}
    moved["W"][1, 2] += step
    assert (loss(moved) - loss({"C": C, "W": W})) / step == pytest.approx(g["W"][1, 2], rel=1e-4)


@pytest.mark.item("S4-par-b")
def test_an_embedding_pools_what_counts_keep_apart():
    """Two tokens with one embedding have one prediction, also where only one of them was ever seen."""
    C = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    rng = np.random.default_rng(0)
    H, d, U, b = rng.normal(size=(4, 2)), rng.normal(size=4), rng.normal(size=(3, 4)), rng.normal(size=3)
    logp = P.neural_probabilistic_lm(np.array([[0], [1], [2]]), C, H, d, U, b)
    assert np.array_equal(logp[0], logp[1])
    assert not np.array_equal(logp[0], logp[2])
    assert P.ngram_probability(P.ngram_counts([[0, 2, 0, 2]], 2), (1,), 2) is None
    assert np.all(softmax(logp) > 0)
