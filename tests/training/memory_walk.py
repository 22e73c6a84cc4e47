"""A training step on tensors that have sizes and no numbers: what the formula of `pellucid.training.memory` is held to.

All tensors that exist at the same time are counted.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pellucid.model import Transformer
from pellucid.model.dropout import draw_by_sample
from pellucid.model.lora import adapt
from pellucid.model.mlp import MixtureOfExperts
from pellucid.runs.optimizer import make_optimizer
from pellucid.training.build import choose_paths, n_logits
from pellucid.training.memory import Memory
from pellucid.training.objectives import MicroBatch, autocast, with_dropout_by_sample
from pellucid.training.recipe import Recipe


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
        for _ in range(
            2 if (t.accumulate or 1) > 1 else 1
        ):  # during the second pass the gradients of the first exist too
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


def bare_network(recipe: Recipe) -> Transformer:
    """The recipe's network, with its adapters. Where there are no numbers, every expert computes as many rows."""
    network = Transformer(recipe.model)
    for module in network.modules():
        if isinstance(module, MixtureOfExperts):
            module.choices = partial(even_choices, module.k)
    if recipe.adapt.rank:
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules, recipe.record.new_ids)
    return network


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
    live = Live()
    with FakeTensorMode(), live:
        yield live
