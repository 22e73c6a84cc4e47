"""Law: several processes take the steps of one. They are joined by gloo and call `pellucid.train`, as under torchrun.

N processes = 1: equal losses over 20 steps, to 1e-5 with AdamW and to 1e-4 with Muon, whose iteration magnifies the
order of a sum, in float32.
"""

import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from kinds import CHAT_FIELDS, write_conversations, write_pairs
from tiny import FIELDS, assert_same_tensors, rows, tensors, write_text
from together import STEPS, do_in, laid_out, together, train
from torch import nn

import pellucid
from pellucid import cli
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.runs import step as step_module
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.device import describe_device, peak_speed
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.runs.processes import Clocks, Processes, world_size
from pellucid.runs.reporter import PlainReporter, waiting_of
from pellucid.runs.trainer import Trainer
from pellucid.training import objectives, parallel, step_choice
from pellucid.training.config import ParallelOptions
from pellucid.training.load import read_recipe
from pellucid.training.recipe import make_recipe
from pellucid.training.resolve_recipe import divided_anew
from pellucid.training.trainable import TransformerTrainable
from some_cases import one_in

TOLERANCE = {"adamw": 1e-5, "muon": 1e-4}


def numbers(run: Path, name: str) -> list[float]:
    return [row[name] for row in rows(run) if name in row]


def assert_equal_losses(run: Path, other: Path, tolerance: float) -> None:
    """The same rows in the same order, with losses, norms and figures that are equal to a relative tolerance."""
    assert [sorted(row) for row in rows(run)] == [sorted(row) for row in rows(other)]
    for name in ("loss", "held_out_loss", "held_out_part"):
        assert numbers(run, name) == pytest.approx(numbers(other, name), rel=tolerance), name
    assert numbers(run, "grad_norm") == pytest.approx(numbers(other, "grad_norm"), rel=100 * tolerance)
    assert len(numbers(run, "loss")) == read_recipe(run).n_steps


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def test_two_processes_take_the_steps_of_one(text, tmp_path):
    plain = train(text, tmp_path / "one", optimizer="adamw")
    run = train(text, tmp_path / "two", 2, optimizer="adamw")
    assert_equal_losses(run, plain, TOLERANCE["adamw"])
    assert steps_of(run) == steps_of(plain)
    assert read_recipe(run).parallel == ParallelOptions(replicate=2, shard=1, tensor=1)
    waiting = [row["waiting"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]
    assert len(waiting) == STEPS
    assert all(0 <= share < 1 for share in waiting)
    assert not any("waiting" in row for row in read_metrics(plain / "metrics.jsonl"))
    for path, n in ((plain, 1), (run, 2)):
        peak = n * json.loads((path / "machine.json").read_bytes())["peak_tokens_per_second"]
        steps = [row for row in read_metrics(path / "metrics.jsonl") if "loss" in row]
        expected = [row["tokens_per_second"] / peak for row in steps]
        assert [row["share_of_peak"] for row in steps] == pytest.approx(expected, rel=0.01, abs=1e-4)


def test_processes_that_do_not_end_are_ended_and_say_where_they_were():
    """As where one of two waits for what the other one never sends."""

    def never_answered(rank: int) -> None:
        if rank == 1:
            time.sleep(600)

    with pytest.raises(TimeoutError, match=r"not ended after 2 seconds:\nprocess 1 was here:[^}]*in never_answered"):
        together(2, never_answered, deadline=2)


def test_a_peak_timed_elsewhere_is_not_used(tmp_path):
    cpu, path = torch.device("cpu"), tmp_path / "machine.json"
    facts = describe_device(cpu) | {"peak_tokens_per_second": 1e6}
    for written, peak in (
        (json.dumps(facts), 1e6),
        (json.dumps(facts | {"processor": "another"}), None),
        (json.dumps(facts | {"threads": facts["threads"] + 1}), None),
        (json.dumps(facts | {"peak_tokens_per_second": None}), None),
        ("[1", None),
        ("[1]", None),
    ):
        path.write_text(written)
        assert peak_speed(tmp_path, cpu) == peak
    path.unlink()
    assert peak_speed(tmp_path, cpu) is None


def test_what_a_thread_sleeps_is_waiting():
    clocks = Clocks()
    time.sleep(0.05)
    assert clocks.waiting() > 0.5
    assert waiting_of({"waiting": 0.254}) == ", 25% waiting"
    assert waiting_of({}) == ""
    reporter = PlainReporter()
    reporter.begin(make_recipe(("text",), "small", FIELDS), 0, peak=1e9)
    assert re.fullmatch(r"\d+ tokens/s, 0% of peak, 25% waiting", reporter.speed_now({"waiting": 0.254}))


@pytest.fixture
def stop_after(monkeypatch):
    """After these steps SIGTERM comes to the last process alone."""
    steps: set[int] = set()
    real = Trainer.take_step

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step in steps and int(os.environ.get("RANK", "0")) == world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "take_step", take_step)
    return steps


