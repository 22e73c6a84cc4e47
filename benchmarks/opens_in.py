"""What it costs to train a model that other software opens: bits per byte of three sets of options, side by side.

    python -m benchmarks.opens_in --results opens_in.jsonl --data FOLDER [--minutes 1 3 10] [--workers 1]

relu2     a plain MLP of squared ReLU, with n-gram tables: what `pellucid train` chose where nothing was said
qwen3     the options of the family qwen3 instead, with n-gram tables: what it chooses now
target    what --for transformers and --for gguf choose: the options of qwen3 without n-gram tables

Each set is sized by `pellucid.plan.sizing` for its own text and time. A run takes the steps that its minutes of one
core pay for, by the cost in `pellucid.plan.sizing`; a gated MLP's cost beside a plain one is timed here first.
So a result does not depend on what else the machine does. Runs that stand in the results' file are not run again.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import header, show
from benchmarks.sizing import CORPORA, held_out, known_of
from pellucid.plan import sizing
from pellucid.plan.speed import in_turn, stepper
from pellucid.runs.length import with_length
from pellucid.runs.options import with_train
from pellucid.runs.pipeline import start_run
from pellucid.runs.reporter import QuietReporter
from pellucid.training.recipe import Recipe, make_recipe
from pellucid.training.trainable import TransformerTrainable

TEXTS = ("shakespeare", "austen", "udhr")
PLAIN = {"model.mlp.form": "plain", "model.mlp.activation": "relu2"}
OPTIONS: dict[str, dict[str, Any]] = {"relu2": PLAIN, "qwen3": {}, "target": {"model.ngrams": ()}}


@dataclass(frozen=True)
class Cell:
    """One run."""

    corpus: str
    minutes: float
    options: str


def relative_cost() -> tuple[float, float]:
    """Seconds of a step with a gated MLP over those with a plain one, at the two widths that sizing probes."""
    ratios = []
    for width in sizing.PROBES:
        size = sizing.Size(1024, width, sizing.PROBE_LAYERS, 16)
        recipes = [
            with_train(sizing.recipe_of_size(recipe_of(1.0, name), size), **FIXED) for name in ("relu2", "qwen3")
        ]
        plain, gated = in_turn([stepper(recipe, torch.device("cpu")) for recipe in recipes], 15.0)
        ratios.append(gated / plain)
    return ratios[0], ratios[1]


FIXED = {"precision": "float32", "attention": "explicit", "compile": "no", "device": "cpu"}


def recipe_of(minutes: float, options: str) -> Recipe:
    """The recipe before it is sized."""
    return with_length(make_recipe((), None, OPTIONS[options]), {"minutes": minutes})


def run_cell(cell: Cell, data: Path, cost: tuple[float, float]) -> dict[str, Any]:
    """The chosen size, its steps, and held-out bits per byte at the run's end."""
    torch.set_num_threads(1)
    text = CORPORA[cell.corpus](data)
    recipe = recipe_of(cell.minutes, cell.options)
    scale = (1.0, 1.0) if cell.options == "relu2" else cost
    made = sizing.choose_size(recipe, known_of(text), scale)
    recipe = sizing.sized(recipe, made, set())
    recipe = with_length(recipe, {"steps": made.chosen.steps})
    recipe = replace(recipe, text=replace(recipe.text, held_out=held_out(text)))
    recipe = with_train(recipe, **FIXED, sample_every=-1, evaluate_every=made.chosen.steps, evaluate_tokens=2048)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8")
        run = start_run(
            TransformerTrainable(replace(recipe, inputs=(str(file),))), Path(folder) / "run", QuietReporter()
        )
        if run.exit_code:  # it was interrupted
            raise SystemExit(run.exit_code)
    keep = ("vocabulary", "d_model", "n_layers", "batch", "ngrams", "steps", "epochs")
    size = {name: getattr(made.chosen, name) for name in keep}
    return asdict(cell) | size | {"scale": scale, "bits_per_byte": run.bits_per_byte}


def table(lines: Sequence[dict[str, Any]]) -> None:
    """A row a cell, each set of options beside the first; the means of what is complete."""
    by_cell = {(x["corpus"], x["minutes"], x["options"]): x for x in lines}
    rows, costs = [], {name: [] for name in OPTIONS}
    for corpus, minutes in dict.fromkeys((x["corpus"], x["minutes"]) for x in lines):
        found = [by_cell.get((corpus, minutes, name)) for name in OPTIONS]
        row = [corpus, f"{minutes:g}"]
        for name, x in zip(OPTIONS, found, strict=True):
            tables = "" if x is None else " tables" if x["ngrams"] else ""
            row.append("" if x is None else f"{x['d_model']}/{x['n_layers']}/{x['vocabulary']}{tables}, {x['steps']:,}")
            row.append("" if x is None else f"{x['bits_per_byte']:.4f}")
            if x is not None and found[0] is not None and name != "relu2":
                cost = x["bits_per_byte"] / found[0]["bits_per_byte"] - 1
                costs[name].append(cost)
                row[-1] += f" ({cost:+.1%})"
        rows.append(row)
    columns = ["text", "minutes"] + [
        c for name in OPTIONS for c in (f"{name}: width/layers/ids, steps", "bits per byte")
    ]
    show("held-out bits per byte by the options that are open", columns, rows)
    for name, each in costs.items():
        if each:
            print(f"{name}: {statistics.mean(each):+.2%} on average over {len(each)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(*header(torch.device("cpu")), sep="\n")
    cost_file = given.results.with_suffix(".cost.json")
    if not cost_file.exists():
        cost_file.write_text(json.dumps(relative_cost()))
    cost = tuple(json.loads(cost_file.read_text()))
    print(f"a step with a gated MLP takes {cost[0]:.3f} and {cost[1]:.3f} times one with a plain MLP")
    lines = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    have = {(x["corpus"], x["minutes"], x["options"]) for x in lines}
    cells = [Cell(c, m, o) for m in given.minutes for c in TEXTS for o in OPTIONS]
    for cell in cells:
        if (cell.corpus, cell.minutes, cell.options) not in have:
            lines.append(run_cell(cell, given.data, cost))
            with given.results.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    table(lines)


if __name__ == "__main__":
    main()
