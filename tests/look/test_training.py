"""The page Training: the curves of a run, its heads at every checkpoint, and the way from there to any page."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.look.conftest import RunningInspector, looking, ready, shown_numbers

import pellucid
from pellucid.language_model import heads_over, known_answer
from pellucid.lens.core.inputs import InputError
from pellucid.look.session import Session
from pellucid.look.training import HeadsBody, grouped_losses, heads_forming, loss_by_position, training_curves
from pellucid.predictors.on_text import tokens_of
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.metrics import read_metrics
from pellucid.training.load import read_recipe

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


def test_the_loss_by_position_is_the_runs_own_held_out_loss(session: Session, run: Path):
    reading, *_, last = loss_by_position(session, "6")
    row = [row for row in read_metrics(run / "metrics.jsonl") if row.get("held_out_loss") is not None][-1]
    assert row["step"] == 6
    assert last["mean"] == pytest.approx(row["held_out_loss"], rel=1e-6)
    assert last["done"] == last["of"]
    assert reading == {"doing": "reading the held-out text"}
    # each position, from traces of windows that do not overlap
    model = session.model("6")
    tokens = tokens_of(run, read_recipe(run), None)
    ids = tokens.part("held_out").read(0, len(tokens.part("held_out")))
    rows = [model.trace(ids[k : k + 17].tolist()[:16]).logits[0].log_softmax(-1) for k in range(0, len(ids) - 1, 16)]
    losses = [
        [-float(row[j, ids[16 * k + j + 1]]) for k, row in enumerate(rows) if 16 * k + j + 1 < len(ids)]
        for j in range(16)
    ]
    assert [point[:2] for point in last["points"]] == [[j, j] for j in range(1, 17)]
    assert [point[3] for point in last["points"]] == [len(one) for one in losses]
    assert [point[2] for point in last["points"]] == pytest.approx([np.mean(one) for one in losses], rel=1e-5)


def test_many_positions_are_drawn_in_groups():
    sums, counts = torch.arange(200.0).double() * 2, torch.full((200,), 2.0)
    counts[40:44] = sums[40:44] = 0
    groups = grouped_losses(sums, counts)
    assert groups[0] == [1, 4, 1.5, 8]
    assert len(groups) == 49


def test_a_model_that_has_no_held_out_text_is_refused():
    with pytest.raises(InputError, match="no transformer's run"):
        next(loss_by_position(Session(known_answer())))


@pytest.mark.slow
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
    page.click("#positions button:text-is('Measure')")
    page.wait_for_selector("#positions [data-name='position.mean']")
    page.locator("#positions [data-waiting]").wait_for(state="detached")
    *_, last = loss_by_position(running.session, str(step))
    (_, _, at_first, _), (_, _, at_last, _) = last["points"][0], last["points"][-1]
    shown = shown_numbers(page, "#positions")
    for name, value in {"mean": last["mean"], "first": at_first, "last": at_last, "gain": at_last - at_first}.items():
        assert shown[f"position.{name}"] == pytest.approx(value, rel=1e-5, abs=1e-9)
    page.locator("#heads svg").click(position={"x": 60, "y": 80})
    page.wait_for_selector("header b:text-is('2')")
    assert "checkpoint=2" in page.url
    ready(page)
