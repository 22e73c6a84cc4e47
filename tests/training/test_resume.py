"""A run that was interrupted, killed or made longer is, bit for bit, the run that was not."""

import errno
import itertools
import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from kinds import KINDS, OBJECTIVES
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
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import best_step, folder_of, load_checkpoint, mark_good, prune, steps_of, verify_files
from pellucid.runs.options import INTERVALS, RecipeError
from pellucid.runs.run_dir import only_one
from pellucid.runs.trainer import Trainer
from pellucid.training import resolve_recipe as resolve
from pellucid.training.config import Base
from pellucid.training.load import keep_base, load_run, read_recipe

STEPS = 20
#: how tables of n-grams learn: with gradients of the rows alone that a step meets, or of all
TABLES = {"muon": {"ngram_optimizer": "rmsprop", "ngram_rows": 256}, "adamw": {"ngram_optimizer": "adamw"}}


@pytest.fixture(params=one_in(2, ["muon", "adamw"]))
def whole(request, text, tmp_path) -> Path:
    """A run of STEPS steps with dropout and two passes a step, not interrupted."""
    return start(text, tmp_path / "whole", optimizer=request.param, steps=STEPS, **TABLES[request.param]).path


def begin(whole: Path, text: Path, run: Path):
    word = read_recipe(whole).train.optimizer
    return start(text, run, optimizer=word, steps=STEPS, **TABLES[word])


def test_interrupted_after_any_step_it_ends_the_same(whole, text, tmp_path, monkeypatch):
    rng = random.Random(0)
    real = Trainer.take_step
    stops: set[int] = set()

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step in stops:
            self.interruption.signal = signal.SIGINT

    monkeypatch.setattr(Trainer, "take_step", take_step)
    run = tmp_path / "run"
    points = sorted(rng.sample(range(1, STEPS), 10))
    for i, point in enumerate(points):
        stops = {point}
        done = begin(whole, text, run) if i == 0 else resume(run)
        assert (done.step, done.exit_code) == (point, 130)
        assert steps_of(run)[-1] == point
    stops = set()
    assert resume(run).exit_code == 0
    assert_same_run(run, whole)


@pytest.mark.parametrize("kind", one_in(3, [*KINDS, *OBJECTIVES]), ids=lambda kind: kind.name)
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
def test_a_finished_run_of_any_kind_stays_as_it_is_or_is_made_longer(whole_runs, tmp_path, kind):
    run, source = tmp_path / "run", kind.write_input(tmp_path)
    shutil.copytree(whole_runs(kind), run)
    written = json.loads((run / "recipe.json").read_bytes())
    (run / "recipe.json").write_text(json.dumps(written | {"inputs": [str(source)]}, indent=1) + "\n")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "report.html"}
    again = kind.resume(run)
    assert (again.step, again.exit_code) == (12, 0)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "report.html"} == before
    with pytest.raises(RecipeError, match="has 12 steps already"):
        kind.resume(run, steps=11)
    assert kind.resume(run, steps=14).step == 14
    assert json.loads((run / "recipe.json").read_bytes())["segments"] == [[0, 12], [12, 14]]


def test_killed_at_any_moment_it_ends_the_same(whole, text, tmp_path):
    rng = random.Random(1)
    run, longest, found = tmp_path / "run", 0.25, []
    for attempt in range(30):
        go = (lambda: begin(whole, text, run).exit_code) if not run.exists() else (lambda: resume(run).exit_code)
        code, _, errors = forked(go, tmp_path, kill_after=rng.uniform(0.02, longest))
        assert code in (-signal.SIGKILL, 0), errors
        assert all(not verify_files(folder_of(run, step)) for step in steps_of(run))
        found.append((steps_of(run) or [0])[-1])
        if attempt >= 9 and (max(found) > 0 or code == 0):
            break
        longest *= 1 if max(found) else 1.2  # a slow machine has saved nothing yet
    assert max(found) > 0
    assert (resume(run) if run.exists() else begin(whole, text, run)).step == STEPS
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
    run = start(text, tmp_path / "run", steps=4, evaluate_every=2).path
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


# Longer -----------------------------------------------------------------------------------------


