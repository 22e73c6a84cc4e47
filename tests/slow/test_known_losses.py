"""Trainings whose results are known from elsewhere. Minutes long: make test-slow."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.language_model import load
from pellucid.runs.metrics import read_metrics
from pellucid.text.read.documents import bundled
from pellucid.training_run import train

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_nanogpt_cpu_recipe(tmp_path: Path):
    """The command of docs/training.md ends within 0.03 of nanoGPT's published 1.88 nats per character."""
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    command = next(b for b in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "--out runs/nanogpt" in b)
    words = shlex.split(command.replace("\\\n", " ").replace("runs/nanogpt", str(tmp_path / "run")))
    subprocess.run([sys.executable, "-m", *words], cwd=bundled("shakespeare").parent, check=True)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row.get("whole")]
    assert rows[-1]["step"] == 2000
    assert rows[-1]["held_out_loss"] == pytest.approx(1.88, abs=0.03)


def test_default_writes_words_of_its_source(tmp_path: Path):
    """After 500 steps of the default recipe most words of a sample are words of the text, and it learned a lot.

    About two minutes of two quiet cores; steps, so that the result is the same on a busy machine.
    """
    run = train(bundled("shakespeare"), out=tmp_path / "run", steps=500)
    model = load(run.path)
    known = set(re.findall(r"[a-z']+", bundled("shakespeare").read_text(encoding="utf-8").lower()))
    written = " ".join(model.generate("ROMEO:\n", max_tokens=300, seed=seed).text for seed in range(3)).lower()
    words = re.findall(r"[a-z']+", written)
    assert len(words) > 200
    assert sum(word in known for word in words) / len(words) > 0.85
    assert run.bits_per_byte is not None
    assert run.bits_per_byte < 2.6  # the character trigrams of this text have about 2.9 bits
