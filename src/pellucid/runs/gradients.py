"""The norm of a gradient and its clipping; of a table, a gradient may have only the rows that were met."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pellucid.runs.processes import ALONE, Processes
from pellucid.runs.rmsprop import is_at_hand


def clip(parameters: Iterable[nn.Parameter], largest: float, processes: Processes = ALONE) -> Tensor:
    """The norm of the gradient before clipping; the gradient is scaled down where its norm is above `largest`, if that
    is not 0   (Pascanu, Mikolov and Bengio 2013).

    What several passes, or several places of a pass, have added to one row of a sparse gradient is added up.
    """
    gradients = []
    for p in parameters:
        if p.grad is not None:
            p.grad = p.grad.coalesce() if p.grad.is_sparse else p.grad
            gradients.append(p.grad.values() if p.grad.is_sparse else p.grad)
    norm = processes.norm(gradients)
    if largest:
        scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
        # where nobody waits for the number, gradients that stay as they are need not be written
        if not (is_at_hand(scale) and scale == 1):
            torch._foreach_mul_(gradients, scale)  # pyright: ignore[reportPrivateImportUsage]
    return norm
