"""How a step is computed is chosen by timing what is left open, within the time that the run's length justifies."""

import json
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FIELDS, assert_same_tensors, resume, start, tensors

from pellucid.runs import measure
from pellucid.runs.device import COMPILE_SAVES
from pellucid.runs.measure import fastest_seconds
from pellucid.runs.options import with_train
from pellucid.runs.pace import Pace
from pellucid.training import autotune as module
from pellucid.training import memory, step_functions, trainable
from pellucid.training import resolve_recipe as resolve
from pellucid.training.autotune import Combination, Tuner, autotune, combinations, default_of, recall
from pellucid.training.memory import training_memory
from pellucid.training.recipe import make_recipe
from pellucid.training.step_functions import SAVES_BESIDE_OURS, compile_saves

CPU = torch.device("cpu")
OPEN = {"precision": "auto", "attention": "auto", "compile": "auto"}
ALL = [Combination(p, k, c) for p in ("float32", "bfloat16") for k in ("fused", "explicit") for c in (False, True)]


def combination_of(recipe) -> Combination:
    t = recipe.train
    return Combination(t.precision, t.attention, t.compile == "yes")


class Clock:
    """A machine whose steps take the seconds that a table says, and whose clock shows nothing else.

    A step of the table has as many passes as it says, or any number where it says none.
    """

    compiles, shares, divides = True, 1, False

    def __init__(self, patch: pytest.MonkeyPatch, seconds: dict[Combination, float], compiling: float = 30.0):
        self.now, self.seconds, self.compiling = 0.0, seconds, compiling
        self.has_passes = any(c.passes for c in seconds)
        self.taken: list[Combination] = []
        self.compiled: set[Combination] = set()
        self.failing: set[Combination] = set()
        self.measured = 0
        for name in ("perf_counter", "monotonic"):
            patch.setattr(time, name, lambda: self.now)

    def combination_of(self, recipe):
        return replace(combination_of(recipe), passes=recipe.train.accumulate if self.has_passes else 0)

    def measure(self, recipe, budget):
        self.measured += 1
        self.now += 2 * self.seconds[self.combination_of(recipe)]
        return self.seconds[self.combination_of(recipe)]

    def networks(self):
        return [(1, lambda: None)]

    def steps(self, recipes):
        def step_of(combination):
            def take():
                self.taken.append(combination)
                if combination in self.failing:
                    raise RuntimeError("no memory\nfor this graph")
                if combination.compiled and combination not in self.compiled:
                    self.compiled.add(combination)
                    self.now += self.compiling
                self.now += self.seconds[combination]

            return take

        return [step_of(self.combination_of(recipe)) for recipe in recipes]


@pytest.fixture(autouse=True)
def _units(monkeypatch):
    """Whatever the machine of the tests has, this one multiplies bfloat16 and has a compiler."""
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: True)
    monkeypatch.setattr(module, "can_compile", lambda device: True)
    monkeypatch.setattr("pellucid.runs.device.can_compile", lambda device: True)


def recipe_of(**fields):
    return make_recipe(("text",), None, FIELDS | {"dropout": 0.0} | OPEN | fields)


def seconds_like(best: Combination, second: float = 0.12) -> dict[Combination, float]:
    """A tenth of a second for one combination, and more for the others."""
    return {c: second for c in ALL} | {best: 0.1}


@pytest.mark.parametrize("best", ALL, ids=str)
def test_the_fastest_of_all_combinations_is_chosen_and_told(best, monkeypatch):
    seconds = {c: 0.3 for c in ALL if c.compiled} | {c: 0.2 for c in ALL if not c.compiled} | {best: 0.1}
    clock = Clock(monkeypatch, seconds)
    chosen, lines = autotune(recipe_of(steps=100_000), 1000, CPU, clock)
    assert combination_of(chosen) == best
    [line] = [line for line in lines if line.startswith("step: ")]
    assert line.startswith(f"step: {best}; timed, ms a step: {best} 100, ")
    for other in (Combination("float32", "fused"), Combination("bfloat16", "explicit")):
        assert f"{other} {1e3 * seconds[other]:.3g}" in line
    assert chosen.n_steps == 100_000


@pytest.mark.parametrize("fields", [{"precision": "float32"}, {"attention": "fused"}, {"compile": "no"}], ids=str)
def test_what_is_asked_for_is_kept_whatever_is_faster(fields, monkeypatch):
    clock = Clock(monkeypatch, seconds_like(Combination("bfloat16", "explicit", True)))
    chosen, _ = autotune(recipe_of(steps=100_000, **fields), 1000, CPU, clock)
    (name, value), *_ = fields.items()
    assert getattr(chosen.train, name) == value
    assert all(getattr(c.applied(chosen).train, name) == value for c in clock.taken)


