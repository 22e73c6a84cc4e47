"""Probabilities, losses and gradients: S0 Introduction, S1 1.1, S3 slides 1, 2, 6, S4 "Machine Learning Solution"."""

import itertools
import math

import numpy as np
import pytest
import torch
from companions import NORMED, draw_ids
from hypothesis import given, settings

from pellucid.architecture import Architecture
from pellucid.reference import learning as L
from pellucid.reference.embedding import one_hot
from pellucid.reference.functions import ACTIVATION, layer_norm, log_softmax, softmax
from pellucid.reference.generation import greedy
from pellucid.reference.predictors import logistic_lm, ngram_counts, ngram_probability
from pellucid.reference.tape import Var, gradient
from pellucid.reference.transformer import encode, forward
from pellucid.reference.weights import flatten, random_weights, unflatten, weight_shapes
from running import any_architectures


def tiny(**changes):
    a = Architecture(n_vocab=4, n_ctx=6, d_model=4, n_layers=2).with_fields({"n_heads": 2, "d_ff": 5})
    return a.with_fields({name.replace("__", "."): value for name, value in changes.items()})


def distribution(a, w, bos=0):
    """The transformer as a map from sequences (without their first token) to Delta(V)."""
    return lambda tokens: softmax(forward(a, w, np.array([bos, *tokens])))[-1]


@pytest.mark.item("S0-0-b", "S4-emb-b")
def test_the_derivative_of_every_coordinate(rng):
    a = tiny(unembed="untied")
    w, tokens = random_weights(a, rng), rng.integers(0, 4, (2, 6))
    _, g = L.loss_and_gradient(a, w, tokens)
    assert list(g) == list(weight_shapes(a))
    shapes = weight_shapes(a)
    numerical = L.numerical_gradient(
        lambda t: L.next_token_loss(forward(a, unflatten(t, shapes), tokens), tokens), flatten(w)
    )
    assert np.abs(numerical - flatten(g)).max() <= 1e-6 * np.abs(numerical).max()


@pytest.mark.item("S0-0-b")
@settings(max_examples=40)
@given(any_architectures())
def test_the_derivative_along_a_line_for_every_word(a):
    rng = np.random.default_rng(1)
    w, tokens = random_weights(a, rng, 0.3), draw_ids(rng, a)
    source = tokens if a.encoder else None
    loss, g = L.loss_and_gradient(a, w, tokens, source=source)
    direction = {name: rng.normal(size=x.shape) for name, x in w.items()}

    def f(h):
        moved = {name: x + h * direction[name] for name, x in w.items()}
        encoded = encode(a, moved, tokens) if a.encoder else None
        return L.next_token_loss(forward(a, moved, tokens, source=encoded), tokens)

    slope = sum(float(np.sum(g[name] * direction[name])) for name in g)
    assert loss == pytest.approx(f(0.0), rel=1e-12)
    # a step may cross the corner of a relu or, for eps outside the root, meet its 1/eps: one of three steps does not
    errors = [abs((f(h) - f(-h)) / (2 * h) - slope) for h in (1e-5, 1e-6, 1e-7)]
    assert min(errors) <= 1e-5 * max(1, abs(slope))


@pytest.mark.parametrize("word", ACTIVATION)
def test_the_derivative_of_every_activation_is_torchs(word, same):
    x = np.linspace(-4, 4, 41)
    value, g = gradient(lambda v: np.sum(ACTIVATION[word](v["x"]) * x), {"x": x})
    theirs = {
        "gelu": torch.nn.functional.gelu, "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu": torch.relu, "relu2": lambda t: torch.relu(t) ** 2, "silu": torch.nn.functional.silu, "tanh": torch.tanh,
        "quick_gelu": lambda t: t * torch.sigmoid(1.702 * t),
    }  # fmt: skip
    t = torch.tensor(x, requires_grad=True)
    loss = (theirs[word](t) * torch.tensor(x)).sum()
    loss.backward()
    assert t.grad is not None
    same(value, loss.item())
    # at the corner of a relu any slope between 0 and 1 is one
    same(np.where(x == 0, 0, g["x"]), np.where(x == 0, 0, t.grad.numpy()))


def test_axes_without_entries_have_their_shape():
    v = {"x": np.ones((0, 3)), "y": np.ones((1, 3))}
    value, g = gradient(lambda w: np.sum(w["x"] * w["y"]) + np.sum(w["x"] - w["x"]), v)
    assert value == 0
    assert {name: x.shape for name, x in g.items()} == {"x": (0, 3), "y": (1, 3)}


