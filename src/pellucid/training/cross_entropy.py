"""-log P(target) of each row of logits, by a file of C++ that reads them once for the loss and once for its gradient.

PyTorch's cross-entropy of bfloat16 logits makes five tensors of their size, most of them in float32, which took a third
of a step of a small network with two thousand ids (docs/experiments/step-speed.md). Where logits lie on a CPU in
float32 or bfloat16, two operations of our own take its place; PyTorch's compiler calls them as they are.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.compiled_source import CompiledSource

#: stands in the targets where nothing is scored
UNSCORED = -100
#: the file that is compiled
SOURCE = CompiledSource(Path(__file__).with_name("cross_entropy.cpp"), Path(__file__).with_name("rows.h"))
#: the smallest vocabulary whose rows are longer than what it does once for each (docs/experiments/step-speed.md)
LEAST_VOCABULARY = 256
#: the types of numbers that rows.h reads
CPP_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def cross_entropy(logits: Tensor, targets: Tensor, reduction: Literal["none", "sum"] = "none") -> Tensor:
    """-log softmax(logits)[target] of each row, in nats [pos], or their sum, of logits [pos, n_vocab]; 0 where a target
    is UNSCORED.

    The result is at least float32. The gradient has the type of the logits.
    """
    if is_compiled_for(logits):
        nats = torch.ops.pellucid.losses(logits.contiguous(), targets.contiguous())[0]
        return nats.sum() if reduction == "sum" else nats
    # sums over a vocabulary lose their digits in bfloat16
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return F.cross_entropy(wide, targets, ignore_index=UNSCORED, reduction=reduction)


def is_likeliest(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each row's target is the first of its largest logits, bool [pos], of logits [pos, n_vocab]."""
    if not is_compiled_for(logits):
        return logits.argmax(-1) == targets
    result = torch.empty(len(logits), dtype=torch.bool, device="cpu")
    call("hits", logits.contiguous(), targets.contiguous(), result)
    return result


def is_compiled_for(logits: Tensor) -> bool:
    """Whether the compiled functions read these logits, and are faster than PyTorch's."""
    is_divided = hasattr(logits, "to_local")  # logits that processes share
    is_read = logits.device.type == "cpu" and logits.dtype in CPP_TYPES and not is_divided
    return is_read and logits.size(-1) >= LEAST_VOCABULARY and SOURCE.is_usable()


def call(name: str, logits: Tensor, targets: Tensor, *tensors: Tensor) -> None:
    """Call the compiled function of this name and of the logits' type, with addresses, sizes and threads.

    Raises IndexError for a target outside of the vocabulary, whose place in memory belongs to something else, and
    ValueError for targets of another shape or type.
    """
    n_vocab = logits.size(-1)
    if targets.dtype != torch.int64 or logits.shape[:-1] != targets.shape or logits.ndim != 2:
        raise ValueError(
            f"logits {list(logits.shape)} and targets {list(targets.shape)} of {targets.dtype}: expected logits "
            "[pos, n_vocab] and targets [pos] of torch.int64"
        )
    if bool((((targets < 0) & (targets != UNSCORED)) | (targets >= n_vocab)).any()):
        raise IndexError(
            f"targets from {targets.min()} to {targets.max()}: expected 0 to {n_vocab - 1}, or {UNSCORED} for none"
        )
    sizes = (*logits.shape, torch.get_num_threads())
    SOURCE.call(f"{name}_{CPP_TYPES[logits.dtype]}", (logits, targets, *tensors), sizes)


# `torch.library.custom_op` would import PyTorch's compiler at the first call, which takes over a second
# (docs/experiments/step-speed.md)
torch.library.define("pellucid::losses", "(Tensor logits, Tensor targets) -> (Tensor, Tensor)")
torch.library.define(
    "pellucid::loss_gradients", "(Tensor logits, Tensor targets, Tensor log_sums, Tensor by) -> Tensor"
)


@torch.library.impl("pellucid::losses", "cpu")
def losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row -log softmax(x)[t], 0 where t is negative, and log sum_j exp x_j; both float32 [pos]."""
    nats, log_sums = (torch.empty(len(logits), dtype=torch.float32, device="cpu") for _ in range(2))
    call("losses", logits, targets, nats, log_sums)
    return nats, log_sums


@torch.library.register_fake("pellucid::losses")
def _(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(len(logits), dtype=torch.float32), logits.new_empty(len(logits), dtype=torch.float32)


@torch.library.impl("pellucid::loss_gradients", "cpu")
def loss_gradients(logits: Tensor, targets: Tensor, log_sums: Tensor, by: Tensor) -> Tensor:
    """(softmax(x) - [j = t]) by of each row, 0 where t is negative, in the type of the logits."""
    result = torch.empty_like(logits)
    call("gradients", logits, targets, log_sums, by, result)
    return result


@torch.library.register_fake("pellucid::loss_gradients")
def _(logits: Tensor, targets: Tensor, log_sums: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(logits)


def save_for_gradient(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    """What the gradient needs: the logits themselves, and a number for each row."""
    ctx.save_for_backward(*inputs, output[1])


def backward(ctx: Any, by: Tensor, by_log_sums: Tensor) -> tuple[Tensor, None]:
    """The gradient of the losses; that of the sums is nobody's concern."""
    logits, targets, log_sums = ctx.saved_tensors
    return torch.ops.pellucid.loss_gradients(logits, targets, log_sums, by.contiguous()), None


def refuse(ctx: Any, by: Tensor) -> None:
    """Without this, PyTorch would take the gradient of the gradient for 0."""
    raise RuntimeError(
        "the gradient of the compiled cross-entropy was to be differentiated, and has no derivative: take "
        "torch.nn.functional.cross_entropy of the logits"
    )


torch.library.register_autograd("pellucid::losses", backward, setup_context=save_for_gradient)
torch.library.register_autograd("pellucid::loss_gradients", refuse)
