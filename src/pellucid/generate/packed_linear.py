"""y = x W^T + b with W in a packed format: the product computes with exactly the numbers that are stored.

A class says in how many bits a weight is stored and which kernel multiplies it; sums and results are float32. `kept` is
W as it is stored: the product computes x kept^T + b.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Inputs = Float[Tensor, "*rows n_in"]
Outputs = Float[Tensor, "*rows n_out"]
Matrix = Float[Tensor, "n_out n_in"]
Vector = Float[Tensor, " n_out"]


class Float32(nn.Module):
    """W in float32, in the blocks that oneDNN's kernels read."""

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, 1), bias

    def forward(self, x: Inputs) -> Outputs:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Float16(nn.Module):
    """W rounded to float16 (larger numbers to 65504), in fbgemm's blocks."""

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    @property
    def kept(self) -> Matrix:
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0]

    def forward(self, x: Inputs) -> Outputs:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class BFloat16(Float16):
    """W rounded to bfloat16. Its 8 bits fit into float16's 11: exactly from 2^-14 to 65504, within 2^-25 below.

    Weights published in bfloat16 are stored unchanged. Only W is rounded.
    """

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__(weight.bfloat16().float(), bias)


class Int8(nn.Module):
    """W_oi = s_o q_oi with integers |q| <= 127 and s_o = max_i |W_oi| / 127, one scale for each output.

    The integers are stored as float16, which holds them exactly: two bytes a weight, not one, because fbgemm's float16
    product is the fastest available one for inputs that are not rounded. It is as fast as `float16` and less exact.
    """

    def __init__(self, weight: Matrix, bias: Vector | None):
        super().__init__()
        self.scale, self.bias = weight.abs().amax(1).clamp(min=1e-30) / 127, bias
        self.whole = Float16((weight / self.scale[:, None]).round(), None)

    @property
    def kept(self) -> Matrix:
        return self.whole.kept * self.scale[:, None]

    def forward(self, x: Inputs) -> Outputs:
        y = self.whole(x) * self.scale
        return y if self.bias is None else y + self.bias


PRODUCTS: dict[str, Callable[[Matrix, Vector | None], nn.Module]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
}


def available(kind: str) -> bool:
    """Whether this build of PyTorch has the kernel of this class."""
    if kind == "float32":
        return torch.backends.mkldnn.is_available()
    return "fbgemm" in torch.backends.quantized.supported_engines
