"""Attention in the words of five texts: S0 section 3, S1 1.1.2, S2, S3 slides 11 to 13, S4."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.architecture import Architecture, Attention
from pellucid.option_values import ArchitectureError
from pellucid.parameter_counts import count_parameters
from pellucid.reference import attention as A
from pellucid.reference.embedding import tensor_apply
from pellucid.reference.functions import (
    dropout,
    keep_mask,
    log_softmax,
    logsumexp,
    softmax,
    softmax_matrix,
)
from pellucid.reference.masks import (
    additive,
    anti_causal_mask,
    bidirectional_mask,
    causal_mask,
    documents_mask,
    padding_mask,
    prefix_mask,
    window_mask,
)

N, M, D, H = 6, 8, 2, 3


def draw_heads(rng, n_heads=H, d_value=D):
    size = [(n_heads, D, M), (n_heads, D, M), (n_heads, d_value, M), (M, n_heads * d_value)]
    return [rng.normal(size=s) for s in size]


def draw(rng):
    return rng.normal(size=(N, M)), *draw_heads(rng)


@pytest.mark.item("S0-3.1-a", "S2-2-h")
def test_by_rows_and_not_over_the_whole_matrix():
    """E-01 by hand: scores the identity, two positions."""
    rows, whole = softmax(np.eye(2), where=causal_mask(2)), softmax_matrix(np.eye(2), where=causal_mask(2))
    np.testing.assert_allclose(rows, [[1, 0], [0.26894, 0.73106]], atol=5e-6)
    np.testing.assert_allclose(whole, [[0.42232, 0], [0.15536, 0.42232]], atol=5e-6)
    assert np.allclose(rows.sum(1), 1)
    assert whole.sum() == pytest.approx(1)


@pytest.mark.item("S0-3.1-a")
def test_over_the_whole_matrix_means_each_matrix_of_a_batch(rng, same):
    Z = rng.normal(size=(2, 3, N, N)) + 1000 * np.arange(6).reshape(2, 3, 1, 1)
    mask = causal_mask(N)
    same(softmax_matrix(Z, where=mask), np.stack([[softmax_matrix(z, where=mask) for z in row] for row in Z]))


@pytest.mark.item("S0-3.1-a", "S2-2-h")
def test_the_printed_softmax_sees_the_future(rng):
    """E-01: change the last token alone, and the printed head changes earlier rows."""
    X, W_Q, W_K, W_V, W_O = draw(rng)
    W_QK, W_OV = A.qk_circuit(W_Q[0], W_K[0]), A.ov_circuit(W_O[:, :D], W_V[0])
    changed = X.copy()
    changed[-1] = rng.normal(size=M)

    def head(X, by):
        return by(A.attention_scores(X, W_QK, D**-0.5), where=causal_mask(N)) @ X @ W_OV.T

    assert np.array_equal(head(X, softmax)[:-1], head(changed, softmax)[:-1])
    assert np.abs(head(X, softmax_matrix)[:-1] - head(changed, softmax_matrix)[:-1]).max() > 1e-2


@pytest.mark.item("S0-3.1-b", "S0-3.1-c", "S1-1.1.2-e", "S1-1.1.2-g", "S4-att-h")
def test_the_causal_mask(rng, same):
    Z = rng.normal(size=(N, N))
    pattern = softmax(Z, where=causal_mask(N))
    assert np.all(pattern[np.triu_indices(N, 1)] == 0.0)
    same(pattern, softmax(Z + additive(causal_mask(N))))
    for i in range(N):
        same(pattern[i], np.concatenate([softmax(Z[i, : i + 1]), np.zeros(N - i - 1)]))
    assert np.all(pattern >= 0)
    same(pattern.sum(1), np.ones(N))
    M_printed = additive(causal_mask(3))
    assert M_printed.tolist() == [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]]


@pytest.mark.item("S1-1.1.2-g")
def test_the_mask_as_printed_is_the_mirror_image(rng, same):
    """E-21: read literally every token sees only the future; reversed in both axes it is the causal mask."""
    Z, J = rng.normal(size=(N, N)), np.eye(N)[::-1]
    literal = softmax(Z, where=anti_causal_mask(N))
    assert np.all(literal[np.tril_indices(N, -1)] == 0)
    same(literal, J @ softmax(J @ Z @ J, where=causal_mask(N)) @ J)


@pytest.mark.item("S4-mat-a")
def test_a_mask_cannot_be_multiplied_in():
    """E-62: Z * (-inf) is +inf for negative scores and NaN for zero; added, the mask hides all three."""
    scores, mask = np.array([0.3, -0.2, 0.0]), additive(np.array([True, False, False]))
    with np.errstate(invalid="ignore"):
        product = scores * np.where(mask == 0, 1.0, mask)
    assert product[1] == np.inf
    assert np.isnan(product[2])
    assert softmax(scores + mask).tolist() == [1, 0, 0]


@pytest.mark.item("S0-3.2-a", "S0-3.3-c", "S2-2-c", "S2-2-d", "S2-2-i", "S4-att-c", "S4-att-m")
def test_a_head_is_a_tensor_product(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    W_QK, W_OV = A.qk_circuit(W_Q[0], W_K[0]), A.ov_circuit(W_O[:, :D], W_V[0])
    P = A.attention_pattern(X, W_QK, causal_mask(N))
    h = A.attention_head(X, W_QK, W_OV, causal_mask(N))
    same(h, (np.kron(P, W_OV) @ X.ravel()).reshape(N, M))
    same(h, tensor_apply(P, W_OV, X))
    same(h, np.einsum("ik,jl,kl->ij", P, W_OV, X))
    same((P @ X) @ W_OV.T, P @ (X @ W_OV.T))
    assert np.abs(h - P @ X @ W_OV).max() > 0.1  # E-40: not A x S


@pytest.mark.item("S0-3.2-b", "S0-3.2-c", "S2-2-e", "S2-2-g", "S2-2-f", "S4-att-e", "S3-12-a")
def test_the_circuits_have_low_rank(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    W_QK, W_OV = A.qk_circuit(W_Q[0], W_K[0]), A.ov_circuit(W_O[:, :D], W_V[0])
    assert np.linalg.matrix_rank(W_QK) == np.linalg.matrix_rank(W_OV) == D
    same(A.attention_scores(X, W_QK), (X @ W_Q[0].T) @ (X @ W_K[0].T).T)
    q, k, v = X @ W_Q[0].T, X @ W_K[0].T, X @ W_V[0].T
    factored = softmax(q @ k.T, where=causal_mask(N)) @ v @ W_O[:, :D].T
    same(A.attention_head(X, W_QK, W_OV, causal_mask(N)), factored)
    # image within the columns of W_O, kernel containing that of W_V
    assert np.linalg.matrix_rank(np.column_stack([W_OV, W_O[:, :D]])) == D
    kernel = np.linalg.svd(W_V[0])[2][D:].T
    assert np.abs(W_OV @ kernel).max() < 1e-12


@pytest.mark.item("S0-3.3-b", "S4-att-f")
def test_scores_are_a_bilinear_form_of_two_rows(rng, same):
    X, W_Q, W_K, *_ = draw(rng)
    scores = A.attention_scores(X, A.qk_circuit(W_Q[0], W_K[0]))
    same(scores[1, 0], (W_Q[0] @ X[1]) @ (W_K[0] @ X[0]))
    assert np.abs(scores - scores.T).max() > 0.1


@pytest.mark.item("S0-3.3-d")
def test_only_the_circuits_matter(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    R, S = rng.normal(size=(2, D, D))
    old = A.multi_head_sum(X, A.heads_of(W_Q, W_K, W_V, W_O), causal_mask(N), 0.7)
    new = [
        A.HeadMatrices(R @ h.W_Q, np.linalg.inv(R).T @ h.W_K, S @ h.W_V, h.W_O @ np.linalg.inv(S))
        for h in A.heads_of(W_Q, W_K, W_V, W_O)
    ]
    same(A.multi_head_sum(X, new, causal_mask(N), 0.7), old, 1e-10)


@pytest.mark.item(
    "S1-1.1.2-m", "S0-3.4-a", "S1-1.1.2-a", "S1-1.1.2-l", "S2-2-a", "S3-10-a", "S3-10-b", "S3-11-a", "S3-11-b",
    "S3-11-c", "S4-att-d", "S4-att-g", "S4-att-i", "S4-att-n",
)  # fmt: skip
@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1.0, D**-0.5]))
def test_the_texts_write_one_function(seed, causal, scale):
    """S1's indices = S0's tensors = S3's sums = S4's matrices."""
    rng = np.random.default_rng(seed)
    X, W_Q, W_K, W_V, W_O = draw(rng)
    mask = causal_mask(N) if causal else bidirectional_mask(N)
    concatenated = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, mask, scale)
    summed = A.multi_head_sum(X, A.heads_of(W_Q, W_K, W_V, W_O), mask, scale)
    # S1: z_bsd Q_dea and so on, the heads joined as (a e)
    Q, K, V = (np.transpose(W, (2, 1, 0)) for W in (W_Q, W_K, W_V))
    q, k, v = (np.einsum("bsd,dea->bsea", X[None], T) for T in (Q, K, V))
    w = softmax(np.einsum("bsea,btea->bsta", q, k) * scale, axis=2, where=mask[None, :, :, None])
    y = np.einsum("bsta,btea->bsea", w, v)
    u = np.swapaxes(y, 2, 3).reshape(1, N, H * D)
    indexed = np.einsum("bsd,ed->bse", u, W_O)[0]
    # S3: position by position
    pointwise = np.stack([
        W_O @ np.concatenate([
            A.attention_head_at(i, X, W_Q[h], W_K[h], W_V[h], lambda i, j: bool(mask[i, j]), scale) for h in range(H)
        ])
        for i in range(N)
    ])  # fmt: skip
    size = max(1.0, np.abs(concatenated).max())
    for other in (summed, indexed, pointwise):
        assert np.abs(other - concatenated).max() <= 1e-12 * size
    assert np.array_equal(A.attention_layer(X, A.heads_of(W_Q, W_K, W_V, W_O), mask, scale), X + summed)


@pytest.mark.item("S1-1.1.2-l")
def test_the_other_order_of_concatenation_permutes_the_output_matrix(rng, same):
    """E-29: (e a) instead of (a e)."""
    X, W_Q, W_K, W_V, W_O = draw(rng)
    heads = A.heads_of(W_Q, W_K, W_V, W_O)
    z = [A.attention_pattern(X, A.qk_circuit(h.W_Q, h.W_K), causal_mask(N)) @ X @ h.W_V.T for h in heads]
    interleaved = np.stack(z, axis=-1).reshape(N, -1)
    right = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, causal_mask(N))
    assert np.abs(interleaved @ W_O.T - right).max() > 0.1
    columns = np.arange(H * D).reshape(H, D).T.ravel()
    same(interleaved @ W_O[:, columns].T, right)


@pytest.mark.item("S0-3.4-b", "S0-3.4-c", "S0-3.4-d")
def test_frozen_heads_compose(rng, same):
    """Remark 3.1, and E-20: the product of two patterns is in general no pattern of a head."""
    n, d = 12, 2
    X = rng.normal(size=(n, M))
    W1, W2 = (rng.normal(size=(M, d)) @ rng.normal(size=(d, M)) for _ in range(2))
    A1, A2 = (
        A.attention_pattern(X, rng.normal(size=(M, d)) @ rng.normal(size=(d, M)), causal_mask(n), 0.3) for _ in range(2)
    )
    pattern, W = A.compose_heads(A1, W1, A2, W2)
    same(np.kron(A1, W1) @ np.kron(A2, W2), np.kron(pattern, W))
    inner = X + tensor_apply(A2, W2, X)
    same(tensor_apply(A1, W1, inner), tensor_apply(A1, W1, X) + tensor_apply(pattern, W, X))
    same(pattern.sum(1), np.ones(n))
    assert np.all(pattern[np.triu_indices(n, 1)] == 0)
    assert np.linalg.matrix_rank(W) <= d
    Y = rng.normal(size=(n, M))
    same(tensor_apply(A1, W1, 2 * X - 3 * Y), 2 * tensor_apply(A1, W1, X) - 3 * tensor_apply(A1, W1, Y))
    # without a mask a head's scores have rank d up to a constant per row; the composite's have full rank
    B1, B2 = (A.attention_pattern(X, rng.normal(size=(M, d)) @ rng.normal(size=(d, M)), None, 0.3) for _ in range(2))

    def rank(P):
        logs = np.log(P)
        return np.linalg.matrix_rank(logs - logs.mean(1, keepdims=True), tol=1e-9)

    assert rank(B1) == d
    assert rank(B1 @ B2) == n - 1 == 11


@pytest.mark.item("S2-2-b")
def test_linear_heads_do_not_merge_into_one(rng, same):
    """E-41: of two heads with frozen patterns the operator-Schmidt rank is 2: a decomposition without softmax too."""
    X, W_Q, W_K, W_V, W_O = draw(rng)
    heads = A.heads_of(W_Q, W_K, W_V, W_O)[:2]
    circuits = [A.ov_circuit(head.W_O, head.W_V) for head in heads]
    patterns = [A.attention_pattern(X, A.qk_circuit(head.W_Q, head.W_K), causal_mask(N)) for head in heads]
    # with its patterns held a layer is a linear map of X, which the two circuits decompose
    Y = rng.normal(size=(N, M))
    operator = sum(np.kron(P, S) for P, S in zip(patterns, circuits, strict=True))
    same((operator @ X.ravel()).reshape(N, M), A.multi_head_sum(X, heads, causal_mask(N)))
    same(
        (operator @ Y.ravel()).reshape(N, M),
        sum(tensor_apply(P, S, Y) for P, S in zip(patterns, circuits, strict=True)),
    )
    # rows (i, k) of the patterns, columns (j, l) of the circuits: one head alone would have rank 1
    rearranged = operator.reshape(N, M, N, M).transpose(0, 2, 1, 3).reshape(N * N, M * M)
    singular = np.linalg.svd(rearranged, compute_uv=False)
    assert singular[1] > 0.1
    assert singular[2] < 1e-10


@pytest.mark.item("S1-1.1.2-b")
def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ArchitectureError, match="divisor of d_model = 10"):
        Architecture(n_vocab=3, n_ctx=3, d_model=10, n_layers=1, attention=Attention(n_heads=4))


@pytest.mark.item("S1-1.1.2-c")
def test_attention_has_four_matrices_and_four_biases():
    a = Architecture(n_vocab=3, n_ctx=3, d_model=12, n_layers=2, attention=Attention(n_heads=3))
    assert count_parameters(a)["attention"] == 2 * (4 * 12**2 + 4 * 12)
    assert count_parameters(a.with_fields({"attention.bias": "none"}))["attention"] == 2 * 4 * 12**2


@pytest.mark.item("S1-1.1.2-d")
def test_multi_query_attention_shares_keys_and_values(rng, same):
    X, W_Q, _, _, W_O = draw(rng)
    W_K, W_V = rng.normal(size=(2, 1, D, M))
    shared = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, causal_mask(N))
    copied = A.multi_head_concat(X, W_Q, np.repeat(W_K, H, 0), np.repeat(W_V, H, 0), W_O, causal_mask(N))
    same(shared, copied)


@pytest.mark.item("S1-1.1.2-i", "S4-att-j")
@pytest.mark.parametrize("d", [16, 64, 256])
def test_the_scale_makes_the_variance_one(d):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 20_000, d))
    scores = np.sum(q * k, axis=1)
    assert np.var(scores) == pytest.approx(d, rel=0.05)
    assert np.mean(np.abs(scores)) == pytest.approx(np.sqrt(2 * d / np.pi), rel=0.05)
    assert np.var(scores * A.default_scale(d)) == pytest.approx(1, rel=0.05)
    assert A.default_scale(d, "1") == 1  # E-06: S0 has no scale
    assert np.var(scores * d**0.5) == pytest.approx(d * d, rel=0.05)  # E-22: as S1 prints it
    # E-65: with 8 heads of width d, dividing by the root of the whole width leaves 1/8
    assert np.var(scores / np.sqrt(8 * d)) == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.item("S1-1.1.2-i")
def test_multiplying_instead_makes_attention_a_choice_of_one():
    """E-22: entropy over 32 keys at d = 16, divided and multiplied by the root."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 200, 16)), rng.normal(size=(2, 200, 32, 16))
    scores = np.einsum("bd,bjd->bj", q[0], k[0])

    def entropy(p):
        return float(np.mean(-np.sum(p * np.log(np.maximum(p, 1e-300)), axis=-1)))

    scale = A.default_scale(16)
    assert entropy(softmax(scores * scale)) == pytest.approx(3.03, abs=0.05)
    assert entropy(softmax(scores / scale)) < 0.3


