"""Normalisation of a vector over its last axis. `name` is what the tap calls the result."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.tap import OFF, Tap

INNER = ("scale", "normalized")


class ScaledNorm(nn.Module):
    """What the norms share: a gain g, or 1 + g of which g is stored, or 1, and two ways to one result."""

    def __init__(self, a: Architecture, width: int):
        super().__init__()
        self.shape, self.eps = (width,), a.norm.eps
        self.added = {"g": 0.0, "1+g": 1.0, "1": 1.0}[a.norm.gain]
        self.gain = None if a.norm.gain == "1" else nn.Parameter(torch.full((width,), 1 - self.added))

    @property
    def multiplier(self) -> Tensor:
        """g, 1 + g, or the number 1"""
        if self.gain is None:
            return torch.ones(())
        return self.by_head(self.gain + self.added if self.added else self.gain)

    def by_head(self, gain: Tensor) -> Tensor:
        """The gain in the shape that multiplies x; where each head has its own, one row for each head."""
        return gain

    @property
    def kernel_gain(self) -> Tensor | None:
        """The multiplier as PyTorch's norms take it: None for the number 1."""
        return None if self.gain is None else self.multiplier

    def forward(self, x: Tensor, tap: Tap = OFF, name: str = "norm") -> Tensor:
        y = tap.at(name).choose(
            INNER,
            lambda: self.fused(x),
            lambda tap: self.written_out(x, tap),
            lambda tap: self.normalized(x, tap),
        )
        return tap(name, y)

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def written_out(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        return self.multiplier * self.normalized(x, tap)

    def normalized(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        """The vector before its gain."""
        raise NotImplementedError


class LayerNorm(ScaledNorm):
    """gain * (x - mu) / sigma + bias,  sigma = sqrt(var(x) + eps)   (Ba et al. 2016)"""

    def __init__(self, a: Architecture, width: int, has_bias: bool = True):
        super().__init__(a, width)
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias and a.norm.bias == "all" else None

    def fused(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.kernel_gain, self.bias, self.eps)

    def written_out(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        y = super().written_out(x, tap)
        return y if self.bias is None else y + self.bias

    def normalized(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return tap("normalized", centred / tap("scale", self.sigma(centred)))

    def sigma(self, centred: Tensor) -> Tensor:
        """The divisor, [..., 1]."""
        return (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()


class LayerNormEpsOutside(LayerNorm):
    """sigma = sqrt(var(x)) + eps   (AP and MF, slide 9, with its lost minus sign restored)"""

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def sigma(self, centred: Tensor) -> Tensor:
        # a root of squares has no gradient at 0, which a sublayer may add; a length has
        return torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / centred.size(-1) ** 0.5 + self.eps


class RMSNorm(ScaledNorm):
    """gain * x / rho,  rho = sqrt(mean(x^2) + eps)   (Zhang and Sennrich 2019)"""

    def fused(self, x: Tensor) -> Tensor:
        # the fused kernel wants one type: under autocast the input is bfloat16 and the gain float32
        gain = self.kernel_gain
        return F.rms_norm(x, self.shape, None if gain is None else gain.to(x.dtype), self.eps)

    def normalized(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        return tap("normalized", x / tap("scale", self.rho(x)))

    def rho(self, x: Tensor) -> Tensor:
        """The divisor, [..., 1]."""
        return (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class RMSNormEpsOutside(RMSNorm):
    """rho = sqrt(mean(x^2)) + eps"""

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def rho(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True) / x.size(-1) ** 0.5 + self.eps


class RMSNormOfHeads(RMSNorm):
    """The same over all heads of a position together: x is [batch, head, pos, d_head]   (OLMo et al. 2024)"""

    def __init__(self, a: Architecture, n_heads: int):
        super().__init__(a, n_heads * a.d_head)
        self.n_heads = n_heads

    def by_head(self, gain: Tensor) -> Tensor:
        return gain.view(self.n_heads, 1, -1)

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def rho(self, x: Tensor) -> Tensor:
        return (x.square().mean((1, 3), keepdim=True) + self.eps).sqrt()


class LayerNormOfEachHead(LayerNorm):
    """gain_h * (x_h - mu_h) / sigma_h for head h: x is [batch, head, pos, d_head]   (StableLM 2, Command R+)"""

    def __init__(self, a: Architecture, n_heads: int):
        super().__init__(a, n_heads * a.d_head, has_bias=False)
        self.n_heads = n_heads

    def by_head(self, gain: Tensor) -> Tensor:
        return gain.view(self.n_heads, 1, -1)

    def fused(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:], None, None, self.eps)
        return y if self.gain is None else self.multiplier * y


class Identity(nn.Module):
    """x, which is not a tensor of its own and has no name"""

    def forward(self, x: Tensor, tap: Tap = OFF, name: str = "norm") -> Tensor:
        return x


def make_norm(a: Architecture, width: int = 0) -> nn.Module:
    """The architecture's norm over `width` coordinates, d_model unless given."""
    width = width or a.d_model
    if a.norm.kind == "layer":
        return (LayerNorm if a.norm.eps_at == "inside" else LayerNormEpsOutside)(a, width)
    if a.norm.kind == "rms":
        return (RMSNorm if a.norm.eps_at == "inside" else RMSNormEpsOutside)(a, width)
    return Identity()


def make_qk_norm(a: Architecture, n_heads: int) -> nn.Module:
    """The norm of n_heads heads of queries or keys."""
    make = {
        "none": Identity,
        "rms": lambda: RMSNorm(a, a.d_head),
        "rms_all": lambda: RMSNormOfHeads(a, n_heads),
        "layer": lambda: LayerNorm(a, a.d_head),
        "layer_own": lambda: LayerNormOfEachHead(a, n_heads),
    }
    return make[a.attention.qk_norm]()
