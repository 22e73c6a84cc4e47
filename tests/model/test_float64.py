"""Numbers are computed in float64 where a device has it, and on the CPU where it has not."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pellucid.model.float64 import in_float64


@pytest.mark.parametrize(("device", "where"), [("cpu", "cpu"), ("cuda", "cuda"), ("mps", "cpu")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_float64_is_on_the_device_unless_it_has_none(device, where, dtype):
    """By tensors that have a device and no numbers."""
    with FakeTensorMode():
        x = in_float64(torch.empty(3, dtype=dtype if device != "mps" else torch.float32, device=device))
    assert (x.dtype, x.device.type) == (torch.float64, where)


def test_numbers_are_kept():
    x = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(in_float64(x), x.double())
