"""How long a step of a network takes that no process makes whole: found from networks of at most two of its layers.

The time of a step is linear in the number of layers of each kind. One layer is timed, and then one layer more of each
kind: with s seconds for the first and s_k for the others, a network with n_k further layers of kind k takes
s + sum_k n_k (s_k - s).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import torch

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.lora import adapt, start_adapters
from pellucid.model.weights import initialise
from pellucid.runs.options import RecipeError, with_train
from pellucid.text.read.chunks import counted
from pellucid.training.build import choose_paths
from pellucid.training.memory import check_memory
from pellucid.training.recipe import Recipe


def few_layers(recipe: Recipe) -> list[tuple[int, Recipe]]:
    """Recipes of networks with few layers, and how many times the step of each counts: the sum is the recipe's step."""
    a = recipe.model
    first = with_layers(a, range(a.n_layers)[:1])
    if a.encoder is not None:
        first = replace(first, encoder=with_layers(a.encoder, range(a.encoder.n_layers)[:1]))
    more = [(n, replace(b, encoder=first.encoder)) for n, b in with_one_more(a)]
    if a.encoder is not None:
        more += [(n, replace(first, encoder=b)) for n, b in with_one_more(a.encoder)]
    networks = [(1 - sum(n for n, _ in more), first), *more]
    return [(n, replace(recipe, model=b)) for n, b in networks]


def with_one_more(a: Architecture) -> list[tuple[int, Architecture]]:
    """Its first layer and one more, for each kind of layer; and how many more of this kind the architecture has."""
    kinds: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for layer in range(1, a.n_layers):
        kinds[a.window(layer), a.rotates(layer)].append(layer)
    return [(len(layers), with_layers(a, (0, layers[0]))) for layers in kinds.values()]


def with_layers(a: Architecture, layers: Iterable[int]) -> Architecture:
    """The architecture with these of its layers alone, at most two; the first layer is among them."""
    layers = list(layers)
    windows = tuple(a.window(layer) for layer in layers) or a.attention.windows
    every = a.positions.every
    if a.rotates_somewhere:  # the first layer rotates then
        every = 0 if all(a.rotates(layer) for layer in layers) else 2
    attention, positions = replace(a.attention, windows=windows), replace(a.positions, every=every)
    return replace(a, n_layers=len(layers), attention=attention, positions=positions)


def network_to_time(recipe: Recipe, device: torch.device, n_shares: int) -> Transformer:
    """A network of few layers with weights drawn from the seed, whatever those of the run are: they take no other time.

    `n_shares` processes divide the rows of a pass. Raises RecipeError where it does not fit into memory.
    """
    layers = counted(recipe.model.n_layers, "layer")
    try:
        check_memory(with_train(recipe, batch=recipe.train.batch // n_shares), device)
    except RecipeError as error:
        raise RecipeError(
            f"a step cannot be timed, as a network of {layers} does not fit into one process ({error}). Give "
            "precision, attention and compile, and the length in steps, tokens or epochs"
        ) from None
    network, t = Transformer(recipe.model), recipe.train
    initialise(network, t.seed, t.init_std)
    if recipe.adapt.rank:
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules, recipe.new_ids)
        start_adapters(network, t.seed)
    choose_paths(network, recipe)
    return network.to(device)
