"""How far the time of a deep network's step, extrapolated from networks of few layers, is from that of the whole step.

    python -m benchmarks.few_layers --rounds 9

For each shape, whole steps (forward, backward, clipping, update) of three things are taken in turn: of the network
itself, of the networks of one and two layers of `pellucid.training.few_layers`, from which a run times a network that
no process makes whole, and of those of two and four layers of `pellucid.plan.speed`, from which a plan does. In each
round the extrapolated seconds are divided by those of the whole step; the table has the medians of these ratios and
their quartiles. With --cpu-time seconds are those of the processor, which other work on the machine changes less: use
it with one thread.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.side_by_side import Measured, header, interleave, show, spread
from pellucid.plan.speed import shallow_networks, stepper
from pellucid.presets import with_vocabulary
from pellucid.runs.measure import extrapolated
from pellucid.training.few_layers import few_layers
from pellucid.training.recipe import Recipe, make_recipe

#: preset, vocabulary and fields
SHAPES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "8 of width 128": ("small", 1024, {"n_layers": 8, "d_model": 128, "n_heads": 4, "n_ctx": 128, "batch": 16}),
    "12 with windows": (
        "llama-mini",
        4096,
        {
            "n_layers": 12,
            "d_model": 192,
            "n_heads": 6,
            "n_kv_heads": 6,
            "n_ctx": 256,
            "batch": 4,
            "attention.windows": (64, 64, 0),
        },
    ),
    "6 of width 384": ("gpt2", 8192, {"n_layers": 6, "d_model": 384, "n_heads": 6, "n_ctx": 256, "batch": 4}),
}
FIXED = {"accumulate": 1, "precision": "float32", "attention": "fused", "compile": "no", "dropout": 0.0, "steps": 1}


def recipe_of(name: str) -> Recipe:
    """The recipe of a shape."""
    preset, vocabulary, fields = SHAPES[name]
    made = make_recipe(("ids",), preset, FIXED | fields)
    return replace(made, model=with_vocabulary(made.model, vocabulary))


def measure(name: str, rounds: int, clock: Callable[[], float]) -> list[str]:
    """A row of the table."""
    recipe, device = recipe_of(name), torch.device("cpu")
    networks = {"one and two": few_layers(recipe), "two and four": shallow_networks(recipe)}

    def timed(step: Callable[[], None]) -> Callable[[], float]:
        def turn() -> float:
            began = clock()
            step()
            return clock() - began

        return turn

    turns = {"whole": timed(stepper(recipe, device))}
    for how, parts in networks.items():
        turns |= {f"{how} {k}": timed(stepper(few, device)) for k, (_, few) in enumerate(parts)}
    taken = interleave(turns, rounds)
    row = [name, spread(taken["whole"], 1e3)]
    for how, parts in networks.items():
        seconds = zip(*(taken[f"{how} {k}"].values for k in range(len(parts))), strict=True)
        found = [extrapolated([(n, s) for (n, _), s in zip(parts, each, strict=True)]) for each in seconds]
        ratios = [f / whole for f, whole in zip(found, taken["whole"].values, strict=True)]
        row.append(spread(Measured(how, ratios), 1))
    return row


def main() -> None:
    """A row for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    o = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    clock = time.process_time if o.cpu_time else time.perf_counter
    rows = [measure(name, o.rounds, clock) for name in o.shapes]
    columns = ["layers", "ms of the whole step", "from one and two layers", "from two and four layers"]
    show("extrapolated over measured", columns, rows)


if __name__ == "__main__":
    main()
