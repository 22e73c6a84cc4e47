"""Blocks as S0 section 4 composes them: functions that take the attention and the MLP as maps."""

from collections.abc import Callable, Sequence

import numpy as np

from pellucid.reference.tape import Array, real

Map = Callable[[Array], Array]


def residual(f: Map) -> Map:
    """G(x) = x + f(x), without parameters of its own.   S3 slide 8; S0 2.3, 3.4; S4 "Residual Layers"."""
    return lambda x: real(x) + f(x)


def identity(x: Array) -> Array:
    """x, the norm of S0 and S2, which have none."""
    return x


def block(X: Array, heads: Map, m: Map, norm: str = "none", norm_1: Map = identity, norm_2: Map = identity) -> Array:
    """B(X) for heads(X) = sum_h h(X) and an MLP m   [n, d] -> [n, d]

    none  Y = X + heads(X);           Y + m(Y)              S0 (4.1); (4.2) with its lost term, erratum E-04
    pre   Y = X + heads(norm_1(X));   Y + m(norm_2(Y))      S1 1.1.1.1, S4 "Normalization and Dropout"
    post  Y = norm_1(X + heads(X));   norm_2(Y + m(Y))      S3 slide 8; erratum E-58
    """
    if norm == "post":
        Y = norm_1(real(X) + heads(X))
        return norm_2(Y + m(Y))
    if norm not in ("none", "pre"):
        raise ValueError(f"norm = {norm!r}: expected none, pre or post")
    first, second = (norm_1, norm_2) if norm == "pre" else (identity, identity)
    Y = real(X) + heads(first(X))
    return Y + m(second(Y))


def parallel_block(X: Array, heads: Map, m: Map, norm_1: Map = identity, norm_2: Map = identity) -> Array:
    """X + heads(norm_1(X)) + m(norm_2(X))   [n, d] -> [n, d].   S0 Remark 4.1 with X counted once: erratum E-05."""
    return real(X) + heads(norm_1(X)) + m(norm_2(X))


def decoder_stack(X: Array, blocks: Sequence[Map]) -> Array:
    """D = B_n . ... . B_1, the identity for no blocks   [n, d] -> [n, d].   S0 4.2; S3 slide 3; S4 "Deep"."""
    for B in blocks:
        X = B(X)
    return X


def residual_stream(X: Array, sublayers: Sequence[Map]) -> tuple[list[Array], list[Array]]:
    """The stream before and after each sublayer, and what each adds: x_l = x_{l-1} + f_l(x_{l-1})

    S1 footnote 3, S2 x0, x1, x2. Returns ([x_0 ... x_L], [f_1(x_0) ... f_L(x_{L-1})]), so that x_L = x_0 + sum.
    """
    stream, added = [real(X)], []
    for f in sublayers:
        added.append(f(stream[-1]))
        stream.append(stream[-1] + added[-1])
    return stream, added


def block_at(i: int, X: Array, attend_at: Callable[[int, Array], Array], m: Map, norm_1: Map, norm_2: Map) -> Array:
    """T^(l)(i, <x_1 ... x_n>) = norm_2(y + m(y)), y = norm_1(x_i + attend_at(i, X)), for one position   -> [d]

    S3 slides 4 and 8. `attend_at` is Attention^(l) of slide 11, for one position. Errata E-57, E-58.
    """
    y = norm_1(real(X)[i] + attend_at(i, X))
    return norm_2(y + m(y))


def one_head_transformer(
    E: Array, W_Q: Array, W_K: Array, W_V: Array, W_O: Array, W_1: Array, W_proj: Array, W_out: Array,
    activation: Map, pattern: Callable[[Array], Array], norm: Map = identity,
) -> Array:  # fmt: skip
    """The whole transformer on one page: one block with one head   E [T, d] -> next-token logits [T, n_tokens]

    S4 "Matrix Representation of One-Head Attention", the norms as branches of the stream (erratum E-66) and
    A = row-softmax(Z + M) (erratum E-62); a prime is a transpose (E-78). `pattern` is that row-softmax.
    """
    Y = norm(E)
    Q, K, V = Y @ W_Q.T, Y @ W_K.T, Y @ W_V.T
    A = pattern(Q @ np.swapaxes(K, -1, -2) / np.sqrt(W_Q.shape[0]))
    E_hat = E + A @ V @ W_O.T
    E_tilde = activation(norm(E_hat) @ W_1.T) @ W_proj.T
    return (E_hat + E_tilde) @ W_out.T
