"""Ctrl-C and SIGTERM in every phase: what is left can be continued, and the exit code says what happened."""

import os
import signal
import time

import pytest
from tiny import Heard, assert_same_run, forked, recipe_for, resume, sample_text, start

from pellucid import cli
from pellucid.training import build as setup
from pellucid.training import checkpoint
from pellucid.training import loop as loop_module
from pellucid.training import run as runs
from pellucid.training.checkpoint import steps_of
from pellucid.training.loop import Training


def at_call(monkeypatch, where, name, number, signals=(signal.SIGINT,)):
    """Send signals to this process just before the given call of a function, counted from 1."""
    real, count = getattr(where, name), [0]

    def call(*given, **named):
        count[0] += 1
        if count[0] == number:
            for s in signals:
                os.kill(os.getpid(), s)
        return real(*given, **named)

    monkeypatch.setattr(where, name, call)


@pytest.fixture
def whole(text, tmp_path):
    return start(text, tmp_path / "whole").path


@pytest.mark.parametrize(
    ("where", "name", "number", "step"),
    [
        (Training, "take_step", 1, 1),
        (Training, "take_step", 6, 6),
        (loop_module, "judged", 1, 4),  # within the first evaluation
        (loop_module, "save_checkpoint", 2, 8),
        (checkpoint.os, "rename", 2, 4),  # within a save: the folder's own renaming comes first
        (loop_module, "mark_best", 1, 4),
    ],
)
@pytest.mark.parametrize(("number_of", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_any_phase_is_followed_by_a_save(
    whole, text, tmp_path, monkeypatch, where, name, number, step, number_of, code
):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        at_call(patch, where, name, number, (number_of,))
        done = start(text, tmp_path / "run")
    assert (done.exit_code, done.step) == (code, step)
    assert steps_of(done.path)[-1] == step
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    again = resume(done.path)
    assert (again.exit_code, again.step) == (0, 12)
    assert_same_run(done.path, whole)


def test_a_signal_while_sampling(whole, text, tmp_path):
    count = [0]

    def sampler(*given):
        count[0] += 1
        if count[0] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return sample_text(*given)

    done = start(text, tmp_path / "run", sampler=sampler)
    assert (done.exit_code, done.step) == (143, 8)
    assert resume(done.path).step == 12
    assert_same_run(done.path, whole)


def test_a_final_evaluation_that_was_interrupted_is_made_up_for(whole, text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        real = Training.held_out_loss

        def held_out_loss(self, whole):
            if whole:
                os.kill(os.getpid(), signal.SIGINT)
            return real(self, whole)

        patch.setattr(Training, "held_out_loss", held_out_loss)
        done = start(text, tmp_path / "run")
    assert (done.exit_code, done.step) == (130, 12)
    assert resume(done.path).exit_code == 0
    assert_same_run(done.path, whole)


@pytest.mark.parametrize(("number_of", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("where", "name"), [(setup, "read_recipe_text"), (setup, "train_tokenizer"), (setup, "prepare"), (setup, "build")]
)
def test_a_signal_before_the_first_step_leaves_nothing_behind(
    text, tmp_path, monkeypatch, number_of, code, where, name
):
    at_call(monkeypatch, runs if name == "build" else where, name, 1, (number_of,))
    heard = Heard()
    done = start(text, tmp_path / "run", heard)
    assert (done.exit_code, done.step) == (code, 0)
    assert "nothing was written" in heard.text
    assert not done.path.exists()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == [text.name]
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_signal_while_a_run_is_read_again_changes_nothing(whole, monkeypatch):
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    at_call(monkeypatch, setup, "prepare", 1, (signal.SIGTERM,))
    done = resume(whole, steps=20)
    assert (done.exit_code, done.step) == (143, 12)
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(("number_of", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_stops_at_once(whole, text, tmp_path, monkeypatch, number_of, code):
    with monkeypatch.context() as patch:
        at_call(patch, Training, "take_step", 6, (number_of, number_of))
        with pytest.raises(KeyboardInterrupt):
            start(text, tmp_path / "run")
    assert steps_of(tmp_path / "run") == [4]
    with monkeypatch.context() as patch:
        at_call(patch, loop_module, "save_checkpoint", 1, (number_of, number_of))
        patch.setitem(cli.COMMANDS, "train", lambda: resume(tmp_path / "run").exit_code)
        assert cli.main(["train"]) == code
    assert resume(tmp_path / "run").step == 12
    assert_same_run(tmp_path / "run", whole)


def test_the_command_line_ends_with_143_after_saving(text, tmp_path):
    run = tmp_path / "run"

    def train() -> int:
        real = Training.take_step

        def take_step(self: Training) -> None:
            real(self)
            time.sleep(0.01)
            if self.step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        Training.take_step = take_step  # type: ignore[method-assign]
        fields = [f"--set={k}={v}" for k, v in {"d_model": 8, "n_heads": 1, "n_ctx": 8, "compile": "no"}.items()]
        return cli.main(["train", str(text), "--out", str(run), "--steps", "9", "--tokenizer", "byte", *fields])

    code, _, errors = forked(train, tmp_path)
    assert (code, errors) == (143, "")
    assert steps_of(run)[-1] == 3


def test_in_another_thread_the_callers_signals_stay(text, tmp_path):
    import threading

    found = []
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: found.append(runs.start(recipe_for(text), tmp_path / "run", Heard())))
    thread.start()
    thread.join()
    assert found[0].step == 12
    assert signal.getsignal(signal.SIGINT) == handler
