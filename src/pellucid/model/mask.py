"""Which keys a query may read, and what its scores gain from their distance.

Queries are the last n_queries of n_keys positions: with a cache the keys reach further back.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.model.positions import Slopes
from pellucid.model.shapes import PositionIds, Visible


def causal(i: Tensor, j: Tensor) -> Tensor:
    """j <= i (S1, with its printed inequality turned round; S4)."""
    return j <= i


def everything(i: Tensor, j: Tensor) -> Tensor:
    """Every j."""
    return (j == j) | (i == i)


def prefix_mask(lengths: Int[Tensor, " batch"], n: int) -> Visible:
    """[batch, n, n]: j <= i, or j inside the row's prefix of the given length."""
    place = torch.arange(n, device=lengths.device)
    return causal(place[:, None], place) | (place < lengths[:, None])[:, None, :]


def padding_mask(real: Bool[Tensor, "batch pos"]) -> Visible:
    """[batch, n, n]: every j that is no padding, and i itself, so that padding too has something to read."""
    return real[:, None] | torch.eye(real.size(1), dtype=torch.bool, device=real.device)


def documents_mask(documents: PositionIds) -> Visible:
    """[batch, n, n]: j <= i, and both in the same document, given as one number per position."""
    place = torch.arange(documents.size(-1), device=documents.device)
    return causal(place[:, None], place) & (documents[..., :, None] == documents[..., None, :])


class Mask(nn.Module):
    """The rule of one layer: the architecture's word, its window, and what scores gain from their distance."""

    def __init__(self, a: Architecture, layer: int, cross: bool = False):
        super().__init__()
        unlimited = cross or a.attention.mask == "bidirectional"
        self.rule = everything if unlimited else causal
        self.window = 0 if cross else a.window(layer)
        near = a.positions.kind in ("alibi", "relative") and not cross
        #: i, j -> [head, query, key]; the table of relative positions is the stack's, which puts it here
        self.distance: nn.Module | None = Slopes(a) if near and a.positions.kind == "alibi" else None
        #: the rule is j <= i alone, which attention kernels know without being told pair by pair
        self.plain = not unlimited and not self.window and not near
        self.unlimited = unlimited and not self.window and not near

    def is_triangle(self, n_queries: int, n_keys: int, given: Tensor | None) -> bool:
        """Whether the kernel's own causal flag says it all."""
        # decided here: where sizes may change, a compiler's comparison is a symbol, which the kernel does not take
        if self.plain and given is None and n_queries == n_keys:  # noqa: SIM103
            return True
        return False

    def forward(self, n_queries: int, n_keys: int, given: Visible | None, like: Tensor) -> Tensor | None:
        """What is added to the scores, or a boolean mask [batch or 1, 1, query, key], or None for no limit.

        `given`, True where a query may read a key, takes the place of the word's rule.
        """
        if given is None and (self.unlimited or (self.plain and n_queries == 1)):
            return None
        j = torch.arange(n_keys, device=like.device)
        i = j[n_keys - n_queries :, None]
        visible = self.rule(i, j) if given is None else given
        if self.window:
            visible = visible & ((i - j).abs() < self.window)
        visible = visible if visible.ndim == 2 else visible[:, None]
        if self.distance is None:
            return visible
        return self.distance(i, j).to(like.dtype).masked_fill(~visible, -torch.inf)
