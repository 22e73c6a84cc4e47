"""Training with torch.compile: the same losses as without, and resumed bit for bit."""

import shutil
from pathlib import Path

import pytest

from pellucid.language_model import train
from pellucid.training.checkpoint import load_checkpoint
from pellucid.training.metrics import read_metrics
from pellucid.training.resolve import can_compile, resolve_device

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIELDS = {"tokenizer": "char", "d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch": 4, "device": "cpu"}
TEXT = Path(__file__).parents[1] / "data" / "shakespeare.txt"


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


def test_compiled_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    assert can_compile(resolve_device("cpu"))
    fields = {**FIELDS, "dropout": 0.1, "compile": "yes", "checkpoint_every": 4, "keep_last": 3}
    whole = train(TEXT, out=tmp_path / "whole", steps=12, fields=fields)
    assert whole.recipe.train.compile == "yes"
    # the run as a kill after step 8 leaves it
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000012")
    train(out=tmp_path / "parts", resume=True)
    a, _ = load_checkpoint(tmp_path / "whole", 12)
    b, _ = load_checkpoint(tmp_path / "parts", 12)
    assert all(bool((a.weights[name] == b.weights[name]).all()) for name in a.weights)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")

    plain = {**FIELDS, "dropout": 0.0}
    train(TEXT, out=tmp_path / "eager", steps=12, fields={**plain, "compile": "no"})
    train(TEXT, out=tmp_path / "compiled", steps=12, fields={**plain, "compile": "yes"})
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-4)


def test_compiled_training_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Encoder and decoder over batches of several widths: eager's losses, and bfloat16's near them."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    words = ["ab" * (1 + k % 9) for k in range(40)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{w}{k}\t{k}{w}\n" for k, w in enumerate(words)))
    fields = {**FIELDS, "n_layers": 1, "objective": "source-target", "sample_every": -1}
    found = {}
    for name, chosen in {
        "eager": {"compile": "no"},
        "compiled": {"compile": "yes"},
        "bfloat16": {"compile": "no", "precision": "bfloat16"},
    }.items():
        train(tmp_path / "pairs.tsv", out=tmp_path / name, steps=8, fields=fields | chosen)
        found[name] = losses(tmp_path / name)
    assert found["compiled"] == pytest.approx(found["eager"], rel=1e-4)
    assert found["bfloat16"] == pytest.approx(found["eager"], rel=0.02)
    assert found["bfloat16"] != found["eager"]
