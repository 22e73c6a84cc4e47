"""The masks of every layer alone: windows and distances far beyond the tokens that can be read in a row."""

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch

from pellucid.architecture import Architecture
from pellucid.model import Backbone, Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.mask import Mask
from pellucid.reference import layers
from pellucid.verify.comparison import Weights, compare
from pellucid.verify.report import TOLERANCE, Difference

#: the most keys that a mask is computed for
MAX_KEYS = 2**16
#: the same with relative positions, whose buckets the reference finds one by one
MAX_RELATIVE_KEYS = 2**12
#: the number of queries, which are the last of the keys as in a cached step, and whether the call has its own mask: one
#: query alone may need none
QUERIES = ((1, False), (2, False), (2, True))


def compare_masks(network: Transformer, weights: Weights, tolerance: float = TOLERANCE) -> Iterator[Difference]:
    """What every layer adds to its scores, at the edges of its window and the end of the context, layer by layer."""
    a = network.architecture
    if network.encoder is not None and a.encoder is not None:
        own = {name.removeprefix("encoder."): w for name, w in weights.items() if name.startswith("encoder.")}
        yield from _compare_masks_of(network.encoder, a.encoder, own, "encoder.", tolerance)
    yield from _compare_masks_of(network, a, weights, "", tolerance)


def _compare_masks_of(
    network: Backbone, a: Architecture, weights: Weights, prefix: str, tolerance: float
) -> Iterator[Difference]:
    """The same of one stack of blocks."""
    expected: dict[tuple[int, int, int, bool], np.ndarray] = {}
    for layer, block in enumerate(network.blocks):
        name, mask = f"{prefix}blocks.{layer}.attn.scores", cast(MultiHeadAttention, block.attn).mask
        for n_keys in tested_lengths(a, layer):
            if mask.is_causal(n_keys, n_keys, None) and not is_plain_causal(a, layer, n_keys):
                yield Difference(name, None, f"the kernel is told that {n_keys} tokens read all earlier ones")
            for n, has_call_mask in QUERIES:
                if n > n_keys:
                    continue
                call_mask = random_mask(n, n_keys) if has_call_mask else None
                key = (a.window(layer), n, n_keys, has_call_mask)
                if key not in expected:
                    expected[key] = reference_score_bias(a, layer, n, n_keys, call_mask, weights)
                added = engine_score_bias(mask, n, n_keys, call_mask, expected[key].shape)
                yield compare(name, added, expected[key], tolerance=tolerance)


def tested_lengths(a: Architecture, layer: int) -> list[int]:
    """The numbers of keys that a layer's mask is computed for: around its window and the last bucket, and n_ctx."""
    most = max_keys(a)
    window, last = a.window(layer), a.positions.max_distance if a.positions.kind == "relative" else 0
    wanted = {1, 2, most, *(edge + more for edge in (window, last) if edge for more in (0, 1, 2))}
    return sorted(n for n in wanted if 1 <= n <= most)


def max_keys(a: Architecture) -> int:
    """The most keys that a mask is computed for."""
    return min(a.n_ctx, MAX_RELATIVE_KEYS if a.positions.kind == "relative" else MAX_KEYS)


def is_plain_causal(a: Architecture, layer: int, n: int) -> bool:
    """Whether in n tokens every one reads all before it and itself, and distances add nothing to the scores."""
    window = a.window(layer)
    return a.attention.mask != "bidirectional" and not a.biases_scores and not 0 < window < n


def random_mask(n: int, n_keys: int) -> np.ndarray:
    """A mask of a call [n, n_keys], in which every query reads something."""
    mask = np.random.default_rng(0).random((n, n_keys)) < 0.6
    mask[:, -1] = True
    return mask


def reference_score_bias(
    a: Architecture, layer: int, n: int, n_keys: int, call_mask: np.ndarray | None, weights: Weights
) -> np.ndarray:
    """What the reference adds to the scores of the last n of n_keys tokens [head or 1, n, n_keys]."""
    visible = layers.visible_keys(a, layer, n, n_keys, call_mask)[0]
    distance = layers.distances(a, n, n_keys, weights.get("relative.weight"))
    return np.where(visible, distance, -np.inf)


def engine_score_bias(
    mask: Mask, n: int, n_keys: int, call_mask: np.ndarray | None, shape: tuple[int, ...]
) -> torch.Tensor:
    """What the engine's mask adds to them, of this shape."""
    like = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        added = mask(n, n_keys, None if call_mask is None else torch.from_numpy(call_mask), like)
    if added is None:
        return torch.zeros(shape, dtype=torch.float64)
    if added.dtype == torch.bool:
        added = torch.zeros(added.shape, dtype=torch.float64).masked_fill(~added, -torch.inf)
    return added.reshape(-1, *added.shape[-2:]).expand(shape)