@pytest.mark.item("S1-1.1.2-j")
def test_for_correlated_queries_and_keys_the_root_is_not_enough():
    """Footnote 10: with correlation 1/2, q.k / sqrt(d) grows with the width, q.k / d does not."""
    rng = np.random.default_rng(0)
    mean = {}
    for d in (64, 1024):
        q, e = rng.normal(size=(2, 2000, d))
        mean[d] = np.mean(np.sum(q * (0.5 * q + np.sqrt(0.75) * e), axis=1))
    assert mean[1024] * A.default_scale(1024) / (mean[64] * A.default_scale(64)) == pytest.approx(4, rel=0.1)
    ratio = mean[1024] * A.default_scale(1024, "1/d_head") / (mean[64] * A.default_scale(64, "1/d_head"))
    assert ratio == pytest.approx(1, rel=0.1)
    with pytest.raises(ValueError, match="1/sqrt"):
        A.default_scale(4, "2")


@pytest.mark.item("S1-1.1.2-k", "S4-drop-a")
def test_dropout_keeps_the_mean(rng, same):
    x = rng.normal(size=(40, 50))
    assert np.array_equal(dropout(x, 0.0, np.ones(x.shape, bool)), x)
    dropped = np.stack([dropout(np.ones(x.shape), 0.1, keep_mask(x.shape, 0.1, rng)) for _ in range(50)])
    assert set(np.unique(dropped)) == {0.0, 1 / 0.9}
    assert dropped.mean() == pytest.approx(1, rel=0.01)
    with pytest.raises(ValueError, match="rate"):
        dropout(x, 1.0, np.ones(x.shape, bool))


