"""Decides the options that a recipe leaves open, by measurements on this machine where needed."""

import math
import platform
import time
from dataclasses import replace

import torch

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.kernels import KernelName, why_not_fused
from pellucid.model.lora import adapt
from pellucid.model.weights import trained_state, without_memory
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.runs.optimizer import WEIGHT_DECAYS
from pellucid.runs.options import RecipeError, with_train
from pellucid.text.read.chunks import counted
from pellucid.training.objectives import LOGITS_AT_ONCE, MANY_LOGITS
from pellucid.training.recipe import Recipe

#: bytes: on a CPU, glibc's malloc maps larger tensors anew each time and clears their pages, which costs more than
#: dividing a batch into several passes (docs/experiments/step-speed.md)
MAPPED = 32 * 2**20
#: least number of tokens of a pass, so that its products stay efficient
SMALLEST_PASS = 1024

#: the share of a matrix product's speed that a step is assumed to reach where none is timed
ASSUMED_SHARE = 0.5
#: the longest context for which the explicit kernel may be faster
LONGEST_EXPLICIT = 512
#: the kernels of pellucid.model.kernels that train.attention names
KERNELS: tuple[KernelName, ...] = ("fused", "explicit")
#: while the text is read once at the largest learning rate, decay alone takes a matrix of AdamW to about e^-FADING of
#: itself, where the network has as many weights as the text has targets (docs/experiments/rates.md)
FADING = 0.25


def matmul_seconds(device: torch.device, dtype: torch.dtype, n: int = 384) -> float:
    """The least seconds of an n-cube matrix product."""
    a = torch.randn(n, n, device=device).to(dtype)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # reading one number waits for the device
        times.append(time.perf_counter() - start)
    return min(times)


def allowed_kernels(recipe: Recipe, device: torch.device) -> tuple[tuple[KernelName, ...], str]:
    """The kernels of attention that training may use, and a line that says why it is one, "" where it is open."""
    asked, a = recipe.train.attention, recipe.model
    if option := why_not_fused(a):
        return ("explicit",), f"attention: explicit (no fused kernel computes {option})"
    if asked is not None:
        return (asked,), f"attention: {asked}, as asked"
    if a.dropout.pattern:
        return ("explicit",), "attention: explicit (the dropout of its pattern is drawn by sample)"
    if device.type != "cpu" or a.n_ctx > LONGEST_EXPLICIT:
        return ("fused",), "attention: fused"
    return KERNELS, ""


def may_use_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are faster than float32 ones: whether a GPU has units for them, elsewhere whether a
    measured one is.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):  # PyTorch asks the current one
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64") and len(processor_flags()) == 1:
        return False  # what emulates the units takes a hundred times as long
    return matmul_seconds(device, torch.bfloat16) < 0.8 * matmul_seconds(device, torch.float32)


def processor_flags() -> list[str]:
    """The vector instructions that PyTorch uses here, and the units that it has for bfloat16."""
    capability = torch.backends.cpu.get_cpu_capability()
    has = {"avx512_bf16": torch.cpu._is_avx512_bf16_supported(), "amx": torch.cpu._is_amx_tile_supported()}
    return [capability, *(name for name, is_there in has.items() if is_there)]