def test_the_tape_refuses_what_it_cannot_differentiate():
    v = Var(np.ones(3))
    with pytest.raises(TypeError, match="DERIVATIVES"):
        np.sin(v)
    with pytest.raises(TypeError, match="last argument"):
        2.0**v
    with pytest.raises(TypeError, match="FUNCTIONS"):
        np.sort(v)
    with pytest.raises(TypeError, match="constant"):
        np.asarray(v)
    with pytest.raises(ValueError, match="one number"):
        gradient(lambda a: a["x"], {"x": np.ones(3)})


@pytest.mark.item("S4-emb-b")
def test_only_the_tokens_present_are_taught(rng):
    a = tiny(unembed="untied")
    w = random_weights(a, rng)
    _, g = L.loss_and_gradient(a, w, np.array([[0, 2, 2, 0, 2, 0]]))
    assert np.any(g["embed.token.weight"] != 0, axis=1).tolist() == [True, False, True, False]


@pytest.mark.item("S0-0-c")
def test_the_same_architecture_learns_under_two_optimisers(rng):
    a, tokens = tiny(), rng.integers(0, 4, (2, 6))
    start = random_weights(a, rng)
    before, _ = L.loss_and_gradient(a, start, tokens)
    w, state = start, None
    for step in range(1, 11):
        _, g = L.loss_and_gradient(a, w, tokens)
        w, state = L.adamw_step(w, g, state, step, lr=0.02)
    adam, _ = L.loss_and_gradient(a, w, tokens)
    w = start
    for _ in range(10):
        _, g = L.loss_and_gradient(a, w, tokens)
        clipped, length = L.clip_gradient(g, 1.0)
        assert flatten(clipped) @ flatten(clipped) <= min(1, length**2) + 1e-12
        w = {name: w[name] - 0.1 * clipped[name] for name in w}
    plain, _ = L.loss_and_gradient(a, w, tokens)
    assert max(adam, plain) < before - 0.1


@pytest.mark.item("S1-1.1-j", "S1-1.1-m", "S4-ml-d")
def test_the_chain_rule(rng, same):
    a = tiny()
    w, tokens = random_weights(a, rng), rng.integers(0, 4, 6)
    logits = forward(a, w, tokens)
    separate = sum(np.log(softmax(forward(a, w, tokens[:i]))[-1, tokens[i]]) for i in range(2, 6))
    same(L.sequence_log_probability(logits, tokens, 2), separate)
    total = 0.0
    for pair in itertools.product(range(4), repeat=2):
        text = np.array([*tokens[:3], *pair])
        total += np.exp(L.sequence_log_probability(forward(a, w, text), text, 3))
    same(total, 1.0)
    with pytest.raises(ValueError, match="first token"):
        L.sequence_log_probability(logits, tokens, 0)


@pytest.mark.item("S4-ml-d")
def test_the_probability_of_a_text_is_the_product(rng, same):
    """E-63: the printed P~ is the last factor only."""
    factors = [0.4, 0.2, 0.1430917, 0.7144]
    P = [np.array([p, 1 - p]) for p in factors]
    risk = L.empirical_risk(lambda prefix: P[len(prefix)], [[0, 0, 0, 0]])
    same(risk, -math.log(math.prod(factors)))
    assert math.exp(-risk) == pytest.approx(0.008177, abs=1e-6)
    documents = [[0, 1], [1], [0, 0, 1]]
    by_document = [-L.empirical_risk(lambda prefix: P[len(prefix)], [d]) for d in documents]
    same(L.empirical_risk(lambda prefix: P[len(prefix)], documents), -sum(by_document))


@pytest.mark.item("S3-1-b")
def test_a_token_sequence_is_a_tuple_of_tokens():
    """Any tuple of tokens is one, the empty one too, and is known by its rows; nothing else is."""
    for n in range(4):
        sequences = list(itertools.product(range(3), repeat=n))
        matrices = [one_hot(np.array(t, np.int64), 3) for t in sequences]
        assert {m.shape for m in matrices} == {(n, 3)}
        assert len({m.tobytes() for m in matrices}) == 3**n
        assert [tuple(m.argmax(1).tolist()) for m in matrices] == sequences
    for wrong in ([0, 3], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"0 \.\.\. 2|integers"):
            one_hot(np.array(wrong), 3)


@pytest.mark.item("S3-1-c")
def test_the_language_is_all_finite_sequences(rng):
    """The mass of the language is a sum over every sequence of every length, each once: (V^4 - 1) / (V - 1) up to 3."""
    a = tiny(n_layers=1)
    w, asked = random_weights(a, rng), []

    def next_token(tokens):
        asked.append(tokens)
        return distribution(a, w)(tokens)

    L.language_mass(next_token, None, 4, 3)
    every = [t for n in range(4) for t in itertools.product(range(4), repeat=n)]
    assert sorted(asked) == sorted(every)
    assert len(asked) == (4**4 - 1) // (4 - 1)
    # with an end token: the sequences of the other tokens
    asked.clear()
    L.language_mass(next_token, 3, 4, 3)
    assert sorted(asked) == sorted(t for t in every if 3 not in t)


