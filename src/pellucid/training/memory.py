"""The memory of a training step, found by running one on tensors that have sizes and no numbers.

Network, loss, backward pass, clipping and optimiser are those of a run, so there is no separate formula that could
differ from them. All tensors that exist at the same time are counted. Not counted are the working memory of kernels,
the interpreter and its libraries, and what compiled graphs save.
"""

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pellucid.model.dropout import draw_by_sample
from pellucid.parameter_counts import count_parameters
from pellucid.runs.device import free_bytes
from pellucid.runs.optimizer import make_optimizer
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.processes import ALONE, Processes
from pellucid.training.build import choose_paths, n_logits
from pellucid.training.memory_lines import NoClosedFormError, bare_network, micro_batch_of, step_lines
from pellucid.training.objectives import MANY_LOGITS, autocast, with_dropout_by_sample
from pellucid.training.recipe import Recipe
from pellucid.training.resolve_recipe import n_trained, possible_passes, training_bytes

#: layers of the two networks that are run, or timed, instead of a deeper one: memory and time are linear in the number
#: of further layers
SHALLOW, DEEP = 2, 4
#: the quick estimate decides where it is below or above these shares of the available memory; it ignores the pattern
#: that the explicit kernel keeps (21 times as much at a context of 8,192), and recomputation
CLEAR = (0.04, 40.0)


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

    def towards(self, other: "Memory", share: float) -> "Memory":
        """self + share * (other - self), field by field."""
        return Memory(*(a + share * (b - a) for a, b in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[float, ...]:
        """The fields in order."""
        return tuple(vars(self).values())


def training_memory(recipe: Recipe) -> Memory:
    """The memory of the second and all later steps of an eager run. The recipe's batch is resolved; `auto` is float32.

    The formulas of `memory_lines` are equal to `walk`. A network that they do not cover is walked instead, with a
    warning; where it has more than DEEP layers, two shallow networks are, and the result is extrapolated linearly.
    """
    t = recipe.train
    any_batch = with_train(recipe, batch=0, accumulate=min(t.accumulate, 2))
    try:
        return Memory(*step_lines(any_batch, n_logits(recipe) >= MANY_LOGITS).at(t.batch))
    except NoClosedFormError as reason:
        warnings.warn(
            f"the memory is found by running a step without numbers, which takes longer: {reason}", stacklevel=2
        )
        return walked_memory(recipe)


def walked_memory(recipe: Recipe) -> Memory:
    """The same by `walk` alone; for logits in chunks, extrapolated linearly from two batches."""
    n, batch = recipe.model.n_layers, recipe.train.batch
    chunked = first_in_chunks(recipe)
    if batch > 2 * chunked + 2:
        few, more = (walked_memory(with_train(recipe, batch=k)) for k in (chunked + 1, 2 * chunked + 2))
        return few.towards(more, (batch - chunked - 1) / (chunked + 1))
    if n <= DEEP:
        return walk(recipe)
    few, more = (walk(shallow(recipe, depth)) for depth in (SHALLOW, DEEP))
    return few.towards(more, (n - SHALLOW) / (DEEP - SHALLOW))


def first_in_chunks(recipe: Recipe) -> int:
    """The smallest batch whose logits are computed in chunks."""
    return -(-MANY_LOGITS // (recipe.model.n_ctx * recipe.model.n_vocab))


def check_memory(recipe: Recipe, device: torch.device, processes: Processes = ALONE) -> None:
    """Raise RecipeError for a run that does not fit into memory, before anything is allocated.

    Of a network that processes divide a lower bound is computed; `pellucid plan --processes` says more.
    """
    trained, have = n_trained(recipe), free_bytes(device)
    a, t = recipe.model, recipe.train
    quick = training_bytes(a, t.batch, t.precision, trained)
    # a lower bound: weights, gradients, one average of each, and the input of every block
    states = 4 * count_parameters(a)["total"] + 8 * trained
    entering = (2 if t.precision == "bfloat16" else 4) * t.batch * a.n_ctx * a.d_model * a.n_layers
    need: float = quick if quick > CLEAR[1] * have else states + entering
    if processes.divides_weights:
        sharing = processes.n_here if device.type == "cpu" else 1
        need = sharing * (states / processes.n_parts + entering / processes.n)
    elif need <= have and quick > CLEAR[0] * have:
        need = training_memory(recipe).peak
    if need > have:
        source = f" and sources of up to {recipe.model.encoder.n_ctx}" if recipe.model.encoder else ""
        here = f" in {processes.n_here} processes of this machine" if processes.divides_weights else ""
        free = " free" if device.type == "cuda" else ""
        raise RecipeError(
            f"training this would need about {need / 2**30:.1f} GiB{here} and {device.type} has "
            f"{have / 2**30:.1f} GiB{free}: {count_parameters(a)['total']:,} parameters, {t.batch} sequences of "
            f"{a.n_ctx} tokens{source} a micro-batch. Make d_model, n_layers, n_ctx or batch smaller, or set "
            "recompute=yes"
        )


def passes_that_fit(recipe: Recipe, device: torch.device, processes: Processes = ALONE) -> tuple[int, ...]:
    """The numbers of passes that are compared (`resolve_recipe.possible_passes`), without those that need more memory
    than there is; the recipe's own, which fits, is among them.
    """
    t = recipe.train
    rows, fitting = t.batch * t.accumulate, []
    for passes in possible_passes(recipe, device, processes.n_shares):
        try:
            if passes < t.accumulate:
                check_memory(with_train(recipe, batch=rows // passes, accumulate=passes), device, processes)
        except RecipeError:
            continue
        fitting.append(passes)
    return tuple(fitting)


@lru_cache(maxsize=64)
def walk(recipe: Recipe) -> Memory:
    """The memory of one step, after an update from gradients of zeros that creates the optimiser's averages."""
    device, t = torch.device("cpu"), recipe.train
    with without_numbers() as live:
        network = bare_network(recipe)
        choose_paths(network, recipe)
        weights = live.now
        optimizer = make_optimizer(recipe, network)
        loss = with_dropout_by_sample(network, autocast(network.train(), device, t.precision, n_logits(recipe)))
        parameters = list(network.parameters())
        bad = torch.zeros((), dtype=torch.bool)
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        optimizer.step(bad)
        optimizer.zero_grad()
        before = live.now
        for _ in range(2 if t.accumulate > 1 else 1):  # during the second pass the gradients of the first exist too
            held = live.start()
            total = loss(micro_batch_of(recipe, t.batch))
            activations, forward = live.now - held, live.peak
            live.start()
            total.backward()
            del total
            draw_by_sample(network, None)
            gradients, backward = live.now - before, live.peak
        live.start()
        torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        optimizer.step(bad)
        update = live.peak
        kept = live.now - weights - gradients
    return Memory(weights, gradients, kept, activations, forward, backward, update)


def shallow(recipe: Recipe, depth: int) -> Recipe:
    """The recipe with `depth` layers, and the encoder shortened in proportion."""
    a, share = recipe.model, depth / max(recipe.model.n_layers, 1)
    encoder = a.encoder and replace(a.encoder, n_layers=max(1, round(share * a.encoder.n_layers)))
    return replace(recipe, model=replace(a, n_layers=depth, encoder=encoder))


class Live(TorchDispatchMode):
    """Counts the bytes of all existing tensors, each storage once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def start(self) -> int:
        """Reset the peak, and return the bytes that exist now."""
        self.peak = self.now
        return self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # called for every tensor, twice as often as any operation runs
            return args[0].fake_device
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self.count(x.untyped_storage())
        return made

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        """It is freed."""
        self.known.discard(key)
        self.now -= size


@contextmanager
def without_numbers() -> Iterator[Live]:
    """A context in which tensors have sizes, types and lifetimes, but no numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    live = Live()
    with FakeTensorMode(), live:
        yield live
