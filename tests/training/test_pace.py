"""A run of minutes keeps its learning rate until the time says that it falls; by a clock that a test moves."""

import json
import math
import shutil
import statistics
import time
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import Heard, assert_same_tensors, recipe_for, resume, rows, sample_text, start, tensors

from pellucid.report.page import write_page
from pellucid.runs import pace as pace_module
from pellucid.runs import pipeline
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import best_loss, best_step, folder_of, load_checkpoint, named_checkpoint, steps_of
from pellucid.runs.options import with_record
from pellucid.runs.pace import AVERAGED_SHARE, Pace
from pellucid.runs.saver import Saver
from pellucid.runs.schedule import DECAY_SHARE, decay_of, rate_factor
from pellucid.runs.trainer import Trainer
from pellucid.training import trainable
from pellucid.training.load import read_recipe
from some_cases import one_in

QUICK = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 8, "ngrams": (), "accumulate": 1, "steps": 0}


class Clock:
    """time.monotonic for everything, moved by steps, evaluations and samples; a checkpoint is written in no time."""

    def __init__(self, patch, step, evaluate=0.0, sample=0.0):
        self.now, self.began = 1000.0, 1000.0
        self.step = step if callable(step) else lambda seconds: step
        real, judge, write = Trainer.take_step, Trainer.held_out_loss, Saver.start

        def start_and_wait(saver, *given):
            write(saver, *given)
            saver.wait()  # steps taken beside a slow disk would move the clock, and count as time of writing

        def take_step(training):
            real(training)
            self.now += self.step(self.now - self.began)

        def held_out_loss(training, whole):
            self.now += evaluate * (5 if whole else 1)
            return judge(training, whole)

        def sampler(*given):
            self.now += sample
            return sample_text(*given)

        self.sampler = sampler
        patch.setattr(time, "monotonic", lambda: self.now)
        # until one was made, an evaluation is taken to be a share of a step's time for each token
        patch.setattr(pace_module, "STEP_TO_FORWARD", 1e9)
        patch.setattr(Saver, "start", start_and_wait)
        patch.setattr(Trainer, "take_step", take_step)
        patch.setattr(Trainer, "held_out_loss", held_out_loss)

    @property
    def seconds(self):
        return self.now - self.began


def stop_at(patch, steps):
    """A signal comes after each of these steps."""
    real = Trainer.keep_pace

    def keep_pace(training):
        real(training)
        if training.step in steps:
            training.interruption.signal = 2

    patch.setattr(Trainer, "keep_pace", keep_pace)


def measured(patch, seconds):
    """What a step seems to take before the first one."""
    for module in (pipeline, trainable):
        patch.setattr(module, "measure_step", lambda *given: seconds)


SPEEDS = {
    "as measured": lambda seconds: 0.5,
    "twice as long": lambda seconds: 1.0,
    "half as long": lambda seconds: 0.25,
    "three times as long in the second half": lambda seconds: 0.5 if seconds < 30 else 1.5,
    "three times as long in the first half": lambda seconds: 1.5 if seconds < 30 else 0.5,
    "with pauses": lambda seconds: 0.5 + 3.0 * (int(seconds) % 13 == 0),
}


def test_steps_that_a_gpu_was_only_given_count_as_long_as_they_take():
    """After a save four steps are given in no time, and a later save waits for the last ones."""
    pace = Pace.from_now(1e6)  # so long that no step is forgotten
    pace.start(2.0)
    for _ in range(3):
        for seconds in (0.0, 0.0, 0.0, 0.0, 2.0, 2.0):
            pace.stepped(seconds)
        pace.waited(8.0)
    assert pace.per_step == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("speed", one_in(4, SPEEDS))
