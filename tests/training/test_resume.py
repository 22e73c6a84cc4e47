"""A run that was interrupted, killed or made longer is, bit for bit, the run that was not."""

import errno
import itertools
import json
import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from kinds import KINDS, OBJECTIVES, WITH_ADAMW
from kinds import STEPS as STEPS_OF_KINDS
from tests.some_cases import one_in
from tiny import (
    FIELDS,
    Heard,
    assert_same_run,
    assert_same_tensors,
    forked,
    recipe_for,
    resume,
    rows,
    sample_text,
    start,
    start_recipe,
    tensors,
    write_text,
)

import pellucid
from pellucid import cli, destination
from pellucid.conversion import read_model
from pellucid.report.page import write_page
from pellucid.runs import pace, pipeline
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import (
    best_step,
    folder_of,
    load_checkpoint,
    mark_best,
    mark_good,
    mark_needed,
    named_checkpoint,
    prune,
    steps_of,
    verify_files,
)
from pellucid.runs.options import INTERVALS, RecipeError
from pellucid.runs.run_dir import training_lock
from pellucid.runs.schedule import decay_of
from pellucid.runs.trainer import Trainer
from pellucid.training import resolve_recipe as resolve
from pellucid.training.config import Base
from pellucid.training.load import keep_base, load_run, read_recipe

STEPS = 20


@pytest.mark.parametrize("kind", one_in(3, [*KINDS, *OBJECTIVES, WITH_ADAMW]), ids=lambda kind: kind.name)
def test_interrupted_after_any_step_a_run_of_any_kind_ends_the_same(whole_runs, tmp_path, monkeypatch, kind):
    real, stops = Trainer.take_step, [2, 5, 8, 11]

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step == stops[0]:
            self.interruption.signal = signal.SIGINT

    monkeypatch.setattr(Trainer, "take_step", take_step)
    run, source = tmp_path / "run", kind.write_input(tmp_path)
    for number, stop in enumerate((2, 5, 8, 11)):
        stops[0] = stop
        done = kind.resume(run) if number else kind.start(source, run)
        assert (done.step, done.exit_code) == (stop, 130)
        assert steps_of(run)[-1] == stop
    stops[0] = 0
    assert kind.resume(run).exit_code == 0
    assert_same_run(run, whole_runs(kind))


@pytest.mark.parametrize("kind", one_in(6, KINDS), ids=lambda kind: kind.name)
def test_killed_at_a_save_a_run_of_any_kind_ends_the_same(whole_runs, tmp_path, kind):
    """Before the first checkpoint, between two, and when one has its files and not yet its name."""
    run, source = tmp_path / "run", kind.write_input(tmp_path)

    def go(killed_at: int) -> int:
        real = trainer_module.write_checkpoint

        def write_checkpoint(run_dir, saved, processes):
            if saved.step == killed_at:
                os.rename = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
            return real(run_dir, saved, processes)

        trainer_module.write_checkpoint = write_checkpoint
        return (kind.resume(run) if run.exists() else kind.start(source, run)).exit_code

    for killed_at in (4, 8, 12):
        code, _, errors = forked(lambda at=killed_at: go(at), tmp_path)
        assert code == -signal.SIGKILL, errors
        assert steps_of(run) == [step for step in (4, 8) if step < killed_at]
    assert kind.resume(run).step == STEPS_OF_KINDS
    assert_same_run(run, whole_runs(kind))


@pytest.mark.parametrize("kind", one_in(3, KINDS), ids=lambda kind: kind.name)
def test_a_finished_run_of_any_kind_stays_as_it_is_or_is_made_longer(whole_runs, tmp_path, capsys, kind):
    run, source = tmp_path / "run", kind.write_input(tmp_path)
    shutil.copytree(whole_runs(kind), run)
    written = json.loads((run / "recipe.json").read_bytes())
    written["options"]["inputs"] = [str(source)]
    (run / "recipe.json").write_text(json.dumps(written, indent=1) + "\n")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "report.html"}
    whole_loss = [row for row in rows(run) if "held_out_loss" in row][-1]["held_out_loss"]
    for length in ({}, {"steps": 12}):
        again = kind.resume(run, show=True, **length)
        assert "is at step 12 of 12: finished" in capsys.readouterr().out
        assert (again.step, again.held_out_loss, again.exit_code) == (12, whole_loss, 0)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "report.html"} == before
    with pytest.raises(RecipeError, match="has 12 steps already"):
        kind.resume(run, steps=11)
    assert kind.resume(run, steps=14).step == 14
    first, end = json.loads((run / "recipe.json").read_bytes())["record"]["decay"]
    assert (first, end) == decay_of("wsd", 14, written["options"]["train"]["warmup"])


def test_killed_at_any_moment_it_ends_the_same(text, tmp_path):
    rng, whole = random.Random(1), start(text, tmp_path / "whole", steps=STEPS).path
    run, longest, found = tmp_path / "run", 0.25, []
    for attempt in range(30):
        go = (lambda: start(text, run, steps=STEPS).exit_code) if not run.exists() else (lambda: resume(run).exit_code)
        code, _, errors = forked(go, tmp_path, kill_after=rng.uniform(0.02, longest))
        assert code in (-signal.SIGKILL, 0), errors
        assert all(not verify_files(folder_of(run, step)) for step in steps_of(run))
        found.append((steps_of(run) or [0])[-1])
        if attempt >= 9 and (max(found) > 0 or code == 0):
            break
        longest *= 1 if max(found) else 1.2  # a slow machine has saved nothing yet
    assert max(found) > 0
    assert (resume(run) if run.exists() else start(text, run, steps=STEPS)).step == STEPS
    assert_same_run(run, whole)


