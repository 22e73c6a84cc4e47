"""Adagrad for tables of which a step meets few rows (Duchi et al. 2011), the update of torch.optim.Adagrad.

    s <- s + g^2;   W <- W - lr g / (sqrt(s) + eps)

A number whose gradient is 0 stays as it is, so a gradient of the rows that a step met, as `nn.Embedding` gives it where
its `sparse` is set, is enough: the others are neither read nor written. AdamW moves every row in every step, which took
a third of a step of a small network (docs/log.md).

The weight decay is for all rows. It is applied every DECAY_EVERY steps, for all of them at once.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pellucid.runs.processes import ALONE, Processes

#: steps whose weight decay is applied at once
DECAY_EVERY = 16


class Adagrad(torch.optim.Optimizer):
    """Adagrad over tables; a table's gradient may be sparse, with each row once (`gradients.clip`).

    decay  what a step takes of every number, as a share: its rate is scaled with `lr`
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, decay: float, eps: float, processes: Processes = ALONE
    ):
        super().__init__(params, {"lr": lr})
        self.decay_of_rate, self.eps, self.processes = decay / lr, eps, processes

    @torch.no_grad()
    def step(self, bad: Tensor, decays: bool) -> None:  # type: ignore[override]
        """One update, unless `bad`, a boolean scalar: then every number keeps its bits.

        decays  whether the decay of DECAY_EVERY steps is applied before it
        """
        own = self.processes.local_part
        for group in self.param_groups:
            rate = group["lr"]
            shrunk = (1 - rate * self.decay_of_rate) ** DECAY_EVERY
            for p in group["params"]:
                if p.grad is None:
                    continue
                if decays:
                    own(p).mul_(torch.ones_like(bad, dtype=p.dtype).masked_fill_(~bad, shrunk))
                update(own(p), own(self.squares(p)), own(p.grad), rate, self.eps, bad)

    def squares(self, p: nn.Parameter) -> Tensor:
        """s of this table."""
        if "sum" not in self.state[p]:
            self.state[p]["sum"] = torch.zeros_like(p, requires_grad=False)
        return self.state[p]["sum"]


def update(p: Tensor, squares: Tensor, gradient: Tensor, rate: float, eps: float, bad: Tensor) -> None:
    """s <- s + g^2, p <- p - rate g / (sqrt(s) + eps), unless `bad`, of the rows that the gradient has.

    In a bad step 0 is added to s and subtracted from p, which keeps their bits.
    """
    if gradient.is_sparse:
        rows, g = gradient.indices()[0], gradient.values()
        s = squares[rows].add_(g.square().masked_fill_(bad, 0.0))
        squares.index_copy_(0, rows, s)
        step = (g / s.sqrt_().add_(eps)).masked_fill_(bad, 0.0)
        p.index_copy_(0, rows, p[rows].sub_(step, alpha=rate))
    else:
        squares.add_(gradient.square().masked_fill_(bad, 0.0))
        p.sub_((gradient / squares.sqrt().add_(eps)).masked_fill_(bad, 0.0), alpha=rate)
