"""What `pellucid plan` says beside what happens: peak memory and seconds of a training step.

    python -m benchmarks.plan

Every configuration is a process of its own. Memory: the peak of resident memory over some steps, above what the process
held before the network was built, beside what walking through a step without numbers says. Time: the median of some
steps, beside what shorter networks in the same process say.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import BenchmarkError
from pellucid.plan.speed import stepper, training_speed
from pellucid.presets import with_vocabulary
from pellucid.training.memory import training_memory
from pellucid.training.recipe import Recipe, make_recipe

FIXED: dict[str, Any] = {
    "precision": "float32",
    "attention": "fused",
    "compile": "no",
    "device": "cpu",
    "ngram_rows": 4096,
}
#: preset, vocabulary and fields; from 150 MiB to 1.5 GiB
CONFIGURATIONS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "small": ("small", 2048, {"d_model": 256, "n_layers": 4, "n_ctx": 256, "batch": 8}),
    "deep": ("small", 2048, {"d_model": 192, "n_layers": 10, "n_ctx": 128, "batch": 12}),
    "wide": ("small", 2048, {"d_model": 512, "n_layers": 4, "n_ctx": 128, "batch": 8}),
    "long": ("small", 2048, {"d_model": 192, "n_layers": 6, "n_ctx": 1024, "batch": 2}),
    "many sequences": ("small", 512, {"d_model": 128, "n_layers": 4, "n_ctx": 64, "batch": 64}),
    "gpt2, AdamW, dropout": (
        "gpt2",
        8192,
        {"d_model": 256, "n_layers": 5, "n_heads": 4, "n_ctx": 128, "batch": 8, "optimizer": "adamw"},
    ),
    "written out": (
        "small",
        2048,
        {"d_model": 192, "n_layers": 5, "n_ctx": 384, "batch": 4, "attention": "written_out"},
    ),
    "recomputed": ("small", 2048, {"d_model": 256, "n_layers": 8, "n_ctx": 256, "batch": 6, "recompute": "yes"}),
    "large vocabulary": ("modern", 50257, {"d_model": 256, "n_layers": 4, "n_heads": 4, "n_ctx": 256, "batch": 3}),
    "in chunks": ("modern", 50257, {"d_model": 192, "n_layers": 4, "n_heads": 4, "n_ctx": 256, "batch": 6}),
    "encoder-decoder": (
        "original",
        4096,
        {"d_model": 256, "n_layers": 4, "n_heads": 4, "n_ctx": 128, "batch": 8, "objective": "source-target"},
    ),
}
STEPS = 5


def recipe_of(name: str) -> Recipe:
    """The recipe of a configuration."""
    preset, vocabulary, fields = CONFIGURATIONS[name]
    made = make_recipe(("ids",), preset, {**FIXED, **fields, "steps": 1})
    return replace(made, model=with_vocabulary(made.model, vocabulary))


def resident() -> int:
    """Bytes of resident memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(name: str) -> dict[str, Any]:
    """The figures of one configuration, in this process."""
    device, recipe = torch.device("cpu"), recipe_of(name)
    tiny = make_recipe(("ids",), "small", {**FIXED, "d_model": 32, "n_layers": 1, "n_ctx": 16, "batch": 1, "steps": 1})
    warm = stepper(replace(tiny, model=with_vocabulary(tiny.model, 256)), device)
    warm()  # what a first step loads is not the network's
    before = resident()
    step = stepper(recipe, device)
    times = [timed(step) for _ in range(STEPS)]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    del step
    predicted = training_speed(recipe, device, budget=2.0)
    return {
        "name": name,
        "bytes": used,
        "predicted_bytes": training_memory(recipe).peak,
        "seconds": statistics.median(times[1:]),
        "predicted_seconds": predicted.seconds,
        "how": predicted.how,
    }


def timed(step: Any) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=CONFIGURATIONS, help="measure this configuration here and print JSON")
    parser.add_argument("--only", nargs="*", default=list(CONFIGURATIONS), choices=CONFIGURATIONS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'configuration':<22}{'MiB':>8}{'planned':>9}{'':>7}{'ms/step':>10}{'planned':>9}")
    for name in options.only:
        command = [sys.executable, "-m", "benchmarks.plan", "--one", name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(done.stderr)
        m = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:<22}{m['bytes'] / 2**20:>8.0f}{m['predicted_bytes'] / 2**20:>9.0f}"
            f"{m['predicted_bytes'] / m['bytes'] - 1:>+7.1%}{1e3 * m['seconds']:>10.0f}"
            f"{1e3 * m['predicted_seconds']:>9.0f}{m['predicted_seconds'] / m['seconds'] - 1:>+7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
