"""What a run's folder says, read once for the report; whatever optional part is missing is left out."""

import itertools
import json
import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.architecture import count_parameters
from pellucid.plan.flops import Flops, flops
from pellucid.training.metrics import read_metrics
from pellucid.training.recipe import Recipe, RecipeError
from pellucid.training.run import read_recipe
from pellucid.yardstick import Yardstick, read_yardstick

#: what is known of the machine that a run began on
MACHINE = "machine.json"


@dataclass(frozen=True)
class Contents:
    """A run as its folder has it. `rows` are those of metrics.jsonl; `machine` and `data` may be empty."""

    run: Path
    recipe: Recipe
    rows: list[dict[str, Any]]
    yardstick: Yardstick | None = None
    data: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Path) -> "Contents":
        """Raises RecipeError for a folder that is no transformer's run."""
        kind = _json(run / "recipe.json").get("kind", "transformer")
        if kind != "transformer":
            raise RecipeError(f"{run} is a run of kind {kind}: a report is of a transformer's run")
        recipe, rows = read_recipe(run), read_metrics(run / "metrics.jsonl")
        return cls(run, recipe, rows, read_yardstick(run), _json(run / "data.json"), _json(run / MACHINE))

    def series(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of every row that has the number."""
        found = [(row["step"], row.get(name)) for row in self.rows]
        return [(float(step), float(v)) for step, v in found if isinstance(v, int | float) and math.isfinite(v)]

    def texts(self, name: str) -> list[tuple[int, str]]:
        """(step, text) of every row that has one."""
        return [(row["step"], row[name]) for row in self.rows if isinstance(row.get(name), str)]

    @property
    def parameters(self) -> dict[str, int]:
        return {part: n for part, n in count_parameters(self.recipe.model).items() if n}

    @property
    def flops(self) -> Flops:
        return flops(self.recipe.model)

    @property
    def seconds(self) -> float:
        """Of training, over all sittings; saving, evaluating and sampling among them."""
        return max((v for _, v in self.series("seconds")), default=0.0)

    def speeds(self) -> list[tuple[float, float]]:
        """(step, tokens per second) between steps that follow each other at once: no saving lies between."""
        steps = [row for row in self.rows if "loss" in row and "seconds" in row]
        pairs = itertools.pairwise(steps)
        return [
            (float(b["step"]), (b["tokens"] - a["tokens"]) / (b["seconds"] - a["seconds"]))
            for a, b in pairs
            if b["seconds"] > a["seconds"] and b["step"] == a["step"] + 1
        ]

    @property
    def command(self) -> str:
        """What trains the same again, into a folder of its own."""
        inputs = " ".join(shlex.quote(path) for path in self.recipe.inputs)
        recipe = shlex.quote(str(self.run / "recipe.json"))
        again = shlex.quote(f"{self.run}-again")
        return f"pellucid train {inputs} --recipe {recipe} --steps {self.recipe.n_steps} --out {again}"


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is missing, damaged, or no object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