def test_a_signal_to_one_process_stops_all_of_them(text, tmp_path, stop_after):
    stop_after.add(3)

    def do(rank: int) -> None:
        run = pellucid.train(text, out=tmp_path / "run", preset="small", fields={**FIELDS, "dropout": 0.0})
        assert (run.step, run.exit_code) == (3, 143)

    together(2, do)
    assert steps_of(tmp_path / "run") == [3]


@pytest.mark.slow
def test_a_run_goes_on_in_processes_that_do_not_divide_its_passes(text, tmp_path, stop_after):
    """Six rows in two passes of three become six rows in three passes of two."""
    fields = {"optimizer": "adamw", "batch": 3, "evaluate_tokens": 96}
    whole = train(text, tmp_path / "whole", **fields)
    stop_after.add(5)
    run = train(text, tmp_path / "run", **fields)
    train(text, run, 2, resume=True)
    t = read_recipe(run).train
    assert (t.batch, t.accumulate) == (2, 3)
    assert_equal_losses(run, whole, TOLERANCE["adamw"])


@pytest.mark.parametrize(
    ("batch", "passes", "shares", "divided"),
    [
        (4, 2, 2, (4, 2)),
        (3, 2, 2, (2, 3)),
        (3, 4, 2, (2, 6)),
        (4, 3, 3, (3, 4)),
        (1, 8, 4, (4, 2)),
        (5, 4, 10, (10, 2)),
    ],
)
def test_a_step_is_divided_into_the_nearest_passes_whose_rows_the_processes_divide(batch, passes, shares, divided):
    recipe = make_recipe(("text",), "small", {**FIELDS, "batch": batch, "accumulate": passes})
    t = divided_anew(recipe, shares).train
    assert (t.batch, t.accumulate) == divided
    assert t.batch * t.accumulate == batch * passes


def test_a_step_that_the_processes_cannot_divide_is_refused_with_a_number_that_can():
    recipe = make_recipe(("text",), "small", {**FIELDS, "batch": 3, "accumulate": 5})
    with pytest.raises(RecipeError, match=r"a step has 15 rows, which .* = 4 processes cannot divide: .* such as 3"):
        divided_anew(recipe, 4)


