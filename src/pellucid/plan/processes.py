"""A run on many processes: what each of them holds, what it sends, and how long a step takes, from shapes alone.

A process's share of a tensor-parallel network is itself a network, with fewer heads, a narrower MLP and fewer rows of
the vocabulary (Shoeybi et al. 2019, section 3). Its parameters, gradients and averages are divided again by `shard`,
along their first axis, a layer at a time (Rajbhandari et al. 2019, stage 3; PyTorch's `fully_shard`). Rows of the
batch are divided among replicate x shard groups.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import without_memory
from pellucid.plan.accelerators import TRAINING_SHARE, USABLE, Accelerator, PlanError
from pellucid.plan.flops import flops
from pellucid.runs.optimizer import optimizer_of
from pellucid.runs.options import with_train
from pellucid.runs.shards import FLOAT32_BYTES
from pellucid.training.build import undivided
from pellucid.training.config import ParallelOptions
from pellucid.training.memory import AVERAGES, training_memory
from pellucid.training.recipe import Recipe

#: processes of one machine, which reach each other through `Accelerator.link`; others go through `Accelerator.network`
PER_MACHINE = 8
#: the assumed share of a link's data sheet that collective operations reach
LINK_SHARE = 0.7
#: layers whose gathered parameters exist at the same time: the one that computes and the next one
GATHERED = 2


@dataclass(frozen=True, order=True)
class Layout:
    """How many processes hold copies, share parameters, and share each layer's products."""

    replicate: int
    shard: int
    tensor: int

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.replicate * self.shard * self.tensor

    @property
    def words(self) -> str:
        """The layout as the product of its numbers."""
        return f"replicate {self.replicate:,} x shard {self.shard:,} x tensor {self.tensor}"

    @property
    def groups(self) -> int:
        """The number of groups that read different rows of the batch."""
        return self.replicate * self.shard


@dataclass(frozen=True)
class Traffic:
    """Bytes that one process sends in a step, by kind, and the seconds that they take."""

    kind: str
    bytes: float
    seconds: float
    overlaps: bool


