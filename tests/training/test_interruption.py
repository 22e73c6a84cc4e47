"""Ctrl-C and SIGTERM in every phase: what is left can be continued, and the exit code says what happened."""

import os
import signal

import pytest
from kinds import KINDS, STEPS
from tiny import Heard, assert_same_run, recipe_for, resume, sample_text, start, start_recipe

from pellucid import cli
from pellucid.runs import checkpoint
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.processes import Processes
from pellucid.runs.trainer import Trainer
from pellucid.training import build as setup
from pellucid.training import trainable as trainable_module
from some_cases import one_in


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


#: what is called when the signal comes: where, by which name, for the which time, and the step that is saved then;
#: None stands for the class of what is trained
MOMENTS = (
    (Trainer, "take_step", 1, 1),
    (Trainer, "take_step", 6, 6),
    (None, "held_out_sums", 1, 4),  # within the first evaluation
    (trainer_module, "write_checkpoint", 2, 8),
    (checkpoint, "seal", 1, 4),  # within a save
    (trainer_module, "mark_best", 1, 4),
)


#: both signals come to a transformer in every moment; to each other kind one comes among its steps and its losses
SIGNALS = [
    pytest.param(kind, moment, number_of, id=f"{kind.name}-{moment[1]} {moment[2]}-{number_of.name}")
    for kind in KINDS
    for moment in (MOMENTS if kind.name == "transformer" else MOMENTS[1:3])
    for number_of in (signal.SIGINT, signal.SIGTERM)
    if kind.name == "transformer" or (number_of == signal.SIGINT) == (moment == MOMENTS[1])
]


@pytest.mark.parametrize(("kind", "moment", "number_of"), one_in(8, SIGNALS))
def test_a_signal_in_any_phase_is_followed_by_a_save(whole_runs, tmp_path, monkeypatch, kind, moment, number_of):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    where, name, number, step = moment
    with monkeypatch.context() as patch:
        at_call(patch, where or kind.trainable, name, number, (number_of,))
        done = kind.start(kind.write_input(tmp_path), tmp_path / "run")
    assert (done.exit_code, done.step) == (128 + number_of, step)
    assert steps_of(done.path)[-1] == step
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    again = kind.resume(done.path)
    assert (again.exit_code, again.step) == (0, STEPS)
    assert_same_run(done.path, whole_runs(kind))


@pytest.mark.parametrize(("call", "step"), [(1, 1), (5, 2)])
def test_a_signal_that_comes_while_the_processes_agree_is_not_lost(text, tmp_path, monkeypatch, call, step):
    at_call(monkeypatch, Processes, "largest", call, (signal.SIGTERM,))  # after this process has said that none came
    done = start(text, tmp_path / "run")
    assert (done.exit_code, done.step) == (143, step)
    assert steps_of(done.path)[-1] == step


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
        real = Trainer.held_out_loss

        def held_out_loss(self, whole):
            if whole:
                os.kill(os.getpid(), signal.SIGINT)
            return real(self, whole)

        patch.setattr(Trainer, "held_out_loss", held_out_loss)
        done = start(text, tmp_path / "run")
    assert (done.exit_code, done.step) == (130, 12)
    assert resume(done.path).exit_code == 0
    assert_same_run(done.path, whole)


@pytest.mark.parametrize(("number_of", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (setup, "read_corpus"),
        (setup, "learn_tokenizer"),
        (setup, "prepare_tokens"),
        (trainable_module, "build_network"),
    ],
)
def test_a_signal_before_the_first_step_leaves_nothing_behind(
    text, tmp_path, monkeypatch, number_of, code, where, name
):
    at_call(monkeypatch, where, name, 1, (number_of,))
    heard = Heard()
    done = start(text, tmp_path / "run", heard)
    assert (done.exit_code, done.step) == (code, 0)
    assert "nothing was written" in heard.text
    assert not done.path.exists()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == [text.name]
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_signal_while_a_run_is_read_again_changes_nothing(whole, monkeypatch):
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    at_call(monkeypatch, setup, "prepare_tokens", 1, (signal.SIGTERM,))
    done = resume(whole, steps=20)
    assert (done.exit_code, done.step) == (143, 12)
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(("number_of", "code"), one_in(2, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_a_second_signal_stops_at_once(whole, text, tmp_path, monkeypatch, number_of, code):
    with monkeypatch.context() as patch:
        at_call(patch, Trainer, "take_step", 6, (number_of, number_of))
        with pytest.raises(KeyboardInterrupt):
            start(text, tmp_path / "run")
    assert steps_of(tmp_path / "run") == [4]
    with monkeypatch.context() as patch:
        at_call(patch, trainer_module, "files_of", 1, (number_of, number_of))
        patch.setitem(cli.COMMANDS, "train", lambda: resume(tmp_path / "run").exit_code)
        assert cli.main(["train"]) == code
    assert resume(tmp_path / "run").step == 12
    assert_same_run(tmp_path / "run", whole)


def test_in_another_thread_the_callers_signals_stay(text, tmp_path):
    import threading

    found = []
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: found.append(start_recipe(recipe_for(text), tmp_path / "run", Heard())))
    thread.start()
    thread.join()
    assert found[0].step == 12
    assert signal.getsignal(signal.SIGINT) == handler
