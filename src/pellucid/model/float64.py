"""Where numbers are computed in float64."""

import torch
from torch import Tensor

#: kinds of devices without float64: Apple's GPUs
WITHOUT_FLOAT64 = frozenset({"mps"})


def in_float64(x: Tensor) -> Tensor:
    """`x` in float64, on its own device, or on the CPU where that device has no float64."""
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).to(torch.float64)
