"""Attention: every position reads from the positions its mask allows."""

import torch
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.kernels import CappedAttention, ExplicitAttention, FusedAttention, KernelName, why_not_fused
from pellucid.model.mask import Mask
from pellucid.model.norm import make_qk_norm
from pellucid.model.positions import NoRotation, make_rotary
from pellucid.model.shapes import Encoded, HeadResults, Keys, NewKeys, Queries, Rotation, Stream, Visible
from pellucid.model.tap import OFF, Tap


class MultiHeadAttention(nn.Module):
    """out_i = concat_h(sum_j A^h_ij v_j) W_O^T,  A = softmax_j(scale q_i . k_j + mask)   (Becker-Kahn (3.2))

    `cross`: keys and values are read from an encoder's output, without rotation.
    """

    def __init__(self, a: Architecture, layer: int, cross: bool = False):
        super().__init__()
        self.d_head, self.group, self.cross = a.d_head, a.n_heads // a.n_kv_heads, cross
        bias_qkv, bias_out = a.attention.bias in ("qkv", "all"), a.attention.bias in ("out", "all")
        self.query = nn.Linear(a.d_model, a.n_heads * a.d_head, bias=bias_qkv)
        self.key = nn.Linear(a.d_model, a.n_kv_heads * a.d_head, bias=bias_qkv)
        self.value = nn.Linear(a.d_model, a.n_kv_heads * a.d_head, bias=bias_qkv)
        self.out = nn.Linear(a.n_heads * a.d_head, a.d_model, bias=bias_out)
        self.query_norm, self.key_norm = make_qk_norm(a, a.n_heads), make_qk_norm(a, a.n_kv_heads)
        self.rotary = NoRotation() if cross else make_rotary(a, layer)
        self.mask = Mask(a, layer, cross)
        #: taps of scores and patterns need the explicit kernel, whichever computes z
        self.explicit = CappedAttention(a) if a.attention.score_cap else ExplicitAttention(a)
        self.fused = self.explicit if why_not_fused(a) else FusedAttention(a, self.explicit)
        self.kernel = self.fused

    def forward(
        self,
        x: Stream,
        source: Encoded | None = None,
        rotation: Rotation | None = None,
        visible: Visible | None = None,
        cache: NoCache = NO_CACHE,
        tap: Tap = OFF,
    ) -> Stream:
        """What is read from `source`, or from x itself and from earlier positions that the cache keeps."""
        q, k, v = self.project_qkv(x, x if source is None else source, cache)
        q, k, v = tap("q", q), tap("k", k), tap("v", v)
        q, k = self.rotary.rotated(self.query_norm(q), self.key_norm(k), rotation, tap)
        z = tap("z", cache.attended(self.attend, q, k, v, visible, tap))
        return self.project_out(z, tap)

    def project_qkv(self, x: Stream, y: Encoded, cache: NoCache = NO_CACHE) -> tuple[Queries, NewKeys, NewKeys]:
        """Queries of x; keys and values of y, or those of an encoder's output that the cache keeps."""
        k, v = cache.recall(lambda: (self.heads(self.key(y)), self.heads(self.value(y))))
        return self.heads(self.query(x)), k, v

    def heads(self, x: Tensor) -> Tensor:
        """[batch, pos, heads * d_head] -> [batch, heads, pos, d_head], head-major."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def attend(self, q: Queries, k: Keys, v: Keys, visible: Visible | None = None, tap: Tap = OFF) -> Queries:
        """z_i = sum_j A_ij v_j, by the kernel; with A written down where a tap edits it or wants its gradient."""
        mask = self.mask.between(q, k, visible)
        return tap.choose(
            ("scores", "pattern"),
            lambda: self.kernel(q, k, v, mask),
            lambda tap: self.explicit(q, k, v, mask, tap),
            lambda tap: self.explicit.pattern(q, k, mask, tap),
        )

    def project_out(self, z: Queries, tap: Tap = OFF) -> Stream:
        """concat_h(z_h) W_O^T + b_O"""
        return tap.choose(
            ("result",),
            lambda: self.out(z.transpose(1, 2).flatten(2)),
            lambda tap: self.sum_of_results(z, tap),
            lambda tap: self.results(z, tap),
        )

    def sum_of_results(self, z: Queries, tap: Tap) -> Stream:
        """sum_h result_h + b_O"""
        total = self.results(z, tap).sum(1)
        return total if self.out.bias is None else total + self.out.bias

    def results(self, z: Queries, tap: Tap) -> HeadResults:
        """result_h = z_h W_O^h^T   (Becker-Kahn (3.6))"""
        w = self.out.weight.unflatten(1, (-1, self.d_head))
        return tap("result", torch.einsum("bhid,mhd->bhim", z, w))


def choose_attention_kernel(network: nn.Module, name: KernelName) -> None:
    """Compute z by the fused or by the explicit kernel in every attention; where no fused one can, by the explicit."""
    for module in network.modules():
        if isinstance(module, MultiHeadAttention):
            module.kernel = module.fused if name == "fused" else module.explicit
