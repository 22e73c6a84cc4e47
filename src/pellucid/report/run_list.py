"""Runs in a folder: what each is, and removing, renaming and pruning them."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.features.recipe import read_features_recipe
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.metrics import last_evaluation, read_metrics
from pellucid.runs.options import RecipeError, RunRecipe
from pellucid.runs.pipeline import is_being_trained, prune_checkpoints
from pellucid.training.kinds import run_kind, why_no_run
from pellucid.training.load import read_recipe


@dataclass(frozen=True)
class RunSummary:
    """A run as its folder tells it; figures are None where they are not known.

    n_bytes  of all files of the folder
    tokens   targets that it was trained on
    seconds  of training, over all sittings
    status   finished, stopped at a step, being trained, or what is damaged
    """

    path: Path
    kind: str
    n_bytes: int
    tokens: int | None
    seconds: float | None
    bits_per_byte: float | None
    status: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        tokens = "-" if self.tokens is None else f"{self.tokens:,}"
        minutes = "-" if self.seconds is None else f"{self.seconds / 60:.1f}"
        bits = "-" if self.bits_per_byte is None else f"{self.bits_per_byte:.4f}"
        return self.path.name, f"{self.n_bytes / 1e6:,.1f}", tokens, minutes, bits, self.status


#: the columns of a list of runs
HEADINGS = ("run", "MB", "tokens", "minutes", "bits/byte", "status")
#: the columns that a narrow window does without, the first one first; bits per byte only if short names do not help
DROPPED_COLUMNS = ("minutes", "tokens", "MB", "bits/byte")
#: characters that a shortened name has at least
SHORTEST_RUN_NAME = 12
#: characters that a status usually has at most: stopped at step 100,000
USUAL_STATUS = 23


class RunList(list[RunSummary]):
    """Runs in the order of their names, which print as a table."""

    def __repr__(self) -> str:
        return self.table()

    def table(self, width: int | None = None) -> str:
        """The table, for a window of `width` columns if that is given.

        Where it is too narrow, columns are left out, and then long names lose their middle. A status stays whole.
        """
        if not self:
            return "there are no runs here"
        columns = {
            heading: [heading, *cells] for heading, *cells in zip(HEADINGS, *(run.cells for run in self), strict=True)
        }
        statuses = columns.pop("status")
        room = math.inf if width is None else width - min(max(map(len, statuses)), USUAL_STATUS)
        widths = {heading: max(map(len, cells)) for heading, cells in columns.items()}
        for heading in DROPPED_COLUMNS:
            spared = max(widths["run"] - SHORTEST_RUN_NAME, 0) if heading == "bits/byte" else 0
            if sum(widths.values()) + 2 * len(widths) - spared > room:
                del widths[heading]
        if (beyond := sum(widths.values()) + 2 * len(widths) - room) > 0:
            widths["run"] = max(widths["run"] - int(beyond), min(widths["run"], SHORTEST_RUN_NAME))
        names = [without_middle(name, widths["run"]).ljust(widths["run"]) for name in columns.pop("run")]
        figures = [
            [cell.rjust(widths[heading]) for cell in columns[heading]] for heading in columns if heading in widths
        ]
        return "\n".join("  ".join(row) for row in zip(names, *figures, statuses, strict=True))


def without_middle(name: str, most: int) -> str:
    """A name in at most so many characters: its beginning and its end, which often is a number."""
    return name if len(name) <= most else f"{name[: most // 2]}\u2026{name[-((most - 1) // 2) :]}"


def list_runs(folder: str | Path = "runs") -> RunList:
    """The runs in a folder, by name: every folder in it that has a recipe.json. Raises RecipeError if it is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecipeError(f"{folder} is no folder: give the one that holds runs, such as runs")
    return RunList(summary_of_run(path) for path in runs_in(folder))


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder by name; hidden folders, such as what an interrupted removal leaves, are none."""
    visible = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    return [path for path in visible if (path / "recipe.json").is_file()]


def summary_of_run(run: Path) -> RunSummary:
    """What a run's folder tells; damages become its status."""
    n_bytes = bytes_of(run)
    try:
        kind = run_kind(run)
        rows = read_metrics(run / "metrics.jsonl")
    except (RecipeError, OSError, ValueError) as error:
        return RunSummary(run, "?", n_bytes, None, None, None, f"damaged: {str(error).splitlines()[0]}")
    tokens = max((row["tokens"] for row in rows if isinstance(row.get("tokens"), int)), default=None)
    seconds = max((row["seconds"] for row in rows if isinstance(row.get("seconds"), int | float)), default=None)
    bits = last_evaluation(rows).get("bits_per_byte")
    return RunSummary(run, kind, n_bytes, tokens, seconds, bits, run_status(run, kind, rows))


