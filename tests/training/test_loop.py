"""The loop: what is measured, when it is saved, and that looking at a run does not change it."""

import io
import json
import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tiny import FIELDS, assert_same_run, assert_same_tensors, make_training, resume, rows, start, tensors
from torch.nn import functional as F

import pellucid
from pellucid.parameter_counts import count_parameters
from pellucid.runs import device, length, run_dir
from pellucid.runs import trainer as trainer_module
from pellucid.runs.checkpoint import best_step, folder_of, steps_of, verify_files
from pellucid.runs.device import deterministic_kernels
from pellucid.runs.figures import StepFigures
from pellucid.runs.live_reporter import LiveReporter, make_reporter
from pellucid.runs.metrics import part_measured, read_metrics
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.runs.reporter import PlainReporter, ProgressRate, clock
from pellucid.runs.run_dir import cache_folder
from pellucid.runs.trainer import Trainer
from pellucid.text.tokens.store import Tokens
from pellucid.training import resolve_recipe as resolve
from pellucid.training import step_choice
from pellucid.training import trainable as trainable_module
from pellucid.training.build import build_network
from pellucid.training.load import load_run
from pellucid.training.memory import check_memory
from pellucid.training.objectives import MicroBatch, summed_loss
from pellucid.training.recipe import make_recipe
from pellucid.training.trainable import TransformerTrainable

CPU = torch.device("cpu")


def held_out(run) -> list[dict]:
    return [row for row in rows(run) if "held_out_loss" in row]


# Order ------------------------------------------------------------------------------------------


def test_the_last_save_comes_before_the_last_evaluation_and_sample(text, tmp_path, monkeypatch):
    """It has begun before the evaluation, and is on disk before the sample."""
    seen = []
    real = Trainer.held_out_loss

    def held_out_loss(self, whole):
        seen.append((self.step, whole, self.saver.is_open))
        return real(self, whole)

    monkeypatch.setattr(Trainer, "held_out_loss", held_out_loss)

    def sampler(model, prompt, seed, poll):
        seen.append(("sample", verify_files(folder_of(tmp_path / "run", max(steps_of(tmp_path / "run"))))))
        raise RuntimeError("no sample")

    with pytest.raises(RuntimeError, match="no sample"):
        start(text, tmp_path / "run", sampler=sampler, steps=5, evaluate_every=5, schedule="cosine")
    assert seen == [(5, True, True), ("sample", "")]
    assert steps_of(tmp_path / "run") == [5]


def test_an_evaluation_that_fails_costs_no_checkpoint_that_is_being_written(text, tmp_path, monkeypatch):
    real = trainer_module.write_checkpoint

    def write_slowly(*given):
        time.sleep(0.2)
        return real(*given)

    def held_out_loss(self, whole):
        raise RuntimeError("no evaluation")

    monkeypatch.setattr(trainer_module, "write_checkpoint", write_slowly)
    monkeypatch.setattr(Trainer, "held_out_loss", held_out_loss)
    with pytest.raises(RuntimeError, match="no evaluation"):
        start(text, tmp_path / "run", steps=5, evaluate_every=5)
    assert verify_files(folder_of(tmp_path / "run", 5)) == ""


def test_a_checkpoint_is_of_the_step_at_which_it_was_begun(text, tmp_path, monkeypatch):
    """Training changes the weights while a thread writes them."""
    plain = start(text, tmp_path / "plain", steps=4, checkpoint_every=1, keep_last=9, evaluate_every=4).path
    real = trainer_module.write_checkpoint

    def write_slowly(*given):
        time.sleep(0.1)
        return real(*given)

    monkeypatch.setattr(trainer_module, "write_checkpoint", write_slowly)
    run = start(text, tmp_path / "run", steps=4, checkpoint_every=1, keep_last=9, evaluate_every=4).path
    for step in (1, 2, 3, 4):
        assert_same_tensors(tensors(run, step), tensors(plain, step))


