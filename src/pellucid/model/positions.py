"""How order enters: rows added to the stream, planes of q and k rotated, or numbers added to the scores.

A scheme is one class with one of three methods, and stands in one of three tables at the end of this file:

    added(positions)            the rows that are added to the stream
    rotated(q, k, rotation)     q and k with their planes rotated, layer by layer; `rotation` is looked up once a call
    score_bias(i, j)            the numbers that are added to the scores of queries i and keys j
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.architecture import Architecture, Positions
from pellucid.model.shapes import PositionIds, Rotation, ScoreBias
from pellucid.model.tables import Table
from pellucid.model.tap import OFF, Tap


def frequencies(width: int, base: float) -> Float[Tensor, " planes"]:
    """w_k = base^(-2k / width) for every 2k < width, in float64 (Vaswani et al. 2017, section 3.5)."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


def no_scaling(a: Architecture, w: Tensor) -> Tensor:
    """w_k"""
    return w


def linear_scaling(a: Architecture, w: Tensor) -> Tensor:
    """w_k / factor: as if positions were factor times closer   (Chen et al. 2023, section 2.3)"""
    return w / a.positions.factor


def llama3_scaling(a: Architecture, w: Tensor) -> Tensor:
    """w_k where plane k turns often in n_trained positions, w_k / factor where seldom   (Llama Team 2024)"""
    p = a.positions
    unscaled = ((p.n_trained * w / (2 * math.pi) - p.low) / (p.high - p.low)).clamp(0, 1)
    return unscaled * w + (1 - unscaled) * w / p.factor


def yarn_scaling(a: Architecture, w: Tensor) -> Tensor:
    """w_k up to one plane, w_k / factor from another on, a line in k between them   (Peng et al. 2023, section 3.2)"""
    p, n = a.positions, a.d_rotary

    def plane(turns: float) -> float:
        return n * math.log(p.n_trained / (2 * math.pi * turns)) / (2 * math.log(p.base)) if turns else math.inf

    begin, end = plane(p.high), plane(p.low)
    first, last = max(math.floor(begin), 0), min(math.ceil(end) if p.low else end, n - 1)
    k = torch.arange(len(w), dtype=torch.float64, device="cpu")
    # a line between two planes that are one is a step
    divided = ((k - first) / (last - first if last != first else 1e-3)).clamp(0, 1)
    return (1 - divided) * w + divided * w / p.factor


def longrope_scaling(a: Architecture, w: Tensor) -> Tensor:
    """w_k divided by a factor of its own, of the set for the longest texts   (Ding et al. 2024, section 3)"""
    p = a.positions
    factors = p.long_factors if a.n_ctx > p.n_trained else p.short_factors
    return w / torch.tensor(factors or [1.0], dtype=torch.float64, device="cpu")


def dynamic_scaling(a: Architecture, w: Tensor) -> Tensor:
    """(base s^(n/(n-2)))^(-2k/n): the last w_k is divided by s   (Peng et al. 2023, definition 1 and section 3.3)"""
    k = torch.arange(len(w), dtype=torch.float64, device="cpu")
    return w * a.dynamic_factor ** (-2 * k / (a.d_rotary - 2))


SCALING = {
    "none": no_scaling,
    "linear": linear_scaling,
    "llama3": llama3_scaling,
    "yarn": yarn_scaling,
    "longrope": longrope_scaling,
    "dynamic": dynamic_scaling,
}


def no_factor(p: Positions) -> float:
    """1"""
    return 1.0


def yarn_factor(p: Positions) -> float:
    """0.1 log(factor) + 1   (Peng et al. 2023, equation 22)"""
    return p.attention_factor or max(0.1 * math.log(p.factor) + 1, 1.0)


def longrope_factor(p: Positions) -> float:
    """sqrt(1 + log(factor) / log(n_trained))   (Ding et al. 2024, their code)"""
    return p.attention_factor or math.sqrt(1 + max(math.log(p.factor), 0.0) / math.log(p.n_trained))


#: c of rotated coordinates, whose square multiplies the scores
ROTATION_FACTOR = dict.fromkeys(SCALING, no_factor) | {"yarn": yarn_factor, "longrope": longrope_factor}


def angles(n_ctx: int, w: Float[Tensor, " planes"]) -> Float[Tensor, "pos planes"]:
    """i w_k for every position i < n_ctx and plane k, in float64."""
    return torch.arange(n_ctx, dtype=torch.float64, device="cpu")[:, None] * w