def test_a_finished_run_is_said_to_be_finished_and_stays_as_it_is(text, tmp_path):
    done = start(text, tmp_path / "run")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.path.rglob("*.safetensors")}
    recipe, metrics = (done.path / "recipe.json").read_bytes(), (done.path / "metrics.jsonl").read_bytes()
    for length in ({}, {"steps": 12}):
        heard = Heard()
        again = resume(done.path, heard, **length)
        assert "is at step 12 of 12: finished" in heard.text
        assert (again.step, again.held_out_loss, again.exit_code) == (12, done.held_out_loss, 0)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.path.rglob("*.safetensors")} == before
    assert (done.path / "recipe.json").read_bytes() == recipe
    assert (done.path / "metrics.jsonl").read_bytes() == metrics


def test_more_steps_are_a_new_segment_and_fewer_are_refused(text, tmp_path):
    run = start(text, tmp_path / "run").path
    first = rows(run)
    with pytest.raises(RecipeError, match="has 12 steps already"):
        resume(run, steps=11)
    assert resume(run, steps=20).step == 20
    assert json.loads((run / "recipe.json").read_bytes())["segments"] == [[0, 12], [12, 20]]
    assert rows(run)[: len(first)] == first
    rates = [row["learning_rate"] for row in rows(run) if "learning_rate" in row]
    assert rates[11] == pytest.approx(5e-5)
    assert rates[12] == pytest.approx(5e-3)  # the schedule begins again
    assert rates[19] == pytest.approx(5e-5)


def test_made_longer_in_the_middle_earlier_steps_keep_their_rates(text, tmp_path):
    run = start(text, tmp_path / "run", keep_last=5).path
    whole = rows(run)
    shutil.rmtree(folder_of(run, 12))
    assert resume(run, steps=16).step == 16
    assert json.loads((run / "recipe.json").read_bytes())["segments"] == [[0, 12], [8, 16]]
    longer = rows(run)
    assert [row for row in longer if row["step"] <= 8] == [row for row in whole if row["step"] <= 8]
    # what was saved after step 4 is lost: the steps that are taken again are what they were
    for step in (8, 12, 16):
        shutil.rmtree(folder_of(run, step))
    assert resume(run).step == 16
    assert rows(run) == longer


def intervals(run: Path) -> list[int]:
    return [getattr(read_recipe(run).train, name) for name in INTERVALS]


def test_intervals_that_a_run_chose_are_chosen_again_for_its_new_length(text, tmp_path):
    """A run made longer is not measured at every step because a trial of ten steps was; its weights are the same."""
    heard = Heard()
    trial = start(text, tmp_path / "trial", steps=10, evaluate_every=0).path
    asked = start(text, tmp_path / "asked", steps=10, evaluate_every=1).path
    assert intervals(trial) == intervals(asked) == [1, 1, 1]
    assert read_recipe(trial).chosen_intervals == INTERVALS
    assert read_recipe(asked).chosen_intervals == ("checkpoint_every", "sample_every")
    for run in (trial, asked):
        resume(run, heard if run == trial else None, steps=40)
    assert intervals(trial) == [40, 40, 40]
    assert intervals(asked) == [1, 1, 1]
    said = (
        "from here on: evaluate_every = 40 (1 before), checkpoint_every = 40 (1 before), sample_every = 40 (1 before)"
    )
    assert said in heard.lines
    evaluated = [row["step"] for row in rows(trial) if "held_out_loss" in row]
    assert evaluated == [*range(1, 11), 40]
    assert_same_tensors(tensors(trial, 40), tensors(asked, 40))
    # without another length everything stays
    before = (trial / "recipe.json").read_bytes()
    resume(trial)
    assert (trial / "recipe.json").read_bytes() == before


def test_a_run_of_an_earlier_version_keeps_its_intervals_unless_others_are_asked_for(text, tmp_path):
    """Its recipe does not say whether they were chosen."""
    run = start(text, tmp_path / "run", steps=10, evaluate_every=0).path
    written = json.loads((run / "recipe.json").read_bytes())
    del written["chosen_intervals"]
    (run / "recipe.json").write_text(json.dumps(written))
    resume(run, steps=12)
    assert intervals(run) == [1, 1, 1]
    pellucid.train(out=run, resume=True, steps=16, fields={"evaluate_every": 8, "checkpoint_every": "4"})
    assert intervals(run) == [8, 4, 1]


