"""A run of minutes ends in time with its schedule at the floor, whatever steps take; by a clock that a test moves."""

import itertools
import json
import shutil
import statistics
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Heard, assert_same_tensors, recipe_for, resume, rows, sample_text, start, tensors

from pellucid.report.page import write_page
from pellucid.runs import pace as pace_module
from pellucid.runs import pipeline
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import best_step, folder_of, load_checkpoint, steps_of
from pellucid.runs.pace import Pace
from pellucid.runs.saver import Saver
from pellucid.runs.schedule import position, rate_factor
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
@pytest.mark.parametrize("schedule", one_in(2, ["cosine", "wsd"]))
def test_the_schedule_reaches_its_floor_when_the_time_is_over(text, tmp_path, monkeypatch, speed, schedule):
    """One minute, of which evaluations and samples are known only when they are made."""
    with monkeypatch.context() as patch:
        clock = Clock(patch, SPEEDS[speed], evaluate=0.4, sample=0.6)
        measured(patch, 0.5)
        done = start(text, tmp_path / "run", sampler=clock.sampler, minutes=1.0, schedule=schedule, **QUICK)
    assert 0.95 * 60 <= clock.seconds <= 1.05 * 60
    assert (done.exit_code, done.step) == (0, done.recipe.n_steps)
    rates = [row["learning_rate"] for row in rows(done.path) if "learning_rate" in row]
    assert rates[-1] == pytest.approx(0.01 * 5e-3)
    warm = done.recipe.segments[0][1] // 50
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(rates[warm + 1 :]))
    # no drop larger than what is left of the run explains: a line to the floor over the steps that are planned, and
    # twice as steep where a cosine ends
    ends = [(0, done.recipe.segments[0][1]), *done.recipe.replans]
    for i, (a, b) in enumerate(itertools.pairwise(rates)):
        planned = [end for step, end in ends if step <= i][-1]
        steepest = (a - 0.01 * 5e-3) / max(1, planned - 1 - i)
        assert i < warm or a - b <= {"cosine": 2, "wsd": 1}[schedule] * steepest + 1e-9
    written = json.loads((done.path / "recipe.json").read_bytes())
    assert written["segments"][0][0] == 0
    assert len(written["replans"]) <= 40
    assert (speed == "as measured") or written["replans"]


