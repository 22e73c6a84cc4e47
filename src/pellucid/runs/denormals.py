"""While steps are taken, numbers below 1.2e-38 count as 0 on x86 processors.

float32 has numbers down to 1.4e-45, of which those below 1.2e-38, the denormal ones, have fewer digits. Products with
them take many times as long on x86 processors. Where a network learned random tokens by heart at a constant rate, its
attention patterns filled with them, and a step took 2.4 times as long (docs/experiments/step-speed.md); most runs meet
few.

The setting belongs to a thread, and `torch.set_flush_denormal` changes that of its caller alone: a file of C++ changes
it in all threads that share an operation. Where there is no C++ compiler nothing is changed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from pellucid.compiled_source import CompiledSource

#: the file that is compiled
SOURCE = CompiledSource(Path(__file__).with_name("denormals.cpp"))
#: every bit of the setting
ALL_BITS = 0xFFFF


def set_flushed(bits: int) -> int:
    """Set the processor's bits in all threads that compute, and return those that this thread had."""
    state = torch.tensor([bits], dtype=torch.int64, device="cpu")
    SOURCE.call("set_flushed", (state,), (torch.get_num_threads(),))
    return int(state)


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """A context in which denormal numbers count as 0; behind it, all threads do as the calling one did before."""
    if not SOURCE.is_usable():
        yield
        return
    before = set_flushed(ALL_BITS)
    try:
        yield
    finally:
        set_flushed(before)
