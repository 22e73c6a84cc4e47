"""What may differ between a run's recipe and that of its resumption: one rule for options and for recipe.json.

Each checkpoint holds the recipe that it was made with, so that a recipe.json that was changed since is found too.
"""

import math
from collections.abc import Mapping
from typing import Any

from pellucid.runs.options import INTERVALS, RecipeError

#: the options of training that say how this machine computes, which a resumed run may change
OF_MACHINE = ("device", "compile")
#: the options that say when a run is measured and what it keeps, which change no weight of a run of steps: a resumed
#: run may change them. `evaluate_tokens` is not one of them, as the best checkpoint is the one with the lowest loss
#: over the same tokens
OF_RECORD = (*INTERVALS, "keep_last")
#: the options of training that a resumed run of every kind may change
RESUMABLE = (*OF_MACHINE, *OF_RECORD)
#: the options in which a run and its resumption may differ: those and the tracker; and paths, as what is read there is
#: compared by itself. The layout of the processes may differ too
MAY_DIFFER = {*(f"train.{name}" for name in (*RESUMABLE, "track")), "inputs", "text.held_out_files"}
#: what is recorded that may differ: paths, and the run's length, which `check_unchanged` compares
MAY_MOVE = {"started_in", "base.path", "decay", "planned", "chosen_intervals"}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names; those that are None are left out."""
    entries: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            entries |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            entries[prefix + key] = value
    return entries


def changed_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The options in which two runs differ and may not: name, old value, new value."""
    a, b = flat(old), flat(new)
    names = [name for name in sorted({*a, *b} - MAY_DIFFER) if not name.startswith("parallel.")]
    if b.get("text.held_out_files") and not a.get("text.held_out_files"):
        # files take the place of a share, which nobody has set to 0
        names = ["text.held_out_files", *(name for name in names if name not in ("text.held_out", "text.split"))]
    changed = [(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]
    if any(n_processes(recipe) > 1 for recipe in (a, b)) and rows_per_step(a) == rows_per_step(b):
        # several processes divide the rows of a step into other passes
        changed = [entry for entry in changed if entry[0] not in ("train.batch", "train.accumulate")]
    return changed


def n_processes(recipe: Mapping[str, Any]) -> int:
    """How many processes the layout of a flat recipe is for; 0 where that is open."""
    return math.prod(recipe.get(f"parallel.{name}", 0) for name in ("replicate", "shard", "tensor"))


def rows_per_step(recipe: Mapping[str, Any]) -> int:
    """The sequences of a step of a flat recipe."""
    return recipe.get("train.batch", 0) * recipe.get("train.accumulate", 0)


def check_unchanged(saved: Mapping[str, Any], written: Mapping[str, Any], step: int, run: str) -> None:
    """Raise RecipeError where recipe.json (`written`) is not that of the checkpoint (`saved`) up to its step."""
    changed = changed_options(saved["options"], written["options"])
    before, after = flat(saved["record"]), flat(written["record"])
    decays = before.get("decay"), after.get("decay")
    moved = MAY_MOVE - ({"decay"} if any(decay and decay[0] < step for decay in decays) else set())
    names = sorted({*before, *after} - moved)
    changed += [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]
    if changed:
        lines = "; ".join(f"{name}: {old} in the checkpoint, {new} in recipe.json" for name, old, new in changed[:3])
        raise RecipeError(
            f"{run}/recipe.json was changed after the checkpoint of step {step} was saved ({lines}): put back what it "
            f"was, or start a new run"
        )