@pytest.mark.item("S4-drop-a")
def test_every_entry_is_dropped_by_itself(rng):
    """Chi squared over the 64 masks of two rows of three, 63 degrees of freedom: 103.4 once in 1000 times."""
    p, n = 0.3, 20_000
    masks = np.stack([keep_mask((2, 3), p, rng) for _ in range(n)]).reshape(n, 6)
    found = np.bincount(masks @ 2 ** np.arange(6), minlength=64)
    kept = np.array([mask.bit_count() for mask in range(64)])
    expected = n * (1 - p) ** kept * p ** (6 - kept)
    assert np.sum((found - expected) ** 2 / expected) < 103.4


@pytest.mark.item("S1-1.1.2-k")
def test_dropout_on_the_weights_and_on_the_mixture_differ():
    """E-28: both unbiased, with different variance, over all masks of four keys."""
    w, v, p = np.array([0.4, 0.3, 0.2, 0.1]), np.array([4.0, -1.0, 3.0, 2.0]), 0.5
    on_weights, on_mixture = [], []
    for keep in itertools.product([True, False], repeat=4):
        on_weights.append(dropout(w, p, np.array(keep)) @ v)
    for keep in (True, False):
        on_mixture.append(dropout(np.array([w @ v]), p, np.array([keep]))[0])
    assert np.mean(on_weights) == pytest.approx(w @ v)
    assert np.mean(on_mixture) == pytest.approx(w @ v)
    assert np.var(on_weights) != pytest.approx(np.var(on_mixture))


