"""The figures of a run in TensorBoard or Weights & Biases too, row by row as they are written to metrics.jsonl.

Both packages are extras (`pellucid[track]`), imported only by a run that asks for one with `train.track`. If a tracker
fails, a warning says so and training goes on: metrics.jsonl has everything.
"""

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pellucid.extras import install_command, is_importable
from pellucid.runs.options import RecipeError, RunRecipe


class Tracker(Protocol):
    """Where rows of metrics.jsonl go as well."""

    def write(self, row: Mapping[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def figures_of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row by their names, without its step."""
    return {name: x for name, x in row.items() if type(x) in (int, float) and name != "step"}


class TensorBoard:
    """Event files in the folder `tensorboard` of the run; what was written of steps after `step` no longer counts."""

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        for name, x in figures_of_row(row).items():
            self.writer.add_scalar(name, x, row["step"])
        if row.get("sample") is not None:
            self.writer.add_text("sample", row["sample"], row["step"])

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of W&B's project `pellucid`, with the recipe as its configuration; its id is kept in the run's folder, so
    that a run that is resumed goes on in it.

    W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) say where it goes.
    """

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        import wandb

        known = run_dir / "wandb-id.txt"
        if not known.exists():
            known.write_text(secrets.token_hex(8), encoding="utf-8")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pellucid"),
            name=run_dir.name,
            id=known.read_text(encoding="utf-8"),
            dir=str(run_dir),
            config=recipe.to_dict()["options"],
            resume="allow",
        )
        # W&B's own steps only grow, and a resumed run may take steps again
        self.run.define_metric("*", step_metric="step")

    def write(self, row: Mapping[str, Any]) -> None:
        text = {} if row.get("sample") is None else {"sample": row["sample"]}
        self.run.log({"step": row["step"], **figures_of_row(row), **text})

    def flush(self) -> None:
        """W&B's own process has the rows already."""

    def close(self) -> None:
        # closed while an error is on its way, the run is marked as failed
        self.run.finish(exit_code=int(sys.exc_info()[0] is not None))


#: what `train.track` names, which is also the package that it needs
TRACKERS: dict[str, Callable[[Path, RunRecipe, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def check_tracker(recipe: RunRecipe) -> None:
    """Raise RecipeError where the package of a new run's tracker is not installed."""
    package = recipe.train.track
    if package != "no" and not is_importable(package):
        raise RecipeError(
            f"train.track = {package} needs the package {package}: install it ({install_command('track')}), or leave "
            "train.track at no; metrics.jsonl has the same figures"
        )


class Tracked:
    """The tracker that a recipe names, or none. What fails in it is a warning, and ends it."""

    def __init__(self, run_dir: Path, recipe: RunRecipe, step: int):
        self.name, self.tracker = recipe.train.track, None
        if self.name != "no":
            self.tracker = self.attempt(partial(TRACKERS[self.name], run_dir, recipe, step))

    def write(self, row: Mapping[str, Any]) -> None:
        """Hand on a row."""
        if self.tracker is not None:
            self.attempt(partial(self.tracker.write, row))

    def flush(self) -> None:
        """What was handed on survives the end of this process."""
        if self.tracker is not None:
            self.attempt(self.tracker.flush)

    def close(self) -> None:
        """Write what is left."""
        if self.tracker is not None:
            self.attempt(self.tracker.close)

    def attempt(self, do: Callable[[], Any]) -> Any:
        """The result, or None with a warning where the package raises whatever it raises."""
        try:
            return do()
        except Exception as error:
            self.tracker = None
            warnings.warn(
                f"{self.name} failed ({error}) and gets no more figures; metrics.jsonl has all of them", stacklevel=3
            )
            return None
