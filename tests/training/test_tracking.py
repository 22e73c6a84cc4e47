"""TensorBoard and Weights & Biases get the rows of metrics.jsonl, and a tracker that fails costs nothing."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from tiny import resume, rows, start, write_text

import pellucid
from pellucid.runs import tracking
from pellucid.runs.checkpoint import folder_of, steps_of
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.runs.tracking import TRACKERS


class FakeRun:
    """Keeps what W&B would get."""

    def __init__(self, fails_at: int = 10**9, **given):
        self.given, self.logged, self.ended, self.metrics, self.fails_at = given, [], None, [], fails_at

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, figures):
        if figures["step"] >= self.fails_at:
            raise OSError("the disk is full")
        self.logged.append((figures["step"], {name: x for name, x in figures.items() if name != "step"}))

    def finish(self, exit_code):
        self.ended = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """A package of this name, its runs in `runs`."""
    fake = SimpleNamespace(runs=[], fails_at=10**9)

    def init(**given):
        fake.runs.append(FakeRun(fake.fails_at, **given))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(tracking, "is_importable", lambda name: True)
    return fake


def figures(run):
    """(step, number) of every figure of metrics.jsonl, by name."""
    found = {}
    for row in read_metrics(run / "metrics.jsonl"):
        for name, x in row.items():
            if type(x) in (int, float) and name != "step":
                found.setdefault(name, []).append((row["step"], float(x)))
    return found


def test_every_row_goes_to_weights_and_biases(tmp_path, wandb):
    run = start(write_text(tmp_path), tmp_path / "run", track="wandb", steps=8, sample_every=4).path
    (there,) = wandb.runs
    assert there.ended == 0
    assert there.metrics == [("*", "step")]
    assert there.given["config"]["train"]["track"] == "wandb"
    assert (there.given["name"], there.given["resume"], there.given["dir"]) == ("run", "allow", str(run))
    found = {}
    for step, row in there.logged:
        for name, x in row.items():
            found.setdefault(name, []).append((step, x))
    samples = found.pop("sample")
    assert [step for step, _ in samples] == [4, 8]
    assert found == figures(run)
    # a run that is resumed goes on in it, wherever its folder is by then; another run has one of its own
    resume(run.rename(tmp_path / "moved"), steps=10)
    assert wandb.runs[1].given["id"] == there.given["id"]
    assert {step for step, _ in wandb.runs[1].logged} == {6, 7, 8, 9, 10}
    start(tmp_path / "text.txt", tmp_path / "run", track="wandb", steps=2)
    assert wandb.runs[2].given["id"] != there.given["id"]


def test_a_run_that_ends_with_an_error_is_marked_as_failed(tmp_path, wandb, monkeypatch):
    monkeypatch.setattr("pellucid.runs.trainer.Trainer.take_step", lambda trainer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(write_text(tmp_path), tmp_path / "run", track="wandb")
    assert wandb.runs[0].ended == 1


def test_every_row_goes_to_tensorboard(tmp_path):
    """As the package itself reads the files; steps that a resumed run takes again are there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = start(write_text(tmp_path), tmp_path / "run", track="tensorboard", steps=8, sample_every=4, floor=1.0).path
    shutil.rmtree(folder_of(run, 8))
    resume(run, steps=10)
    seen = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    seen.Reload()
    found = {name: [(e.step, e.value) for e in seen.Scalars(name)] for name in seen.Tags()["scalars"]}
    expected = figures(run)
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [x for _, x in found[name]] == pytest.approx([x for _, x in points], rel=1e-6), name
    assert "sample/text_summary" in seen.Tags()["tensors"]


@pytest.mark.slow
def test_the_real_package_writes_a_run_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = start(write_text(tmp_path), tmp_path / "run", track="wandb", steps=4).path
    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"held_out_loss" in file.read_bytes()


def test_a_tracker_that_fails_on_the_way_is_left_out_with_a_warning(tmp_path, wandb):
    text, wandb.fails_at = write_text(tmp_path), 6
    plain = start(text, tmp_path / "plain").path
    with pytest.warns(UserWarning, match=r"wandb failed \(the disk is full\) and gets no more figures"):
        run = start(text, tmp_path / "run", track="wandb").path
    assert [row.get("loss") for row in rows(run)] == [row.get("loss") for row in rows(plain)]
    assert {step for step, _ in wandb.runs[0].logged} == {1, 2, 3, 4, 5}


def test_a_tracker_that_cannot_begin_is_left_out_with_a_warning(tmp_path, wandb):
    """What was read and prepared by then is not lost; the run may be resumed with another tracker, or with none."""

    def init(**given):
        raise RuntimeError("no API key")

    wandb.init = init
    with pytest.warns(UserWarning, match=r"wandb failed \(no API key\) and gets no more figures"):
        run = start(write_text(tmp_path), tmp_path / "run", track="wandb", steps=2).path
    assert steps_of(run)[-1] == 2
    done = pellucid.train(out=run, resume=True, fields={"track": "no"}, steps=3)
    assert steps_of(done.path)[-1] == 3
    assert json.loads((run / "recipe.json").read_bytes())["options"]["train"]["track"] == "no"


def test_what_was_handed_on_is_on_disk_with_the_checkpoint(tmp_path, wandb, monkeypatch):
    """A process that is killed takes no step of before its checkpoint again, so nobody would hand those on later."""
    flushed = []
    monkeypatch.setattr(tracking.WeightsAndBiases, "flush", lambda self: flushed.append(len(self.run.logged)))
    start(write_text(tmp_path), tmp_path / "run", track="wandb", steps=8, evaluate_every=4)
    assert flushed[0] >= 4
    assert len(flushed) >= 2


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named_before_anything_is_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tracking, "is_importable", lambda package: False)
    with pytest.raises(RecipeError, match=f"train.track = {name} needs the package {name}: install it"):
        start(tmp_path / "none.txt", tmp_path / "run", track=name)
    assert not (tmp_path / "run").exists()


def test_what_takes_no_steps_has_no_tracker(tmp_path):
    with pytest.raises(RecipeError, match="track"):
        pellucid.train_predictor(write_text(tmp_path), kind="ngram", out=tmp_path / "run", fields={"track": "wandb"})