@pytest.mark.item("S1-1.1.2-n")
def test_the_key_bias_does_nothing_and_the_value_bias_moves_out(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    b_Q, b_K, b_V = rng.normal(size=(3, H, D))
    b_O, zero = rng.normal(size=M), np.zeros((H, D))

    def attend(b_Q, b_K, b_V, b_O):
        return A.multi_head_concat(X, W_Q, W_K, W_V, W_O, causal_mask(N), 0.7, biases=(b_Q, b_K, b_V, b_O))

    whole = attend(b_Q, b_K, b_V, b_O)
    same(attend(b_Q, zero, b_V, b_O), whole, 1e-11)
    same(attend(b_Q, b_K, zero, b_O + W_O @ b_V.ravel()), whole, 1e-11)
    assert np.abs(attend(zero, b_K, b_V, b_O) - whole).max() > 0.01
    # neither holds for the printed softmax
    q, k = X @ W_Q[0].T, X @ W_K[0].T
    moved = softmax_matrix(q @ (k + b_K[0]).T, where=causal_mask(N))
    assert np.abs(moved - softmax_matrix(q @ k.T, where=causal_mask(N))).max() > 1e-3


@pytest.mark.item("S3-11-d")
def test_values_may_have_another_width(rng):
    W_Q, W_K, W_V, W_O = draw_heads(rng, d_value=5)
    X = rng.normal(size=(N, M))
    assert A.multi_head_concat(X, W_Q, W_K, W_V, W_O, causal_mask(N)).shape == (N, M)
    one = A.attention_head_at(2, X, W_Q[0], W_K[0], W_V[0], lambda i, j: j <= i, 0.5)
    assert one.shape == (5,)


@pytest.mark.item("S3-12-b")
@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_any_mask_hides_what_it_masks(seed):
    rng = np.random.default_rng(seed)
    X, W_Q, W_K, W_V, W_O = draw(rng)
    mask = rng.random((N, N)) < 0.5
    out = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, mask, 0.5)
    i = int(rng.integers(N))
    noise = np.where(mask[i][:, None], X, 100 * rng.normal(size=X.shape))
    q = (X[i : i + 1], noise)
    again = A.multi_head_concat(q[0], W_Q, W_K, W_V, W_O, mask[i : i + 1], 0.5, Z=q[1])
    unchanged = A.multi_head_concat(q[0], W_Q, W_K, W_V, W_O, mask[i : i + 1], 0.5, Z=X)
    assert np.array_equal(again, unchanged)
    assert np.abs(out[i] - unchanged[0]).max() < 1e-12
    if not mask[i].any():
        assert np.array_equal(out[i], np.zeros(M))


