"""Muon: momentum whose update is made orthogonal (Jordan et al. 2024), the update of torch.optim.Muon.

    m <- mu m + (1 - mu) g;   u = (1 - mu) g + mu m   (Nesterov)
    W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) orthogonal(u)

`orthogonal` is five steps of a Newton-Schulz iteration that moves every singular value towards 1. The
factor 0.2 sqrt(max) gives updates the size of AdamW's (Liu et al. 2025), so that learning rates carry
over between widths. torch's own class runs the iteration in bfloat16 and one matrix at a time: on a CPU
without bfloat16 units that took most of a training step (docs/log.md). Here the precision is a choice,
matrices of one shape are taken together, and a bad step leaves no trace.
"""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonal(u: Float[Tensor, "*matrix rows columns"], dtype: torch.dtype) -> Float[Tensor, "*matrix rows columns"]:
    """About U V^T for each u = U S V^T, its singular values between 0.7 and 1.2; computed in `dtype`."""
    a, b, c = COEFFICIENTS
    x = u.to(dtype)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(u.dtype)


class Muon(torch.optim.Optimizer):
    """Muon over matrices, the iteration in `dtype`; momentum 0.95 with Nesterov's look ahead."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, dtype: torch.dtype):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, bad: Tensor) -> None:  # type: ignore[override]
        """One update, unless `bad`, a boolean scalar: then parameters and momentum keep every bit."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                self._update(shape, params, group, bad)

    def _update(self, shape: torch.Size, params: list[nn.Parameter], group: dict, bad: Tensor) -> None:
        """The matrices of one shape."""
        grads = torch.stack([p.grad for p in params if p.grad is not None])
        buffers = [self._buffer(p) for p in params]
        momentum = torch.stack(buffers).lerp(grads, 1 - group["momentum"])
        update = orthogonal(grads.lerp(momentum, group["momentum"]), self.dtype)
        rate = group["lr"] * 0.2 * math.sqrt(max(shape))
        for p, buffer, m, u in zip(params, buffers, momentum, update, strict=True):
            new = p * (1 - group["lr"] * group["weight_decay"]) - rate * u
            p.copy_(torch.where(bad, p, new))
            buffer.copy_(torch.where(bad, buffer, m))

    def _buffer(self, p: nn.Parameter) -> Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        return state["momentum_buffer"]
