"""Reads the recipe and the network of a transformer's run folder."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from pellucid.model import Transformer
from pellucid.model.lora import adapt, merge
from pellucid.model.weights import empty_network, load_state, load_trained
from pellucid.runs.checkpoint import first_files, mark_needed, named_checkpoint, write_checkpoint
from pellucid.runs.options import RecipeError
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.training.config import Base
from pellucid.training.kinds import check_loader
from pellucid.training.recipe import Recipe


def read_recipe(run: Path) -> Recipe:
    """The recipe of a transformer's run. Raises RecipeError where there is none, or the run is of another kind."""
    values = check_loader(run, "load")
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
    return tokenizer if recipe.base is not None or beside_sources else tokenizer.bare()


def load_run(
    run: Path,
    checkpoint: str,
    device: torch.device,
    base_weights: BaseWeights | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    trust: bool = False,
) -> tuple[Transformer, Tokenizer, int]:
    """The network and the tokenizer of a run at a checkpoint (best, last, or a step), and the step of that checkpoint.

    The weights that adapters change come from `base_weights`, and the adapters are merged into them. Warns where the
    last checkpoint is damaged and the one before it is loaded; a damaged best one raises an error. `trust` accepts
    patterns of the tokenizer that are not known to be safe.
    """
    recipe = read_recipe(run)
    found = named_checkpoint(run, checkpoint)
    network, where = empty_network(recipe.model, dtype), f"{run}, step {found.step}"
    if not recipe.adapt.rank:
        load_state(network, found.weights, where)
    else:
        if base_weights is None:
            raise RecipeError(
                f"{run} holds only adapters: load it with pellucid.load, which finds the model that they change"
            )
        load_state(network, base_weights(recipe), f"the model that {run} started from")
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules, recipe.new_ids)
        load_trained(network, found.weights, where)
        merge(network)
    return network.to(device).eval(), load_tokenizer(run, trust=trust), found.step


def keep_first(run: Path, weights: Mapping[str, Tensor]) -> None:
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