@pytest.mark.parametrize("schedule", one_in(2, ["wsd", "constant"]))
def test_the_rate_stays_until_the_time_that_is_left_is_that_of_the_decay(text, tmp_path, monkeypatch, speed, schedule):
    """One minute, of which evaluations and samples are known only when they are made."""
    with monkeypatch.context() as patch:
        clock = Clock(patch, SPEEDS[speed], evaluate=0.4, sample=0.6)
        measured(patch, 0.5)
        done = start(text, tmp_path / "run", sampler=clock.sampler, minutes=1.0, schedule=schedule, **QUICK)
    first, end = done.recipe.record.decay
    assert json.loads((done.path / "recipe.json").read_bytes())["record"]["decay"] == [first, end]
    # what becomes slower while the rate falls is late, and stopped where that is too much
    if not (is_slow := "second half" in speed and schedule == "wsd"):
        assert 0.9 * 60 <= clock.seconds <= 1.1 * 60
        assert (done.exit_code, done.step) == (0, done.recipe.n_steps)
    rates = [row["learning_rate"] for row in rows(done.path) if "learning_rate" in row]
    peak = 5e-3
    assert rates[done.recipe.train.warmup : first] == [peak] * (first - done.recipe.train.warmup)
    assert rates == [
        peak * rate_factor(i, (first, end), shape=schedule, warmup=done.recipe.train.warmup, floor=0.01)
        for i in range(len(rates))
    ]
    if schedule == "wsd":
        # it is asked after each step, which may have been a long one
        assert 0.6 * DECAY_SHARE * end <= end - first <= DECAY_SHARE * end + 1
        assert first in steps_of(done.path)
        assert is_slow or rates[-1] == pytest.approx(0.01 * peak)