class Learned(nn.Embedding):
    """x_i += W_P[i]"""

    def __init__(self, a: Architecture):
        super().__init__(a.n_ctx, a.embed_sum_width)

    def added(self, positions: PositionIds) -> Float[Tensor, "... pos d_model"]:
        return self(positions)


class Sinusoidal(Table):
    """x_i += (sin(i w_k), cos(i w_k)), in halves or in pairs."""

    def __init__(self, a: Architecture):
        angle = angles(a.n_ctx, frequencies(a.embed_sum_width, a.positions.base))
        axis = {"halves": -2, "pairs": -1}[a.positions.layout]
        super().__init__(torch.stack([angle.sin(), angle.cos()], axis).flatten(1))

    def added(self, positions: PositionIds) -> Float[Tensor, "... pos d_model"]:
        return self.values[positions]


class RotaryTable(Table):
    """c cos(i w_k) and c sin(i w_k), first for layers without and then for layers with a window where these differ.

    c is the factor of rotated coordinates, 1 but for yarn and longrope. `short` is the table of texts of up to
    n_trained positions where longrope gives them other frequencies than longer ones.
    """

    def __init__(self, a: Architecture):
        p, width = a.positions, a.d_rotary
        kinds = [(ROTATION_FACTOR[p.scaling](p), SCALING[p.scaling](a, frequencies(width, p.base)))]
        if p.local_base:
            kinds.append((1.0, frequencies(width, p.local_base)))
        angle = torch.stack([angles(a.n_ctx, w) for _, w in kinds])
        factor = torch.tensor([c for c, _ in kinds], dtype=torch.float64, device="cpu")[:, None, None]
        super().__init__(factor * torch.stack([angle.cos(), angle.sin()]))
        self.border = a.frequency_border
        self.short = RotaryTable(replace(a, n_ctx=self.border)) if self.border else None

    def forward(self, positions: PositionIds) -> Rotation:
        """The rotation at these positions, [pos] or [batch, pos]; the largest of a row says how long its text is."""
        cos, sin = self.values
        rotation = cos[:, positions], sin[:, positions]
        if self.short is None or not positions.numel():
            return rotation
        is_long = (positions.amax(-1, keepdim=True) >= self.border)[..., None]
        of_short = self.short(positions.clamp(max=self.border - 1))
        return torch.where(is_long, rotation[0], of_short[0]), torch.where(is_long, rotation[1], of_short[1])


class NoTable(nn.Module):
    """No layer rotates, so that nothing is looked up."""

    def forward(self, positions: PositionIds) -> None:
        return None


class Rotary(nn.Module):
    """(q_i, k_j) -> (R_i q_i, R_j k_j): plane k of the first d_rotary coordinates turned by i w_k (Su et al. 2021).

    With yarn and longrope R_i also multiplies these coordinates by a factor.
    """

    table = RotaryTable

    def __init__(self, a: Architecture, layer: int):
        super().__init__()
        self.d_rotary, self.kind = a.d_rotary, int(a.positions.local_base > 0 and a.window(layer) > 0)
        # halves: coordinates (k, k + d/2) make plane k; pairs: (2k, 2k + 1)
        self.split, self.axis = {"halves": ((2, -1), -2), "pairs": ((-1, 2), -1)}[a.positions.layout]

    def rotated(self, q: Tensor, k: Tensor, rotation: Rotation | None, tap: Tap = OFF) -> tuple[Tensor, Tensor]:
        return tap("rot_q", self.rotate(q, rotation)), tap("rot_k", self.rotate(k, rotation))

    def rotate(self, x: Float[Tensor, "batch any_head pos d_head"], rotation: Rotation | None) -> Tensor:
        """R_i x_i for each position i."""
        assert rotation is not None, "the table of this scheme gives every layer its angles"
        cos, sin = (t[self.kind] if t.ndim == 3 else t[self.kind, :, None] for t in rotation)
        planes, unrotated = x[..., : self.d_rotary], x[..., self.d_rotary :]
        a, b = planes.unflatten(-1, self.split).unbind(self.axis)
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], self.axis).flatten(-2)
        return torch.cat([rotated.to(x.dtype), unrotated], -1)


