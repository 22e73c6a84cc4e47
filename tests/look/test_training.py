"""The page Training: the curves of a run, its heads at every checkpoint, and the way from there to any page."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.look.conftest import RunningInspector, looking, ready, shown_numbers

import pellucid
from pellucid.edits import zero
from pellucid.language_model import known_answer
from pellucid.lens.core.inputs import InputError
from pellucid.look.model_card import loading_code
from pellucid.look.session import Session
from pellucid.look.training import HeadsBody, grouped_losses, heads_forming, loss_by_position, training_curves
from pellucid.predictors.on_text import tokens_of
from pellucid.runs.checkpoint import mark_best, steps_of
from pellucid.runs.metrics import read_metrics
from pellucid.training.load import read_recipe

FIELDS = {"n_layers": 1, "n_heads": 2, "d_model": 16, "n_ctx": 16, "batch": 4, "tokenizer": "char", "compile": "no"}
FIELDS |= {"checkpoint_every": 2, "keep_last": 9, "evaluate_every": 2, "sample_every": 0, "device": "cpu"}


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
def test_heads_at_every_checkpoint_are_those_of_its_python(session: Session, run: Path):
    start, *rows = heads_forming(session, HeadsBody())
    assert start["steps"] == [row["step"] for row in rows] == [2, 4, 6]
    results: dict[str, Any] = {}
    exec(start["code"], results)
    assert list(results["heads"]) == start["steps"]
    for step, heads in results["heads"].items():
        row = next(row for row in rows if row["step"] == step)
        for kind, scores in heads.scores.items():
            np.testing.assert_allclose(row["scores"][kind], scores, atol=1e-6)
            assert tuple(row["best"][kind]) == heads.best(kind)


def test_the_numbers_at_the_end_of_a_curve_are_the_last_ones_and_no_means(run: Path, tmp_path: Path):
    """A long run's points are means of their neighbours, and its held-out points are of a part of the text."""
    copied = shutil.copytree(run, tmp_path / "run")
    rows = [{"step": k, "loss": 9 - k / 100, "learning_rate": (700 - k) / 1000, "grad_norm": 1.0} for k in range(700)]
    ends = [{"step": k, "held_out_loss": loss, "held_out_part": 4.0} for k, loss in ((300, 4.0), (699, 4.5))]
    (copied / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in sorted(rows + ends, key=lambda row: row["step"])), encoding="utf-8"
    )
    curves = training_curves(Session(pellucid.load(copied)))["curves"]
    lines = {line["name"]: line for curve in curves for line in curve["lines"]}
    assert len(lines["training"]["points"]) < 700
    ends_of = {name: line["last"] for name, line in lines.items()}
    assert ends_of == pytest.approx({"training": 2.01, "held out": 4.5, "learning rate": 0.001, "gradient norm": 1.0})


def test_code_of_a_run_that_was_opened_by_a_relative_path_names_it_in_full(run: Path, monkeypatch):
    monkeypatch.chdir(run.parent)
    session = Session(pellucid.load("run"), steps=steps_of(run))
    codes = training_curves(session)["code"], next(heads_forming(session, HeadsBody()))["code"]
    monkeypatch.chdir("/")
    for code in codes:
        exec(code, {})


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


def settled_page(page) -> None:
    ready(page)
    page.wait_for_timeout(50)
    page.locator("[data-waiting]").first.wait_for(state="detached")


#: runs each text of code in a process of its own, which knows nothing but what the code imports
FRESH = """
import json, os, sys, traceback
import pellucid, pellucid.look.app
failed = 0
for code in json.load(sys.stdin):
    child = os.fork()
    if not child:
        try:
            exec(compile(code, "copied", "exec"), {"__name__": "copied"})
        except BaseException:
            print(code, file=sys.stderr)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
sys.exit(failed and 1)
"""


