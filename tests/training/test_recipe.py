"""Recipes: every field by name, every mistake one line that names the right one, written and read back unchanged."""

import dataclasses
import json
import typing
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import start

import pellucid
from pellucid.architecture import Architecture, Attention, field_type
from pellucid.option_values import ArchitectureError, parse_value
from pellucid.predictors.recipe import make_predictor_recipe
from pellucid.presets import PRESETS, gated_width, preset
from pellucid.runs.length import with_length
from pellucid.runs.options import RecipeError, TrainOptions, with_record, with_train
from pellucid.training.config import AdapterOptions, Base, TextOptions
from pellucid.training.kinds import recipe_values
from pellucid.training.recipe import (
    MASK_OBJECTIVE,
    OPTION_CLASSES,
    Recipe,
    make_recipe,
    make_recipe_on,
    overlay,
    recipe_fields,
    take_length,
)

OTHER = {
    "text.tokenizer": "char",
    "text.vocabulary": "300",
    "text.held_out": "0.25",
    "text.encoding": "latin-1",
    "text.chat_template": "chatml",
    "train.device": "cuda",
    "model.dropout": "0.25",
    "model.attention.mask": "prefix",
    "model.ngrams": "2,4",
    "model.positions.high": "8.0",
}
#: values that need others
WITH = {"model.mlp.n_hidden": {"mlp.form": "plain"}, "model.attention.mask": {"train.objective": "prefix"}}
WITH |= {"text.chat_template": {"train.objective": "chat"}, "model.embed_projection": {"d_embed": "64"}}
WITH |= {"model.readout_bias": {"readout": "bert"}, "train.mask_share": {"train.objective": "masked"}}
WITH |= {name: {"mlp.experts": "4"} for name in ("model.mlp.shared_d_ff", "train.balance")}
WITH |= {name: {"adapt.rank": "2"} for name in ("adapt.alpha", "adapt.modules")}


def look_up(recipe: Recipe, name: str):
    value = recipe
    for part in name.split("."):
        value = getattr(value, part)
    return value


def hint_of(name: str):
    part, _, last = name.partition(".")
    return field_type(last) if part == "model" else typing.get_type_hints(OPTION_CLASSES[part])[last]


def another(name: str):
    """A value that the field may have and does not have by default, as text."""
    if name in OTHER:
        return OTHER[name]
    now, hint = look_up(make_recipe((), None, {}), name), hint_of(name)
    if now is None:
        (hint,) = {*typing.get_args(hint)} - {type(None)}
    if typing.get_origin(hint) is typing.Literal:
        return next(word for word in typing.get_args(hint) if word != now)
    if typing.get_origin(hint) is tuple:
        return "3,0"
    if hint is int:
        fits = {"model.d_model": "256", "model.attention.n_heads": "8", "model.attention.n_kv_heads": "2"}
        fits["model.mlp.n_hidden"] = "2"
        return fits.get(name, str(2 * abs(now or 0) + 6))
    return "0.5" if hint is float else "other"


