"""y = x W^T + b with W in a packed format: the product computes with exactly the numbers that are stored.

A class says in how many bits a weight is stored and which kernel multiplies it; sums and results are float32. `kept` is
W as it is stored: the product computes x kept^T + b.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.generate import row_products

Inputs = Float[Tensor, "*rows n_in"]
Outputs = Float[Tensor, "*rows n_out"]
Matrix = Float[Tensor, "n_out n_in"]
Vector = Float[Tensor, " n_out"]


class AsLoaded(nn.Module):
    """W in float32 where it lies, without a copy: a few rows are multiplied by compiled code, more by PyTorch."""

    #: with more rows PyTorch's product takes no longer (docs/experiments/decoding.md)
    most_rows = 64

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.weight, self.bias = weight.contiguous(), bias

    def forward(self, x: Inputs) -> Outputs:
        if x.numel() <= self.most_rows * x.size(-1):
            return row_products.multiply("float32", (self.weight,), self.bias, x, len(self.weight))
        return F.linear(x, self.weight, self.bias)


class Float32(nn.Module):
    """W in float32: as it is for a few rows where products are compiled, and a copy in the blocks that oneDNN reads."""

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, 1), bias
        self.weight = None if row_products.why_not_compiled() else weight.contiguous()

    def forward(self, x: Inputs) -> Outputs:
        if self.weight is not None and x.numel() <= row_products.MOST_ROWS * x.size(-1):
            return row_products.multiply("float32", (self.weight,), self.bias, x, len(self.weight))
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class CompiledProduct(nn.Module):
    """A product whose weights become float32 in registers for a few rows, and in memory, piece by piece, for more."""

    kind: row_products.Format
    bias: Vector | None
    n_out: int

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """What `row_products.multiply` reads."""
        raise NotImplementedError

    def kept_rows(self, begin: int, end: int) -> Matrix:
        """The rows of W from `begin` to `end`, as they are stored."""
        raise NotImplementedError

    @property
    def kept(self) -> Matrix:
        return self.kept_rows(0, self.n_out)

    def forward(self, x: Inputs) -> Outputs:
        n_in = x.size(-1)
        if x.numel() <= row_products.MOST_ROWS * n_in:
            return row_products.multiply(self.kind, self.stored, self.bias, x, self.n_out)
        y, step = x.new_empty((*x.shape[:-1], self.n_out)), max(1, row_products.PIECE_WEIGHTS // n_in)
        for begin in range(0, self.n_out, step):
            end = min(begin + step, self.n_out)
            bias = None if self.bias is None else self.bias[begin:end]
            y[..., begin:end] = F.linear(x, self.kept_rows(begin, end), bias)
        return y


class Int8(CompiledProduct):
    """W_oi = s_o q_oi with integers |q| <= 127 and s_o = max_i |W_oi| / 127, one scale for each output."""

    kind = "int8"

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.scale, self.bias, self.n_out = int8_scale(weight), bias, len(weight)
        self.integers = (weight / self.scale[:, None]).round().to(torch.int8).contiguous()

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.integers, self.scale

    def kept_rows(self, begin: int, end: int) -> Matrix:
        return self.integers[begin:end].float() * self.scale[begin:end, None]


class Int4(CompiledProduct):
    """W_oi = s_og (q_oi - 8) with integers 0 <= q <= 15, and a scale for each output and each group g of 32 inputs.

    s_og = -w / 8 in bfloat16, where w is the group's weight of the largest magnitude, so that w itself is stored nearly
    exactly, and the others within half a step. 4.5 bits a weight.
    """

    kind = "int4"
    group = 32

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.bias, self.n_out, self.n_in = bias, *weight.shape
        self.missing = -self.n_in % self.group
        groups = F.pad(weight, (0, self.missing)).unflatten(1, (-1, self.group))
        largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
        scale = (largest / -8).bfloat16()
        safe = torch.where(scale == 0, 1, scale.float())
        integers = ((groups / safe).round().clamp(-8, 7) + 8).to(torch.uint8)
        low, high = integers.chunk(2, 2)
        self.pairs, self.scale = (low | high << 4).flatten(1).contiguous(), scale.squeeze(2).contiguous()

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.pairs, self.scale

    def kept_rows(self, begin: int, end: int) -> Matrix:
        pairs = self.pairs[begin:end].unflatten(1, (-1, self.group // 2))
        integers = torch.cat([pairs & 15, pairs >> 4], 2).float() - 8
        return (integers * self.scale[begin:end, :, None].float()).flatten(1)[:, : self.n_in]

    def forward(self, x: Inputs) -> Outputs:
        few = x.numel() <= row_products.MOST_ROWS * self.n_in
        return super().forward(F.pad(x, (0, self.missing)) if few and self.missing else x)


def int8_scale(weight: Matrix) -> Vector:
    """The step of each output's integers."""
    return weight.abs().amax(1).clamp(min=1e-30) / 127


#: how `pack_network` may store matrices; `loaded` leaves them where they are
PRODUCTS: dict[str, Callable[[Matrix, Vector | None], nn.Module]] = {
    "loaded": AsLoaded,
    "float32": Float32,
    "int8": Int8,
    "int4": Int4,
}


def why_unavailable(kind: str) -> str:
    """Why this machine does not compute a product of this kind, "" if it does."""
    if kind == "float32":
        return "" if torch.backends.mkldnn.is_available() else "this build of PyTorch has no oneDNN"
    return row_products.why_not_compiled()


def available(kind: str) -> bool:
    """Whether this machine computes a product of this kind."""
    return not why_unavailable(kind)
