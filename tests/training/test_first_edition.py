"""Runs of every kind that version 0.1.0 wrote before modules were renamed: they load, compute the same and resume.

The runs were made from text.txt and pairs.jsonl beside them, four steps each; expected.json holds what the code of that
time computed from them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import pellucid

FIRST_EDITION = Path(__file__).parent.parent / "data" / "runs_of_the_first_edition"
EXPECTED = json.loads((FIRST_EDITION / "expected.json").read_text())
PREDICTORS = ("ngram", "neural-probabilistic", "recurrent")
SCORED = "First Citizen: Before we proceed"


@pytest.fixture
def first_edition(tmp_path, monkeypatch) -> Path:
    """A copy of the runs, with the working directory beside their texts. Where the base of the adapters is, its run
    says by an absolute path: here it is the copy.
    """
    runs = shutil.copytree(FIRST_EDITION, tmp_path / "copy") / "runs"
    recipe = json.loads((runs / "adapter" / "recipe.json").read_text())
    recipe["base"]["path"] = str(runs / "transformer")
    (runs / "adapter" / "recipe.json").write_text(json.dumps(recipe))
    monkeypatch.chdir(runs.parent)
    return runs


@pytest.mark.parametrize("kind", [kind for kind, numbers in EXPECTED.items() if "bits_per_byte" in numbers])
def test_an_earlier_run_scores_as_it_did(first_edition, kind):
    open_run = pellucid.load_predictor if kind in PREDICTORS else pellucid.load
    model = open_run(first_edition / kind)
    score = model.score("Citizen", source="nezitiC") if kind == "source-target" else model.score(SCORED)
    assert score.bits_per_byte == pytest.approx(EXPECTED[kind]["bits_per_byte"], rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind, numbers in EXPECTED.items() if "resumed_step" in numbers])
def test_an_earlier_run_resumes_as_it_did(first_edition, kind):
    run = pellucid.train(out=first_edition / kind, resume=True, steps=6)
    assert run.step == EXPECTED[kind]["resumed_step"]
    assert run.bits_per_byte == pytest.approx(EXPECTED[kind]["resumed_bits_per_byte"], rel=1e-4)


def test_an_earlier_image_classifier_classifies_as_it_did(first_edition):
    images = (np.arange(4 * 16).reshape(4, 4, 4) / 64).astype(np.float32)
    score = pellucid.load_images(first_edition / "image-classifier").score(images, np.array([0, 1, 0, 1]))
    assert score.loss == pytest.approx(EXPECTED["image-classifier"]["nats_per_image"], rel=1e-5)
