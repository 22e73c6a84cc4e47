"""How far reading is: said in bytes of all of them, and ended by a signal."""

import io

import pytest
from rich.console import Console

from pellucid.training import progress
from pellucid.training.display import LiveReporter, PlainReporter
from pellucid.training.interrupt import Interrupted, Interruption
from pellucid.training.progress import ReadingProgress


def go_through(reporter, interruption=None):
    with ReadingProgress(reporter, interruption or Interruption()) as told:
        for stage in ("reading", "encoding"):
            for done in (0, 1_000_000, 3_000_000, 4_000_000):
                told(stage, done, 4_000_000)


def test_lines_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    file = io.StringIO()
    go_through(PlainReporter(file))
    lines = file.getvalue().splitlines()
    assert [line.split(" of ")[0] for line in lines] == [
        f"{s}: {p}%" for s in ("reading", "encoding") for p in (0, 25, 75, 100)
    ]
    assert lines[-1].startswith("encoding: 100% of 4.0 MB, ")
    assert lines[-1].endswith("ETA 0:00")


def test_what_is_soon_done_is_not_worth_a_word():
    file = io.StringIO()
    go_through(PlainReporter(file))
    assert file.getvalue() == ""


def test_a_bar_in_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    file = io.StringIO()
    go_through(LiveReporter(Console(file=file, force_terminal=True, width=100)))
    assert "encoding" in file.getvalue()
    assert "4.0/4.0 MB" in file.getvalue()


def test_a_signal_ends_it():
    interruption = Interruption()
    interruption.signal = 2
    with pytest.raises(Interrupted):
        go_through(PlainReporter(io.StringIO()), interruption)
