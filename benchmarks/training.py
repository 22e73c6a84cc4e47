"""Training tokens/s beside nanoGPT, Hugging Face transformers and litgpt, on three shapes.

    python -m benchmarks.training --nanogpt PATH --litgpt-python PATH/bin/python

Each peer runs in each of its settings (float32, bfloat16; eager, compiled), in a process of its own that takes turns
with ours in our best setting; a ratio is taken in each turn. A step is batch, forward, backward, clipping, AdamW.
FLOP/s count 6 N + 12 n_layers d_model n_ctx a token (N: parameters but those of the position table; Chowdhery et al.
2022, appendix B): on a CPU beside the measured product of two 1024-cubes, on CUDA as model FLOPs utilisation, beside
the chip's published dense peak in the precision that ran. The CUDA part has never been run.
"""

import argparse
import contextlib
import itertools
import json
import re
import sys
from pathlib import Path

import torch

from benchmarks.side_by_side import BenchmarkError, Worker, cube_of, header, interleave, matrix_product, show, spread

#: n_layers, n_heads, d_model, n_ctx, batch, n_vocab
SHAPES = {
    "small": [4, 4, 128, 64, 12, 65],
    "medium": [6, 6, 384, 256, 64, 65],
    "gpt2": [12, 12, 768, 256, 4, 50304],
}
SETTINGS = [f"{p}-{c}" for p, c in itertools.product(("float32", "bfloat16"), ("eager", "compiled"))]
#: dense bfloat16 FLOP/s by words of the name that CUDA gives the chip, from the makers' data sheets; float32 products
#: run in TF32 units only where torch is told so, which it is not here
PEAKS = {
    "B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "L4": 121e12, "A10": 125e12, "4090": 165e12, "3090": 71e12,
}  # fmt: skip
PEERS = ["nanogpt", "transformers", "litgpt"]
WORKER = Path(__file__).with_name("training_worker.py")


def main() -> None:
    """Measure what was asked for and print a table for each shape."""
    o = options()
    for line in header(torch.device(o.device), ("transformers", "numpy")):
        print(line)
    device = torch.device(o.device)
    cubes = {p: matrix_product(device, getattr(torch, p)) for p in ("float32", "bfloat16")}
    for name, m in cubes.items():
        print(f"{name} product of {cube_of(device)}-cubes: {spread(m, 1e-9)} GFLOP/s")
    for shape in o.shapes:
        measure(shape, o, {name: m.median for name, m in cubes.items()})


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--ours", nargs="+", choices=SETTINGS, help="our settings, of which the best is compared")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--nanogpt", help="path of a clone of nanoGPT; left out without one")
    parser.add_argument("--litgpt-python", help="a Python that has litgpt; left out without one")
    parser.add_argument("--attention", nargs="+", default=["fused"], choices=("fused", "explicit"), help="of ours")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn is")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def start(library: str, setting: str, shape: list[int], o: argparse.Namespace) -> Worker:
    """A process that trains with this library in this setting."""
    precision, how, *attention = setting.split("-")
    given = {
        "shape": shape, "precision": precision, "compile": how == "compiled", "device": o.device,
        "nanogpt": o.nanogpt, "attention": attention[0] if attention else "fused",
    }  # fmt: skip
    python = o.litgpt_python if library == "litgpt" else sys.executable
    return Worker([python, str(WORKER), library, json.dumps(given)])


def measure(name: str, o: argparse.Namespace, cubes: dict[str, float]) -> None:
    """One shape: our settings first, then every peer's beside our best."""
    shape = SHAPES[name]
    tokens = shape[3] * shape[4]
    setting, own_seconds = best_of_ours(shape, o)
    rows = []
    there = {"nanogpt": o.nanogpt, "litgpt": o.litgpt_python, "transformers": True}
    if absent := [p for p in o.peers if not there[p]]:
        print(f"left out: {', '.join(absent)} (--nanogpt and --litgpt-python say where they are)")
    with start("pellucid", setting, shape, o) as ours:
        n = max(1, round(o.seconds / own_seconds))
        for peer, theirs in itertools.product([p for p in o.peers if there[p]], o.settings):
            try:
                with start(peer, theirs, shape, o) as other:
                    turns = {
                        "ours": lambda: ours.ask(str(n))["seconds"],
                        "theirs": lambda w=other: w.ask(str(n))["seconds"],
                    }
                    m = interleave(turns, o.rounds)
            except BenchmarkError as error:
                rows.append([f"{peer} {theirs}", str(error)[:60]])
                continue
            ratio = m["ours"].ratio_to(m["theirs"])
            figures = [spread(m[k], 1e3) for k in ("theirs", "ours")]
            rows.append([f"{peer} {theirs}", *figures, f"{tokens / m['theirs'].median:,.0f}", spread(ratio, 1, 2)])
        flops = shape_flops(shape, ours.about["parameters"]) * tokens
    columns = [f"{name} {shape}", "ms/step", f"ours, {setting}", "tokens/s", "times faster"]
    show(f"{name}: layers, heads, width, context, batch, vocabulary = {shape}", columns, rows)
    print(ceiling(flops / own_seconds, setting, cubes, torch.device(o.device)))


def best_of_ours(shape: list[int], o: argparse.Namespace) -> tuple[str, float]:
    """Our fastest setting, of all that run in turn, and its seconds a step."""
    settings = [f"{s}-{a}" for s, a in itertools.product(o.ours or o.settings, o.attention)]
    with contextlib.ExitStack() as stack:
        workers = {}
        for setting in settings:
            try:
                workers[setting] = stack.enter_context(start("pellucid", setting, shape, o))
            except BenchmarkError as error:
                print(f"ours {setting}: {error}")
        if not workers:
            raise BenchmarkError("none of our settings runs here")
        # the first one's quick step says how many make a turn; a compiled one's first step is no measure
        n = max(1, round(o.seconds / next(iter(workers.values())).ask("1")["seconds"]))
        turns = {s: lambda w=worker: w.ask(str(n))["seconds"] for s, worker in workers.items()}
        measured = interleave(turns, min(5, o.rounds))
        for setting, m in measured.items():
            print(
                f"ours {setting}: {spread(m, 1e3)} ms/step, the first {workers[setting].about['first_seconds']:.1f} s"
            )
    best = min(measured, key=lambda s: measured[s].median)
    return best, measured[best].median


def shape_flops(shape: list[int], parameters: int) -> float:
    """Floating-point operations of training on one token."""
    n_layers, _, d_model, n_ctx, _, _ = shape
    return 6 * (parameters - n_ctx * d_model) + 12 * n_layers * d_model * n_ctx


def peak_of(chip: str) -> float | None:
    """The chip's FLOP/s by PEAKS, None where it is not there; words are compared whole, as an L40 is no L4."""
    return next((value for name, value in PEAKS.items() if re.search(rf"\b{name}\b", chip)), None)


def ceiling(flops: float, setting: str, cubes: dict[str, float], device: torch.device) -> str:
    """What share of the hardware's limit was reached."""
    precision = setting.partition("-")[0]
    line = f"ours {setting}: {flops / 1e9:,.0f} GFLOP/s, {flops / cubes[precision]:.0%} of the {precision} product here"
    if device.type == "cuda" and precision == "bfloat16":
        chip = torch.cuda.get_device_name(device)
        peak = peak_of(chip)
        line += (
            f"; MFU {flops / peak:.1%} of {chip}'s {peak / 1e12:.0f} TFLOP/s" if peak else f"; {chip}: peak not known"
        )
    return line


if __name__ == "__main__":
    main()