@pytest.mark.parametrize("name", recipe_fields())
def test_every_field_is_set_by_its_name(name):
    made = make_recipe(("a.txt",), None, {name: another(name), **WITH.get(name, {})})
    default = make_recipe(("a.txt",), None, {})
    assert made != default
    found = look_up(made, name)
    if name == "model.dropout":
        assert set(dataclasses.asdict(found).values()) == {0.25}
        return
    assert found == parse_value(name, another(name), hint_of(name))
    assert look_up(default, name) != found
    # and written and read back
    assert Recipe.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modle.d_model": "3"}, "there is no field 'modle.d_model'; did you mean 'model.d_model'?"),
        ({"lr": "1"}, "there is no field 'lr'; did you mean 'train.learning_rate'?"),
        ({"learning_rat": "1"}, "did you mean 'train.learning_rate'?"),
        ({"n_head": "4"}, "did you mean 'model.attention.n_heads'?"),
        ({"bias": "all"}, "'bias' is ambiguous: choose one of model.attention.bias, model.mlp.bias, model.norm.bias"),
        ({"optimizer": "muons"}, "did you mean 'muon'?"),
        ({"schedule": "linea"}, "choose one of wsd, cosine, linear, constant"),
        ({"batch": "many"}, "train.batch = 'many': expected an integer"),
        ({"batch": "1.5"}, "train.batch = '1.5': expected an integer"),
        ({"learning_rate": "fast"}, "train.learning_rate = 'fast': expected a number"),
        ({"learning_rate": "0"}, "expected a number above 0"),
        ({"clip": True}, "train.clip = True: expected a number"),
        ({"learning_rate": "nan"}, "expected a finite number"),
        ({"clip": "inf"}, "expected a finite number"),
        ({"beta_1": "1"}, "expected a number from 0 up to, not including, 1"),
        ({"held_out": "1"}, "expected a share between 0 and 1"),
        ({"accumulate": "0"}, "expected 1 or more, or auto"),
        ({"keep_last": "0"}, "expected 1 or more"),
        ({"seed": [1]}, "train.seed = [1]: expected an integer"),
        ({"seed": str(2**64)}, "train.seed = 18446744073709551616: expected a number of 64 bits"),
        ({"split": "documents", "objective": "source-target"}, "text.split = documents does not go with pairs"),
        ({"split": "documents", "objective": "chat"}, "text.split = documents does not go with conversations"),
        ({"weight_decay": "51"}, "weight_decay = 51.0: expected at most 1 / muon_learning_rate = 50"),
        (
            {"weight_decay": "201", "optimizer": "adamw"},
            "weight_decay = 201.0: expected at most 1 / learning_rate = 200",
        ),
        ({"warmup": "-1"}, "expected 0 or more, or auto"),
        (
            {"mask_share": "0.5"},
            "train.mask_share = 0.5 goes with train.objective = masked, not next-token: leave it out",
        ),
        (
            {"muon_learning_rate": "9", "optimizer": "adamw"},
            "train.muon_learning_rate = 9.0 goes with train.optimizer = muon, not adamw: leave it out",
        ),
        ({"steps": "10", "tokens": "100"}, "the length is given twice, by steps and tokens"),
        ({"tokenizer": "byte", "vocabulary": "500"}, "expected auto where text.tokenizer = byte"),
        ({"vocabulary": "256"}, "expected at least 257 where text.tokenizer = bpe: the 256 bytes and the separator"),
        ({"tokenizer": "word", "vocabulary": "2"}, "expected at least 3 where text.tokenizer = word: a word, the"),
        ({"d_model": "10", "n_heads": "4"}, "expected a divisor of d_model = 10"),
        ({"n_heads": "0"}, "expected at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_was_expected(changes, says):
    with pytest.raises((RecipeError, ArchitectureError)) as caught:
        make_recipe(("a.txt",), None, changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ArchitectureError, match="there is no preset 'big': choose one of small, modern, gpt1"):
        make_recipe((), "big", {})


TOML = """
preset = "modern"
[model]
d_model = 64
attention.n_heads = 4
dropout = 0.2
[train]
learning_rate = 0.25
epochs = 2.0
"""


def test_single_fields_override_the_file_and_the_file_the_preset(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(TOML)
    made = make_recipe(("a",), None, {"d_model": "32", "train.eps": 1e-6}, file)
    assert (made.model.d_model, made.model.n_heads, made.model.n_ctx) == (32, 4, 256)
    assert (made.train.learning_rate, made.train.eps, made.train.epochs) == (0.25, 1e-6, 2.0)
    assert made.model.dropout.embed == 0.2
    assert make_recipe(("a",), None, {"dropout.embed": 0.1}, file).model.dropout.embed == 0.1
    assert make_recipe(("a",), "modern", {}, file).model.d_model == 64
    with pytest.raises(RecipeError, match="the preset is given twice, small and, in"):
        make_recipe(("a",), "small", {}, file)


def test_json_says_the_same_as_toml(tmp_path):
    (tmp_path / "r.toml").write_text(TOML)
    values = {
        "preset": "modern",
        "model": {"d_model": 64, "attention": {"n_heads": 4}, "dropout": 0.2},
        "train": {"learning_rate": 0.25, "epochs": 2},
    }
    (tmp_path / "r.json").write_text(json.dumps(values))
    a, b = (make_recipe(("a",), None, {}, tmp_path / f"r.{suffix}") for suffix in ("toml", "json"))
    assert a == b


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.toml", "model.d_model = ", "is not valid TOML"),
        ("r.toml", "a = " + "[" * 10_000, "is not valid TOML"),
        ("r.json", "{", "is damaged, it is not JSON"),
        ("r.json", '{"train":' * 10_000, "is nested too deeply"),
        ("r.json", "[1]", "holds list: expected an object"),
        ("r.json", '{"modle": {"d_model": 3}}', "there is no field 'modle.d_model'"),
        ("r.json", '{"train": {"steps": true}}', "train.steps = True: expected an integer"),
        ("r.json", '{"train": {"optimizer": 3}}', "train.optimizer = 3 is not one of its options"),
        ("none.toml", None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_recipe_file_is_one_line(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((RecipeError, ArchitectureError), match=says) as caught:
        make_recipe((), None, {}, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_runs_recipe_is_a_recipe(text, tmp_path):
    done = start(text, tmp_path / "run")
    made = make_recipe((str(text),), None, {}, done.path / "recipe.json")
    assert made.model == done.recipe.model
    assert made.text == done.recipe.text
    assert made.train == done.recipe.train
    assert made.record.decay is None
    again = Recipe.from_dict(json.loads((done.path / "recipe.json").read_bytes()))
    assert again == done.recipe
    # with another length it is that length alone
    assert with_length(made, {"minutes": 3.0}).train.steps == 0
    assert with_length(made, {"minutes": 3.0}).train.minutes == 3.0


@pytest.mark.parametrize("name", ["batch", "attention", "weight_decay"])
def test_a_runs_recipe_that_leaves_open_what_the_run_chose_is_refused(text, tmp_path, name):
    path = start(text, tmp_path / "run", steps=1).path / "recipe.json"
    values = json.loads(path.read_bytes())
    values["options"]["train"][name] = None
    path.write_text(json.dumps(values))
    with pytest.raises(RecipeError, match=rf"options\.train\.{name} of .* is missing or null"):
        recipe_values(path.parent)


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {
            "n_layers": st.integers(0, 3),
            "d_model": st.sampled_from([12, 24, 36]),
            "train.eps": st.floats(1e-12, 1),
            "seed": st.integers(-(2**40), 2**40),
            "sample_prompt": st.text(),
            "windows": st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
            "held_out": st.floats(0.01, 0.99),
        }
    )
)
def test_whatever_is_in_a_recipe_is_read_back(values):
    made = with_record(make_recipe(("a", "b"), None, values), decay=(5, 9))
    assert Recipe.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_lengths_among_the_fields_are_lengths():
    assert take_length({"steps": "5", "d_model": 3}, {"minutes": None}) == ({"d_model": 3}, {"steps": 5})
    assert take_length({}, {"minutes": 2.0, "steps": None}) == ({}, {"minutes": 2.0})
    for changes, length in (({"train.tokens": "9"}, {"steps": 4}), ({"epochs": 1, "minutes": 2}, {})):
        with pytest.raises(RecipeError, match="given twice"):
            take_length(changes, length)
    for value in ("0", "-3"):
        with pytest.raises(RecipeError, match="expected a number above 0"):
            take_length({"steps": value}, {})


def test_ten_minutes_where_no_length_is_given():
    assert with_length(make_recipe((), None, {}), {}).train.minutes == 10.0
    assert with_length(make_recipe((), None, {"steps": 5}), {}).train.minutes == 0.0


def test_what_leaves_a_field_open_asks_for_nothing_else():
    run = make_recipe(("a",), None, {"batch": 7, "precision": "bfloat16", "clip": 1.0, "n_vocab": 300})
    for changes in ({}, {"batch": "auto"}, {"batch": None}, {"precision": "auto"}, {"batch": 7}, {"clip": "1"}):
        assert overlay(run, None, changes, None) == run
    divided = with_train(run, batch=2, accumulate=3)  # by processes, from batch=3 and accumulate=2
    assert overlay(divided, None, {"batch": 3, "accumulate": 2}, None) != divided
    for changes in ({"batch": 3, "accumulate": "2"}, {"batch": 6}, {"batch": "1", "accumulate": 6}):
        assert overlay(divided, None, changes, None, processes=2) == divided
    assert overlay(divided, None, {"batch": 3, "accumulate": 3}, None, processes=2) != divided
    for changes in ({"batch": 8}, {"clip": 0}, {"d_ff": 5}, {"seed": 0}):
        assert overlay(run, None, changes, None) != run
    assert overlay(run, "small", {}, None) == run
    assert overlay(run, "modern", {}, None) != run


def test_a_run_from_a_model_takes_nothing_but_dropout_of_the_architecture():
    model = make_recipe((), None, {"d_model": 36}).model
    made = make_recipe_on(model, ("a",), {"dropout": 0.1, "learning_rate": 1e-4})
    assert made.model.dropout.embed == 0.1
    assert made.model.d_model == 36
    for changes, named in (
        ({"d_ff": 7}, "model.mlp.d_ff"),
        ({"tokenizer": "char"}, "text.tokenizer"),
        ({"text.pattern": "gpt4"}, "text.pattern"),
        ({"text.sample": 0.5}, "text.sample"),
    ):
        with pytest.raises(RecipeError, match=f"keeps its architecture and tokenizer: leave out {named}"):
            make_recipe_on(model, ("a",), changes)


def test_a_run_s_own_recipe_leaves_the_size_of_the_vocabulary_to_the_text(tmp_path):
    """It has the size with the tokens that the run gained, and the model that it started from is smaller."""
    base = make_recipe((), None, {"n_vocab": 300}).model
    run = make_recipe_on(base, ("a",), {"learning_rate": 1e-4})
    run = replace(run, model=replace(run.model, n_vocab=302))
    run = with_record(run, new_ids=(300, 301), base=Base("base", "2", "0"))
    (tmp_path / "recipe.json").write_text(json.dumps(run.to_dict()))
    for recipe in (tmp_path / "recipe.json", run):
        made = make_recipe_on(base, ("a",), {}, recipe)
        assert (made.model, made.train.learning_rate) == (base, 1e-4)
        with pytest.raises(RecipeError, match=r"leave out model\.n_vocab"):
            make_recipe_on(base, ("a",), {"n_vocab": 302}, recipe)


def test_a_size_of_the_vocabulary_in_a_recipe_of_ones_own_is_refused_where_the_model_has_another(tmp_path):
    base = make_recipe((), None, {"n_vocab": 300}).model
    for size in (300, 5000):
        (tmp_path / "r.toml").write_text(f"[model]\nn_vocab = {size}\n")
        if size == 300:
            assert make_recipe_on(base, ("a",), {}, tmp_path / "r.toml").model == base
        else:
            with pytest.raises(RecipeError, match=r"leave out model\.n_vocab"):
                make_recipe_on(base, ("a",), {}, tmp_path / "r.toml")


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        ({}, "masked", "needs model.attention.mask = bidirectional and no encoder"),
        ({}, "source-target", "needs an encoder beside its decoder"),
        ({"objective": "source-target"}, "next-token", "needs model.attention.mask = causal and no encoder"),
        ({"objective": "source-target"}, "masked", "needs model.attention.mask = bidirectional and no encoder"),
        ({"objective": "masked"}, "next-token", "needs model.attention.mask = causal and no encoder"),
    ],
)
def test_an_objective_that_the_starting_model_is_not_made_for_is_named_itself(model, asked, says):
    """Not an option of the architecture that follows from it and that nobody gave."""
    own = make_recipe((), None, model)
    with pytest.raises(RecipeError) as caught:
        make_recipe_on(own.model, ("a",), {"objective": asked})
    expected = f"which is that of {own.train.objective}: leave out --objective {asked}"
    assert str(caught.value).startswith(f"train.objective = {asked} {says}")
    assert str(caught.value).endswith(expected)


def test_an_objective_of_a_recipe_that_the_starting_model_is_not_made_for_names_the_recipe(tmp_path):
    """Nobody gave the option that the message would have to name."""
    causal, masked = make_recipe((), None, {}), make_recipe((), None, {"objective": "masked"})
    (tmp_path / "recipe.json").write_text(json.dumps(causal.to_dict()))
    for recipe in (causal, tmp_path / "recipe.json"):
        with pytest.raises(RecipeError, match=r": set --objective masked, or leave the recipe out$"):
            make_recipe_on(masked.model, ("a",), {}, recipe)
        with pytest.raises(RecipeError, match=r": leave out --objective next-token$"):
            make_recipe_on(masked.model, ("a",), {"objective": "next-token"}, recipe)


def test_a_starting_model_that_is_not_made_for_conversations_names_the_inputs(tmp_path):
    conversation = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(conversation))
    masked = make_recipe((), None, {"objective": "masked"}).model
    with pytest.raises(RecipeError, match="which is that of masked: give other inputs, which are no conversations"):
        make_recipe_on(masked, (str(tmp_path / "a.jsonl"),), {})


