"""Runs of low-rank adapters: the model that they change, found again, and what they are to other projects."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.hub.open import find_folder, open_folder
from pellucid.hub.own_code import PREFIX
from pellucid.hub.peft import changes_of
from pellucid.hub.peft import write_adapter as write_files
from pellucid.hub.tables import FAMILIES, Family
from pellucid.hub.write import families_for
from pellucid.model.lora import factors
from pellucid.training.checkpoint import named_checkpoint
from pellucid.training.config import Base
from pellucid.training.recipe import Recipe, RecipeError
from pellucid.training.run_dir import load_run, read_recipe

Weights = Mapping[str, Tensor]


def base_of(given: str | Path, provenance: Mapping[str, Any], weights: Weights) -> Base:
    """What a recipe keeps of the model that its run starts from: where it is, and the hash of its weights."""
    path = str(Path(given).resolve()) if Path(given).exists() else str(given)
    return Base(path, str(provenance.get("step", "")), fingerprint(weights))


def fingerprint(weights: Weights) -> str:
    """SHA-256 of every parameter as float32, in order of their names: the same in whatever layout they were kept."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def base_weights(recipe: Recipe) -> dict[str, Tensor]:
    """The weights that a run's adapters change, float32, read from where they were.

    Raises RecipeError where they are not there any more, or are others.
    """
    assert recipe.base is not None
    path = find_folder(recipe.base.path)
    try:
        if (path / "recipe.json").exists():
            network, _, _ = load_run(path, recipe.base.checkpoint, torch.device("cpu"), base_weights)
            weights = {name: p.detach() for name, p in network.named_parameters()}
        else:
            weights = {name: p.float() for name, p in open_folder(path).ours()}
    except ValueError as error:
        raise RecipeError(f"the model that the adapters change cannot be read: {error}") from None
    if fingerprint(weights) != recipe.base.sha256:
        raise RecipeError(f"{path} holds other weights than those that the adapters change: put that model back")
    return weights


def family_of_base(recipe: Recipe) -> Family | None:
    """The family of the model that adapters change; of a model of ours the first that can say it, None where none can.

    A base that is gone is one of ours.
    """
    assert recipe.base is not None
    path = find_folder(recipe.base.path)
    if (path / "config.json").exists():
        return open_folder(path).family
    return next(iter(families_for(recipe.model)), None)


def write_run_adapter(run: Path, folder: Path, checkpoint: str = "best", family: str | None = None) -> int:
    """The adapters of a run as a folder that peft reads; how many bytes. The folder is made, its files replaced.

    The modules are called as in the base's family (`family_of_base`); where there is none, as in the network itself,
    behind the prefix of a base that transformers opens by code of its own. Raises RecipeError for a run without
    adapters.
    """
    recipe = read_recipe(run)
    if recipe.base is None or not recipe.adapt.rank:
        raise RecipeError(f"{run} has no adapters: it was trained without --lora")
    found = named_checkpoint(run, checkpoint)
    goal = FAMILIES[family] if family else family_of_base(recipe)
    scale = recipe.adapt.scaled_by / recipe.adapt.rank
    changes = dict(changes_of(factors(found.weights), scale, recipe.model, goal))
    if goal is None and (find_folder(recipe.base.path) / "config.json").exists():
        changes = {PREFIX + module: change for module, change in changes.items()}
    return write_files(folder, changes, recipe.adapt.rank, recipe.base.path)
