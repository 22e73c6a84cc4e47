"""The weight decay of tables of n-grams: chosen by the steps of one reading of the text, said, written down, kept."""

import json
from dataclasses import replace

import pytest
from tiny import Heard, make_training, recipe_for, resume, start

from pellucid.architecture import Architecture, Attention
from pellucid.runs.optimizer import NGRAM_WEIGHT_DECAY
from pellucid.runs.options import RecipeError, with_train
from pellucid.training.recipe import Recipe, make_recipe, make_recipe_on, with_fields
from pellucid.training.resolve_recipe import FORGETTING, READ_AGAIN, SHORTEST_READING, resolve_ngram_weight_decay


def chosen(recipe: Recipe, steps: float, readings: float = 3.0) -> float:
    """What is chosen where one reading takes so many steps, and the run has so many readings."""
    recipe = replace(recipe, segments=((0, round(readings * steps)),))
    made, line = resolve_ngram_weight_decay(recipe, round(steps * recipe.tokens_per_step))
    assert line == (
        f"n-gram tables: weight decay {made.train.ngram_weight_decay:g}, chosen: one reading of the text takes "
        f"{steps:,.0f} steps, and the run reads it {round(readings * steps) / steps:.1f} times"
    )
    return made.train.ngram_weight_decay


def test_a_row_that_is_not_met_is_forgotten_in_one_reading(text):
    recipe = recipe_for(text, learning_rate=5e-3)
    for readings, forgetting in ((READ_AGAIN, FORGETTING[1]), (0.99 * READ_AGAIN, FORGETTING[0])):
        for steps in (SHORTEST_READING, 100, 200, 500):
            left = (1 - 5e-3 * chosen(recipe, steps, readings)) ** steps
            assert left == pytest.approx(2.718281828**-forgetting, rel=0.7)  # (1 - x)^n is below e^-xn
    assert [chosen(recipe, n) for n in (200, 400)] == [10.0, 5.0]
    assert [chosen(recipe, n, 1.0) for n in (200, 400)] == [6.0, 3.0]
    assert chosen(recipe_for(text, learning_rate=1e-2), 200) == 5.0


def test_a_long_text_keeps_the_least_decay_and_a_short_one_remembers_for_some_steps(text):
    recipe = recipe_for(text, learning_rate=5e-3)
    assert {chosen(recipe, n) for n in (2001, 10**5, 10**9)} == {NGRAM_WEIGHT_DECAY}
    assert {chosen(recipe, n) for n in (1, 10, SHORTEST_READING)} == {40.0}
    decays = [chosen(recipe, n) for n in range(1, 2500, 7)]
    assert decays == sorted(decays, reverse=True)


@pytest.mark.parametrize("asked", [0.0, 0.5, 2.0, 30.0])
def test_a_value_that_is_asked_for_is_taken(text, tmp_path, asked):
    heard = Heard()
    run = start(text, tmp_path / "run", heard, steps=1, evaluate_every=1, ngram_weight_decay=asked)
    assert run.recipe.train.ngram_weight_decay == asked
    assert f"n-gram tables: weight decay {asked:g}, set in the recipe" in heard.lines


def test_what_is_chosen_is_said_written_down_used_and_kept(text, tmp_path):
    heard = Heard()
    run = start(text, tmp_path / "run", heard)
    n_train = json.loads((run.path / "data.json").read_bytes())["parts"]["train"]["tokens"]
    decay = run.recipe.train.ngram_weight_decay
    expected, line = resolve_ngram_weight_decay(replace(recipe_for(text), segments=run.recipe.segments), n_train)
    assert decay == expected.train.ngram_weight_decay > NGRAM_WEIGHT_DECAY
    assert line in heard.lines
    assert json.loads((run.path / "recipe.json").read_bytes())["train"]["ngram_weight_decay"] == decay
    resume(run.path, steps=13)
    assert json.loads((run.path / "recipe.json").read_bytes())["train"]["ngram_weight_decay"] == decay
    # the recipe of a run says it, and the run of that recipe has it
    again = make_recipe((str(text),), None, {}, run.recipe)
    assert resolve_ngram_weight_decay(again, 10 * n_train)[0].train.ngram_weight_decay == decay


def test_an_earlier_recipe_keeps_its_own(text):
    """All recipes that were written before there was a choice have 2."""
    earlier = with_train(recipe_for(text), ngram_weight_decay=2.0).to_dict()
    assert resolve_ngram_weight_decay(Recipe.from_dict(earlier), 4000)[0].train.ngram_weight_decay == 2.0


def test_without_tables_that_are_trained_nothing_is_chosen_or_said(text, tmp_path):
    recipe = recipe_for(text, ngrams=())
    assert resolve_ngram_weight_decay(recipe, 4000) == (recipe, "")
    adapters = with_fields(recipe_for(text), {"adapt.rank": 2})  # which leave the tables as they are
    assert resolve_ngram_weight_decay(adapters, 4000) == (adapters, "")
    heard = Heard()
    start(text, tmp_path / "run", heard, steps=1, evaluate_every=1, ngrams=())
    assert "n-gram tables" not in heard.text


def test_a_run_that_starts_from_a_model_keeps_its_tables(text):
    """A text of few steps must not make it forget them."""
    a = Architecture(n_vocab=256, n_ctx=16, d_model=16, n_layers=1, attention=Attention(n_heads=2), ngrams=(2,))
    recipe = make_recipe_on(a, (str(text),), {})
    assert recipe.train.ngram_weight_decay == 2.0
    assert make_recipe_on(a, (str(text),), {"ngram_weight_decay": -1}).train.ngram_weight_decay == -1.0


def test_while_it_is_open_steps_that_are_timed_have_the_least(text, tmp_path):
    training = make_training(text, tmp_path / "run", ngram_optimizer="adamw")
    assert training.recipe.train.ngram_weight_decay == -1.0
    assert training.optimizer.adamw is not None
    assert NGRAM_WEIGHT_DECAY in [group["weight_decay"] for group in training.optimizer.adamw.param_groups]
    other = make_training(text, tmp_path / "other")
    t, rmsprop = other.recipe.train, other.optimizer.rmsprop
    assert rmsprop is not None
    assert rmsprop.decay_of_rate * t.ngram_learning_rate == pytest.approx(t.learning_rate * NGRAM_WEIGHT_DECAY)


@pytest.mark.parametrize("wrong", [-0.5, -2.0, float("nan")])
def test_what_can_be_no_decay_is_refused(text, wrong):
    with pytest.raises(RecipeError, match=r"train\.ngram_weight_decay = "):
        recipe_for(text, ngram_weight_decay=wrong)
