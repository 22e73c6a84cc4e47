"""The memory of a training step as linear functions of its batch: a closed form of `memory.walk`.

The network's forward and backward pass runs once, on tensors that have a shape and no numbers, with only those layers
that differ from each other. The memory after each allocation is linear in the batch. Every further equal layer in the
middle adds what a layer keeps to all that follows in the forward pass; in the backward pass it adds its gradients and
subtracts what it frees. Among equal layers the first or the last has the peak. So every peak is the largest of some
linear functions. tests/training/test_memory_lines.py checks that they equal the walk, to the byte.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.dropout import draw_by_sample
from pellucid.model.lora import adapt
from pellucid.model.mlp import MixtureOfExperts
from pellucid.runs.muon import update_together
from pellucid.runs.optimizer import optimizer_of
from pellucid.runs.processes import Processes
from pellucid.runs.rmsprop import RMSprop
from pellucid.training.build import choose_paths
from pellucid.training.memory_layout import ShardedMemory, divide_stream, part_of, round_blocks
from pellucid.training.objectives import MANY_LOGITS, MicroBatch, autocast, with_dropout_by_sample
from pellucid.training.recipe import Recipe
from pellucid.training.shape_tensors import CPU, LinearBytes, NoClosedFormError, ShapesOnly, shapes_only, sum_of

#: possible batches of the run; the first one is taken that divides no other size
PRIMES = (10007, 10009, 10037, 10039, 10061)
#: bytes of a float32 number
FLOAT = 4


@dataclass(frozen=True)
class StepLines:
    """Bytes as linear functions of the batch; a part of the step has the largest of several."""

    weights: int
    gradients: LinearBytes
    optimizer: int
    activations: LinearBytes
    forward: tuple[LinearBytes, ...]
    backward: tuple[LinearBytes, ...]
    update: LinearBytes

    def at(self, batch: int) -> tuple[int, ...]:
        """The bytes with this batch, in the order of the fields."""
        parts = (max(line.at(batch) for line in lines) for lines in (self.forward, self.backward))
        gradients, activations = self.gradients.at(batch), self.activations.at(batch)
        return self.weights, gradients, self.optimizer, activations, *parts, self.update.at(batch)


@dataclass(frozen=True)
class RepeatedLayers:
    """Layers first ... last - 1 of the network's blocks, or its encoder's, which are repeated `times` more times."""

    of_encoder: bool
    first: int
    last: int
    times: int

    def blocks(self, network: Transformer) -> nn.ModuleList:
        """The network's list of blocks that contains these layers."""
        return network.encoder.blocks if self.of_encoder and network.encoder else network.blocks


