"""The norm of a gradient and its clipping."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pellucid.runs.processes import SINGLE_PROCESS, Processes


def clip(parameters: Iterable[nn.Parameter], largest: float, processes: Processes = SINGLE_PROCESS) -> Tensor:
    """The norm of the gradient before clipping; the gradient is scaled down where its norm is above `largest`, if that
    is not 0   (Pascanu, Mikolov and Bengio 2013).
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = processes.norm(gradients)
    if largest:
        scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
        # on a CPU nobody waits for the number: gradients that stay as they are need not be written
        if not (is_real_cpu_tensor(scale) and scale == 1):
            torch._foreach_mul_(gradients, scale)  # pyright: ignore[reportPrivateImportUsage]
    return norm


def is_real_cpu_tensor(x: Tensor) -> bool:
    """Whether `x` lies in the memory of a CPU, and is no stand-in that has a shape alone."""
    return x.device.type == "cpu" and type(x) in (Tensor, nn.Parameter)