def run_status(run: Path, kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether a run is finished, stopped, or being trained; `rows` are those of its metrics.

    It is finished where its last step is saved and evaluated, and the share of its n-gram is fitted if it has one.
    """
    if is_being_trained(run):
        return "being trained"
    if kind == "ngram":
        return "finished"
    recipe, steps = recipe_of_run(run), steps_of(run)
    of_kind = "features_loss" if kind == "features" else "held_out_loss"
    ends = "mixture_weight" if recipe.train.mix == "auto" else of_kind
    if steps and recipe.is_last(steps[-1]) and any(ends in row for row in rows if row["step"] == steps[-1]):
        return "finished"
    return f"stopped at step {steps[-1]:,}" if steps else "has no checkpoint"


def bytes_of(folder: Path) -> int:
    """Bytes of all files in a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def prune_run(run: str | Path, keep_last: int = 1) -> tuple[int, int]:
    """Remove checkpoints that nothing needs. Returns the run's bytes before and after.

    The newest `keep_last` stay, the best, those that adapters need, and the one from which a longer run goes on. Raises
    RecipeError where it is no run of a network, or is being trained.
    """
    run = checked_run(run)
    if keep_last < 1:
        raise RecipeError(f"keep_last = {keep_last}: a run keeps 1 checkpoint or more")
    before = bytes_of(run)
    prune_checkpoints(run, recipe_of_run(run), keep_last)
    return before, bytes_of(run)


def recipe_of_run(run: Path) -> RunRecipe:
    """The recipe of a run that takes steps, of any kind. Raises RecipeError for an n-gram, which has no steps."""
    kind = run_kind(run)
    if kind == "transformer":
        return read_recipe(run)
    if kind == "ngram":
        raise RecipeError(f"{run} is an n-gram, which is counted and has no checkpoints: there is nothing to prune")
    if kind == "features":
        return read_features_recipe(run)
    from pellucid.predictors.recipe import read_predictor_recipe

    return read_predictor_recipe(run)


def rename_run(run: str | Path, name: str) -> Path:
    """Give a run's folder another name beside its old one. Returns the new path. Raises RecipeError as `delete_run`."""
    run = checked_run(run)
    check_no_adapters(run)
    if not name or Path(name).name != name or name in (".", ".."):
        raise RecipeError(f"{name!r} is no name of a folder: give one without slashes, such as first-try")
    target = run.with_name(name)
    if target.exists() or target.is_symlink():
        raise RecipeError(f"{target} exists: choose another name")
    os.rename(run, target)
    return target


def delete_run(run: str | Path) -> int:
    """Remove a run's folder for good. Returns the bytes that it had.

    The folder is renamed first: where the removal is interrupted, no half of a run is left under its name. Raises
    RecipeError where it is no run, is being trained, or has the weights of adapters in the same folder of runs.
    """
    run = checked_run(run)
    check_no_adapters(run)
    if run.is_symlink():
        raise RecipeError(f"{run} is a link to {os.readlink(run)}: delete that, or remove the link itself")
    n_bytes, aside = bytes_of(run), run.with_name(f".{run.name}.deleted")
    if aside.exists():
        shutil.rmtree(aside)  # what an interrupted removal left
    os.rename(run, aside)
    shutil.rmtree(aside)
    return n_bytes


def checked_run(run: str | Path) -> Path:
    """The path of a run that nobody trains. Raises RecipeError for another folder, and for a run that is trained."""
    run = Path(run)
    if not (run / "recipe.json").is_file():
        raise RecipeError(why_no_run(run))
    if is_being_trained(run):
        raise RecipeError(f"{run} is being trained: stop it first")
    return run


def check_no_adapters(run: Path) -> None:
    """Raise RecipeError where a run beside this one trained adapters of its weights, and is not opened without them."""
    for other in runs_in(run.absolute().parent):
        try:
            recipe = read_recipe(other) if run_kind(other) == "transformer" else None
        except (RecipeError, OSError):
            continue
        base = recipe.record.base if recipe is not None and recipe.adapt.rank else None
        if base is not None and Path(base.path).resolve() == run.resolve():
            raise RecipeError(
                f"{other.name} has adapters of the weights of {run}, and cannot be opened without them: delete it "
                f"first, or write it with its weights by pellucid convert {other}"
            )


def reported_neighbours(run: Path) -> list[Path]:
    """The other runs in the same folder that have a report, by name."""
    others = (path for path in runs_in(run.absolute().parent) if path.name != run.name)
    return [path for path in others if (path / "report.html").is_file()]