@pytest.mark.parametrize("more", [{}, {"steps": 20}])
def test_an_interval_of_0_is_chosen_when_a_run_is_resumed(text, tmp_path, more):
    """With another length and without one; an interval that was asked for before stays no longer."""
    run = start(text, tmp_path / "run", steps=10, evaluate_every=5).path
    written = json.loads((run / "recipe.json").read_bytes())
    written["train"]["sample_every"], written["chosen_intervals"] = -1, ["checkpoint_every"]
    (run / "recipe.json").write_text(json.dumps(written))
    pellucid.train(out=run, resume=True, fields={"evaluate_every": "0"}, **more)
    n_steps = more.get("steps", 10)
    assert intervals(run) == [n_steps, n_steps, -1]  # a run of seconds is measured at its end
    assert read_recipe(run).chosen_intervals == ("evaluate_every", "checkpoint_every")
    # what the run has chosen stays
    before = (run / "recipe.json").read_bytes()
    pellucid.train(out=run, resume=True, fields={"evaluate_every": 0})
    assert (run / "recipe.json").read_bytes() == before


def test_intervals_may_be_set_when_a_run_is_resumed(text, tmp_path, capsys):
    run = start(text, tmp_path / "run", steps=4, evaluate_every=0).path
    again = ("train", "--resume", "--out", str(run), "--steps")
    assert cli.main([*again, "8", "--set", "evaluate_every=3", "--set", "keep_last=5", "--set", "sample_every=0"]) == 0
    assert "from here on: evaluate_every = 3 (1 before), checkpoint_every = 3 (1 before)" in capsys.readouterr().out
    assert intervals(run) == [3, 3, 3]  # the others are chosen: as often as the loss is measured
    assert read_recipe(run).train.keep_last == 5
    assert steps_of(run)[-3:] == [4, 6, 8]
    # one that is asked for is kept, though it is what was chosen
    assert cli.main([*again, "16", "--set", "checkpoint_every=3"]) == 0
    assert read_recipe(run).chosen_intervals == ("sample_every",)
    assert cli.main([*again, "20", "--set", "sample_every=-1", "--set", "keep_last=0"]) == 2
    assert "train.keep_last = 0: expected 1 or more" in capsys.readouterr().err
    # the best checkpoint is the one with the lowest loss over the same tokens
    assert "train.evaluate_tokens: 100 in the run, 50 asked for" in refuse(
        capsys, *again[1:], 20, "--set", "evaluate_tokens=50"
    )


@pytest.mark.parametrize("kind", one_in(3, KINDS), ids=lambda kind: kind.name)
def test_intervals_of_a_run_of_any_kind_may_be_set_when_it_is_resumed(whole_runs, tmp_path, kind):
    run, source = tmp_path / "run", kind.write_input(tmp_path)
    shutil.copytree(whole_runs(kind), run)
    done = pellucid.train(source, out=run, resume=True, steps=14, fields={"train.checkpoint_every": "7"})
    assert done.recipe.train.checkpoint_every == 7
    assert json.loads((run / "recipe.json").read_bytes())["train"]["checkpoint_every"] == 7


def test_a_run_that_ends_within_its_warm_up_says_so(text, tmp_path):
    heard = Heard()
    run = start(text, tmp_path / "run", heard, steps=2, evaluate_every=2, warmup=4).path
    said = "warning: train.warmup = 4 and there are 2 steps: the run ends within its warm-up, at 50% of the largest"
    assert f"{said} learning rate; set a smaller warmup, or -1 to have it chosen" in heard.lines
    for steps, warns in ((5, True), (10, False)):
        heard = Heard()
        resume(run, heard, steps=steps)
        assert ("at 75% of the largest learning rate; make it longer by more steps than that" in heard.text) == warns


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
        (("--explain",), "explain describes how the sizes of a new run are chosen: leave it out"),
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
    same = ("--set", "d_model=16", "--set", "batch=0", "--device", "auto", "--seed", "1337", "--set", "steps=14")
    assert cli.main(["train", *map(str, (*again, *same))]) == 0
    assert steps_of(run)[-1] == 14