def test_looking_does_not_change_training(text, tmp_path):
    """Evaluation and sampling draw random numbers and switch dropout off; the weights are the same without them."""

    def sampler(model, prompt, seed, poll):
        torch.rand(7)
        return "x"

    often = start(text, tmp_path / "often", sampler=sampler, evaluate_every=1, sample_every=2, checkpoint_every=3)
    seldom = start(text, tmp_path / "seldom", sampler=None, evaluate_every=12, sample_every=0)
    assert_same_tensors(tensors(often.path, 12), tensors(seldom.path, 12))
    losses = [[row["loss"] for row in rows(r.path) if "loss" in row] for r in (often, seldom)]
    assert losses[0] == losses[1]
    assert [row["step"] for row in rows(often.path) if "sample" in row] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in held_out(often.path)] == list(range(1, 13))
    assert not [row for row in rows(seldom.path) if "sample" in row]


def test_the_same_seed_gives_the_same_run_and_another_another(text, tmp_path):
    a, b = (start(text, tmp_path / name, steps=4).path for name in "ab")
    assert_same_run(a, b)
    c = start(text, tmp_path / "c", steps=4, seed=1).path
    assert rows(c) != rows(a)


def test_dropout_differs_between_the_passes_of_a_step_and_between_steps(text, tmp_path):
    training = make_training(text, tmp_path / "run", dropout=0.5, batch=2, accumulate=2, learning_rate=1e-12)
    given = training.trainable.data.at(0, 0, 2)
    seen = []
    real = training.trainable.loss
    training.trainable.loss = lambda _: (seen.append(real(given)), seen[-1])[1]
    training.network.train()
    training.take_step()
    training.take_step()
    assert len({round(loss.item(), 6) for loss in seen}) == 4


# Measures ---------------------------------------------------------------------------------------


@pytest.mark.item("S4-acc-a")
def test_the_held_out_loss_is_the_mean_over_every_token_but_the_first(text, tmp_path):
    done = start(text, tmp_path / "run")
    network, tokenizer, _ = load_run(done.path, "last", CPU)
    part = Tokens.open(next(cache_folder().glob("tokens-*")), tokenizer).part("held_out")
    ids = torch.from_numpy(part.read(0, len(part)))
    n, n_ctx, total, right = len(ids), 16, 0.0, 0
    starts = [*range(0, n - 1 - n_ctx, n_ctx), n - 1 - n_ctx]
    scored = 0
    with torch.no_grad():
        for i in starts:
            fresh = slice(max(scored - i, 0), n_ctx)
            logits, targets = network(ids[None, i : i + n_ctx])[0], ids[i + 1 : i + n_ctx + 1]
            total += F.cross_entropy(logits, targets, reduction="none")[fresh].double().sum().item()
            right += int((logits.argmax(-1) == targets)[fresh].sum())
            scored = i + n_ctx
    direct = total / (n - 1)
    row = held_out(done.path)[-1]
    assert row["whole"]
    assert row["held_out_loss"] == pytest.approx(direct, rel=1e-6)
    assert row["accuracy"] == right / (n - 1)
    assert done.held_out_loss == row["held_out_loss"]
    # one byte is one token here, and one separator is added
    assert n == part.n_bytes + 1
    assert row["bits_per_byte"] == pytest.approx(direct / math.log(2) * n / part.n_bytes, rel=1e-6)


def test_only_a_part_is_read_on_the_way_and_all_of_it_at_the_end(text, tmp_path, monkeypatch):
    read = []
    real = trainable_module.losses_and_hits
    monkeypatch.setattr(
        trainable_module, "losses_and_hits", lambda n, g: (read.append(int(g.counts.sum())), real(n, g))[1]
    )
    done = start(text, tmp_path / "run", steps=2, evaluate_every=1, evaluate_tokens=100)
    ends = [row["whole"] for row in held_out(done.path)]
    assert ends == [False, True]
    assert [row.get("read") for row in held_out(done.path)] == [128, None]
    # passes of 2 windows of 16: the fourth reaches 100 tokens; then all 401 - 1
    assert sum(read[:4]) == 128
    assert sum(read[4:]) == 400
    assert json.loads((done.path / "checkpoints" / "best.json").read_bytes())["step"] == best_step(done.path)


