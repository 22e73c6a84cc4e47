"""RMSprop for tables of which a step meets few rows (Tieleman and Hinton 2012), corrected for its start as Adam is.

    v <- b v + (1 - b) g^2;   W <- W - lr g / (sqrt(v / (1 - b^n)) + eps),   n = 1, 2, ... the step

This is AdamW without its average of the gradients. A number whose gradient is 0 stays as it is, so a gradient of the
rows that a step met, as `nn.Embedding` gives it where its `sparse` is set, is enough: the others are neither read nor
written. AdamW moves every row in every step, which took a fifth of a step of a small network (docs/log.md).

What concerns all rows is done for BLOCK steps at once: the weight decay, and v's. Between, s with v = b^j s is kept in
place of v, where j = 1, 2, ... BLOCK counts the steps of the block: s of a row that is not met stays as it is.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from pellucid.compiled_source import CompiledSource
from pellucid.runs.parameter_groups import ParameterGroups
from pellucid.runs.processes import ALONE, Processes

#: steps of a block; s grows by up to b^-BLOCK before it is scaled, which float32 holds (`options.LEAST_BETA_2`)
BLOCK = 16
#: the file that is compiled
SOURCE = CompiledSource(Path(__file__).with_name("rmsprop.cpp"))


class RMSprop(ParameterGroups):
    """RMSprop over tables; a table's gradient may be sparse, with each row once (`gradients.clip`).

    decay  what a step takes of every number, as a share: its rate is scaled with `lr`
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        beta: float,
        decay: float,
        eps: float,
        processes: Processes = ALONE,
    ):
        super().__init__([{"params": params}], {"lr": lr})
        self.beta, self.decay_of_rate, self.eps, self.processes = beta, decay / lr, eps, processes

    @torch.no_grad()
    def step(self, bad: Tensor) -> None:
        """One update, unless `bad`, a boolean scalar: then every number keeps its bits, and no step is counted."""
        own, b = self.processes.local_part, self.beta
        for group in self.param_groups:
            rate = group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                taken, sums = self.remembered(p)
                table, sums, gradient, n = own(p), own(sums), own(p.grad), taken.to(p.dtype)
                in_block = n % BLOCK + 1
                if is_at_hand(gradient):
                    if bad:
                        continue
                    n, in_block = n.item(), in_block.item()
                if torch.is_tensor(in_block) or in_block == 1:
                    shrink(table, (1 - rate * self.decay_of_rate) ** BLOCK, bad, in_block)
                    shrink(sums, b**BLOCK, bad, in_block)
                weight, scale = (1 - b) / b**in_block, b**in_block / (1 - b ** (n + 1))
                update(table, sums, gradient, rate, self.eps, bad, weight, scale)
                taken += ~bad

    def remembered(self, p: nn.Parameter) -> tuple[Tensor, Tensor]:
        """The number of steps taken, and s, of this table."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["sum"] = torch.zeros_like(p, requires_grad=False)
        return state["step"], state["sum"]


def shrink(x: Tensor, factor: float, bad: Tensor, in_block: Tensor | float) -> None:
    """x <- factor x in the first step of a block, unless `bad`."""
    x.mul_(torch.ones_like(bad, dtype=x.dtype).masked_fill_(~bad & (in_block == 1), factor))


def is_at_hand(x: Tensor) -> bool:
    """Whether nobody waits for its numbers: they are on a CPU, and it is no stand-in that has a shape alone."""
    return x.device.type == "cpu" and type(x) in (Tensor, nn.Parameter)


def rows_and_values(gradient: Tensor) -> tuple[Tensor | None, Tensor]:
    """Which rows the gradient has, None for all, and their gradients."""
    return (gradient.indices()[0].contiguous(), gradient.values()) if gradient.is_sparse else (None, gradient)


def are_read(p: Tensor, sums: Tensor, gradient: Tensor) -> bool:
    """Whether the compiled update reads them: float32 on a CPU, rows one after another, of a vector each."""
    whole = (p, sums, rows_and_values(gradient)[1])
    return p.ndim == 2 and all(x.dtype == torch.float32 and is_at_hand(x) and x.is_contiguous() for x in whole)


def update_rows(
    p: Tensor, sums: Tensor, gradient: Tensor, rate: float, eps: float, weight: float, scale: float
) -> None:
    """`update` by a file of C++: PyTorch's operations take several times as long (docs/log.md)."""
    rows, g = rows_and_values(gradient)
    sizes = (*g.shape, torch.get_num_threads())
    SOURCE.call("update_rows", (p, sums, rows, g), sizes, (rate, eps, weight, scale**0.5))


def update(
    p: Tensor,
    sums: Tensor,
    gradient: Tensor,
    rate: float,
    eps: float,
    bad: Tensor,
    weight: Tensor | float,
    scale: Tensor | float,
) -> None:
    """s <- s + weight g^2, p <- p - rate g / (sqrt(scale s) + eps), unless `bad`, of the rows that the gradient has.

    In a bad step 0 is added to s and subtracted from p, which keeps their bits.
    """
    if are_read(p, sums, gradient) and SOURCE.is_usable():
        if not bad:
            update_rows(p, sums, gradient, rate, eps, float(weight), float(scale))
    elif gradient.is_sparse:
        rows, g = gradient.indices()[0], gradient.values()
        s = sums.index_select(0, rows).add_(g.square().mul_(weight).masked_fill_(bad, 0.0))
        sums.index_copy_(0, rows, s)
        step = g.div(s.sqrt_().mul_(scale**0.5).add_(eps)).masked_fill_(bad, 0.0)
        p.index_copy_(0, rows, p.index_select(0, rows).sub_(step, alpha=rate))
    else:
        sums.add_(gradient.square().mul_(weight).masked_fill_(bad, 0.0))
        p.sub_(gradient.div(sums.sqrt().mul_(scale**0.5).add_(eps)).masked_fill_(bad, 0.0), alpha=rate)
