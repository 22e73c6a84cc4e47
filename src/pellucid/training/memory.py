"""The memory of a training step, by formula: weights, gradients and averages; what the layers keep for the backward
pass; the logits; and the matrices that Muon updates at once.

Bytes for each position were counted by a step on tensors without numbers, of every kind of norm, MLP and kernel; the
sums are within 15 % of such a step (tests/training/test_step_memory.py). Not counted are the working memory of kernels,
the interpreter and its libraries, what compiled graphs save, and what the allocator keeps of freed memory, for which
`plan` leaves a share of the machine (USABLE).
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.kernels import why_not_fused
from pellucid.model.lora import adapt
from pellucid.model.weights import without_memory
from pellucid.parameter_counts import count_parameters
from pellucid.runs.device import free_bytes
from pellucid.runs.optimizer import OptimizerName, optimizer_of
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.processes import SINGLE_PROCESS, Processes
from pellucid.runs.shards import FLOAT32_BYTES
from pellucid.training.build import n_logits
from pellucid.training.config import AdapterOptions
from pellucid.training.objectives import LOGITS_AT_ONCE, MANY_LOGITS
from pellucid.training.recipe import Recipe
from pellucid.training.resolve_recipe import may_use_bfloat16, n_trained

#: layers of the two networks that are timed instead of a deeper one: time is linear in the number of further layers
SHALLOW, DEEP = 2, 4
#: how far the formula may be from what a step needs
ERROR = 0.15
#: how many averages each optimiser keeps of a parameter
AVERAGES = {"muon": 1, "adamw": 2}
#: times the width of the stream, bytes that the norms and inputs of a layer's two branches keep of a position
OF_STREAM = {"none": 8, "layer": 16, "rms": 24}
#: copies that Muon makes of the matrices of one shape, all at once, and of their products with themselves
MUON_COPIES = {"float32": (4.5, 2.5), "bfloat16": (3.5, 1.0)}


@dataclass(frozen=True)
class Memory:
    """Bytes. `forward`, `backward` and `update` are the largest memory during each of a step's three parts."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    forward: float
    backward: float
    update: float

    @property
    def peak(self) -> float:
        """The largest memory during the step."""
        return max(self.forward, self.backward, self.update)


def training_memory(recipe: Recipe) -> Memory:
    """The memory of the second and all later steps of an eager run. The recipe's batch is resolved; `auto` is float32
    and the fused kernel; tf32 is stored as float32 is.
    """
    a, t = recipe.model, recipe.train
    rounds, recomputes, chunked = t.precision == "bfloat16", t.recompute == "yes", n_logits(recipe) >= MANY_LOGITS
    weights = FLOAT32_BYTES * count_parameters(a)["total"]
    gradients, averages, updating = of_optimizer(recipe)
    stacks = [part for part in (a, a.encoder) if part is not None]
    layers = [t.batch * part.n_ctx * layer_bytes(part, recipe) for part in stacks]
    streams = [t.batch * part.n_ctx * FLOAT32_BYTES * part.d_model for part in stacks]
    saved = sum(part.n_layers * n for part, n in zip(stacks, streams if recomputes else layers, strict=True))
    rounded = weights / 2 if rounds else 0.0  # autocast's copies of the weights
    readout = FLOAT32_BYTES * a.n_vocab * a.d_model
    logits = (2 if rounds else FLOAT32_BYTES) * t.batch * a.n_ctx * a.n_vocab
    # in chunks, the gradient of the readout is known at the end of the forward pass
    of_loss, working = (readout, 2 * readout + 1.5 * FLOAT32_BYTES * LOGITS_AT_ONCE) if chunked else (logits, logits)
    if recomputes and rounds and not chunked:
        of_loss += readout / 2
    activations = saved + of_loss + 4 * sum(streams) + (0.0 if recomputes else rounded - chunked * rounds * readout / 2)
    # of the layer that is computed: further copies of its pattern, where that is written out; a loss in chunks needs
    # the most memory after the layers have let go of theirs
    pattern = t.batch * max(part.n_ctx * pattern_bytes(part, recipe) for part in stacks)
    in_forward, in_backward = (0, 1) if chunked else (2 if recomputes else 1, 2)
    held = weights + averages + (gradients if (t.accumulate or 1) > 1 else 0.0)
    forward = (
        held + activations + (working if chunked else 0.0) + (rounded if recomputes else 0.0) + in_forward * pattern
    )
    first = held + activations + (readout if chunked else working)
    inner = held + activations - (0.0 if chunked else of_loss) + recomputes * max(layers) + in_backward * pattern
    last = weights + averages + gradients + max(layers) + in_backward * pattern + readout * (a.unembed == "tied")
    return Memory(
        weights,
        gradients,
        averages,
        activations,
        forward,
        max(first, inner, last),
        weights + gradients + averages + updating,
    )


def layer_bytes(a: Architecture, recipe: Recipe) -> float:
    """Bytes that a layer keeps of a position for the backward pass."""
    c = 2 if recipe.train.precision == "bfloat16" else FLOAT32_BYTES
    explicit = writes_pattern(a, recipe)
    crosses = a.encoder is not None
    stream = (OF_STREAM[a.norm.kind] * (1.5 if crosses else 1)) * a.d_model
    stream += ((a.dropout.attn_out > 0) * (1 + crosses) + (a.dropout.mlp_out > 0)) * a.d_model
    attention = attention_bytes(a, a.n_ctx, c, explicit)
    if a.encoder is not None:
        attention += attention_bytes(a, a.encoder.n_ctx, c, explicit)
    copies = 4 if a.mlp.form == "gated" else 1 if a.mlp.activation == "relu" else 2
    used = a.mlp.experts_per_token if a.mlp.experts else 1
    gathered = 2 * c * used * a.d_model if a.mlp.experts else 0
    return stream + attention + used * copies * c * a.d_ff + gathered