@pytest.mark.parametrize(
    ("n", "fields", "message"),
    one_in(
        9,
        [
            (2, {"parallel.replicate": 3}, "parallel.replicate = 3 asks for 3 processes, and there are 2"),
            (2, {"batch": 3}, "train.batch = 3 rows cannot be divided among parallel.replicate x parallel.shard = 2"),
            (1, {"parallel.shard": 2}, "parallel.shard = 2 asks for 2 processes, and there is 1"),
            (1, {"parallel.shard": -1}, "parallel.shard = -1: expected a number of processes"),
            (2, {"parallel.tensor": 2, "n_heads": 1}, "model.n_heads = 1 cannot be divided among parallel.tensor = 2"),
            (
                2,
                {"parallel.tensor": 2, "mlp.experts": 4},
                "parallel.tensor = 2 does not divide experts .mlp.experts = 4.",
            ),
            (
                2,
                {"parallel.tensor": 2, "d_embed": 6},
                "parallel.tensor = 2 does not divide the projections of d_embed = 6: give parallel.shard",
            ),
            (2, {"balance": 0.01, "mlp.experts": 4}, "train.balance = 0.01 is computed of each micro-batch, whose"),
            (
                2,
                {"parallel.gather": "bfloat16", "precision": "float32"},
                "parallel.gather = bfloat16 sends rounded weights",
            ),
            (2, {"parallel.tensor": 2, "n_ctx": 15}, "model.n_ctx = 15 cannot be divided .*: give 16, or another"),
        ],
    ),
)
def test_a_layout_that_does_not_divide_is_refused_before_the_text_is_read(n, fields, message, tmp_path):
    """The text does not exist, and nobody notices."""

    def do(rank: int) -> None:
        if rank == 0:
            with pytest.raises(RecipeError, match=message):
                pellucid.train(tmp_path / "gone", out=tmp_path / "run", fields={**FIELDS, **fields})
        else:
            with pytest.raises(SystemExit):
                pellucid.train(tmp_path / "gone", out=tmp_path / "run", fields={**FIELDS, **fields})

    do_in(n, do)
    assert not (tmp_path / "run").exists()


def test_every_process_takes_a_gpu_of_its_own_or_is_told_why_not(monkeypatch):
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(parallel, "resolve_device", torch.device)
    own = []
    for number in ("0", "1", "2"):  # the last one is of a run on the CPU
        monkeypatch.setenv("LOCAL_RANK", number)
        own.append(parallel.take_own_gpu())
    assert own == [torch.device("cuda", 0), torch.device("cuda", 1), None]
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")  # NCCL would wait for the third one
    assert parallel.take_own_gpu() is None
    assert taken == [0, 1]
    assert parallel.HANGING < parallel.NCCL_HANGING
    parallel.check_gpus("cuda", 2)
    parallel.check_gpus("cpu", 3)
    said = "3 processes need 3 GPUs, and this machine has 2: give --processes 2 or --device cpu"
    with pytest.raises(RecipeError, match=said):
        parallel.check_gpus("cuda", 3)
    with pytest.raises(RecipeError, match=r"train\.device = cuda:1 is one GPU, .*: give --device cuda"):
        parallel.check_gpus("cuda:1", 2)


def test_more_processes_than_gpus_are_refused_before_the_text_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(parallel, "resolve_device", lambda word: torch.device("cuda"))

    def do(rank: int) -> None:
        message = "2 processes need 2 GPUs, and this machine has 1"
        with pytest.raises(SystemExit if rank else RecipeError, match="0" if rank else message):
            pellucid.train(tmp_path / "gone", out=tmp_path / "run", fields=FIELDS)

    together(2, do)


@pytest.mark.parametrize(
    ("asked", "n", "layout"),
    [
        ((None, None, None), 4, (4, 1, 1)),
        ((1, None, None), 4, (1, 4, 1)),
        ((None, None, 2), 4, (2, 1, 2)),
        ((1, 1, None), 4, (1, 1, 4)),
    ],
)
def test_what_is_open_of_a_layout_is_chosen(asked, n, layout):
    names = ("replicate", "shard", "tensor")
    options = ParallelOptions(**dict(zip(names, asked, strict=True)))
    assert options.divided(n) == ParallelOptions(**dict(zip(names, layout, strict=True)))


