"""What reading weights alone costs, GPT-2 small's shape, random weights, float32; and a page about 2,048 tokens.

python -m benchmarks.circuits
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pellucid.architecture import Architecture
from pellucid.lens import Circuits, trace
from pellucid.lens.show.pages import inspect_page
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.presets import preset
from pellucid.text_model import of_ids


def timed(name: str, work: Callable[[], Any], rounds: int = 3) -> None:
    """Print the least and the most of a few rounds."""
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    print(f"{name:<44}{min(took):6.2f} to {max(took):5.2f} s")


def main() -> None:
    """The rows, one by one."""
    network = initialise(Transformer(preset("gpt2")), 0).eval()
    circuits = Circuits(of_ids(network))
    heads = [circuits[l, h] for l in range(12) for h in range(12)]
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    with torch.inference_mode():
        timed("copying scores of all 144 heads", lambda: Circuits(of_ids(network)).copying())
        timed("K-composition of all pairs, with baseline", lambda: circuits.compose("K"))
        timed("singular values and vectors of 144 W_OV", lambda: [head.ov.svd() for head in heads])
    small = Architecture(n_vocab=1024, n_ctx=2048, d_model=128, n_layers=4)
    t = trace(of_ids(initialise(Transformer(small), 0).eval()), torch.arange(2048) % 1024)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        timed("a page about 2,048 tokens, 4 blocks of 4 heads", lambda: inspect_page(t).save(page), rounds=1)
        print(f"{'its size':<44}{page.stat().st_size / 1e6:6.2f} MB")


if __name__ == "__main__":
    main()
