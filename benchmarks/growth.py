"""How time and memory grow with context, width, depth and batch: a training step and a forward pass.

    python -m benchmarks.growth --longest 8192

Every point is a process of its own: median seconds of some passes, and the peak of resident memory above what the
process held before the pass (of the first step gradients and averages are part). One size grows, the others stay at
BASE; the preset modern's words, float32 on a CPU, not compiled. An exponent e says that the figure grows as size^e:
least squares in logarithms, over all points and over the larger half of them, where constants matter less.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.looking import Peak, give_back
from benchmarks.side_by_side import BenchmarkError, Worker, header, serve, show
from pellucid.presets import with_vocabulary
from pellucid.runs.optimizer import make_optimizer
from pellucid.training import build as setup
from pellucid.training.objectives import MicroBatch, autocast
from pellucid.training.recipe import make_recipe

BASE = {"n_ctx": 128, "d_model": 128, "n_layers": 4, "batch": 8}
SIZES = {
    "n_ctx": [64, 128, 256, 512, 1024, 2048, 4096, 8192],
    "d_model": [64, 128, 256, 512],
    "n_layers": [1, 2, 4, 8, 16],
    "batch": [1, 2, 4, 8, 16, 32],
}
N_VOCAB, D_HEAD = 256, 32
FIGURES = {"step_seconds": "step ms", "step_bytes": "step MB", "seconds": "forward ms", "bytes": "forward MB"}


def passes(sizes: dict[str, int]) -> dict[str, Callable[[], object]]:
    """A forward pass and a training step at these sizes."""
    device = torch.device("cpu")
    chosen = {"n_heads": sizes["d_model"] // D_HEAD, "dropout": 0.0, "precision": "float32", "device": "cpu"}
    recipe = make_recipe(("ids",), "modern", {**sizes, **chosen, "steps": 1})
    recipe = replace(recipe, model=with_vocabulary(recipe.model, N_VOCAB))
    network = setup.build_network(recipe, device).train()
    optimizer, loss = make_optimizer(recipe, network), autocast(network, device, "float32")
    ids = torch.randint(N_VOCAB, (sizes["batch"], sizes["n_ctx"] + 1), generator=torch.Generator().manual_seed(0))
    given, good = MicroBatch(ids[:, :-1], ids[:, 1:]), torch.tensor(False)

    def forward() -> None:
        with torch.inference_mode():
            network(given.inputs)

    def step() -> None:
        optimizer.zero_grad()
        (loss(given) / given.targets.numel()).backward()
        optimizer.step(good)

    return {"": forward, "step_": step}


def timed(work: Callable[[], object]) -> float:
    """Median seconds of three to ten passes, about a second of them."""
    times: list[float] = []
    while len(times) < 3 or (len(times) < 10 and sum(times) < 1.0):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def worker(sizes: dict[str, int]) -> None:
    """One point's process."""
    torch.randn(64, 64) @ torch.randn(64, 64)  # what the first product loads is nobody's memory
    work = passes(sizes)

    def measure(_: str) -> dict[str, Any]:
        found = {}
        for name, one in work.items():
            give_back()
            peak = Peak()
            one()
            found[f"{name}bytes"] = peak.more()
            found[f"{name}seconds"] = timed(one)
        return found

    serve({}, measure)


def exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """The slope of log figure over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def grow(name: str, sizes: list[int], base: dict[str, int]) -> None:
    """Measure one size's points and print them with their exponents."""
    points: dict[int, dict[str, float]] = {}
    for size in sizes:
        given = {**base, name: size}
        try:
            with Worker([sys.executable, "-m", "benchmarks.growth", "--worker", json.dumps(given)]) as process:
                points[size] = process.ask()
        except BenchmarkError as error:
            print(f"{name} = {size} is left out: {str(error).splitlines()[-1]}")
    rows = [[str(size), *(f"{p[f] * scale(f):,.1f}" for f in FIGURES)] for size, p in points.items()]
    for share in (list(points), list(points)[len(points) // 2 :]):
        if len(share) > 1:
            slopes = [exponent(share, [max(points[s][f], 1e-9) for s in share]) for f in FIGURES]
            rows.append([f"exponent, {share[0]} ... {share[-1]}", *(f"{e:.2f}" for e in slopes)])
    fixed = ", ".join(f"{k} {v}" for k, v in base.items() if k != name)
    show(f"{name} ({fixed})", [name, *FIGURES.values()], rows)


def scale(figure: str) -> float:
    """To milliseconds and megabytes."""
    return 1e3 if "seconds" in figure else 1e-6


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", nargs="+", choices=SIZES, default=list(SIZES), help="which sizes grow")
    parser.add_argument("--longest", type=int, default=2048, help="the longest context; up to 8,192")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    for name in options.of:
        sizes = [s for s in SIZES[name] if name != "n_ctx" or s <= options.longest]
        grow(name, sizes, BASE | {"batch": 2} if name == "n_ctx" else BASE)
    return None


if __name__ == "__main__":
    main()