@pytest.mark.slow
def test_the_command_starts_its_processes_and_gives_their_exit_code(text, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"--set={name}={value if value != () else ''}" for name, value in FIELDS.items() if name != "ngrams"]
    assert cli.main(["train", str(text), "--out", "run", "--processes", "2", *words, "--set", "model.ngrams="]) == 0
    assert "processes: 2 (parallel.replicate = 2" in capfd.readouterr().out
    words = ["--set=batch=3" if word.startswith("--set=batch=") else word for word in words]
    assert cli.main(["train", str(text), "--out", "other", "--processes", "2", *words]) == 2
    refused = capfd.readouterr().err
    assert "train.batch = 3 rows cannot be divided" in refused
    assert "torch/distributed/elastic" not in refused


#: a vocabulary that two and four processes divide; windows too. A pass a step: accumulated ones are divided in
#: test_logits_in_chunks_are_those_of_one_process and by every layout that leaves layers whole
DIVISIBLE = {"tokenizer": "bpe", "vocabulary": 260, "n_heads": 4, "accumulate": 1}


@pytest.mark.parametrize(
    ("n", "fields", "message"),
    one_in(
        2,
        [
            (2, {}, "model.n_vocab = 257 cannot be divided among parallel.tensor = 2 processes: give 258, or another"),
            (2, {"preset": "original", "objective": "source-target"}, "parallel.tensor = 2 does not divide an encoder"),
        ],
    ),
)
def test_a_layer_that_does_not_divide_is_refused_when_its_sizes_are_known(text, tmp_path, n, fields, message):
    fields = {**FIELDS, **fields, "parallel.tensor": n}
    preset = fields.pop("preset", "small")

    def do(rank: int) -> None:
        with pytest.raises(SystemExit if rank else RecipeError, match="0" if rank else message):
            pellucid.train(text, out=tmp_path / "run", preset=preset, fields=fields)

    together(n, do)
    assert not (tmp_path / "run").exists()


#: Muon's matrices are whole in some process, so each way of dividing a network meets one optimizer or the other
TENSOR_LAYOUTS = [("muon", (1, 1, 2)), ("adamw", (2, 1, 2)), ("muon", (1, 2, 2)), ("adamw", (1, 1, 4))]


@pytest.fixture(scope="module")
def divisible_runs(text, tmp_path_factory):
    """The run in one process with each optimizer, of sizes that tensor parallelism divides."""
    return {word: train(text, tmp_path_factory.mktemp(word) / "one", optimizer=word, **DIVISIBLE) for word in TOLERANCE}


@pytest.mark.slow
@pytest.mark.item("S1-1.1.1.1-g")
@pytest.mark.parametrize(("optimizer", "layout"), TENSOR_LAYOUTS)
def test_divided_layers_take_the_steps_of_one_process(text, tmp_path, divisible_runs, optimizer, layout):
    """With a tied readout, dropout drawn by sample, head and position, and a sequence-parallel stream."""
    run = train(text, tmp_path / "run", math.prod(layout), optimizer=optimizer, **DIVISIBLE, **laid_out(layout))
    assert_equal_losses(run, divisible_runs[optimizer], TOLERANCE[optimizer])
    assert numbers(run, "sample") == numbers(divisible_runs[optimizer], "sample")