@pytest.mark.item("S3-1-d", "S3-2-a", "S3-2-d")
def test_an_end_token_makes_a_distribution_on_the_language(rng):
    """E-55: without one every length has mass 1 and no distribution on all lengths exists."""
    a = tiny(n_layers=1, n_ctx=8)
    w = random_weights(a, rng)
    p = distribution(a, w)
    assert p(()).shape == (4,)
    assert p(()).sum() == pytest.approx(1)
    np.testing.assert_allclose(L.language_mass(p, None, 4, 3), [1, 1, 1, 1], atol=1e-12)
    ended = L.language_mass(p, 3, 4, 5)
    # the mass still ahead shrinks at least by the smallest end probability at every step
    assert 0 < sum(ended) < 1
    simple = L.language_mass(lambda t: np.array([0.3, 0.7]), 1, 2, 60)
    assert sum(simple) == pytest.approx(1, abs=1e-12)
    assert simple[:2] == [0.7, pytest.approx(0.21)]


@pytest.mark.item("S3-2-d")
def test_a_final_norm_bounds_every_probability_from_below(rng):
    a = tiny()
    w = random_weights(a, rng)
    gain, bias = w["final_norm.gain"], w["final_norm.bias"]
    longest = np.sqrt(4) * np.abs(gain).max() + np.linalg.norm(bias)
    rows = layer_norm(rng.normal(size=(200, 4)) * 10.0 ** rng.uniform(-3, 3, (200, 1)), gain, bias)
    assert np.linalg.norm(rows, axis=1).max() <= longest
    norms = np.linalg.norm(w["embed.token.weight"], axis=1)
    bound = np.exp(-longest * (norms[3] + norms)).min() / 4
    for _ in range(50):
        assert softmax(forward(a, w, rng.integers(0, 4, 6)))[:, 3].min() >= bound


@pytest.mark.item("S3-2-c")
def test_the_next_token_is_a_missing_token_at_the_end(rng, same):
    a = tiny(attention__mask="bidirectional")
    w = random_weights(a, rng)

    def masked(tokens):
        return softmax(forward(a, w, np.array(tokens)))

    p = L.as_next_token(masked, 3)
    assert p((0, 1)).sum() == pytest.approx(1)
    same(p((0, 1)), masked([0, 1, 3])[2])


@pytest.mark.item("S3-6-c", "S3-2-b")
def test_the_shift_belongs_to_the_objective():
    """The same logits under two alignments: an oracle that copies its input, 50 nats ahead of every other token."""
    tokens = np.array([[0, 1, 2, 3, 0, 1]])
    logits = 50.0 * (tokens[..., None] == np.arange(4))
    everywhere = np.ones(tokens.shape, bool)
    assert L.masked_lm_loss(logits, tokens, everywhere) == pytest.approx(0, abs=1e-12)
    assert L.next_token_loss(logits, tokens) == pytest.approx(50)
    selected = np.array([[False, True, False, False, False, False]])
    broken = logits.copy()
    broken[0, 3] = 0
    assert L.masked_lm_loss(broken, tokens, selected) == pytest.approx(0, abs=1e-12)
    assert L.masked_lm_loss(broken, tokens, everywhere) > 0.1


@pytest.mark.item("S4-op-a", "S4-op-b", "S4-learn-a")
def test_one_pass_is_all_the_subtasks(rng, same):
    a = tiny()
    w, tokens = random_weights(a, rng), rng.integers(0, 4, 6)
    examples = L.next_token_examples(tokens.tolist(), prompt=3)
    assert [len(prefix) for prefix, _ in examples] == [3, 4, 5]
    separate = sum(L.log_loss(softmax(forward(a, w, np.array(prefix)))[-1], v) for prefix, v in examples)
    counted = np.arange(1, 6) >= 3
    same(3 * L.next_token_loss(forward(a, w, tokens), tokens, counted), separate)


@pytest.mark.item("S4-ml-a", "S0-4.3-b", "S0-4.3-c")
@settings(max_examples=40)
@given(any_architectures(NORMED))
def test_predictions_are_distributions(a):
    rng = np.random.default_rng(0)
    w, tokens = random_weights(a, rng), draw_ids(rng, a)
    logits = forward(a, w, tokens, source=encode(a, w, tokens) if a.encoder else None)
    P = L.next_token_probabilities(logits)
    assert P.shape == logits.shape == (2, a.n_ctx, a.n_vocab)
    assert np.all(P > 0)
    assert np.abs(P.sum(-1) - 1).max() <= 1e-13
    # odds are exponentials of differences of logits
    odds = np.exp(logits - logits[..., :1])
    assert np.allclose(P / P[..., :1], odds, rtol=1e-10, atol=0)
    # what comes after the text is what the last row says
    assert np.array_equal(L.next_token_logits(logits[0]), logits[0, a.n_ctx - 1])


