"""Read weights that files hold as MXFP4: blocks of 32 numbers of 4 bits, each block with one power of two.

Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0, sections 5.1 to 5.4. The files of
gpt-oss keep the maps of all experts of a layer so, as NAME_blocks [expert, out, in / 32, 16] and NAME_scales [expert,
out, in / 32], both of bytes; a byte of a block holds the number at an even place in its lower half, and the next one in
its upper half.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pellucid.hub.files import FolderError
from pellucid.hub.shards import Shards

BLOCKS, SCALES = "_blocks", "_scales"
#: the exponent of E8M0 that stands for 2^0, and the one that is not a number
BIAS, NAN = 127, 255


def e2m1(bits: int) -> float:
    """The number of 4 bits: a sign s, an exponent e of two bits and a mantissa m of one.

    (-1)^s 2^(e - 1) (1 + m / 2), and (-1)^s m / 2 where e is 0.
    """
    sign, e, m = (-1.0) ** (bits >> 3), (bits >> 1) & 3, bits & 1
    return sign * (2.0 ** (e - 1) * (1 + m / 2) if e else m / 2)


#: the two numbers of each byte
PAIRS = torch.tensor([[e2m1(byte & 15), e2m1(byte >> 4)] for byte in range(256)])


def dequantise(blocks: Tensor, scales: Tensor) -> Tensor:
    """2^(scale - 127) times the numbers of each block   [..., n, 16], [..., n] of bytes -> [..., 32 n] in bfloat16

    bfloat16 holds each of them exactly, but for products from 2^128 on, which are infinite. All numbers of a block
    with the scale 255 are NaN.
    """
    powers = torch.ldexp(torch.ones(scales.shape), scales.int() - BIAS).masked_fill(scales == NAN, torch.nan)
    return (PAIRS[blocks.int()].flatten(-2) * powers[..., None]).to(torch.bfloat16).flatten(-2)


class Mxfp4Tensors(Mapping[str, Tensor]):
    """The tensors of weight files, with those of MXFP4 as bfloat16 [expert, in, out] under the name without its ending.

    `n_numbers` is how many numbers there are, of 4 bits or more. Raises FolderError for blocks without scales, or of
    other types or shapes.
    """

    def __init__(self, files: Shards):
        self.files = files
        self.packed = [name.removesuffix(BLOCKS) for name in files if name.endswith(BLOCKS)]
        parts = {name + ending for name in self.packed for ending in (BLOCKS, SCALES)}
        self.names = [*self.packed, *(name for name in files if name not in parts)]
        # a byte of a block holds two numbers, and one scale belongs to 16 bytes
        self.n_numbers = files.n_numbers
        for name in self.packed:
            blocks, scales = self.bytes_of(name)
            self.n_numbers += blocks.numel() - scales.numel()

    def bytes_of(self, name: str) -> tuple[Tensor, Tensor]:
        """The blocks [expert, out, n, 16] and the scales [expert, out, n] of a tensor."""
        if name + SCALES not in self.files:
            raise FolderError(f"the tensor {name + SCALES} is missing: without it {name + BLOCKS} has no scales")
        blocks, scales = self.files[name + BLOCKS], self.files[name + SCALES]
        fits = blocks.ndim == 4 and blocks.shape == (*scales.shape, 16)
        if not fits or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise FolderError(
                f"{name + BLOCKS} is {blocks.dtype} {list(blocks.shape)} and {name + SCALES} {scales.dtype} "
                f"{list(scales.shape)}: expected bytes [expert, out, n, 16] and [expert, out, n]"
            )
        return blocks, scales

    def __getitem__(self, name: str) -> Tensor:
        if name + BLOCKS not in self.files:
            return self.files[name]
        # expert after expert: what is computed on the way takes several times as much memory
        return torch.stack([dequantise(*both) for both in zip(*self.bytes_of(name), strict=True)]).mT

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
