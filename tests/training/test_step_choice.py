"""How a step is computed follows a rule, and one timed step in each precision where the run is long enough."""

import json
import math

import pytest
import torch
from tests.training.tiny import FIELDS, assert_same_tensors, resume, start, tensors

from pellucid.parameter_counts import count_parameters
from pellucid.plan import make_plan
from pellucid.runs import trainer
from pellucid.runs.device import COMPILE_SAVES, COMPILE_SECONDS
from pellucid.runs.options import RecipeError
from pellucid.runs.pace import Pace
from pellucid.training import resolve_recipe as resolve
from pellucid.training import step_choice, step_functions, trainable
from pellucid.training.recipe import make_recipe
from pellucid.training.step_choice import choose_step, eager_recipes, resolve_step
from pellucid.training.step_functions import SAVES_BESIDE_OURS, compile_saves

CPU = torch.device("cpu")
OPEN = {"precision": "auto", "attention": "auto", "compile": "auto"}


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """Whatever the machine of the tests has, this one multiplies bfloat16 fast and has a compiler."""
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: True)
    monkeypatch.setattr("pellucid.runs.device.has_command", lambda *names: True)
    monkeypatch.setattr(step_functions.SOURCE, "is_loaded", True)


def recipe_of(**fields):
    return make_recipe(("text",), None, FIELDS | {"dropout": 0.0} | OPEN | fields)


def chosen(recipe) -> tuple[str, str, str]:
    return recipe.train.precision, recipe.train.attention, recipe.train.compile


class Timer:
    """Steps of every precision take the seconds that it is given."""

    def __init__(self, bfloat16: float, float32: float):
        self.seconds, self.timed = {"bfloat16": bfloat16, "float32": float32}, []

    def __call__(self, recipe, budget):
        assert recipe.train.compile == "no"
        self.timed.append((recipe.train.precision, budget))
        return self.seconds[recipe.train.precision]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [("bfloat16", "explicit"), ("float32", "fused")]),
        ({"precision": "float32"}, [("float32", "fused")]),
        ({"precision": "bfloat16"}, [("bfloat16", "explicit")]),
        ({"attention": "fused"}, [("bfloat16", "fused"), ("float32", "fused")]),
        ({"n_ctx": 1024}, [("bfloat16", "fused"), ("float32", "fused")]),
        ({"dropout": 0.1}, [("bfloat16", "explicit"), ("float32", "explicit")]),
    ],
    ids=str,
)
def test_kernel_and_precision_follow_the_rule(fields, expected):
    assert [chosen(r)[:2] for r in eager_recipes(recipe_of(**fields), CPU)[0]] == expected