class NoRotation(nn.Module):
    """(q, k) -> (q, k)"""

    table = NoTable

    def rotated(self, q: Tensor, k: Tensor, rotation: Rotation | None, tap: Tap = OFF) -> tuple[Tensor, Tensor]:
        return q, k

    def rotate(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        return x


def geometric_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """s_h = 2^(-8h/n_heads)   (Press et al. 2021, section 3)"""
    return 2 ** (-8 * torch.arange(1, n_heads + 1, dtype=torch.float64, device="cpu") / n_heads)


def interleaved_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """The slopes of p = 2^floor(log2 n_heads) heads, then every second one of 2p   (Press et al. 2021, their code)"""
    p = 2 ** (n_heads.bit_length() - 1)
    return torch.cat([geometric_slopes(p), geometric_slopes(2 * p)[::2]])[:n_heads]


SLOPES = {"geometric": geometric_slopes, "interleaved": interleaved_slopes}


class Alibi(Table):
    """score_ij -= s_h |i - j|   (Press et al. 2021)"""

    def __init__(self, a: Architecture):
        super().__init__(SLOPES[a.positions.slopes](a.n_heads))

    def score_bias(self, i: Tensor, j: Tensor) -> ScoreBias:
        return -self.values[:, None, None] * (i - j).abs()


class Relative(nn.Embedding):
    """score_ij += b_h[r(i - j)], one table for all layers   (Raffel et al. 2020, T5, section 2.1)"""

    def __init__(self, a: Architecture):
        super().__init__(a.positions.n_buckets, a.n_heads)
        self.two_sided = a.attention.mask == "bidirectional"
        self.sided = a.positions.n_buckets // 2 if self.two_sided else a.positions.n_buckets
        self.buckets = Table(buckets(self.sided, a.positions.max_distance))

    def score_bias(self, i: Tensor, j: Tensor) -> ScoreBias:
        ahead = j > i
        distance = (i - j).abs() if self.two_sided else (i - j).clamp(min=0)
        bucket = self.buckets.values[distance.clamp(max=len(self.buckets.values) - 1)].long()
        return self(bucket + self.sided * ahead if self.two_sided else bucket).permute(2, 0, 1)


def buckets(n: int, max_distance: int) -> Float[Tensor, " distance"]:
    """The bucket, of n, of each distance 0 ... max_distance: half of them hold one each, the others ever more."""
    exact = n // 2
    distance = torch.arange(max_distance + 1, dtype=torch.float64, device="cpu")
    steps = (n - exact) * (distance.clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    # a distance at which a bucket begins is in it, whichever way the logarithms are rounded
    return torch.where(distance < exact, distance, (exact + (steps + 1e-9).floor()).clamp(max=n - 1))


# The scheme of each positions.kind, by where order enters ------------------------------------------

ADDED_POSITIONS = {"learned": Learned, "sinusoidal": Sinusoidal}
ROTATED = {"rotary": Rotary}
SCORE_BIAS = {"alibi": Alibi}
#: one module for all layers, whose parameters they share
SHARED_SCORE_BIAS = {"relative": Relative}

#: what the scores of a layer may gain
ScoreBiasScheme = Alibi | Relative


def make_position_embedding(a: Architecture) -> Learned | Sinusoidal | None:
    """What is added to the stream, or None."""
    return ADDED_POSITIONS[a.positions.kind](a) if a.positions.kind in ADDED_POSITIONS else None


def make_rotary(a: Architecture, layer: int) -> Rotary | NoRotation:
    """The rotation of one layer."""
    return ROTATED[a.positions.kind](a, layer) if a.rotates(layer) else NoRotation()


def make_rotary_table(a: Architecture) -> RotaryTable | NoTable:
    """What the rotations of all layers look up, once a call."""
    return ROTATED[a.positions.kind].table(a) if a.positions.kind in ROTATED else NoTable()


def make_score_bias(a: Architecture) -> Alibi | None:
    """What the scores of one layer gain, unless all layers share it."""
    return SCORE_BIAS[a.positions.kind](a) if a.positions.kind in SCORE_BIAS else None


def make_shared_score_bias(a: Architecture) -> Relative | None:
    """What the scores of all layers gain, or None."""
    return SHARED_SCORE_BIAS[a.positions.kind](a) if a.positions.kind in SHARED_SCORE_BIAS else None
