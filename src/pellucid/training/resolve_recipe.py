"""Turning what a recipe leaves open into numbers: asked of this machine once, printed, and written down."""

import ctypes
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture, count_parameters
from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.kernels import KernelName
from pellucid.model.lora import adapt
from pellucid.model.mask import Mask
from pellucid.model.weights import trained_state
from pellucid.training.objectives import CHUNK, MANY_LOGITS
from pellucid.training.recipe import LENGTHS, Recipe, RecipeError, with_train

#: seconds that compiling a training step costs, by kind of device; measured on CPUs alone (docs/log.md)
COMPILE_SECONDS = {"cpu": 35.0, "cuda": 60.0, "mps": 60.0}
#: the share of eager time that compiling saves on each; measured on CPUs alone (docs/log.md)
COMPILE_SAVES = {"cpu": 0.27, "cuda": 0.35, "mps": 0.0}
#: how many times its cost compiling has to save before it is chosen: on a busy machine it costs twice as much
CLEAR_GAIN = 2.0

#: bytes: a CPU's larger tensors are mapped anew each time and their pages cleared, which costs more than it takes to
#: go through a batch in several passes (docs/log.md); 32 MiB is where glibc's malloc begins to
MAPPED = 32 * 2**20
#: tokens that a pass keeps at least, so that its products stay efficient
SMALLEST_PASS = 1024

#: evaluations of a run, and seconds between two of them at least and at most: a run of seconds is measured at its end,
#: one of days every quarter of an hour
EVALUATIONS, SHORTEST, LONGEST = 10, 20.0, 900.0

#: the longest context for which attention written out may be faster, and its words
WRITTEN_OUT = 512
#: the kernel of pellucid.model.kernels that each value of train.attention names
KERNELS: dict[str, KernelName] = {"fused": "fused", "written_out": "explicit"}
#: seconds after which attention has been timed often enough
LONG = 0.5


def resolve_device(word: str) -> torch.device:
    """The device of that name; auto is the first of CUDA, Apple's MPS and the CPU that is there."""
    if word == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if word.partition(":")[0] not in COMPILE_SECONDS:
        raise RecipeError(f"train.device = {word!r}: say auto, {', '.join(COMPILE_SECONDS)}, or cuda:1 and so on")
    try:
        device = torch.device(word)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RecipeError(
            f"device {word!r} cannot be used here ({str(error).splitlines()[0]}): say cpu or auto"
        ) from None
    return device


def matmul_seconds(device: torch.device, dtype: torch.dtype, n: int = 384) -> float:
    """Median seconds of an n-cube matrix product."""
    a = torch.randn(n, n, device=device).to(dtype)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # reading one number waits for the device
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def resolve_precision(recipe: Recipe, device: torch.device) -> tuple[str, str]:
    """The precision of matrix products and a sentence that says why."""
    asked = recipe.train.precision
    if asked != "auto":
        return asked, f"precision: {asked}, as asked"
    plain, half = matmul_seconds(device, torch.float32), matmul_seconds(device, torch.bfloat16)
    word = "bfloat16" if half < 0.8 * plain else "float32"
    return word, f"precision: {word} (a bfloat16 matrix product takes {half / plain:.2f} times a float32 one here)"


def resolve_attention(
    recipe: Recipe, device: torch.device, poll: Callable[[], object] = lambda: None
) -> tuple[str, str]:
    """How attention is computed in training, and a sentence that says why; precision and batch are resolved.

    `poll` is called between measurements; it may raise.
    """
    asked, a = recipe.train.attention, recipe.model
    if asked != "auto":
        return asked, f"attention: {asked}, as asked"
    if device.type != "cpu" or a.n_ctx > WRITTEN_OUT:
        return "fused", "attention: fused"
    dtype = torch.bfloat16 if recipe.train.precision == "bfloat16" else torch.float32
    attention = MultiHeadAttention(a, 0)
    seconds = {
        word: kernel_seconds(getattr(attention, kernel), attention.mask, a, recipe.train.batch, dtype, poll)
        for word, kernel in KERNELS.items()
    }
    share = seconds["written_out"] / seconds["fused"]
    word = "written_out" if share < 0.9 else "fused"
    return word, f"attention: {word} (written out it takes {share:.2f} times the fused kernel's time here)"


