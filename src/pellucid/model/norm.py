"""Normalisation of a vector over its last axis. `name` is what the tap calls the result."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.tap import OFF, Tap

INNER = ("scale", "normalized")


class LayerNorm(nn.Module):
    """gain * (x - mu) / sigma + bias,  sigma = sqrt(var(x) + eps)   (Ba et al. 2016; S4, normalisation)"""

    def __init__(self, a: Architecture):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(a.d_model))
        self.bias = nn.Parameter(torch.zeros(a.d_model)) if a.norm.bias == "all" else None
        self.eps = a.norm.eps

    def forward(self, x: Tensor, tap: Tap = OFF, name: str = "norm") -> Tensor:
        inner = tap.at(name)
        return tap(name, inner.choose(INNER, lambda: self.fused(x), lambda tap: self.written_out(x, tap)))

    def fused(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)

    def written_out(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = self.gain * tap("normalized", centred / tap("scale", self.sigma(centred)))
        return y if self.bias is None else y + self.bias

    def sigma(self, centred: Tensor) -> Tensor:
        """The divisor, [..., 1]."""
        return (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()


class LayerNormEpsOutside(LayerNorm):
    """sigma = sqrt(var(x)) + eps   (S3, slide 9, with its lost minus sign restored)"""

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def sigma(self, centred: Tensor) -> Tensor:
        return centred.square().mean(-1, keepdim=True).sqrt() + self.eps


class RMSNorm(nn.Module):
    """gain * x / rho,  rho = sqrt(mean(x^2) + eps)   (Zhang and Sennrich 2019)"""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, tap: Tap = OFF, name: str = "norm") -> Tensor:
        inner = tap.at(name)
        return tap(name, inner.choose(INNER, lambda: self.fused(x), lambda tap: self.written_out(x, tap)))

    def fused(self, x: Tensor) -> Tensor:
        # the fused kernel wants one type: under autocast the input is bfloat16 and the gain float32
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)

    def written_out(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        return self.gain * tap("normalized", x / tap("scale", self.rho(x)))

    def rho(self, x: Tensor) -> Tensor:
        """The divisor, [..., 1]."""
        return (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class RMSNormEpsOutside(RMSNorm):
    """rho = sqrt(mean(x^2)) + eps"""

    def fused(self, x: Tensor) -> Tensor:
        return self.written_out(x)

    def rho(self, x: Tensor) -> Tensor:
        return x.square().mean(-1, keepdim=True).sqrt() + self.eps


class Unchanged(nn.Module):
    """x, which is not a tensor of its own and has no name"""

    def forward(self, x: Tensor, tap: Tap = OFF, name: str = "norm") -> Tensor:
        return x


def make_norm(a: Architecture) -> nn.Module:
    """The architecture's norm over d_model."""
    if a.norm.kind == "layer":
        return LayerNorm(a) if a.norm.eps_at == "inside" else LayerNormEpsOutside(a)
    if a.norm.kind == "rms":
        return (RMSNorm if a.norm.eps_at == "inside" else RMSNormEpsOutside)(a.d_model, a.norm.eps)
    return Unchanged()
