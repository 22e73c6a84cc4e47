"""Which keys a query may read, and what its scores gain from their distance.

Queries are the last n_queries of n_keys positions: with a cache the keys reach further back.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.model.positions import ScoreBiasScheme, make_score_bias
from pellucid.model.shapes import PositionIds, Visible


def causal(i: Tensor, j: Tensor) -> Tensor:
    """j <= i (Goon, with its printed inequality turned round)."""
    return j <= i


def attend_everywhere(i: Tensor, j: Tensor) -> Tensor:
    """j is any position."""
    return (j == j) | (i == i)


def prefix_mask(lengths: Int[Tensor, " batch"], n: int) -> Visible:
    """[batch, n, n]: j <= i, or j inside the row's prefix of the given length."""
    j = torch.arange(n, device=lengths.device)
    return causal(j[:, None], j) | (j < lengths[:, None])[:, None, :]


def padding_mask(real: Bool[Tensor, "batch pos"]) -> Visible:
    """[batch, n, n]: every j that is no padding, and i itself, so that padding too has something to read."""
    return real[:, None] | torch.eye(real.size(1), dtype=torch.bool, device=real.device)


def documents_mask(documents: PositionIds) -> Visible:
    """[batch, n, n]: j <= i, and both in the same document, given as one number per position."""
    j = torch.arange(documents.size(-1), device=documents.device)
    return causal(j[:, None], j) & (documents[..., :, None] == documents[..., None, :])


class ScoreMask(NamedTuple):
    """The mask of one call, for queries and keys of known numbers.

    values          [batch or 1, head or 1, query, key]: True where a query may read a key, or numbers that are added
                    to the scores; None where nothing limits, or where `is_causal` says it all
    is_causal       there are as many queries as keys, and i reads every j <= i
    may_block_rows  whether some query may have no key to read
    """

    values: Tensor | None
    is_causal: bool
    may_block_rows: bool

    def applied_to(self, scores: Tensor) -> Tensor:
        """The scores [batch, head, query, key], -inf where a query may not read a key."""
        values = self.values
        if self.is_causal:
            j = torch.arange(scores.size(-1), device=scores.device)
            values = causal(j[:, None], j)
        if values is None:
            return scores
        return scores.masked_fill(~values, -torch.inf) if values.dtype == torch.bool else scores + values


class Mask(nn.Module):
    """The rule of one layer: attention.mask, its window, and what scores gain from their distance."""

    def __init__(self, a: Architecture, layer: int, cross: bool = False):
        super().__init__()
        unlimited = cross or a.attention.mask == "bidirectional"
        self.rule = attend_everywhere if unlimited else causal
        self.window = 0 if cross else a.window(layer)
        biased = a.biases_scores and not cross
        #: what the scores gain; one that all layers share is put here by the backbone
        self.position_bias: ScoreBiasScheme | None = make_score_bias(a) if biased else None
        #: the rule is j <= i alone, which attention kernels know without being told pair by pair
        self.plain = not unlimited and not self.window and not biased
        self.unlimited = unlimited and not self.window and not biased

    def between(self, q: Tensor, k: Tensor, given: Visible | None = None) -> ScoreMask:
        """The mask between queries and keys [batch, head, pos, d_head]; `given` replaces the rule."""
        n_queries, n_keys = q.size(2), k.size(2)
        is_causal = self.is_causal(n_queries, n_keys, given)
        # every rule lets i read i, so that only a mask that is given can leave a row empty
        return ScoreMask(None if is_causal else self(n_queries, n_keys, given, q), is_causal, given is not None)

    def is_causal(self, n_queries: int, n_keys: int, given: Tensor | None) -> bool:
        """Whether the causal flag of a fused kernel says it all."""
        # decided here: where sizes may change, a compiler's comparison is a symbol, which the kernel does not take
        if self.plain and given is None and n_queries == n_keys:  # noqa: SIM103
            return True
        return False

    def forward(self, n_queries: int, n_keys: int, given: Visible | None, like: Tensor) -> Tensor | None:
        """What is added to the scores, or a boolean mask [batch or 1, 1, query, key], or None for no limit.

        `given`, True where a query may read a key, replaces the rule of attention.mask.
        """
        if given is None and (self.unlimited or (self.plain and n_queries == 1)):
            return None
        j = torch.arange(n_keys, device=like.device)
        i = j[n_keys - n_queries :, None]
        visible = self.rule(i, j) if given is None else given
        if self.window:
            visible = visible & ((i - j).abs() < self.window)
        visible = visible if visible.ndim == 2 else visible[:, None]
        if self.position_bias is None:
            return visible
        return self.position_bias.score_bias(i, j).to(like.dtype).masked_fill(~visible, -torch.inf)
