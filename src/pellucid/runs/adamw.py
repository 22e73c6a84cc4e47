"""AdamW (Loshchilov and Hutter 2017), bit for bit the update of torch.optim.AdamW.

    m <- b m + (1 - b) g;   v <- c v + (1 - c) g^2
    W <- (1 - lr decay) W - lr (m / (1 - b^n)) / (sqrt(v / (1 - c^n)) + eps),   n = 1, 2, ... the step

PyTorch's function does it, by one kernel that passes over all parameters once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from pellucid.runs.parameter_groups import ParameterGroups


class AdamW(ParameterGroups):
    """AdamW over groups, each with a `weight_decay` of its own."""

    def __init__(self, groups: Iterable[Mapping[str, Any]], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, {"lr": lr})
        self.betas, self.eps = betas, eps

    @torch.no_grad()
    def step(self, bad: Tensor) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            remembered = [self.remembered(p) for p in params]
            adamw(
                params,
                [p.grad for p in params],
                [state["exp_avg"] for state in remembered],
                [state["exp_avg_sq"] for state in remembered],
                [],
                [state["step"] for state in remembered],
                fused=True,
                found_inf=bad.float(),  # by this name gradient scalers tell the kernel to change nothing
                lr=group["lr"],
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=group["weight_decay"],
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    def remembered(self, p: nn.Parameter) -> dict[str, Tensor]:
        """The number of steps taken, m and v, of this parameter."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"] = torch.zeros_like(p, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(p, requires_grad=False)
        return state
