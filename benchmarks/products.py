"""Products alone: milliseconds that one pass over GPT-2 small's matrices takes, kind by kind, for 1 to 1,024 rows.

    python -m benchmarks.products --rows 1 4 16 1024

`loaded` is F.linear. The share of the read bandwidth counts the bytes of the weights as they are kept, once a pass.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.side_by_side import header, interleave, memory_read, seconds, show, spread
from pellucid.generate.packed_linear import PRODUCTS, available

#: n_out, n_in of a block's matrices, and how many blocks; then the readout's
BLOCK, N_BLOCKS, READOUT = [(768, 768)] * 4 + [(3072, 768), (768, 3072)], 12, (50257, 768)
BYTES = {"loaded": 4, "float32": 4, "int8": 1, "int4": 4.5 / 8}


def make(kind: str, weights: Sequence[Tensor]) -> tuple[list[Callable[[Tensor], Tensor]], float]:
    """The products, and the seconds that making them took."""
    start = time.perf_counter()
    if kind == "loaded":
        return [lambda x, w=w: F.linear(x, w) for w in weights], 0.0
    return [PRODUCTS[kind](w, None) for w in weights], time.perf_counter() - start


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 1024])
    parser.add_argument("--kinds", nargs="+", default=[kind for kind in BYTES if kind == "loaded" or available(kind)])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    weights = [torch.randn(shape) * 0.02 for shape in [*BLOCK * N_BLOCKS, READOUT]]
    n = sum(w.numel() for w in weights)
    made = {kind: make(kind, weights) for kind in options.kinds}
    print(*(f"{kind}: packed in {taken:.2f} s" for kind, (_, taken) in made.items()), sep="; ", end="\n\n")
    bandwidth = memory_read(torch.device("cpu")).median
    with torch.inference_mode():
        for rows in options.rows:
            inputs = {n_in: torch.randn(rows, n_in) for n_in in {w.size(1) for w in weights}}

            def one_pass(products: list[Callable[[Tensor], Tensor]], inputs: dict[int, Tensor]) -> None:
                for w, product in zip(weights, products, strict=True):
                    product(inputs[w.size(1)])

            turns = {kind: seconds(lambda p=p, i=inputs: one_pass(p, i)) for kind, (p, _) in made.items()}
            found = interleave(turns, options.rounds, warm_up=2)
            shares = {kind: BYTES[kind] * n / bandwidth / m.median for kind, m in found.items()}
            title = f"{rows} rows; {n / 1e6:.0f} million weights, read {bandwidth / 1e9:.1f} GB/s"
            lines = [[kind, spread(m, 1e3), f"{shares[kind]:.0%}"] for kind, m in found.items()]
            show(title, ["", "ms a pass", "of bandwidth"], lines)


if __name__ == "__main__":
    main()