@pytest.mark.slow
def test_a_run_that_replays_the_recorded_plans_is_the_same_bit_for_bit(text, tmp_path, monkeypatch):
    """Interrupted, resumed with other speeds, killed behind a plan that was written down: then replayed in one go."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, SPEEDS["twice as long"])
        measured(patch, 0.5)
        stops = [12]
        real = Trainer.keep_pace

        def keep_pace(training):
            real(training)
            if training.step == stops[0]:
                training.interruption.signal = 2

        patch.setattr(Trainer, "keep_pace", keep_pace)
        fields = QUICK | {"minutes": 0.5, "checkpoint_every": 3, "evaluate_every": 10, "keep_last": 9}
        first = start(text, run, sampler=clock.sampler, **fields)
        assert (first.exit_code, first.step) == (130, 12)
        planned = json.loads((run / "recipe.json").read_bytes())["replans"]
        assert planned
        # as after a crash: checkpoints behind the last plan are lost, the plan is not
        for step in steps_of(run):
            if step > planned[-1][0] - 1:
                shutil.rmtree(folder_of(run, step))
        assert steps_of(run)
        stops = [0]
        clock.step = SPEEDS["half as long"]
        done = resume(run)
        assert done.exit_code == 0
        assert done.recipe.replans[: len(planned)] == tuple(map(tuple, planned))
        assert len(done.recipe.replans) > len(planned)
    written = read_recipe(run)
    assert written == replace(done.recipe, inputs=written.inputs)
    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints")
    (again / "metrics.jsonl").unlink()
    # nothing has been saved yet: the recorded plans are followed from the first step
    replayed = resume(again)
    assert (replayed.step, replayed.recipe.replans) == (done.step, done.recipe.replans)
    assert_same_tensors(tensors(again, done.step), tensors(run, done.step))
    assert rows(again) == rows(run)


def test_a_run_that_went_beyond_its_time_is_stopped_and_says_so(text, tmp_path, monkeypatch):
    """A single step that takes a minute is more than any plan can make up for."""
    whole = start(text, tmp_path / "whole").path
    heard, run = Heard(), tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, lambda seconds: 0.5 if seconds < 2 else 70.0)
        measured(patch, 0.5)
        patch.setattr(Pace, "end_of", lambda *given: 12)
        done = start(text, run, heard, clock.sampler, minutes=1.0, steps=0)
    assert (done.step, done.exit_code) == (5, 0)
    assert "the time is up: stopped after step 5 of 12; --resume continues" in heard.text
    assert [row["whole"] for row in rows(run) if "held_out_loss" in row][-1]
    assert steps_of(run)[-1] == 5
    assert resume(run).step == 12
    assert_same_tensors(tensors(run, 12), tensors(whole, 12))


def test_the_last_evaluation_is_cut_when_the_time_is_over(text, tmp_path, monkeypatch):
    """Where each batch of held-out text takes seconds, the run reads as many as fit, says so, and is done."""
    heard, run = Heard(), tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 0.5)
        measured(patch, 0.5)
        patch.setattr(trainer_module, "LEAST_EVALUATED", 1)
        real = trainable.TransformerTrainable.held_out_sums

        def held_out_sums(self, batch):
            clock.now += 4.0
            return real(self, batch)

        patch.setattr(trainable.TransformerTrainable, "held_out_sums", held_out_sums)
        done = start(text, run, heard, clock.sampler, minutes=1.0, **QUICK | {"batch": 1})
        assert clock.seconds <= 1.1 * 60
    last = [row for row in rows(run) if "held_out_loss" in row][-1]
    assert (last["step"], last["whole"], done.exit_code) == (done.recipe.n_steps, False, 0)
    assert last["cut"] > 0
    # fewer tokens than the others were measured on say nothing about which checkpoint is best
    assert last["cut"] < done.recipe.train.evaluate_tokens
    assert last["held_out_part"] is None
    assert best_step(run) != done.step
    assert f"They are too few to compare: the checkpoint of step {best_step(run)} stays the best" in heard.text
    page = write_page(run).read_text(encoding="utf-8")
    assert f"the checkpoint of step {best_step(run):,} is kept as the best, and it is loaded by default" in page
    assert f"the time was over after {last['cut']:,} of " in heard.text
    again = Heard()
    resume(run, again)
    assert "finished" in again.text


@pytest.mark.slow
def test_a_run_that_is_made_longer_by_minutes_ends_in_time(text, tmp_path, monkeypatch):
    """From where it stands, with a schedule of its own; what was planned behind that step is forgotten."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        clock = Clock(patch, 1.0)
        measured(patch, 0.5)
        first = start(text, run, sampler=clock.sampler, minutes=0.5, **QUICK)
        then = clock.now
        done = resume(run, minutes=1.0)
        assert 57 <= clock.now - then <= 63
    assert done.recipe.segments == ((0, first.recipe.segments[0][1]), (first.step, done.recipe.segments[1][1]))
    assert done.step == done.recipe.n_steps > first.step
    rates = [row["learning_rate"] for row in rows(run) if "learning_rate" in row]
    assert rates[first.step - 1] == pytest.approx(0.01 * 5e-3)
    assert rates[first.step] > 0.4 * 5e-3
    assert rates[-1] == pytest.approx(0.01 * 5e-3)


@pytest.mark.slow
def test_the_minutes_of_an_unfinished_run_given_again_are_those_it_has(text, tmp_path, monkeypatch):
    """The same command with --resume continues the schedule where it stopped; it adds no second one."""
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
        assert (done.step, done.recipe.segments) == (first.step, first.recipe.segments)
        longer = resume(run, minutes=0.3)
        shutil.rmtree(folder_of(run, longer.step))
        then = clock.now
        done = resume(run, minutes=0.3)  # those of the second schedule, which is unfinished
        assert clock.now - then < 15
        assert (done.step, done.recipe.segments) == (longer.step, longer.recipe.segments)