@pytest.mark.item("S3-12-b")
def test_attention_equals_torchs(rng, same):
    X, W_Q, W_K, W_V, _ = draw(rng)
    mask = rng.random((N, N)) < 0.6
    mask[:, 0] = True
    z = A.multi_head_concat(X, W_Q, W_K, W_V, np.eye(H * D), mask, D**-0.5)
    q, k, v = (torch.tensor(np.einsum("im,hdm->hid", X, W)) for W in (W_Q, W_K, W_V))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.tensor(mask))
    same(z, np.swapaxes(theirs.numpy(), 0, 1).reshape(N, -1))


@pytest.mark.item("S3-12-b")
def test_a_row_that_may_read_nothing_is_zero():
    """E-59"""
    pattern = softmax(np.zeros((2, 3)), where=np.array([[False] * 3, [True, False, True]]))
    assert pattern.tolist() == [[0, 0, 0], [0.5, 0, 0.5]]
    assert logsumexp(np.zeros(3), where=np.zeros(3, bool)) == -np.inf
    assert log_softmax(np.zeros(3), where=np.array([True, True, False])).tolist() == [-np.log(2), -np.log(2), -np.inf]


@pytest.mark.item("S3-12-b")
def test_the_kinds_of_mask_by_hand():
    def show(mask):
        return ["".join("x" if m else "." for m in row) for row in mask]

    assert show(causal_mask(3)) == ["x..", "xx.", "xxx"]
    assert show(causal_mask(2, 4)) == ["xxx.", "xxxx"]
    assert show(prefix_mask(4, 2)) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert show(window_mask(4, 2)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert show(documents_mask(np.array([0, 0, 1]))) == ["x..", "xx.", "..x"]
    assert show(bidirectional_mask(3) & padding_mask([True, True, False])) == ["xx.", "xx.", "xx."]
    with pytest.raises(ValueError, match="queries are the last of them"):
        causal_mask(3, 2)


@pytest.mark.item("S3-12-a")
def test_scores_belong_to_positions_not_to_vectors(rng):
    """E-53: two equal vectors, one visible and one masked, have different weights."""
    X, W_Q, W_K, *_ = draw(rng)
    X[2] = X[1]
    mask = bidirectional_mask(N)
    mask[0, 2] = False
    pattern = A.attention_pattern(X, A.qk_circuit(W_Q[0], W_K[0]), mask)
    assert pattern[0, 1] > 0 == pattern[0, 2]


@pytest.mark.item("S4-att-a")
def test_anna_and_bikram():
    """One head looks up a person's day, an MLP knows the day after: 7 x 7 x 2 questions, weights by hand."""
    people, days = 2, 7
    right = 0
    for birthdays in itertools.product(range(days), repeat=people):
        for asked in range(people):
            X = np.zeros((people + 1, people + days))
            for person, day in enumerate(birthdays):
                X[person, person] = X[person, people + day] = 1
            X[people, asked] = 1
            W = np.zeros((people, people + days))
            W[:, :people] = 20 * np.eye(people)
            W_V = np.hstack([np.zeros((days, people)), np.eye(days)])
            facts = np.tri(people + 1, people + 1, -1, dtype=bool)
            facts[:people] = True
            z = A.multi_head_concat(X, W[None], W[None] / 20, W_V[None], np.eye(days), facts)[people]
            after = np.roll(np.eye(days), 1, axis=0) @ z  # keys the days, values the days after
            right += after.argmax() == (birthdays[asked] + 1) % days
    assert right == 98


@pytest.mark.item("S4-att-b")
def test_additive_attention(rng, same):
    Q, K = rng.normal(size=(N, 3)), rng.normal(size=(N, 4))
    W, U, v = rng.normal(size=(5, 3)), rng.normal(size=(5, 4)), rng.normal(size=5)
    pattern = A.additive_attention(Q, K, W, U, v, causal_mask(N))
    same(pattern.sum(1), np.ones(N))
    assert np.all(pattern[np.triu_indices(N, 1)] == 0)
    scores = [v @ np.tanh(W @ Q[2] + U @ K[j]) for j in range(3)]
    same(pattern[2, :3], softmax(np.array(scores)))


@pytest.mark.item("S4-att-k", "S0-4.3-a")
@settings(max_examples=60)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(-1e3, 1e3))
def test_softmax_is_a_distribution_that_a_shift_leaves(values, shift):
    x = np.array(values)
    p = softmax(x)
    assert np.all(p > 0)
    assert abs(p.sum() - 1) < 1e-14
    assert np.abs(softmax(x + shift) - p).max() < 1e-12
    assert np.all(np.diff(p[np.argsort(x, kind="stable")]) >= 0)
    assert np.abs((np.log(p)[:, None] - np.log(p)) - (x[:, None] - x)).max() < 1e-12
    assert np.abs(np.exp(log_softmax(x)) - p).max() < 1e-13
    assert np.abs(p - np.exp(x - logsumexp(x))).max() < 1e-13


