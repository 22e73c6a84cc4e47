"""What `pellucid plan` says beside what happens: peak memory and seconds of a training step.

    python -m benchmarks.plan
    python -m benchmarks.plan --results plan.jsonl    # keeps what was measured; goes on behind it

Every configuration is two processes of its own. Memory: the peak of resident memory over some steps, above what the
process held before the network was built, beside what walking through a step without numbers says. The plan counts what
lives; glibc's allocator keeps much of what was freed, so it is measured as that is given back to the system at once
(MALLOC_MMAP_THRESHOLD_ = 64 KiB), and beside that by default. Time: the median of some steps by default, half of
them before and half behind it, beside what shorter networks in the same process say.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import BenchmarkError
from pellucid.plan.speed import OnRandomTokens, training_speed
from pellucid.presets import with_vocabulary
from pellucid.runs.optimizer import make_optimizer
from pellucid.runs.options import with_train
from pellucid.runs.step import training_step
from pellucid.training.memory import training_memory
from pellucid.training.recipe import Recipe, make_recipe

FIXED: dict[str, Any] = {
    "precision": "float32",
    "attention": "fused",
    "compile": "no",
    "device": "cpu",
    "ngram_rows": 4096,
    "accumulate": 1,
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
        {"d_model": 192, "n_layers": 5, "n_ctx": 384, "batch": 4, "attention": "explicit"},
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
STEPS = 4
#: with it glibc gives tensors of more than 64 KiB back when they are freed
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


def recipe_of(name: str) -> Recipe:
    """The recipe of a configuration."""
    preset, vocabulary, fields = CONFIGURATIONS[name]
    made = make_recipe(("ids",), preset, {**FIXED, **fields, "steps": 1})
    return replace(made, model=with_vocabulary(made.model, vocabulary))


def resident() -> int:
    """Bytes of resident memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(name: str) -> dict[str, Any]:
    """Peak bytes and seconds of a step of one configuration, in this process; and by default what is planned."""
    device, recipe = torch.device("cpu"), recipe_of(name)
    tiny = make_recipe(("ids",), "small", {**FIXED, "d_model": 32, "n_layers": 1, "n_ctx": 16, "batch": 1, "steps": 1})
    warm = stepper(replace(tiny, model=with_vocabulary(tiny.model, 256)), device)
    warm()  # what a first step loads is not the network's
    before = resident()
    step = stepper(recipe, device)
    times = [timed(step) for _ in range(STEPS)]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if any(name in os.environ for name in GIVES_BACK):
        return {"bytes": used, "seconds": statistics.median(times[1:])}
    # the allocator needs some steps until it asks the system for little more: what is planned is the time from then on
    times = [timed(step) for _ in range(STEPS)]
    predicted = training_speed(recipe, device)
    times += [timed(step) for _ in range(STEPS)]  # before and behind it: the machine may change its mind
    found = {"bytes": used, "seconds": statistics.median(times)}
    planned = {"bytes": training_memory(recipe).peak, "seconds": predicted.seconds, "how": predicted.how}
    return {**found, "planned": planned}


def stepper(recipe: Recipe, device: torch.device) -> Callable[[], object]:
    """A function that takes a step on random tokens, at a learning rate of 0."""
    trainable = OnRandomTokens(with_train(recipe, device=str(device)))
    trainable.build()
    trainable.loss, data, n = trainable.make_loss(), trainable.make_data(), recipe.train.accumulate
    optimizer = make_optimizer(recipe, trainable.network.train())
    optimizer.set_factor(0.0)
    return lambda: training_step(trainable, optimizer, (data.at(0, micro, n) for micro in range(n)), n)


def timed(step: Any) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def in_processes(name: str) -> dict[str, Any]:
    """The figures of one configuration, from a process by default and one that gives back what is freed."""
    return {"name": name, **_child(name, {}), "given_back": _child(name, GIVES_BACK)}


def _child(name: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.plan", "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise BenchmarkError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def row_of(m: dict[str, Any]) -> tuple[str, float, float]:
    """A line of the table, and how far the plan is off in memory and in time."""
    planned, back = m["planned"], m["given_back"]
    memory, seconds = planned["bytes"] / back["bytes"] - 1, planned["seconds"] / m["seconds"] - 1
    line = (
        f"{m['name']:<22}{planned['bytes'] / 2**20:>8.0f}{back['bytes'] / 2**20:>10.0f}{memory:>+7.1%}"
        f"{m['bytes'] / 2**20:>10.0f}{1e3 * planned['seconds']:>10.0f}{1e3 * m['seconds']:>8.0f}{seconds:>+7.1%}"
        f"{1e3 * back['seconds']:>11.0f}"
    )
    return line, memory, seconds


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=CONFIGURATIONS, help="measure this configuration here and print JSON")
    parser.add_argument("--only", nargs="*", default=list(CONFIGURATIONS), choices=CONFIGURATIONS)
    parser.add_argument("--results", type=Path, help="a file of JSON lines; what is in it is not measured again")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    kept = options.results.read_text().splitlines() if options.results and options.results.exists() else []
    known = {row["name"]: row for row in map(json.loads, kept)}
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':<22}{'MiB:':>8}{'given':>10}{'':>7}{'by':>10}{'ms/step:':>10}{'by':>8}{'':>7}{'giving':>11}")
    print(f"{'':<22}{'planned':>8}{'back':>10}{'':>7}{'default':>10}{'planned':>10}{'default':>8}{'':>7}{'back':>11}")
    errors: list[tuple[float, float]] = []
    for name in options.only:
        m = known.get(name) or in_processes(name)
        if options.results and name not in known:
            with options.results.open("a") as file:
                file.write(json.dumps(m) + "\n")
        line, *error = row_of(m)
        errors.append((error[0], error[1]))
        print(line, flush=True)
    near = [
        sum(abs(x) <= most for x in column) for column, most in zip(zip(*errors, strict=True), (0.1, 0.2), strict=True)
    ]
    print(f"of {len(errors)}: memory within 10 % {near[0]}, time within 20 % {near[1]}")


if __name__ == "__main__":
    main()
