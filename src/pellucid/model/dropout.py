"""Dropout whose masks are drawn by sample: beside which other rows a row is computed, and where, changes nothing.

Whether an entry is kept is a hash of the sample's number, of the place in the network and of the entry's coordinates,
as in the counter-based generators of Salmon et al. 2011. So there is no state: a pass that is computed again in the
backward pass draws the same, and several processes draw what one would.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pellucid.model.shapes import Samples

#: odd numbers by which the coordinates of an entry are spread, from its last axis to its first (2^32 / golden ratio)
SPREAD = (1, 0x9E3779B1, 0x85EBCA77)
#: multipliers of a hash of 32 bits (Wellons 2018, lowbias32)
HASH_MULTIPLIER_1, HASH_MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
#: multipliers of a hash of 64 bits (Steele, Lea and Flood 2014)
GOLDEN, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


class SampledDropout(nn.Dropout):
    """x_i / (1 - p) with probability 1 - p, else 0 (Srivastava et al. 2014): drawn by sample where `samples` is set,
    by PyTorch's generator otherwise.
    """

    def __init__(self, p: float):
        super().__init__(p)
        self.samples: Samples | None = None
        #: the number of this place among those of the network
        self.place = 0
        #: the first coordinate of axis 1, where this process computes a part of the heads
        self.first = 0

    @property
    def draws_by_sample(self) -> bool:
        """Whether the next pass drops entries, by the numbers of its samples."""
        return self.samples is not None and self.training and self.p > 0

    def forward(self, input: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        if self.samples is None or not self.draws_by_sample:
            return super().forward(input)
        is_kept = kept_entries(input, self.samples, self.place, self.first, self.p)
        return torch.where(is_kept, input, 0.0) * (1 / (1 - self.p))


def kept_entries(
    x: Float[Tensor, "batch ..."], samples: Samples, place: int, first: int, p: float
) -> Bool[Tensor, "batch ..."]:
    """Which entries of x are kept: each with probability 1 - p, whatever the sizes of x and the other rows are."""
    low, high = (key.view(-1, *[1] * (x.ndim - 1)) for key in keys_of_samples(samples, place))
    h = low + entry_numbers(x, first)
    h ^= h >> 16
    h *= signed(HASH_MULTIPLIER_1, 32)
    h ^= h >> 15
    h ^= high
    h *= signed(HASH_MULTIPLIER_2, 32)
    return h >= round(p * 2**32) - 2**31


def entry_numbers(x: Float[Tensor, "batch ..."], first: int) -> Int[Tensor, "..."]:
    """A number for each entry of a row of x that depends on its coordinates alone, not on the sizes of x."""
    numbers = torch.zeros((), dtype=torch.int32, device=x.device)
    for axis, spread in zip(range(x.ndim - 1, 0, -1), SPREAD, strict=False):
        at = torch.arange(x.size(axis), dtype=torch.int32, device=x.device) + (first if axis == 1 else 0)
        numbers = numbers + (at * signed(spread, 32)).view(-1, *[1] * (x.ndim - 1 - axis))
    return numbers


def keys_of_samples(samples: Samples, place: int) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Two numbers of 32 bits for each sample at one place of the network."""
    # as a tensor, whose products wrap: blocks compiled one by one share a graph in which the place varies
    key = samples + samples.new_full((), place) * signed(GOLDEN, 64)
    key = (key ^ (key >> 29)) * signed(MIX, 64)
    return key.to(torch.int32), (key >> 32).to(torch.int32)


def signed(number: int, bits: int) -> int:
    """The integer of two's complement with these bits."""
    return number - 2**bits if number >= 2 ** (bits - 1) else number


def number_dropout_modules(network: nn.Module) -> None:
    """Give every place of dropout in the network a number of its own."""
    for place, module in enumerate(m for m in network.modules() if isinstance(m, SampledDropout)):
        module.place = place


def draw_by_sample(network: nn.Module, samples: Samples | None) -> None:
    """Draw the next passes' dropout from these numbers, one for each row; None: from PyTorch's generator."""
    for module in network.modules():
        if isinstance(module, SampledDropout):
            module.samples = samples
