"""Attention as each source text writes it: by circuits, by heads, by positions, by indices.

Matrices act on columns as in the texts: W_Q, W_K, W_V [d, m], W_O [m, d], and X W^T for rows. Masks are
boolean, True = may read. `Z` is another sequence to read from (cross-attention); without it X attends to itself.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pellucid.reference.functions import softmax
from pellucid.reference.tape import Array, real

Mask = np.ndarray | None


class HeadMatrices(NamedTuple):
    """The four matrices of one attention head: S0 3.2.   W_Q, W_K, W_V [d, m], W_O [m, d]"""

    W_Q: np.ndarray
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray


def default_scale(d_head: int, kind: str = "1/sqrt(d_head)") -> float:
    """The factor before q . k: 1/sqrt(d_head), 1/d_head or 1.

    S1 1.1.2 and footnote 10 (no root), S2 Y, S3 slide 12, S4 sqrt(d); S0 (3.5) has none. Errata E-06, E-22, E-65.
    """
    scales = {"1/sqrt(d_head)": 1 / math.sqrt(d_head), "1/d_head": 1 / d_head, "1": 1.0}
    if kind not in scales:
        raise ValueError(f"scale = {kind!r}: expected one of {', '.join(scales)}")
    return scales[kind]


def qk_circuit(W_Q: Array, W_K: Array) -> Array:
    """W_QK = W_Q^T W_K, of rank at most d   [d, m], [d, m] -> [m, m].   S0 (3.3); S2 Y, times sqrt(d_k). E-46."""
    return real(W_Q).T @ real(W_K)


def ov_circuit(W_O: Array, W_V: Array) -> Array:
    """W_OV = W_O W_V, of rank at most d   [m, d], [d, m] -> [m, m].   S0 (3.4); S2 S = W_O W_V."""
    return real(W_O) @ real(W_V)


def attention_scores(X: Array, W_QK: Array, scale: float = 1.0, Z: Array | None = None) -> Array:
    """scale * X W_QK Z^T: the bilinear form <x_i, z_j> for every pair   X [i, m], Z [j, m] -> [i, j]

    S0 3.3, S2 x Y x^T, S3 slide 13 Score, S4 "Matrix Representation" Z = Q K^T / sqrt(d).
    """
    return scale * (real(X) @ real(W_QK) @ real(X if Z is None else Z).T)


def attention_pattern(X: Array, W_QK: Array, mask: Mask = None, scale: float = 1.0, Z: Array | None = None) -> Array:
    """A = softmax* of the scores, row by row   -> [i, j]

    S0 (3.5), S1 1.1.2 w_bss'a, S2 A, S3 slide 12 Weight, S4 a(e_j, e_i). Errata E-01, E-53.
    """
    return softmax(attention_scores(X, W_QK, scale, Z), where=mask)


def attention_head(
    X: Array, W_QK: Array, W_OV: Array, mask: Mask = None, scale: float = 1.0, Z: Array | None = None
) -> Array:
    """h(X) = (A (x) W_OV) X = A X W_OV^T   X [i, m] -> [i, m].   S0 (3.1), (3.2), (3.6); S2 h(x), erratum E-40."""
    return attention_pattern(X, W_QK, mask, scale, Z) @ real(X if Z is None else Z) @ real(W_OV).T


def attention_head_at(
    i: int, X: Array, W_Q: Array, W_K: Array, W_V: Array, visible: Callable[[int, int], bool], scale: float
) -> np.ndarray:
    """sum_j Weight_ij Value(x_j), for one position i, in explicit sums   X [n, m] -> [d]

    S3 slides 11 to 13: Weight_ij = exp(scale Score_ij) / sum_j' exp(scale Score_ij'), the sums over the j with
    visible(i, j). The mask belongs to the indices, not to the vectors: erratum E-53; E-54 for n_C.
    """
    query = W_Q @ X[i]
    seen = [j for j in range(len(X)) if visible(i, j)]
    scores = {j: scale * float(query @ (W_K @ X[j])) for j in seen}
    total = sum(math.exp(s) for s in scores.values())
    return sum((math.exp(scores[j]) / total * (W_V @ X[j]) for j in seen), np.zeros(len(W_V)))


def multi_head_sum(
    X: Array, heads: list[HeadMatrices], mask: Mask = None, scale: float = 1.0, Z: Array | None = None
) -> Array:
    """sum_h h(X)   X [i, m] -> [i, m].   S0 3.4 (the sum inside ATTN_H), S2 H(x) = sum_j h_j(x)."""
    parts = (attention_head(X, qk_circuit(h.W_Q, h.W_K), ov_circuit(h.W_O, h.W_V), mask, scale, Z) for h in heads)
    return sum(parts, np.zeros(np.shape(X)))


def attention_layer(X: Array, heads: list[HeadMatrices], mask: Mask = None, scale: float = 1.0) -> Array:
    """ATTN_H(X) = X + sum_h h(X)   [i, m] -> [i, m].   S0 3.4; S2 x1 = H(x0) + x0; S4 e <- e + e'."""
    return real(X) + multi_head_sum(X, heads, mask, scale)