def resolve_batch(recipe: Recipe, device: torch.device, shares: int = 1) -> Recipe:
    """The recipe with its batch and its passes: a step has about 2,048 targets, and at least 4 sequences.

    `shares` is how many processes divide the rows of a pass; it divides what is chosen.

    Where the passes are left open, a CPU takes the least number of equal passes whose tensors stay below MAPPED. The
    step is the same.
    """
    t = recipe.train
    batch = t.batch or -(-max(4, int(2048 / recipe.row)) // shares) * shares
    if t.accumulate:
        return with_train(recipe, batch=batch)
    row = widest_row(recipe.model) * (2 if t.precision == "bfloat16" else 4)
    # the loop is short, however large the batch is
    fitting = range(min(batch, shares * MAPPED // row), max(0, -(-SMALLEST_PASS // recipe.model.n_ctx) - 1), -1)
    passed = next((n for n in fitting if batch % n == 0 and n % shares == 0), batch) if device.type == "cpu" else batch
    return with_train(recipe, batch=passed, accumulate=batch // passed)


def divided_anew(recipe: Recipe, shares: int) -> Recipe:
    """The recipe of a run that is resumed, with its step in other passes where `shares` processes do not divide the
    rows of one: of the numbers of rows that they divide, the one nearest to the run's own. The step is the same.

    Raises RecipeError where they do not divide the rows of the whole step.
    """
    t = recipe.train
    rows = t.batch * t.accumulate
    if t.batch % shares == 0:
        return recipe
    if rows % shares:
        fewer = max(n for n in range(1, shares) if rows % n == 0)
        raise RecipeError(
            f"a step has {rows:,} rows, which parallel.replicate x parallel.shard = {shares} processes cannot divide: "
            f"resume with a number of them that divides {rows:,}, such as {fewer}"
        )
    each = rows // shares
    batches = [shares * n for n in range(1, each + 1) if each % n == 0]
    batch = min(batches, key=lambda n: abs(n - t.batch))
    return with_train(recipe, batch=batch, accumulate=rows // batch)


def resolve_weight_decay(recipe: Recipe, n_train: int) -> tuple[Recipe, str]:
    """The recipe with a weight decay of its matrices, and a line about it, "" where it was set.

    n_train  targets of one reading of the text, D

    A network of N weights, tables of n-grams left out, has FADING (N / D)^(1/2) / (learning_rate x the steps of one
    reading), within WEIGHT_DECAYS. Decay makes weights an average of their latest updates, over a time that matters in
    readings of the text, not in steps (Wang and Aitchison 2024); what is learned of a text too short for the network is
    forgotten sooner. It was measured for new networks that predict the next token: those of other objectives, and runs
    that start from a model, have the least, and adapters none. The recipe's batch is resolved.
    """
    t, (least, most) = recipe.train, WEIGHT_DECAYS
    if t.weight_decay is not None:
        return recipe, ""
    if recipe.adapt.rank or recipe.record.base is not None or t.objective not in ("next-token", "prefix"):
        decay = 0.0 if recipe.adapt.rank else least
        return with_train(recipe, weight_decay=decay), f"weight decay: {decay:g}"
    n_weights, steps = count_parameters(replace(recipe.model, ngrams=()))["total"], n_train / recipe.tokens_per_step
    wanted = FADING * math.sqrt(n_weights / n_train) / (t.learning_rate * steps)
    decay = min(max(least, float(f"{wanted:.2g}")), most)
    line = (
        f"weight decay: {decay:g}, chosen: {n_weights:,} weights learn a text that is read once in "
        f"{counted(max(1, round(steps)), 'step')}"
    )
    return with_train(recipe, weight_decay=decay), line


def estimated_seconds(recipe: Recipe, device: torch.device, n_processes: int) -> float:
    """About how long a step takes that processes divide and none can take alone: 6 FLOPs for each weight and token
    (Kaplan et al. 2020), tables of n-grams left out, at ASSUMED_SHARE of the speed of a matrix product.
    """
    dtype, n = (torch.bfloat16 if recipe.train.precision == "bfloat16" else torch.float32), 1024
    work = 6 * count_active_parameters(replace(recipe.model, ngrams=())) * recipe.tokens_per_step
    return work / n_processes * matmul_seconds(device, dtype, n) / (2 * n**3 * ASSUMED_SHARE)


def widest_row(a: Architecture) -> int:
    """The number of entries of the largest tensor of a block, for one sequence."""
    of_position = max(a.d_ff, a.n_heads * a.d_head, a.d_model)
    return max(a.n_ctx * of_position, widest_row(a.encoder) if a.encoder else 0)


def add_adapters(network: Transformer, recipe: Recipe) -> Transformer:
    """The network itself, with the adapters that the recipe trains."""
    options = recipe.adapt
    return adapt(network, options.rank, options.scaled_by, options.modules, recipe.record.new_ids)


def n_trained(recipe: Recipe) -> int:
    """The number of trained parameters; adapters have r (in + out) for each linear map."""
    if not recipe.adapt.rank:
        return count_parameters(recipe.model)["total"]
    with without_memory():
        network = add_adapters(Transformer(recipe.model), recipe)
    return sum(p.numel() for p in trained_state(network).values())


def training_bytes(a: Architecture, batch: int, precision: str) -> int:
    """A quick estimate of the memory of training: weights, gradients, AdamW's two averages, activations.

    `pellucid.training.memory` computes it exactly.

    Activations are counted per position as the tensors that the backward pass of a block keeps: about
    10 d_model + 3 d_ff + what q, k, v take, and the logits twice, of one chunk where there are many; an encoder's
    positions likewise, without logits.
    """
    per_number = 2 if precision == "bfloat16" else 4
    per_row = sum(part.n_ctx * kept_per_position(part) for part in (a, a.encoder) if part is not None)
    logits = batch * a.n_ctx * a.n_vocab
    logits = LOGITS_AT_ONCE if logits >= MANY_LOGITS else logits
    return 16 * count_parameters(a)["total"] + batch * per_number * per_row + 8 * logits


def kept_per_position(a: Architecture) -> int:
    """The numbers that all blocks keep of a position for the backward pass; cross-attention is one more attention."""
    qkv = (a.n_heads + 2 * a.n_kv_heads) * a.d_head
    cross = 4 * a.d_model + qkv if a.encoder is not None else 0
    return a.n_layers * (10 * a.d_model + 3 * a.d_ff + qkv + cross)
