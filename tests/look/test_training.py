"""The page Training: the curves of a run, its heads at every checkpoint, and the way from there to any page."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.look.conftest import RunningInspector, looking, ready, shown_numbers

import pellucid
from pellucid.language_model import heads_over, known_answer
from pellucid.lens.core.inputs import InputError
from pellucid.look.session import Session
from pellucid.look.training import HeadsBody, heads_forming, training_curves
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.metrics import read_metrics

FIELDS = {"n_layers": 1, "n_heads": 2, "d_model": 16, "n_ctx": 16, "batch": 4, "tokenizer": "char", "compile": "no"}
FIELDS |= {"checkpoint_every": 2, "keep_last": 9, "evaluate_every": 2, "sample_every": -1, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shakespeare: str) -> Path:
    """Six steps, with a checkpoint after every second one."""
    folder = tmp_path_factory.mktemp("looked")
    (folder / "text.txt").write_text(shakespeare[:4000], encoding="utf-8")
    pellucid.train(folder / "text.txt", out=folder / "run", steps=6, fields=FIELDS)
    return folder / "run"


@pytest.fixture(scope="module")
def session(run: Path) -> Session:
    steps = steps_of(run)
    assert len(steps) == 3
    return Session(
        pellucid.load(run), name="run", load=lambda step: pellucid.load(run, checkpoint=str(step)), steps=steps
    )


def test_the_curves_are_those_of_the_run(session: Session, run: Path):
    shown = training_curves(session)
    rows = read_metrics(run / "metrics.jsonl")
    loss = next(curve for curve in shown["curves"] if curve["title"] == "Loss")
    lines = {line["name"]: line["points"] for line in loss["lines"]}
    assert lines["training"] == [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
    held_out = [(row["step"], row["held_out_part"]) for row in rows if row.get("held_out_part") is not None]
    assert lines["held out"] == held_out
    assert shown["steps"] == [2, 4, 6]
    assert shown["best"] == min(held_out, key=lambda point: point[1])[0]
    head, _, last = shown["code"].rstrip().rpartition("\n")
    names: dict = {}
    exec(head, names)
    assert eval(last, names) == held_out


def test_heads_at_every_checkpoint_are_those_of_heads_over(session: Session, run: Path):
    start, *rows = heads_forming(session, HeadsBody())
    assert start["steps"] == [row["step"] for row in rows] == [2, 4, 6]
    for step, heads in heads_over(run).items():
        row = next(row for row in rows if row["step"] == step)
        for kind, scores in heads.scores.items():
            np.testing.assert_allclose(row["scores"][kind], scores, atol=1e-6)
            assert tuple(row["best"][kind]) == heads.best(kind)
    assert "heads_over" in start["code"]


def test_a_step_without_a_checkpoint_is_refused(session: Session):
    with pytest.raises(InputError, match="steps 2, 4, 6"):
        next(heads_forming(session, HeadsBody(steps=[3])))


def test_a_model_that_was_not_trained_here_has_heads_and_no_curves():
    session = Session(known_answer())
    assert "written by hand" in training_curves(session)["why_none"]
    start, row = heads_forming(session, HeadsBody(text=" Anna Smith met Ivan Lee. Anna"))
    assert start["steps"] == [None]
    assert row["best"]["induction"] == [1, 0]
    _, without = heads_forming(session, HeadsBody(text="Rome is in"))
    assert without["best"]["induction"] is None


@pytest.fixture(scope="module")
def running(session: Session) -> Iterator[RunningInspector]:
    with looking(session) as inspector:
        yield inspector


def test_a_click_on_a_step_moves_every_page(running: RunningInspector, visit, run: Path):
    page = visit(running.url + "/#page=training")
    page.wait_for_selector("#heads [data-done='3'][data-total='3']")
    step = int(page.locator("header b").nth(1).inner_text())
    heads = pellucid.load(run, checkpoint=str(step)).heads()
    shown = shown_numbers(page, "#heads")
    for kind, scores in heads.scores.items():
        assert shown[f"heads.{kind}"] == pytest.approx(float(scores[heads.best(kind)]), abs=1e-6)
    page.locator("#heads svg").click(position={"x": 60, "y": 80})
    page.wait_for_selector("header b:text-is('2')")
    assert "checkpoint=2" in page.url
    ready(page)
