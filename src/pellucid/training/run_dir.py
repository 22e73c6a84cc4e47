"""A run's folder: its name, its files, and who may write in it."""

import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.destination import check_destination, flush_folder
from pellucid.model import Transformer
from pellucid.model.lora import adapt, merge
from pellucid.model.weights import load_state, load_trained, state_of
from pellucid.text.locking import lock
from pellucid.text.regular import read_regular
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.training.checkpoint import (
    Checkpoint,
    named_checkpoint,
    save_checkpoint,
    write_json,
)
from pellucid.training.recipe import Recipe, RecipeError


def cache_folder() -> Path:
    """Where prepared tokens are kept between runs: PELLUCID_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PELLUCID_CACHE") or Path(base) / "pellucid")


def choose_folder(out: Path | None, inputs: tuple[str, ...]) -> Path:
    """The folder of a new run: the one asked for, which may not exist, or the next free runs/NAME.

    Raises ValueError where it cannot be written, so that this is known before anything is read.
    """
    if out is not None:
        if out.exists():
            raise RecipeError(f"{out} exists: choose another --out, or continue that run with --resume --out {out}")
        check_destination(out)
        return out
    named = next((part for part in reversed(Path(inputs[0]).resolve().parts) if not glob.has_magic(part)), "")
    name = "stdin" if inputs[0] == "-" else re.sub(r"[^\w.-]+", "-", Path(named).stem) or "run"
    candidates = [Path("runs") / name, *(Path("runs") / f"{name}-{i}" for i in range(2, 10_000))]
    chosen = next(path for path in candidates if not path.exists())
    check_destination(chosen)
    return chosen


def write_folder(
    run: Path,
    recipe: Recipe,
    tokenizer: Tokenizer,
    files: dict[str, Any],
    fill: Callable[[Path], object] | None = None,
) -> None:
    """Make the run's folder, complete and flushed to disk, or not at all.

    `files` are JSON values by the names of their files, data.json among them; `fill` writes what else there is.
    """
    aside = run.with_name(f".{run.name}.writing-{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        tokenizer.save(aside)
        write_json(aside / "architecture.json", recipe.model.to_dict())
        for name, content in files.items():
            write_json(aside / name, content)
        write_json(aside / "recipe.json", recipe.to_dict())
        if fill is not None:
            fill(aside)
        with open(aside / "tokenizer.json", "r+b") as file:
            os.fsync(file.fileno())
        flush_folder(aside)
        if run.exists():  # somebody else's since it was chosen
            raise RecipeError(f"{run} exists: another run has taken that name; choose another --out")
        os.rename(aside, run)
        flush_folder(run.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def keep_first(run: Path, network: Transformer) -> None:
    """Weights that the seed does not give again become the checkpoint of step 0."""
    save_checkpoint(run, Checkpoint(0, state_of(network), {}, {"step": 0, "bad_in_a_row": 0, "seconds": 0.0}))


@contextmanager
def only_one(run: Path) -> Iterator[None]:
    """Let one process at a time train in a folder; the system takes the lock back however the process ends."""
    with open(run / "lock", "ab") as file:
        if not lock(file):
            raise RecipeError(f"{run} is being trained by another process: wait for it, or stop it first")
        yield


def read_json(path: Path) -> Any:
    """A JSON file of a run; raises RecipeError where it is missing or damaged."""
    try:
        return json.loads(read_regular(path))
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RecipeError(f"{path} is damaged, it is not JSON any more: {error}") from None


def read_recipe(run: Path) -> Recipe:
    """The recipe of a run's folder; raises RecipeError where there is none."""
    path = run / "recipe.json"
    if not path.exists():
        what = "does not exist" if not run.exists() else "has no recipe.json"
        raise RecipeError(f"{run} {what}: give the folder of a run, such as runs/NAME")
    values = read_json(path)
    try:
        return Recipe.from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from None


#: the weights of the model that a recipe's run started from
BaseWeights = Callable[[Recipe], Mapping[str, Tensor]]


def load_run(
    run: Path,
    checkpoint: str,
    device: torch.device,
    base_weights: BaseWeights | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, Tokenizer, int]:
    """The network and tokenizer of a run at a checkpoint: best, last, or a step, and which step that is.

    A run of adapters asks `base_weights` for what they change, and gives the merged network.
    Warns where the last one is damaged and the one before it is taken; a damaged best one is refused.
    """
    recipe = read_recipe(run)
    found = named_checkpoint(run, checkpoint)
    network, where = Transformer(recipe.model).to(dtype), f"{run}, step {found.step}"
    if not recipe.adapt.rank:
        load_state(network, found.weights, where)
    else:
        if base_weights is None:
            raise RecipeError(f"{run} holds adapters alone: load it with pellucid.load, which finds what they change")
        load_state(network, base_weights(recipe), f"the model that {run} started from")
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules)
        load_trained(network, found.weights, where)
        merge(network)
    return network.to(device).eval(), load_tokenizer(run), found.step
