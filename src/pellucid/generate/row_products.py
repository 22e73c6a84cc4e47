"""Products whose weights take four bytes, one, or half a byte, by a file of C++ that is compiled once for this machine.

PyTorch's own products with few bits a weight either round their inputs or read two bytes a weight
(docs/experiments/decoding.md). Where there is no C++ compiler, or none that knows OpenMP, `why_not_compiled` says so
and other products are used.
"""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pellucid.compiled_source import CompiledSource

#: the file that is compiled, which includes the products
SOURCE = CompiledSource(Path(__file__).with_name("compiled_step.cpp"), Path(__file__).with_name("row_products.cpp"))
#: the compiled products, or None, and why there are none
load_library = SOURCE.load
#: more rows than these are multiplied by weights that are unpacked into float32, a piece at a time
MOST_ROWS = 16
#: weights of such a piece
PIECE_WEIGHTS = 1 << 20

Format = Literal["float32", "int8", "int4"]


def is_compiled() -> bool:
    """Whether `load_library` compiles nothing: what it would compile is on disk, or cannot be compiled."""
    return SOURCE.is_compiled()


def why_not_compiled() -> str:
    """Why there are no compiled products on this machine, "" if there are."""
    return load_library()[1]


def multiply(kind: Format, weights: tuple[Tensor, ...], bias: Tensor | None, x: Tensor, n_out: int) -> Tensor:
    """x W^T + b in float32, [*rows, n_in] -> [*rows, n_out], for at most a few rows.

    weights   contiguous: float32 [n_out, n_in]; the integers int8 [n_out, n_in] and their scales float32 [n_out]; or
              two integers in each byte uint8 [n_out, n_in / 2] and their scales bfloat16 [n_out, n_in / 32]

    Raises RuntimeError where there are no compiled products, and TypeError for inputs of another type.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}: compiled products read float32")
    n_in = x.size(-1)
    x = x.contiguous()
    y = x.new_empty((*x.shape[:-1], n_out))
    sizes = (x.numel() // n_in, n_out, n_in, torch.get_num_threads())
    SOURCE.call(f"multiply_{kind}", (*weights, bias, x, y), sizes)
    return y