#: every part of an architecture that is divided in a way of its own, in as few networks as hold all of them
DIVIDED = {
    "untied, layer norm, learned positions, biases": {
        "unembed": "untied",
        "norm.kind": "layer",
        "positions.kind": "learned",
        "attention.bias": "all",
        "mlp.bias": "all",
    },
    "post norm, embedding norm, relative positions, a capped affine readout": {
        "block": "post",
        "embed_norm": "norm",
        "positions.kind": "relative",
        "readout": "affine",
        "logit_cap": 5.0,
    },
    "parallel blocks, alibi, several hidden layers": {
        "block": "parallel",
        "positions.kind": "alibi",
        "mlp.n_hidden": 2,
        "mlp.form": "plain",
    },
    "tables of n-grams": {"ngrams": (2, 3), "ngram_rows": 256},
    "norms of all heads, recomputed, prefix": {
        "attention.qk_norm": "rms_all",
        "recompute": "yes",
        "objective": "prefix",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", DIVIDED.values(), ids=DIVIDED)
def test_every_part_of_an_architecture_is_divided(text, tmp_path, fields):
    fields = {**DIVISIBLE, "optimizer": "adamw", "steps": 6, "evaluate_every": 3, **fields}
    plain = train(text, tmp_path / "one", **fields)
    run = train(text, tmp_path / "run", 2, **fields, **laid_out((1, 1, 2)))
    assert_equal_losses(run, plain, TOLERANCE["adamw"])


@pytest.mark.slow
def test_a_run_goes_on_with_divided_layers(text, tmp_path, divisible_runs, stop_after):
    """Each process writes its part of each tensor, which another layout cuts otherwise.

    Of Muon, whose runs step embeddings and norms with AdamW: both kinds of state are written.
    """
    stop_after |= {5, 9, 14}
    run = train(text, tmp_path / "run", 4, optimizer="muon", **DIVISIBLE, **laid_out((1, 2, 2)))
    for layout, step in (((1, 1, 2), 5), ((1, 2, 1), 9), ((2, 1, 2), 14)):
        assert steps_of(run)[-1] == step
        train(text, run, math.prod(layout), resume=True, **laid_out(layout))
    assert_equal_losses(run, divisible_runs["muon"], TOLERANCE["muon"])


#: what writes the input of a run, and its fields
OTHER_INPUTS = [
    (write_pairs, {"preset": "original", "objective": "source-target", "n_ctx": 24}),
    (write_conversations, {"objective": "chat", **CHAT_FIELDS, "evaluate_every": 10, "batch": 4}),
]

#: two copies are in test_two_processes_take_the_steps_of_one
LAYOUTS = [("muon", (1, 2, 1)), ("muon", (4, 1, 1)), ("adamw", (1, 4, 1)), ("muon", (2, 2, 1))]


#: at a high rate the losses of a tiny network amplify that sums are rounded in another order
CALM = {"learning_rate": 1e-3}


@pytest.fixture(scope="module")
def plain_runs(text, tmp_path_factory):
    """The run in one process with each optimizer."""
    return {word: train(text, tmp_path_factory.mktemp(word) / "one", optimizer=word, **CALM) for word in TOLERANCE}


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "layout"), LAYOUTS)
def test_every_layout_takes_the_steps_of_one_process(text, tmp_path, plain_runs, optimizer, layout):
    run = train(text, tmp_path / "run", math.prod(layout), optimizer=optimizer, **CALM, **laid_out(layout))
    assert_equal_losses(run, plain_runs[optimizer], TOLERANCE[optimizer])
    assert numbers(run, "sample") == numbers(plain_runs[optimizer], "sample")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
@pytest.mark.parametrize("layout", [(1, 2, 1), (1, 1, 2)])
def test_blocks_compiled_one_by_one_take_the_same_steps(text, tmp_path, layout):
    """Each block is a graph of its own, and all draw their dropout with the same code."""
    fields = {**DIVISIBLE, "optimizer": "adamw", "steps": 6, "evaluate_every": 3}
    plain = train(text, tmp_path / "one", **fields)
    run = train(text, tmp_path / "run", 2, **{**fields, "compile": "yes"}, **laid_out(layout))
    assert_equal_losses(run, plain, TOLERANCE["adamw"])


@pytest.mark.slow
def test_a_divided_run_is_made_longer_by_minutes(text, tmp_path):
    """A step is measured on a few layers, and then the network is trained in parts again."""
    out = train(text, tmp_path / "run", 2, **DIVISIBLE, **laid_out((1, 2, 1)), steps=4)
    train(text, out, 2, resume=True, options=None, minutes=0.02)
    run = read_recipe(out)
    assert run.n_steps > 4
    assert [row["step"] for row in rows(out) if "loss" in row][-1] > 4
    assert math.isfinite(numbers(out, "loss")[-1])


