"""What a phase shows: how far it is, in its own unit, when it takes longer than a second; and that a signal ends it."""

import io
import time

import pytest
from rich.console import Console
from tiny import FIELDS

from pellucid.runs import interrupt
from pellucid.runs.interrupt import Interrupted, Interruption, Phase
from pellucid.runs.live_reporter import LiveReporter
from pellucid.runs.options import with_record
from pellucid.runs.reporter import PlainReporter, how_far
from pellucid.training.recipe import make_recipe


def phase_of(name="encoding", unit="bytes", done=0, total=0):
    phase = Phase(name, unit, Interruption())
    phase.set(done, total)
    return phase


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        (phase_of(done=1_000_000, total=4_000_000), "encoding: 25% of 4.0 MB, 0.5 MB/s, ETA 0:06"),
        (phase_of(done=0, total=4_000_000), "encoding: 0% of 4.0 MB"),
        (phase_of("step 7", "passes", 2, 10), "step 7: 2 of 10 passes, ETA 0:08"),
        (phase_of("sampling", "tokens", 0, 100), "sampling: 0 of 100 tokens"),
        (phase_of("making the tokenizer", "characters", 5_000), "making the tokenizer: 5,000 characters, 0:02"),
        (phase_of("measuring a step", ""), "measuring a step: 0:02"),
        (phase_of("reading", "pairs", 300), "reading: 300 pairs, 0:02"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_says_how_far_it_is(phase, says, monkeypatch):
    monkeypatch.setattr(Phase, "seconds", 2.0)
    assert how_far(phase) == says


def shown(reporter, monkeypatch, work, patience=0.0):
    """What is seen of `work(phase)` by somebody who looks every hundredth of a second."""
    monkeypatch.setattr(interrupt, "PHASE_DELAY", patience)
    monkeypatch.setattr(interrupt, "TICK", 0.01)
    with Interruption(reporter) as interruption, interruption.phase("counting", "tokens") as phase:
        work(phase)


def until(true):
    """Wait until it is so; half a minute is a hang."""
    ends = time.monotonic() + 30
    while not true():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.005)


def test_lines_where_there_is_no_terminal(monkeypatch):
    """The main thread need not come back to Python's loop for them: another thread looks at the clock."""
    file = io.StringIO()

    def work(phase):
        phase(10, 40)
        until(lambda: "counting: 10 of 40 tokens" in file.getvalue())
        phase(30, 40)
        until(lambda: "counting: 30 of 40 tokens" in file.getvalue())
        phase.stage("sorting", 0, 0)
        until(lambda: "sorting: 0:00" in file.getvalue())

    shown(PlainReporter(file, every_seconds=0.0), monkeypatch, work)


def test_what_is_soon_done_is_not_worth_a_word(monkeypatch):
    file = io.StringIO()
    shown(PlainReporter(file), monkeypatch, lambda phase: phase(1, 2), patience=1.0)
    assert file.getvalue() == ""


def test_one_line_at_once_and_then_one_now_and_then(monkeypatch):
    """Before training the first line of a phase comes at once; within it, only where no other came for a while."""
    file = io.StringIO()
    reporter = PlainReporter(file, every_seconds=1e6)
    shown(reporter, monkeypatch, lambda phase: until(lambda: file.getvalue()) or time.sleep(0.1))
    assert len(file.getvalue().splitlines()) == 1
    reporter.is_training = True
    shown(reporter, monkeypatch, lambda phase: time.sleep(0.1))
    assert len(file.getvalue().splitlines()) == 1


def test_a_bar_in_a_terminal(monkeypatch):
    file = io.StringIO()

    def work(phase):
        phase(10, 40)
        until(lambda: "counting: 10 of 40 tokens" in file.getvalue())

    reporter = LiveReporter(Console(file=file, force_terminal=True, width=100))
    shown(reporter, monkeypatch, work)
    assert reporter.bar is None


def test_a_signal_ends_it():
    interruption = Interruption()
    interruption.signal = 2
    for act in (lambda phase: phase(), lambda phase: phase(1, 2), lambda phase: phase.stage("b", 1, 2)):
        with pytest.raises(Interrupted), interruption.phase("a") as phase:
            act(phase)
    with interruption.phase("a") as phase:
        phase.set(1, 2)


def test_the_innermost_phase_is_shown(monkeypatch):
    file = io.StringIO()

    def work(phase):
        with phase.interruption.phase("inner"):
            until(lambda: "inner: 0:00" in file.getvalue())
        until(lambda: "counting: 0:00" in file.getvalue())

    shown(PlainReporter(file, every_seconds=0.0), monkeypatch, work)


def test_the_speed_of_a_short_run_is_that_of_its_steps(monkeypatch):
    """Rows of the last steps are read at once: what counts is when their steps were taken."""
    recipe = with_record(make_recipe(("a",), None, FIELDS), decay=(6, 6))
    out = io.StringIO()
    reporter = PlainReporter(out)
    reporter.begin(recipe, 0)
    for step in range(1, 7):
        reporter.step({"step": step, "loss": 2.5, "learning_rate": 1e-3, "seconds": 10.0 + 0.5 * step}, 6)
    assert f"{2 * recipe.tokens_per_step:,} tokens/s" in out.getvalue()