def kill_at(n: int) -> None:
    """From here on, this process dies when it writes (half-way), flushes or renames for the n-th time."""
    count = itertools.count()

    def dying(real):
        def call(*given, **named):
            if next(count) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            # without power failing, flushing changes nothing but the time this takes
            return None if real is fsync else real(*given, **named)

        return call

    class Dying:
        def __init__(self, path, mode):
            self.file = open(path, mode)  # noqa: SIM115

        def write(self, content):
            if next(count) == n:
                self.file.write(content[: len(content) // 2])
                self.file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return self.file.write(content)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

    fsync = os.fsync
    for name in ("fsync", "rename", "replace", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    destination.open = lambda path, mode: (Dying if "w" in mode else open)(path, mode)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_killed_at_every_write_flush_and_rename_it_ends_the_same(tmp_path):
    """Every point at which the folder's state on disk changes, from its making to the last save and its pruning."""
    text = write_text(tmp_path, 800)
    small = {"n_layers": 1, "d_model": 8, "n_ctx": 8, "steps": 2, "evaluate_every": 1, "keep_last": 1}
    whole = start(text, tmp_path / "whole", **small).path
    run, n = tmp_path / "run", 0
    while True:

        def go(n=n) -> int:
            kill_at(n)
            return start(text, run, **small).exit_code

        code, _, errors = forked(go, tmp_path)
        if code == 0:
            break
        assert code == -signal.SIGKILL, errors
        assert all(not verify_files(folder_of(run, step)) for step in steps_of(run))
        if run.exists():  # whole from the moment it has its name
            there = {p.name for p in run.iterdir()}
            assert there >= {"recipe.json", "architecture.json", "data.json", "tokenizer.json"}
            assert resume(run).exit_code == 0
            assert_same_run(run, whole)
            assert not list((run / "checkpoints").glob("*.writing"))
        shutil.rmtree(run, ignore_errors=True)
        n += 1
    assert n > 40


def test_no_acknowledged_save_is_lost(text, tmp_path):
    """What was the newest checkpoint before a kill is there after it."""
    run = start(text, tmp_path / "run", steps=4, evaluate_every=2, schedule="constant").path
    before = tensors(run, 4)
    for n in range(0, 9, 2):

        def go(n=n) -> int:
            kill_at(n)
            return resume(run, steps=6).exit_code

        assert forked(go, tmp_path)[0] == -signal.SIGKILL
        assert load_checkpoint(run)[0].step == 4
        assert_same_tensors(tensors(run, 4), before)


def test_metrics_cut_short_by_a_crash_are_mended(text, tmp_path):
    whole = start(text, tmp_path / "whole").path
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(folder_of(run, 12))
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 13, "loss": 2.\0\0\xff\n17\n{"a": 1}\n{"step": 1')
    resume(run)
    assert_same_run(run, whole)


def test_nothing_is_cut_from_the_metrics_before_a_newer_checkpoint_is_saved(text, tmp_path, monkeypatch):
    whole = start(text, tmp_path / "whole", keep_last=5).path
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    shutil.copytree(whole, run)
    for step in (8, 12):
        shutil.rmtree(folder_of(run, step))
    before, taken = metrics.read_bytes(), Trainer.take_step

    def die_at(step: int):
        def take_step(self: Trainer) -> None:
            if self.step == step:
                raise KeyboardInterrupt
            taken(self)

        return take_step

    for step in (4, 7):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "take_step", die_at(step))
            patch.setattr(trainer_module, "LAG", 0)
            with pytest.raises(KeyboardInterrupt):
                resume(run)
        assert metrics.read_bytes().startswith(before)
        # whoever looks sees the steps that were taken last
        assert rows(run) == (rows(whole) if step == 4 else [row for row in rows(whole) if row["step"] <= 7])
    resume(run)
    assert_same_run(run, whole)
    assert len(metrics.read_bytes().splitlines()) == len(before.splitlines())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lines: [*lines[:2], b"\0\xff", *lines[2:]], "1 line of metrics.jsonl cannot be read and stay"),
        (lambda lines: [*lines[:2], *lines[4:]], "no line of 2 steps that the run has taken, from step 3 on"),
        (lambda lines: [], "no line of 12 steps that the run has taken, from step 1 on"),
        (lambda lines: None, "metrics.jsonl is missing: the lines of the first 12 steps are lost"),
    ],
    ids=["a line that is none", "cut in the middle", "emptied", "deleted"],
)
def test_damage_of_the_metrics_is_said_and_nothing_of_them_is_dropped(text, tmp_path, spoil, said):
    run = start(text, tmp_path / "run", schedule="constant").path
    metrics = run / "metrics.jsonl"
    spoiled = spoil(metrics.read_bytes().splitlines())
    metrics.unlink() if spoiled is None else metrics.write_bytes(b"".join(line + b"\n" for line in spoiled))
    heard = Heard()
    resume(run, heard, steps=16)
    assert any(line.startswith("warning: ") and said in line for line in heard.lines), heard.text
    assert metrics.read_bytes().splitlines()[: len(spoiled or ())] == (spoiled or [])
    assert [row["step"] for row in rows(run) if "learning_rate" in row][-4:] == [13, 14, 15, 16]


# Longer -----------------------------------------------------------------------------------------


def test_a_longer_run_goes_on_from_before_the_decay_and_is_the_one_that_was_so_long_from_its_start(text, tmp_path):
    run = start(text, tmp_path / "run", warmup=2).path
    first, _ = decay_of("wsd", 12, 2)
    assert json.loads((run / "recipe.json").read_bytes())["record"]["decay"] == [first, 12]
    assert first in steps_of(run)
    with pytest.raises(RecipeError, match="has 12 steps already"):
        resume(run, steps=11)
    heard = Heard()
    assert resume(run, heard, steps=20).step == 20
    assert f"going on from step {first}, before the learning rate fell" in heard.text
    assert json.loads((run / "recipe.json").read_bytes())["record"]["decay"] == list(decay_of("wsd", 20, 2))
    whole = start(text, tmp_path / "whole", steps=20, warmup=2).path
    assert_same_tensors(tensors(run, 20), tensors(whole, 20))
    assert [row["step"] for row in rows(run) if "learning_rate" in row] == list(range(1, 21))
    rates = [row["learning_rate"] for row in rows(run) if "learning_rate" in row]
    assert rates == [row["learning_rate"] for row in rows(whole) if "learning_rate" in row]
    assert rates[-1] == pytest.approx(5e-5)


