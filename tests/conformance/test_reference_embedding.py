"""Embedding, unembedding and positions: S0 1.2, S1 1.1.1, S2 "Positional Encodings", S3 slide 5."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pellucid.architecture import Architecture, Attention
from pellucid.parameter_counts import count_parameters
from pellucid.reference import embedding as E
from pellucid.reference.functions import softmax
from pellucid.reference.learning import loss_and_gradient, next_token_loss
from pellucid.reference.masks import causal_mask
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.tape import gradient
from pellucid.reference.transformer import forward
from pellucid.reference.weights import random_weights, weight_shapes


def small(**changes):
    a = Architecture(n_vocab=7, n_ctx=6, d_model=8, n_layers=1, attention=Attention(n_heads=2))
    return a.with_fields({name.replace("__", "."): value for name, value in changes.items()})


@pytest.mark.item("S0-1.2-a")
def test_every_length_up_to_the_context_and_none_beyond(rng):
    a = small()
    w = random_weights(a, rng)
    tokens = rng.integers(0, 7, 7)
    for n in range(1, 7):
        assert forward(a, w, tokens[:n]).shape == (n, 7)
    with pytest.raises(ValueError, match="n_ctx = 6"):
        forward(a, w, tokens)


@pytest.mark.item("S0-1.2-c", "S0-1.2-d", "S1-1.1.1-a", "S3-4-a", "S4-emb-a")
def test_embedding_is_a_matrix_product_a_kronecker_product_and_a_table(rng):
    W_E, tokens = rng.normal(size=(7, 3)), np.array([4, 0, 4, 6])
    t = E.one_hot(tokens, 7)
    kronecker = np.kron(np.eye(4), W_E.T) @ t.ravel()
    assert np.array_equal(E.embed(t, W_E), W_E[tokens])
    assert np.array_equal(kronecker.reshape(4, 3), W_E[tokens])
    assert np.array_equal(E.tensor_apply(np.eye(4), W_E.T, t), W_E[tokens])
    table = torch.nn.Embedding(7, 3, _weight=torch.tensor(W_E))
    assert np.array_equal(table(torch.tensor(tokens)).detach().numpy(), W_E[tokens])


@pytest.mark.item("S0-1.2-e", "S1-1.1-h")
def test_unembedding_acts_on_rows(rng, same):
    W_U, X = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    same(E.unembed(X, W_U), (np.kron(np.eye(4), W_U) @ X.ravel()).reshape(4, 7))


@pytest.mark.item("S0-1.2-f", "S1-1.1-h")
def test_tying_shares_one_matrix_and_sums_its_gradients(rng, same):
    tied, untied = small(unembed="tied"), small(unembed="untied")
    assert count_parameters(untied)["total"] - count_parameters(tied)["total"] == 7 * 8
    w = random_weights(tied, rng)
    both = w | {"unembed.weight": w["embed.token.weight"].copy()}
    tokens = rng.integers(0, 7, (2, 6))
    loss_tied, g_tied = loss_and_gradient(tied, w, tokens)
    loss_untied, g = loss_and_gradient(untied, both, tokens)
    same(loss_tied, loss_untied)
    same(g_tied["embed.token.weight"], g["embed.token.weight"] + g["unembed.weight"])
    assert "unembed.weight" not in g_tied


def test_a_tied_readout_refuses_another_matrix(rng):
    a = small(unembed="tied")
    w = random_weights(a, rng)
    tokens = rng.integers(0, 7, 4)
    assert np.array_equal(
        forward(a, w | {"unembed.weight": w["embed.token.weight"].copy()}, tokens), forward(a, w, tokens)
    )
    with pytest.raises(ValueError, match="tied"):
        forward(a, w | {"unembed.weight": w["embed.token.weight"] + 1}, tokens)


@pytest.mark.item("S1-1.1-h")
def test_the_transpose_is_not_the_inverse(rng):
    """E-32: read out by its transpose, an embedded token is not always itself."""
    W_E = rng.normal(size=(50, 8))
    assert np.linalg.matrix_rank(E.unembed(W_E, W_E)) == 8
    itself = np.mean(E.unembed(W_E, W_E).argmax(1) == np.arange(50))
    assert itself < 1


@pytest.mark.item("S0-1.2-g", "S1-1.1.1-b")
def test_learned_positions_are_added_alike_to_every_row_of_the_batch(rng, same):
    a = small()
    w = random_weights(a, rng)
    tokens = rng.integers(0, 7, (3, 6))
    tap = TensorRecorder()
    logits = forward(a, w, tokens, tap=tap)
    added = tap.values["pos_embed"]
    assert np.array_equal(added[0], added[1])
    assert np.array_equal(added[0], w["embed.position.weight"])
    assert np.array_equal(forward(a, w, tokens[[2, 0, 1]]), logits[[2, 0, 1]])
    # dL/dP is the sum over the batch of dL/dX: as embeddings, position and token enter alike
    e = w["embed.token.weight"][tokens]
    _, g = gradient(lambda v: next_token_loss(forward(a, w, embeddings=v["e"]), tokens), {"e": e})
    _, of_weights = loss_and_gradient(a, w, tokens)
    same(of_weights["embed.position.weight"], g["e"].sum(0))
    plain = small(positions__kind="none")
    zero = w | {"embed.position.weight": np.zeros((6, 8))}
    without = {name: w[name] for name in weight_shapes(plain)}
    assert np.array_equal(forward(a, zero, tokens), forward(plain, without, tokens))


@pytest.mark.item("S1-1.1.1-c")
def test_only_positions_have_the_length_of_the_context(rng):
    """One matrix has a 37 in its shape; a model without position vectors runs at any length."""
    long = [name for name, shape in weight_shapes(small(n_ctx=37)).items() if 37 in shape]
    assert long == ["embed.position.weight"]
    for kind in ("none", "sinusoidal"):
        short, longer = small(positions__kind=kind), small(positions__kind=kind, n_ctx=60)
        w = random_weights(short, rng)
        assert forward(longer, w, rng.integers(0, 7, 60)).shape == (60, 7)


@pytest.mark.item("S1-1.1.1-d")
@pytest.mark.parametrize(("m", "expected"), [(64, 0.37), (256, 0.59), (1024, 0.83)])
def test_the_causal_mask_alone_gives_the_position_away(m, expected):
    """E-30: of noise under uniform causal attention, m / |mean|^2 - 1 is the position, most of the time."""
    rng = np.random.default_rng(0)
    pattern = softmax(np.zeros((16, 16)), where=causal_mask(16))
    right = []
    for _ in range(60):
        means = pattern @ rng.normal(size=(16, m))
        right.append(np.rint(m / np.sum(means**2, axis=1) - 1) == np.arange(16))
    assert np.mean(right) == pytest.approx(expected, abs=0.05)
    # without a mask every position has the same mean
    same_everywhere = softmax(np.zeros((16, 16))) @ rng.normal(size=(16, m))
    assert np.abs(same_everywhere - same_everywhere[0]).max() < 1e-14


@pytest.mark.item("S1-1.1.1-e")
def test_the_embeddings_have_v_plus_s_times_d_parameters():
    a = Architecture(n_vocab=50_257, n_ctx=1024, d_model=768, n_layers=12, attention=Attention(n_heads=12))
    counts = count_parameters(a)
    assert counts["embed"] + counts["positions"] == (50_257 + 1024) * 768
    assert counts["positions"] / counts["embed"] == pytest.approx(0.020, abs=5e-4)


@pytest.mark.item("S2-4-f")
def test_the_sinusoids_by_hand():
    row = E.sinusoidal_positions(2, 4)[1]
    np.testing.assert_allclose(row, [0.8414709848, 0.0099998333, 0.5403023059, 0.9999500004], atol=1e-10)
    halves, pairs = E.sinusoidal_positions(9, 8), E.sinusoidal_positions(9, 8, layout="pairs")
    assert np.array_equal(halves[:, [0, 4, 1, 5, 2, 6, 3, 7]], pairs)
    assert np.array_equal(E.sinusoidal_positions(3, 8, start=4), halves[4:7])
    with pytest.raises(ValueError, match="even"):
        E.sinusoidal_positions(3, 5)
    with pytest.raises(ValueError, match="halves or pairs"):
        E.sinusoidal_positions(3, 4, layout="thirds")


@pytest.mark.item("S2-4-g")
@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_one_rotation_shifts_every_position(layout, same):
    e, R = E.sinusoidal_positions(50, 16, layout=layout), E.shift_matrix(16, layout=layout)
    same(e[:-1] @ R.T, e[1:])
    same(R @ R.T, np.eye(16))
    same(np.linalg.matrix_power(R, 7), E.shift_matrix(16, steps=7, layout=layout))
    products = e @ e.T
    for difference in range(5):
        diagonal = np.diagonal(products, difference)
        same(diagonal, np.full(len(diagonal), diagonal[0]))


@pytest.mark.item("S2-4-h")
def test_in_complex_numbers_the_shift_is_diagonal(same):
    e, w = E.sinusoidal_positions(40, 12), E.frequencies(6)
    z = e[:, 6:] + 1j * e[:, :6]
    assert np.abs(z - np.exp(1j * np.arange(40)[:, None] * w)).max() < 1e-12
    assert np.abs(z[1:] - z[:-1] * np.exp(1j * w)).max() < 1e-12


@pytest.mark.item("S2-4-i")
def test_what_the_base_buys(same):
    """E-44: positions are distinct for any base; a large one keeps the slowest plane monotone."""
    longest = 2 * np.pi / E.frequencies(256)[-1]
    assert longest == pytest.approx(60_611, abs=1)
    for base, nearest in ((2.0, 4.10), (10_000.0, 1.47)):
        e = E.sinusoidal_positions(512, 64, base=base)
        distance = np.sqrt(np.maximum(np.sum(e**2, 1)[:, None] + np.sum(e**2, 1) - 2 * e @ e.T, 0))
        assert distance[~np.eye(512, dtype=bool)].min() == pytest.approx(nearest, abs=0.01)
    slowest = E.sinusoidal_positions(512, 64)[:, 63]
    assert np.all(np.diff(slowest) < 0)
    assert not np.all(np.diff(E.sinusoidal_positions(512, 64, base=2.0)[:, 63]) < 0)
    nearly = E.sinusoidal_positions(711, 64, base=1.0)
    assert np.linalg.norm(nearly[710] - nearly[0]) == pytest.approx(3.4e-4, abs=1e-5)


@pytest.mark.item("S2-4-j")
@pytest.mark.parametrize(("beta", "least"), [(1, 0.587), (4, 0.974), (6, 0.997)])
def test_a_head_that_reads_the_previous_token_can_be_written_down(beta, least):
    """W_QK = beta R and unscaled scores: one matrix for every position."""
    e, R = E.sinusoidal_positions(128, 64), E.shift_matrix(64)
    # <e_k, e_j> with W_QK = R^T... the score is beta e_k . R e_j, largest at j = k - 1
    pattern = softmax(beta * e @ R @ e.T, where=causal_mask(128))
    assert np.diagonal(pattern, -1).min() >= least - 1e-3


@pytest.mark.item("S3-5-a", "S3-5-b", "S2-4-e", "S1-1.1-e")
def test_addition_is_one_way_to_combine(rng, same):
    e, p = rng.normal(size=(2, 5, 4))
    both = np.hstack([np.eye(4), np.eye(4)])
    same(E.combine_positions(e, p), e + p)
    same(E.combine_positions(e, p, "concatenate", both), e + p)
    # a matrix that treats the two differently: the embedding's columns come first
    W_e, W_p = rng.normal(size=(2, 4, 4))
    same(E.combine_positions(e, p, "concatenate", np.hstack([W_e, W_p])), e @ W_e.T + p @ W_p.T)
    with pytest.raises(ValueError, match="add"):
        E.combine_positions(e, p, "concatenate")
    a = small()
    w = random_weights(a, rng)
    tokens, tap = rng.integers(0, 7, 6), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    same(
        tap.values["blocks.0.resid_pre"][0],
        E.combine_positions(w["embed.token.weight"][tokens], w["embed.position.weight"]),
    )


@pytest.mark.item("S0-1.2-h")
@settings(max_examples=60)
@given(st.sampled_from(["halves", "pairs"]), st.sampled_from([4, 6, 8]), st.integers(0, 2**32 - 1))
def test_rotated_products_depend_on_the_distance_alone(layout, d_rotary, seed):
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 8))
    rows = E.rotate(np.tile(q, (10, 1)), np.arange(10), d_rotary, layout=layout)
    cols = E.rotate(np.tile(k, (10, 1)), np.arange(10), d_rotary, layout=layout)
    scores = rows @ cols.T
    for difference in (-3, 0, 4):
        diagonal = np.diagonal(scores, difference)
        assert np.abs(diagonal - diagonal[0]).max() < 1e-12
    assert np.array_equal(rows[:, d_rotary:], np.tile(q, (10, 1))[:, d_rotary:])
    assert np.abs(np.linalg.norm(rows, axis=1) - np.linalg.norm(q)).max() < 1e-12


@pytest.mark.item("S0-1.2-h")
@settings(max_examples=60)
@given(
    n_planes=st.integers(2, 12),
    base=st.floats(2, 1e6),
    factor=st.floats(1, 60),
    low=st.floats(0.5, 8),
    share=st.floats(1.1, 40),
    more=st.floats(1, 100),
)
def test_yarn_agrees_with_the_paper_outside_its_line(n_planes, base, factor, low, share, more):
    """Peng et al. 2023, section 3.2: planes of more than beta turns stay, planes of fewer than alpha are divided by s.

    Between them the paper goes linearly in the turns and its code in k; both stay between w_k / s and w_k.
    """
    # the first plane turns at least beta times, and the last one less, so that the line lies among them
    high, n_trained = low * share, int(2 * np.pi * low * share * more) + 1
    w = base ** (-np.arange(n_planes) / n_planes)
    turns = n_trained * w / (2 * np.pi)
    assume(turns[-1] < high)
    found = E.yarn_frequencies(2 * n_planes, base, factor, low, high, n_trained)
    np.testing.assert_allclose(found[turns > high], w[turns > high], rtol=1e-12)
    np.testing.assert_allclose(found[turns < low], w[turns < low] / factor, rtol=1e-12)
    assert np.all(found <= w * (1 + 1e-12))
    assert np.all(found >= w / factor * (1 - 1e-12))
    assert np.all(np.diff(found / w) <= 1e-12)


@pytest.mark.item("S0-1.1-m")
def test_tokens_outside_the_vocabulary_are_refused_by_name():
    assert E.check_tokens(np.array([], float), 3).shape == (0,)
    for tokens, wrong in (([0, 3], 3), ([0, 7, 1], 7), ([-1, 2], -1), ([-2, 5], 5)):
        with pytest.raises(ValueError, match=f"^token {wrong} is not in 0 \\.\\.\\. 2$"):
            E.check_tokens(np.array(tokens), 3)


@pytest.mark.item("S0-1.2-h")
def test_interleaved_slopes_by_hand():
    """Press et al. 2021, get_slopes: those of 2 heads, and the first of 4; those of 4 heads, and two of 8."""
    assert E.alibi_slopes(3, "interleaved").tolist() == [1 / 16, 1 / 256, 1 / 4]
    assert E.alibi_slopes(6, "interleaved").tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert E.alibi_slopes(1, "interleaved").tolist() == [1 / 256]
    for n in (1, 2, 4, 64):
        assert np.array_equal(E.alibi_slopes(n, "interleaved"), E.alibi_slopes(n))
    with pytest.raises(ValueError, match="expected geometric or interleaved"):
        E.alibi_slopes(3, "linear")


@pytest.mark.item("S0-1.2-h")
def test_alibi_by_hand():
    assert E.alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert E.alibi(1, 2, 3)[0].tolist() == [[-1 / 256, -0.0, -1 / 256], [-2 / 256, -1 / 256, -0.0]]


@pytest.mark.item("S2-4-d")
def test_two_causal_layers_know_the_order_and_one_does_not(rng):
    """E-42: the claim that order must be put in holds without a mask only."""
    for n_layers in (1, 2):
        a = small(n_layers=n_layers, positions__kind="none", norm__kind="none", final_norm="none")
        w = random_weights(a, rng)
        tokens = np.array([0, 1, 2, 3, 4, 5])
        difference = np.abs(forward(a, w, tokens[[1, 0, 3, 2, 4, 5]])[-1] - forward(a, w, tokens)[-1]).max()
        assert (difference < 1e-12) == (n_layers == 1)
        assert n_layers == 1 or difference > 1e-4
        reversed_rows = forward(a, w, tokens[::-1])[::-1]
        assert np.abs(reversed_rows - forward(a, w, tokens)).max() > 1e-2
