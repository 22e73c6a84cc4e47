"""Sizes chosen for a text and a time: what is given stays, more time or text never ranks worse, and the run says so."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pellucid
from pellucid.architecture import Dropout
from pellucid.plan import sized_recipe, sizing
from pellucid.plan.sized_recipe import (
    scale_of,
    seconds_to_step,
    size_to,
    sized,
    sizes_are_open,
    sizing_lines,
    text_properties,
)
from pellucid.plan.sizing import FITTED, Size, Text, choose_size, expected, seconds_of, variety
from pellucid.runs.length import with_length
from pellucid.runs.options import RecipeError, TrainOptions
from pellucid.text import bundled, read_corpus, split_corpus
from pellucid.text.read.chunks import counted
from pellucid.training import resolve_recipe, step_choice, step_functions
from pellucid.training.recipe import make_recipe

texts = st.builds(Text, st.integers(2_000, 10**9), st.floats(*sizing.VARIETIES))
minutes = st.floats(0.1, 600)
scales = st.floats(0.001, 10).map(lambda s: (s, s))


def recipe(minutes=5.0, **fields):
    return with_length(make_recipe((), None, fields), {"minutes": minutes})


@settings(deadline=None, max_examples=10)
@given(texts, minutes, scales)
def test_what_is_chosen_fits_the_time_and_is_the_best_of_its_vocabulary(n, t, scale):
    made = choose_size(recipe(t), n, scale)
    c = made.chosen
    assert c.expected == min(s.expected for s in made.considered if s.vocabulary == c.vocabulary)
    assert c.vocabulary == sizing.SMALLEST or c.steps * c.tokens >= FITTED.id_occurrences * c.vocabulary
    assert c.n_layers >= 2
    assert c.steps == 1 or c.steps * c.seconds <= 60 * t
    assert c.epochs <= FITTED.most_epochs or c.steps == 1
    assert all(math.isfinite(s.expected) and s.steps >= 1 for s in made.considered)


@settings(deadline=None, max_examples=40)
@given(texts, minutes, scales)
def test_more_time_is_never_ranked_worse(n, t, scale):
    """With as many sequences in a step: twice as many halve the steps."""
    few, more = (choose_size(recipe(k * t, vocabulary=1024, batch=8), n, scale).chosen for k in (1, 2))
    assert more.expected <= few.expected + 1e-9


@settings(deadline=None, max_examples=15)
@given(texts, minutes, st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), st.floats(1, 16))
def test_a_machine_that_is_faster_by_a_factor_is_as_good_as_that_factor_of_time(n, t, scale, factor):
    longer, faster = (
        choose_size(recipe(k * t), n, (scale[0] / m, scale[1] / m)).chosen for k, m in ((factor, 1.0), (1.0, factor))
    )
    assert (longer.vocabulary, longer.d_model, longer.n_layers) == (faster.vocabulary, faster.d_model, faster.n_layers)


@pytest.fixture
def stubbed_timer(monkeypatch):
    """Steps of the probes that take a second (width 64) and four (256), times the factor of their combination."""

    def install(factors):
        timed = []

        def step_of(r):
            t = r.train
            assert t.compile == "no"
            timed.append((t.precision, t.attention))
            return (1.0 if r.model.d_model == sizing.PROBES[0] else 4.0) * factors[t.precision, t.attention]

        monkeypatch.setattr(sized_recipe, "step_seconds", lambda r, device, budget, poll: step_of(r))
        return timed

    monkeypatch.setattr(resolve_recipe, "may_use_bfloat16", lambda device: True)
    return install


COMBINATIONS = [(p, k) for p in ("float32", "bfloat16") for k in ("fused", "explicit")]


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, minutes.filter(lambda t: t > 0.6), st.lists(st.floats(1e-3, 1), min_size=4, max_size=4))
def test_the_size_follows_the_speed_of_the_combination_that_the_run_steps_with(stubbed_timer, n, t, factors):
    """A combination that is asked for is timed alone; of open precisions the faster one counts."""
    factor_of = dict(zip(COMBINATIONS, factors, strict=True))
    chosen = {}
    for precision, attention in COMBINATIONS:
        timed = stubbed_timer(factor_of)
        asked = recipe(t, precision=precision, attention=attention)
        scale = scale_of(asked, torch.device("cpu"))
        assert set(timed) == {(precision, attention)}
        assert scale[0] == pytest.approx(factor_of[precision, attention] / seconds_of(Size(1024, 64, 2, 16), (1, 1)))
        chosen[precision, attention] = choose_size(asked, n, scale)
    stubbed_timer(factor_of)
    scale = scale_of(recipe(t), torch.device("cpu"))
    fastest = min((("bfloat16", "explicit"), ("float32", "fused")), key=factor_of.__getitem__)
    assert scale[1] == pytest.approx(4 * factor_of[fastest] / seconds_of(Size(1024, 256, 2, 16), (1, 1)))
    assert choose_size(recipe(t), n, scale).chosen == chosen[fastest].chosen


@given(st.floats(0.05, 600), st.floats(1, 20), st.sampled_from([None, "no", "yes"]), st.booleans(), st.booleans())
def test_compilation_is_counted_in_the_time_for_steps(t, factor, asked, has_compiler, has_own):
    """It saves 27 % of a step, or 5 % beside functions of our own."""
    cpu = torch.device("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_functions.SOURCE, "is_loaded", has_own)
        patch.setattr(sized_recipe, "can_compile", lambda device: has_compiler)
        less, more = (seconds_to_step(recipe(minutes, compile=asked), cpu) for minutes in (t, factor * t))
        assert more >= less
        plain = seconds_to_step(recipe(t, compile="no"), cpu)
        # a long run takes its first step after six seconds, a short one after a share of its time
        assert plain == pytest.approx(60 * t * 0.93 - min(6.0, 0.15 * 60 * t))
        if asked is None:
            assert less >= plain
        if asked == "yes" and t >= 3:
            assert less == pytest.approx((plain - 35) / (0.95 if has_own else 0.73))
            assert has_own or less > plain


@given(st.integers(1, 10**6), st.floats(0.01, 30))
def test_more_weights_steps_or_text_rank_better(steps, epochs):
    size = Size(1024, 128, 4, 16, steps=steps, epochs=epochs)
    n = Text(10**6)
    assert expected(replace(size, d_model=192), n) < expected(size, n)
    of_tokens, of_characters = (
        expected(size, n, by) - expected(replace(size, d_model=192), n, by) for by in (False, True)
    )
    assert of_characters > of_tokens  # which are worth more weights
    assert expected(replace(size, steps=2 * steps), n) < expected(size, n)
    assert expected(replace(size, epochs=1.5 * epochs), n) < expected(size, n)
    assert expected(size, Text(2 * 10**6)) < expected(size, n) < expected(size, Text(10**6, 2.0))


def test_a_step_costs_more_with_all_that_is_larger():
    size = Size(1024, 128, 4, 16)
    base = seconds_of(size, (1.0, 1.0))
    for change in ({"vocabulary": 2048}, {"d_model": 192}, {"n_layers": 6}, {"batch": 32}):
        assert seconds_of(replace(size, **change), (1.0, 1.0)) > base
    low, high = (Size(1024, d, 4, 16) for d in sizing.PROBES)
    assert seconds_of(low, (2.0, 3.0)) == pytest.approx(2 * seconds_of(low, (1.0, 1.0)))
    assert seconds_of(high, (2.0, 3.0)) == pytest.approx(3 * seconds_of(high, (1.0, 1.0)))


@pytest.mark.parametrize(
    ("fields", "length", "open_"),
    [
        ({}, {"minutes": 2}, True),
        ({}, {}, True),
        ({"dropout": 0.1, "seed": 3, "vocabulary": 700}, {"minutes": 2}, True),
        ({"objective": "prefix"}, {"minutes": 2}, True),
        ({"d_model": 64}, {"minutes": 2}, False),
        ({"model.n_layers": 2}, {"minutes": 2}, False),
        ({"n_ctx": 64}, {"minutes": 2}, False),
        ({"objective": "masked"}, {"minutes": 2}, False),
        ({}, {"steps": 10}, False),
        ({}, {"epochs": 1}, False),
    ],
)
def test_sizes_are_chosen_where_none_is_given_for_a_run_of_minutes(fields, length, open_):
    assert sizes_are_open(with_length(make_recipe((), None, fields), length), fields) is open_


def a_split(folder, n):
    """`n` characters of Shakespeare, a tenth held out."""
    file = folder / "text.txt"
    file.write_text(bundled("shakespeare").read_text(encoding="utf-8")[:n], encoding="utf-8")
    return split_corpus(read_corpus([file]))


def test_what_is_given_stays(monkeypatch, tmp_path):
    """Tables of n-grams too, which no size has unless they are asked for."""
    monkeypatch.setattr(sized_recipe, "scale_of", lambda *_: (1.0, 1.0))
    given_ = {"dropout": 0.3, "model.ngrams": (2,), "train.batch": 5, "text.vocabulary": 700}
    made, lines = size_to(recipe(20.0, **given_), a_split(tmp_path, 10_000), options=given_)
    assert (made.train.batch, made.text.vocabulary, made.model.ngrams) == (5, 700, (2,))
    assert made.model.dropout.embed == 0.3
    assert made.model.n_ctx == sizing.CONTEXT
    assert "5 sequences a step" in lines[0]
    assert not any("dropout" in line for line in lines)
    other, lines = size_to(recipe(20.0, tokenizer="char"), a_split(tmp_path, 10_000), options={"tokenizer": "char"})
    assert other.text.vocabulary is None
    assert other.model.ngrams == ()
    assert other.model.dropout.embed == FITTED.dropout
    assert any(f"dropout {FITTED.dropout}" in line for line in lines)


def test_a_network_that_cannot_learn_its_text_by_heart_has_no_dropout():
    """Ten minutes read a megabyte more than twelve times; 220,000 weights do not hold it."""
    made = choose_size(recipe(10.0, tokenizer="char"), Text(1_000_000), (1.0, 1.0))
    made = replace(made, chosen=replace(made.chosen, d_model=96, n_layers=2, epochs=FITTED.epochs_without_dropout + 2))
    again = sized(recipe(10.0, tokenizer="char"), made, set())
    assert again.model.dropout == Dropout()
    assert not any("dropout" in line for line in sizing_lines(made, again))


def test_a_small_text_ends_before_its_time_and_says_so():
    made = choose_size(recipe(100.0), Text(20_000), (1.0, 1.0))
    again = sized(recipe(100.0), made, set())
    assert (again.train.minutes, again.train.epochs) == (0.0, FITTED.most_epochs)
    assert "more epochs would only memorise this text" in sizing_lines(made, again)[-1]


def test_many_languages_are_of_more_variety_than_one(tmp_path):
    """Measured on a sample of the part to train on, whose length hardly matters; a text of one letter has none."""
    known = [text_properties(a_split(tmp_path, n)) for n in (10_000, 100_000)]
    assert [text.n_characters for text in known] == [9_000, 90_000]
    assert known[0].variety == pytest.approx(known[1].variety, rel=0.15)
    sample = bundled("shakespeare").read_text(encoding="utf-8")[:25_000]
    other = "".join(chr(ord(c) + 1000) for c in sample)
    assert variety(sample + other) == pytest.approx(2**0.5 * variety(sample), rel=0.01)
    assert variety("a" * 50_000) == variety("") == sizing.VARIETIES[0]
    assert variety("".join(map(chr, range(40_000, 50_000)))) == sizing.VARIETIES[1]


def test_what_does_not_fit_into_memory_is_not_considered():
    whole, little = (choose_size(recipe(600.0), Text(10**9), (1e-4, 1e-4), room) for room in (math.inf, 2e8))
    assert max(s.d_model for s in little.considered) < max(s.d_model for s in whole.considered)


@pytest.mark.parametrize(
    ("fields", "goes"),
    [
        ({"n_kv_heads": 2}, lambda size: (size.d_model // sizing.D_HEAD) % 2 == 0),
        ({"n_kv_heads": 4}, lambda size: (size.d_model // sizing.D_HEAD) % 4 == 0),
        ({"d_embed": 64}, lambda size: size.d_model != 64),
        ({"d_embed": 256, "embed_projection": "sum"}, lambda size: size.d_model != 256),
    ],
)
def test_sizes_are_chosen_among_those_that_go_with_what_is_set(stubbed_timer, fields, goes):
    """Neither a candidate nor a probe of another width is an error that names a number which nobody set."""
    stubbed_timer(dict.fromkeys(COMBINATIONS, 1.0))
    asked = recipe(2.0, **fields)
    made = choose_size(asked, Text(300_000), scale_of(asked, torch.device("cpu")))
    every = choose_size(recipe(2.0), Text(300_000), (1.0, 1.0)).considered
    assert {(s.d_model, s.n_layers) for s in made.considered} == {(s.d_model, s.n_layers) for s in every if goes(s)}
    model = sized(asked, made, set(fields)).model
    assert (model.d_model, model.n_heads) == (made.chosen.d_model, max(1, made.chosen.d_model // sizing.D_HEAD))
    assert model.attention.n_kv_heads == asked.model.attention.n_kv_heads


def test_where_no_size_is_possible_the_error_says_what_to_do():
    with pytest.raises(RecipeError, match="fits into memory: set sizes of your own"):
        choose_size(recipe(2.0), Text(300_000), (1.0, 1.0), room=1.0)


@pytest.mark.slow
def test_a_run_is_sized_and_says_so(tmp_path, monkeypatch, capsys):
    """From the command's function: the sizes in recipe.json are those that were printed."""
    monkeypatch.setattr(sized_recipe, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(step_choice, "compile_pays", lambda *given: (False, ""))
    text = tmp_path / "text.txt"
    text.write_text(bundled("shakespeare").read_text(encoding="utf-8")[:30_000], encoding="utf-8")
    run = pellucid.train(text, out=tmp_path / "run", minutes=0.05, explain=True, show=True)
    said = capsys.readouterr().out
    kept = json.loads((run.path / "recipe.json").read_text())["options"]
    a = run.recipe.model
    assert f"size: width {a.d_model}, {counted(a.n_layers, 'layer')}, vocabulary {kept['text']['vocabulary']:,}" in said
    assert "<- chosen" in said
    assert kept["train"]["batch"] == run.recipe.train.batch != TrainOptions().batch