def test_until_a_longer_run_is_better_the_best_checkpoint_of_the_shorter_one_is_loaded(text, tmp_path, monkeypatch):
    run = start(text, tmp_path / "run").path
    shorter, about, (first, _) = tensors(run, 12), read_model(run).about, decay_of("wsd", 12, 0)
    mark_best(run, 12, 0.5)  # better than whatever follows
    real, stop_at = Trainer.take_step, 14

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step == stop_at:
            self.interruption.signal = signal.SIGINT

    monkeypatch.setattr(Trainer, "take_step", take_step)
    assert resume(run, steps=30).exit_code == 130
    assert steps_of(run)[-1] == 14
    for checkpoint, step in (("best", 12), ("last", 14), ("14", 14)):
        assert named_checkpoint(run, checkpoint).step == step
    found = named_checkpoint(run, "best").weights
    assert_same_tensors(dict(found), {name: values for name, values in shorter.items() if name in found})
    stop_at = 0
    assert resume(run).step == 30
    assert named_checkpoint(run, "best").step == 12
    # and what is said of it is what was measured of it, not of step 12 of the longer run
    assert read_model(run).about["losses"] == about["losses"]
    assert read_model(run).about["training"] == about["training"] | {"last_step": 30}
    assert read_model(run, checkpoint="last").about["losses"]["loss"] == rows(run)[-3]["loss"]
    last = rows(run)[-2]["held_out_part"]
    said = f"The best checkpoint is that of step 12, whose held-out loss was lower by {last - 0.5:.4f} nats per token"
    assert said in write_page(run).read_text(encoding="utf-8")
    mark_best(run, 30, 0.4)
    prune(run, 2, first)
    assert named_checkpoint(run, "best").step == 30
    assert not list((run / "checkpoints").glob("*.shorter"))


def test_a_run_that_is_killed_while_it_is_made_longer_loses_nothing(text, tmp_path, monkeypatch):
    """Its best checkpoint has its new name, and recipe.json the former length."""
    run = start(text, tmp_path / "run").path
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_json", lambda *given: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            resume(run, steps=20)
    assert named_checkpoint(run, "best").step == 12
    assert resume(run).step == 12
    assert resume(run, steps=20).step == 20
    assert_same_tensors(tensors(run, 20), tensors(start(text, tmp_path / "whole", steps=20).path, 20))


def test_a_run_whose_checkpoints_adapters_need_is_made_longer_again_and_again(text, tmp_path):
    """It goes on from its own step 12; whoever asks for step 12 gets the one that adapters were trained on."""
    every = {"checkpoint_every": 1, "evaluate_every": 1, "keep_last": 9}
    run = start(text, tmp_path / "run", **every).path
    needed = tensors(run, 12)
    mark_needed(run, 12)
    assert [decay_of("wsd", steps, 0)[0] for steps in (12, 14, 18)] == [8, 9, 12]
    for steps in (14, 18):
        assert resume(run, steps=steps).step == steps
        mark_best(run, 12, 0.5)  # of this length, which the next one renames or not
        assert_same_tensors(tensors(run, 12), needed)
    best = dict(named_checkpoint(run, "best").weights)
    assert any(not torch.equal(values, needed[name]) for name, values in best.items())
    assert resume(run, steps=30).step == 30
    assert_same_tensors(dict(named_checkpoint(run, "best").weights), best)
    assert_same_tensors(tensors(run, 12), needed)
    assert_same_tensors(tensors(run, 30), tensors(start(text, tmp_path / "whole", steps=30, **every).path, 30))


def test_processes_that_are_started_again_by_the_same_words_keep_the_length_that_was_asked_for(
    text, tmp_path, monkeypatch
):
    """They had died before it was written down."""
    run = start(text, tmp_path / "run").path
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    words = ["train", "--resume", "--out", str(run)]
    for steps in (["--steps", "14"], ["--set", "steps=16"], ["--set", "steps=16"], ["--minutes", "1"]):
        assert cli.main([*words, *steps]) == 0
        assert read_recipe(run).n_steps == (14 if "14" in steps else 16)


def test_a_run_of_one_step_is_made_longer_too(text, tmp_path):
    run = start(text, tmp_path / "run", steps=1).path
    assert resume(run, steps=8).step == 8
    assert_same_tensors(tensors(run, 8), tensors(start(text, tmp_path / "whole", steps=8).path, 8))


def test_a_damaged_last_checkpoint_is_not_kept_as_that_of_the_shorter_run(text, tmp_path):
    run = start(text, tmp_path / "run", keep_last=5, checkpoint_every=1, evaluate_every=1).path
    (folder_of(run, 12) / "state.json").write_text("{}")
    assert resume(run, steps=20).step == 20
    assert folder_of(run, 12).with_suffix(".damaged").is_dir()
    assert not folder_of(run, 12).with_suffix(".shorter").exists()
    assert named_checkpoint(run, "best").step > 0