@pytest.mark.slow
def test_a_run_of_minutes_that_was_interrupted_in_its_decay_ends_the_same(text, tmp_path, monkeypatch):
    """The decay is in recipe.json before its first step is taken, so that steps taken again have the same rates."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, SPEEDS["as measured"])
        measured(patch, 0.5)
        fields = QUICK | {"minutes": 0.5, "checkpoint_every": 3, "evaluate_every": 10, "keep_last": 9}
        done = start(text, run, sampler=clock.sampler, **fields)
        first, end = done.recipe.record.decay
        whole, lines = tensors(run, end), rows(run)
        # as after a crash: what was saved from the decay on is lost
        assert steps_of(run)[0] < first
        for step in steps_of(run):
            if step >= first:
                shutil.rmtree(folder_of(run, step))
        clock.step = SPEEDS["half as long"]
        again = resume(run)
    assert (again.step, again.recipe.record.decay) == (end, (first, end))
    assert_same_tensors(tensors(run, end), whole)
    assert [row.get("learning_rate") for row in rows(run)] == [row.get("learning_rate") for row in lines]


def test_a_run_that_went_beyond_its_time_is_stopped_and_says_so(text, tmp_path, monkeypatch):
    """A single step that takes a minute is more than any plan can make up for."""
    whole = start(text, tmp_path / "whole").path
    heard, run = Heard(), tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, lambda seconds: 0.5 if seconds < 2 else 70.0)
        measured(patch, 0.5)
        patch.setattr(Pace, "end_of", lambda *given: 12)
        patch.setattr(Pace, "decay_from", lambda *given: decay_of("wsd", 12, 0))
        done = start(text, run, heard, clock.sampler, minutes=1.0, steps=0)
    assert (done.step, done.exit_code) == (5, 0)
    assert "the time is up: stopped after step 5 of 12; --resume continues" in heard.text
    assert [row["whole"] for row in rows(run) if "held_out_loss" in row][-1]
    assert steps_of(run)[-1] == 5
    assert resume(run).step == 12
    assert_same_tensors(tensors(run, 12), tensors(whole, 12))


@pytest.mark.parametrize("evaluate_every", [None, 100_000])
def test_the_last_evaluation_is_cut_when_the_time_is_over(text, tmp_path, monkeypatch, evaluate_every):
    """Where each batch of held-out text takes seconds, the run reads as many as fit, says so, and is done. A run with
    no other evaluation takes its last step for the best, without a warning.
    """
    heard, run = Heard(), tmp_path / "run"
    every = {} if evaluate_every is None else {"evaluate_every": evaluate_every}
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        measured(patch, 0.5)
        patch.setattr(trainer_module, "LEAST_EVALUATED", 1)
        real = trainable.TransformerTrainable.held_out_sums

        def held_out_sums(self, batch):
            clock.now += 4.0
            return real(self, batch)

        patch.setattr(trainable.TransformerTrainable, "held_out_sums", held_out_sums)
        done = start(text, run, heard, clock.sampler, minutes=1.0, **QUICK | {"batch": 1} | every)
        assert clock.seconds <= 1.1 * 60
    last = [row for row in rows(run) if "held_out_loss" in row][-1]
    assert (last["step"], last["whole"], done.exit_code) == (done.recipe.n_steps, False, 0)
    assert last["cut"] > 0
    # fewer tokens than the others were measured on say nothing about which checkpoint is best
    assert last["cut"] < done.recipe.train.evaluate_tokens
    assert last["held_out_part"] is None
    if evaluate_every:
        assert best_step(run) == done.step == named_checkpoint(run, "best").step
        assert math.isinf(best_loss(run))
        assert "too few to compare" not in heard.text
        assert "is kept as the best" not in write_page(run).read_text(encoding="utf-8")
        return
    assert best_step(run) != done.step
    assert f"They are too few to compare: the checkpoint of step {best_step(run)} stays the best" in heard.text
    page = write_page(run).read_text(encoding="utf-8")
    assert f"the checkpoint of step {best_step(run):,} is kept as the best, and it is loaded by default" in page
    assert f"was over after {last['cut']:,} of " in heard.text
    again = Heard()
    resume(run, again)
    assert "finished" in again.text


@pytest.mark.parametrize("warmup", [2, 10_000])
def test_a_run_of_minutes_that_ends_within_its_warm_up_is_done_in_time(text, tmp_path, monkeypatch, warmup):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 0.5)
        done = start(text, run, sampler=clock.sampler, minutes=0.5, **QUICK | {"warmup": warmup})
        assert 24 <= clock.seconds <= 31
        assert done.recipe.is_last(done.step)
        assert done.recipe.record.decay == (done.recipe.record.decay[0] if warmup == 2 else done.step, done.step)
        longer = resume(run, minutes=1.0)
    assert longer.step > done.step + 30
    rates = [row["learning_rate"] for row in rows(run) if "learning_rate" in row]
    assert rates[:5] == pytest.approx([5e-3 * min((step + 1) / warmup, 1) for step in range(5)])


def test_a_run_that_is_made_longer_by_minutes_is_saved_on_the_way(text, tmp_path, monkeypatch):
    """Its intervals are those of its new length: a run of seconds is saved at its end, one of an hour ten times."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 1.0)
        first = start(text, run, sampler=clock.sampler, **QUICK | {"minutes": 0.3, "evaluate_every": None})
        assert first.recipe.train.checkpoint_every >= first.step
        patch.setattr(pipeline, "train_to_end", lambda *given: None)
        resume(run, minutes=60.0)
    longer = read_recipe(run)
    assert longer.record.planned == pytest.approx(3600, rel=0.05)
    assert longer.train.checkpoint_every == longer.train.evaluate_every == -(-longer.record.planned // 10)
    assert longer.train.minutes == 0.3


def test_a_run_of_minutes_that_is_given_its_expected_number_of_steps_has_no_clock_any_more(text, tmp_path, monkeypatch):
    """That number is what it shows when it is stopped; steps that take longer are taken all the same."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 1.0)
        stop_at(patch, [5])
        first = start(text, run, sampler=clock.sampler, **QUICK | {"minutes": 0.5})
        assert (first.step, first.recipe.record.decay) == (5, None)
        expected = first.recipe.record.planned
        clock.step = lambda seconds: 60.0
        done = resume(run, steps=expected)
    assert (done.step, done.recipe.record.decay) == (expected, decay_of("wsd", expected, done.recipe.train.warmup))


def test_the_last_evaluation_of_a_run_of_minutes_that_became_one_of_steps_is_its_share(text, tmp_path, monkeypatch):
    run, heard = tmp_path / "run", Heard()
    for module in (pace_module, trainer_module):
        monkeypatch.setattr(module, "LEAST_EVALUATED", 16)
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 1.0)
        first = start(text, run, sampler=clock.sampler, **QUICK | {"minutes": 0.5, "batch": 1, "evaluate_tokens": 16})
    resume(run, heard, steps=first.step + 4)
    last = [row for row in rows(run) if "held_out_loss" in row][-1]
    assert not last["whole"]
    assert f"the last evaluation read {last['cut']} of 401 held-out tokens, its share of the run" in heard.text


def test_a_run_of_steps_that_was_made_longer_by_minutes_and_stopped_uses_all_of_them(text, tmp_path, monkeypatch):
    """Steps that take less time than expected are more, before the stop and after it."""
    run = start(text, tmp_path / "run", **QUICK | {"steps": 4}).path
    with monkeypatch.context() as patch:
        Clock(patch, 0.5)
        stops = [20]
        measured(patch, 2.0)
        stop_at(patch, stops)
        assert resume(run, minutes=1.0).exit_code == 130
        stops.clear()
        done = resume(run)
    assert done.step > 100 > read_recipe(run).record.planned


@pytest.mark.slow
def test_a_run_that_is_made_longer_by_minutes_ends_in_time(text, tmp_path, monkeypatch):
    """From before its decay, at the full rate, until the further minutes are over but for another decay."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 0.5)
        first = start(text, run, sampler=clock.sampler, minutes=0.5, **QUICK)
        then = clock.now
        done = resume(run, minutes=1.0)
        assert 55 <= clock.now - then <= 66
    assert done.step == done.recipe.n_steps > first.step
    assert done.recipe.record.decay[0] > first.recipe.record.decay[0]
    rates = [row["learning_rate"] for row in rows(run) if "learning_rate" in row]
    assert rates[first.recipe.record.decay[0] : done.recipe.record.decay[0]] == [5e-3] * (
        done.recipe.record.decay[0] - first.recipe.record.decay[0]
    )
    assert rates[-1] == pytest.approx(0.01 * 5e-3)


@pytest.mark.slow
def test_the_minutes_of_an_unfinished_run_given_again_are_those_it_has(text, tmp_path, monkeypatch):
    """The same command with --resume goes on where the run was stopped, and makes it no longer."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 0.5)
        first = start(text, run, sampler=clock.sampler, minutes=0.5, **QUICK | {"checkpoint_every": 5})
        for step in steps_of(run):
            if step == first.step:
                shutil.rmtree(folder_of(run, step))
        then = clock.now
        done = resume(run, minutes=0.5)
        assert clock.now - then < 15
        assert (done.step, done.recipe.record.decay) == (first.step, first.recipe.record.decay)
        longer = resume(run, minutes=0.3)
        shutil.rmtree(folder_of(run, longer.step))
        then = clock.now
        done = resume(run, minutes=0.3)  # those that it was made longer by, which are not over
        assert clock.now - then < 15
        assert (done.step, done.recipe.record.decay) == (longer.step, longer.recipe.record.decay)


def test_what_is_at_most_read_so_often_does_not_become_more(text, tmp_path, monkeypatch):
    """Epochs in the place of minutes are an upper bound: quicker steps end the run earlier, slower ones in time."""
    for seconds, steps in ((0.1, 100), (1.2, 50)):
        with monkeypatch.context() as patch:
            now = [0.0]
            patch.setattr(time, "monotonic", lambda now=now: now[0])
            pace = Pace.from_now(60.0)
            pace.know(0, 100, most=100)
            pace.start(seconds)
            recipe = with_record(recipe_for(text, **(QUICK | {"sample_every": 0})), planned=100)
            end = pace.end_of(recipe, 0)
            assert end == pytest.approx(steps, abs=2)
            assert end <= 100


@settings(max_examples=60)
@given(
    total=st.floats(10, 1000),
    share=st.floats(1e-4, 0.005),
    speeds=st.lists(st.floats(0.3, 3.0), min_size=1, max_size=8),
    wrong=st.floats(0.2, 5.0),
    evaluate=st.floats(0.0, 0.02),
)
@example(total=10.0, share=0.0039, speeds=[0.375, 0.375, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], wrong=1.0, evaluate=0.0)
def test_whatever_steps_took_before_the_decay_the_end_comes_in_time(total, share, speeds, wrong, evaluate):
    """Steps of any speed between a third and three times the usual one, measured wrongly by up to five times.

    The end comes in time where the speed stays the same from three times the span of its average before the decay on.
    """
    now = [0.0]
    before = pace_module.time.monotonic
    pace_module.time.monotonic = lambda: now[0]
    try:
        recipe = recipe_for("nowhere", **(QUICK | {"evaluate_every": None, "sample_every": 0}))
        pace = Pace.from_now(total)
        pace.know(0, 0)
        pace.start(wrong * share * total)
        recipe = with_record(recipe, planned=pace.end_of(recipe, 0))
        every = max(1, recipe.n_steps // 7)
        recipe = replace(recipe, train=replace(recipe.train, evaluate_every=every, warmup=0))
        pace.took["token"], pace.n_held_out = evaluate * total / 1000, 1000 if evaluate else 0
        step, began = 0, math.inf
        while not recipe.is_last(step):
            step += 1
            taken = share * total * speeds[min(int(len(speeds) * now[0] / total), len(speeds) - 1)]
            now[0] += taken
            pace.stepped(taken)
            if recipe.is_last(step) or step % recipe.train.evaluate_every == 0:
                now[0] += pace.evaluation(1000 if recipe.is_last(step) else recipe.train.evaluate_tokens, recipe)
            if not recipe.record.decay and (decay := pace.decay_from(recipe, step)):
                recipe, began = with_record(recipe, decay=decay), now[0]
        # the end was right by the speed of steps when the decay began; steps of the last decay may be others
        assert recipe.record.decay[1] - recipe.record.decay[0] == pytest.approx(
            DECAY_SHARE * recipe.record.decay[1], abs=0.02 * step + 2
        )
        settled = max(0.0, began - 3 * AVERAGED_SHARE * total)
        at = min(int(len(speeds) * settled / total), len(speeds) - 1)
        if len({*speeds[at:]}) == 1:
            assert abs(now[0] - total) <= 0.06 * total
    finally:
        pace_module.time.monotonic = before


def test_the_hard_stop_is_a_tenth_beyond(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace.from_now(60.0)
    for after, over in ((59.0, False), (65.9, False), (66.1, True)):
        now = 1000.0 + after
        assert pace.is_over is over


@pytest.mark.parametrize(("can_sample", "every", "seconds"), [(True, None, 0.4), (True, 0, 0.0), (False, None, 0.0)])
def test_no_time_is_kept_for_samples_that_are_not_written(can_sample, every, seconds):
    pace = Pace.from_now(60.0)
    pace.know(0, 0, can_sample=can_sample)
    assert pace.sample(recipe_for("nowhere", **(QUICK | {"sample_every": every}))) == seconds


def test_a_held_out_token_takes_what_it_takes_in_the_median_batch(text, tmp_path, monkeypatch):
    """Not in the quickest, by which the last evaluation would be cut, nor in those beside a checkpoint's thread."""
    seconds = iter([9.0, 3.0, 2.0, 5.0, 4.0] * 1000)
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        measured(patch, 0.5)
        real, made = trainable.TransformerTrainable.held_out_sums, []

        def held_out_sums(self, batch):
            clock.now += next(seconds) * batch.inputs.numel() / 1e6
            return real(self, batch)

        patch.setattr(trainable.TransformerTrainable, "held_out_sums", held_out_sums)
        patch.setattr(Pace, "end_of", lambda self, recipe, step: made.append(self) or 3)
        patch.setattr(Pace, "decay_from", lambda *given: (2, 3))
        fields = QUICK | {"batch": 1, "evaluate_every": 3, "evaluate_tokens": 40}
        start(text, tmp_path / "run", Heard(), clock.sampler, minutes=1.0, **fields)
    n_batches = -(-made[0].n_held_out // 8)
    expected = sorted(([9.0, 3.0, 2.0, 5.0, 4.0] * 1000)[:n_batches])
    assert made[0].took["token"] == pytest.approx(statistics.median(expected) / 1e6, rel=1e-3)


@pytest.mark.parametrize(("left", "micros"), [(2, 2.0), (0, 9.0)])
def test_batches_beside_a_checkpoint_that_is_being_written_do_not_count(text, tmp_path, monkeypatch, left, micros):
    """Even where they are most of them; where they are all, the quickest counts."""
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        measured(patch, 0.5)
        real, made, n_read = trainable.TransformerTrainable.held_out_sums, [], [0]

        def is_writing(saver=None):
            return n_read[0] < -(-made[0].n_held_out // 8) - left

        def held_out_sums(self, batch):
            clock.now += (9.0 + n_read[0] if is_writing() else 2.0) * batch.inputs.numel() / 1e6
            n_read[0] += 1
            return real(self, batch)

        patch.setattr(trainable.TransformerTrainable, "held_out_sums", held_out_sums)
        patch.setattr(Saver, "is_writing", property(is_writing))
        patch.setattr(Pace, "end_of", lambda self, recipe, step: made.append(self) or 3)
        patch.setattr(Pace, "decay_from", lambda *given: (2, 3))
        fields = QUICK | {"batch": 1, "evaluate_every": 3, "evaluate_tokens": 40}
        start(text, tmp_path / "run", Heard(), clock.sampler, minutes=1.0, **fields)
    assert made[0].took["token"] == pytest.approx(micros / 1e6, rel=1e-3)


def test_a_run_made_longer_and_killed_at_once_keeps_its_new_length(text, tmp_path, monkeypatch):
    """Its newest checkpoint has the few seconds that the shorter run had left, which say nothing about the longer."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        measured(patch, 0.5)
        first = start(text, run, sampler=clock.sampler, **QUICK | {"minutes": 0.5})
    assert load_checkpoint(run, first.step)[0].state["seconds_left"] > 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", lambda training: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            resume(run, steps=first.step + 60)
    planned = read_recipe(run)
    assert planned.n_steps > first.step + 50
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        done = resume(run)
    assert (done.step, done.recipe.record.decay) == (planned.n_steps, planned.record.decay)


def test_a_stopped_run_of_minutes_that_is_given_more_and_killed_at_once_has_another_clock(text, tmp_path, monkeypatch):
    """Its decay had not begun, so that nothing but the expected number of steps tells the two lengths apart."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock, stops = Clock(patch, 1.0), [5]
        measured(patch, 1.0)
        stop_at(patch, stops)
        first = start(text, run, sampler=clock.sampler, **QUICK | {"minutes": 0.5})
        assert (first.exit_code, first.recipe.record.decay) == (130, None)
        patch.setattr(Trainer, "take_step", lambda training: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            resume(run, minutes=2.0)
    expected = read_recipe(run).record.planned
    assert expected > 100
    heard = Heard()
    with monkeypatch.context() as patch:
        Clock(patch, 1.0)
        assert resume(run, heard).step == expected
    assert f"it ends after {expected} steps, however long they take" in heard.text
