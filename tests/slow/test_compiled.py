"""Training with torch.compile: losses as far from float64's as eager's are, and resumed bit for bit.

Two roundings of one computation drift apart; by how much depends on the text, the steps and the machine. So each
comparison runs the same training in float64 too: what eager computation differs from it by, with attention computed in
two orders, is what rounding does on this machine, and compiled computation may differ from it by a few times that.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from pellucid.runs import muon
from pellucid.runs.checkpoint import load_checkpoint
from pellucid.runs.device import can_compile, resolve_device
from pellucid.runs.metrics import read_metrics
from pellucid.training_run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: what is left open is measured on the machine: precision too, which is bfloat16 where there are units for it
FIELDS = {"tokenizer": "char", "d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch": 4, "device": "cpu"}
FIELDS |= {"sample_every": 0, "precision": "float32"}
TEXT = Path(__file__).parents[1] / "data" / "shakespeare.txt"
#: how many times eager's largest distance from float64 compiled computation may be away from it
TIMES = 8


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compiled graphs are kept between runs: not between those of a test and others."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    # an earlier test, or PyTorch, may have set it for the whole process
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache" / "compiled"))
    assert can_compile(resolve_device("cpu"))


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


@contextmanager
def in_float64() -> Iterator[None]:
    """New networks are float64, and so is Muon's iteration."""
    orthogonal = muon.orthogonal
    torch.set_default_dtype(torch.float64)
    muon.orthogonal = lambda u, dtype: orthogonal(u, torch.float64)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        muon.orthogonal = orthogonal


@dataclass(frozen=True)
class Training:
    """One training, which is run in several ways from the same start over the same batches."""

    text: Path
    folder: Path
    steps: int
    fields: dict[str, Any]

    def losses(self, name: str, **fields: str) -> torch.Tensor:
        """The losses of its steps with these fields."""
        train(self.text, out=self.folder / name, steps=self.steps, fields=self.fields | {"compile": "no"} | fields)
        return torch.tensor(losses(self.folder / name), dtype=torch.float64)

    def exact(self) -> torch.Tensor:
        """The losses in float64."""
        with in_float64():
            return self.losses("float64")

    def rounding(self, exact: torch.Tensor, precision: str) -> float:
        """The largest distance of a loss from float64's in eager computation of this precision."""
        ways = (self.losses(f"{precision} {way}", precision=precision, attention=way) for way in ("fused", "explicit"))
        return max(apart(found, exact) for found in ways)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """max |one - other|"""
    return (one - other).abs().max().item()


def check_compiled(training: Training, precision: str) -> None:
    """Compiled training is as far from float64 as eager training of this precision, within a factor."""
    exact = training.exact()
    assert apart(exact, exact[:1]) > 0.1, "the training goes somewhere"
    rounding = training.rounding(exact, precision)
    assert rounding > 0
    compiled = training.losses("compiled", precision=precision, compile="yes")
    assert apart(compiled, exact) <= TIMES * rounding
    if precision == "bfloat16":
        # bfloat16 has 8 binary digits and float32 24: what it rounds is seen in the losses, and does not hide them
        assert rounding > 100 * training.rounding(exact, "float32")
        assert rounding < 0.02 * exact.min()


def test_compiled_training_is_resumed_bit_for_bit(tmp_path: Path):
    fields = {
        **FIELDS,
        "dropout": 0.1,
        "ngrams": (2, 3),
        "compile": "yes",
        "checkpoint_every": 4,
        "keep_last": 3,
    }
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_training(precision: str, tmp_path: Path):
    fields = FIELDS | {"dropout": 0.0, "ngrams": (2, 3)}
    check_compiled(Training(TEXT, tmp_path, 12, fields), precision)


def test_compiled_training_of_pairs(tmp_path: Path):
    """Encoder and decoder over batches of several widths; both precisions are compared above."""
    words = ["ab" * (1 + k % 9) for k in range(40)]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{w}{k}\t{k}{w}\n" for k, w in enumerate(words)))
    fields = FIELDS | {"n_layers": 1, "objective": "source-target", "dropout": 0.0}
    check_compiled(Training(pairs, tmp_path, 8, fields), "float32")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_second_run_of_a_shape_finds_the_whole_graph_on_disk(precision: str, tmp_path: Path):
    """Its backward pass too, which PyTorch derives anew for graphs whose functions it does not know."""
    fields = FIELDS | {
        "precision": precision,
        "compile": "yes",
        "n_layers": 1,
        "attention": "fused",
    }
    for name, found in (("first", "autograd_cache_miss"), ("second", "autograd_cache_hit")):
        torch._dynamo.reset()  # as in a new process
        counters.clear()
        train(TEXT, out=tmp_path / name, steps=2, fields=fields)
        counted = {what: n for what, n in counters["aot_autograd"].items() if what.startswith("autograd_cache")}
        counted.pop("autograd_cache_saved", None)
        assert set(counted) == {found}, counted
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
