"""The weight decay of matrices: chosen by the weights and by the steps of one reading of the text, said, kept."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Heard, make_training, recipe_for, resume, start

from pellucid.architecture import Architecture, Attention
from pellucid.parameter_counts import count_parameters
from pellucid.predictors.recipe import PredictorRecipe, make_predictor_recipe
from pellucid.presets import with_vocabulary
from pellucid.runs import optimizer
from pellucid.runs.muon import Muon
from pellucid.runs.optimizer import WEIGHT_DECAYS
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.training.config import Base
from pellucid.training.recipe import Recipe, make_recipe, make_recipe_on, with_fields
from pellucid.training.resolve_recipe import FADING, resolve_weight_decay

LEAST, MOST = WEIGHT_DECAYS


def n_weights(recipe: Recipe) -> int:
    """Those outside of tables of n-grams."""
    a = recipe.model
    return count_parameters(a)["total"] - len(a.ngrams) * a.ngram_rows * a.embed_sum_width


def chosen(recipe: Recipe, n_train: int) -> float:
    return resolve_weight_decay(recipe, n_train)[0].train.weight_decay


@given(st.integers(1, 10**8), st.sampled_from([8, 16, 32]), st.integers(1, 4), st.sampled_from([(), (2, 3)]))
def test_it_falls_with_the_text_and_grows_with_the_weights_but_not_with_tables(n_train, d_model, n_layers, ngrams):
    recipe = recipe_for(Path("text"), d_model=d_model, n_layers=n_layers, ngrams=ngrams, batch=4)
    decay = chosen(recipe, n_train)
    assert LEAST <= decay <= MOST
    assert decay == chosen(with_fields(recipe, {"ngrams": "2"}), n_train)
    assert chosen(recipe, 2 * n_train) <= decay <= chosen(with_fields(recipe, {"n_layers": 2 * n_layers}), n_train)
    readings = math.sqrt(n_weights(recipe) / n_train) * FADING / recipe.train.learning_rate
    wanted = readings / (n_train / recipe.tokens_per_step)
    assert decay == pytest.approx(min(max(wanted, LEAST), MOST), rel=0.06)  # two digits


def test_as_many_weights_as_targets_fade_by_the_same_share_in_one_reading(text):
    recipe = with_fields(recipe_for(text, d_model=16, learning_rate=5e-3), {"batch": 512, "accumulate": 1})
    n = n_weights(recipe)
    steps = n / recipe.tokens_per_step
    assert LEAST < chosen(recipe, n) < MOST
    assert (1 - 5e-3 * chosen(recipe, n)) ** steps == pytest.approx(math.exp(-FADING), rel=0.02)


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_vocab", "n_train", "expected"),
    [
        (192, 2, 4096, 447_106, 0.44),
        (128, 2, 1024, 150_608, 0.7),
        (128, 4, 1024, 411_269, 0.38),
        (256, 8, 4096, 1_341_285, 0.18),
        (128, 2, 67, 1_003_855, 0.1),
    ],
)
def test_the_values_of_the_log(d_model, n_layers, n_vocab, n_train, expected):
    """By the default learning rate and 16 x 128 targets a step."""
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": d_model // 32, "n_ctx": 128, "batch": 16}
    recipe = make_recipe(("text",), None, {**sizes, "accumulate": 1, "steps": 100})
    assert chosen(replace(recipe, model=with_vocabulary(recipe.model, n_vocab)), n_train) == expected


@pytest.mark.parametrize("asked", [0.0, 0.05, 2.0])
def test_a_value_that_is_asked_for_is_taken(text, tmp_path, asked):
    heard = Heard()
    run = start(text, tmp_path / "run", heard, steps=1, evaluate_every=1, weight_decay=asked)
    assert run.recipe.train.weight_decay == asked
    assert not any(line.startswith("weight decay") for line in heard.lines)


def test_what_is_chosen_is_said_written_down_used_and_kept(text, tmp_path, monkeypatch):
    heard = Heard()
    run = start(text, tmp_path / "run", heard)
    n_train = json.loads((run.path / "data.json").read_bytes())["parts"]["train"]["tokens"]
    decay = run.recipe.train.weight_decay
    n, steps = n_weights(run.recipe), n_train / run.recipe.tokens_per_step
    assert decay == chosen(with_train(run.recipe, weight_decay=None), n_train) > LEAST
    assert (
        f"weight decay: {decay:g}, chosen: {n:,} weights learn a text that is read once in {steps:,.0f} steps"
        in heard.lines
    )
    assert json.loads((run.path / "recipe.json").read_bytes())["options"]["train"]["weight_decay"] == decay
    decays = []
    monkeypatch.setattr(optimizer, "Muon", lambda *given: decays.append(given[2]) or Muon(*given))
    resume(run.path, steps=13)
    assert set(decays) == {decay}
    assert json.loads((run.path / "recipe.json").read_bytes())["options"]["train"]["weight_decay"] == decay
    # the recipe of a run says it, and the run of that recipe has it
    again = make_recipe((str(text),), None, {}, run.recipe)
    assert chosen(again, 100 * n_train) == decay


@pytest.mark.parametrize("objective", ["masked", "source-target", "chat"])
def test_other_objectives_have_what_was_measured_for_them(text, objective):
    asked = with_train(recipe_for(text), objective=objective)
    made, line = resolve_weight_decay(asked, 10)
    assert made == with_train(asked, weight_decay=LEAST)
    assert line == "weight decay: 0.1"
    prefix = with_train(recipe_for(text), objective="prefix")
    assert chosen(prefix, 500) == chosen(recipe_for(text), 500) > LEAST


@pytest.mark.parametrize("open_again", [{}, {"weight_decay": "auto"}])
def test_a_run_that_starts_from_a_model_has_the_least_and_adapters_none(text, open_again):
    a = Architecture(n_vocab=256, n_ctx=16, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    base = Base(path="model", checkpoint="", sha256="")
    for fields, expected in (({}, LEAST), ({"adapt.rank": 2}, 0.0)):
        recipe = with_record(make_recipe_on(a, (str(text),), {**fields, **open_again}), base=base)
        assert chosen(recipe, 10) == expected


def test_while_it_is_open_steps_that_are_timed_have_the_least(text, tmp_path):
    training = make_training(text, tmp_path / "run", optimizer="adamw")
    assert training.recipe.train.weight_decay is None
    assert training.optimizer.adamw is not None
    assert LEAST in [group["weight_decay"] for group in training.optimizer.adamw.param_groups]


@pytest.mark.parametrize("wrong", [-0.5, -2.0, float("nan")])
def test_what_can_be_no_decay_is_refused(text, wrong):
    with pytest.raises(RecipeError, match=r"train\.weight_decay = "):
        recipe_for(text, weight_decay=wrong)


def test_where_nothing_chooses_it_an_open_one_is_refused_also_in_a_file():
    with pytest.raises(RecipeError, match=r"train\.weight_decay = auto: expected 0 or more; it is chosen for trans"):
        make_predictor_recipe(("text",), "recurrent", {"train.weight_decay": "auto"}, {})
    written = make_predictor_recipe(("text",), "recurrent", {}, {}).to_dict()
    written["options"]["train"]["weight_decay"] = None
    with pytest.raises(RecipeError, match=r"train\.weight_decay = auto"):
        PredictorRecipe.from_dict(written)