def test_what_is_at_most_read_so_often_does_not_become_more(text, tmp_path, monkeypatch):
    """Epochs in the place of minutes are an upper bound: quicker steps end the run earlier, slower ones in time."""
    for seconds, steps in ((0.1, 100), (1.2, 50)):
        with monkeypatch.context() as patch:
            now = [0.0]
            patch.setattr(time, "monotonic", lambda now=now: now[0])
            pace = Pace.from_now(60.0)
            pace.know(0, 100, most=100)
            pace.start(seconds)
            recipe = replace(recipe_for(text, **(QUICK | {"sample_every": -1})), segments=((0, 100),))
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
def test_whatever_steps_take_the_end_comes_in_time(total, share, speeds, wrong, evaluate):
    """Steps of any speed between a third and three times the usual one, measured wrongly by up to five times."""
    now = [0.0]
    before = pace_module.time.monotonic
    pace_module.time.monotonic = lambda: now[0]
    try:
        recipe = recipe_for("nowhere", **(QUICK | {"evaluate_every": 0, "sample_every": -1}))
        pace = Pace.from_now(total)
        pace.know(0, 0)
        pace.start(wrong * share * total)
        recipe = replace(recipe, segments=((0, pace.end_of(recipe, 0)),))
        recipe = replace(recipe, train=replace(recipe.train, evaluate_every=max(1, recipe.n_steps // 7)))
        pace.took["token"], pace.n_held_out = evaluate * total / 1000, 1000 if evaluate else 0
        step = 0
        while step < recipe.n_steps:
            step += 1
            taken = share * total * speeds[min(int(len(speeds) * now[0] / total), len(speeds) - 1)]
            now[0] += taken
            pace.stepped(taken)
            if step == recipe.n_steps or step % recipe.train.evaluate_every == 0:
                now[0] += pace.evaluation(1000 if step == recipe.n_steps else recipe.train.evaluate_tokens, recipe)
            if step < recipe.n_steps and pace.is_due(recipe, step) and (end := pace.moved_end(recipe, step)):
                recipe = replace(recipe, replans=(*recipe.replans, (step, end)))
        assert not pace.is_over
        assert abs(now[0] - total) <= 0.05 * total
        assert len(recipe.replans) <= 45
        moved = recipe.replans
        assert position(step - 1, 0, recipe.segments[0][1], moved) == pytest.approx(recipe.segments[0][1] - 1)
    finally:
        pace_module.time.monotonic = before


moves = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 80)), max_size=6)


@given(end=st.integers(2, 120), moves=moves, shape=st.sampled_from(["cosine", "linear", "wsd"]))
def test_a_moved_end_makes_no_jump_and_the_last_step_stands_at_the_end(end, moves, shape):
    """Each move is (steps later, steps that are then left)."""
    moved, step = [], 0
    for later, left in moves:
        step += later
        if step >= (moved[-1][1] if moved else end):
            break
        moved.append((step, step + left))
    last = moved[-1][1] if moved else end
    places = [position(s, 0, end, moved) for s in range(last)]
    assert all(a < b or b == end - 1 for a, b in itertools.pairwise(places))
    assert places[0] == (0 if last > 1 else end - 1)
    assert places[-1] == pytest.approx(end - 1)
    for step, _ in moved:  # where the plan before it would have put the step as well, unless it is the only one left
        before = position(step, 0, end, [m for m in moved if m[0] < step])
        assert places[step] == pytest.approx(before) or step == last - 1 or places[step] == end - 1
    rates = [rate_factor(p, end, shape=shape, warmup=0, floor=0.1) for p in places]
    assert rates[-1] == pytest.approx(0.1 if end > 2 or shape == "cosine" else rates[-1])
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(rates))


@given(start_=st.integers(0, 1000), n=st.integers(1, 10_000), step=st.integers(0, 9_999))
def test_a_schedule_that_was_never_moved_is_to_the_bit_what_it_was(start_, n, step):
    if step < n:
        assert position(start_ + step, start_, start_ + n) == start_ + step


def test_the_hard_stop_is_a_tenth_beyond(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace.from_now(60.0)
    for after, over in ((59.0, False), (65.9, False), (66.1, True)):
        now = 1000.0 + after
        assert pace.is_over is over


@pytest.mark.parametrize(("can_sample", "every", "seconds"), [(True, 0, 0.4), (True, -1, 0.0), (False, 0, 0.0)])
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
    assert (done.step, done.recipe.replans) == (planned.n_steps, planned.replans)
