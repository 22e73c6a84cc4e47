"""Runs that version 0.2.0 wrote are opened, measured, continued, and write text (CONTRIBUTING.md)."""

import shutil
from pathlib import Path

import pytest

import pellucid
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.metrics import read_metrics

#: written by 0.2.0; never written again, and runs of later formats stand beside them
KEPT = Path(__file__).parents[1] / "data" / "runs"
TEXT = KEPT / "text.txt"
LOAD = {"transformer": pellucid.load, "recurrent": pellucid.load_predictor, "ngram": pellucid.load_predictor}
#: the bits per byte of the text that 0.2.0 measured
BITS = {"transformer": 7.304588, "recurrent": 5.712511, "ngram": 3.430192}


@pytest.fixture(params=LOAD)
def run(request, tmp_path) -> Path:
    """A copy of a kept run."""
    shutil.copytree(KEPT / request.param, tmp_path / request.param)
    return tmp_path / request.param


def test_a_kept_run_is_measured_and_writes_text(run):
    model = LOAD[run.name](run)
    bits = model.score(TEXT.read_text(encoding="utf-8")).bits_per_byte
    assert bits == pytest.approx(BITS[run.name], abs=1e-4)
    samples = [model.generate("First", max_tokens=8, seed=1).text for _ in range(2)]
    assert samples[0] == samples[1] != ""


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_a_kept_run_goes_on(kind, tmp_path):
    """In a copy, whose text has moved."""
    run = Path(shutil.copytree(KEPT / kind, tmp_path / kind))
    assert steps_of(run)[-1] == 6
    before = losses(run)
    train = pellucid.train if kind == "transformer" else pellucid.train_predictor
    assert train(TEXT, out=run, resume=True, steps=8, show=False).exit_code == 0
    assert steps_of(run)[-1] == 8
    assert list(losses(run)) == [*range(1, 9)]
    assert losses(run).items() >= before.items()


def losses(run: Path) -> dict[int, float]:
    """The training loss of each step."""
    return {line["step"]: line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line}


def test_a_kept_tokenizer_makes_the_same_ids():
    tokenizer = pellucid.load_tokenizer(KEPT / "transformer" / "tokenizer.json")
    ids = tokenizer.encode("First Citizen:\n")
    assert list(ids) == [37, 72, 81, 82, 83, 220, 34, 259, 72, 89, 258, 25, 198]
    assert tokenizer.decode(ids) == "First Citizen:\n"