def multi_head_concat(
    X: Array, W_Q: Array, W_K: Array, W_V: Array, W_O: Array, mask: Mask = None, scale: float = 1.0,
    Z: Array | None = None, biases: tuple[Array, Array, Array, Array] | None = None,
) -> Array:  # fmt: skip
    """(z_1 || ... || z_H) W_O^T + b_O,  z_h = softmax(scale q_h k_g^T + mask) v_g,  g = floor(h G / H)

    X [..., i, m]; W_Q [H, d, m]; W_K [G, d, m]; W_V [G, d_v, m]; W_O [m, H d_v]; biases of the shapes
    [H, d], [G, d], [G, d_v], [m] -> [..., i, m].
    S1 1.1.2 (q_bsea, head-major (a e), erratum E-29), S3 slide 11, S4 "Value -> Embedding & Multi-Head". G < H is
    the multi-query attention of S1 footnote 9 or grouped queries; Z is the cross-attention of S4's figure.
    """
    X, Y = real(X), real(X if Z is None else Z)
    b_Q, b_K, b_V, b_O = biases or (0.0, 0.0, 0.0, 0.0)
    shared = np.arange(len(W_Q)) * len(W_K) // len(W_Q)
    q = np.einsum("...im,hdm->...hid", X, W_Q) + _rows(b_Q)
    k = (np.einsum("...jm,gdm->...gjd", Y, W_K) + _rows(b_K))[..., shared, :, :]
    v = (np.einsum("...jm,gdm->...gjd", Y, W_V) + _rows(b_V))[..., shared, :, :]
    z = softmax(scale * (q @ np.swapaxes(k, -1, -2)), where=mask) @ v
    z = np.swapaxes(z, -2, -3)
    return z.reshape(*z.shape[:-2], -1) @ np.asarray(W_O).T + b_O


def _rows(b: Array | float) -> Array:
    """A bias [heads, d] with an axis for positions, [heads, 1, d]."""
    return b if np.ndim(b) == 0 else np.asarray(b)[:, None, :]


def heads_of(W_Q: Array, W_K: Array, W_V: Array, W_O: Array) -> list[HeadMatrices]:
    """The heads of stacked matrices [H, d, m] x 3 and W_O [m, H d_v]: the columns of W_O in blocks, head-major.

    S1 1.1.2 (concatenation), S4 "Expressivity" W'_o = (W'_o,1; W'_o,2). Erratum E-29.
    """
    blocks = np.split(np.asarray(W_O), len(W_Q), axis=1)
    shared = np.arange(len(W_Q)) * len(W_K) // len(W_Q)
    return [HeadMatrices(W_Q[h], W_K[g], W_V[g], blocks[h]) for h, g in enumerate(shared)]


def compose_heads(A1: Array, W1: Array, A2: Array, W2: Array) -> tuple[Array, Array]:
    """(A1 (x) W1)(A2 (x) W2) = A1 A2 (x) W1 W2: pattern and OV matrix of the virtual head

    S0 Remark 3.1. It is a head for frozen patterns only: A1 A2 need not be a softmax of any rank-d form. E-20.
    """
    return real(A1) @ real(A2), real(W1) @ real(W2)


def additive_attention(Q: Array, K: Array, W: Array, U: Array, v: Array, mask: Mask = None) -> Array:
    """softmax_j(v . tanh(W q_i + U k_j))   Q [i, d], K [j, d'], W [e, d], U [e, d'], v [e] -> [i, j]

    S4 "Attention Mechanism: Formulation" a(e_j, e_k); Bahdanau et al. 2015.
    """
    hidden = np.tanh((real(Q) @ real(W).T)[:, None, :] + (real(K) @ real(U).T)[None, :, :])
    return softmax(hidden @ real(v), where=mask)
