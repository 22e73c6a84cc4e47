"""A plan computes steps as a run of the same shape does: one function chooses, by what was timed once for both."""

import math
from dataclasses import replace

import pytest
import torch
from tests.training.tiny import FIELDS, start, write_text

from pellucid.plan import make_plan, plan_lines, step_choice
from pellucid.plan.planning import as_dict
from pellucid.plan.step_choice import RandomStepTimer, choose_step
from pellucid.runs.options import with_train
from pellucid.training import autotune
from pellucid.training import resolve_recipe as resolve
from pellucid.training.autotune import Combination, Timings, Tuner, recall, remember
from pellucid.training.memory import passes_that_fit
from pellucid.training.recipe import make_recipe

CPU = torch.device("cpu")
OPEN = {"precision": "auto", "attention": "auto", "compile": "auto", "batch": 0, "accumulate": 0, "dropout": 0.0}
EAGER = [Combination(p, k, False, n) for p in ("float32", "bfloat16") for k in ("fused", "explicit") for n in (1, 2)]


@pytest.fixture(autouse=True)
def _machine(monkeypatch, tmp_path):
    """It multiplies bfloat16, has a compiler, and remembers nothing yet."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: True)
    monkeypatch.setattr(autotune, "can_compile", lambda device: True)
    monkeypatch.setattr(autotune, "compile_pays", lambda *given: (False, "compiled: no"))


def architecture():
    made = make_recipe(("text",), None, FIELDS | OPEN).model
    return replace(made, n_vocab=257)  # bytes and the separator


def chosen_by(train) -> Combination:
    return Combination(train.precision, train.attention, train.compile == "yes", train.accumulate)


def found_fastest(monkeypatch, best: Combination | None) -> list[Combination]:
    """Whatever is timed, one combination is the fastest; None where nothing may be timed. Returns what was timed."""
    heard = []

    def fastest(steps, *given):
        assert best is not None, "timed again"
        heard.extend(steps)
        for step in steps.values():
            step()
        return {c: 0.5 + 0.5 * (c != best) for c in steps}

    monkeypatch.setattr(autotune, "fastest_seconds", fastest)
    monkeypatch.setattr(Tuner, "budget", lambda self, seconds: 1e9)
    return heard


@pytest.mark.parametrize("best", [EAGER[3], EAGER[4]], ids=str)
@pytest.mark.parametrize("first", ["plan", "run"])
def test_a_plan_and_a_run_choose_alike_whichever_comes_first(first, best, tmp_path, monkeypatch):
    text = write_text(tmp_path)

    def plan():
        made = make_plan(architecture(), device="cpu", accelerators=())
        return made.recipe.train, "\n".join(plan_lines(made))

    def run():
        made = start(text, tmp_path / "run", steps=20, evaluate_every=20, **OPEN)
        return made.recipe.train, ""

    doers = [plan, run] if first == "plan" else [run, plan]
    heard = found_fastest(monkeypatch, best)
    timed, _ = doers[0]()
    assert set(heard) == set(EAGER)
    found_fastest(monkeypatch, None)
    remembered, _ = doers[1]()
    assert chosen_by(timed) == chosen_by(remembered) == best
    assert (timed.batch, timed.accumulate) == (remembered.batch, remembered.accumulate)
    said = plan()[1]
    assert f"step: {best}; remembered of this machine and shape, ms a step: {best} " in said


def test_a_plan_that_measures_nothing_has_what_is_remembered_or_the_default(monkeypatch):
    options = {"device": "cpu", "accelerators": (), "measure": False}
    made = make_plan(architecture(), **options)
    assert chosen_by(made.recipe.train) == Combination("bfloat16", "explicit", False, 1)
    assert "by default: no step of this shape was timed on this machine" in "\n".join(plan_lines(made))
    found_fastest(monkeypatch, EAGER[1])
    make_plan(architecture(), **options | {"measure": True})
    found_fastest(monkeypatch, None)
    made = make_plan(architecture(), **options)
    assert chosen_by(made.recipe.train) == EAGER[1]
    assert made.speed is None
    assert as_dict(made)["step"] == list(made.step_lines)


def test_compiled_steps_that_a_run_timed_are_planned(monkeypatch):
    """Where the run is long enough to win the compilation back."""
    heard = []

    def remembered(self):
        heard.append(self)
        return real(self)

    real = Tuner.choose
    monkeypatch.setattr(Tuner, "choose", remembered)
    found_fastest(monkeypatch, EAGER[0])
    options = {"device": "cpu", "accelerators": ()}
    assert make_plan(architecture(), **options).recipe.train.compile == "no"
    path = heard[-1].memory
    timings = recall(path)
    assert timings is not None
    compiled = Combination("bfloat16", "fused", True, 1)
    timings.seconds[compiled], timings.compiling = 0.3, 20.0
    remember(path, timings)
    found_fastest(monkeypatch, None)
    for n_steps, is_compiled in ((50, False), (10_000_000, True)):
        made = make_plan(architecture(), tokens=n_steps * 2048, **options)
        assert (chosen_by(made.recipe.train) == compiled) is is_compiled


def test_what_is_asked_for_is_planned():
    made = make_plan(architecture(), device="cpu", accelerators=(), batch=4, precision="float32", tokens=1000)
    t = made.recipe.train
    assert (t.batch, t.accumulate, t.precision) == (4, 1, "float32")
    assert "precision: float32, as asked" in made.step_lines


@pytest.mark.parametrize("n_layers", [2, 6])
def test_steps_on_random_tokens_are_timed_in_every_combination(n_layers, monkeypatch):
    """True steps, of networks of 2 and 4 layers where there are more; what they take is not asked."""
    monkeypatch.setattr(autotune, "ENOUGH", 0.5)
    monkeypatch.setattr(RandomStepTimer, "measure", lambda *given: 0.01)  # whatever else the machine does
    recipe = make_recipe(("text",), None, FIELDS | OPEN | {"n_layers": n_layers})
    recipe = resolve.resolve_batch(replace(recipe, model=replace(recipe.model, n_vocab=256)), CPU)
    passes = passes_that_fit(recipe, CPU)
    depths, real = [], step_choice.steppers

    def watched(recipes, device):
        depths.append({r.model.n_layers for r in recipes})
        return real(recipes, device)

    monkeypatch.setattr(step_choice, "steppers", watched)
    choice = choose_step(recipe, CPU, 5000 * recipe.tokens_per_step, passes, math.inf, measure=True)
    assert depths == ([{2}] if n_layers == 2 else [{2}, {4}])
    assert choice.combination in EAGER
    [line] = [line for line in choice.lines if line.startswith("step: ")]
    assert all(f"{c} " in line for c in EAGER)
    assert choice.seconds is not None
    assert choice.seconds > 0


def test_networks_that_are_too_large_to_time_have_what_is_remembered_or_the_default(monkeypatch):
    recipe = resolve.resolve_batch(make_recipe(("text",), "small", OPEN | {"n_layers": 12}), CPU)
    recipe = with_train(replace(recipe, model=replace(recipe.model, n_vocab=256)), device="cpu")
    timer = RandomStepTimer(recipe, CPU, 1000.0)
    assert timer.measure(with_train(recipe, precision="float32", attention="fused"), 1.0) == math.inf
    choice = choose_step(recipe, CPU, 10**9, (), 1000.0, measure=True)
    assert choice.combination == Combination("bfloat16", "explicit")
    assert any("by default" in line for line in choice.lines)
    best = Combination("float32", "fused")
    seconds = {replace(c, passes=0): 1.0 + (replace(c, passes=0) != best) for c in EAGER}
    monkeypatch.setattr(autotune, "recall", lambda path: Timings(seconds, remembered=True))
    assert choose_step(recipe, CPU, 10**9, (), 1000.0, measure=True).combination == best


def test_a_comparison_that_would_take_long_is_left_to_a_run(monkeypatch):
    monkeypatch.setattr(step_choice, "COMPARING", 1e-6)
    made = make_plan(architecture(), device="cpu", accelerators=())
    assert any("by default: timing others would take more than 0 s" in line for line in made.step_lines)