@pytest.mark.parametrize("tokens", [390, 400, 1000])
def test_an_evaluation_on_the_way_that_reads_everything_says_so(text, tmp_path, tokens):
    """Also where what it is to read ends within the last pass."""
    done = start(text, tmp_path / "run", steps=2, evaluate_every=1, evaluate_tokens=tokens)
    first, last = held_out(done.path)
    assert (first["read"], "read" in last) == (0, False)
    assert part_measured(first) == 0


def test_bits_per_byte_do_not_depend_on_the_tokenizer_s_units(text, tmp_path):
    done = start(text, tmp_path / "run", steps=1, tokenizer="bpe", vocabulary=300)
    row = held_out(done.path)[-1]
    part = json.loads((done.path / "data.json").read_bytes())["parts"]["held_out"]
    assert part["tokens"] < part["bytes"]
    expected = row["held_out_loss"] / math.log(2) * part["tokens"] / part["bytes"]
    assert row["bits_per_byte"] == pytest.approx(expected, rel=1e-12)


def test_the_metrics_have_a_row_for_every_step(text, tmp_path):
    done = start(text, tmp_path / "run", steps=7, evaluate_every=3)
    steps = [row for row in rows(done.path) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["tokens"] for row in steps] == [64 * k for k in range(1, 8)]
    assert [row["step"] for row in held_out(done.path)] == [3, 6, 7]
    first = steps[0]["loss"]
    assert first == pytest.approx(math.log(257), rel=0.02)  # an untrained network knows nothing
    seconds = [row["seconds"] for row in read_metrics(done.path / "metrics.jsonl") if "seconds" in row]
    assert seconds == sorted(seconds)


# Time -------------------------------------------------------------------------------------------


def test_minutes_become_steps_by_a_measurement(text, tmp_path):
    recipe = make_recipe((str(text),), None, FIELDS | {"steps": 0, "minutes": 3.0})
    assert length.resolve_steps(recipe, 1000, lambda: 0.5)[0] == int(180 * 0.93 / 0.5)
    recipe = make_recipe((str(text),), None, FIELDS | {"steps": 0, "epochs": 3.0})
    assert length.resolve_steps(recipe, 6400, None)[0] == 300  # 64 tokens a step
    recipe = make_recipe((str(text),), None, FIELDS | {"steps": 0, "tokens": 6400})
    assert length.resolve_steps(recipe, 1, None)[0] == 100


# Choices that are made once ---------------------------------------------------------------------


def test_what_was_left_open_is_written_down_and_kept(text, tmp_path, monkeypatch):
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: True)
    run = start(text, tmp_path / "run", precision="auto", compile="auto", device="auto", batch=None).path
    written = json.loads((run / "recipe.json").read_bytes())["options"]["train"]
    assert written["precision"] == "bfloat16"
    assert written["compile"] == "no"
    assert written["batch"] == 128
    assert written["device"] in ("cpu", "cuda", "mps")
    assert min(written[n] for n in ("evaluate_every", "checkpoint_every", "sample_every", "evaluate_tokens")) > 0
    monkeypatch.setattr(resolve, "may_use_bfloat16", lambda device: pytest.fail("asked again"))
    resume(run, steps=13)
    assert json.loads((run / "recipe.json").read_bytes())["options"]["train"] == written


def test_measuring_a_step_spoils_no_weight(text, tmp_path, monkeypatch):
    plain = start(text, tmp_path / "plain", steps=20, evaluate_every=20).path
    monkeypatch.setattr(
        step_choice, "compile_pays", lambda device, seconds, steps, saves: (False, f"compiled: no {seconds > 0}")
    )
    measured = start(text, tmp_path / "measured", steps=20, evaluate_every=20, compile="auto").path
    assert_same_tensors(tensors(plain, 20), tensors(measured, 20))


@pytest.mark.parametrize(("asked", "chosen", "rate"), [("fused", "fused", 0.0), ("auto", "explicit", 0.1)])
def test_attention_is_computed_the_way_that_was_chosen(text, tmp_path, asked, chosen, rate):
    """With dropout of its pattern there is one way; tests/training/test_step_choice.py has the rest."""
    run = start(text, tmp_path / "run", attention=asked, steps=2, dropout=rate).path
    assert json.loads((run / "recipe.json").read_bytes())["options"]["train"]["attention"] == chosen
    network = build_network(make_recipe((str(text),), None, FIELDS | {"attention": chosen}), CPU)
    assert all(block.attn.kernel is getattr(block.attn, chosen) for block in network.blocks)