@pytest.mark.slow
def test_weights_gathered_in_bfloat16_are_those_that_blocks_compute_with(text, tmp_path):
    """Rounded before they are sent, not after; the gains of norms are rounded too, and held-out losses computed so."""
    fields = {**DIVISIBLE, "optimizer": "adamw", "precision": "bfloat16"}
    plain = train(text, tmp_path / "one", **fields)
    fields |= laid_out((1, 2, 1)) | {"parallel.gather": "bfloat16"}
    run = train(text, tmp_path / "run", 2, **fields)
    for name in ("loss", "held_out_loss"):
        assert numbers(run, name) == pytest.approx(numbers(plain, name), rel=2e-3), name


@pytest.mark.parametrize("layout", one_in(2, [pytest.param((1, 2, 1)), pytest.param((1, 1, 2))]))
def test_no_process_makes_the_whole_network(text, tmp_path, layout, monkeypatch):
    """Where weights are divided the network has no memory before, and then each process has about half of it."""
    sizes: list[tuple[int, int]] = []
    real = TransformerTrainable.begin

    def begin(self: TransformerTrainable) -> None:
        assert all(p.is_meta for p in self.network.parameters())
        real(self)
        parameters = list(self.network.parameters())
        sizes.append(
            (sum(self.processes.local_part(p).numel() for p in parameters), sum(p.numel() for p in parameters))
        )

    monkeypatch.setattr(TransformerTrainable, "begin", begin)

    def do(rank: int) -> None:
        fields = {**FIELDS, **DIVISIBLE, "batch": 4, "steps": 1, "sample_every": 0, **laid_out(layout)}
        pellucid.train(text, out=tmp_path / "run", preset="small", fields=fields)
        own, all_of_them = sizes[0]
        assert own <= 0.55 * all_of_them

    together(2, do)


MINUTES, OPEN = {"minutes": 9.0}, {"steps": 9000, "precision": "auto", "attention": "auto", "compile": "auto"}
#: what asks for the time of a step, and the layout
TIMED = [
    (MINUTES, (1, 2, 1)),
    ({**OPEN, "dropout": 0.0}, (1, 1, 2)),
    ({**MINUTES, "attention.windows": (4, 0), "mlp.experts": 2}, (1, 2, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "layout"), TIMED)
def test_no_process_makes_the_whole_network_to_time_a_step(text, tmp_path, fields, layout, monkeypatch, stop_after):
    """It is estimated: networks have no memory until they are divided."""
    real, depths = Transformer.__init__, set()

    def make(self: Transformer, a: Architecture) -> None:
        if torch.get_default_device().type != "meta":
            depths.add(a.n_layers)
        real(self, a)

    monkeypatch.setattr(Transformer, "__init__", make)
    monkeypatch.setattr(
        step_choice, "compile_pays", lambda *given: (False, "compiled: no")
    )  # whatever the machine does
    stop_after.add(2)

    def do(rank: int) -> None:
        given = {name: value for name, value in {**FIELDS, **DIVISIBLE}.items() if name != "steps"}
        given |= {"n_layers": 5, "batch": 4, "sample_every": 0, **fields, **laid_out(layout)}
        assert pellucid.train(text, out=tmp_path / "run", preset="small", fields=given).step == 2
        assert not depths

    together(2, do)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({"unembed": "untied", "recompute": "yes"}, (2, 1, 1)),
        ({"unembed": "untied", "recompute": "yes"}, (1, 2, 1)),
        ({"objective": "prefix"}, (2, 1, 1)),
        ({"ngrams": (2, 3), "ngram_rows": 256}, (2, 1, 1)),
        ({"ngrams": (2, 3), "ngram_rows": 256}, (1, 2, 1)),
        ({"objective": "masked"}, (1, 2, 1)),
        ({"positions.kind": "relative", "mask": "bidirectional", "objective": "masked"}, (2, 1, 1)),
    ],
)
def test_several_processes_take_the_steps_of_one_with(text, tmp_path, fields, layout):
    plain = train(text, tmp_path / "one", optimizer="adamw", **fields)
    run = train(text, tmp_path / "run", 2, optimizer="adamw", **fields, **laid_out(layout))
    assert_equal_losses(run, plain, TOLERANCE["adamw"])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 1)])
