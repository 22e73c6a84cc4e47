"""Measure how fast this machine takes a training step, within a few seconds.

The steps are those of a run: forward, backward, clipping, update. The time of a step is linear in the number of layers,
so shallow networks are timed and extrapolated, and deep ones need not be built.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from pellucid.parameter_counts import count_parameters
from pellucid.plan.flops import flops
from pellucid.runs.device import products_in
from pellucid.runs.measure import measure_step
from pellucid.runs.options import with_train
from pellucid.text.read.chunks import counted
from pellucid.training.build import build_network, choose_for_device
from pellucid.training.memory import DEEP, SHALLOW, shallow
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.resolve_recipe import ASSUMED_SHARE, add_adapters, resolve_batch
from pellucid.training.trainable import TransformerTrainable

#: rows and columns of the matrices whose product measures a CPU
CUBE = 1024
#: ... and another device
LARGE_CUBE = 8192
#: products that another device computes between two waits: to start one and to wait for it takes time of its own
PRODUCTS_AT_ONCE = 10


@dataclass(frozen=True)
class StepSpeed:
    """Seconds of a training step, tokens per second, the best FLOP/s of products, and how these were found."""

    seconds: float
    tokens_per_second: float
    peak: float
    how: str

    @property
    def is_estimated(self) -> bool:
        """Whether no step was taken."""
        return self.how.startswith("estimated")

    def share(self, flops_per_token: float) -> float:
        """The share of the best FLOP/s: FLOPs per token x tokens per second / FLOP/s of a large product."""
        return flops_per_token * self.tokens_per_second / self.peak


def cube_of(device: torch.device) -> int:
    """Rows and columns of the matrices whose product measures the device."""
    return CUBE if device.type == "cpu" else LARGE_CUBE


def product_speed(device: torch.device, precision: str) -> float:
    """FLOP/s of large matrix products (`cube_of`), the best of five times, or of fewer if one takes long."""
    n, at_once = cube_of(device), 1 if device.type == "cpu" else PRODUCTS_AT_ONCE
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = torch.randn(n, n, device=device).to(dtype)

    def multiply(times: int) -> None:
        for _ in range(times - 1):
            torch.mm(a, a)
        torch.mm(a, a)[0, 0].item()  # reading a number waits for the device

    times: list[float] = []
    with products_in(precision):
        if device.type != "cpu":
            multiply(1)  # loads what later products use
        while len(times) < 6 and sum(times) < 1.0:
            start = time.perf_counter()
            multiply(at_once)
            times.append(time.perf_counter() - start)
    return at_once * 2 * n**3 / min(times)


def training_speed(
    recipe: Recipe, device: torch.device, budget: float = 3.0, memory: float = float("inf")
) -> StepSpeed:
    """Tokens per second of training on this machine, eager; its steps are measured within about `budget` seconds,
    building included.

    The recipe's batch, precision and attention are resolved. If the fewest steps are expected to take longer than the
    budget, or the networks need more than `memory` bytes, no step is taken: the speed is estimated from that of a
    large matrix product, and `how` says so.
    """
    peak = product_speed(device, recipe.train.precision)
    began = time.perf_counter()
    n, tokens, networks = recipe.model.n_layers, recipe.tokens_per_step, shallow_networks(recipe)
    # a pass of one row is timed at least, after one that warms up
    row = 2 * recipe.model.n_ctx / peak / ASSUMED_SHARE
    at_least = row * sum(flops(few.model).training for _, few in networks)
    weights = 16.0 * sum(count_parameters(few.model)["total"] for _, few in networks)
    if at_least > budget or weights > memory:
        seconds = tokens * flops(recipe.model).training / peak / ASSUMED_SHARE
        cube = cube_of(device)
        how = f"estimated: {ASSUMED_SHARE:.0%} of the speed of a {cube}-cube product, because it is too large to time"
        return StepSpeed(seconds, tokens / seconds, peak, how)
    left = (began + budget - time.perf_counter()) / len(networks)
    seconds = extrapolated([(times, step_seconds(few, device, left)) for times, few in networks])
    of = counted(n, "layer") if n <= DEEP else f"networks of {SHALLOW} and {DEEP} layers"
    return StepSpeed(seconds, tokens / seconds, peak, f"measured for a few seconds, by {of}")


def shallow_networks(recipe: Recipe) -> list[tuple[float, Recipe]]:
    """Recipes of at most DEEP layers, and how many times the step of each counts: the sum is the recipe's step."""
    n = recipe.model.n_layers
    if n <= DEEP:
        return [(1.0, eager(recipe, n))]
    share = (n - SHALLOW) / (DEEP - SHALLOW)
    return [(1.0 - share, eager(recipe, SHALLOW)), (share, eager(recipe, DEEP))]


def extrapolated(timed: Sequence[tuple[float, float]]) -> float:
    """Seconds of a step, where each network that was timed counts so many times (`shallow_networks`).

    A step takes at least as long as the slowest of them, which are parts of it, however much other work disturbed.
    """
    return max(sum(times * seconds for times, seconds in timed), *(seconds for _, seconds in timed))


def step_seconds(
    recipe: Recipe, device: torch.device, budget: float, poll: Callable[[], object] = lambda: None
) -> float:
    """Seconds of a step on random tokens, not compiled, measured in about `budget` seconds; `poll` may raise."""
    trainable = OnRandomTokens(with_train(resolve_batch(recipe, device), device=str(device)))
    trainable.build()
    return measure_step(trainable, poll, budget)


class OnRandomTokens(TransformerTrainable):
    """A new network, with adapters where the recipe has them, and random tokens in place of a text."""

    def build(self, device: torch.device | None = None) -> None:
        adapters, recipe = self.recipe.adapt, self.recipe
        self.network = build_network(replace(recipe, adapt=replace(adapters, rank=0)), self.device)
        if adapters.rank:
            add_adapters(self.network, recipe).to(self.device)
        choose_for_device(self.network, recipe, self.device)

    def make_data(self) -> "RandomTokens":  # type: ignore[override]
        return RandomTokens(self.recipe, self.device)


@dataclass(frozen=True)
class RandomTokens:
    """Micro-batches of random tokens, of full rows."""

    recipe: Recipe
    device: torch.device

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """One `of`th of a step's rows."""
        a, t, generator = self.recipe.model, self.recipe.train, torch.Generator().manual_seed(micro)

        def draw(n: int) -> torch.Tensor:
            rows = t.batch * t.accumulate // of
            return torch.randint(0, a.n_vocab, (rows, n), generator=generator).to(self.device)

        return MicroBatch(draw(a.n_ctx), draw(a.n_ctx), source=None if a.encoder is None else draw(a.encoder.n_ctx))


def eager(recipe: Recipe, depth: int) -> Recipe:
    """The recipe with `depth` layers, whose steps are not compiled."""
    return with_train(shallow(recipe, depth), compile="no")
