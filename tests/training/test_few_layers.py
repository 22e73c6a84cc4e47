"""A step of a network that no process makes whole is extrapolated from networks of a few of its layers."""

import itertools
from collections import Counter

import pytest
import torch
from tiny import FIELDS

from pellucid.architecture import Architecture
from pellucid.parameter_counts import count_parameters
from pellucid.runs.measure import extrapolated
from pellucid.runs.options import RecipeError
from pellucid.training import memory
from pellucid.training.few_layers import few_layers, network_to_time
from pellucid.training.recipe import make_recipe

SMALL = {"d_model": 16, "n_heads": 2, "n_ctx": 16, "tokenizer": "byte"}
#: what makes layers differ from each other
ARCHITECTURES = {
    "equal layers": ("small", {"n_layers": 7}),
    "one layer": ("small", {"n_layers": 1}),
    "two layers": ("small", {"n_layers": 2}),
    "windows": ("small", {"n_layers": 8, "attention.windows": (4, 4, 0)}),
    "windows and layers without rotation": (
        "llama-mini",
        {"n_layers": 11, "attention.windows": (4, 0), "positions.every": 3},
    ),
    "no layer rotates": ("llama-mini", {"n_layers": 5, "positions.every": 1}),
    "an encoder": ("original", {"n_layers": 6, "objective": "source-target"}),
}


def layers_of(a: Architecture) -> Counter:
    """The layers of each kind, by what distinguishes them."""
    stacks = [("decoder", a), *([("encoder", a.encoder)] if a.encoder else [])]
    return Counter((name, b.window(k), b.rotates(k)) for name, b in stacks for k in range(b.n_layers))


@pytest.mark.parametrize(("name", "fields"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_few_layers_add_up_to_the_network(name, fields):
    """Whatever is linear in the number of layers of each kind is extrapolated exactly."""
    recipe = make_recipe(("text",), name, {**SMALL, **fields})
    networks = few_layers(recipe)
    total, layers = 0, Counter()
    for times, few in networks:
        assert few.model.n_layers <= 2
        assert few.model.encoder is None or few.model.encoder.n_layers <= 2
        total += times * count_parameters(few.model)["total"]
        for kind, n in layers_of(few.model).items():
            layers[kind] += times * n
    assert total == count_parameters(recipe.model)["total"]
    assert {kind: n for kind, n in layers.items() if n} == layers_of(recipe.model)
    assert sum(times for times, _ in networks) == 1


def test_a_step_takes_at_least_as_long_as_a_part_of_it():
    assert extrapolated([(1, 0.5)]) == 0.5
    assert extrapolated([(-6, 0.5), (7, 0.6)]) == pytest.approx(0.5 + 7 * 0.1)
    assert extrapolated([(-6, 0.6), (7, 0.5)]) == 0.6  # the second layer cannot have taken less than none


def test_layers_that_do_not_fit_into_one_process_are_refused(monkeypatch):
    recipe = make_recipe(("text",), "small", {**FIELDS, "n_layers": 8, "batch": 4})
    for (_, few), n_shares in itertools.product(few_layers(recipe), (1, 4)):
        assert len(network_to_time(few, torch.device("cpu"), n_shares).blocks) == few.model.n_layers
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000.0)
    with pytest.raises(RecipeError, match=r"a network of 2 layers does not fit into one process .*the length in s"):
        network_to_time(few_layers(recipe)[1][1], torch.device("cpu"), 1)


def test_adapters_are_timed_on_layers_that_stay_as_they_are():
    recipe = make_recipe(("text",), "small", {**FIELDS, "n_layers": 8, "adapt.rank": 2})
    for _, few in few_layers(recipe):
        network = network_to_time(few, torch.device("cpu"), 1)
        trained = {name.rpartition(".")[2] for name, p in network.named_parameters() if p.requires_grad}
        assert trained == {"A", "B"}
