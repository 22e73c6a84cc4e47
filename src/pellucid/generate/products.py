"""y = x W^T + b with W packed for reading it once a token: the same function of the numbers that are kept.

A kind says in how many bits a weight is kept and what multiplies it; sums and results are float32. `kept` is W as it
is kept: what a product computes is x kept^T + b.
"""

import functools
import os
import shutil
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = Float[Tensor, "*rows n_in"]
Outputs = Float[Tensor, "*rows n_out"]
Matrix = Float[Tensor, "n_out n_in"]
Vector = Float[Tensor, " n_out"]


class Float32(nn.Module):
    """W in float32, in the blocks that oneDNN's own kernels read."""

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, 1), bias

    def forward(self, x: Inputs) -> Outputs:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Float16(nn.Module):
    """W rounded to float16 (numbers beyond 65504 to that), in fbgemm's blocks."""

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    @property
    def kept(self) -> Matrix:
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0]

    def forward(self, x: Inputs) -> Outputs:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class BFloat16(Float16):
    """W rounded to bfloat16, whose 8 bits float16's 11 hold: exactly from 2^-14 to 65504, within 2^-25 below.

    Weights published in bfloat16 are kept as they are. Nothing but W is rounded.
    """

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__(weight.bfloat16().float(), bias)


class Int8(nn.Module):
    """W_oi = s_o q_oi with whole numbers |q| <= 127 and s_o = max_i |W_oi| / 127, a scale for each output.

    Three q make one float32, q_1 2^16 + q_2 2^8 + q_3, which is exact, and which compiled code takes apart where it
    multiplies: vectors of float32 are what it reads fast, and bytes are not. A third more is read than bytes.
    """

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        q = F.pad((weight / self.scale[:, None]).round(), (0, -weight.size(1) % 3))
        high, middle, low = q.chunk(3, 1)
        self.packed = high * 2**16 + middle * 2**8 + low
        self.n_in, self.bias = weight.size(1), bias

    @property
    def kept(self) -> Matrix:
        return (torch.cat(thirds(self.packed), 1) * self.scale[:, None])[:, : self.n_in]

    def forward(self, x: Inputs) -> Outputs:
        rows = x.flatten(0, -2)
        if len(rows) > FEW:
            y = self.by_chunks(rows)
        else:
            multiply, rows = compiled(times_packed), F.pad(rows, (0, -self.n_in % 3))
            y = torch.stack([multiply(self.packed, self.scale, row) for row in rows])
        y = y if self.bias is None else y + self.bias
        return y.unflatten(0, x.shape[:-1])

    def by_chunks(self, rows: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
        """x kept^T: a few outputs' weights at a time are taken apart, and multiplied while they are in the cache."""
        n = max(1, CHUNK // self.n_in)
        chunks = zip(self.packed.split(n), self.scale.split(n), strict=True)
        return torch.cat([F.linear(rows, compiled(unpacked)(q, s)[:, : self.n_in]) for q, s in chunks], 1)


#: rows up to here are multiplied one by one; for more the matrix is taken apart, this many weights at a time
FEW, CHUNK = 4, 1 << 19


def thirds(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three whole numbers in each float32."""
    high = (packed * 2**-16).round()
    rest = packed - high * 2**16
    middle = (rest * 2**-8).round()
    return high, middle, rest - middle * 2**8


def unpacked(packed: Tensor, scale: Vector) -> Matrix:
    """W, its padding included."""
    return torch.cat(thirds(packed), 1) * scale[:, None]


def times_packed(packed: Tensor, scale: Vector, x: Float[Tensor, " n_in"]) -> Vector:
    """W x."""
    high, middle, low = thirds(packed)
    n = packed.size(1)
    return (high * x[:n] + middle * x[n : 2 * n] + low * x[2 * n :]).sum(-1) * scale


@functools.cache
def compiled(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`f` for matrices of any size by torch.compile; as it is where there is no C++ compiler."""
    return torch.compile(f, dynamic=True) if has_compiler() else f


@functools.cache
def has_compiler() -> bool:
    """Whether torch.compile finds the C++ compiler that it needs on the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


PRODUCTS: dict[str, Callable[[Matrix, Vector | None], nn.Module]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
}


def available(kind: str) -> bool:
    """Whether this build of PyTorch has what the kind multiplies with."""
    if kind == "float32":
        return torch.backends.mkldnn.is_available()
    return kind == "int8" or "fbgemm" in torch.backends.quantized.supported_engines