def run_each_afresh(codes: list[str], here: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FRESH], input=json.dumps(codes), capture_output=True, text=True, cwd=here
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_what_every_panel_copies_runs_in_a_process_of_its_own(
    running: RunningInspector, visit, run: Path, tmp_path: Path
):
    """With the run and the checkpoint that are shown, under an edit, with everything open that has code."""
    opened = "a=the+king+is&b=the+man+is&checkpoint=4&ngrams=true&shuffle=0&towards=the+king&away=the+man"
    edit = '&edits=[{"op":"scale","name":"blocks.0.attn.z","factor":0.5,"head":[0]}]'
    page, codes = visit(f"{running.url}/#{opened}{edit}"), []
    for name in ("Read", "Tokens", "Attention", "Stream", "Circuits", "Experiment", "Training"):
        page.click(f".tabs a:has-text('{name}')")
        settled_page(page)
        if name == "Read":
            page.locator(".step button:has-text('definition')").first.click()
        if name == "Training":
            page.click("#positions button:text-is('Measure')")
        page.wait_for_selector("main section.panel [data-code]")
        settled_page(page)
        found = page.locator("[data-code]:has-text('Python')").evaluate_all("(all) => all.map((e) => e.dataset.code)")
        assert len(found) > 1, name
        codes += found
    opening = f"import pellucid\n\nmodel = pellucid.load({str(run)!r}, checkpoint='4')\n"
    assert all(code.startswith(opening) for code in codes)
    assert len(set(codes)) > 25
    run_each_afresh(sorted(set(codes)), tmp_path)


def test_the_code_that_opens_a_model_opens_the_one_that_is_shown(run: Path, tmp_path: Path):
    saved = pellucid.load(run).save(tmp_path / "saved")
    shown = [pellucid.load(run, checkpoint="2"), pellucid.load(run, dtype=torch.bfloat16), pellucid.load(saved)]
    for model in [*shown, known_answer()]:
        names: dict = {}
        exec(loading_code(model), names)
        for one, other in zip(model.network.parameters(), names["model"].network.parameters(), strict=True):
            assert torch.equal(one, other)
    changed = shown[0].with_edits([zero("blocks.0.attn.z", head=0)])
    assert "model =" not in loading_code(changed)


def test_the_best_checkpoint_of_a_shorter_run_is_not_taken_for_that_step_of_the_longer_one(run: Path, tmp_path: Path):
    longer = tmp_path / "run"
    shutil.copytree(run, longer)
    mark_best(longer, 6, 0.1)  # better than whatever follows
    pellucid.train(out=longer, resume=True, steps=10, fields={"checkpoint_every": 2, "keep_last": 9})
    assert 6 in steps_of(longer)
    opened, own = pellucid.load(longer), pellucid.load(longer, checkpoint="6")
    assert (opened.provenance["step"], own.provenance["step"]) == (6, 6)
    session = Session(opened, load=lambda step: pellucid.load(longer, checkpoint=str(step)), steps=steps_of(longer))
    for model, shown in ((opened, session.model()), (own, session.model("6"))):
        names: dict = {}
        exec(loading_code(shown), names)
        for found in (shown.network, names["model"].network):
            assert_same_weights(found, model.network)
    with pytest.raises(AssertionError):
        assert_same_weights(opened.network, own.network)
    assert training_curves(session)["best"] is None


def assert_same_weights(network, other) -> None:
    for one, its in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, its)


def test_the_code_that_opens_a_model_gives_what_it_was_opened_with(run: Path, tmp_path: Path):
    opened = pellucid.load(run)
    opened.network.final_norm.gain.data[0] = torch.nan
    spoilt = opened.save(tmp_path / "spoilt")
    opened.tokenizer.save(tmp_path / "other")
    model = pellucid.load(spoilt, allow_nan=True, tokenizer=tmp_path / "other")
    names: dict = {}
    exec(loading_code(model), names)
    assert names["model"].provenance == model.provenance
    assert f"allow_nan=True, tokenizer={str(tmp_path / 'other')!r}" in loading_code(model)
    assert "model =" not in loading_code(pellucid.load(spoilt, allow_nan=True, tokenizer=opened.tokenizer))
