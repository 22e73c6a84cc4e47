"""Attention: every position reads from the positions its mask allows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.mask import Mask
from pellucid.model.norm import make_qk_norm
from pellucid.model.positions import NoRotation, Rotary
from pellucid.model.shapes import Encoded, Keys, NewKeys, Pattern, Queries, Rotation, SharedKeys, Stream, Visible
from pellucid.model.tap import OFF, Tap


class Attention(nn.Module):
    """out_i = concat_h(sum_j A^h_ij v_j) W_O^T,  A = softmax_j(scale q_i . k_j + mask)   (S0 (3.2); S1 1.1.2; S3; S4)

    `cross`: keys and values are read from an encoder's output, without rotation.
    """

    def __init__(self, a: Architecture, layer: int, cross: bool = False):
        super().__init__()
        self.d_head, self.scale, self.group = a.d_head, a.score_scale, a.n_heads // a.n_kv_heads
        bias_qkv, bias_out = a.attention.bias in ("qkv", "all"), a.attention.bias in ("out", "all")
        self.query = nn.Linear(a.d_model, a.n_heads * a.d_head, bias=bias_qkv)
        self.key = nn.Linear(a.d_model, a.n_kv_heads * a.d_head, bias=bias_qkv)
        self.value = nn.Linear(a.d_model, a.n_kv_heads * a.d_head, bias=bias_qkv)
        self.out = nn.Linear(a.n_heads * a.d_head, a.d_model, bias=bias_out)
        self.query_norm, self.key_norm = make_qk_norm(a, a.n_heads), make_qk_norm(a, a.n_kv_heads)
        self.rotate = Rotary(a, layer) if a.positions.kind == "rotary" and not cross else NoRotation()
        self.mask = Mask(a, layer, cross)
        self.dropout = nn.Dropout(a.dropout.pattern)
        self.cross = cross
        #: how q, k and v are made: `three` products, or another way to the same function
        self.project = self.project_qkv
        #: how sum_j A_ij v_j is computed where no tap needs A: `fused` or `written_out`, the same function
        self.mix = self.fused

    def forward(
        self,
        x: Stream,
        source: Encoded | None = None,
        turn: Rotation | None = None,
        visible: Visible | None = None,
        cache: NoCache = NO_CACHE,
        tap: Tap = OFF,
    ) -> Stream:
        """Read from `source`, or from x itself and what the cache keeps of earlier positions."""
        q, k, v = self.project(x, x if source is None else source, cache)
        q, k, v = tap("q", q), tap("k", k), tap("v", v)
        q, k = self.rotate(self.query_norm(q), self.key_norm(k), turn, tap)
        k, v = cache.extend(k, v)
        z = tap.choose(
            ("scores", "pattern"),
            lambda: self.mix(q, k, v, visible),
            lambda tap: self.written_out(q, k, v, visible, tap),
            lambda tap: self.pattern(q, k, visible, tap),
        )
        z = tap("z", z)
        return tap.choose(("result",), lambda: self.out(z.transpose(1, 2).flatten(2)), lambda tap: self.by_head(z, tap))

    def project_qkv(self, x: Stream, y: Encoded, cache: NoCache = NO_CACHE) -> tuple[Queries, NewKeys, NewKeys]:
        """q of x; k and v of y, or what the cache has kept of an encoder's output."""
        k, v = cache.recall(lambda: (self.heads(self.key(y)), self.heads(self.value(y))))
        return self.heads(self.query(x)), k, v

    def heads(self, x: Tensor) -> Tensor:
        """[batch, pos, heads * d_head] -> [batch, heads, pos, d_head], head-major."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def fused(self, q: Queries, k: Keys, v: Keys, visible: Visible | None) -> Queries:
        """sum_j A_ij v_j without writing A down."""
        triangle = self.mask.is_triangle(q.size(2), k.size(2), visible)
        mask = None if triangle else self.mask(q.size(2), k.size(2), visible, q)
        p = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=p, is_causal=triangle, scale=self.scale, enable_gqa=self.group > 1
        )

    def written_out(self, q: Queries, k: Keys, v: Keys, visible: Visible | None, tap: Tap = OFF) -> Queries:
        """The same with A written down."""
        pattern = self.dropout(self.pattern(q, k, visible, tap))
        return torch.einsum("bhij,bhjd->bhid", pattern, self.shared(v))

    def pattern(self, q: Queries, k: Keys, visible: Visible | None, tap: Tap = OFF) -> Pattern:
        """A. A row that may read nothing is zero."""
        scores = self.cap(torch.einsum("bhid,bhjd->bhij", q * self.scale, self.shared(k)))
        mask = self.mask(q.size(2), k.size(2), visible, q)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        if visible is None and tap is OFF:
            return scores.softmax(-1)  # every rule lets i read i: no row is empty
        scores = tap("scores", scores)
        nothing = scores.amax(-1, keepdim=True) == -torch.inf
        return tap("pattern", scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0))

    def cap(self, scores: Tensor) -> Tensor:
        """What the scores become before the mask: themselves."""
        return scores

    def shared(self, k: Keys) -> SharedKeys:
        """The keys or values that each query head reads."""
        return k if self.group == 1 else k.repeat_interleave(self.group, dim=1)

    def by_head(self, z: Queries, tap: Tap) -> Stream:
        """sum_h result_h + b_O,  result_h = z_h W_O^h^T   (S0 (3.6))"""
        w = self.out.weight.unflatten(1, (-1, self.d_head))
        result = tap("result", torch.einsum("bhid,mhd->bhim", z, w)).sum(1)
        return result if self.out.bias is None else result + self.out.bias


class CappedAttention(Attention):
    """The same with c tanh(score / c) for every score, which no fused kernel knows   (Gemma Team 2024, Gemma 2)"""

    def __init__(self, a: Architecture, layer: int, cross: bool = False):
        super().__init__(a, layer, cross)
        self.c = a.attention.score_cap

    def fused(self, q: Queries, k: Keys, v: Keys, visible: Visible | None) -> Queries:
        return self.written_out(q, k, v, visible)

    def cap(self, scores: Tensor) -> Tensor:
        return self.c * (scores / self.c).tanh()


def make_attention(a: Architecture, layer: int, cross: bool = False) -> Attention:
    """The architecture's attention."""
    return (CappedAttention if a.attention.score_cap else Attention)(a, layer, cross)


def choose_attention_kernel(network: nn.Module, word: str) -> None:
    """How every attention of the network mixes where no tap needs A: `fused` or `written_out`, the same function."""
    for module in network.modules():
        if isinstance(module, Attention):
            module.mix = getattr(module, word)
