"""The figures of a run in TensorBoard or Weights & Biases too, row by row as they are written to metrics.jsonl.

Both packages are extras (`pellucid[track]`), imported only by a run that asks for one with `train.track`. If a tracker
fails on the way, a warning says so and training goes on: metrics.jsonl has everything.
"""

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pellucid.runs.options import RecipeError, RunRecipe


class Tracker(Protocol):
    """Where rows of metrics.jsonl go as well."""

    def write(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row by their names, without its step."""
    return {name: x for name, x in row.items() if type(x) in (int, float) and name != "step"}


class TensorBoard:
    """Event files in the folder `tensorboard` of the run; what was written of steps after `step` no longer counts."""

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        for name, x in numbers_of(row).items():
            self.writer.add_scalar(name, x, row["step"])
        if row.get("sample") is not None:
            self.writer.add_text("sample", row["sample"], row["step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of W&B's project `pellucid`, with the recipe as its configuration; a run that is resumed goes on in it.

    W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) say where it goes.
    """

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        import wandb

        name = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pellucid"),
            name=run_dir.name,
            id=os.environ.get("WANDB_RUN_ID", name),
            dir=str(run_dir),
            config=recipe.to_dict(),
            resume="allow",
        )

    def write(self, row: Mapping[str, Any]) -> None:
        text = {} if row.get("sample") is None else {"sample": row["sample"]}
        self.run.log(numbers_of(row) | text, step=row["step"])

    def close(self) -> None:
        self.run.finish()


#: what `train.track` names, and the package that it needs
TRACKERS: dict[str, tuple[Callable[[Path, RunRecipe, int], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WeightsAndBiases, "wandb"),
}


def check_tracker(recipe: RunRecipe) -> None:
    """Raise RecipeError where the package of the tracker is not installed."""
    if recipe.train.track == "no":
        return
    package = TRACKERS[recipe.train.track][1]
    if importlib.util.find_spec(package) is None:
        raise RecipeError(
            f"train.track = {recipe.train.track} needs the package {package}: install it "
            f"(pip install {package}), or leave train.track at no; metrics.jsonl has the same figures"
        )


class Tracked:
    """The tracker that a recipe names, or none. A failure after its start is a warning, and ends it."""

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        self.tracker: Tracker | None = None
        if recipe.train.track == "no":
            return
        try:
            self.tracker = TRACKERS[recipe.train.track][0](run_dir, recipe, step)
        except Exception as error:  # whatever the package raises
            raise RecipeError(f"train.track = {recipe.train.track} could not begin: {error}") from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Hand on a row."""
        if self.tracker is not None:
            try:
                self.tracker.write(row)
            except Exception as error:  # whatever the package raises
                self.give_up(error)

    def close(self) -> None:
        """Write what is left."""
        if self.tracker is not None:
            try:
                self.tracker.close()
            except Exception as error:  # whatever the package raises
                self.give_up(error)
            self.tracker = None

    def give_up(self, error: Exception) -> None:
        """Warn, and hand on nothing more."""
        name, self.tracker = type(self.tracker).__name__, None
        warnings.warn(f"{name} failed and gets no more figures: {error}; metrics.jsonl has all of them", stacklevel=2)
