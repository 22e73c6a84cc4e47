"""Runs of low-rank adapters: export them for other projects."""

from pathlib import Path

from pellucid.hub.families import FamilyError
from pellucid.hub.files import CONFIG, is_adapter
from pellucid.hub.folder import Folder
from pellucid.hub.open import find_folder, open_folder
from pellucid.hub.own_code import PREFIX
from pellucid.hub.peft import lora_deltas
from pellucid.hub.peft import write_adapter as write_files
from pellucid.hub.tables import FAMILIES, Family
from pellucid.hub.text_towers import whole_model_name
from pellucid.hub.write import exported_as
from pellucid.model.lora import factors
from pellucid.runs.checkpoint import named_checkpoint
from pellucid.runs.options import RecipeError
from pellucid.training.load import read_recipe
from pellucid.training.recipe import Recipe
from pellucid.trust import Trust


def family_of_base(recipe: Recipe, trust: Trust = False) -> Family | None:
    """The family of the base model; for a model of our layout the one as which it is converted, None if none can
    represent it.

    A base that is gone counts as one of ours.
    """
    if (base := open_base(recipe, trust)) is not None:
        return base.family
    try:
        return exported_as(recipe.model)[0]
    except FamilyError:
        return None


def open_base(recipe: Recipe, trust: Trust = False) -> Folder | None:
    """The base model where it is a folder that transformers opens, else None."""
    assert recipe.record.base is not None
    path = find_folder(recipe.record.base.path, recipe.record.base.revision or None, trust=trust)
    return open_folder(path, trust=trust) if (path / CONFIG).exists() else None


def write_run_adapter(
    run: Path, folder: Path, checkpoint: str = "best", family: str | None = None, *, trust: Trust = False
) -> int:
    """Write the adapters of a run as a folder that peft reads, replacing its files. Returns the bytes of tensors.

    Modules have the names of the base's family (`family_of_base`); without one, those of the network, with the prefix
    of a base that transformers opens with its own code. `trust` opens a base whose weights are pickles. Raises
    RecipeError for a run without adapters and for one on an adapter or a GGUF file, and FamilyError for changes of
    experts that peft cannot read.
    """
    recipe = read_recipe(run)
    if recipe.record.base is None or not recipe.adapt.rank:
        raise RecipeError(f"{run} has no adapters: it was trained without --lora")
    if recipe.record.new_ids:
        raise RecipeError(
            f"{run} has trained rows for {len(recipe.record.new_ids)} new tokens, which adapters alone do not hold: "
            f"write the whole model, with its adapters merged (pellucid convert {run} FOLDER)"
        )
    path = find_folder(recipe.record.base.path, recipe.record.base.revision or None, trust=trust)
    if kind := _kind_without_adapters(path):
        raise RecipeError(
            f"{run} changes {recipe.record.base.path}, {kind}, and no program opens an adapter that changes one: write "
            f"the whole model, with its adapters merged (pellucid convert {run} FOLDER)"
        )
    checkpoint_file = named_checkpoint(run, checkpoint)
    goal = FAMILIES[family] if family else family_of_base(recipe, trust)
    scale = recipe.adapt.scaled_by / recipe.adapt.rank
    changes = dict(lora_deltas(factors(checkpoint_file.weights), scale, recipe.model, goal))
    if (base := open_base(recipe, trust)) is not None:
        if goal is None:
            changes = {PREFIX + module: change for module, change in changes.items()}
        elif base.tower is not None:
            changes = {whole_model_name(module): change for module, change in changes.items()}
    return write_files(folder, changes, recipe.adapt.rank, recipe.record.base.path, recipe.record.base.revision)


def _kind_without_adapters(base: Path) -> str:
    """What this base is, where its path cannot be named as what an adapter changes; "" where it can."""
    if base.suffix == ".gguf":
        return "a GGUF file"
    return "an adapter itself" if is_adapter(base) else ""