@pytest.mark.item("S4-ml-b", "S4-ml-c")
def test_the_log_loss(rng, same):
    assert L.log_loss(np.array([0.25, 0.75]), 0) == pytest.approx(1.3862943611, abs=1e-10)
    logits, targets = rng.normal(size=(2, 5, 7)), rng.integers(0, 7, (2, 5))
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(logits[:, :-1].reshape(-1, 7)), torch.tensor(targets[:, 1:].ravel())
    )
    same(L.next_token_loss(logits, targets), theirs.item())
    P = np.array([0.5, 0.25, 0.25])
    assert L.empirical_risk(lambda _: P, [[0, 1], [2]], "mean") == pytest.approx(5 / 3 * math.log(2))
    assert L.bits(L.empirical_risk(lambda _: P, [[0, 1], [2]])) == pytest.approx(5)
    assert L.perplexity(math.log(7.5)) == pytest.approx(7.5)
    assert L.bits_per_byte(8 * math.log(2), 4) == pytest.approx(2)
    with pytest.raises(ValueError, match="sum or mean"):
        L.empirical_risk(lambda _: P, [[0]], "median")


@pytest.mark.item("S4-ml-e", "S4-ml-f", "S4-par-a")
def test_the_best_table_is_the_empirical_one(rng):
    """Logistic regression on the last token, trained to the end, is the table of bigram frequencies."""
    text = [0, 1, 0, 2, 1, 1, 2, 0, 0, 2, 2, 1, 0, 1, 2, 0, 1]
    counts = ngram_counts([text], 2)
    table = np.array([[float(ngram_probability(counts, (i,), j) or 0) for j in range(3)] for i in range(3)])
    contexts, targets = np.array(text[:-1])[:, None], np.array(text[1:])

    def loss(v):
        return -np.mean(logistic_lm(contexts, v["W"], v["b"])[np.arange(len(targets)), targets])

    w = {"W": np.zeros((1, 3, 3)), "b": np.zeros(3)}
    for _ in range(1500):
        _, g = gradient(loss, w)
        w = {name: w[name] - 3.0 * g[name] for name in w}
    found = np.exp(logistic_lm(np.arange(3)[:, None], w["W"], w["b"]))
    assert np.abs(found - table).max() < 1e-6
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    # a proper score: no other table is better
    best = loss({"W": np.log(table)[None], "b": np.zeros(3)})
    assert loss(w) == pytest.approx(best, abs=1e-9)
    for _ in range(500):
        other = np.log(table) + rng.normal(size=(3, 3)) * 10.0 ** rng.uniform(-3, 1)
        assert loss({"W": other[None], "b": np.zeros(3)}) >= best


@pytest.mark.item("S4-acc-a")
def test_accuracy_and_loss_disagree():
    surer = [np.array([0.51, 0.49]), np.array([0.51, 0.49]), np.array([0.01, 0.99])]
    closer = [np.array([0.49, 0.51])] * 3

    def measure(predictions):
        loss = np.mean([L.log_loss(p, 0) for p in predictions])
        return loss, 1 - np.mean([L.zero_one_loss(greedy(p), 0) for p in predictions])

    assert measure(surer) == (pytest.approx(1.984, abs=5e-4), pytest.approx(2 / 3))
    assert measure(closer) == (pytest.approx(0.713, abs=5e-4), 0)


@pytest.mark.item("S4-alt-b")
def test_the_zero_one_loss_has_no_slope(rng):
    logits, target = rng.normal(size=5), 2
    moved = logits + 1e-9 * rng.normal(size=5)
    assert L.zero_one_loss(greedy(logits), target) == L.zero_one_loss(greedy(moved), target)
    assert log_softmax(logits)[target] != log_softmax(moved)[target]


@pytest.mark.item("S4-adv-d")
def test_independent_errors_add_up():
    """E-74: (1 - eps)^m, an assumption about errors rather than a fact about models."""
    assert pytest.approx(0.366, abs=5e-4) == 0.99**100
    rng = np.random.default_rng(0)
    right = np.mean(np.all(rng.random((100_000, 20)) < 0.95, axis=1))
    assert right == pytest.approx(0.95**20, abs=0.005)
    constant = L.language_mass(lambda t: np.array([0.95, 0.05]), 1, 2, 20)
    assert 1 - sum(constant[:20]) == pytest.approx(0.95**20)