@pytest.mark.item("S4-att-k")
def test_softmax_of_enormous_scores_is_finite():
    assert softmax(np.array([1e4, -1e4])).tolist() == [1, 0]
    assert softmax(np.array([1e308, 1e308, 0.0])).tolist() == [0.5, 0.5, 0]
    assert logsumexp(np.array([1e4, 1e4])) == pytest.approx(1e4 + np.log(2))


@pytest.mark.item("S4-att-l")
def test_causal_and_bidirectional_agree_on_the_last_row(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    causal = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, causal_mask(N))
    both = A.multi_head_concat(X, W_Q, W_K, W_V, W_O, bidirectional_mask(N))
    same(causal[-1], both[-1])
    assert np.abs(causal[0] - both[0]).max() > 1e-3


@pytest.mark.item("S2-4-a", "S2-4-b")
def test_attention_commutes_with_permutations(rng, same):
    X, W_Q, W_K, W_V, W_O = draw(rng)
    P = np.eye(N)[rng.permutation(N)]
    Y = A.qk_circuit(W_Q[0], W_K[0])
    Z = A.attention_scores(X, Y)
    same(A.attention_scores(P @ X, Y), P @ Z @ P.T)
    for by in (softmax, softmax_matrix):
        same(by(P @ Z @ P.T), P @ by(Z) @ P.T)
    same(P.T @ P, np.eye(N))
    heads = A.heads_of(W_Q, W_K, W_V, W_O)
    same(A.multi_head_sum(P @ X, heads), P @ A.multi_head_sum(X, heads))
    assert (
        np.abs(A.multi_head_sum(P @ X, heads, causal_mask(N)) - P @ A.multi_head_sum(X, heads, causal_mask(N))).max()
        > 0.1
    )