def test_adapters_are_those_of_one_process(text, tmp_path, plain_runs, layout):
    """Most weights are frozen, and divided all the same."""
    fields = {"batch": 4, "steps": STEPS, "evaluate_every": 10, "sample_every": 0, "adapt.rank": 2}
    fields |= {name: FIELDS[name] for name in ("precision", "compile", "attention", "device", "evaluate_tokens")}

    def run_in(n: int, **more: int) -> Path:
        out, options = tmp_path / str(n), {"from_model": plain_runs["adamw"], "fields": {**fields, **more}}
        do_in(n, lambda rank: pellucid.train(text, out=out, **options))
        return out

    assert_equal_losses(run_in(2, **laid_out(layout)), run_in(1), TOLERANCE["adamw"])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 1)])
@pytest.mark.parametrize(("write", "fields"), OTHER_INPUTS)
def test_pairs_and_conversations_are_those_of_one_process(tmp_path, layout, write, fields):
    source, options = write(tmp_path), {"preset": fields.get("preset", "small")}
    fields = {name: value for name, value in fields.items() if name != "preset"}
    plain = train(source, tmp_path / "one", options=options, optimizer="adamw", **fields)
    run = train(source, tmp_path / "run", 2, options=options, optimizer="adamw", **fields, **laid_out(layout))
    assert_equal_losses(run, plain, TOLERANCE["adamw"])


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [{}, {"adapt.rank": 2}], ids=["all weights", "adapters"])
def test_tokens_new_to_the_vocabulary_are_trained_as_in_one_process(text, tmp_path, adapters):
    """The markers of conversations, which the model that the run starts from has no rows for."""
    base, source = train(text, tmp_path / "base", steps=2, n_ctx=160), write_conversations(tmp_path)
    fields = {"batch": 4, "steps": STEPS, "evaluate_every": 10, "sample_every": 0, "optimizer": "adamw", **adapters}
    fields |= {name: FIELDS[name] for name in ("precision", "compile", "attention", "device", "evaluate_tokens")}
    runs = {}
    for n, more in ((1, {}), (2, laid_out((1, 2, 1)))):
        options = {"out": tmp_path / str(n), "from_model": base, "fields": {**fields, **more}}
        do_in(n, lambda rank, options=options: pellucid.train(source, **options))
        runs[n] = options["out"]
        recipe = read_recipe(runs[n])
        assert (recipe.train.objective, recipe.record.new_ids, recipe.model.n_vocab) == ("chat", (257, 258), 259)
    assert_equal_losses(runs[2], runs[1], TOLERANCE["adamw"])


@pytest.mark.slow
def test_tokens_that_adapters_add_are_not_divided_by_tensor(text, tmp_path):
    base, source = train(text, tmp_path / "base", **DIVISIBLE, steps=1, n_ctx=160), write_conversations(tmp_path)
    options = {"out": tmp_path / "run", "from_model": base}
    options["fields"] = {"adapt.rank": 2, "device": "cpu", "steps": 1, "batch": 4, **laid_out((1, 1, 2))}

    def do(rank: int) -> None:
        message = "0" if rank else r"parallel\.tensor does not divide tokens that adapters add: give parallel\.shard"
        with pytest.raises(SystemExit if rank else RecipeError, match=message):
            pellucid.train(source, **options)

    together(2, do)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(1, 2, 1), (1, 1, 2)])
