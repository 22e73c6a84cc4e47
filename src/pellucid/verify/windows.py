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

#: keys that a mask is asked for; fewer with relative positions, whose buckets the definition finds one by one
MOST_KEYS, MOST_RELATIVE_KEYS = 2**16, 2**12
#: queries, the last of the keys as in a cached step, and whether a mask is given: one query alone may need no mask
ASKED = ((1, False), (2, False), (2, True))


def compare_masks(network: Transformer, weights: Weights, tolerance: float = TOLERANCE) -> Iterator[Difference]:
    """What every layer adds to its scores, at the edges of its window and the end of the context, layer by layer."""
    a = network.architecture
    if network.encoder is not None and a.encoder is not None:
        own = {name.removeprefix("encoder."): w for name, w in weights.items() if name.startswith("encoder.")}
        yield from _compare_masks(network.encoder, a.encoder, own, "encoder.", tolerance)
    yield from _compare_masks(network, a, weights, "", tolerance)


def _compare_masks(
    network: Backbone, a: Architecture, weights: Weights, prefix: str, tolerance: float
) -> Iterator[Difference]:
    """The same of one stack of blocks."""
    expected: dict[tuple[int, int, int, bool], np.ndarray] = {}
    for layer, block in enumerate(network.blocks):
        name, mask = f"{prefix}blocks.{layer}.attn.scores", cast(MultiHeadAttention, block.attn).mask
        for n_keys in edges(a, layer):
            if mask.is_causal(n_keys, n_keys, None) and not is_triangle(a, layer, n_keys):
                yield Difference(name, None, f"the kernel is told that {n_keys} tokens read all earlier ones")
            for n, drawn in ASKED:
                if n > n_keys:
                    continue
                call_mask = draw_mask(n, n_keys) if drawn else None
                key = (a.window(layer), n, n_keys, drawn)
                if key not in expected:
                    expected[key] = added_to_scores(a, layer, n, n_keys, call_mask, weights)
                added = added_by(mask, n, n_keys, call_mask, expected[key].shape)
                yield compare(name, added, expected[key], tolerance=tolerance)


def edges(a: Architecture, layer: int) -> list[int]:
    """How many keys a layer's mask is asked for: around its window, around the last bucket, and all of the context."""
    most = most_keys(a)
    window, last = a.window(layer), a.positions.max_distance if a.positions.kind == "relative" else 0
    wanted = {1, 2, most, *(edge + more for edge in (window, last) if edge for more in (0, 1, 2))}
    return sorted(n for n in wanted if 1 <= n <= most)


def most_keys(a: Architecture) -> int:
    """The most keys that a mask is asked for."""
    return min(a.n_ctx, MOST_RELATIVE_KEYS if a.positions.kind == "relative" else MOST_KEYS)


def is_triangle(a: Architecture, layer: int, n: int) -> bool:
    """Whether in n tokens every one reads all before it and itself, and distances add nothing to the scores."""
    window = a.window(layer)
    return a.attention.mask != "bidirectional" and not a.biases_scores and not 0 < window < n


def draw_mask(n: int, n_keys: int) -> np.ndarray:
    """A mask given with the input [n, n_keys], in which every query reads something."""
    drawn = np.random.default_rng(0).random((n, n_keys)) < 0.6
    drawn[:, -1] = True
    return drawn


def added_to_scores(
    a: Architecture, layer: int, n: int, n_keys: int, given: np.ndarray | None, weights: Weights
) -> np.ndarray:
    """What the definition adds to the scores of the last n of n_keys tokens [head or 1, n, n_keys]."""
    visible = layers.visible_keys(a, layer, n, n_keys, given)[0]
    distance = layers.distances(a, n, n_keys, weights.get("relative.weight"))
    return np.where(visible, distance, -np.inf)


def added_by(mask: Mask, n: int, n_keys: int, call_mask: np.ndarray | None, shape: tuple[int, ...]) -> torch.Tensor:
    """The same, as a layer's mask says it."""
    like = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        added = mask(n, n_keys, None if call_mask is None else torch.from_numpy(call_mask), like)
    if added is None:
        return torch.zeros(shape, dtype=torch.float64)
    if added.dtype == torch.bool:
        added = torch.zeros(added.shape, dtype=torch.float64).masked_fill(~added, -torch.inf)
    return added.reshape(-1, *added.shape[-2:]).expand(shape)