class LayerBoundaries:
    """Records the memory when the passes of a step enter and leave the repeated layers."""

    def __init__(self, mode: ShapesOnly, repeat: RepeatedLayers, network: Transformer):
        self.mode, self.times = mode, repeat.times
        #: at the first of these layers and at the layer after them: the number of recorded lines, and the memory
        self.forward: list[tuple[int, LinearBytes]] = []
        self.backward: list[tuple[int, LinearBytes]] = []
        #: the bytes that the copies keep for the backward pass
        self.saved = LinearBytes()
        for layer in (repeat.first, repeat.last):
            repeat.blocks(network)[layer].register_forward_pre_hook(self.enter)

    def enter(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Record that the forward pass enters a layer, and that the backward pass leaves it (the gradient of its
        input).
        """
        self.forward.append((len(self.mode.record), self.mode.live))
        inputs[0].register_hook(lambda gradient: self.backward.append((len(self.mode.record), self.mode.live)))

    def forward_ends(self) -> None:
        """Compute the bytes kept, now that autocast has freed its copies of weights that the backward pass does not
        use.
        """
        first, last = (number for number, _ in self.forward[-2:])
        self.saved = LinearBytes().plus(self.mode.allocated_between(first, last), self.times)

    @property
    def entered(self) -> LinearBytes:
        """The memory that the copies add by the end of their forward pass."""
        return LinearBytes().plus(self.forward[-1][1].minus(self.forward[-2][1]), self.times)

    @property
    def returned(self) -> LinearBytes:
        """The memory that the copies add by the end of their backward pass: their gradients, less what they kept."""
        return LinearBytes().plus(self.backward[-1][1].minus(self.backward[-2][1]), self.times)


@lru_cache(maxsize=64)
def step_lines(recipe: Recipe, chunked: bool) -> StepLines:
    """The linear functions of a recipe, for every batch; `chunked`: logits are computed in chunks."""
    if recipe.model.mlp.experts:
        raise NoClosedFormError("the rows of an expert are no linear function of the batch")
    recipe, repeats = without_copies(recipe)
    t, batch = recipe.train, unlike_any_size(recipe)
    weights, trained = of_all_layers(recipe, repeats)
    optimizer = optimizer_bytes(trained)
    with shapes_only(batch) as mode:
        network = bare_network(recipe)
        round_blocks(network, gathered_dtype(recipe))
        shallow = mode.live
        choose_paths(network, recipe)
        divided = divide_memory(network, recipe)
        loss = autocast(network.train(), CPU, t.precision, MANY_LOGITS if chunked else 0)
        loss = with_dropout_by_sample(network, loss)
        visits = [LayerBoundaries(mode, repeat, network) for repeat in repeats]
        others = LinearBytes(weights - shallow.fixed + optimizer)  # the memory that `mode` does not count
        gradients = LinearBytes()  # those of the copies
        passes = 2 if t.accumulate > 1 else 1
        for number in range(passes):  # during the second pass the gradients of the first exist too
            divided.is_last = number == passes - 1
            others = others.plus(gradients)
            start, _ = mode.new_part()
            total = loss(micro_batch_of(recipe, batch))
            for visit in visits:
                visit.forward_ends()
            end, forward = mode.new_part()
            total.backward()
            del total
            draw_by_sample(network, None)
            left, backward = mode.new_part()
            saved = sum_of(visit.saved for visit in visits)
            gradients = sum_of([gradients, saved, *(visit.returned for visit in visits)])
    for visit in sorted(visits, key=lambda visit: visit.forward[-1], reverse=True):
        forward = insert_copies(forward, visit.forward, visit.entered)
    for visit in sorted(visits, key=lambda visit: visit.backward[-1], reverse=True):
        backward = insert_copies(backward, visit.backward, visit.returned)
    gradients = gradients.plus(left.minus(shallow))
    if gradients.each:
        raise NoClosedFormError("some of what the forward pass keeps outlives the backward pass")
    return StepLines(
        weights,
        gradients,
        optimizer,
        end.minus(start).plus(saved),
        upper_envelope(line.plus(others) for line in forward),
        upper_envelope(sum_of([line, others, saved]) for line in backward),
        gradients.plus(LinearBytes(weights + optimizer + update_bytes(trained, t.precision))),
    )


def insert_copies(
    record: list[LinearBytes], visits: list[tuple[int, LinearBytes]], more: LinearBytes
) -> list[LinearBytes]:
    """The memory with copies of layers that add `more`: the first copy has it as recorded, the last with `more`."""
    first, last = visits[-2][0], visits[-1][0]
    return record[:last] + [line.plus(more) for line in record[first:]]


def upper_envelope(lines: Iterable[LinearBytes]) -> tuple[LinearBytes, ...]:
    """Only those lines that are the largest for some batch from 1 on; the steepest line comes first."""
    largest: list[LinearBytes] = []
    for line in sorted(set(lines), key=lambda line: (line.each, line.fixed), reverse=True):
        if not largest or line.at(1) > largest[-1].at(1):
            largest.append(line)
    return tuple(largest)


def without_copies(recipe: Recipe) -> tuple[Recipe, list[RepeatedLayers]]:
    """The recipe with only those layers that differ from each other, and the layers that are to be repeated.

    Where processes divide weights, the backward pass of every layer but the last one begins while the gradients of the
    layer above it are still being sent, so that the last layer differs from those that are repeated.
    """
    a, p = recipe.model, recipe.parallel
    at_end = 2 if p.shard > 1 or p.tensor > 1 else 1
    a, repeats = _shortened(a, at_end, of_encoder=False)
    if a.encoder is not None:
        encoder, more = _shortened(a.encoder, at_end, of_encoder=True)
        a, repeats = replace(a, encoder=encoder), repeats + more
    return replace(recipe, model=a), repeats


def _shortened(a: Architecture, at_end: int, of_encoder: bool) -> tuple[Architecture, list[RepeatedLayers]]:
    """The architecture with at least one layer before the repeated ones, and at least `at_end` after them."""
    period = math.lcm(len(a.attention.windows), max(1, a.positions.every))
    times = (a.n_layers - period - 1 - at_end) // period
    if times < 1:
        return a, []
    return replace(a, n_layers=a.n_layers - times * period), [RepeatedLayers(of_encoder, 1, 1 + period, times)]


def bare_network(recipe: Recipe) -> Transformer:
    """The recipe's network, with its adapters. Where there are no numbers, every expert computes as many rows."""
    network = Transformer(recipe.model)
    for module in network.modules():
        if isinstance(module, MixtureOfExperts):
            module.choices = partial(even_choices, module.k)
    if recipe.adapt.rank:
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules, recipe.new_ids)
    return network