def with_options(run: Path, **options) -> Path:
    """The run, as if it had been trained with these options of training: on another machine."""
    written = json.loads((run / "recipe.json").read_bytes())
    written["train"] |= options
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


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[4]], ids=lambda kind: kind.name)
def test_a_run_of_any_kind_goes_on_on_the_device_that_is_there(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("pellucid.runs.pipeline.device_here", lambda word: torch.device("cpu"))
    run = with_options(kind.start(kind.write_input(tmp_path), tmp_path / "run", steps=2).path, device=ELSEWHERE)
    with pytest.raises(RecipeError, match=f"device '{ELSEWHERE}' cannot be used here"):
        kind.resume(run, steps=3)
    assert kind.resume(run, steps=3, fields={"train.device": "auto"}).step == 3
    assert kind.resume(run, steps=4).step == 4


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
        ({"batch": 0, "accumulate": 0}, "a step: 128 sequences in 2 micro-batches of 64, gradients added up, chosen"),
        ({"batch": 0, "accumulate": 1}, "a step: 128 sequences, chosen, in one micro-batch, as asked"),
        ({"batch": 3, "accumulate": 0}, "a step: 3 sequences, as asked, in one micro-batch, chosen"),
        (
            {"batch": 2, "accumulate": 2},
            "a step: 4 sequences, as asked, in 2 micro-batches of 2, gradients added up, as asked",
        ),
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
        ("{", "is damaged, it is not JSON any more"),
        ("[1, 2]", "is not a recipe: expected an object"),
        ('{"kind": "oracle"}', "found 'oracle'"),
        ('{"kind": ["ngram"]}', r"found \['ngram'\]"),
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
    with only_one(run), pytest.raises(RecipeError, match="is being trained by another process"):
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


def test_a_rule_that_the_run_replaced_by_a_value_is_no_open_choice(text, tmp_path, capsys):
    """-1 of the warm-up and 0 of the balance are values: they do not mean that the run's own are kept."""
    run = start(text, tmp_path / "run", steps=2, evaluate_every=1, warmup=1, **{"mlp.experts": 2, "balance": 0.01}).path
    for value, named in (
        ("warmup=-1", "train.warmup: 1 in the run, -1 asked for"),
        ("balance=0", "train.balance: 0.01 in the run, 0.0 asked for"),
    ):
        assert named in refuse(capsys, "--resume", "--out", run, "--steps", "3", "--set", value)


def test_zero_is_no_open_choice_of_adapters(text, tmp_path, capsys):
    base = start(text, tmp_path / "base", steps=2, evaluate_every=1).path
    fields = {"adapt.rank": 2, "adapt.alpha": 8.0, "batch": 2, "precision": "float32"}
    run = pellucid.train(text, out=tmp_path / "run", from_model=base, steps=2, fields=fields).path
    for value, named in (
        ("rank=0", "adapt.rank: 2 in the run, 0 asked for"),
        ("alpha=0", "adapt.alpha: 8.0 in the run, 0.0 asked for"),
    ):
        assert named in refuse(capsys, "--resume", "--out", run, "--steps", "3", "--set", value)


def test_a_run_that_trains_on_keeps_the_checkpoint_that_adapters_need(text, tmp_path):
    base = start(text, tmp_path / "base", steps=2, evaluate_every=1, keep_last=1).path
    fields = {"adapt.rank": 2, "batch": 2, "precision": "float32", "device": "cpu"}
    run = pellucid.train(text, out=tmp_path / "run", from_model=base, steps=2, fields=fields).path
    needed = int(read_recipe(run).base.checkpoint)
    resume(base, steps=20)
    assert needed in steps_of(base)
    assert best_step(base) != needed
    pellucid.load(run, device="cpu")
    assert pellucid.train(out=run, resume=True, steps=3).step == 3


def test_a_base_in_which_nothing_can_be_recorded_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"adapters need the checkpoint of step 4 \(No such file"):
        keep_base(Base(str(tmp_path / "base"), "4", ""))
    keep_base(Base("gpt2", "", ""))
    keep_base(None)


def test_a_run_from_a_model_that_lost_its_checkpoints_begins_again_with_that_model(text, tmp_path):
    """Not with weights drawn from the seed; without the model it says what is missing."""
    base = start(text, tmp_path / "base").path
    fields = {name: FIELDS[name] for name in ("batch", "accumulate", "evaluate_every", "precision", "compile")}
    options = {"from_model": base, "steps": 4, "fields": {**fields, "evaluate_every": 2}}
    whole = pellucid.train(text, out=tmp_path / "whole", **options).path
    run = pellucid.train(text, out=tmp_path / "run", **options).path
    shutil.rmtree(run / "checkpoints")
    pellucid.train(out=run, resume=True)
    assert_same_tensors(tensors(run, 4), tensors(whole, 4))
    shutil.rmtree(run / "checkpoints")
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