def writes_pattern(a: Architecture, recipe: Recipe) -> bool:
    """Whether attention is computed by the explicit kernel."""
    return recipe.train.attention == "explicit" or bool(why_not_fused(a)) or a.dropout.pattern > 0


def pattern_bytes(a: Architecture, recipe: Recipe) -> int:
    """Bytes of a position's pattern as far as its layer needs further copies; with dropout it keeps them all."""
    is_copied = writes_pattern(a, recipe) and not a.dropout.pattern
    return (2 if recipe.train.precision == "bfloat16" else FLOAT32_BYTES) * a.n_heads * a.n_ctx * is_copied


def attention_bytes(a: Architecture, n_keys: int, c: int, explicit: bool) -> float:
    """Bytes that attention keeps of a position; `c` bytes are those of a number."""
    q, kv = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    norms = 8 * (q + kv) if a.attention.qk_norm != "none" else 0
    if not explicit:
        return (2 + a.rotates_somewhere) * c * q + 2 * c * kv + norms
    patterns = 1 + (a.dropout.pattern > 0) + (a.attention.score_cap > 0)
    return 4 * c * q + norms + a.n_heads * n_keys * (patterns * c + (a.dropout.pattern > 0))


def of_optimizer(recipe: Recipe) -> tuple[float, float, float]:
    """Bytes of the gradients, of the averages, and of what an update needs beside them."""
    kinds = trained_shapes(recipe.model, recipe.adapt, recipe.train.optimizer)
    numbers: Counter[str] = Counter()
    updating = 0.0
    matrix, products = MUON_COPIES["bfloat16" if recipe.train.precision == "bfloat16" else "float32"]
    for (word, shape), n in kinds.items():
        numbers[word] += n * shape.numel()
        if word == "muon":
            copies = matrix + products * min(shape) / max(shape)
            updating = max(updating, FLOAT32_BYTES * n * shape.numel() * copies)
    averages = sum(AVERAGES[word] * n for word, n in numbers.items())
    return FLOAT32_BYTES * numbers.total(), FLOAT32_BYTES * averages, updating


@lru_cache(maxsize=64)
def trained_shapes(
    a: Architecture, adapters: AdapterOptions, optimizer: OptimizerName
) -> dict[tuple[OptimizerName, torch.Size], int]:
    """How many trained parameters there are of each optimiser and shape."""
    with without_memory():
        network = Transformer(a)
        if adapters.rank:
            adapt(network, adapters.rank, adapters.scaled_by, adapters.modules)
    return Counter(
        (optimizer_of(name, p, optimizer), p.shape) for name, p in network.named_parameters() if p.requires_grad
    )


def first_in_chunks(recipe: Recipe) -> int:
    """The smallest batch whose logits are computed in chunks."""
    return -(-MANY_LOGITS // (recipe.model.n_ctx * recipe.model.n_vocab))


def check_memory(recipe: Recipe, device: torch.device, processes: Processes = SINGLE_PROCESS) -> None:
    """Raise RecipeError for a run that does not fit into memory, even if it needs the ERROR of the formula less; before
    anything is allocated.

    What is too large by a lower bound is refused without the formula, which would build its modules. Of a network that
    processes divide there is the lower bound alone; `pellucid plan --processes` says more. A precision that is left
    open is bfloat16 on a GPU that has units for it, as a run begins there (`eager_recipes`).
    """
    if recipe.train.precision is None and device.type == "cuda" and may_use_bfloat16(device):
        recipe = with_train(recipe, precision="bfloat16")
    have, a, t = free_bytes(device), recipe.model, recipe.train
    # weights, gradients, one average of each, and the input of every block
    states = FLOAT32_BYTES * count_parameters(a)["total"] + 2 * FLOAT32_BYTES * n_trained(recipe)
    entering = (2 if t.precision == "bfloat16" else 4) * t.batch * a.n_ctx * a.d_model * a.n_layers
    sharing = processes.n_here if device.type == "cpu" else 1
    need = sharing * (states / processes.n_parts + entering / processes.n)
    if need <= have and not processes.divides_weights:
        need = (1 - ERROR) * training_memory(recipe).peak
    if need > have:
        source = f" and sources of up to {recipe.model.encoder.n_ctx}" if recipe.model.encoder else ""
        here = f" in {processes.n_here} processes of this machine" if processes.divides_weights else ""
        free = " free" if device.type == "cuda" else ""
        raise RecipeError(
            f"training this would need at least {need / 2**30:.1f} GiB{here} and {device.type} has "
            f"{have / 2**30:.1f} GiB{free}: {count_parameters(a)['total']:,} parameters, {t.batch} sequences of "
            f"{a.n_ctx} tokens{source} a micro-batch. Make d_model, n_layers, n_ctx or batch smaller, or set "
            "recompute=yes"
        )


def shallow(recipe: Recipe, depth: int) -> Recipe:
    """The recipe with `depth` layers, and the encoder shortened in proportion."""
    a, share = recipe.model, depth / max(recipe.model.n_layers, 1)
    encoder = a.encoder and replace(a.encoder, n_layers=max(1, round(share * a.encoder.n_layers)))
    return replace(recipe, model=replace(a, n_layers=depth, encoder=encoder))