def test_bfloat16_is_open_where_a_measured_product_is_fast(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(resolve, "processor_flags", lambda: ["AVX512", "avx512_bf16"])
    for bfloat16, is_fast in ((0.5, True), (1.05, False)):
        seconds = {torch.bfloat16: bfloat16, torch.float32: 1.0}
        monkeypatch.setattr(resolve, "matmul_seconds", lambda device, dtype, seconds=seconds: seconds[dtype])
        assert resolve.may_use_bfloat16(CPU) is is_fast
    monkeypatch.setattr(resolve.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(resolve, "processor_flags", lambda: ["AVX2"])
    monkeypatch.setattr(resolve, "matmul_seconds", lambda *given: pytest.fail("emulated products were timed"))
    assert not resolve.may_use_bfloat16(CPU)


@pytest.mark.parametrize(("bfloat16", "float32", "best"), [(0.1, 0.2, "bfloat16"), (0.2, 0.1, "float32")])
def test_the_faster_of_two_timed_steps_is_chosen_and_both_are_printed(bfloat16, float32, best):
    choice = choose_step(recipe_of(steps=1000, compile="no"), 1000, CPU, Timer(bfloat16, float32))
    attention = "explicit" if best == "bfloat16" else "fused"
    assert chosen(choice.recipe) == (best, attention, "no")
    times = f"bfloat16 {1e3 * bfloat16:.0f}, float32 {1e3 * float32:.0f}"
    assert choice.lines == [f"step: {best}, {attention} attention; timed, ms a step: {times}"]
    assert choice.seconds == choice.eager_seconds == 0.1


@pytest.mark.parametrize(
    ("length", "n_timed"),
    [({"steps": 19}, 0), ({"steps": 400}, 1), ({"steps": 0, "minutes": 0.8}, 1), ({"steps": 600}, 2)],
    ids=str,
)
def test_a_short_run_times_less_and_takes_the_default(length, n_timed):
    timer, made = Timer(0.1, 0.05), recipe_of(**length)
    choice = choose_step(made, 1000, CPU, timer, Pace.of_minutes(made.train.minutes))
    assert len(timer.timed) == n_timed
    assert choice.recipe.train.precision == ("float32" if n_timed == 2 else "bfloat16")
    if n_timed < 2:
        by_default = "step: bfloat16, explicit attention, by default: the run is too short to time others"
        assert choice.lines[0].startswith(by_default)
    if length["steps"] == 0:
        assert timer.timed[0][1] <= 0.03 * 48


def test_timing_takes_its_share_of_a_run_of_minutes():
    timer, pace = Timer(0.1, 0.1), Pace.of_minutes(1.0)
    resolve_step(recipe_of(steps=0, minutes=1.0), 1000, CPU, timer, pace)
    assert len(timer.timed) == 2
    assert sum(budget for _, budget in timer.timed) == pytest.approx(0.03 * 60)


def test_compilation_follows_what_it_usually_saves():
    for steps, compiles in ((1000, "no"), (100_000, "yes")):
        choice = choose_step(recipe_of(steps=steps, attention="fused", precision="float32"), 1000, CPU, Timer(1, 0.1))
        assert choice.recipe.train.compile == compiles
        assert choice.eager_seconds == 0.1
        assert choice.seconds == pytest.approx(0.1 * (1 - SAVES_BESIDE_OURS * (compiles == "yes")))
        assert choice.reserve == (COMPILE_SECONDS["cpu"] if compiles == "yes" else 0)
        assert f"compiled: {compiles}" in choice.lines[-1]


def test_a_compiler_that_was_asked_for_and_is_missing_is_an_error(monkeypatch):
    monkeypatch.setattr("pellucid.runs.device.has_command", lambda *names: False)
    with pytest.raises(RecipeError, match=r"train.compile = yes: there is no C\+\+ compiler here"):
        choose_step(recipe_of(compile="yes"), 1000, CPU, Timer(1, 1))


def test_a_network_with_other_operations_is_worth_compiling():
    plain = recipe_of().model
    assert compile_saves(plain, CPU) == SAVES_BESIDE_OURS
    assert compile_saves(plain, torch.device("cuda")) == COMPILE_SAVES["cuda"]
    assert compile_saves(plain, CPU, n_processes=2) == COMPILE_SAVES["cpu"]
    for change in ({"norm.kind": "layer"}, {"mlp.activation": "gelu"}, {"mlp.form": "plain"}):
        assert compile_saves(plain.with_fields(change), CPU) == COMPILE_SAVES["cpu"]


def test_steps_that_cannot_be_timed_have_the_default():
    choice = choose_step(recipe_of(steps=1000), 1000, CPU, lambda recipe, budget: math.inf)
    assert chosen(choice.recipe) == ("bfloat16", "explicit", "no")
    assert choice.lines == ["step: bfloat16, explicit attention, by default: none was timed"]
    assert choice.seconds is None


def test_a_precision_that_cannot_be_timed_is_not_the_fastest():
    """Its place is not taken for that of the other one."""
    choice = choose_step(recipe_of(steps=0, minutes=2.0), 1000, CPU, Timer(math.inf, 0.1), Pace.of_minutes(2.0))
    assert chosen(choice.recipe)[:2] == ("float32", "fused")
    assert choice.eager_seconds == 0.1


def test_a_plan_chooses_by_the_function_of_a_run():
    plan = {"device": "cpu", "accelerators": (), "measure": False}
    made = make_plan(recipe_of().model.with_fields({"n_vocab": 257}), **plan)
    assert chosen(made.recipe)[:2] == ("bfloat16", "explicit")
    assert made.step_lines == ("step: bfloat16, explicit attention, by default: none was timed",)
    assert make_plan("small", **plan | {"precision": "float32"}).step_lines[0] == "precision: float32, as asked"


def test_a_step_that_no_process_can_take_is_estimated_by_its_flops(monkeypatch):
    monkeypatch.setattr(resolve, "matmul_seconds", lambda device, dtype, n: 2e-12 * n**3)  # 10^12 FLOP/s
    made = recipe_of(ngrams=(), precision="float32")
    n = count_parameters(made.model)["total"]
    expected = 6 * n * made.tokens_per_step / 4 / (0.5 * 1e12)
    assert resolve.estimated_seconds(made, CPU, 4) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_timing_changes_no_weight_and_no_random_number(optimizer, text, tmp_path, monkeypatch):
    """True steps are timed in both precisions; the run is the same as one that was given their choice."""
    monkeypatch.setattr(step_choice, "SHORT_SECONDS", 0.0)
    measured, real = [], trainable.measure_step

    def measure(which, poll, budget):
        measured.append(which.recipe.train.precision)
        assert real(which, poll, budget) > 0
        return 1.0 + (which.recipe.train.precision == "bfloat16")  # whatever the machine of the tests prefers

    monkeypatch.setattr(trainable, "measure_step", measure)
    same = {"steps": 20, "evaluate_every": 20, "dropout.pattern": 0.0, "optimizer": optimizer}
    timed = start(text, tmp_path / "timed", **{**OPEN, "compile": "no", **same}).path
    assert measured == ["bfloat16", "float32"]
    given = start(text, tmp_path / "given", precision="float32", attention="fused", **same).path
    assert_same_tensors(tensors(timed, 20), tensors(given, 20))
    written = json.loads((timed / "recipe.json").read_bytes())["options"]["train"]
    assert (written["precision"], written["attention"], written["compile"]) == ("float32", "fused", "no")


def test_a_resumed_run_keeps_the_choice_of_its_folder(text, tmp_path, monkeypatch):
    run = start(text, tmp_path / "run", **OPEN).path
    written = json.loads((run / "recipe.json").read_bytes())["options"]["train"]
    assert None not in (written["precision"], written["attention"], written["compile"])
    monkeypatch.setattr(trainable, "resolve_step", lambda *given: pytest.fail("chosen again"))
    resume(run, steps=13)
    again = json.loads((run / "recipe.json").read_bytes())["options"]["train"]
    assert [again[name] for name in OPEN] == [written[name] for name in OPEN]


def test_a_compiled_step_that_fails_says_what_to_do(text, tmp_path, monkeypatch):
    def fails(self):
        raise RuntimeError("no memory\nfor this graph")

    monkeypatch.setattr(trainer.Trainer, "take_step", fails)
    with pytest.raises(RecipeError, match=r"the compiled step failed \(no memory\): set compile=no"):
        start(text, tmp_path / "run", compile="yes")
