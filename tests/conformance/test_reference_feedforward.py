"""Networks on graphs, multi-layer perceptrons, memories: S0 section 2, S2 "MLP Layer", S3 slide 10, S4 "MLP layers"."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.architecture import Architecture
from pellucid.parameter_counts import count_parameters
from pellucid.reference import feedforward as F
from pellucid.reference.attention import attention_head_at, multi_head_concat
from pellucid.reference.functions import ACTIVATION, relu, tanh
from pellucid.reference.images import embed_patches, patchify, unpatchify, vision_parameters
from pellucid.reference.layers import mlp as mlp_of_block
from pellucid.reference.tap import OFF

HAND = F.network(["x1", "x2", "h", "o"], [("x1", "h"), ("x2", "h"), ("h", "o"), ("x1", "o")], relu)
WEIGHTS = {("x1", "h"): 2.0, ("x2", "h"): -3.0, ("h", "o"): 4.0, ("x1", "o"): -1.0}
BIASES = {"h": 1.0, "o": 0.5}


def draw_mlp(rng, widths):
    weights = [rng.normal(size=(n, m)) for m, n in pairwise(widths)]
    return weights, [rng.normal(size=n) for n in widths[1:]]


@pytest.mark.item("S0-2.1-a", "S0-2.1-b")
def test_a_network_is_a_directed_acyclic_graph():
    assert HAND.inputs == ("x1", "x2")
    assert HAND.hidden == ("h",)
    assert HAND.outputs == ("o",)
    with pytest.raises(ValueError, match="cycle"):
        F.network("abc", [("a", "b"), ("b", "c"), ("c", "b")], relu)
    with pytest.raises(ValueError, match="no edge"):
        F.network("abc", [("a", "b")], relu)
    with pytest.raises(ValueError, match="twice"):
        F.network("ab", [("a", "b"), ("a", "b")], relu)
    with pytest.raises(ValueError, match="vertex 'c'"):
        F.network("abcd", [("a", "b")], relu)
    with pytest.raises(ValueError, match="expected one for each"):
        F.network("abcd", [("a", "b"), ("b", "c"), ("c", "d")], {"b": relu})
    # E-03: outputs have no activation function
    with pytest.raises(ValueError, match="activations"):
        F.network("abc", [("a", "b"), ("b", "c")], {"b": relu, "c": relu})


@pytest.mark.item("S0-2.1-c", "S0-2.1-d")
def test_the_hand_example_with_a_skip_edge():
    assert F.network_apply(HAND, WEIGHTS, BIASES, [1, 0.5]).tolist() == [5.5]
    assert F.network_apply(HAND, WEIGHTS, BIASES, [0, 2]).tolist() == [0.5]
    # E-02: the input's activation is the input
    literal = F.network("io", [("i", "o")], relu)
    assert F.network_apply(literal, {("i", "o"): 1.0}, {"o": 0.0}, [-1]).tolist() == [-1]


@pytest.mark.item("S0-2.1-e")
def test_the_dimension_of_the_parameter_space():
    assert HAND.n_parameters == 4 + 2
    assert F.layered_network([3, 5, 2], tanh).n_parameters == 3 * 5 + 5 * 2 + 5 + 2


@pytest.mark.item("S0-2.1-f")
def test_any_topological_order_gives_the_same_value(same):
    chance = random.Random(0)
    for _ in range(100):
        n = chance.randint(3, 7)
        edges = [(i, j) for j in range(n) for i in range(j) if chance.random() < 0.5]
        edges += [(i, i + 1) for i in range(n - 1) if (i, i + 1) not in edges]
        net = F.network(range(n), edges, tanh)
        weights, biases = {e: chance.gauss(0, 1) for e in edges}, {v: chance.gauss(0, 1) for v in range(n)}
        x = [chance.gauss(0, 1) for _ in net.inputs]
        expected = F.network_apply(net, weights, biases, x)
        for _ in range(5):
            order = F.topological_order(net, chance.choice)
            z = F.network_preactivations(net, weights, biases, x, order)
            same([z[v] for v in net.outputs], expected)


@pytest.mark.item("S0-2.2-a", "S0-2.2-b", "S0-2.2-c", "S0-2.2-e")
def test_layers_and_graph_compute_the_same(rng, same):
    weights, biases = draw_mlp(rng, [3, 5, 4, 2])
    net = F.layered_network([3, 5, 4, 2], tanh)
    assert len(net.edges) == 3 * 5 + 5 * 4 + 4 * 2
    w, b = F.layered_parameters(weights, biases)
    assert w[(0, 2), (1, 4)] == weights[0][4, 2]  # E-07: the edge is (tail, head)
    assert set(w) == set(net.edges)
    shuffled = F.network(net.vertices, random.Random(1).sample(net.edges, len(net.edges)), tanh)
    x = rng.normal(size=3)
    same(F.network_apply(shuffled, w, b, x), F.mlp(x, weights, biases, tanh))
    z = F.network_preactivations(net, w, b, x)
    same([z[3, i] for i in range(2)], F.mlp(x, weights, biases, tanh))


@pytest.mark.item("S0-2.2-d")
def test_depth_one_is_affine(rng, same):
    """E-02: the printed (2.5) at l = 0 would not be."""
    weights, biases = draw_mlp(rng, [3, 2])
    x, y = rng.normal(size=(2, 3))

    def m(x):
        return F.mlp(x, weights, biases, relu)

    same(m(x + y) - m(x) - m(y) + m(0 * x), np.zeros(2))
    assert F.mlp(np.array([-1.0]), [np.eye(1)], [np.zeros(1)], relu).tolist() == [-1]


@pytest.mark.item("S0-2.2-f")
def test_a_final_activation_is_a_composition(rng):
    weights, biases = draw_mlp(rng, [3, 4, 2])
    x = rng.normal(size=3)
    last = F.mlp(x, [*weights, np.eye(2)], [*biases, np.zeros(2)], tanh)
    assert np.array_equal(last, tanh(F.mlp(x, weights, biases, tanh)))


@pytest.mark.item("S0-2.2-g")
@pytest.mark.parametrize("activation", [tanh, relu])
def test_biases_are_weights_from_a_constant(activation, rng, same):
    weights, biases = draw_mlp(rng, [3, 5, 4, 2])
    X = rng.normal(size=(6, 3))
    expected = F.mlp(X, weights, biases, activation)
    same(F.mlp_with_ones(X, F.absorb_biases(weights, biases), activation), expected)
    carried = F.propagate_one(weights, biases, activation)
    assert [W.shape for W in carried] == [(6, 4), (5, 6), (2, 5)]
    same(F.mlp(np.column_stack([X, np.ones(6)]), carried, [None] * 3, activation), expected)
    if activation is tanh:
        same(carried[1][:4, -1], biases[1] / np.tanh(1))
    with pytest.raises(ValueError, match="the constant neuron would stay at 0"):
        F.propagate_one(weights, biases, relu, w=-1.0)


@pytest.mark.item("S0-2.3-a", "S2-3-a", "S1-1.1-f", "S0-3-a")
def test_a_feedforward_layer_acts_on_each_row_by_itself(rng, same):
    weights, biases = draw_mlp(rng, [4, 8, 4])

    def m(x):
        return F.mlp(x, weights, biases, tanh)

    X = rng.normal(size=(5, 4))
    changed = X.copy()
    changed[2] += 1
    before, after = F.feedforward_layer(X, m), F.feedforward_layer(changed, m)
    assert np.array_equal(np.any(before != after, axis=1), [False, False, True, False, False])
    same(before, np.stack([x + m(x) for x in X]))


@pytest.mark.item("S0-2.3-b", "S3-9-a", "S4-mlp-a")
def test_one_hidden_layer_is_the_usual_case(rng, same):
    (W_in, W_out), (b_in, b_out) = draw_mlp(rng, [4, 6, 4])
    X = rng.normal(size=(5, 4))
    expected = tanh(X @ W_in.T + b_in) @ W_out.T + b_out
    same(F.mlp(X, [W_in, W_out], [b_in, b_out], tanh), expected)
    for n_hidden in (0, 1, 2):
        a = Architecture(n_vocab=3, n_ctx=5, d_model=4, n_layers=1).with_fields(
            {"mlp.n_hidden": n_hidden, "mlp.d_ff": 6, "mlp.activation": "tanh", "n_heads": 1}
        )
        widths = [4] + [6] * n_hidden + [4]
        weights, biases = draw_mlp(rng, widths)
        names = [f"mlp.up.{n}" for n in range(n_hidden)] + ["mlp.down"]
        w = {f"{name}.weight": W for name, W in zip(names, weights, strict=True)}
        w |= {f"{name}.bias": b for name, b in zip(names, biases, strict=True)}
        same(mlp_of_block(a, w, X[None], OFF)[0], F.mlp(X, weights, biases, tanh))


@pytest.mark.item("S3-9-a")
def test_a_hidden_bias_outside_the_activation_moves_no_threshold(rng, same):
    """E-52: the printed form collapses into the output bias; |x - 1| shows what it cannot do."""
    (W_in, W_out), (b_in, b_out) = draw_mlp(rng, [4, 6, 4])
    X = rng.normal(size=(5, 4))
    literal = (relu(X @ W_in.T) + b_in) @ W_out.T + b_out
    same(literal, relu(X @ W_in.T) @ W_out.T + (W_out @ b_in + b_out))
    x = np.linspace(-3, 3, 601)[:, None]
    two = F.mlp(x, [np.array([[1.0], [-1.0]]), np.ones((1, 2))], [np.array([-1.0, 1.0]), np.zeros(1)], relu)
    same(two[:, 0], np.abs(x[:, 0] - 1))
    # the literal family on the line is span{relu(x), relu(-x), 1}; its least-squares fit stays far away
    family = np.column_stack([relu(x), relu(-x), np.ones_like(x)])
    fit = family @ np.linalg.lstsq(family, np.abs(x - 1), rcond=None)[0]
    assert np.abs(fit - np.abs(x - 1)).max() > 0.8


@pytest.mark.item("S3-9-b")
def test_activations_equal_torchs(same):
    x = np.linspace(-6, 6, 241)
    t = torch.tensor(x)
    functional = torch.nn.functional
    theirs = {
        "gelu": functional.gelu(t),
        "gelu_tanh": functional.gelu(t, approximate="tanh"),
        "relu": functional.relu(t),
        "relu2": functional.relu(t) ** 2,
        "silu": functional.silu(t),
        "quick_gelu": t / (1 + torch.exp(-1.702 * t)),
        "tanh": torch.tanh(t),
    }
    assert set(theirs) == set(ACTIVATION)
    for word, expected in theirs.items():
        same(ACTIVATION[word](x), expected.numpy())
    difference = np.abs(ACTIVATION["gelu"](x) - ACTIVATION["gelu_tanh"](x)).max()
    assert 3e-4 < difference < 6e-4
    assert ACTIVATION["gelu"](0.0) == 0.0


@pytest.mark.item("S4-mlp-b")
def test_the_inner_width_is_four_times_the_outer_unless_said_otherwise():
    """E-56: S3 says about twice, S4 four times; it is free."""
    a = Architecture(n_vocab=3, n_ctx=5, d_model=8, n_layers=1)
    assert a.d_ff == 32
    assert count_parameters(a)["mlp"] == 2 * 4 * 8 * 8 + 5 * 8
    assert a.with_fields({"d_ff": 16}).d_ff == 16


@pytest.mark.item("S4-mlp-c")
def test_a_neural_memory_is_attention_over_fixed_pairs(rng, same):
    K, V, e = rng.normal(size=(4, 6)), rng.normal(size=(4, 6)), rng.normal(size=(3, 4))
    # six positions that hold the pairs (k_i, v_i); the key and value matrices take each apart
    pairs, one, none = np.hstack([K.T, V.T]), np.eye(4), np.zeros((4, 4))
    W_K, W_V = np.hstack([one, none])[None], np.hstack([none, one])[None]
    same(F.neural_memory(e, K, V), multi_head_concat(e, one[None], W_K, W_V, one, Z=pairs))
    # one query, written out in sums: e reads its six pairs, with itself left out
    rows = np.vstack([pairs, [*e[0], *np.zeros(4)]])
    at = attention_head_at(6, rows, W_K[0], W_K[0], W_V[0], lambda _, j: j < 6, 1.0)
    same(F.neural_memory(e[0], K, V), at)


@pytest.mark.item("S4-mlp-f")
def test_a_memory_keeps_its_pairs_and_attention_makes_them_anew(rng, same):
    K, V, e = rng.normal(size=(4, 6)), rng.normal(size=(4, 6)), rng.normal(size=(3, 4))
    other = np.vstack([e[:1], rng.normal(size=(2, 4))])
    # a memory acts on each row by itself: the others may change
    same(F.neural_memory(other, K, V)[0], F.neural_memory(e, K, V)[0])
    heads = [rng.normal(size=(1, 2, 4)) for _ in range(3)]
    W_O = rng.normal(size=(4, 2))
    assert np.abs(multi_head_concat(other, *heads, W_O)[0] - multi_head_concat(e, *heads, W_O)[0]).max() > 0.1
    # and with the keys and values of the first input held, attention does as the memory does
    held = multi_head_concat(other, *heads, W_O, Z=e)[0]
    same(held, multi_head_concat(e, *heads, W_O)[0])


@pytest.mark.item("S4-mlp-d")
def test_an_mlp_is_an_unnormalised_memory(rng, same):
    W_1, W_proj, e = rng.normal(size=(6, 4)), rng.normal(size=(4, 6)), rng.normal(size=(3, 4))
    out, coefficients = F.key_value_memory(e, W_1.T, W_proj, relu)
    same(out, F.mlp(e, [W_1, W_proj], [None, None], relu))
    same(out[0], sum(relu(W_1[i] @ e[0]) * W_proj[:, i] for i in range(6)))
    assert coefficients.shape == (3, 6)


@pytest.mark.item("S4-tok-c")
def test_images_are_tokens_too(rng, same):
    image = rng.normal(size=(3, 8, 12))
    patches = patchify(image, 4)
    assert patches.shape == (6, 48)
    assert np.array_equal(unpatchify(patches, image.shape, 4), image)
    W, b = rng.normal(size=(5, 48)), rng.normal(size=5)
    conv = torch.nn.functional.conv2d(
        torch.tensor(image)[None], torch.tensor(W).reshape(5, 3, 4, 4), torch.tensor(b), stride=4
    )
    same(embed_patches(patches, W, b), conv[0].flatten(1).T.numpy(), 1e-10)
    class_token = rng.normal(size=5)
    with_class = embed_patches(patches, W, b, class_token)
    assert np.array_equal(with_class[0], class_token)
    assert np.array_equal(with_class[1:], embed_patches(patches, W, b))
    assert vision_parameters(768, 12, 3072, 16, 3, (224 // 16) ** 2, 1000) == 86_567_656
    assert (224 // 16) ** 2 + 1 == 197
    with pytest.raises(ValueError, match="whole number"):
        patchify(image, 5)


@pytest.mark.item("S4-tok-c")
@given(st.tuples(*(st.integers(1, 3) for _ in range(3))), st.integers(1, 3))
def test_patches_put_together_are_the_image(sizes, patch):
    """And the patch at (row, column) of the grid is that square of the image."""
    c, rows, columns = sizes
    image = np.random.default_rng(0).normal(size=(c, rows * patch, columns * patch))
    patches = patchify(image, patch)
    assert (unpatchify(patches, image.shape, patch) == image).all()
    for k, found in enumerate(patches):
        y, x = (patch * place for place in divmod(k, columns))
        assert (found == image[:, y : y + patch, x : x + patch].ravel()).all()
