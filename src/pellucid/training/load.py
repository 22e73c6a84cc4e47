"""Reads the recipe and the network of a transformer's run folder."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.json_shapes import COUNT, Fields, ListOf, ObjectOf
from pellucid.model import Transformer
from pellucid.model.lora import MergedWeights
from pellucid.model.weights import (
    WeightsError,
    check_same_shapes,
    check_stored,
    empty_network,
    load_state,
    shapes_of,
    trained_state,
    without_memory,
)
from pellucid.parameter_counts import count_parameters, oversized_table
from pellucid.runs.checkpoint import (
    MANIFEST,
    first_files,
    folder_of,
    mark_needed,
    named_checkpoint,
    steps_of,
    write_checkpoint,
)
from pellucid.runs.device import check_fits
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import read_json
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.training.config import Base
from pellucid.training.kinds import check_function
from pellucid.training.recipe import Recipe
from pellucid.training.resolve_recipe import add_adapters
from pellucid.trust import Trust


def read_recipe(run: Path) -> Recipe:
    """The recipe of a transformer's run. Raises RecipeError where there is none, or the run is of another kind."""
    values = check_function(run, "load")
    try:
        return Recipe.from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{run / 'recipe.json'} cannot be read: {error}") from None


#: gives the weights of the model that a run started from, by its recipe
BaseWeights = Callable[[Recipe], Mapping[str, Tensor]]


def as_trained(tokenizer: Tokenizer, recipe: Recipe) -> Tokenizer:
    """The tokenizer as the network of a run reads texts.

    What another project's tokenizer puts beside a text is left out if the run started from no model, because training
    never showed it. Where it is what training puts beside the source of an encoder, it stays.
    """
    beside_sources = recipe.model.encoder is not None and tokenizer.masked_ids([]) == tokenizer.source_ids([])
    return tokenizer if recipe.record.base is not None or beside_sources else tokenizer.bare()


def load_run(
    run: Path,
    checkpoint: str,
    device: torch.device,
    base_weights: BaseWeights | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    trust: Trust = False,
) -> tuple[Transformer, Tokenizer, int]:
    """The network and the tokenizer of a run at a checkpoint (best, last, or a step), and the step of that checkpoint.

    The weights that adapters change come from `base_weights`, and the adapters are merged into them. Warns where the
    last checkpoint is damaged and the one before it is loaded; a damaged best one raises an error. `trust` accepts
    patterns of the tokenizer that are not known to be safe.
    """
    recipe = read_recipe(run)
    stored = named_checkpoint(run, checkpoint)
    weights, where = stored.weights, f"{run}, step {stored.step}"
    if recipe.adapt.rank:
        if base_weights is None:
            raise RecipeError(
                f"{run} holds only adapters: load it with pellucid.load, which finds the model that they change"
            )
        weights, where = base_weights(recipe), f"the model that {run} started from"
    network = network_of_size(recipe.model, weights, dtype, where)
    if recipe.adapt.rank:
        weights = merged_weights(recipe, weights, stored.weights, f"{run}, step {stored.step}", dtype)
    load_state(network, weights, where)
    return network.to(device).eval(), load_tokenizer(run, trust=trust), stored.step


def merged_weights(
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    adapters: Mapping[str, Tensor],
    where: str,
    dtype: torch.dtype = torch.float32,
) -> MergedWeights:
    """The weights that a run's adapters change, with the adapters merged into them in this precision or float32.

    Raises WeightsError, which begins with `where`, unless these are the tensors that the recipe's adapters have.
    """
    with without_memory():
        adapted = add_adapters(Transformer(recipe.model), recipe)
    check_same_shapes(shapes_of(trained_state(adapted)), shapes_of(adapters), where)
    scale, finer = recipe.adapt.scaled_by / recipe.adapt.rank, torch.promote_types(dtype, torch.float32)
    return MergedWeights(weights, adapters, scale, recipe.record.new_ids, finer)


def network_of_size(a: Architecture, weights: Mapping[str, Tensor], dtype: torch.dtype, where: str) -> Transformer:
    """A network without values for these weights. Raises WeightsError where it would need more of them."""
    n_layers = a.n_layers + (0 if a.encoder is None else a.encoder.n_layers)
    n_numbers = check_stored(shapes_of(weights), n_layers, lambda: count_parameters(a)["total"], where)
    if wrong := oversized_table(a, n_numbers):
        raise WeightsError(f"{where}: {wrong}")
    check_fits(count_parameters(a)["total"], dtype, "cpu")
    return empty_network(a, dtype)


def check_saved(run: Path, recipe: Recipe) -> None:
    """Raise WeightsError where the last checkpoint of a run is smaller than the network of its recipe.

    A run that has none, or one whose manifest cannot be read, can have any size. Of adapters nothing is known.
    """
    if recipe.adapt.rank or not (steps := steps_of(run)):
        return
    a, where = recipe.model, f"{run}, step {steps[-1]}"
    try:
        tensors = read_json(folder_of(run, steps[-1]) / MANIFEST, TENSORS)["tensors"]
    except RecipeError:
        return
    shapes = {name: entry["shape"] for name, entry in tensors.items()}
    n_numbers = check_stored(shapes, a.n_layers, lambda: count_parameters(a)["total"], where)
    if wrong := oversized_table(a, n_numbers):
        raise WeightsError(f"{where}: {wrong}")


#: what `check_saved` reads of a checkpoint's manifest
TENSORS = Fields({"tensors": ObjectOf(Fields({"shape": ListOf(COUNT)}, needed=("shape",)))}, needed=("tensors",))


def save_initial_checkpoint(run: Path, weights: Mapping[str, Tensor]) -> None:
    """Save given weights as the checkpoint of step 0, one tensor after another: the seed alone does not give them."""
    write_checkpoint(run, first_files(weights))


def keep_base(base: Base | None) -> None:
    """Record in the run that adapters start from that its checkpoint is needed; warns where that cannot be written."""
    if base is None or not base.checkpoint:
        return  # the weights of a folder stay as they are
    try:
        mark_needed(Path(base.path), int(base.checkpoint))
    except OSError as error:
        warnings.warn(
            f"{base.path}: it cannot be recorded that adapters need the checkpoint of step {base.checkpoint} "
            f"({error.strerror}): if that run is trained on, it may remove the checkpoint",
            stacklevel=2,
        )