def test_a_run_without_the_checkpoint_before_its_decay_is_not_made_longer(text, tmp_path):
    run = start(text, tmp_path / "run").path
    first, _ = decay_of("wsd", 12, 0)
    shutil.rmtree(folder_of(run, first))
    with pytest.raises(RecipeError, match=f"has no checkpoint of step {first}.*start a new run with --from"):
        resume(run, steps=20)
    assert steps_of(run)[-1] == 12


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_run_whose_rate_falls_from_its_beginning_on_is_not_made_longer(text, tmp_path, schedule):
    run = start(text, tmp_path / "run", schedule=schedule).path
    with pytest.raises(RecipeError, match=f"schedule = {schedule}.*Start a new run, with schedule=wsd"):
        resume(run, steps=20)
    assert resume(run).step == 12


def test_a_run_at_a_constant_rate_goes_on_from_its_last_step(text, tmp_path):
    run = start(text, tmp_path / "run", schedule="constant", warmup=2).path
    assert resume(run, steps=20).step == 20
    whole = start(text, tmp_path / "whole", schedule="constant", warmup=2, steps=20).path
    assert_same_tensors(tensors(run, 20), tensors(whole, 20))


def test_made_longer_in_the_middle_earlier_steps_keep_their_rates(text, tmp_path):
    run = start(text, tmp_path / "run", keep_last=5).path
    whole = rows(run)
    for step in steps_of(run):
        if step > 8:
            shutil.rmtree(folder_of(run, step))
    assert resume(run, steps=16).step == 16
    assert json.loads((run / "recipe.json").read_bytes())["record"]["decay"] == list(decay_of("wsd", 16, 0))
    longer = rows(run)
    assert [row for row in longer if row["step"] <= 8] == [row for row in whole if row["step"] <= 8]
    # what was saved after step 4 is lost: the steps that are taken again are what they were
    for step in steps_of(run):
        if step > 4:
            shutil.rmtree(folder_of(run, step))
    assert resume(run).step == 16
    assert rows(run) == longer


def intervals(run: Path) -> list[int]:
    return [getattr(read_recipe(run).train, name) for name in INTERVALS]


def test_intervals_that_a_run_chose_are_chosen_again_for_its_new_length(text, tmp_path):
    """A run made longer is not measured every ten steps because a trial was; its weights are the same."""
    heard = Heard()
    trial = start(text, tmp_path / "trial", steps=10, evaluate_every=None).path
    asked = start(text, tmp_path / "asked", steps=10, evaluate_every=1).path
    assert [intervals(trial), intervals(asked)] == [[10, 10, 10], [1, 1, 1]]
    assert read_recipe(trial).record.chosen_intervals == INTERVALS
    assert read_recipe(asked).record.chosen_intervals == ("checkpoint_every", "sample_every")
    for run in (trial, asked):
        resume(run, heard if run == trial else None, steps=40)
    assert intervals(trial) == [40, 40, 40]
    assert intervals(asked) == [1, 1, 1]
    assert f"from here on: {', '.join(f'{name} = 40 (10 before)' for name in INTERVALS)}" in heard.lines
    evaluated = [row["step"] for row in rows(trial) if "held_out_loss" in row]
    assert evaluated == [40]
    assert_same_tensors(tensors(trial, 40), tensors(asked, 40))
    # without another length everything stays
    before = (trial / "recipe.json").read_bytes()
    resume(trial)
    assert (trial / "recipe.json").read_bytes() == before


def test_a_run_keeps_intervals_that_it_did_not_choose_unless_others_are_asked_for(text, tmp_path):
    run = start(text, tmp_path / "run", steps=10, evaluate_every=10, checkpoint_every=10, sample_every=10).path
    resume(run, steps=12)
    assert intervals(run) == [10, 10, 10]
    pellucid.train(out=run, resume=True, steps=16, fields={"evaluate_every": 8, "checkpoint_every": "4"})
    assert intervals(run) == [8, 4, 10]


@pytest.mark.parametrize("more", [{}, {"steps": 20}])
def test_an_interval_of_auto_is_chosen_when_a_run_is_resumed(text, tmp_path, more):
    """With another length and without one; an interval that was asked for before stays no longer."""
    run = start(text, tmp_path / "run", steps=10, evaluate_every=5).path
    written = json.loads((run / "recipe.json").read_bytes())
    written["options"]["train"]["sample_every"] = 0
    written["record"]["chosen_intervals"] = ["checkpoint_every"]
    (run / "recipe.json").write_text(json.dumps(written))
    pellucid.train(out=run, resume=True, fields={"evaluate_every": "auto"}, **more)
    n_steps = more.get("steps", 10)
    assert intervals(run) == [n_steps, n_steps, 0]  # a run of seconds is measured at its end
    assert read_recipe(run).record.chosen_intervals == ("evaluate_every", "checkpoint_every")
    # what the run has chosen stays
    before = (run / "recipe.json").read_bytes()
    pellucid.train(out=run, resume=True, fields={"evaluate_every": None})
    assert (run / "recipe.json").read_bytes() == before


def test_intervals_may_be_set_when_a_run_is_resumed(text, tmp_path, capsys):
    run = start(text, tmp_path / "run", steps=4, evaluate_every=None).path
    again = ("train", "--resume", "--out", str(run), "--steps")
    assert (
        cli.main([*again, "8", "--set", "evaluate_every=3", "--set", "keep_last=5", "--set", "sample_every=auto"]) == 0
    )
    assert "from here on: evaluate_every = 3 (4 before), checkpoint_every = 3 (4 before)" in capsys.readouterr().out
    assert intervals(run) == [3, 3, 3]  # the others are chosen: as often as the loss is measured
    assert read_recipe(run).train.keep_last == 5
    # step 5 is the one before the decay
    assert steps_of(run)[-3:] == [5, 6, 8]
    # one that is asked for is kept, though it is what was chosen
    assert cli.main([*again, "16", "--set", "checkpoint_every=3"]) == 0
    assert read_recipe(run).record.chosen_intervals == ("sample_every",)
    assert cli.main([*again, "20", "--set", "sample_every=0", "--set", "keep_last=0"]) == 2
    assert "train.keep_last = 0: expected 1 or more" in capsys.readouterr().err
    # the best checkpoint is the one with the lowest loss over the same tokens
    assert "train.evaluate_tokens: 100 in the run, 50 asked for" in refuse(
        capsys, *again[1:], 20, "--set", "evaluate_tokens=50"
    )


