"""How z_i = sum_j A_ij v_j is computed from queries, keys, values and a mask: two ways to one function."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.dropout import SampledDropout
from pellucid.model.mask import ScoreMask
from pellucid.model.shapes import Keys, Pattern, Queries, SharedKeys
from pellucid.model.tap import OFF, Tap

KernelName = Literal["fused", "explicit"]


class FusedAttention(nn.Module):
    """z without writing A down, by PyTorch's fused kernels   (Dao et al. 2022)

    They draw dropout by a generator of their own. Where it is drawn by sample, A is written down.
    """

    def __init__(self, a: Architecture, explicit: "ExplicitAttention"):
        super().__init__()
        self.explicit = explicit
        self.scale, self.group = a.score_scale, a.n_heads // a.n_kv_heads
        self.dropout_rate = a.dropout.pattern

    def forward(self, q: Queries, k: Keys, v: Keys, mask: ScoreMask) -> Queries:
        if self.training and self.explicit.dropout.draws_by_sample:
            return self.explicit(q, k, v, mask)
        p = self.dropout_rate if self.training else 0.0
        grouped = self.group > 1 and fuses_groups(q.device, q.dtype, mask.values is not None)
        if not grouped:
            k, v = repeat_kv(k, self.group), repeat_kv(v, self.group)
        return F.scaled_dot_product_attention(
            q, k, v, mask.values, dropout_p=p, is_causal=mask.is_causal, scale=self.scale, enable_gqa=grouped
        )


class ExplicitAttention(nn.Module):
    """z with A written down, which a tap can then keep and edit."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.scale, self.group = a.score_scale, a.n_heads // a.n_kv_heads
        self.dropout = SampledDropout(a.dropout.pattern)

    def forward(self, q: Queries, k: Keys, v: Keys, mask: ScoreMask, tap: Tap = OFF) -> Queries:
        pattern = self.dropout(self.pattern(q, k, mask, tap))
        return torch.einsum("bhij,bhjd->bhid", pattern, repeat_kv(v, self.group))

    def pattern(self, q: Queries, k: Keys, mask: ScoreMask, tap: Tap = OFF) -> Pattern:
        """A = softmax_j(scale q_i . k_j + mask); the row of a query that may read nothing is zero."""
        unedited = mask.applied_to(self.scores(q, k))
        scores = tap("scores", unedited)
        if scores is unedited and not mask.may_block_rows:
            return tap("pattern", scores.softmax(-1))
        blocked = scores.amax(-1, keepdim=True) == -torch.inf
        return tap("pattern", scores.masked_fill(blocked, 0).softmax(-1).masked_fill(blocked, 0))

    def scores(self, q: Queries, k: Keys) -> Pattern:
        """scale q_i . k_j, before the mask"""
        return self.cap(torch.einsum("bhid,bhjd->bhij", q * self.scale, repeat_kv(k, self.group)))

    def cap(self, scores: Tensor) -> Tensor:
        """The scores before the mask; here they have no cap."""
        return scores


class CappedAttention(ExplicitAttention):
    """The same with c tanh(score / c) for every score, which no fused kernel knows   (Gemma Team 2024, Gemma 2)"""

    def __init__(self, a: Architecture):
        super().__init__(a)
        self.c = a.attention.score_cap

    def cap(self, scores: Tensor) -> Tensor:
        return self.c * (scores / self.c).tanh()


def why_not_fused(a: Architecture) -> str:
    """The option of attention that no fused kernel computes; "" where one does."""
    return f"attention.score_cap = {a.attention.score_cap:g}" if a.attention.score_cap else ""


def fuses_groups(device: torch.device, dtype: torch.dtype, is_masked: bool) -> bool:
    """Whether a fused kernel of this device reads keys and values that several query heads share.

    On CUDA one does, from Ampere on, without a mask of values and in numbers of two bytes; PyTorch would store all of A
    for the others.
    """
    if device.type != "cuda":
        return True
    return not is_masked and dtype in (torch.bfloat16, torch.float16) and is_ampere(device)


def is_ampere(device: torch.device) -> bool:
    """Whether an NVIDIA GPU is of compute capability 8.0 or later."""
    return torch.cuda.get_device_properties(device).major >= 8  # which torch.compile takes as a constant


def repeat_kv(x: Keys, times: int) -> SharedKeys:
    """The keys or values that each query head reads: every head of x `times` times in a row."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)