def test_logits_in_chunks_are_those_of_one_process(text, tmp_path, monkeypatch, layout):
    """A tied readout, whose weights are used outside of the network's forward pass."""
    monkeypatch.setattr(objectives, "MANY_LOGITS", 1)
    monkeypatch.setattr(objectives, "LOGITS_AT_ONCE", 1000)
    fields = {**DIVISIBLE, "optimizer": "adamw", "unembed": "tied", "steps": 6, "accumulate": 2, "evaluate_every": 3}
    plain = train(text, tmp_path / "one", **fields)
    run = train(text, tmp_path / "run", 2, **fields, **laid_out(layout))
    assert_equal_losses(run, plain, TOLERANCE["adamw"])


@pytest.mark.slow
def test_a_process_that_hangs_is_named(text, tmp_path, monkeypatch):
    real = Trainer.take_step

    def take_step(self: Trainer) -> None:
        if self.step == 2 and not self.processes.is_first:
            time.sleep(12)  # longer than the other one waits
        real(self)

    monkeypatch.setattr(Trainer, "take_step", take_step)
    monkeypatch.setattr(parallel, "HANGING", timedelta(seconds=3))
    monkeypatch.setattr(parallel, "ANSWERING", timedelta(seconds=1))

    def do(rank: int) -> None:
        with pytest.raises(RuntimeError) as caught:
            pellucid.train(text, out=tmp_path / "run", preset="small", fields=FIELDS)
        if rank == 0:
            assert "process 1 has not answered for 3 seconds" in str(caught.value)

    together(2, do)


@pytest.mark.slow
def test_a_step_that_is_not_finite_in_one_process_changes_nothing_in_any(text, tmp_path, monkeypatch):
    """Its gradients are divided among both; the checkpoint after it is that before it, bit for bit."""
    real, calls = step_module.clip, []

    def clip(parameters: Iterable[nn.Parameter], largest: float, processes: Processes) -> torch.Tensor:
        parameters = list(parameters)
        calls.append(largest)  # of this process
        if len(calls) == 3 and not processes.is_first:
            first = next(p for p in parameters if p.grad is not None and p.grad.to_local().numel())
            first.grad.to_local().view(-1)[0] = math.nan
        return real(parameters, largest, processes)

    monkeypatch.setattr(step_module, "clip", clip)
    run = train(
        text, tmp_path / "run", 2, optimizer="muon", steps=3, checkpoint_every=1, keep_last=9, **laid_out((1, 2, 1))
    )
    before, after = tensors(run, 2), tensors(run, 3)
    assert_same_tensors(before, after)
    assert [row.get("skipped", False) for row in rows(run) if "grad_norm" in row] == [False, False, True]


#: one process, two and four that divide the weights, and two copies of two: a walk that goes from each to each other
ONE, TWO, FOUR, SQUARE = (1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 1)
WALK = (ONE, TWO, ONE, FOUR, ONE, SQUARE, TWO, FOUR, TWO, SQUARE, FOUR, SQUARE, ONE)


@pytest.mark.slow
def test_a_run_goes_on_in_every_other_layout(text, tmp_path, plain_runs, stop_after):
    """A step in each layout, saved and resumed in the next one, in all twelve pairs of four of them."""
    assert {*itertools.pairwise(WALK)} == {*itertools.permutations((ONE, TWO, FOUR, SQUARE), 2)}
    stop_after |= {*range(1, len(WALK))}
    run = train(text, tmp_path / "run", optimizer="adamw", **CALM, **laid_out(WALK[0]))
    for step, layout in enumerate(WALK[1:], 1):
        assert steps_of(run)[-1] == step
        train(text, run, math.prod(layout), resume=True, **laid_out(layout))
    assert_equal_losses(run, plain_runs["adamw"], TOLERANCE["adamw"])


def test_one_process_sends_nobody_rounded_weights(tmp_path):
    fields = FIELDS | {"parallel.gather": "bfloat16"}
    with pytest.raises(RecipeError, match=r"parallel\.gather = bfloat16: expected float32 in a run of one process"):
        pellucid.train(write_text(tmp_path), out=tmp_path / "run", fields=fields)
    assert not (tmp_path / "run").exists()
