"""The demo trains once, shows what it has when asked again, and trains again when told to."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from pellucid import demo, load, train
from pellucid.cli import main
from pellucid.text.read.documents import bundled


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each training resumed; three steps of a tiny model instead of minutes."""
    done: list[bool] = []
    text = tmp_path / "text.txt"
    shakespeare = Path(__file__).parents[1] / "data" / "shakespeare.txt"
    text.write_text(shakespeare.read_text(encoding="utf-8")[:20_000], encoding="utf-8")

    def short_training(*inputs, minutes=None, fields=None, resume=False, **options):
        done.append(resume)
        given = {} if resume else {"steps": 3, "fields": {**(fields or {}), "model.d_model": 32, "model.n_ctx": 32}}
        return train(*inputs, resume=resume, **options, **given)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "bundled", lambda name: text)
    monkeypatch.setattr(demo, "train", short_training)
    return done


def test_once_then_shown_then_fresh(trainings, capsys):
    assert demo.run_demo([]) == 0
    first = capsys.readouterr().out
    assert "where to look next" in first
    assert "bits per byte" in first
    assert re.search(
        r"\n  previous token  0\.\d\d  layer [01], head [0-3]\n  induction       0\.\d\d  layer [01], ", first
    )
    report, inspect, look = (line.split("  ")[1] for line in first.splitlines()[-3:])
    assert report == ".venv/bin/pellucid report runs/demo"
    assert look == ".venv/bin/pellucid look runs/demo"
    assert main(shlex.split(inspect)[1:]) == 0  # the model reads the text, of which it has seen little
    assert Path("page.html").exists()
    assert Path("runs/demo/report.html").exists()
    capsys.readouterr()
    assert demo.run_demo([]) == 0
    assert "FRESH=1" in capsys.readouterr().out
    assert trainings == [False]
    assert demo.run_demo(["--fresh"]) == 0
    assert trainings == [False, False]


def test_what_is_read_is_shakespeare_and_repetitions_and_what_is_held_out_is_the_rest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "ROMEO:\nBut soft, what light through yonder window breaks? " * 200
    folder, held_out = demo.write_texts(text)
    assert (folder / "shakespeare.txt").read_text() + held_out.read_text() == text
    repeated = (folder / "repetitions.txt").read_text()
    assert set(repeated) == set(text)
    assert 0 <= len(repeated) - demo.REPEATED * 0.9 * len(text) <= 2 * demo.LINE
    for line in repeated.splitlines():
        period = line.index(line[0], 1)
        assert demo.PERIODS[0] <= period <= demo.PERIODS[1]
        assert line[period:] == line[:-period]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_model_has_a_previous_token_head_and_an_induction_head_above_it(tmp_path, monkeypatch):
    """At fewer steps than three minutes have."""
    monkeypatch.chdir(tmp_path)
    texts, held_out = demo.write_texts(bundled("shakespeare").read_text(encoding="utf-8"))
    train(texts, held_out=[held_out], out=demo.RUN_DIR, steps=2000, fields=demo.FIELDS)
    heads = load(demo.RUN_DIR).heads()
    for kind, layer, least in (("previous", 0, 0.5), ("induction", 1, 0.4), ("attended_rank", 1, 0.5)):
        assert heads.best(kind)[0] == layer
        assert heads.scores[kind].max() >= least


@pytest.mark.slow
def test_one_that_was_interrupted_is_continued(trainings):
    assert demo.run_demo([]) == 0
    # as if it had been before its first checkpoint
    Path("runs/demo/metrics.jsonl").write_text("")
    shutil.rmtree("runs/demo/checkpoints")
    Path("runs/demo/checkpoints").mkdir()
    assert demo.run_demo([]) == 0
    assert trainings == [False, True]


def test_what_stops_it_is_one_line_and_an_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["make demo", "--minutes", "0"])
    assert demo.demo_command() == 2
    assert capsys.readouterr().err == "pellucid: --minutes 0: expected a number above 0\n"
