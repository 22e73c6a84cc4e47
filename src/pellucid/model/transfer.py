"""Copies between the host and the device of a network, for which a GPU and its host do not wait."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def on_device(array: ArrayLike, device: torch.device) -> Tensor:
    """The array as a tensor on the device, or nested lists of ids, positions or rows, as int64.

    To a GPU it is copied asynchronously from pinned memory: a copy from pageable memory would wait until all the work
    that the GPU has is done.
    """
    # of lists NumPy chooses the type, on some systems one of 32 bits
    numbers = array if isinstance(array, np.ndarray) else np.array(array, np.int64)
    values = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, in one piece each; those that are there already are not copied.

    From a GPU all are copied into pinned memory at once, and the host waits for them once.
    """
    on_gpu = next((x.device for x in tensors.values() if x.is_cuda), None)
    copies = {name: x.contiguous().to("cpu", non_blocking=x.is_cuda) for name, x in tensors.items()}
    if on_gpu is not None:
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(on_gpu))
        copied.synchronize()
    return copies
