"""Measure how fast this machine takes a training step, within a few seconds.

The steps are those of a run: forward, backward, clipping, update. The time of a step is linear in the number of layers,
so shallow networks are timed and extrapolated, and deep ones need not be built.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pellucid.model import Transformer
from pellucid.model.lora import adapt
from pellucid.model.weights import initialise
from pellucid.parameter_counts import count_parameters
from pellucid.plan.flops import flops
from pellucid.runs.gradients import clip
from pellucid.runs.measure import extrapolated
from pellucid.runs.optimizer import Optimizer, make_optimizer
from pellucid.runs.options import with_train
from pellucid.text.read.chunks import counted
from pellucid.training.build import choose_for_device, choose_kernel, choose_paths, n_logits
from pellucid.training.memory import DEEP, SHALLOW, shallow
from pellucid.training.objectives import MicroBatch, autocast
from pellucid.training.recipe import Recipe
from pellucid.training.resolve_recipe import resolve_batch

#: the assumed share of a matrix product's speed for a step that is too large to time
ASSUMED_SHARE = 0.5
#: rows and columns of the matrices whose product measures a CPU, and another device
CUBE, LARGE_CUBE = 1024, 8192
#: products that another device computes between two waits: to start one and to wait for it takes time of its own
AT_ONCE = 10


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
    n, at_once = cube_of(device), 1 if device.type == "cpu" else AT_ONCE
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = torch.randn(n, n, device=device).to(dtype)

    def multiply(times: int) -> None:
        for _ in range(times - 1):
            torch.mm(a, a)
        torch.mm(a, a)[0, 0].item()  # reading a number waits for the device

    if device.type != "cpu":
        multiply(1)  # loads what later products use
    times: list[float] = []
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
    at_least = [tokens * flops(few.model).training / peak for _, few in networks]
    weights = 16.0 * sum(count_parameters(few.model)["total"] for _, few in networks)
    # a line through two times needs them warm, and the first step on a GPU loads its kernels
    least = 0 if len(networks) == 1 and device.type == "cpu" else 1
    if (1 + least) * sum(at_least) / ASSUMED_SHARE > budget or weights > memory:
        seconds = tokens * flops(recipe.model).training / peak / ASSUMED_SHARE
        cube = cube_of(device)
        how = f"estimated: {ASSUMED_SHARE:.0%} of the speed of a {cube}-cube product, because it is too large to time"
        return StepSpeed(seconds, tokens / seconds, peak, how)
    taken = in_turn([stepper(few, device) for _, few in networks], began + budget - time.perf_counter(), least=least)
    seconds = extrapolated([(times, each) for (times, _), each in zip(networks, taken, strict=True)])
    of = counted(n, "layer") if n <= DEEP else f"networks of {SHALLOW} and {DEEP} layers"
    return StepSpeed(seconds, tokens / seconds, peak, f"measured for a few seconds, by {of}")


def shallow_networks(recipe: Recipe) -> list[tuple[float, Recipe]]:
    """Recipes of at most DEEP layers, and how many times the step of each counts: the sum is the recipe's step."""
    n = recipe.model.n_layers
    if n <= DEEP:
        return [(1.0, eager(recipe, n))]
    share = (n - SHALLOW) / (DEEP - SHALLOW)
    return [(1.0 - share, eager(recipe, SHALLOW)), (share, eager(recipe, DEEP))]


def stepper(recipe: Recipe, device: torch.device) -> Callable[[], None]:
    """A function that takes one training step on random tokens and waits for it."""
    return steppers([recipe], device)[0]


def steppers(recipes: Sequence[Recipe], device: torch.device) -> list[Callable[[], None]]:
    """The same for each recipe, with one network and one optimiser for all of them: the recipes differ only in how a
    step is computed.
    """
    recipe = recipes[0]
    network = Transformer(recipe.model)
    initialise(network, recipe.train.seed, recipe.train.init_std)
    if recipe.adapt.rank:
        adapt(network, recipe.adapt.rank, recipe.adapt.scaled_by, recipe.adapt.modules, recipe.new_ids)
    choose_paths(network, recipe)
    choose_for_device(network, resolve_batch(recipe, device), device)
    network.to(device).train()
    optimizer = make_optimizer(recipe, network)
    return [_step_of(resolve_batch(recipe, device), network, optimizer, device) for recipe in recipes]


def _step_of(recipe: Recipe, network: Transformer, optimizer: Optimizer, device: torch.device) -> Callable[[], None]:
    loss = autocast(network, device, recipe.train.precision, n_logits(recipe))
    good, batch_data = torch.zeros((), dtype=torch.bool, device=device), random_pass(recipe, device)
    parameters = list(network.parameters())

    def step() -> None:
        choose_kernel(network, recipe)
        optimizer.set_precision(recipe.train.precision)
        optimizer.zero_grad()
        for _ in range(recipe.train.accumulate):
            (loss(batch_data) / batch_data.targets.numel()).backward()
        clip(parameters, recipe.train.clip or 1.0)
        optimizer.step(good)
        parameters[0].flatten()[0].item()

    return step


def random_pass(recipe: Recipe, device: torch.device) -> MicroBatch:
    """A full micro-batch of random tokens."""
    a, generator = recipe.model, torch.Generator().manual_seed(0)

    def draw(n: int) -> torch.Tensor:
        return torch.randint(0, a.n_vocab, (recipe.train.batch, n), generator=generator).to(device)

    return MicroBatch(draw(a.n_ctx), draw(a.n_ctx), source=None if a.encoder is None else draw(a.encoder.n_ctx))


def in_turn(
    steps: list[Callable[[], None]], budget: float, poll: Callable[[], object] = lambda: None, least: int = 3
) -> list[float]:
    """Median seconds of each step, taken in turn so that other load on the machine affects all of them alike.

    After one warm-up step, each is taken `least` times, and more often while another round fits into the budget, in
    seconds. With `least` 0 and no time for a second round, the warm-up steps count. `poll` is called before each step
    and may raise.
    """

    def one_round() -> list[float]:
        times = []
        for step in steps:
            poll()
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return times

    began = time.perf_counter()
    first = one_round()
    last_start = began + budget - sum(first)
    rounds: list[list[float]] = []
    while len(rounds) < least or (len(rounds) < 50 and time.perf_counter() < last_start):
        rounds.append(one_round())
    return [statistics.median(times) for times in zip(*(rounds or [first]), strict=True)]


def eager(recipe: Recipe, depth: int) -> Recipe:
    """The recipe with `depth` layers, whose steps are not compiled."""
    return with_train(shallow(recipe, depth), compile="no")