def test_a_run_that_ends_within_its_warm_up_says_so(text, tmp_path):
    heard = Heard()
    run = start(text, tmp_path / "run", heard, steps=2, evaluate_every=2, warmup=4).path
    said = "warning: train.warmup = 4 and there are 2 steps: the run ends within its warm-up, at 50% of the largest"
    assert f"{said} learning rate; set a smaller warmup, or warmup=auto to have it chosen" in heard.lines
    for steps, warns in ((3, True), (10, False)):
        heard = Heard()
        resume(run, heard, steps=steps)
        assert ("at 75% of the largest learning rate; make it longer by more steps than that" in heard.text) == warns


def test_a_run_that_ends_worse_names_the_better_checkpoint(text, tmp_path, monkeypatch):
    """Made longer at a rate that spoils it, a run says what `load` takes; a run whose last is its best says nothing."""
    heard, run = Heard(), tmp_path / "run"
    start(text, run, heard, steps=8, keep_last=9)
    assert "the best checkpoint is" not in heard.text
    first = json.loads((run / "checkpoints" / "best.json").read_bytes())
    assert first["step"] == 8
    monkeypatch.setattr(Trainer, "factor", lambda self, step: 1e4)
    resume(run, heard, steps=12)
    last = [row for row in rows(run) if "held_out_part" in row][-1]
    assert json.loads((run / "checkpoints" / "best.json").read_bytes()) == first | {"of_shorter_run": True}
    said = f"the best checkpoint is that of step 8: held-out loss {first['held_out_loss']:.4f} nats/token, and "
    assert said + f"{last['held_out_part']:.4f} after the last step, 12, over the same part" in heard.text
    assert pellucid.load(run, device="cpu").provenance["step"] == 8


def test_checkpoints_are_saved_where_they_are_due_and_at_the_end_alone(text, tmp_path):
    """Measurements and samples between them save nothing; the best checkpoint is one that was saved."""
    every = {"checkpoint_every": 6, "evaluate_every": 2, "sample_every": 3, "keep_last": 20}
    run = start(text, tmp_path / "run", steps=10, **every).path
    assert steps_of(run) == [6, 10]
    assert [row["step"] for row in rows(run) if "held_out_loss" in row] == [2, 4, 6, 8, 10]
    assert [row["step"] for row in rows(run) if "sample" in row] == [3, 6, 9, 10]
    losses = {row["step"]: row["held_out_part"] for row in rows(run) if "held_out_part" in row}
    assert best_step(run) == min((6, 10), key=lambda step: losses[step])


def test_a_run_of_few_steps_measures_itself_by_its_share_of_the_time(tmp_path, monkeypatch):
    """It is measured and sampled once, at its end, on a part of a long held-out text; then it is done."""
    for module in (pace, trainer_module):
        monkeypatch.setattr(module, "LEAST_EVALUATED", 64)
    text, run, heard = write_text(tmp_path, 60_000), tmp_path / "run", Heard()
    start(text, run, heard, steps=10, evaluate_every=None, evaluate_tokens=None)
    measured = [row for row in rows(run) if "held_out_loss" in row]
    assert [row["step"] for row in measured] == [row["step"] for row in rows(run) if "sample" in row] == [10]
    # of 640 targets, each of which costs three times as much to train on; a batch more may be read
    assert int(0.07 * 3 * 640) <= measured[0]["cut"] < 3000
    read = rf"the last evaluation read {measured[0]['cut']:,} of (6,0\d\d) held-out tokens, its share of the run"
    said = re.search(rf"{read}, and the loss is over these; evaluate_tokens=(\d+) reads all", heard.text)
    assert said
    assert said[1].replace(",", "") == said[2]
    assert best_step(run) == 10
    before = (run / "metrics.jsonl").read_bytes()
    resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_interrupted_between_saves_it_ends_the_same(text, tmp_path, monkeypatch):
    every = {"checkpoint_every": 6, "evaluate_every": 2, "sample_every": 3, "steps": 10}
    whole, run, real = start(text, tmp_path / "whole", **every).path, tmp_path / "run", Trainer.take_step
    stops = [2, 3, 4, 9]

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step in stops:
            stops.remove(self.step)
            self.interruption.signal = signal.SIGINT

    monkeypatch.setattr(Trainer, "take_step", take_step)
    start(text, run, **every)
    while stops:
        assert resume(run).exit_code == 130
    assert resume(run).exit_code == 0
    assert_same_run(run, whole)


# Refused ----------------------------------------------------------------------------------------


