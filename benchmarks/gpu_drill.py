"""What a GPU is asked in the few minutes that one is at hand, each part with a limit of its own.

    python -m benchmarks.gpu_drill --device cuda --scale full --out build/gpu-drill.jsonl      (make gpu-drill)
    python -m benchmarks.gpu_drill --device cpu --scale tiny                                   (a dry run)

Every part runs in a process of its own and its result is written as a line of JSON as soon as it is there, so that what
ran is never lost. A part that fails, takes too long or has nothing to run on says so and has no figures. At the end
there is one table. `--parts` names those to run.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pellucid
from pellucid.architecture import Architecture
from pellucid.generate import Sampling, generate_ids
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.plan.flops import flops
from pellucid.plan.speed import product_speed, step_seconds
from pellucid.presets import preset, with_vocabulary
from pellucid.reference.transformer import forward
from pellucid.runs.checkpoint import load_checkpoint
from pellucid.runs.device import describe_device, memory_bytes, resolve_device
from pellucid.training.memory import training_memory
from pellucid.training.recipe import Recipe, make_recipe

Result = dict[str, Any]
TEXT = Path(pellucid.__file__).parent / "data" / "shakespeare.txt"
#: by scale: the fields of the network that is timed, the precision, the sequences of a step, and the rows of decoding
TIMED: dict[str, tuple[dict[str, Any], str, int, tuple[int, ...]]] = {
    "tiny": ({"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32}, "float32", 4, (1, 4)),
    "full": ({}, "bfloat16", 16, (1, 64)),
}


def timed_model(scale: str) -> Architecture:
    """GPT-2 small, or the same with tiny sizes; no dropout."""
    fields = {**TIMED[scale][0], "dropout": 0.0}
    a = preset("gpt2").with_fields(fields)
    return with_vocabulary(a, 256) if scale == "tiny" else a


def timed_recipe(scale: str, device: torch.device) -> Recipe:
    """The step that is timed: eager, of AdamW, with the batch of the scale."""
    _, precision, batch, _ = TIMED[scale]
    fields = {"optimizer": "adamw", "batch": batch, "accumulate": 1, "precision": precision, "attention": "fused"}
    recipe = make_recipe(("x",), "gpt2", fields | {"compile": "no", "device": str(device)})
    return replace(recipe, model=timed_model(scale))


def machine(device: torch.device, scale: str) -> Result:
    """What the machine is, and how fast large products are on it."""
    words = ("float32",) if scale == "tiny" else ("float32", "bfloat16")
    speeds = {f"product_tflops_{word}": product_speed(device, word) / 1e12 for word in words}
    return describe_device(device) | {"memory_gib": memory_bytes(device) / 2**30} | speeds


def tests(device: torch.device, scale: str) -> Result:
    """The tests that need an accelerator."""
    if device.type != "cuda":
        return {"skipped": "these tests are for CUDA"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu"], capture_output=True, text=True, check=False
    )
    return {"passed": done.returncode == 0, "last_line": (done.stdout.splitlines() or [""])[-1]}


def reference(device: torch.device, scale: str) -> Result:
    """The largest difference between the network's logits in float32 and the reference's in float64."""
    a = with_vocabulary(preset("gpt2").with_fields({**TIMED["tiny"][0], "dropout": 0.0}), 256)
    network = initialise(Transformer(a), 0).eval()
    tokens = torch.arange(2 * a.n_ctx).view(2, a.n_ctx) % a.n_vocab
    weights = {name: p.detach().double().numpy() for name, p in network.named_parameters()}
    expected = torch.as_tensor(forward(a, weights, tokens.numpy()))
    with torch.inference_mode():
        logits = network.to(device)(tokens.to(device)).cpu().double()
    error = (logits - expected).abs().max().item()
    return {"largest_difference": error, "passed": error < 1e-5}


def resume(device: torch.device, scale: str) -> Result:
    """Whether a run that was interrupted ends, bit for bit, as one that was not."""
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "tokenizer": "byte", "dropout": 0.1}
    fields = sizes | {"batch": 4, "accumulate": 1, "evaluate_tokens": 100, "sample_every": 0, "compile": "no"}
    fields |= {"precision": "float32", "deterministic": "yes", "device": str(device), "schedule": "constant"}
    with tempfile.TemporaryDirectory() as folder:
        text, whole, halves = (Path(folder) / name for name in ("text.txt", "whole", "halves"))
        text.write_text(TEXT.read_text(encoding="utf-8")[:20000], encoding="utf-8")
        pellucid.train(text, out=whole, preset="small", fields=fields, steps=6, show=False)
        pellucid.train(text, out=halves, preset="small", fields=fields, steps=3, show=False)
        pellucid.train(out=halves, resume=True, steps=6, show=False)
        one, other = (load_checkpoint(run)[0].weights for run in (whole, halves))
        return {"passed": all(torch.equal(one[name], other[name]) for name in one)}


def training(device: torch.device, scale: str) -> Result:
    """Tokens a second of an eager step, their share of the speed of products, and its memory beside the plan."""
    recipe = timed_recipe(scale, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = step_seconds(recipe, device, 3.0 if scale == "tiny" else 20.0)
    result: Result = {"tokens_per_second": recipe.tokens_per_step / seconds}
    peak = product_speed(device, recipe.train.precision)
    result["share_of_products"] = result["tokens_per_second"] * flops(recipe.model).training / peak
    if device.type == "cuda":
        measured = torch.cuda.max_memory_allocated(device)
        result |= {"memory_gib": measured / 2**30, "memory_by_plan": training_memory(recipe).peak / measured}
    return result


def decoding(device: torch.device, scale: str) -> Result:
    """Tokens a second of generated text, by the number of rows."""
    a, result = timed_model(scale), Result()
    network = initialise(Transformer(a), 0).eval().to(device, torch.bfloat16 if scale == "full" else torch.float32)
    for n_rows in TIMED[scale][3]:
        decoding = generate_ids(network, [[1, 2, 3]] * n_rows, max_tokens=28, sampling=Sampling(temperature=0.8))
        steps = iter(decoding)
        for _ in range(4):  # the first ones load what later ones use
            next(steps)
        began = time.perf_counter()
        n = sum(len(step.tokens) for step in steps)
        result[f"tokens_per_second_of_{n_rows}"] = n / (time.perf_counter() - began)
    return result


#: each part and the seconds that it may take, in the order of what matters most
PARTS: dict[str, tuple[Callable[[torch.device, str], Result], int]] = {
    "machine": (machine, 60),
    "reference": (reference, 60),
    "resume": (resume, 90),
    "training": (training, 90),
    "decoding": (decoding, 90),
    "tests": (tests, 150),
}


def run_part(name: str, device: str, scale: str, limit: float) -> Result:
    """The result of a part in a process of its own, or why there is none."""
    command = [sys.executable, "-m", "benchmarks.gpu_drill", "--device", device, "--scale", scale, "--only", name]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        result: Result = {"failed": f"not done after {limit:.0f} seconds"}
    else:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        result = {"failed": last} if done.returncode else json.loads(done.stdout.splitlines()[-1])
    return {"part": name, "seconds": round(time.perf_counter() - began, 1)} | result


def table(results: list[Result]) -> str:
    """One row for each figure that was measured, as Markdown."""
    rows = ["| part | figure | value |", "|---|---|---|"]
    for result in results:
        for name, value in result.items():
            if name != "part":
                text = f"{value:.4g}" if isinstance(value, float) else str(value)
                rows.append(f"| {result['part']} | {name.replace('_', ' ')} | {text} |")
    return "\n".join(rows)


def main() -> int:
    """Run the parts; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", choices=[*TIMED], default="full")
    parser.add_argument("--parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--out", type=Path, help="a file of JSON lines, one for each part")
    parser.add_argument("--slower", type=float, default=1.0, help="how many times their limits the parts may take")
    parser.add_argument("--only", choices=[*PARTS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        with contextlib.redirect_stdout(io.StringIO()):
            result = PARTS[options.only][0](resolve_device(options.device), options.scale)
        print(json.dumps(result))
        return 0
    results: list[Result] = []
    for name in options.parts:
        results.append(run_part(name, options.device, options.scale, options.slower * PARTS[name][1]))
        line = json.dumps(results[-1])
        print(line, flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    print(table(results))
    return int(any("failed" in result or result.get("passed") is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