def test_compilation_that_is_asked_for_is_timed_compiled(monkeypatch):
    seconds = {c: 0.1 for c in ALL} | {Combination("float32", "explicit", True): 0.05}
    chosen, _ = autotune(recipe_of(steps=100_000, compile="yes"), 1000, CPU, Clock(monkeypatch, seconds))
    assert combination_of(chosen) == Combination("float32", "explicit", True)


@pytest.mark.parametrize("fail", ["one", "all"])
def test_what_fails_to_compile_is_left_out_and_told(fail, monkeypatch):
    compiled = [c for c in ALL if c.compiled]
    best, second, *_ = compiled
    eager = Combination("bfloat16", "explicit")
    seconds = {c: 0.1 for c in ALL} | {best: 0.05, second: 0.06, eager: 0.09}
    clock = Clock(monkeypatch, seconds)
    clock.failing = {best} if fail == "one" else set(compiled)
    chosen, lines = autotune(recipe_of(steps=100_000), 1000, CPU, clock)
    assert combination_of(chosen) == (second if fail == "one" else eager)
    told = [line for line in lines if line.startswith("not timed: ")]
    assert set(told) == {f"not timed: {c} (its first step failed: no memory)" for c in clock.failing}
    # what was asked for is not replaced
    clock = Clock(monkeypatch, seconds)
    clock.failing = set(compiled)
    with pytest.raises(RuntimeError, match="no memory"):
        autotune(recipe_of(steps=100_000, compile="yes", batch=3), 1000, CPU, clock)


def test_compiling_is_counted_against_what_the_run_can_win_back(monkeypatch):
    """A run of 2,000 steps of 0.5 s would be over 50 s sooner, and compiling takes 60."""
    monkeypatch.setattr(step_functions.SOURCE, "is_loaded", False)
    seconds = {c: 0.475 if c.compiled else 0.5 for c in ALL}
    for compiling, is_chosen in ((60.0, False), (30.0, True)):
        clock = Clock(monkeypatch, seconds, compiling)
        made = recipe_of(steps=2000, batch=1 + is_chosen)  # of other shapes, as timings are remembered
        assert (autotune(made, 1000, CPU, clock)[0].train.compile == "yes") is is_chosen
        assert clock.compiled


@pytest.mark.parametrize(
    ("has_own", "numbers"),
    [(False, {2_000: 0, 3_000: 1, 6_000: 2, 100_000: 4}), (True, {6_000: 0, 13_000: 0, 15_000: 1, 100_000: 4})],
)
def test_no_more_is_compiled_than_the_run_can_win_back(has_own, numbers, monkeypatch):
    """Each must be expected to save twice what it costs: 27 % of 0.1 s a step, or 5 % beside our own functions, and
    35 s.
    """
    monkeypatch.setattr(step_functions.SOURCE, "is_loaded", has_own)
    for steps, n in numbers.items():
        clock = Clock(monkeypatch, {c: 0.1 for c in ALL})
        autotune(recipe_of(steps=steps, batch=n + 1), 1000, CPU, clock)
        assert len(clock.compiled) == n


def test_a_network_with_other_operations_is_worth_compiling():
    plain = recipe_of().model
    assert compile_saves(plain, CPU) == SAVES_BESIDE_OURS
    assert compile_saves(plain, torch.device("cuda")) == COMPILE_SAVES["cuda"]
    assert compile_saves(plain, CPU, n_processes=2) == COMPILE_SAVES["cpu"]
    for change in ({"norm.kind": "layer"}, {"mlp.activation": "gelu"}, {"mlp.form": "plain"}):
        assert compile_saves(plain.with_fields(change), CPU) == COMPILE_SAVES["cpu"]


@pytest.mark.parametrize("length", [{"steps": 19}, {"steps": 0, "minutes": 0.8}], ids=str)
def test_a_short_run_times_nothing_and_says_which_default_it_took(length, monkeypatch):
    clock = Clock(monkeypatch, {c: 0.1 for c in ALL})
    made = recipe_of(**length)
    chosen, lines = autotune(made, 1000, CPU, clock, pace=Pace.of_minutes(made.train.minutes))
    assert not clock.taken
    assert clock.measured == ("minutes" in length)
    assert "step: bfloat16, explicit attention, by default: the run is too short to time others" in lines
    assert combination_of(chosen) == Combination("bfloat16", "explicit")