def kernel_seconds(
    kernel: Callable[..., Tensor],
    mask: Mask,
    a: Architecture,
    batch: int,
    dtype: torch.dtype,
    poll: Callable[[], object] = lambda: None,
) -> float:
    """Median seconds of one layer's sum_j A_ij v_j, forward and backward; fewer are taken where they are long."""
    shapes = [(batch, n, a.n_ctx, a.d_head) for n in (a.n_heads, a.n_kv_heads, a.n_kv_heads)]
    q, k, v = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    times: list[float] = []
    while len(times) < 6 and (len(times) < 2 or sum(times) < LONG):
        poll()
        start = time.perf_counter()
        kernel(q, k, v, mask.between(q, k)).sum().backward()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def resolve_batch(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe with sequences and passes of a step decided: about 2,048 tokens to predict, at least 4 sequences.

    Where passes are left open, a CPU takes the fewest equal ones whose tensors stay below MAPPED; the step is the same.
    """
    t = recipe.train
    batch = t.batch or max(4, int(2048 / recipe.row))
    if t.accumulate:
        return with_train(recipe, batch=batch)
    row = widest_row(recipe.model) * (2 if t.precision == "bfloat16" else 4)
    # no more than this many sequences are looked at, however large the batch
    fitting = range(min(batch, MAPPED // row), max(0, -(-SMALLEST_PASS // recipe.model.n_ctx) - 1), -1)
    passed = next((n for n in fitting if batch % n == 0), batch) if device.type == "cpu" else batch
    return with_train(recipe, batch=passed, accumulate=batch // passed)


def widest_row(a: Architecture) -> int:
    """Numbers in the largest tensor that a block makes of one sequence."""
    of_position = max(a.d_ff, a.n_heads * a.d_head, a.d_model)
    return max(a.n_ctx * of_position, widest_row(a.encoder) if a.encoder else 0)


def resolve_steps(
    recipe: Recipe,
    n_train_tokens: int,
    seconds_per_step: Callable[[], float] | None,
    compiled: bool = False,
    left: float | None = None,
) -> tuple[int, str]:
    """The number of steps and a sentence that says where it comes from.

    Minutes need a measurement of a step that is not compiled; `compiled` says that it will be, in a device that
    the recipe names, and that compiling is still to be paid for. `left` is how many seconds there still are.
    """
    t, per_step = recipe.train, recipe.tokens_per_step
    if t.steps:
        return t.steps, f"length: {t.steps:,} steps of {per_step:,} tokens, as asked"
    if t.tokens:
        return max(1, round(t.tokens / per_step)), f"length: {t.tokens:,} tokens, {per_step:,} a step"
    if t.epochs:
        steps = max(1, round(t.epochs * n_train_tokens / (t.batch * t.accumulate * recipe.row)))
        return steps, f"length: {t.epochs:g} epochs of {n_train_tokens:,} tokens, {steps:,} steps"
    assert seconds_per_step is not None
    seconds = seconds_per_step()
    left = 0.93 * max(left if left is not None else 60 * t.minutes, 0.0)  # the rest is for saving and evaluating
    if compiled:
        kind = recipe.train.device.partition(":")[0]
        # of a short run half the time is left: what was compiled before is found again, and the deadline holds anyway
        seconds, left = seconds * (1 - COMPILE_SAVES[kind]), max(left - COMPILE_SECONDS[kind], left / 2)
    steps = max(1, int(left / seconds))
    how = " once compiled" if compiled else ""
    return steps, f"length: {t.minutes:g} minutes, {steps:,} steps at {seconds * 1e3:.0f} ms{how}"


def with_length(recipe: Recipe, length: dict[str, Any]) -> Recipe:
    """A copy whose length is the one given; ten minutes where none is."""
    given = {name: value for name, value in length.items() if value}
    if not given and not any(getattr(recipe.train, name) for name in LENGTHS):
        given = {"minutes": 10.0}
    return with_train(recipe, **{**dict.fromkeys(LENGTHS, 0), **given}) if given else recipe


def compile_pays(device: torch.device, seconds_per_step: float, n_steps: int) -> tuple[bool, str]:
    """Whether compiling saves clearly more than it costs over the run, and a sentence with the figures."""
    if not can_compile(device):
        return False, "compiled: no (there is no C++ compiler here)"
    saved = seconds_per_step * n_steps * COMPILE_SAVES[device.type]
    pays = saved > CLEAR_GAIN * COMPILE_SECONDS[device.type]
    word = "yes" if pays else "no"
    return (
        pays,
        f"compiled: {word} (saves about {saved:.0f} s of this run, costs about {COMPILE_SECONDS[device.type]:.0f})",
    )


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs: a C++ compiler on the CPU, Triton on CUDA."""
    if device.type == "cuda":
        return True
    return device.type == "cpu" and any(shutil.which(c) for c in (os.environ.get("CXX") or "g++", "clang++"))


def n_trained(recipe: Recipe) -> int:
    """How many numbers training changes: of adapters r (in + out) for each linear map."""
    if not recipe.adapt.rank:
        return count_parameters(recipe.model)["total"]
    with torch.device("meta"):
        network = adapt(Transformer(recipe.model), recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules)
    return sum(p.numel() for p in trained_state(network).values())


def training_bytes(a: Architecture, batch: int, precision: str, trained: int | None = None) -> int:
    """A quick estimate of what training needs at once: weights, gradients, AdamW's two averages, activations.

    `pellucid.training.memory` says what is needed.

    Activations are counted per position as the tensors that the backward pass of a block keeps: about
    10 d_model + 3 d_ff + what q, k, v take, and the logits twice, of one chunk where there are many; an encoder's
    positions likewise, without logits. `trained` is how many parameters have gradients, all unless given.
    """
    per_number = 2 if precision == "bfloat16" else 4
    kept = sum(part.n_ctx * kept_per_position(part) for part in (a, a.encoder) if part is not None)
    logits = batch * a.n_ctx * a.n_vocab
    logits = CHUNK if logits >= MANY_LOGITS else logits
    n_parameters = count_parameters(a)["total"]
    return (
        4 * n_parameters + 12 * (n_parameters if trained is None else trained) + batch * per_number * kept + 8 * logits
    )


def kept_per_position(a: Architecture) -> int:
    """Numbers that the backward pass of all blocks keeps of a position; cross-attention is one more attention."""
    qkv = (a.n_heads + 2 * a.n_kv_heads) * a.d_head
    cross = 4 * a.d_model + qkv if a.encoder is not None else 0
    return a.n_layers * (10 * a.d_model + 3 * a.d_ff + qkv + cross)


def memory_bytes(device: torch.device) -> int:
    """How much memory the device has in all, or this container may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if sys.platform == "win32":
        kibibytes = ctypes.c_ulonglong()
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes))
        return 1024 * kibibytes.value
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:  # a container may have less
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return installed


def resolve_intervals(recipe: Recipe, seconds_per_step: float | None = None, may_move: bool = False) -> Recipe:
    """Evaluation, checkpoint and sample intervals, in steps; a measured step is one that is not compiled.

    `may_move`: the end may become a later one, and what is only done there is not to be done before.
    """
    t = recipe.train
    evaluate = t.evaluate_every or evaluation_interval(recipe, seconds_per_step)
    if may_move and not t.evaluate_every and evaluate >= recipe.n_steps:
        evaluate = 2 * recipe.n_steps
    return replace(
        recipe,
        train=replace(
            t,
            evaluate_every=evaluate,
            evaluate_tokens=t.evaluate_tokens or 20 * max(1024, recipe.tokens_per_step // t.accumulate),
            checkpoint_every=t.checkpoint_every or evaluate,
            sample_every=t.sample_every or evaluate,
        ),
    )


def evaluation_interval(recipe: Recipe, seconds_per_step: float | None) -> int:
    """Steps between evaluations, all intervals alike and the last one at the end.

    A run has ten, but they are about SHORTEST seconds apart at least, and LONGEST at most. It has ten as well where its
    time is not known.
    """
    t, n = recipe.train, EVALUATIONS
    seconds = 60 * t.minutes
    if not seconds and seconds_per_step is not None:
        saved = COMPILE_SAVES[t.device.partition(":")[0]] if t.compile == "yes" else 0.0
        seconds = recipe.n_steps * seconds_per_step * (1 - saved)
    if seconds:
        n = max(1, min(EVALUATIONS, round(seconds / SHORTEST)), math.ceil(seconds / LONGEST))
    return max(1, math.ceil(recipe.n_steps / n))
