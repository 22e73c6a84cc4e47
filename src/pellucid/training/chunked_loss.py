"""Cross-entropy in chunks: the logits of a few positions exist at a time, which saves memory for large vocabularies."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: the summed loss of some positions: (logits [pos, n_vocab], targets [pos]) -> a number
Summed = Callable[[Tensor, Tensor], Tensor]


class ChunkedLoss(torch.autograd.Function):
    """sum_i loss(readout(x_i), t_i), whose gradients are computed in the forward pass, `size` positions at a time.

    The gradients of a sum by x and by the readout's weights depend on later operations only by one factor. So the
    logits of each chunk are freed before the next are computed, and no product is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, readout: nn.Module, loss: Summed, x: Tensor, targets: Tensor, size: int, *weights: Tensor
    ) -> Tensor:
        total = torch.zeros((), dtype=readout.get_parameter("weight").dtype, device=x.device)
        by_x, by_weights = torch.empty_like(x), [torch.zeros_like(w) for w in weights]
        for part, wanted, into in zip(x.split(size), targets.split(size), by_x.split(size), strict=True):
            with torch.enable_grad():
                leaf = part.detach().requires_grad_()
                of_part = loss(readout(leaf), wanted)
            gradient, *more = torch.autograd.grad(of_part, (leaf, *weights))
            into.copy_(gradient)
            total += of_part.detach()
            for gradient_sum, new in zip(by_weights, more, strict=True):
                gradient_sum += new
        ctx.save_for_backward(by_x, *by_weights)
        return total

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> Any:
        by_x, *by_weights = ctx.saved_tensors
        return None, None, by[0].to(by_x.dtype) * by_x, None, None, *(by[0] * w for w in by_weights)


def chunked_loss(readout: nn.Module, loss: Summed, x: Tensor, targets: Tensor, n_logits: int) -> Tensor:
    """loss(readout(x), targets), `n_logits` logits at a time; x [pos, d_model], targets [pos], loss a sum over them."""
    weights = tuple(w for w in readout.parameters() if w.requires_grad)  # adapters do not train the readout
    size = max(1, n_logits // readout.get_parameter("weight").size(0))
    return ChunkedLoss.apply(readout, loss, x, targets, size, *weights)  # type: ignore[no-any-return]
