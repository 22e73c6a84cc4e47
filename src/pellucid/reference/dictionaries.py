"""Sparse dictionaries, as defined in their papers: features of what a layer reads, and what it computes from them."""

import numpy as np

from pellucid.reference.functions import relu


def jump_relu(h: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """h where it is above the threshold, else 0   (Rajamanoharan et al. 2024, eq. 3)"""
    return h * (h > threshold)


def top_k(h: np.ndarray, k: int) -> np.ndarray:
    """The k largest of each row where they are positive, else 0; of equal ones the first   (Gao et al. 2024, eq. 3)"""
    order = np.argsort(-h, axis=-1, kind="stable")[..., :k]
    kept = np.zeros_like(h)
    np.put_along_axis(kept, order, np.take_along_axis(h, order, -1), -1)
    return relu(kept)


def batch_top_k(h: np.ndarray, k: int) -> np.ndarray:
    """The k n largest of the n rows together where they are positive, else 0   (Bussmann et al. 2024, eq. 5)"""
    return top_k(h.reshape(1, -1), k * len(h)).reshape(h.shape)


def dictionary_output(
    x: np.ndarray, features: np.ndarray, W_dec: np.ndarray, b_dec: np.ndarray, W_skip: np.ndarray | None = None
) -> np.ndarray:
    """f W_dec + b_dec (Dunefsky et al. 2024, eq. 2), and x W_skip^T where there is a skip (Paulo et al. 2025, eq. 2)"""
    out = features @ W_dec + b_dec
    return out if W_skip is None else out + x @ W_skip.T


def unexplained_variance(target: np.ndarray, output: np.ndarray) -> float:
    """sum |target - output|^2 / sum |target - mean target|^2, over rows   (Gao et al. 2024, section 2.1)"""
    centred = target - target.mean(axis=0)
    return float(np.square(target - output).sum() / np.square(centred).sum())