def test_a_run_of_few_long_steps_takes_the_default_too(monkeypatch):
    clock = Clock(monkeypatch, {c: 10.0 for c in ALL})
    _, lines = autotune(recipe_of(steps=100), 1000, CPU, clock)
    assert not clock.taken
    assert "step: bfloat16, explicit attention, by default: the run has too few steps to time others" in lines


@settings(deadline=None, max_examples=60)
@given(st.floats(0.9, 600), st.floats(1e-3, 30), st.lists(st.floats(0.5, 2), min_size=8, max_size=8))
def test_timing_takes_no_more_of_a_run_than_its_length_justifies(minutes, second, factors):
    """5 % without compilation; compilations are expected to win back twice what they take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "recall", lambda path: None)
        patch.setattr(module, "remember", lambda *given: None)
        clock = Clock(patch, {c: second * f for c, f in zip(ALL, factors, strict=True)}, compiling=35.0)
        pace = Pace.of_minutes(minutes)
        autotune(recipe_of(steps=0, minutes=minutes), 10**9, CPU, clock, pace=pace)
        # the measurement of the stub takes two steps; a comparison is two rounds and a first step
        taken = clock.now - 2 * 2 * second
        eager = (module.COMPARING * 60 * minutes) * 1.001 + 2 * 4 * second
        compiled = len(clock.compiled) * 35 + (60 + 8 * second if clock.compiled else 0)
        assert taken <= eager + compiled
        assert len(clock.compiled) * 2 * 35 <= 0.27 * 60 * minutes


def test_the_timings_are_remembered_by_shape_and_machine(monkeypatch):
    seconds = seconds_like(Combination("float32", "fused"))
    first = Clock(monkeypatch, seconds)
    autotune(recipe_of(steps=3000), 1000, CPU, first)
    assert first.taken
    again = Clock(monkeypatch, seconds)
    chosen, lines = autotune(recipe_of(steps=3000), 1000, CPU, again)
    assert not again.taken
    assert combination_of(chosen) == Combination("float32", "fused")
    assert any(
        "remembered of this machine and shape, ms a step: float32, fused attention 100" in line for line in lines
    )
    for change in ({"d_model": 32}, {"batch": 3}, {"optimizer": "adamw"}, {"ngram_optimizer": "adamw"}):
        other = Clock(monkeypatch, seconds)
        autotune(recipe_of(steps=3000, **change), 1000, CPU, other)
        assert other.taken, change
    real = module.describe_device
    monkeypatch.setattr(module, "describe_device", lambda device: real(device) | {"processor": "another"})
    other = Clock(monkeypatch, seconds)
    autotune(recipe_of(steps=3000), 1000, CPU, other)
    assert other.taken


def test_a_slower_hour_of_the_machine_changes_no_remembered_choice(monkeypatch):
    seconds = {c: 0.09 if c.compiled else 0.1 for c in ALL}
    autotune(recipe_of(steps=100_000), 1000, CPU, Clock(monkeypatch, seconds))
    busy = Clock(monkeypatch, {c: 5 * s for c, s in seconds.items()})
    chosen, _ = autotune(recipe_of(steps=100_000), 1000, CPU, busy)
    assert not busy.taken
    assert chosen.train.compile == "yes"


@pytest.mark.parametrize("content", ["", "[]", '{"steps": [{}]}', '{"steps": [], "compiling": "x"}', "\x00"])
def test_a_damaged_memory_is_no_memory(content, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert recall(path) is None
    assert recall(tmp_path / "none.json") is None


def test_steps_are_timed_in_turn_and_the_slow_ones_left_out(monkeypatch):
    now, taken = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def step(name, seconds):
        def take():
            taken.append(name)
            now[0] += seconds

        return take

    steps = {"a": step("a", 0.1), "b": step("b", 0.11), "c": step("c", 0.13), "d": step("d", 0.5)}
    found = fastest_seconds(steps, 3.0)
    assert found == pytest.approx({"a": 0.1, "b": 0.11, "c": 0.13, "d": 0.5})
    assert taken[:4] == ["a", "b", "c", "d"]
    assert [taken.count(name) for name in "dc"] == [2, 3]
    assert taken.count("a") == taken.count("b") > 5
    assert now[0] <= 3.0


def test_combinations_are_those_that_the_device_and_the_recipe_allow(monkeypatch):
    assert [str(c) for c in combinations(recipe_of(), CPU)[0]] == [
        "float32, fused attention", "float32, explicit attention",
        "bfloat16, fused attention", "bfloat16, explicit attention",
    ]  # fmt: skip
    assert {c.attention for c in combinations(recipe_of(n_ctx=1024), CPU)[0]} == {"fused"}
    assert {c.attention for c in combinations(recipe_of(dropout=0.1), CPU)[0]} == {"explicit"}
    assert default_of(combinations(recipe_of(precision="float32"), CPU)[0]) == Combination("float32", "fused")
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: False)
    assert {c.precision for c in combinations(recipe_of(), CPU)[0]} == {"float32"}


# Passes -----------------------------------------------------------------------------------------

PASSES = (1, 2, 4)


def seconds_by_passes(best: Combination) -> dict[Combination, float]:
    """A tenth of a second for one combination; the best number of passes is another one for the other combinations."""
    other = next(n for n in PASSES if n != best.passes)
    times = {replace(c, passes=n): 0.12 if n == other else 0.15 for c in ALL for n in PASSES}
    return times | {best: 0.1}


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("best", [ALL[0], ALL[2], ALL[4]], ids=str)
def test_passes_are_chosen_together_with_the_rest(best, passes, monkeypatch):
    best = replace(best, passes=passes)
    clock = Clock(monkeypatch, seconds_by_passes(best))
    # what the other kernels are best with would be taken if the passes were chosen after the rest, or before it
    made = recipe_of(steps=100_000)
    chosen, lines = autotune(made, 1000, CPU, clock, passes=PASSES)
    assert clock.combination_of(chosen) == best
    assert chosen.train.batch * chosen.train.accumulate == made.train.batch * made.train.accumulate == 4
    [line] = [line for line in lines if line.startswith("step: ")]
    words = str(best)
    assert f"{passes} micro-batch" in words
    assert line.startswith(f"step: {words}; timed, ms a step: {words} 100, ")
    assert {replace(c, compiled=False) for c in clock.taken} == {c for c in clock.seconds if not c.compiled}


def test_of_each_kernel_only_the_best_number_of_passes_is_compiled(monkeypatch):
    best = Combination("bfloat16", "fused", True, 4)
    clock = Clock(monkeypatch, {replace(c, passes=n): 0.2 - 0.01 * n for c in ALL for n in PASSES} | {best: 0.1})
    chosen, _ = autotune(recipe_of(steps=100_000), 1000, CPU, clock, passes=PASSES)
    assert clock.combination_of(chosen) == best
    assert clock.compiled == {replace(c, passes=4) for c in ALL if c.compiled}


def test_where_time_is_short_the_passes_stay_those_of_the_rule(monkeypatch):
    """2 % of 1,000 steps pay for three steps of each of four combinations, and not of twelve."""
    clock = Clock(monkeypatch, seconds_by_passes(Combination("float32", "explicit", False, 4)))
    chosen, _ = autotune(recipe_of(steps=1000, compile="no"), 1000, CPU, clock, passes=PASSES)
    assert {c.passes for c in clock.taken} == {2} == {chosen.train.accumulate}
    assert len(set(clock.taken)) == 4
    # a longer run of the same shape times all of them, and a short one after it has what was remembered
    longer = Clock(monkeypatch, clock.seconds)
    autotune(recipe_of(steps=100_000, compile="no"), 1000, CPU, longer, passes=PASSES)
    assert len(set(longer.taken)) == 12
    again = Clock(monkeypatch, clock.seconds)
    chosen, _ = autotune(recipe_of(steps=1000, compile="no"), 1000, CPU, again, passes=PASSES)
    assert not again.taken
    assert again.combination_of(chosen) == Combination("float32", "explicit", False, 4)


@settings(max_examples=200)
@given(
    st.integers(1, 64), st.integers(1, 16), st.sampled_from([16, 128, 1024]), st.sampled_from([1, 2, 4]), st.booleans()
)
def test_possible_passes_divide_the_same_step(batch, accumulate, n_ctx, shares, is_on_cpu):
    batch *= shares
    recipe = make_recipe(("text",), None, FIELDS | {"batch": batch, "accumulate": accumulate, "n_ctx": n_ctx})
    found = resolve.possible_passes(recipe, CPU if is_on_cpu else torch.device("meta"), shares)
    assert accumulate in found
    assert list(found) == sorted(set(found))
    assert len(found) <= (3 if is_on_cpu else 1)
    rows = batch * accumulate
    for passes in found:
        assert rows % passes == 0
        assert rows // passes % shares == 0
        if passes > accumulate:
            assert rows // passes // shares * n_ctx >= resolve.SMALLEST_PASS
    if is_on_cpu and accumulate > 1:
        assert found[0] < accumulate  # one pass divides every step


def test_passes_are_not_compared_where_they_change_the_loss():
    fields = FIELDS | {"mlp.experts": 4, "mlp.experts_per_token": 2}
    assert resolve.possible_passes(make_recipe(("text",), None, fields | {"balance": 0.01}), CPU) == (2,)
    assert resolve.possible_passes(make_recipe(("text",), None, fields | {"balance": 0.0}), CPU) == (1, 2)


def test_passes_that_do_not_fit_into_memory_are_not_compared(monkeypatch):
    made = recipe_of(batch=2, accumulate=4)
    assert memory.passes_that_fit(made, CPU) == (2, 4)
    need = [training_memory(with_train(made, batch=n)).peak for n in (2, 4)]
    monkeypatch.setattr(memory, "free_bytes", lambda device: sum(need) / 2)
    assert memory.passes_that_fit(made, CPU) == (4,)


# Runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "compared"), [(0, (1, 2)), (1, ())])
def test_a_run_compares_passes_that_are_left_open(asked, compared, text, tmp_path, monkeypatch):
    heard, real = [], trainable.autotune

    def watched(*given, **named):
        heard.append(given[-1])
        return real(*given, **named)

    monkeypatch.setattr(trainable, "autotune", watched)
    start(text, tmp_path / "run", batch=128, accumulate=asked, steps=1)
    assert heard == [compared]


def test_a_run_of_chosen_passes_is_the_one_that_was_told_them(text, tmp_path, monkeypatch):
    monkeypatch.setattr(Tuner, "budget", lambda self, seconds: 1e9)
    monkeypatch.setattr(module, "ENOUGH", 0.0)
    monkeypatch.setattr(module, "compile_pays", lambda *given: (False, "compiled: no"))
    heard, real = [], module.fastest_seconds

    def watched(steps, *given):
        found = real(steps, *given)
        heard.extend(found)
        return {c: 2.0 - (c == Combination("float32", "explicit", False, 2)) for c in found}

    monkeypatch.setattr(module, "fastest_seconds", watched)
    options = {"steps": 20, "evaluate_every": 20, "dropout": 0.1, "dropout.pattern": 0.0}
    timed = start(text, tmp_path / "timed", **options | OPEN | {"batch": 128, "accumulate": 0}).path
    assert len(heard) == 8
    told = start(text, tmp_path / "told", **options | {"batch": 64, "accumulate": 2, "attention": "explicit"}).path
    assert_same_tensors(tensors(timed, 20), tensors(told, 20))
    written = json.loads((timed / "recipe.json").read_bytes())["train"]
    assert (written["batch"], written["accumulate"]) == (64, 2)


def test_timing_changes_no_weight_and_no_random_number(text, tmp_path, monkeypatch):
    """All combinations are timed in true steps; the run is the same as the one that was told their choice."""
    monkeypatch.setattr(Tuner, "budget", lambda self, seconds: 1e9)
    monkeypatch.setattr(module, "ENOUGH", 0.0)
    monkeypatch.setattr(module, "compile_pays", lambda *given: (False, "compiled: no"))
    heard = []
    real = module.fastest_seconds

    def watched(steps, *given):
        found = real(steps, *given)
        heard.extend(found)
        # what is chosen does not depend on the machine of the tests
        return {c: 2.0 - (c == Combination("float32", "explicit")) for c in found}

    monkeypatch.setattr(module, "fastest_seconds", watched)
    timed = start(text, tmp_path / "timed", steps=20, evaluate_every=20, **OPEN, **{"dropout.pattern": 0.0}).path
    assert len(heard) == 4
    told = start(
        text, tmp_path / "told", steps=20, evaluate_every=20, attention="explicit", **{"dropout.pattern": 0.0}
    ).path
    assert_same_tensors(tensors(timed, 20), tensors(told, 20))
    written = json.loads((timed / "recipe.json").read_bytes())["train"]
    assert (written["precision"], written["attention"], written["compile"]) == ("float32", "explicit", "no")


def test_a_resumed_run_keeps_the_choice_of_its_folder(text, tmp_path, monkeypatch):
    run = start(text, tmp_path / "run", **OPEN).path
    written = json.loads((run / "recipe.json").read_bytes())["train"]
    assert "auto" not in (written["precision"], written["attention"], written["compile"])
    monkeypatch.setattr(Tuner, "choose", lambda self: pytest.fail("chosen again"))
    resume(run, steps=13)
    assert json.loads((run / "recipe.json").read_bytes())["train"] == written
