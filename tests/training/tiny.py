"""Runs small enough to be made by the dozen, and what two of them are compared by."""

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pellucid.runs.checkpoint import load_checkpoint, steps_of
from pellucid.runs.interrupt import Interruption
from pellucid.runs.length import resolve_intervals, with_steps
from pellucid.runs.metrics import WALL_CLOCK, MetricsFile, read_metrics
from pellucid.runs.optimizer import make_optimizer
from pellucid.runs.pipeline import resume_run, start_run
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.trainer import Trainer
from pellucid.text.read.documents import read_corpus
from pellucid.text.split import split_corpus
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text.tokens.prepare import prepare_tokens
from pellucid.text_model import Model
from pellucid.training.build import build_network, choose_for_device
from pellucid.training.data import TokenData
from pellucid.training.load import read_recipe
from pellucid.training.recipe import Recipe, make_recipe
from pellucid.training.trainable import TransformerTrainable

SHAKESPEARE = Path(__file__).parent.parent / "data" / "shakespeare.txt"

#: two layers, dropout on, two passes a step, everything decided that would be measured
FIELDS: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_ctx": 16,
    "ngrams": (2,),
    "ngram_rows": 32,
    "dropout": 0.1,
    "tokenizer": "byte",
    "batch": 2,
    "accumulate": 2,
    "steps": 12,
    "evaluate_every": 4,
    "evaluate_tokens": 100,
    "precision": "float32",
    "compile": "no",
    "attention": "fused",
    "device": "cpu",
}


#: metrics files of loops that a test made by hand; conftest.py closes them
OPEN: list[MetricsFile] = []


class Heard(PlainReporter):
    """Keeps every line."""

    def __init__(self):
        super().__init__(explains=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def write_text(folder: Path, n: int = 4000, name: str = "text.txt") -> Path:
    """A file with the first `n` characters of Shakespeare."""
    path = folder / name
    path.write_text(SHAKESPEARE.read_text(encoding="utf-8")[:n], encoding="utf-8")
    return path


def recipe_for(text: Path, **fields: Any) -> Recipe:
    return make_recipe((str(text),), "small", {**FIELDS, **fields})


def sample_text(model: Model, prompt: str, seed: int, poll: Any = None) -> str:
    """A sampler with a result that depends on the weights and the seed alone."""
    model.network.eval()
    with torch.no_grad():
        logits = model.network(torch.zeros(1, 4, dtype=torch.int64))
    model.network.train()
    return f"{seed} {logits.argmax().item()}"


def start(text: Path, out: Path, reporter: PlainReporter | None = None, sampler: Any = sample_text, **fields: Any):
    return start_recipe(recipe_for(text, **fields), out, reporter, sampler)


def start_recipe(recipe: Recipe, out: Path, reporter: PlainReporter | None = None, sampler: Any = None, **given: Any):
    """A run of this recipe; `given` are the other arguments of TransformerTrainable."""
    return start_run(TransformerTrainable(recipe, sampler, **given), out, reporter or Heard())


def resume(
    out: Path,
    reporter: PlainReporter | None = None,
    sampler: Any = sample_text,
    inputs: tuple[str, ...] = (),
    **length: Any,
):
    written = read_recipe(out)
    trainable = TransformerTrainable(replace(written, inputs=inputs or written.inputs), sampler)
    return resume_run(trainable, out, length, reporter or Heard(), written)


def make_training(
    text: Path, out: Path, dtype: torch.dtype = torch.float32, data: Any = None, **fields: Any
) -> Trainer:
    """The trainer of a run before its first step, without the other files of the run's folder."""
    recipe = recipe_for(text, **fields)
    device = torch.device(recipe.train.device)
    split = split_corpus(read_corpus([str(text)]), recipe.text.held_out, recipe.train.seed)
    tokenizer = ByteTokenizer()
    model = replace(recipe.model, n_vocab=tokenizer.n_vocab)
    recipe = resolve_intervals(with_steps(replace(recipe, model=model), recipe.train.steps))
    trainable = TransformerTrainable(recipe)
    trainable.network = build_network(recipe, device).to(dtype)
    choose_for_device(trainable.network, recipe, device)
    trainable.loss = trainable.make_loss()
    tokens = None if data else prepare_tokens(split, tokenizer, out.parent / "cache")
    trainable.data = data or TokenData(tokens, recipe, device)
    out.mkdir(parents=True, exist_ok=True)
    reporter = Heard()
    reporter.begin(recipe, 0)
    OPEN.append(MetricsFile(out / "metrics.jsonl"))
    return Trainer(
        run_dir=out,
        trainable=trainable,
        optimizer=make_optimizer(recipe, trainable.network),
        reporter=reporter,
        metrics=OPEN[-1],
        interruption=Interruption(),
    )


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Every weight and every number of the optimiser at a checkpoint."""
    checkpoint, _ = load_checkpoint(run, step)
    return checkpoint.weights | checkpoint.optimizer


def assert_same_tensors(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Bit for bit, names too."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].numpy().tobytes() == b[name].numpy().tobytes(), name


def rows(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the clock."""
    found = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in WALL_CLOCK} for row in found]


def assert_same_run(run: Path, other: Path) -> None:
    """Weights, optimiser and metrics of two finished runs, bit for bit."""
    last = steps_of(run)[-1]
    assert steps_of(other)[-1] == last
    assert_same_tensors(tensors(run, last), tensors(other, last))
    assert rows(run) == rows(other)
    a, b = (json.loads((r / "checkpoints" / "best.json").read_bytes()) for r in (run, other))
    assert a == b


def forked(
    do: Callable[[], int],
    folder: Path,
    kill_after: float | None = None,
    then: Callable[[int], None] | None = None,
    hang: float = 0.0,
) -> tuple[int, str, str]:
    """Do it in a process of its own, which may be killed; its exit code (-9 for SIGKILL), output and errors.

    `then` is called with the number of the process; `hang` seconds later it is killed where it still runs.
    A fork, because importing torch anew would take longer than everything else here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on threads: none of them is ours
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = do()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    if then is not None:
        then(pid)
    ends = time.monotonic() + hang
    while hang and time.monotonic() < ends:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.02)
    else:
        if hang:
            os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, *((folder / name).read_text() if (folder / name).exists() else "" for name in ("stdout", "stderr"))
