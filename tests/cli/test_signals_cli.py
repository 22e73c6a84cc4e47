"""Commands other than training: a signal ends them within a second, and nothing half made is left behind."""

import itertools
import os
import select
import signal
import time

import pytest
import torch
from tests.some_cases import one_in
from tests.training.tiny import forked, start, write_text

from pellucid import cli
from pellucid.plan import speed
from pellucid.text.read import documents

HANG = 60


def slowed(real, mouth, seconds=0.2):
    """The function, which says that it was called and takes its time."""

    def call(*given, **named):
        os.write(mouth, b".")
        time.sleep(seconds)
        return real(*given, **named)

    return call


def endless(seconds=0.05):
    """Words that never end."""
    while True:
        time.sleep(seconds)
        yield "to be or not to be " * 20


def planning(patch, mouth, run):
    patch.setattr(speed, "step_seconds", lambda *given, **named: slowed(lambda: time.sleep(1000), mouth)())
    return ["plan", str(run)]


def converting(patch, mouth, run):
    write_tensors = "pellucid.conversion.layouts.write_tensors"
    patch.setattr(write_tensors, lambda *given, **named: slowed(lambda: time.sleep(1000), mouth)())
    return ["convert", str(run), "out", "--to", "pellucid"]


def making_a_tokenizer(patch, mouth, run):
    patch.setattr(documents.Corpus, "texts", lambda self: slowed(endless, mouth)())
    return ["tokenizer", "train", "text.txt", "--out", "out"]


def scoring(patch, mouth, run):
    patch.setattr("pellucid.language_model.score", lambda *given, **named: slowed(lambda: time.sleep(1000), mouth)())
    return ["score", str(run), "text.txt"]


ACTS = (planning, converting, making_a_tokenizer, scoring)


@pytest.mark.parametrize(("act", "number"), one_in(8, itertools.product(ACTS, (signal.SIGINT, signal.SIGTERM))))
def test_a_signal_ends_a_command_and_clears_away_what_it_began(tmp_path, monkeypatch, act, number):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    text = write_text(tmp_path, 1500)
    run = start(text, tmp_path / "run", steps=1, evaluate_every=1, n_layers=1).path
    before = sorted(p.name for p in tmp_path.iterdir())
    ear, mouth = os.pipe()

    def go() -> int:
        os.chdir(tmp_path)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        with monkeypatch.context() as patch:
            code = cli.main(act(patch, mouth, run))
            return code if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 99

    def stop(pid: int) -> None:
        assert select.select([ear], [], [], HANG)[0], "it never came so far"
        time.sleep(1.5)  # long enough for what it does to be shown
        os.kill(pid, number)

    code, _, errors = forked(go, tmp_path, then=stop, hang=HANG)
    assert code == 128 + number, errors
    shown, last = errors.splitlines()[0], errors.splitlines()[-1]
    assert ": 0:0" in shown or "characters" in shown or " of " in shown
    assert last == "interrupted"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name not in ("stdout", "stderr")) == before