def test_other_text_is_refused_and_the_file_is_named(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        write_text(folder, 3000, name)
    run = start(folder, tmp_path / "run").path
    (folder / "b.txt").write_text("other")
    with pytest.raises(RecipeError, match=r"other text \(b.txt changed, from 3000 to 5 bytes"):
        resume(run, steps=20)
    (folder / "b.txt").unlink()
    with pytest.raises(RecipeError, match=r"b\.txt is gone"):
        resume(run)
    write_text(folder, 3000, "b.txt")
    write_text(folder, 3000, "c.txt")
    with pytest.raises(RecipeError, match=r"c\.txt is new") as caught:
        resume(run)
    assert "\n" not in str(caught.value)
    (folder / "c.txt").unlink()
    assert resume(run, steps=13).step == 13


def test_text_that_has_moved_is_found_where_it_is_said_to_be(text, tmp_path):
    run = start(text, tmp_path / "run").path
    (tmp_path / "moved").mkdir()
    text.rename(tmp_path / "moved" / text.name)
    with pytest.raises(ValueError, match="no such file"):
        resume(run, steps=13)
    moved = str(tmp_path / "moved" / text.name)
    assert resume(run, inputs=(moved,), steps=13).step == 13
    assert read_recipe(run).inputs == (moved,)


def refuse(capsys, *arguments) -> str:
    """The one line that the command line refuses these arguments with."""
    assert cli.main(["train", *map(str, arguments)]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1, errors
    return errors


def test_other_choices_are_refused_and_named(text, tmp_path, capsys):
    run = start(text, tmp_path / "run", batch=3).path
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    again = ("--resume", "--out", run)
    for arguments, named in (
        (("--set", "d_model=32"), "model.d_model: 16 in the run, 32 asked for"),
        (("--set", "learning_rate=1"), "train.learning_rate: 0.005 in the run, 1.0 asked for"),
        (("--set", "clip=0"), "train.clip: 1.0 in the run, 0.0 asked for"),
        (("--set", "dropout=0"), "model.dropout.attn_out: 0.1 in the run"),
        (("--seed", "2"), "train.seed: 1337 in the run, 2 asked for"),
        (("--preset", "modern"), "model.d_model: 16 in the run, 384 asked for"),
        (("--tokenizer", "char"), "text.tokenizer: byte in the run, char asked for"),
        (("--steps", "11"), "has 12 steps already"),
        (("--set", "steps=11"), "has 12 steps already"),
        (("--steps", "20", "--set", "tokens=7"), "given twice, by steps and tokens"),
    ):
        assert named in refuse(capsys, *again, *arguments)
    assert "cannot be resumed" in refuse(capsys, *again, "--set", "d_model=32")
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    for more in (("--from", "nowhere"), ("--predictor", "ngram")):
        assert "is a transformer with weights of its own: resume it without" in refuse(capsys, *again, *more)
    # the same choices again, and ones that leave a field open, ask for nothing else
    same = ("--set", "d_model=16", "--set", "batch=auto", "--device", "auto", "--seed", "1337", "--set", "steps=14")
    assert cli.main(["train", *map(str, (*again, *same))]) == 0
    assert steps_of(run)[-1] == 14


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("/nowhere/of/a/disk")


def put_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (shutil.rmtree, "checkpoints cannot be read .No such file or directory"),
        (link, "it is a link to /nowhere/of/a/disk"),
        (put_a_file, "checkpoints cannot be read .Not a directory"),
        (empty, "has none, and metrics.jsonl says that some were saved"),
    ],
    ids=["missing", "a disk that is not mounted", "a file", "empty"],
)
def test_a_run_that_cannot_reach_its_checkpoints_is_refused_and_stays_as_it_is(text, tmp_path, lose, said):
    """It would begin again at step 0, and what it has learned would be gone."""
    run = start(text, tmp_path / "run").path
    lose(run / "checkpoints")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(RecipeError, match=said):
        resume(run, steps=20)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_run_killed_before_its_first_save_is_resumed_with_shorter_intervals(text, tmp_path, monkeypatch):
    """And killed once more before a step: its rows are of steps that would have been saved by the new interval."""
    whole = start(text, tmp_path / "whole", checkpoint_every=2, sample_every=0).path
    run = start(text, tmp_path / "run", checkpoint_every=8, sample_every=0).path
    empty(run / "checkpoints")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(line for line in lines if json.loads(line)["step"] <= 7))
    again = {"out": run, "resume": True, "fields": {"checkpoint_every": 2}}
    monkeypatch.setattr(pipeline, "train_to_end", None)  # it ends before its first step
    with pytest.raises(TypeError):
        pellucid.train(**again)
    monkeypatch.undo()
    pellucid.train(**again)
    assert_same_run(whole, run)


def edited(change):
    def edit(recipe: dict) -> None:
        part, _, name = change[0].rpartition(".")
        for key in filter(None, part.split(".")):
            recipe = recipe[key]
        recipe[name] = change[1]

    return edit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("options.train.batch", 4), "train.batch: 2 in the checkpoint, 4 in recipe.json"),
        (("options.model.dropout.embed", 0.3), "model.dropout.embed: 0.1 in the checkpoint, 0.3 in recipe.json"),
        (("options.train.steps", 20), "train.steps: 12 in the checkpoint, 20 in recipe.json"),
        (("record.decay", [10, 20]), r"decay: \[8, 12\] in the checkpoint, \[10, 20\] in recipe.json"),
        (
            ("record.decay", [12, 10]),
            "record.decay = 12,10: expected the first step of the decay and the end of the run",
        ),
        (
            ("record.decay", [10, -12]),
            "record.decay = 10,-12: expected the first step of the decay and the end of the run",
        ),
        (("record.decay", [[10, 12]]), "record.decay = .*: expected 2 values"),
        (("record.planned", -1), "record.planned = -1: expected a number of steps"),
        (
            ("record.chosen_intervals", ["never"]),
            "record.chosen_intervals = .*never.*: expected some of evaluate_every",
        ),
        (("format", 7), "a recipe has the entries options and record alone: see to 'format'"),
        (("record.tokens_per_row", 3.0), "tokens_per_row: 0.0 in the checkpoint, 3.0 in recipe.json"),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",
)
def test_a_recipe_that_was_changed_by_hand_is_refused_and_named(text, tmp_path, change, said):
    run = start(text, tmp_path / "run").path
    recipe = json.loads((run / "recipe.json").read_bytes())
    edited(change)(recipe)
    (run / "recipe.json").write_text(json.dumps(recipe))
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RecipeError, match=said):
        resume(run, steps=24)
    assert (run / "metrics.jsonl").read_bytes() == before


