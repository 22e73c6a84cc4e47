"""Real signals to real processes, in every phase of a run: it stops where nothing is lost, or says what it finishes.

A phase is made long by slowing what it repeats, so that a process which does not look at signals would go on for
minutes; the test waits as long as a hang would take to be one, and asks for no time.
"""

import functools
import hashlib
import os
import select
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.some_cases import one_in
from tiny import assert_same_run, forked, recipe_for, resume, start, write_text

from pellucid import cli
from pellucid.generate import samples
from pellucid.plan import sized_recipe
from pellucid.predictors import counting as counts
from pellucid.predictors import ngram_baselines as baselines
from pellucid.runs import measure
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.trainer import Trainer
from pellucid.text import split as split_module
from pellucid.text.read import scan
from pellucid.text.tokens import encode as encoding
from pellucid.training import trainable
from pellucid.training.resolve_recipe import resolve_batch

#: seconds after which a process that should have stopped is taken for hung
HANG = 60
SIZES = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 8, "ngrams": (), "batch": 2, "compile": "no"}
PLAIN = ["--tokenizer", "byte", "--precision", "float32", "--device", "cpu", "--set", "attention=fused"]
TINY = [*PLAIN, *(f"--set={name}={value}" for name, value in SIZES.items() if name != "ngrams"), "--set=model.ngrams="]


class Child:
    """A process that runs a command and says on a pipe when it has come to a phase."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ear, self.mouth = os.pipe()

    def here(self) -> None:
        """Called in the child: the phase has begun."""
        os.write(self.mouth, b".")

    def slowed(self, real, seconds=0.1, after=1):
        """A function that says that it was called, the `after`-th time, and takes its time."""
        calls = []

        @functools.wraps(real)
        def call(*given, **named):
            calls.append(1)
            if len(calls) == after:
                self.here()
            time.sleep(seconds)
            return real(*given, **named)

        return call

    def run(self, command, number: int) -> tuple[int, str]:
        """The command's exit code and all it said; it gets the signal when it has come to its phase."""

        def go() -> int:
            os.chdir(self.folder)
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the threads of another process are not forked with it
            return cli.main([str(word) for word in command])

        def obey(pid: int) -> None:
            assert select.select([self.ear], [], [], HANG)[0], "the phase was never reached"
            os.kill(pid, number)

        code, out, errors = forked(go, self.folder, then=obey, hang=HANG)
        return code, out + errors


@pytest.fixture
def child(tmp_path):
    return Child(tmp_path)


def endless(self, part):
    """The text of a corpus that has no end."""
    while True:
        time.sleep(0.05)
        yield "to be or not to be " * 20


def many_files(child):
    """A folder of as many documents."""
    folder = child.folder / "texts"
    folder.mkdir()
    for k in range(300):
        (folder / f"{k}.txt").write_text("a line of text\n" * 20)
    return folder


def reading(patch, child):
    folder = many_files(child)
    patch.setattr(scan, "scan", child.slowed(scan.scan, 0.3, after=3))
    return ["train", folder, *TINY, "--steps", "3"]


def making_the_tokenizer(patch, child):
    patch.setattr(split_module.Split, "texts", lambda self, part: (child.here(), endless(self, part))[1])
    by_pairs = ["bpe" if word == "byte" else word for word in TINY]
    return ["train", "text.txt", *by_pairs, "--vocabulary", "300", "--steps", "3"]


def encoding_text(patch, child):
    patch.setattr(encoding, "UNIT", 16)
    patch.setattr(encoding, "encode_unit", child.slowed(encoding.encode_unit, 0.3, after=3))
    return ["train", many_files(child), *TINY, "--steps", "3"]


def choosing_the_size(patch, child):
    patch.setattr(measure, "timed", child.slowed(measure.timed, 0.5))
    for name in ("MOST_PASSES", "ENOUGH_SECONDS"):
        patch.setattr(measure, name, 1e6)
    patch.setattr(sized_recipe, "PROBE_SECONDS", 1e6)
    patch.setattr(sized_recipe, "PROBE_SHARE", 1e6)
    return ["train", "text.txt", *PLAIN, "--minutes", "5"]