@pytest.mark.item("S4-exp-a")
def test_with_one_head_one_of_two_matrices_is_redundant(rng, same):
    """E-70: only at full width, for two matrices of a narrow head make one of low rank."""
    E, (W_q, W_k, W_v, W_o) = rng.normal(size=(N, 6)), rng.normal(size=(4, 6, 6))

    def one_head(W_v, W_o):
        return A.multi_head_concat(E, W_q[None], W_k[None], W_v[None], W_o, causal_mask(N), 0.3)

    expected = one_head(W_v, W_o)
    same(one_head(W_o @ W_v, np.eye(6)), expected, 1e-11)
    same(one_head(np.eye(6), W_o @ W_v), expected, 1e-11)
    narrow = A.ov_circuit(W_o[:, :3], W_v[:3])
    same(one_head(narrow, np.eye(6)), A.multi_head_concat(
        E, W_q[None], W_k[None], W_v[None, :3], W_o[:, :3], causal_mask(N), 0.3), 1e-11)  # fmt: skip
    assert np.linalg.matrix_rank(narrow) == 3


@pytest.mark.item("S4-exp-b", "S4-exp-d")
def test_two_heads_are_a_block_product_and_a_sum(rng, same):
    """E-69: the matrices of the sum have rank at most d/2, and any two such matrices are those of two heads."""
    d, scale = 6, 0.3
    E = rng.normal(size=(N, d))
    W_q, W_k, W_v = rng.normal(size=(3, 2, 3, d))
    W_o = rng.normal(size=(d, d))
    out = A.multi_head_concat(E, W_q, W_k, W_v, W_o, causal_mask(N), scale)
    patterns = [A.attention_pattern(E, A.qk_circuit(W_q[h], W_k[h]), causal_mask(N), scale) for h in range(2)]
    # (A_1 E  A_2 E) (W_v,1' 0; 0 W_v,2') W_o'
    values = np.block([[W_v[0].T, np.zeros((d, 3))], [np.zeros((d, 3)), W_v[1].T]])
    same(out, np.hstack([patterns[0] @ E, patterns[1] @ E]) @ values @ W_o.T)
    heads = A.heads_of(W_q, W_k, W_v, W_o)
    C = [A.ov_circuit(head.W_O, head.W_V) for head in heads]
    same(out, patterns[0] @ E @ C[0].T + patterns[1] @ E @ C[1].T)
    assert [np.linalg.matrix_rank(c) for c in C] == [3, 3]
    # and back: two matrices of rank d/2, taken apart, are the value and output matrices of two heads
    given_C = rng.normal(size=(2, d, 3)) @ rng.normal(size=(2, 3, d))
    U, s, Vt = np.linalg.svd(given_C)
    again = A.multi_head_concat(
        E, W_q, W_k, Vt[:, :3], np.hstack(list(U[:, :, :3] * s[:, None, :3])), causal_mask(N), scale
    )
    same(again, sum(P @ E @ c.T for P, c in zip(patterns, given_C, strict=True)), 1e-11)


@pytest.mark.item("S4-exp-c")
def test_the_output_matrix_mixes_the_heads(rng):
    """Another second head changes every coordinate; with a block-diagonal W_o only the second half."""
    E, scale = rng.normal(size=(N, 6)), 0.3
    first, second, other = rng.normal(size=(3, 3, 3, 6))
    W_o = rng.normal(size=(6, 6))
    blocks = np.kron(np.eye(2), np.ones((3, 3))) * W_o

    def changed_by_the_second(W_o):
        outs = [
            A.multi_head_concat(E, *np.stack([first, head], axis=1), W_o, causal_mask(N), scale)
            for head in (second, other)
        ]
        return np.abs(outs[0] - outs[1]).max(axis=0)

    assert changed_by_the_second(W_o).min() > 0.1
    assert np.array_equal(changed_by_the_second(blocks)[:3], np.zeros(3))
    assert changed_by_the_second(blocks)[3:].min() > 0.1
