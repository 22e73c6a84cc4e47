"""The formula of a training step's memory is within 15 % of a step on tensors without numbers."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from tests.training.memory_walk import walk, without_numbers

from pellucid.plan.planning import default_recipe
from pellucid.presets import PRESETS, preset, with_vocabulary
from pellucid.runs.options import with_train
from pellucid.training.memory import ERROR, shallow, training_memory
from pellucid.training.recipe import Recipe, with_fields
from some_cases import one_in

WAYS = [
    {"precision": precision, "attention": attention, "recompute": recompute}
    for precision, attention, recompute in itertools.product(
        ("float32", "bfloat16"), ("fused", "explicit"), ("no", "yes")
    )
]
#: what is added to a network of 4 layers
OPTIONS = {
    "AdamW": {"optimizer": "adamw"},
    "two micro-batches": {"accumulate": 2},
    "dropout": {"dropout.embed": 0.1, "dropout.pattern": 0.1, "dropout.attn_out": 0.1, "dropout.mlp_out": 0.1},
    "capped scores": {"attention.score_cap": 50.0},
    "shared keys": {"attention.n_kv_heads": 1},
    "layer norm": {"norm.kind": "layer"},
    "plain MLP": {"mlp.form": "plain", "mlp.activation": "gelu"},
    "experts": {"mlp.experts": 4, "mlp.experts_per_token": 2},
    "many ids": {"n_vocab": 2**17},
    "untied": {"unembed": "untied"},
    "n-grams": {"ngrams": (2,), "ngram_rows": 4096},
}


def in_two_ways(names: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Each name with two ways that have nothing in common; all ways come equally often."""
    return [(name, WAYS[way]) for k, name in enumerate(names) for way in (k % 8, 7 - k % 8)]


def assert_close(recipe: Recipe) -> None:
    assert training_memory(recipe).peak == pytest.approx(walk(recipe).peak, rel=ERROR)


@pytest.mark.parametrize(("name", "way"), one_in(7, in_two_ways(PRESETS)), ids=str)
def test_presets(name, way):
    a = preset(name)
    a = with_vocabulary(replace(a, n_ctx=min(a.n_ctx, 1024)), min(a.n_vocab, 50257))
    assert_close(shallow(with_train(default_recipe(a), batch=4, accumulate=1, **way), min(a.n_layers, 3)))


@pytest.mark.parametrize(("option", "way"), one_in(5, in_two_ways(OPTIONS)), ids=str)
def test_options(option, way):
    recipe = with_train(default_recipe(with_vocabulary(preset("small"), 4096)), batch=16, accumulate=1, **way)
    assert_close(with_fields(recipe, OPTIONS[option]))


def test_adapters():
    recipe = with_train(default_recipe(with_vocabulary(preset("small"), 4096)), batch=16, accumulate=1)
    assert_close(with_fields(recipe, {"adapt.rank": 4}))


def test_without_numbers_frees_what_is_forgotten():
    with without_numbers() as live:
        a = torch.zeros(1000)
        b = a + 1
        assert live.now == 8000
        del b
        assert live.now == 4000
        view = a[:10]
        assert live.now == 4000
        del a
        assert live.now == 4000
        del view
        assert (live.now, live.peak) == (0, 8000)
