"""The demo trains once, shows what it has when asked again, and trains again when told to."""

import shutil
from pathlib import Path

import pytest

from pellucid import demo
from pellucid.training_run import train as real_train


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each training resumed; three steps of a tiny model instead of minutes."""
    done: list[bool] = []
    text = tmp_path / "text.txt"
    shakespeare = Path(__file__).parents[1] / "data" / "shakespeare.txt"
    text.write_text(shakespeare.read_text(encoding="utf-8")[:20_000], encoding="utf-8")

    def train(*inputs, minutes=None, fields=None, resume=False, **options):
        done.append(resume)
        tiny = {"n_layers": 1, "d_model": 48, "n_ctx": 32, "tokenizer": "char"}
        given = {} if resume else {"steps": 3, "fields": {**(fields or {}), **tiny}}
        return real_train(*inputs, resume=resume, **options, **given)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "bundled", lambda name: text)
    monkeypatch.setattr(demo, "train", train)
    return done


def test_once_then_shown_then_fresh(trainings, capsys):
    assert demo.run_demo([]) == 0
    first = capsys.readouterr().out
    assert "where to look next" in first
    assert "bits per byte" in first
    assert demo.run_demo([]) == 0
    assert "FRESH=1" in capsys.readouterr().out
    assert trainings == [False]
    assert demo.run_demo(["--fresh"]) == 0
    assert trainings == [False, False]


@pytest.mark.slow
def test_one_that_was_interrupted_is_continued(trainings):
    assert demo.run_demo([]) == 0
    metrics = Path("runs/demo/metrics.jsonl")
    kept = [line for line in metrics.read_text().splitlines() if '"whole": true' not in line]
    metrics.write_text("\n".join(kept) + "\n")
    shutil.rmtree("runs/demo/checkpoints")
    assert demo.run_demo([]) == 0
    assert trainings == [False, True]


def test_what_stops_it_is_one_line_and_an_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["make demo", "--minutes", "0"])
    assert demo.demo_command() == 2
    assert capsys.readouterr().err == "pellucid: --minutes 0: expected a number above 0\n"
