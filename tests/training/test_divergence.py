"""Weights that diverge although every loss was finite: what was good stays and is offered, and the exit code is 3."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.some_cases import one_in
from tiny import Heard, assert_same_run, make_training, recipe_for, resume, rows, start, start_recipe

from pellucid import cli
from pellucid.generate.samples import sample_text
from pellucid.runs.checkpoint import (
    CheckpointError,
    best_step,
    diverged_steps,
    good_step,
    named_checkpoint,
    steps_of,
    strict,
    write_json,
)
from pellucid.runs.metrics import MetricsFile
from pellucid.runs.trainer import NumericsError, Trainer


def explode(monkeypatch, at: int, factor: float = 1e30) -> None:
    """The update of step `at` multiplies every weight; its own loss and gradient were finite."""
    real = Trainer.take_step

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step == at:
            with torch.no_grad():
                for p in self.network.parameters():
                    p.mul_(factor)

    monkeypatch.setattr(Trainer, "take_step", take_step)


def measure(monkeypatch, losses: dict[int, float]) -> None:
    """Held-out losses by step."""
    monkeypatch.setattr(Trainer, "held_out_loss", lambda self, whole: (losses[self.step], losses[self.step], 0.5, 0))


def read_strictly(path) -> list[dict]:
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("fields", "factor"),
    one_in(6, itertools.product([{}, {"keep_last": 1, "checkpoint_every": 1}], [math.nan, math.inf, 1e30])),
    ids=str,
)
def test_weights_that_went_off_displace_no_good_checkpoint(text, tmp_path, monkeypatch, factor, fields):
    """At 1e30 even the held-out loss is finite, that of uniform probabilities; no further step can be taken."""
    whole = start(text, tmp_path / "whole", **fields).path
    with monkeypatch.context() as patch:
        explode(patch, 8, factor)
        with pytest.raises(NumericsError, match=r"newest good checkpoint is of step \d: --resume continues from there"):
            start(text, tmp_path / "run", **fields)
    run = tmp_path / "run"
    assert best_step(run) == good_step(run) == 4
    assert steps_of(run) == [4]
    seen = diverged_steps(run)[0]  # where one is kept, a later one took its place
    assert seen in (8, 9, 10)
    assert all(math.isfinite(row["loss"]) for row in read_strictly(run / "metrics.jsonl")[:7] if "loss" in row)
    heard = Heard()
    resume(run, heard)
    assert f"training had diverged by step {seen}; continuing from step 4, the last good" in heard.text
    assert_same_run(run, whole)
    assert not diverged_steps(run)


def test_the_last_good_one_stays_beside_the_best(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        measure(patch, {4: 2.0, 8: 3.0, 12: math.nan})
        with pytest.raises(NumericsError, match="the held-out loss after step 12 is not finite; the newest good"):
            start(text, tmp_path / "run", keep_last=1)
    run = tmp_path / "run"
    assert (best_step(run), good_step(run), steps_of(run), diverged_steps(run)) == (4, 8, [4, 8], [12])
    found = [row for row in read_strictly(run / "metrics.jsonl") if "held_out_loss" in row]
    assert [row["held_out_loss"] for row in found] == [2.0, 3.0, None]
    assert [row["sample"] is None for row in rows(run) if "sample" in row] == [False, False, True]
    with pytest.raises(CheckpointError, match="has no checkpoint of step 12: say best, last, or one of the steps 4, 8"):
        named_checkpoint(run, "12")


def test_a_loss_that_is_infinite_once_does_not_end_the_run(text, tmp_path, monkeypatch):
    """Training goes on where it can, without the checkpoint that was measured."""
    measure(monkeypatch, {4: 2.0, 8: math.inf, 12: 1.5})
    heard = Heard()
    done = start(text, tmp_path / "run", heard)
    assert (done.step, done.held_out_loss, done.exit_code) == (12, 1.5, 0)
    assert steps_of(done.path) == [4, 12]
    assert "the held-out loss after step 8 is not finite: its checkpoint was set aside" in heard.text


def test_diverged_before_anything_was_good_a_run_begins_again(text, tmp_path, monkeypatch):
    whole = start(text, tmp_path / "whole").path
    with monkeypatch.context() as patch:
        explode(patch, 4, math.nan)
        with pytest.raises(NumericsError, match="no good checkpoint was saved"):
            start(text, tmp_path / "run")
    run, heard = tmp_path / "run", Heard()
    assert steps_of(run) == []
    with pytest.raises(CheckpointError, match="the checkpoint of step 4 was set aside, because training diverged"):
        named_checkpoint(run, "best")
    resume(run, heard)
    assert "continuing from the beginning, as no good checkpoint is left" in heard.text
    assert_same_run(run, whole)


def test_a_sample_of_diverged_weights_is_skipped_and_the_exit_code_is_3(text, tmp_path, monkeypatch, capsys):
    """Samples are due at a step at which nothing is measured: the sampler itself meets the weights."""
    explode(monkeypatch, 6, math.nan)
    fields = {"sample_every": 6, "evaluate_every": 4, "tokenizer": "byte"}
    heard = Heard()

    def train() -> int:
        return start_recipe(recipe_for(text, **fields), tmp_path / "run", heard, sample_text).exit_code

    monkeypatch.setitem(cli.COMMANDS, "train", train)
    assert cli.main(["train"]) == 3
    assert "no sample at step 6: the network's logits are not finite" in heard.text
    errors = capsys.readouterr().err
    assert errors.startswith("pellucid: stopped: ")
    assert len(errors.splitlines()) == 1
    assert [row["step"] for row in rows(tmp_path / "run") if "sample" in row] == [6]


def test_measured_and_interrupted_the_checkpoint_becomes_good_later(text, tmp_path, monkeypatch):
    """That a checkpoint was measured is known again when the run goes on."""
    real = Trainer.evaluate_and_sample

    def look(self: Trainer, whole: bool) -> None:
        real(self, whole)
        if self.step == 4:
            self.interruption.signal = 2

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate_and_sample", look)
        start(text, tmp_path / "run")
    assert good_step(tmp_path / "run") is None
    training = make_training(text, tmp_path / "other")
    training.run_dir, training.metrics = tmp_path / "run", MetricsFile(tmp_path / "run" / "metrics.jsonl", 4)
    training.restore(named_checkpoint(tmp_path / "run", "last"))
    training.take_step()
    training.read_figures(0)
    training.metrics.close()
    assert good_step(tmp_path / "run") == 4


numbers = st.floats() | st.integers() | st.text(max_size=3) | st.none() | st.booleans()
values = st.recursive(numbers, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))


@given(values)
def test_every_value_is_written_as_strict_json(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "metrics.jsonl"
    write_json(path.with_suffix(".json"), value)
    metrics = MetricsFile(path)
    written = metrics.write({"step": 1, "value": value})
    metrics.close()
    assert read_strictly(path) == [written] == [{"step": 1, "value": strict(value)}]
    assert json.loads(path.with_suffix(".json").read_text(), parse_constant=lambda _: pytest.fail("NaN")) == strict(
        value
    )
    kept = MetricsFile(path, 1)
    kept.close()
    assert kept.kept == [written]
