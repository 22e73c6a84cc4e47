"""Muon: momentum whose update is made orthogonal (Jordan et al. 2024), the update of torch.optim.Muon.

    m <- mu m + (1 - mu) g;   u = (1 - mu) g + mu m   (Nesterov)
    W <- (1 - lr decay) W - lr sqrt(max(1, rows / columns)) orthogonal(u)

`orthogonal` is five steps of a Newton-Schulz iteration that moves every singular value towards 1. With
the factor sqrt(max(1, rows / columns)) a step changes what a matrix makes of a vector by the same share
at every width (Yang, Simon and Bernstein 2023), so that a rate found on a narrow network serves a wide
one (docs/experiments/rates.md). torch's own class runs the iteration in bfloat16 and one matrix at a time: on a CPU
without bfloat16 units that took most of a training step (docs/experiments/rates.md). Here the precision is a choice,
matrices of one shape are taken together, and a bad step leaves no trace.

Each step multiplies X by a polynomial of X X^T, so all of them do: where X is much wider than high, the
product P of the polynomials is found from the small X X^T alone, and X is multiplied once. Not in bfloat16:
what rounding takes an eigenvalue 0 of X X^T below 0 grows by a^2 = 11.9 a step there, and gradients of few
tokens have many (docs/experiments/rates.md).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.runs.parameter_groups import ParameterGroups
from pellucid.runs.processes import SINGLE_PROCESS, Processes

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
#: columns / rows from which X X^T is iterated instead of X: 15 + 2 r products of rows-cubes against 5 + 10 r
WIDE_RATIO = 1.5


def orthogonal(u: Float[Tensor, "*matrix rows columns"], dtype: torch.dtype) -> Float[Tensor, "*matrix rows columns"]:
    """About U V^T for each u = U S V^T, its singular values between 0.7 and 1.2; computed in `dtype`."""
    x = u.to(dtype).reshape(-1, *u.shape[-2:])
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    x = orthogonalise_wide(x) if dtype != torch.bfloat16 and x.size(-1) > WIDE_RATIO * x.size(-2) else direct(x)
    return (x.mT if tall else x).to(u.dtype).view_as(u)


def direct(x: Float[Tensor, "matrix rows columns"]) -> Float[Tensor, "matrix rows columns"]:
    """X <- (a + b G + c G^2) X,  G = X X^T,  five times over."""
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def orthogonalise_wide(x: Float[Tensor, "matrix rows columns"]) -> Float[Tensor, "matrix rows columns"]:
    """The same through G alone: with R = b G + c G^2, P <- (a + R) P and G <- (a + R) G (a + R); then X <- P X.

    R, P and G are polynomials of the first G and commute.
    """
    a, b, c = COEFFICIENTS
    gram = x @ x.mT
    total = None
    for step in range(STEPS):
        r = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if total is None:
            total = r.clone()
            total.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            total = torch.baddbmm(total, r, total, beta=a)
        if step < STEPS - 1:
            half = torch.baddbmm(gram, r, gram, beta=a)
            gram = torch.baddbmm(half, r, half, beta=a)
    assert total is not None
    return total @ x


class Muon(ParameterGroups):
    """Muon over matrices, the iteration in `dtype`; momentum 0.95 with Nesterov's look ahead."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        processes: Processes = SINGLE_PROCESS,
    ):
        super().__init__([{"params": params}], {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})
        self.dtype, self.processes = dtype, processes

    @torch.no_grad()
    def step(self, bad: Tensor) -> None:
        """One update, unless `bad`, a boolean scalar: then parameters and momentum keep every bit."""
        for group in self.param_groups:
            # of matrices of one shape, processes may hold rows of some and columns of others
            alike: dict[tuple[torch.Size, Any], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.shape, getattr(p, "placements", None)), []).append(p)
            for (shape, _), params in alike.items():
                self._update(shape, params, group, bad)

    def _update(self, shape: torch.Size, params: list[nn.Parameter], group: dict, bad: Tensor) -> None:
        """The matrices of one shape."""
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        shrunk = 1 - group["lr"] * group["weight_decay"]
        buffers = [self._buffer(p) for p in params]
        update_together(params, buffers, group["momentum"], rate, shrunk, self.dtype, bad, self.processes)

    def _buffer(self, p: nn.Parameter) -> Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        return state["momentum_buffer"]


def update_together(
    params: list[nn.Parameter],
    buffers: list[Tensor],
    momentum: float,
    rate: float,
    shrunk: float,
    dtype: torch.dtype,
    bad: Tensor,
    processes: Processes = SINGLE_PROCESS,
) -> None:
    """p <- shrunk p - rate orthogonal(u) for matrices of one shape and their averages `buffers`, unless `bad`.

    Each of the processes has its part of p and of the averages; the iteration, which needs whole matrices, is
    computed in every one of them.
    """
    own = processes.local_part
    grads = torch.stack([own(p.grad) for p in params if p.grad is not None])
    averages = torch.stack([own(buffer) for buffer in buffers]).lerp_(grads, 1 - momentum)
    update = orthogonal(processes.whole_matrices(grads.lerp_(averages, momentum), params), dtype)
    update = processes.parts_of(update, params)
    update *= rate
    # of a bad step the update is put to zero and the decay to one: p * 1 - 0 is p, bit for bit
    decay = torch.ones_like(bad, dtype=update.dtype).masked_fill_(~bad, shrunk)
    update.masked_fill_(bad, 0.0)
    for p, buffer, m, u in zip(params, buffers, averages, update, strict=True):
        own(p).mul_(decay).sub_(u)
        # what a step that is not finite made of the momentum is not taken over
        own(buffer).copy_(torch.where(bad, own(buffer), m))
