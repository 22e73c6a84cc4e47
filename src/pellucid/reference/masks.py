"""Which positions a position may read: boolean matrices [query, key], True = may read.

The printed masks of 0 and -inf are `additive(mask)`. S1 prints its inequality upside down (erratum E-21), and S4
multiplies by the mask (E-62). A query whose row is False throughout reads nothing, and its output is 0 (E-59).
"""

import numpy as np


def _indices(n: int, n_keys: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Row and column numbers; where there are more keys than queries, the queries are the last keys."""
    n_keys = n if n_keys is None else n_keys
    if n_keys < n:
        raise ValueError(
            f"{n} queries but {n_keys} keys: expected at least as many keys, since the queries are the last of them"
        )
    return np.arange(n_keys - n, n_keys)[:, None], np.arange(n_keys)[None, :]


def causal_mask(n: int, n_keys: int | None = None) -> np.ndarray:
    """j <= i   [n, n_keys]

    S0 3.1 (i >= j), S1 1.1.2 m_ss' with its inequality turned round, S4 "Causal and Bidirectional Attention".
    Erratum E-21.
    """
    i, j = _indices(n, n_keys)
    return j <= i


def anti_causal_mask(n: int) -> np.ndarray:
    """j >= i, the mask that S1 1.1.2 prints: the exact mirror image of the causal one   [n, n]. Erratum E-21."""
    return causal_mask(n)[::-1, ::-1].copy()


def bidirectional_mask(n: int, n_keys: int | None = None) -> np.ndarray:
    """Every position reads every j   [n, n_keys].

    S4 "Causal and Bidirectional Attention", S3 slide 2 (masked models).
    """
    return np.ones((n, n if n_keys is None else n_keys), bool)


def prefix_mask(n: int, prefix: int) -> np.ndarray:
    """j <= i or j < prefix: the prefix reads itself in both directions   [n, n].   S3 slide 12 "masked for i"."""
    i, j = _indices(n, None)
    return (j <= i) | (j < prefix)


def window_mask(n: int, width: int, n_keys: int | None = None) -> np.ndarray:
    """|i - j| < width   [n, n_keys].   S3 slide 12 "masked for i"; the bands of Brown et al. 2020 (S1 [3])."""
    i, j = _indices(n, n_keys)
    return np.abs(i - j) < width


def padding_mask(real: np.ndarray) -> np.ndarray:
    """True for keys that are real tokens   real [..., n] -> [..., 1, n].   S3 slide 12 "masked for i"."""
    return np.asarray(real, bool)[..., None, :]


def documents_mask(documents: np.ndarray) -> np.ndarray:
    """j <= i, both in the same document, given by number   [..., n] -> [..., n, n].   S0 1.1 artefacts; S3 slide 12."""
    documents = np.asarray(documents)
    return causal_mask(documents.shape[-1]) & (documents[..., :, None] == documents[..., None, :])


def additive(mask: np.ndarray) -> np.ndarray:
    """0 where the mask is True, -inf elsewhere: the M of softmax*(A) = softmax(A + M).

    S0 3.1 (the matrix M), S1 1.1.2 m_ss', S4 "Matrix Representation" with + in the place of the printed product.
    Errata E-21, E-62.
    """
    return np.where(mask, 0.0, -np.inf)