def with_options(run: Path, **options) -> Path:
    """The run, as if it had been trained with these options of training: on another machine."""
    written = json.loads((run / "recipe.json").read_bytes())
    written["options"]["train"] |= options
    (run / "recipe.json").write_text(json.dumps(written))
    return run


#: no machine of ours has so many GPUs
ELSEWHERE = "cuda:99"


def test_a_run_of_a_machine_with_a_gpu_goes_on_without_one(text, tmp_path, capsys):
    """As the error says: with --device cpu, or auto, which keeps a device that is there."""
    run = with_options(start(text, tmp_path / "run", steps=2, evaluate_every=1).path, device=ELSEWHERE)
    again = ["--resume", "--out", str(run), "--steps", "3"]
    assert f"device '{ELSEWHERE}' cannot be used here" in refuse(capsys, *again)
    assert cli.main(["train", *again, "--device", "cpu"]) == 0
    said = f"warning: train.device was {ELSEWHERE} and is cpu from here on: the last digits of losses may differ"
    assert said in capsys.readouterr().out
    assert read_recipe(run).train.device == "cpu"
    assert cli.main(["train", "--resume", "--out", str(run), "--steps", "4", "--device", "auto"]) == 0
    assert "train.device was" not in capsys.readouterr().out
    assert read_recipe(run).train.device == "cpu"


@pytest.mark.parametrize("word", ["no", "auto"])
def test_a_compiled_run_goes_on_where_nothing_can_be_compiled(text, tmp_path, monkeypatch, word):
    run = with_options(start(text, tmp_path / "run", steps=2, evaluate_every=1).path, compile="yes")
    monkeypatch.setattr("pellucid.runs.pipeline.compiling_lacks", lambda device: "there is no compiler here")
    with pytest.raises(RecipeError, match="and there is no compiler here: resume it with --set compile=no"):
        pellucid.train(out=run, resume=True, steps=3)
    done = pellucid.train(out=run, resume=True, steps=3, fields={"compile": word})
    assert (done.step, done.recipe.train.compile) == (3, "no")
    with pytest.raises(RecipeError, match="and there is no compiler here"):
        pellucid.train(out=run, resume=True, steps=4, fields={"compile": "yes"})


