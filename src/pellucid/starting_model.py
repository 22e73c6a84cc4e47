"""The model that a run starts from: its weights are read one tensor after another, and no network is made."""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import parameter_shapes
from pellucid.hub.folder import Folder, LoadWarning
from pellucid.hub.open import checked_parameters, find_folder, open_folder
from pellucid.hub.shards import RELEASED_AFTER
from pellucid.model.weights import (
    StoredWeights,
    WithNewRows,
    check_same_shapes,
    refuse_not_finite,
    shapes_of,
)
from pellucid.model_names import check_revision
from pellucid.runs.checkpoint import named_checkpoint
from pellucid.runs.options import RecipeError
from pellucid.text.chat_template import ChatTemplate, read_chat_template
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.training.config import Base
from pellucid.training.load import as_trained, merged_weights, read_recipe
from pellucid.training.recipe import Recipe
from pellucid.trust import Trust

Weights = Mapping[str, Tensor]


class FileWeights(StoredWeights):
    """The parameters in a model's files, float32, each read when it is looked up.

    tensors    by parameter, in the precision of the files
    release    lets go of what was read of the files so far
    """

    def __init__(
        self,
        tensors: Weights,
        shapes: Mapping[str, tuple[int, ...]],
        release: Callable[[], object] = lambda: None,
        why_whole: str = "",
    ):
        self.tensors, self.shapes, self.release, self.why_whole = tensors, shapes, release, why_whole
        self.n_bytes = 0

    def __getitem__(self, name: str) -> Tensor:
        if self.n_bytes >= RELEASED_AFTER:
            self.n_bytes = 0
            self.release()
        tensor = self.tensors[name]
        self.n_bytes += tensor.nbytes
        return tensor.detach().float()


@dataclass(frozen=True)
class StartingModel:
    """What a run takes over from a model; `base` is what its recipe records of it."""

    architecture: Architecture
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    weights: StoredWeights
    base: Base


def open_starting_model(model: str | Path, revision: str | None = None, *, trust: Trust = False) -> StartingModel:
    """The model of this path, or of this name on the hub in a revision of it; of a run the best checkpoint.

    Every number is looked at once. `trust` is that of `pellucid.load`. Raises ValueError, as that does, for what is no
    model, is damaged, or holds NaN or infinity.
    """
    check_revision(Path(model), revision)
    if (Path(model) / "recipe.json").exists():
        run, recipe = Path(model), read_recipe(Path(model))
        architecture = recipe.model
        weights, step = run_weights(run, "best", trust)
        tokenizer = as_trained(load_tokenizer(run, trust=trust), recipe)
        template, where = read_chat_template(run), f"{run}, step {step}"
    else:
        folder, step = open_folder(find_folder(model, revision, trust=trust), trust=trust), ""
        architecture, where = folder.architecture, str(folder.path)
        rules = folder.text_rules()
        tokenizer, template = rules.tokenizer, rules.chat_template
        for note in rules.notes:
            warnings.warn(note.sentence, LoadWarning, stacklevel=2)
        weights = folder_weights(folder)
    refuse_not_finite(weights.items(), where)
    path = str(Path(model).resolve()) if Path(model).exists() else str(model)
    base = Base(path, step, fingerprint(weights), revision or "")
    return StartingModel(architecture, tokenizer, template, weights, base)


def folder_weights(folder: Folder) -> StoredWeights:
    """The weights of an open folder, whose names and shapes are checked. Raises FolderError or FamilyError."""
    shapes = parameter_shapes(folder.architecture)
    each = checked_parameters(folder.ours(), shapes)
    if folder.why_whole:
        return FileWeights({name: x.float() for name, x in each}, shapes, why_whole=folder.why_whole)
    for _ in each:
        pass
    return FileWeights(folder.state(), shapes, folder.files.release if folder.files else lambda: None)


def run_weights(run: Path, checkpoint: str, trust: Trust = False) -> tuple[StoredWeights, str]:
    """The weights of a run at a checkpoint (best, last, or a step), and its step. Raises WeightsError."""
    recipe = read_recipe(run)
    shapes = parameter_shapes(recipe.model)
    stored = named_checkpoint(run, checkpoint, at_once=bool(recipe.adapt.rank))
    where = f"{run}, step {stored.step}"
    if recipe.adapt.rank:
        weights = base_weights(recipe, trust)
        check_same_shapes(shapes, shapes_of(weights), f"the model that {run} started from")
        return merged_weights(recipe, weights, stored.weights, where), str(stored.step)
    check_same_shapes(shapes, shapes_of(stored.weights), where)
    return FileWeights(stored.weights, shapes), str(stored.step)


def fingerprint(weights: Weights) -> str:
    """SHA-256 of every parameter as float32, in order of their names, independent of the file layout."""
    digest = hashlib.sha256()
    for name in sorted(shapes_of(weights)):
        digest.update(name.encode())
        digest.update(weights[name].detach().float().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def base_weights(recipe: Recipe, trust: Trust = False) -> StoredWeights:
    """The weights that a run starts from or whose adapters it trains, read from their original place.

    Ids that are new to the vocabulary have their first rows. Raises RecipeError if the weights are gone or have
    changed.
    """
    assert recipe.record.base is not None
    path, what = (
        find_folder(recipe.record.base.path, recipe.record.base.revision or None, trust=trust),
        "the adapters change" if recipe.adapt.rank else "the run starts from",
    )
    try:
        if (path / "recipe.json").exists():
            weights = run_weights(path, recipe.record.base.checkpoint, trust)[0]
        else:
            weights = folder_weights(open_folder(path, trust=trust))
        is_same = fingerprint(weights) == recipe.record.base.sha256
    except ValueError as error:
        raise RecipeError(f"the model that {what} cannot be read: {error}") from None
    if not is_same:
        raise RecipeError(f"{path} holds other weights than those that {what}: put that model back")
    return WithNewRows(weights, recipe.model.n_vocab, recipe.record.new_ids) if recipe.record.new_ids else weights