def measuring_a_step(patch, child):
    patch.setattr(measure, "timed", child.slowed(measure.timed, 0.3, after=2))
    for name in ("MOST_PASSES", "ENOUGH_SECONDS"):
        patch.setattr(measure, name, 1e6)
    # what is left of the budget is an hour for ever
    patch.setattr(measure.time, "perf_counter", lambda: 0.0)
    return ["train", "text.txt", *TINY, "--minutes", "5"]


def measuring_a_predictor(patch, child):
    measuring_a_step(patch, child)
    return ["train", "text.txt", "--predictor", "recurrent", "--tokenizer", "byte", "--minutes", "5"]


def counting(patch, child):
    patch.setattr(counts, "rank", child.slowed(counts.rank, after=3))
    return ["train", "text.txt", "--predictor", "ngram", "--tokenizer", "byte", "--set", "order=900"]


def counting_to_compare(patch, child):
    patch.setattr(baselines, "ORDERS", {5: "5-gram"})
    patch.setattr(counts, "rank", child.slowed(counts.rank, 0.1, after=2))
    real = baselines.NGram.train

    def train(*given, **named):
        while True:
            real(*given, **named)

    patch.setattr(baselines.NGram, "train", train)
    return ["train", "text.txt", *TINY, "--steps", "3"]


@pytest.mark.parametrize(
    "phase",
    one_in(
        4,
        [
            reading,
            making_the_tokenizer,
            encoding_text,
            choosing_the_size,
            measuring_a_step,
            measuring_a_predictor,
            counting,
            counting_to_compare,
        ],
    ),
)
def test_before_the_first_step_nothing_is_left_behind(child, tmp_path, monkeypatch, phase):
    write_text(tmp_path)
    with monkeypatch.context() as patch:
        command = [*phase(patch, child), "--out", "run"]
        number = signal.SIGTERM if "--minutes" in command else signal.SIGINT
        code, said = child.run(command, number)
    assert code == 128 + number, said
    assert "interrupted before the first step: nothing was written to run" in said
    assert {p.name for p in tmp_path.iterdir()} <= {"text.txt", "texts", "cache", "stdout", "stderr"}


def evaluating(patch, child):
    patch.setattr(trainable, "losses_and_hits", child.slowed(trainable.losses_and_hits, 0.3, after=3))
    return "--set=evaluate_every=2"


def sampling(patch, child):
    patch.setattr(samples, "SAMPLE_TOKENS", 10**6)
    patch.setattr(samples, "join_pieces", lambda pieces, poll: text_of(child, pieces, poll))
    return "--set=evaluate_every=2"