def test_a_choice_that_contradicts_the_run_is_named_itself(text, tmp_path, capsys):
    """Not what it contradicts: characters learn no vocabulary, and the run has one."""
    fields = {"tokenizer": "bpe", "vocabulary": 300, "steps": 1, "evaluate_every": 1}
    run = start(text, tmp_path / "run", **fields).path
    for arguments, named in (
        (("--tokenizer", "char"), "text.tokenizer: bpe in the run, char asked for"),
        (("--tokenizer", "byte"), "text.tokenizer: bpe in the run, byte asked for"),
        (("--objective", "masked"), "train.objective: next-token in the run, masked asked for"),
    ):
        said = refuse(capsys, "--resume", "--out", run, *arguments)
        assert "cannot be resumed with other options (" in said
        assert named in said
    assert cli.main(["train", "--resume", "--out", str(run), "--tokenizer", "bpe", "--steps", "2"]) == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"batch": None, "accumulate": None},
            "a step: 128 sequences, in 2 micro-batches of 64 whose gradients are added up",
        ),
        ({"batch": None, "accumulate": 1}, "a step: 128 sequences"),
        ({"batch": 3, "accumulate": None}, "a step: 3 sequences"),
        ({"batch": 2, "accumulate": 2}, "a step: 4 sequences, in 2 micro-batches of 2 whose gradients are added up"),
    ],
    ids=str,
)
def test_what_a_batch_of_0_means_is_said(text, tmp_path, asked, said, monkeypatch):
    monkeypatch.setattr("pellucid.training.resolve_recipe.widest_row", lambda a: resolve.MAPPED // 4 // 64)
    heard = Heard()
    start(text, tmp_path / "run", heard, steps=1, evaluate_every=1, **asked)
    assert said in heard.lines


def test_a_batch_that_was_divided_among_passes_may_be_asked_for_again(text, tmp_path, capsys):
    """The run has 2 sequences in 2 passes where 4 in a step were asked for and passes were left open."""
    run = start(text, tmp_path / "run", batch=2, accumulate=2).path
    again = ("--resume", "--out", run, "--steps", "13")
    assert "train.batch: 2 in the run, 8 asked for" in refuse(capsys, *again, "--set", "batch=8")
    assert "train.batch" in refuse(capsys, *again, "--set", "batch=4", "--set", "accumulate=1")
    assert cli.main(["train", *map(str, again), "--set", "batch=4"]) == 0
    assert steps_of(run)[-1] == 13


def test_an_empty_path_is_none_and_half_a_step_is_none(text, tmp_path, capsys):
    """What an unset variable gives must not train on the folder one happens to be in."""
    assert "an empty path was given" in refuse(capsys, text, "")
    with pytest.raises(RecipeError, match=r"steps = 1.5: expected a whole number"):
        pellucid.train(text, out=tmp_path / "run", steps=1.5)
    assert not (tmp_path / "run").exists()


def test_resuming_without_a_run_is_refused(text, tmp_path, capsys):
    assert "name its folder with --out" in refuse(capsys, "--resume")
    assert "does not exist" in refuse(capsys, "--resume", "--out", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "has no recipe.json" in refuse(capsys, "--resume", "--out", tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    run = start(text, tmp_path / "run").path
    (run / "recipe.json").write_text("{")
    assert "recipe.json is damaged" in refuse(capsys, "--resume", "--out", run)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{", "is damaged, it is not JSON"),
        ("[1, 2]", "holds list: expected an object"),
        ('{"options": {"kind": "oracle"}}', "found 'oracle'"),
        ('{"options": {"kind": ["ngram"]}}', r"found \['ngram'\]"),
    ],
)
def test_a_recipe_that_is_none_is_taken_for_no_kind_of_run(written, says, tmp_path):
    (tmp_path / "recipe.json").write_text(written)
    with pytest.raises(RecipeError, match=says):
        pellucid.load(tmp_path)
    with pytest.raises(RecipeError, match=says):
        pellucid.train(resume=True, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


def test_two_processes_do_not_train_in_one_folder(text, tmp_path):
    run = start(text, tmp_path / "run").path
    with training_lock(run), pytest.raises(RecipeError, match="is being trained by another process"):
        resume(run, steps=20)
    assert resume(run, steps=13).step == 13


def test_a_file_system_without_locks_is_a_warning(text, tmp_path, monkeypatch):
    """A network drive may have none; whether another process trains there cannot be known."""
    run = start(text, tmp_path / "run", steps=2, evaluate_every=1).path

    def flock(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.warns(UserWarning, match=r"lock: this file system has no locks \(No locks available\)"):
        assert resume(run, steps=3).step == 3


def test_a_run_from_another_model_keeps_its_weights_through_a_kill_before_the_first_save(text, tmp_path):
    first = start(text, tmp_path / "first").path
    network, tokenizer, _ = load_run(first, "last", torch.device("cpu"))
    weights = dict(network.named_parameters())

    def go(out: Path):
        given = {"tokenizer": tokenizer, "weights": weights}
        return start_recipe(recipe_for(text, evaluate_every=6), out, Heard(), sample_text, **given)

    whole = go(tmp_path / "whole").path

    def killed() -> int:
        Trainer.save = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        return go(tmp_path / "run").exit_code

    assert forked(killed, tmp_path)[0] == -signal.SIGKILL
    assert steps_of(tmp_path / "run") == [0]
    assert resume(tmp_path / "run").step == 12
    assert_same_run(tmp_path / "run", whole)


def test_a_value_that_others_use_for_an_open_choice_may_be_a_value(text, tmp_path, capsys):
    """0 of the balance does not mean that the run's own is kept; -1 of the warm-up does."""
    run = start(text, tmp_path / "run", steps=2, evaluate_every=1, warmup=1, **{"mlp.experts": 2, "balance": 0.01}).path
    again = ("--resume", "--out", run, "--steps", "3", "--set")
    assert "train.balance: 0.01 in the run, 0.0 asked for" in refuse(capsys, *again, "balance=0")
    assert "train.warmup: 1 in the run, 2 asked for" in refuse(capsys, *again, "warmup=2")
    assert cli.main(["train", *map(str, again), "warmup=auto"]) == 0
    assert read_recipe(run).train.warmup == 1


def test_zero_is_no_open_choice_of_adapters(text, tmp_path, capsys):
    base = start(text, tmp_path / "base", steps=2, evaluate_every=1).path
    fields = {"adapt.rank": 2, "adapt.alpha": 8.0, "batch": 2, "precision": "float32"}
    run = pellucid.train(text, out=tmp_path / "run", from_model=base, steps=2, fields=fields).path
    for value, named in (
        ("rank=0", "adapt.rank: 2 in the run, 0 asked for"),
        ("alpha=4", "adapt.alpha: 8.0 in the run, 4.0 asked for"),
    ):
        assert named in refuse(capsys, "--resume", "--out", run, "--steps", "3", "--set", value)


def test_a_run_that_trains_on_keeps_the_checkpoint_that_adapters_need(text, tmp_path):
    base = start(text, tmp_path / "base", steps=2, evaluate_every=1, keep_last=1).path
    fields = {"adapt.rank": 2, "batch": 2, "precision": "float32", "device": "cpu"}
    run = pellucid.train(text, out=tmp_path / "run", from_model=base, steps=2, fields=fields).path
    needed = int(read_recipe(run).record.base.checkpoint)
    resume(base, steps=20)
    assert (base / "checkpoints" / f"step-{needed:08d}.needed").is_dir()
    assert best_step(base) != needed
    pellucid.load(run, device="cpu")
    assert pellucid.train(out=run, resume=True, steps=3).step == 3


def test_a_base_in_which_nothing_can_be_recorded_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"adapters need the checkpoint of step 4 \(No such file"):
        keep_base(Base(str(tmp_path / "base"), "4", ""))
    keep_base(Base("gpt2", "", ""))
    keep_base(None)


def test_a_run_from_a_model_that_has_saved_nothing_begins_again_with_that_model(text, tmp_path):
    """Not with weights drawn from the seed; without the model it says what is missing."""

    def forget_all(run: Path) -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()
        (run / "metrics.jsonl").unlink()

    base = start(text, tmp_path / "base").path
    fields = {name: FIELDS[name] for name in ("batch", "accumulate", "evaluate_every", "precision", "compile")}
    options = {"from_model": base, "steps": 4, "fields": {**fields, "evaluate_every": 2}}
    whole = pellucid.train(text, out=tmp_path / "whole", **options).path
    run = pellucid.train(text, out=tmp_path / "run", **options).path
    forget_all(run)
    pellucid.train(out=run, resume=True)
    assert_same_tensors(tensors(run, 4), tensors(whole, 4))
    forget_all(run)
    shutil.rmtree(base)
    with pytest.raises(RecipeError, match="base"):
        pellucid.train(out=run, resume=True)


def test_without_a_good_checkpoint_the_given_weights_stay(tmp_path):
    """Step 0 goes once a later one is good, however few are kept."""
    for step in (0, 4, 8):
        folder_of(tmp_path, step).mkdir(parents=True)
    prune(tmp_path, 1)
    assert steps_of(tmp_path) == [0, 8]
    mark_good(tmp_path, 8)
    prune(tmp_path, 1)
    assert steps_of(tmp_path) == [8]
