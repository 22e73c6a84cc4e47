"""What a first token does not wait for: packages and rooms that opening a model and generating make no use of.

The seconds are measured by benchmarks/first_token.py. A test of seconds would fail on a machine that is busy, so these
tests name what once took them.
"""

import json
import subprocess
import sys

import pytest

import pellucid
from some_cases import one_in

#: PyTorch's compiler and what it loads, other servers and libraries, and our own rooms for other work
NOT_NEEDED = {
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.testing",
    "sympy",
    "numpy.random",
    "beartype",
    "rich.live",
    "rich.progress",
    "tyro",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "huggingface_hub",
    "transformers",
    "matplotlib",
    "pyarrow",
    "pellucid.cli",
    "pellucid.plan",
    "pellucid.reference",
    "pellucid.report",
    "pellucid.runs.pipeline",
    "pellucid.runs.trainer",
    "pellucid.serve",
    "pellucid.training.trainable",
    "pellucid.training_run",
    "pellucid.verify.examine",
}
FIELDS = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "ngrams": (), "tokenizer": "byte", "batch": 2}
FIELDS |= {"precision": "float32", "compile": "no", "attention": "fused", "device": "cpu", "evaluate_every": 1}
FIRST_TOKEN = """
import json, sys
import torch
before = set(sys.modules)
import pellucid
{also}
model = pellucid.load(sys.argv[1], device="cpu", dtype=getattr(torch, sys.argv[2]))
model.generate("text", max_tokens=1, seed=1)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_until_a_token(model, dtype="float32", also=""):
    """The modules that a process loads between the end of `import torch` and its first token, and those of `also`."""
    command = [sys.executable, "-c", FIRST_TOKEN.format(also=also), str(model), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert not done.returncode, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One small model as a run, as a run of adapters on it, as a saved model, and as a folder of Hugging Face."""
    folder = tmp_path_factory.mktemp("first_token")
    (folder / "text.txt").write_text("To be, or not to be, that is the question.\n" * 20)
    run = pellucid.train(folder / "text.txt", out=folder / "run", preset="gpt2", steps=1, fields=FIELDS).path
    fields = {
        "adapt.rank": 2,
        **{name: FIELDS[name] for name in ("batch", "precision", "compile", "attention", "device")},
    }
    adapted = pellucid.train(folder / "text.txt", out=folder / "adapted", from_model=run, steps=1, fields=fields).path
    saved = pellucid.load(run).save(folder / "saved")
    pellucid.convert(run, folder / "huggingface", family="gpt2")
    return {"run": run, "adapters": adapted, "saved": saved, "huggingface": folder / "huggingface"}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    one_in(
        5,
        [
            ("run", "float32"),
            ("adapters", "float32"),
            ("saved", "float32"),
            ("saved", "bfloat16"),
            ("huggingface", "float32"),
        ],
    ),
)
def test_a_first_token_loads_nothing_that_it_does_not_need(folders, kind, dtype):
    assert not loaded_until_a_token(folders[kind], dtype) & NOT_NEEDED


@pytest.mark.slow
def test_what_is_loaded_too_early_would_be_seen(folders):
    loaded = loaded_until_a_token(folders["saved"], also="import pellucid.verify.examine, pellucid.runs.live_reporter")
    assert {"pellucid.verify.examine", "pellucid.reference", "numpy.random", "rich.live"} <= loaded & NOT_NEEDED