def divide_memory(network: Transformer, recipe: Recipe) -> ShardedMemory:
    """Make a bare network allocate what one of the recipe's processes would; it is the part of one tensor group."""
    layout = recipe.parallel
    shard, tensor = max(1, layout.shard), max(1, layout.tensor)
    if tensor > 1:
        divide_stream(network, tensor)
    return ShardedMemory(network if shard * tensor > 1 else None, shard, gathered_dtype(recipe))


def gathered_dtype(recipe: Recipe) -> torch.dtype:
    """The type in which processes gather the weights of blocks, and compute with them."""
    return torch.bfloat16 if recipe.parallel.gather == "bfloat16" else torch.float32


def even_choices(k: int, weights: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """What `model.mlp.choices` gives where each row uses k experts, and all experts are used as often."""
    n, n_experts = k * weights.size(0), weights.size(1)
    n_rows = [n // n_experts + (e < n % n_experts) for e in range(n_experts)]
    at = torch.zeros(n, dtype=torch.int64, device=weights.device)
    return at, at, n_rows


def micro_batch_of(recipe: Recipe, batch: int) -> MicroBatch:
    """A pass of the recipe's sizes."""
    a = recipe.model
    tokens = torch.zeros((batch, a.n_ctx), dtype=torch.int64)
    source = None if a.encoder is None else torch.zeros((batch, a.encoder.n_ctx), dtype=torch.int64)
    return MicroBatch(tokens, tokens, source=source, samples=torch.zeros(batch, dtype=torch.int64))


def unlike_any_size(recipe: Recipe) -> int:
    """A prime that divides no size of the recipe's network, and no such size plus or minus one."""
    sizes = {n + step for n in _integers(recipe.to_dict()) for step in (-1, 0, 1)} - {0}
    for prime in PRIMES:
        if all(n % prime for n in sizes):
            return prime
    raise NoClosedFormError(f"sizes of the network are multiples of each of {PRIMES}")


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _integers(part)
    elif isinstance(value, int):
        yield int(value)


#: parameters of one kind: muon, rmsprop or adamw, the shape of a process's part, and that of the whole
ParameterKind = tuple[str, torch.Size, torch.Size]
#: how many averages, or sums, each optimiser has of a number
AVERAGES = {"muon": 1, "rmsprop": 1, "adamw": 2}


@lru_cache(maxsize=64)
def weights_and_parameters(recipe: Recipe) -> tuple[int, Counter[ParameterKind]]:
    """The bytes of the network's weights and tables, and the number of trained parameters of each kind."""
    t, shard = recipe.train, max(1, recipe.parallel.shard)
    with shapes_only() as mode:
        network = bare_network(recipe)
        named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        elsewhere = sum(FLOAT * (p.numel() - part_of(p.shape, shard).numel()) for p in network.parameters())
        weights = mode.live.fixed - elsewhere
        whole = whole_shapes(recipe)
        words = [optimizer_of(name, p, t.optimizer, t.ngram_optimizer) for name, p in named]
        parts = [(part_of(p.shape, shard), whole[name]) for name, p in named]
        return weights, Counter((word, *part) for word, part in zip(words, parts, strict=True))


def whole_shapes(recipe: Recipe) -> dict[str, torch.Size]:
    """The shapes of the parameters before `parallel.tensor` divided heads and hidden neurons."""
    a, tensor = recipe.model, max(1, recipe.parallel.tensor)
    if tensor > 1:
        sizes = {"attention.n_heads": a.n_heads, "attention.n_kv_heads": a.n_kv_heads, "mlp.d_ff": a.d_ff}
        a = a.with_fields({name: tensor * n for name, n in sizes.items()} | {"attention.d_head": a.d_head})
    return {name: p.shape for name, p in bare_network(replace(recipe, model=a)).named_parameters()}


def of_all_layers(recipe: Recipe, repeats: list[RepeatedLayers]) -> tuple[int, Counter[ParameterKind]]:
    """`weights_and_parameters` including the copies."""
    weights, trained = weights_and_parameters(recipe)
    all_weights, all_trained = weights, Counter(trained)
    for repeat in repeats:
        less, fewer = weights_and_parameters(replace(recipe, model=without_layers(recipe.model, repeat)))
        all_weights += repeat.times * (weights - less)
        for kind, n in (trained - fewer).items():
            all_trained[kind] += repeat.times * n
    return all_weights, all_trained


def without_layers(a: Architecture, repeat: RepeatedLayers) -> Architecture:
    """The architecture without the layers that are repeated."""
    fewer = repeat.last - repeat.first
    if not repeat.of_encoder:
        return replace(a, n_layers=a.n_layers - fewer)
    assert a.encoder is not None
    return replace(a, encoder=replace(a.encoder, n_layers=a.encoder.n_layers - fewer))


def optimizer_bytes(trained: Counter[ParameterKind]) -> int:
    """AVERAGES of each number; AdamW and RMSprop also count the steps of a parameter, and there is the flag of a bad
    step.
    """
    averages = sum(n * FLOAT * part.numel() * AVERAGES[word] for (word, part, _), n in trained.items())
    counts = {word: sum(n for (of, _, _), n in trained.items() if of == word) for word in ("adamw", "rmsprop")}
    return averages + FLOAT * sum(counts.values()) + 1


class SizesOfParts(Processes):
    """Processes that hold parts of this shape of matrices of another one, as far as memory goes."""

    def __init__(self, part: torch.Size, whole: torch.Size):
        self.part, self.whole = part, whole

    def whole_matrices(self, parts: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Each matrix is gathered by itself, and then all are stacked."""
        return parts if self.part == self.whole else torch.stack([torch.empty(self.whole) for _ in matrices])

    def parts_of(self, whole: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Each part is a copy of some rows or columns, and then all are stacked."""
        return whole if self.part == self.whole else torch.stack([torch.empty(self.part) for _ in matrices])


@lru_cache(maxsize=64)
def _muon_bytes(part: torch.Size, whole: torch.Size, n: int, precision: str) -> int:
    """The largest memory while Muon updates n matrices of one shape, besides a process's parts of them, of their
    gradients and averages.
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with shapes_only() as mode:
        params, buffers = ([torch.empty(part) for _ in range(n)] for _ in range(2))
        for p in params:
            p.grad = torch.empty(part)
        bad = torch.zeros((), dtype=torch.bool)
        start, _ = mode.new_part()
        parts = SizesOfParts(part, whole)
        update_together(params, buffers, 0.95, 0.1, 1.0, dtype, bad, parts)  # type: ignore[arg-type]
        _, record = mode.new_part()
        return max(line.fixed for line in record) - start.fixed


@lru_cache(maxsize=64)
def _rmsprop_bytes(part: torch.Size) -> int:
    """The largest memory while RMSprop updates a table, besides it, its gradient and its sum."""
    with shapes_only() as mode:
        p = nn.Parameter(torch.empty(part))
        p.grad = torch.empty(part)
        optimizer = RMSprop([p], 0.1, 0.99, 0.1, 1e-8)
        optimizer.remembered(p)
        bad = torch.zeros((), dtype=torch.bool)
        start, _ = mode.new_part()
        optimizer.step(bad)
        _, record = mode.new_part()
        return max(line.fixed for line in record) - start.fixed


def update_bytes(trained: Counter[ParameterKind], precision: str) -> int:
    """The largest memory of clipping and the optimiser's step, besides weights, gradients and averages.

    Clipping needs the norm of each gradient, a vector of all these norms, and its norm.
    """
    muon = [_muon_bytes(*parts, n, precision) for (word, *parts), n in trained.items() if word == "muon"]
    tables = [_rmsprop_bytes(part) for word, part, _ in trained if word == "rmsprop"]
    return max(FLOAT * (2 * trained.total() + 1), *muon, *tables, 0)