def text_of(child, pieces, poll):
    """As it is, saying that it has begun."""
    child.here()
    for n, _ in enumerate(pieces):
        poll(n, samples.SAMPLE_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number"), [(evaluating, signal.SIGINT), (sampling, signal.SIGTERM)])
def test_what_comes_between_steps_is_left_and_made_up_for(child, tmp_path, monkeypatch, phase, number):
    """The step is saved already; the run goes on from there as if nothing had happened."""
    write_text(tmp_path)
    command = ["train", "text.txt", *TINY, "--steps", "4", "--set=evaluate_every=2"]
    assert forked(lambda: run_in(tmp_path, [*command, "--out", "whole"]), tmp_path)[0] == 0
    with monkeypatch.context() as patch:
        phase(patch, child)
        code, said = child.run([*command, "--out", "run"], number)
    assert code == 128 + number, said
    assert steps_of(tmp_path / "run") == [2]
    again = ["train", "--resume", "--out", "run"]
    assert forked(lambda: run_in(tmp_path, again), tmp_path)[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def run_in(folder: Path, command: list) -> int:
    os.chdir(folder)
    return cli.main([str(word) for word in command])


def test_a_step_of_a_hundred_million_sequences_is_left_unfinished(child, tmp_path, monkeypatch):
    """Of its passes, which would take days, those that remain are left."""
    write_text(tmp_path)
    with monkeypatch.context() as patch:
        precise = trainable.autocast
        patch.setattr(
            "pellucid.training.trainable.autocast", lambda *given: child.slowed(precise(*given), 0.01, after=3)
        )
        command = ["train", "text.txt", *TINY, "--set=accumulate=50000000", "--steps", "3", "--out", "run"]
        code, said = child.run(command, signal.SIGINT)
    assert code == 130, said
    assert steps_of(tmp_path / "run") == [0]
    assert "a step: 100,000,000 sequences, in 50,000,000 micro-batches of 2 whose gradients are added up" in said
    assert "stopped at step 0, saved; go on with: pellucid train --resume --out run" in said
    assert "opens in" not in said


@pytest.mark.parametrize("batch", [100_000_000, 99_999_989, 2**40])
def test_a_batch_of_any_size_is_divided_into_passes_at_once(tmp_path, batch):
    """The largest divisor that fits is looked for among as many sequences as fit; 99,999,989 is a prime."""
    made = resolve_batch(recipe_for(tmp_path, batch=batch, accumulate=None, n_ctx=128), torch.device("cpu")).train
    assert made.batch * made.accumulate == batch
    assert made.accumulate > 1 or batch == 99_999_989


@pytest.mark.parametrize("budget", [0.1, 10.0, 1e3])
def test_measuring_takes_one_pass_and_multiplies(monkeypatch, budget):
    """By a clock that says 1 for a row and 5 for an update, whatever the budget lets it try."""
    now, taken, updates, polls = [0.0], [], [], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def take_pass(rows):
        taken.append(rows)
        now[0] += rows

    def update():
        updates.append(1)
        now[0] += 5

    poll = lambda: polls.append(len(taken) + len(updates))  # noqa: E731
    found = measure.seconds_per_step(take_pass, update, rows=12, passes=7, poll=poll, budget=budget)
    assert found == 7 * 12 + 5
    assert sum(taken) <= max(1.0, budget)
    assert sorted(set(polls)) == list(range(1, len(taken) + len(updates) + 1))
    assert (12 in taken) == (budget > 100)


def test_a_pass_that_loads_kernels_is_not_measured(monkeypatch):
    now, taken = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def take_pass(rows):
        now[0] += rows if taken else 100.0
        taken.append(rows)

    for warms_up, seconds in ((True, 4.0), (False, 400.0)):
        taken.clear()
        found = measure.seconds_per_step(take_pass, lambda: None, rows=4, passes=1, budget=0.5, warms_up=warms_up)
        assert found == seconds


def test_what_cannot_be_left_is_said_to_be_finished(child, tmp_path, monkeypatch):
    """One call of a library that lasts longer than the patience with a signal; a thread answers meanwhile."""
    write_text(tmp_path)

    def compiled(loss):
        def call(given):
            child.here()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # Python comes to no handler while this goes on
            return loss(given)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("pellucid.runs.trainable.compiled", compiled)
        patch.setattr("pellucid.training.step_choice.can_compile", lambda device: True)
        compiled_too = [word.replace("compile=no", "compile=yes") for word in TINY]
        command = ["train", "text.txt", *compiled_too, "--steps", "3", "--out", "run"]
        code, said = child.run(command, signal.SIGTERM)
    assert code == 143, said
    assert "finishing: compiling the first step ... (once more, Ctrl-C or SIGTERM stops at once)" in said
    assert steps_of(tmp_path / "run") == [1]


@pytest.mark.slow
def test_a_run_that_is_made_longer_is_as_it_was_when_its_measurement_is_interrupted(child, tmp_path, monkeypatch):
    text = write_text(tmp_path)
    run = start(text, tmp_path / "run", steps=4).path
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:
        measuring_a_step(patch, child)
        code, said = child.run(["train", "--resume", "--out", "run", "--minutes", "5"], signal.SIGINT)
    assert code == 130, said
    (run / "report.html").unlink()
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert resume(run, steps=6).step == 6


def test_a_signal_that_waited_is_obeyed_between_passes(tmp_path):
    """A step that has begun is finished where the signal has just come, and left where it has been waiting."""
    from tiny import make_training

    training = make_training(write_text(tmp_path), tmp_path / "run", accumulate=2)
    training.network.train()
    training.interruption.signal = signal.SIGINT
    training.interruption.came = time.monotonic()
    training.take_step()
    assert training.step == 1
    training.interruption.came -= 10
    before = [p.detach().clone() for p in training.network.parameters()]
    Trainer.take_step(training)
    assert training.step == 1
    assert all(bool((a == b).all()) for a, b in zip(before, training.network.parameters(), strict=True))
