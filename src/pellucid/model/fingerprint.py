"""Whether tensors still hold the numbers that they held, from their bits: writes through `.data` are seen too.

PyTorch's version counters count neither what is written through `.data` nor what NumPy writes.
"""

import functools
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn

#: 32-bit words that a GPU adds up side by side, each with a factor of its own
WIDTH = 65521


def checksum(x: Tensor) -> int:
    """A number that tells two tensors of one device apart by their bits: on the CPU all but one pair in about 2^64, and
    on a GPU as `weighted_sum` does.
    """
    raw = x.detach().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_64_intdigest(cast(Any, raw.numpy())) if x.device.type == "cpu" else weighted_sum(raw)


def weighted_sum(raw: Tensor) -> int:
    """The sum of the 32-bit words of bytes [n], each with a factor of its place, modulo 2^64, on their own device.

    It differs for almost every change of the bits; words that are exchanged WIDTH apart are not told apart. Words of 64
    bits would lose changes of their top bits, the signs of numbers: 2^63 times any odd factor is 2^63.
    """
    if raw.storage_offset() % 4:
        raw = raw.clone()
    n_words, factors = raw.numel() // 4, _factors(raw.device)
    rows, words, rest = n_words // WIDTH, raw[: 4 * n_words].view(torch.int32), raw[4 * n_words :].long()
    sums = words[: rows * WIDTH].view(rows, WIDTH).sum(0, dtype=torch.int64)
    return int(sum((part * factors[: len(part)]).sum() for part in (sums, words[rows * WIDTH :], rest)))


@functools.lru_cache(maxsize=8)
def _factors(device: torch.device) -> Tensor:
    """Odd numbers, so that no product with one loses a bit [WIDTH]."""
    drawn = torch.randint(-(2**62), 2**62, (WIDTH,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(device)


class Fingerprint:
    """The weights and buffers of a module as they are when this is made, at the cost of one pass over their memory."""

    def __init__(self, module: nn.Module):
        self.module, self.known = module, _checksums(module)

    def changed(self, path: str = "") -> str:
        """The name of a weight that has changed since, of the submodule with this path; "" where none has."""
        prefix = f"{path}." if path else ""
        now = {prefix + name: value for name, value in _checksums(self.module.get_submodule(path)).items()}
        before = {name: value for name, value in self.known.items() if name.startswith(prefix)}
        return next((name for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)), "")


def _checksums(module: nn.Module) -> dict[str, tuple[int, torch.dtype, tuple[int, ...]]]:
    """The checksum, the dtype and the shape of every parameter and buffer, by name; tied ones under each name."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    sums = {key: checksum(x) for key, x in {id(x): x for _, x in named}.items()}
    return {name: (sums[id(x)], x.dtype, tuple(x.shape)) for name, x in named}