@pytest.mark.parametrize("asked", ["auto", "fused"])
def test_attention_that_no_fused_kernel_computes_is_explicit_and_says_so(text, asked):
    recipe = make_recipe((str(text),), None, FIELDS | {"attention.score_cap": 5.0, "attention": asked})
    said = "attention: explicit (no fused kernel computes attention.score_cap = 5)"
    assert resolve.allowed_kernels(recipe, CPU) == (("explicit",), said)


@pytest.mark.slow
def test_explicit_attention_trains_to_the_same_losses_and_resumes_bit_for_bit(text, tmp_path):
    plain, written = (start(text, tmp_path / w, attention=w, dropout=0.0).path for w in ("fused", "explicit"))
    kernels = [
        json.loads((run / "recipe.json").read_bytes())["options"]["train"]["attention"] for run in (plain, written)
    ]
    assert kernels == ["fused", "explicit"]  # on some processors their losses are the same to the bit
    losses = [[row["loss"] for row in rows(run) if "loss" in row] for run in (plain, written)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    whole = start(text, tmp_path / "whole", attention="explicit").path
    shutil.copytree(whole, tmp_path / "parts")
    shutil.rmtree(folder_of(tmp_path / "parts", 12))
    resume(tmp_path / "parts")
    assert_same_tensors(tensors(whole, 12), tensors(tmp_path / "parts", 12))
    assert rows(whole) == rows(tmp_path / "parts")


def test_compiling_pays_where_it_saves_more_than_it_costs(monkeypatch):
    monkeypatch.setattr(device, "has_command", lambda *names: True)
    assert not device.compile_pays(CPU, 0.1, 100)[0]
    assert device.compile_pays(CPU, 0.1, 100_000)[0]
    monkeypatch.setattr(device, "has_command", lambda *names: False)
    said = "compiled: no (there is no C++ compiler here (g++ or clang++))"
    assert device.compile_pays(CPU, 0.1, 100_000) == (False, said)


def test_on_cuda_compiling_needs_triton_a_c_compiler_and_a_newer_gpu(monkeypatch):
    cuda, has_triton, has_c, capability = torch.device("cuda"), [False], [False], [(6, 1)]
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: name if has_triton[0] else None)
    monkeypatch.setattr(device, "has_command", lambda *names: has_c[0])
    monkeypatch.setattr(device.sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert device.compile_pays(cuda, 0.1, 100_000) == (False, "compiled: no (Triton is not installed here)")
    has_triton[0] = True
    assert device.compiling_lacks(cuda) == "there is no C compiler here (gcc or clang)"
    has_c[0] = True
    assert device.compiling_lacks(cuda) == "this GPU has compute capability 6.1 and Triton needs 7.0"
    capability[0] = (7, 0)
    assert device.can_compile(cuda)


def test_bfloat16_is_near_float32_and_keeps_float32_weights(text, tmp_path):
    ends = []
    for precision in ("float32", "bfloat16"):
        run = start(text, tmp_path / precision, precision=precision, steps=4, dropout=0.0, muon_learning_rate=2e-3).path
        ends.append([row["loss"] for row in rows(run) if "loss" in row])
        assert all(t.dtype == torch.float32 for t in tensors(run, 4).values())
    assert ends[0] != ends[1]
    assert ends[0] == pytest.approx(ends[1], rel=0.01)


def test_a_recomputing_run_evaluates_samples_and_loads(text, tmp_path):
    plain, recomputed = (start(text, tmp_path / w, recompute=w, steps=4).path for w in ("no", "yes"))
    assert_same_tensors(tensors(plain, 4), tensors(recomputed, 4))
    assert rows(plain) == rows(recomputed)


def test_deterministic_kernels_are_asked_for_and_given_back(text, tmp_path):
    seen = []

    def sampler(*_):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return "x"

    start(text, tmp_path / "run", sampler=sampler, steps=2, deterministic="yes")
    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("chosen", [False, True])
def test_deterministic_kernels_are_given_back_where_two_runs_overlap(chosen):
    """In whatever order the runs of two threads begin and end."""
    asked, warn_only = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    torch.use_deterministic_algorithms(chosen, warn_only=chosen)
    try:
        first, second = deterministic_kernels(True), deterministic_kernels(True)
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert (asked(), warn_only()) == (True, False)
        second.__exit__(None, None, None)
        assert (asked(), warn_only()) == (chosen, chosen)
    finally:
        torch.use_deterministic_algorithms(False)


def test_tf32_is_for_the_steps_of_a_run_on_an_nvidia_gpu_alone(text, tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match=r"precision = tf32: .* this device is cpu: give float32 or auto"):
        start(text, tmp_path / "run", precision="tf32", device="cpu")
    cuda, asked = torch.device("cuda:1"), torch.get_float32_matmul_precision
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an older GPU")
    monkeypatch.setattr(device.torch, "empty", lambda *_, **options: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as PyTorch begins
    assert device.resolve_device("cuda:1") == cuda
    assert current == [cuda]
    for precision in ("float32", "tf32"):
        with device.products_in(precision):
            device.resolve_device("cuda:1")
            is_tf32 = precision == "tf32"
            assert (asked(), torch.backends.cudnn.allow_tf32) == ("high" if is_tf32 else "highest", is_tf32)
    assert (asked(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    for major, is_refused in ((7, True), (8, False)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, major=major: SimpleNamespace(major=major))
        with pytest.raises(RecipeError, match="this device is an older GPU") if is_refused else nullcontext():
            device.check_precision("tf32", cuda)


def test_what_cublas_needs_to_be_deterministic_is_set_before_anything_is_computed(text, tmp_path, monkeypatch):
    """PyTorch reads it at the first product on a GPU, which times or builds something."""
    seen, read = [], TransformerTrainable.read

    def watched(self, *given):
        seen.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return read(self, *given)

    monkeypatch.setattr(TransformerTrainable, "read", watched)
    for word in ("no", "yes"):
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        run = start(text, tmp_path / word, steps=1, deterministic=word).path
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    resume(run, steps=2)
    assert seen == [None, ":4096:8", ":4096:8"]


@pytest.mark.gpu
def test_a_deterministic_run_on_a_gpu_takes_steps_and_writes_samples(text, tmp_path):
    """Each in a process of its own: cuBLAS is told how to compute once, before its first product."""
    environment = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    fields = FIELDS | {"device": "cuda", "deterministic": "yes"}
    options = ["--steps=2", *(f"--set={name}={value}" for name, value in fields.items() if name != "steps")]
    for name in ("one", "two"):
        command = [sys.executable, "-m", "pellucid", "train", str(text), "--out", str(tmp_path / name), *options]
        subprocess.run(command, env=environment, check=True, timeout=250)
        assert all(row["sample"] is not None for row in rows(tmp_path / name) if "sample" in row)
    assert_same_tensors(tensors(tmp_path / "one", 2), tensors(tmp_path / "two", 2))


@pytest.mark.parametrize(("device", "expected"), [("cpu", 2.5), ("meta", None)])
def test_the_figures_of_a_step_are_read_with_the_seconds_it_took(monkeypatch, device, expected):
    times = iter([10.0, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    figures = StepFigures(torch.device(device))
    figures.leave({"loss": torch.tensor(1.5), "bad": torch.tensor(False)})
    assert figures.read() == ({"loss": 1.5, "bad": False}, expected)


@pytest.mark.gpu
def test_steps_on_a_gpu_wait_for_nothing_and_know_their_speed(text, tmp_path):
    """PyTorch refuses whatever would make the program wait; the figures are read four steps later."""
    run = start(text, tmp_path / "run", device="cuda", steps=3).path
    training = make_training(text, tmp_path / "again", device="cuda", steps=12)
    training.advance(compiles=False)  # makes the optimiser's averages
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(8):
            training.advance(compiles=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    training.read_figures(0)
    steps = [row for path in (run, tmp_path / "again") for row in rows(path) if "loss" in row]
    assert len(steps) == 12
    assert all(row["tokens_per_second"] > 0 for row in steps)


def test_inside_documents_nothing_is_read_across_a_border(text, tmp_path):
    training = make_training(text, tmp_path / "run", torch.float64, inside_documents="yes")
    network = training.network.eval()
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randint(0, 256, (2, 16), generator=generator) for _ in range(2))
    documents = torch.tensor([[0] * 6 + [1] * 7 + [2] * 3] * 2)
    positions = torch.tensor([[*range(6), *range(7), *range(3)]] * 2)

    def losses(inputs: torch.Tensor, counts: torch.Tensor) -> list[float]:
        given = MicroBatch(inputs, targets, documents, positions, counts)
        with torch.no_grad():
            return trainable_module.losses_and_hits(network, given)[0][counts].tolist()

    for document in range(3):
        mine = documents == document
        other = torch.where(mine, inputs, (inputs + 1) % 256)
        assert losses(other, mine) == losses(inputs, mine)
    # and the middle one alone, at its own positions, is as it is among the others
    alone = MicroBatch(inputs[:, 6:13], targets[:, 6:13])
    whole = losses(inputs, documents == 1)
    assert sum(whole) == pytest.approx(summed_loss(network, alone).item(), rel=1e-12)


def test_the_data_of_a_run_inside_documents_has_borders(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"document {i}")
    run = start(folder, tmp_path / "run", steps=2, inside_documents="yes")
    assert run.step == 2
    training_rows = [row["loss"] for row in rows(run.path) if "loss" in row]
    across = [row["loss"] for row in rows(start(folder, tmp_path / "across", steps=2).path) if "loss" in row]
    assert training_rows != across


# What a person sees -----------------------------------------------------------------------------


def test_plain_lines_where_there_is_no_terminal(text, tmp_path):
    out = io.StringIO()
    start(text, tmp_path / "run", PlainReporter(out, every_seconds=0.0))
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert any(line.startswith("text: 1 document, 4,000 bytes") for line in lines)
    assert any("step 12/12  loss " in line and line.endswith(", ETA 0:00") for line in lines)
    assert any("held-out loss" in line and "bits/byte (on a part)" in line for line in lines)
    assert any(line.startswith("--- sample at step 4") for line in lines)
    assert sum("step 5/12" in line for line in lines) == 1
    assert isinstance(make_reporter(), PlainReporter)


def test_characters_that_cannot_be_shown_do_not_end_the_run(text, tmp_path):
    with open(tmp_path / "log", "w", encoding="ascii") as log:
        done = start(text, tmp_path / "run", PlainReporter(log), sampler=lambda *_: "caf\u00e9 \ufffd")
    assert done.exit_code == 0
    assert "caf\\xe9 \\ufffd" in (tmp_path / "log").read_text()


def test_what_a_terminal_would_obey_is_shown_by_its_number(tmp_path):
    """Names of files and samples are not ours: an escape sequence in one clears no screen."""
    out = io.StringIO()
    reporters = PlainReporter(out), LiveReporter(Console(file=out, force_terminal=True, color_system=None))
    for reporter in reporters:
        reporter.note("skipped a\x1b[2Jb\u202e.txt:\ttab\nline")
    assert "\x1b[2J" not in out.getvalue()
    assert out.getvalue().count("skipped a\\u001b[2Jb\\u202e.txt:") == 2


def test_a_reader_that_goes_away_does_not_end_the_run(text, tmp_path):
    import os

    read, write = os.pipe()
    os.close(read)
    with open(write, "w", closefd=True) as gone:
        done = start(text, tmp_path / "run", PlainReporter(gone, every_seconds=0.0))
    assert (done.step, done.exit_code) == (12, 0)


@pytest.mark.parametrize("width", [80, 40])
def test_the_panel_shows_what_a_run_is_about(width, tmp_path):
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    reporter = LiveReporter(console)
    recipe = with_record(make_recipe(("a",), None, FIELDS), decay=(100, 100))
    reporter.begin(recipe, 0)
    try:
        assert "first step" in str(reporter.__rich__())
        reporter.speed = ProgressRate(recipe, 0)
        for step, now in ((10, 5.0), (60, 10.0)):
            reporter.step({"step": step, "loss": 2.5, "learning_rate": 1.5e-3}, 100)
            reporter.speed.now = (step, now)
            reporter.speed.first = reporter.speed.first if step == 60 else (10, 5.0)
        reporter.evaluation({"step": 60, "held_out_loss": 2.75, "bits_per_byte": 3.21, "whole": False})
        reporter.sample(60, "To be, or [bold]not[/bold] to be")
        page = Console(record=True, width=width, file=io.StringIO())
        page.print(reporter)
    finally:
        reporter.close()
    shown = page.export_text()
    for piece in (
        "step 60 of 100",
        "loss           2.5000 nats/token",
        "held-out loss  2.7500 nats/token",
        "bits per byte",
        "3.2100",
        "learning rate",
        "1.50e-03",
        "640 tokens/s",  # 50 steps of 64 tokens in 5 seconds
        "ETA",
        "0:04",
        "sample",
        "To be, or [bold]not[/bold] to be",
    ):
        assert piece in shown, piece
    assert max(map(len, shown.splitlines())) <= width


def test_a_skipped_step_does_not_spoil_the_panel(tmp_path):
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    reporter = LiveReporter(console)
    reporter.begin(with_record(make_recipe(("a",), None, FIELDS), decay=(9, 9)), 0)
    try:
        reporter.step({"step": 1, "loss": None, "learning_rate": 1.0}, 9)
        console.print(reporter)
        reporter.step({"step": 2, "loss": 3.0, "learning_rate": 1.0}, 9)
        console.print(reporter)
    finally:
        reporter.close()
    assert "3.0000 nats/token" in console.export_text()


@pytest.mark.parametrize(("seconds", "shown"), [(None, "--:--"), (0, "0:00"), (185, "3:05"), (7207, "2:00:07")])
def test_the_clock(seconds, shown):
    assert clock(seconds) == shown


# Sizes ------------------------------------------------------------------------------------------


def test_memory_is_counted_from_the_sizes():
    small = make_recipe((), None, {"n_vocab": 512})
    big = make_recipe((), None, {"n_vocab": 512, "d_model": 192 * 1000})
    check_memory(with_train(small, batch=4), CPU)
    with pytest.raises(RecipeError, match=r"would need at least .* GiB and cpu has .* GiB: [0-9,]* parameters"):
        check_memory(with_train(big, batch=4), CPU)
    with pytest.raises(RecipeError, match="sequences of 128 tokens"):
        check_memory(with_train(small, batch=10**9), CPU)
    assert 2**28 < device.memory_bytes(CPU) < 2**50
    assert device.free_bytes(CPU) == device.memory_bytes(CPU)
    # an encoder's activations are counted: n_ctx positions more, and attention that reads them
    alone, both = small.model, make_recipe((), None, {"n_vocab": 512, "objective": "source-target"}).model
    weights = 16 * (count_parameters(both)["total"] - count_parameters(alone)["total"])
    more = resolve.training_bytes(both, 4, "float32") - resolve.training_bytes(alone, 4, "float32")
    assert more - weights > 4 * 4 * alone.n_ctx * alone.n_layers * 10 * alone.d_model


def test_on_a_gpu_what_other_processes_hold_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 200)
    monkeypatch.setattr(device, "memory_bytes", lambda device: 10_000)
    assert device.free_bytes(torch.device("cuda")) == 1200


def test_prepared_tokens_need_a_folder_and_no_home(tmp_path, monkeypatch):
    """A container may run without a home folder; the variable says where to keep them."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PELLUCID_CACHE")
    with pytest.raises(RecipeError, match="name a folder in the environment variable PELLUCID_CACHE"):
        cache_folder()


def test_a_folder_in_which_no_tokens_can_be_kept_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    """One that holds tokens may be for reading alone."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "file" / "cache"))
    for train in (pellucid.train, partial(pellucid.train_predictor, kind="ngram")):
        with pytest.raises(RecipeError, match=r"file is not a folder; name a folder for prepared .* PELLUCID_CACHE"):
            train(tmp_path / "gone.txt", out=tmp_path / "run")
    (tmp_path / "cache" / "tokens-1").mkdir(parents=True)
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_dir, "check_destination", lambda path: pytest.fail("it was checked"))
    run_dir.check_cache()
