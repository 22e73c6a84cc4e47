"""What a training step on a CPU computes between its matrix products, by a file of C++ that reads each tensor once.

PyTorch makes an RMS norm, a rotation, a softmax or a gate of several operations, each of which reads and writes whole
tensors and, in bfloat16, copies in float32: a third of a step of a small network (docs/experiments/step-speed.md).
Where a step is neither on a GPU nor compiled by PyTorch, four functions of our own take their place. They are used
while a network trains and gradients are recorded, so that what is read, measured or saved is computed by the network's
own operations.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.compiled_source import CompiledSource
from pellucid.model.block import PostBlock, PostCrossBlock, PreBlock, PreCrossBlock
from pellucid.model.kernels import ExplicitAttention
from pellucid.model.mask import ScoreMask
from pellucid.model.mlp import GatedMLP
from pellucid.model.norm import RMSNorm
from pellucid.model.positions import Rotary
from pellucid.model.shapes import Keys, Pattern, Queries, Rotation
from pellucid.model.tap import OFF, Tap
from pellucid.model.transformer import Backbone
from pellucid.runs.device import COMPILE_SAVES
from pellucid.training.cross_entropy import CPP_TYPES

#: the file that is compiled
SOURCE = CompiledSource(Path(__file__).with_name("step_functions.cpp"), Path(__file__).with_name("rows.h"))
#: the most keys of a row of scores (`LONGEST` in the file)
MOST_KEYS = 4096
#: the share of a step that PyTorch's compiler saves beside these functions; 2 and 3 % were measured
#: (docs/experiments/step-speed.md)
SAVES_BESIDE_OURS = 0.05
#: blocks of rows whose sums are added up for the gradient of a gain
BLOCKS = 64


def compute(name: str, tensors: tuple[Tensor | None, ...], *sizes: int, numbers: tuple[float, ...] = ()) -> None:
    """Call a function of the file, with addresses, sizes and the number of threads."""
    SOURCE.call(name, tensors, (*sizes, torch.get_num_threads()), numbers)


def computes(*tensors: Tensor) -> bool:
    """Whether these are tensors of a step that the file can read."""
    plain = (type(x) is Tensor and x.device.type == "cpu" and x.dtype in CPP_TYPES for x in tensors)
    return torch.is_grad_enabled() and all(plain)


def in_rows(x: Tensor) -> Tensor:
    """x, or a copy of it, whose rows lie one after another; in any order, as those of heads."""
    is_dense = x.is_contiguous() or (x.ndim == 4 and x.transpose(1, 2).is_contiguous())
    return x if is_dense else x.contiguous()


def laid_out_as(x: Tensor, like: Tensor) -> Tensor:
    """x, or a copy of it, in memory as `like` is, and of its type or another."""
    return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)


def refuse_double_backward(backward: Callable) -> Callable:
    """Refuse to compute a gradient that is to be differentiated, which PyTorch would take for a constant."""

    @wraps(backward)
    def refusing(ctx: Any, by: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the gradient of a training step's function was to be differentiated, and has no derivative: call "
                "choose_step_functions(network, False) before"
            )
        return backward(ctx, by)

    return refusing


class RMSNormFunction(Function):
    """gain x / sqrt(mean(x^2) + eps) over the last axis, in `dtype`; the gain is float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
        x, n = in_rows(x), x.size(-1)
        y = torch.empty_like(x, dtype=dtype)
        inverses = torch.empty(x.numel() // n, dtype=torch.float32, device="cpu")
        ctx.names = f"{CPP_TYPES[x.dtype]}_{CPP_TYPES[dtype]}"
        compute(f"norms_{ctx.names}", (x, gain, y, inverses), len(inverses), n, numbers=(eps,))
        ctx.save_for_backward(x, gain, inverses)
        return y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, gain, inverses = ctx.saved_tensors
        n, by_x = x.size(-1), torch.empty_like(x)
        sums = None if gain is None else torch.zeros(BLOCKS, n, dtype=torch.float32, device="cpu")
        tensors = (x, gain, inverses, laid_out_as(by, x), by_x, sums)
        compute(f"norm_gradients_{ctx.names}", tensors, len(inverses), n, BLOCKS)
        return by_x, None if sums is None else sums.sum(0), None, None


class RotationFunction(Function):
    """The halves of each row of x [batch, head, pos, d_head] turned by its position's angle, of angles [pos, d/2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = in_rows(x)
        ctx.save_for_backward(cos, sin)
        return RotationFunction.turned(x, cos, sin, 1.0)

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return RotationFunction.turned(in_rows(by), cos, sin, -1.0), None, None

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
        y, n = torch.empty_like(x), x.size(-1)
        inner = 1 if x.is_contiguous() else x.size(1)
        sizes = (x.numel() // n, n, inner, x.size(2))
        compute(f"rotations_{CPP_TYPES[x.dtype]}", (x, cos, sin, y), *sizes, numbers=(sign,))
        return y


class CausalPattern(Function):
    """A_ij = exp(score_ij) / sum_{k <= i} exp(score_ik), of scores [..., pos, pos]; 0 for j > i."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        scores, n = scores.contiguous(), scores.size(-1)
        pattern = torch.empty_like(scores)
        compute(f"patterns_{CPP_TYPES[scores.dtype]}", (scores, pattern), scores.numel() // n, n)
        ctx.save_for_backward(pattern)
        return pattern

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, by: Tensor) -> Tensor:
        (pattern,) = ctx.saved_tensors
        result, n = torch.empty_like(pattern), pattern.size(-1)
        compute(f"pattern_gradients_{CPP_TYPES[by.dtype]}", (pattern, by.contiguous(), result), by.numel() // n, n)
        return result


class SiLUGate(Function):
    """silu(gate) up"""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        compute(f"gates_{CPP_TYPES[y.dtype]}", (gate, up, y), y.numel())
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        by_gate, by_up = torch.empty_like(gate), torch.empty_like(up)
        compute(f"gate_gradients_{CPP_TYPES[by.dtype]}", (gate, up, by.contiguous(), by_gate, by_up), by.numel())
        return by_gate, by_up


class SteppedRMSNorm(RMSNorm):
    """RMSNorm that our function computes in a training step."""

    #: whether only matrix products read the result, which is then in the type that autocast would give it for them
    is_read_by_products = False

    def fused(self, x: Tensor) -> Tensor:
        gain = self.kernel_gain
        is_plain = gain is None or (type(gain) in (Tensor, nn.Parameter) and gain.dtype == torch.float32)
        if not self.training or not is_plain or not computes(x):
            return super().fused(x)
        narrow = self.is_read_by_products and torch.is_autocast_enabled("cpu")
        return RMSNormFunction.apply(x, gain, self.eps, torch.bfloat16 if narrow else x.dtype)


class SteppedRotary(Rotary):
    """Rotary whose halves our function turns in a training step, where all rows have the same positions."""

    def rotate(self, x: Float[Tensor, "batch any_head pos d_head"], rotation: Rotation | None) -> Tensor:
        assert rotation is not None
        cos, sin = rotation
        fits = cos.ndim == 3 and cos.dtype == torch.float32 and cos.size(1) == x.size(2)
        is_plain = self.training and self.axis == -2 and self.d_rotary == x.size(-1)
        if not fits or not is_plain or not computes(x):
            return super().rotate(x, rotation)
        return RotationFunction.apply(x, cos[self.kind].contiguous(), sin[self.kind].contiguous())


class SteppedAttention(ExplicitAttention):
    """ExplicitAttention whose causal pattern our function computes in a training step."""

    def pattern(self, q: Queries, k: Keys, mask: ScoreMask, tap: Tap = OFF) -> Pattern:
        is_plain = self.training and mask.is_causal and tap is OFF and q.size(2) <= MOST_KEYS
        if not is_plain or not computes(q):
            return super().pattern(q, k, mask, tap)
        return CausalPattern.apply(self.scores(q, k))


class SteppedGatedMLP(GatedMLP):
    """GatedMLP whose gate our function computes in a training step."""

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if not self.training or self.f is not F.silu or not computes(gate, up):
            return super().gated(gate, up)
        return SiLUGate.apply(gate, up)


#: what takes the place of which class while a network trains
STEPPED: dict[type[nn.Module], type[nn.Module]] = {
    RMSNorm: SteppedRMSNorm,
    Rotary: SteppedRotary,
    ExplicitAttention: SteppedAttention,
    GatedMLP: SteppedGatedMLP,
}


def compile_saves(a: Architecture, device: torch.device, n_processes: int = 1) -> float:
    """The share of a step that PyTorch's compiler saves: little where our functions compute the rest of it."""
    is_normed = (a.norm.kind, a.norm.eps_at) == ("rms", "inside")
    is_gated = (a.mlp.form, a.mlp.activation) == ("gated", "silu")
    is_ours = is_normed and is_gated and device.type == "cpu" and n_processes == 1
    return SAVES_BESIDE_OURS if is_ours and SOURCE.is_usable() else COMPILE_SAVES[device.type]


def norms_read_by_products(network: nn.Module) -> Iterator[nn.Module]:
    """The norms whose results become no part of the stream."""
    for module in network.modules():
        if isinstance(module, PreBlock) and not isinstance(module, PostBlock | PostCrossBlock):
            yield from (module.norm_1, module.norm_2)
        if isinstance(module, PreCrossBlock) and not isinstance(module, PostCrossBlock):
            yield module.norm_cross
        if isinstance(module, Backbone):
            yield module.final_norm


def choose_step_functions(network: nn.Module, wanted: bool) -> None:
    """Let our functions compute the training steps of a network, or PyTorch's; without a C++ compiler PyTorch's do."""
    kinds = STEPPED if wanted and SOURCE.is_usable() else {stepped: plain for plain, stepped in STEPPED.items()}
    for module in network.modules():
        if type(module) in kinds:
            module.__class__ = kinds[type(module)]
    for norm in norms_read_by_products(network):
        if isinstance(norm, SteppedRMSNorm):
            norm.is_read_by_products = True
