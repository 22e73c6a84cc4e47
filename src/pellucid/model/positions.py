"""Where order comes from: rows added to the stream, planes of q and k turned by an angle, numbers added to scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.architecture import Architecture, Positions
from pellucid.model.shapes import Distance, PositionIds, Rotation
from pellucid.model.tables import Table
from pellucid.model.tap import OFF, Tap


def frequencies(width: int, base: float) -> Float[Tensor, " planes"]:
    """w_k = base^(-2k / width) for every 2k < width, in float64 (Vaswani et al. 2017, section 3.5)."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


def no_scaling(p: Positions, w: Tensor) -> Tensor:
    """w_k"""
    return w


def linear_scaling(p: Positions, w: Tensor) -> Tensor:
    """w_k / factor: as if positions were factor times closer   (Chen et al. 2023, section 2.3)"""
    return w / p.factor


def llama3_scaling(p: Positions, w: Tensor) -> Tensor:
    """w_k where plane k turns often in n_trained positions, w_k / factor where seldom   (Llama Team 2024)"""
    kept = ((p.n_trained * w / (2 * math.pi) - p.low) / (p.high - p.low)).clamp(0, 1)
    return kept * w + (1 - kept) * w / p.factor


SCALING = {"none": no_scaling, "linear": linear_scaling, "llama3": llama3_scaling}


def angles(n_ctx: int, w: Float[Tensor, " planes"]) -> Float[Tensor, "pos planes"]:
    """i w_k for every position i < n_ctx and plane k, in float64."""
    return torch.arange(n_ctx, dtype=torch.float64, device="cpu")[:, None] * w


class Learned(nn.Embedding):
    """x_i += W_P[i]"""

    def __init__(self, a: Architecture):
        super().__init__(a.n_ctx, a.d_model)


class Sinusoidal(Table):
    """x_i += (sin(i w_k), cos(i w_k)), in halves or in pairs."""

    def __init__(self, a: Architecture):
        angle = angles(a.n_ctx, frequencies(a.d_model, a.positions.base))
        axis = {"halves": -2, "pairs": -1}[a.positions.layout]
        super().__init__(torch.stack([angle.sin(), angle.cos()], axis).flatten(1))

    def forward(self, positions: PositionIds) -> Float[Tensor, "... pos d_model"]:
        return self.values[positions]


class RotaryTable(Table):
    """cos(i w_k) and sin(i w_k), of all layers or of those without and those with a window; looked up once."""

    def __init__(self, a: Architecture):
        p, width = a.positions, a.rotary_divisor
        each = [SCALING[p.scaling](p, frequencies(width, p.base))]
        if p.local_base:
            each.append(frequencies(width, p.local_base))
        angle = torch.stack([angles(a.n_ctx, w) for w in each])
        super().__init__(torch.stack([angle.cos(), angle.sin()]))

    def forward(self, positions: PositionIds) -> Rotation:
        cos, sin = self.values
        return cos[:, positions], sin[:, positions]


class NoRotary(nn.Module):
    """Nothing to turn: positions do not enter through q and k."""

    def forward(self, positions: PositionIds) -> None:
        return None


class Rotary(nn.Module):
    """(q_i, k_j) -> (R_i q_i, R_j k_j): plane k of the first d_rotary coordinates turned by i w_k (Su et al. 2021)."""

    def __init__(self, a: Architecture, layer: int):
        super().__init__()
        self.d_rotary, self.kind = a.d_rotary, int(a.positions.local_base > 0 and a.window(layer) > 0)
        # halves: coordinates (k, k + d/2) make plane k; pairs: (2k, 2k + 1)
        self.split, self.axis = {"halves": ((2, -1), -2), "pairs": ((-1, 2), -1)}[a.positions.layout]

    def forward(self, q: Tensor, k: Tensor, turn: Rotation, tap: Tap = OFF) -> tuple[Tensor, Tensor]:
        return tap("rot_q", self.turn(q, turn)), tap("rot_k", self.turn(k, turn))

    def turn(self, x: Float[Tensor, "batch any_head pos d_head"], turn: Rotation) -> Tensor:
        """R_i x_i for each position i."""
        cos, sin = (t[self.kind] if t.ndim == 3 else t[self.kind, :, None] for t in turn)
        turned, kept = x[..., : self.d_rotary], x[..., self.d_rotary :]
        a, b = turned.unflatten(-1, self.split).unbind(self.axis)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], self.axis).flatten(-2)
        return torch.cat([turned.to(x.dtype), kept], -1)


class NoRotation(nn.Module):
    """(q, k) -> (q, k)"""

    def forward(self, q: Tensor, k: Tensor, turn: None, tap: Tap = OFF) -> tuple[Tensor, Tensor]:
        return q, k


def geometric(n_heads: int) -> Float[Tensor, " head"]:
    """s_h = 2^(-8h/n_heads)   (Press et al. 2021, section 3)"""
    return 2 ** (-8 * torch.arange(1, n_heads + 1, dtype=torch.float64, device="cpu") / n_heads)


def interleaved(n_heads: int) -> Float[Tensor, " head"]:
    """The slopes of p = 2^floor(log2 n_heads) heads, then every second one of 2p   (Press et al. 2021, their code)"""
    p = 2 ** (n_heads.bit_length() - 1)
    return torch.cat([geometric(p), geometric(2 * p)[::2]])[:n_heads]


SLOPES = {"geometric": geometric, "interleaved": interleaved}


class Slopes(Table):
    """score_ij -= s_h |i - j|   (Press et al. 2021)"""

    def __init__(self, a: Architecture):
        super().__init__(SLOPES[a.positions.slopes](a.n_heads))

    def forward(self, i: Tensor, j: Tensor) -> Distance:
        return -self.values[:, None, None] * (i - j).abs()


class Relative(nn.Embedding):
    """score_ij += b_h[r(i - j)], one table for all layers   (Raffel et al. 2020, T5, section 2.1)"""

    def __init__(self, a: Architecture):
        super().__init__(a.positions.n_buckets, a.n_heads)
        self.two_sided = a.attention.mask == "bidirectional"
        self.sided = a.positions.n_buckets // 2 if self.two_sided else a.positions.n_buckets
        self.buckets = Table(buckets(self.sided, a.positions.max_distance))

    def forward(self, i: Tensor, j: Tensor) -> Distance:
        ahead = j > i
        distance = (i - j).abs() if self.two_sided else (i - j).clamp(min=0)
        bucket = self.buckets.values[distance.clamp(max=len(self.buckets.values) - 1)].long()
        return super().forward(bucket + self.sided * ahead if self.two_sided else bucket).permute(2, 0, 1)


def buckets(n: int, max_distance: int) -> Float[Tensor, " distance"]:
    """The bucket, of n, of each distance 0 ... max_distance: half of them hold one each, the others ever more."""
    exact = n // 2
    distance = torch.arange(max_distance + 1, dtype=torch.float64, device="cpu")
    steps = (n - exact) * (distance.clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    # a distance at which a bucket begins is in it, whichever way the logarithms are rounded
    return torch.where(distance < exact, distance, (exact + (steps + 1e-9).floor()).clamp(max=n - 1))


ADDED = {"learned": Learned, "sinusoidal": Sinusoidal}