def test_options_without_an_effect_are_refused_only_where_a_user_sets_them(tmp_path):
    """Runs of earlier versions, recipe files and presets may hold them; a value that leaves the choice asks nothing."""
    with pytest.raises(RecipeError, match=r"mask_share = 0\.15 goes with train\.objective = masked, not next-token"):
        make_recipe((), None, {"mask_share": 0.15})
    (tmp_path / "a.toml").write_text("[train]\nmask_share = 0.5\n")
    assert make_recipe((), None, {}, tmp_path / "a.toml").train.mask_share == 0.5
    earlier = with_train(make_recipe((), "gpt2", {}), mask_share=0.5)
    assert Recipe.from_dict(earlier.to_dict()) == earlier
    assert overlay(earlier, None, {"mask_share": 0.5, "seed": 1337}, None) == earlier
    model = make_recipe((), "gpt2", {}).model
    with pytest.raises(RecipeError, match=r"mask_share = 0\.3 goes with train.objective = masked"):
        make_recipe_on(model, (), {"mask_share": 0.3})


def test_a_run_from_a_model_takes_no_tokenizer_not_even_the_default_one():
    model = make_recipe((), "gpt2", {}).model
    for name, value in {"tokenizer": "bpe", "vocabulary": None, "text.pattern": "gpt2", "sample": 1.0}.items():
        with pytest.raises(RecipeError, match=rf"keeps its architecture and tokenizer: leave out .*{name}"):
            make_recipe_on(model, (), {name: value})
    assert make_recipe_on(model, (), {"n_layers": model.n_layers}).model == model