@dataclass(frozen=True)
class ProcessPlan:
    """One process's bytes, traffic and seconds for a step of the whole batch."""

    layout: Layout
    rows: int
    passes: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    recompute: bool
    tokens: int
    accelerator: Accelerator
    compute: float
    traffic: tuple[Traffic, ...]

    @property
    def fits(self) -> bool:
        """Whether a step fits into the accelerator's memory."""
        return self.peak <= USABLE * self.accelerator.memory

    @property
    def peak(self) -> int:
        """The largest memory during a step."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    @property
    def waiting(self) -> float:
        """Seconds of a step in which a process waits for others: what cannot overlap, and what outlasts computing."""
        exposed = sum(t.seconds for t in self.traffic if not t.overlaps)
        hidden = sum(t.seconds for t in self.traffic if t.overlaps)
        return exposed + max(0.0, hidden - self.compute)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.compute + self.waiting


def layout_of(processes: int, *, replicate: int = 0, shard: int = 0, tensor: int = 0) -> Layout:
    """The layout with these numbers, where 0 is open: `tensor` becomes 1, then `shard` takes what is left.

    Raises PlanError where the product cannot be `processes`.
    """
    numbers = {"replicate": replicate, "shard": shard, "tensor": tensor or 1}
    if processes < 1 or min(numbers.values()) < 0:
        raise PlanError(f"{processes} processes, {numbers}: give numbers from 1 on, or 0 for those left open")
    fixed = math.prod(n for n in numbers.values() if n)
    if processes % fixed:
        said = " x ".join(f"{name} = {n}" for name, n in numbers.items() if n)
        raise PlanError(f"{said} does not divide processes = {processes}: give divisors of it")
    for name in ("shard", "replicate"):
        if not numbers[name]:
            numbers[name], fixed = processes // fixed, processes
    if fixed != processes:
        raise PlanError(f"replicate x shard x tensor = {fixed}, but processes = {processes}: leave one of them open")
    return Layout(**numbers)


def divided_architecture(a: Architecture, tensor: int) -> Architecture:
    """The part of the network that one of `tensor` processes computes.

    Raises PlanError with the first size that `tensor` does not divide, and for what a run does not divide.
    """
    if tensor == 1:
        return a
    if what := undivided(a):
        raise PlanError(f"tensor = {tensor} does not divide {what}: give shard for this one")
    sizes = {
        "n_ctx": a.n_ctx,
        "attention.n_heads": a.n_heads,
        "attention.n_kv_heads": a.n_kv_heads,
        "mlp.d_ff": a.d_ff,
        "n_vocab": a.n_vocab,
    }
    for name, size in sizes.items():
        if size % tensor:
            near = f"{size - size % tensor or tensor} or {size - size % tensor + tensor}"
            raise PlanError(
                f"{name} = {size:,} is not divisible by tensor = {tensor}: choose a divisor of {size:,} for tensor, or "
                f"{near} for {name}"
            )
    unchanged = {"n_ctx": a.n_ctx, "attention.d_head": a.d_head}  # every process reads all positions in turn
    return a.with_fields({name: size // tensor for name, size in sizes.items()} | unchanged)


def shard_shape(shape: torch.Size, shard: int) -> torch.Size:
    """The largest process's part of a parameter: its first axis is cut into equal pieces, the last of them shorter."""
    return torch.Size((-(-shape[0] // shard), *shape[1:])) if shape else shape


@lru_cache(maxsize=64)
def units(recipe: Recipe) -> tuple[tuple[int, tuple[tuple[str, torch.Size], ...]], ...]:
    """What `fully_shard` gathers at once: each kind of layer, and then all parameters outside of layers.

    Each unit is the number of such layers, and of each parameter its optimiser and its shape.
    """
    a = recipe.model
    if a.encoder is not None:
        raise PlanError("an encoder-decoder on many processes cannot be planned yet: plan it for one process")
    t = recipe.train
    with without_memory():
        network = Transformer(replace(a, n_layers=1))
        named = [(name, optimizer_of(name, p, t.optimizer), p.shape) for name, p in network.named_parameters()]
    layer = tuple((word, shape) for name, word, shape in named if name.startswith("blocks."))
    others = tuple((word, shape) for name, word, shape in named if not name.startswith("blocks."))
    return (a.n_layers, layer), (1, others)


def plan_processes(
    recipe: Recipe, layout: Layout, other: Accelerator, *, passes: int = 1, per_machine: int = PER_MACHINE
) -> ProcessPlan:
    """The plan of one process for a step of `train.batch` rows of the whole run, read in `passes` micro-batches.

    Products are in the recipe's precision; parameters are gathered in that of `parallel.gather`, and gradients are
    summed in float32. Raises PlanError with the first thing that does not divide, or that a run would refuse.
    """
    t, a = recipe.train, recipe.model
    if t.batch % (layout.groups * passes):
        raise PlanError(
            f"batch = {t.batch:,} rows are not divisible by replicate x shard x micro-batches = "
            f"{layout.groups} x {passes}: give a multiple of {layout.groups * passes:,}"
        )
    if recipe.parallel.gather == "bfloat16" and (layout.shard == 1 or t.precision != "bfloat16"):
        raise PlanError(
            f"parallel.gather = bfloat16 is for shard above 1 and precision = bfloat16, and there are shard = "
            f"{layout.shard} and precision = {t.precision}: leave gather as it is, or give those"
        )
    rows = t.batch // layout.groups // passes
    local = replace(
        with_train(recipe, batch=rows, accumulate=passes),
        model=divided_architecture(a, layout.tensor),
        parallel=ParallelOptions(gather=recipe.parallel.gather),
    )
    own = [(n, [(word, shard_shape(shape, layout.shard)) for word, shape in unit]) for n, unit in units(local)]
    numbers = sum(n * sum(shape.numel() for _, shape in unit) for n, unit in own)
    optimizer = _optimizer_bytes(own)
    gathered, working = _gathered_and_working(local, layout, passes)
    return ProcessPlan(
        layout,
        rows,
        passes,
        parameters=numbers,
        weights=FLOAT32_BYTES * numbers,
        gradients=FLOAT32_BYTES * numbers,
        optimizer=optimizer,
        gathered=gathered,
        activations=working,
        recompute=t.recompute == "yes",
        tokens=t.batch * a.n_ctx,
        accelerator=other,
        compute=_compute_seconds(recipe, layout, other),
        traffic=tuple(_traffic(local, layout, other, passes, per_machine)),
    )


def _gathered_and_working(local: Recipe, layout: Layout, passes: int) -> tuple[int, int]:
    """Bytes of what a process gathers of others, and of all else that a step needs beside its parts of weights,
    gradients and averages: the most of each, though not all of it is needed at the same time.
    """
    memory, size = training_memory(local), gathered_bytes(local)
    if layout.shard * layout.tensor == 1:
        copies = int(memory.gradients) if layout.replicate > 1 else 0  # whose sums DistributedDataParallel keeps
        return copies, int(memory.peak - memory.weights - memory.optimizer - memory.gradients)
    layer, others = (sum(shape.numel() for _, shape in unit) for _, unit in units(local))
    gathered = size * (layer + others)  # fully_shard of one process computes with copies
    if layout.shard > 1:
        gathered = size * (GATHERED * layer + others) + FLOAT32_BYTES * max(layer, others)
    # gradients are divided as soon as a layer's are complete, so that those of all layers never exist
    before = memory.gradients if passes > 1 else 0.0
    largest = max(memory.forward - before, memory.backward - memory.gradients)
    return gathered, int(largest - memory.weights - memory.optimizer)


def gathered_bytes(recipe: Recipe) -> int:
    """Bytes of a number that processes gather."""
    return 2 if recipe.parallel.gather == "bfloat16" else FLOAT32_BYTES


def _optimizer_bytes(own: list[tuple[int, list[tuple[str, torch.Size]]]]) -> int:
    return FLOAT32_BYTES * sum(n * AVERAGES[word] * part.numel() for n, unit in own for word, part in unit)


def _compute_seconds(recipe: Recipe, layout: Layout, other: Accelerator) -> float:
    """Seconds of products, at the assumed share of the accelerator's peak; recomputing adds a forward pass."""
    t, a = recipe.train, recipe.model
    work = flops(a).training * (4 / 3 if t.recompute == "yes" else 1.0)
    return work * t.batch * a.n_ctx / layout.processes / (TRAINING_SHARE * other.peak(t.precision))


def _traffic(local: Recipe, layout: Layout, other: Accelerator, passes: int, per_machine: int) -> Iterator[Traffic]:
    """What one process sends. A ring sends (n - 1)/n of the bytes to gather or to reduce-scatter, twice that for a sum.

    Tensor-parallel sums cannot overlap with computing, since the next product needs them; the others do.
    """
    a, t = local.model, local.train
    size = 2 if t.precision == "bfloat16" else FLOAT32_BYTES
    (n_layers, layer), (_, others) = units(local)
    numbers = n_layers * sum(shape.numel() for _, shape in layer) + sum(shape.numel() for _, shape in others)

    def sent(kind: str, ring: int, inside: int, n_bytes: float, overlaps: bool) -> Traffic:
        """`ring` processes of a group of which `inside` processes share a machine's links."""
        total = n_bytes * (ring - 1) / ring
        speed = other.link if inside <= per_machine else other.network
        return Traffic(kind, total, total / (LINK_SHARE * speed), overlaps)

    if (n := layout.tensor) > 1:
        stream = t.batch * a.n_ctx * a.d_model * size
        # after attention and after the MLP, forward and backward; the embedding once; recomputing repeats the forward
        sums = n_layers * (6 if t.recompute == "yes" else 4) + 2
        yield sent("tensor: sums of the stream", n, n, 2.0 * passes * sums * stream, False)
    if (n := layout.shard) > 1:
        gathers = 3 if t.recompute == "yes" else 2
        yield sent(
            "shard: gathered parameters", n, n * layout.tensor, passes * gathers * gathered_bytes(local) * numbers, True
        )
        yield sent("shard: scattered gradients", n, n * layout.tensor, passes * FLOAT32_BYTES * numbers, True)
    if (n := layout.replicate) > 1:
        part = FLOAT32_BYTES * numbers / layout.shard
        yield sent("replicate: sums of gradients", n, layout.processes, 2.0 * part, True)


def fastest(recipe: Recipe, processes: int, other: Accelerator, *, per_machine: int = PER_MACHINE) -> list[ProcessPlan]:
    """The layouts of `processes` that fit into the accelerator's memory, the fastest first.

    Tensor-parallel groups stay inside a machine. The rows of a micro-batch are the most that fit, and activations are
    computed again only where nothing fits otherwise. Raises PlanError where no layout fits, with the one that comes
    nearest.
    """
    fitting: list[ProcessPlan] = []
    nearest: ProcessPlan | None = None
    refused: PlanError | None = None
    for tensor, shard in ((t, s) for t in _divisors(processes) if t <= per_machine for s in _divisors(processes // t)):
        layout = Layout(processes // tensor // shard, shard, tensor)
        try:
            plan = _best_passes(recipe, layout, other, per_machine)
        except PlanError as error:
            refused = error
            continue
        if plan.fits:
            fitting.append(plan)
        elif nearest is None or plan.peak < nearest.peak:
            nearest = plan
    if not fitting and nearest is not None:
        raise PlanError(
            f"no layout of {processes:,} processes fits into {other.name}: the smallest, {nearest.layout.words}, needs "
            f"{nearest.peak / 2**30:.1f} GiB of {other.memory / 2**30:.1f} GiB: give more processes, a shorter "
            "context, or a smaller network"
        )
    if not fitting:
        raise refused or PlanError(f"no layout of {processes:,} processes was tried")
    return sorted(fitting, key=lambda plan: (plan.seconds, plan.layout))


def _best_passes(recipe: Recipe, layout: Layout, other: Accelerator, per_machine: int) -> ProcessPlan:
    """The plan with the fewest passes that fit; with recomputed activations only where no number of passes fits."""
    rows = recipe.train.batch // layout.groups
    best: ProcessPlan | None = None
    for recompute in ("no", "yes"):
        for passes in _divisors(rows) if rows else [1]:
            best = plan_processes(
                with_train(recipe, recompute=recompute), layout, other, passes=passes, per_machine=per_machine
            )
            if best.fits:
                return best
    assert best is not None
    return best


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]