@given(st.permutations(["seed", "train.seed", "d_model"]).map(lambda names: names[:2]))
def test_two_names_of_one_field_are_refused_in_any_order(names):
    is_one_field = "d_model" not in names
    with pytest.raises(ArchitectureError, match=r"train\.seed is given twice") if is_one_field else nullcontext():
        make_recipe((), None, dict.fromkeys(names, 8))


def test_a_learning_rate_at_which_weights_would_change_their_signs_is_refused(text, tmp_path):
    for rate, most in (({"learning_rate": 300.0}, 10), ({"muon_learning_rate": 20.0}, 10)):
        name = next(iter(rate))
        with pytest.raises(RecipeError, match=f"train.{name} = .*: expected at most 1 / .*weight_decay = {most},"):
            start(text, tmp_path / "run", weight_decay=0.1, **rate)
        assert not (tmp_path / "run").exists()


def test_other_kinds_of_runs_refuse_such_a_rate_too(text, tmp_path):
    with pytest.raises(RecipeError, match=r"train\.learning_rate = 200: expected at most 1 / weight_decay = 100,"):
        pellucid.train_predictor(
            text,
            kind="recurrent",
            steps=2,
            fields={"learning_rate": 200, "weight_decay": 0.01},
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_the_width_of_a_gated_mlp_follows_the_width_of_the_stream():
    """As d_ff = 4 d_model does where it is left open; a width that was said stays."""

    def d_ff(**changes):
        return make_recipe(("x",), "small", {name.replace("__", "."): v for name, v in changes.items()}).model.d_ff

    assert d_ff() == gated_width(128) == 352
    assert d_ff(d_model="384") == gated_width(384) == 1024
    assert d_ff(d_model=384, d_ff=500) == 500
    assert d_ff(mlp__form="plain", mlp__activation="relu2") == 4 * 128
    assert d_ff(d_model=64, mlp__form="plain") == 4 * 64
    run = make_recipe(("x",), "small", {"d_model": 64})
    assert overlay(run, None, {"d_model": 64}, None) == run
    assert d_ff(n_layers=2) == 352


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_recipe_object_says_the_same_as_its_fields(name):
    """Every architecture survives, and single fields change it as they change a preset."""
    objective = "source-target" if PRESETS[name].encoder else MASK_OBJECTIVE[PRESETS[name].attention.mask]
    described = make_recipe(("a.txt",), name, {"objective": objective, "steps": 3})
    assert make_recipe(("a.txt",), None, {}, described) == described
    changed = make_recipe(("b.txt",), None, {"dropout": 0.1}, described)
    assert changed == make_recipe(("b.txt",), name, {"objective": objective, "steps": 3, "dropout": 0.1})


def test_training_takes_a_recipe_object(text, tmp_path):
    recipe = Recipe(
        inputs=(str(text),),
        model=Architecture(n_vocab=256, n_layers=1, d_model=16, n_ctx=16, attention=Attention(n_heads=2, d_head=8)),
        text=TextOptions(tokenizer="byte"),
        train=TrainOptions(steps=2, batch=2, seed=5),
    )
    run = pellucid.train(recipe=recipe, out=tmp_path / "run")
    assert run.step == 2
    assert run.recipe.inputs == recipe.inputs
    assert replace(run.recipe.model, n_vocab=recipe.model.n_vocab) == recipe.model
    assert (run.recipe.train.seed, run.recipe.train.batch) == (5, 2)
    # a run's own recipe trains the same weights again; a length and single fields take the place of its own
    again = pellucid.train(text, recipe=run.recipe, out=tmp_path / "again")
    assert again.held_out_loss == run.held_out_loss
    longer = pellucid.train(recipe=run.recipe, steps=3, fields={"seed": 6}, out=tmp_path / "longer")
    assert (longer.step, longer.recipe.train.seed) == (3, 6)
    # what the recipe says of a run is compared when that run is resumed
    assert run.recipe.train.sample_prompt  # was chosen
    assert pellucid.train(out=run.path, resume=True, recipe=recipe, steps=3).step == 3
    with pytest.raises(RecipeError, match=r"cannot be resumed with other options \(train.seed: 5 in the run, 6"):
        pellucid.train(out=run.path, resume=True, recipe=longer.recipe, steps=4)


def test_what_does_not_go_with_a_recipe_object_is_refused(text, tmp_path):
    recipe = Recipe(inputs=(), model=preset("small"))
    cases = [
        ({"recipe": recipe}, "no text was named"),
        ({"recipe": recipe, "preset": "gpt2"}, "leave out the preset gpt2"),
        ({"recipe": replace(recipe, train=TrainOptions(objective="masked"))}, "needs model.attention.mask"),
        ({"recipe": replace(recipe, adapt=AdapterOptions(rank=2))}, "name it with --from"),
        ({"recipe": make_predictor_recipe((str(text),), "recurrent", {}, {})}, "expected a Recipe"),
    ]
    for options, message in cases:
        inputs = () if message == "no text was named" else (text,)
        with pytest.raises(ValueError, match=message):
            pellucid.train(*inputs, out=tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()


def test_a_length_among_the_fields_counts_for_every_kind(text, tmp_path):
    fields = {"steps": 1, "tokenizer": "byte", "n_ctx": 8}
    run = pellucid.train_predictor(text, kind="recurrent", out=tmp_path / "run", fields=fields)
    assert run.step == 1
    assert pellucid.train_predictor(out=run.path, resume=True, fields={"train.steps": 2}).step == 2
