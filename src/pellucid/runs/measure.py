"""How long a training step takes: one pass is timed and multiplied, so that no step is too large to be measured."""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from pellucid.runs.gradients import clip
from pellucid.runs.optimizer import Optimizer, make_optimizer
from pellucid.runs.trainable import BatchLoss, Trainable

#: seconds that measuring may take; what has begun is finished
BUDGET = 3.0
#: passes that are timed at most, and seconds after which fewer are enough
MOST, ENOUGH = 12, 1.0
#: rounds in which steps are compared at least and at most; of the best time, how much longer a step may take to be
#: taken again, in those first rounds and afterwards
ROUNDS, CLOSE = (2, 40), (1.5, 1.15)

Key = TypeVar("Key", bound=Hashable)


def seconds_per_step(
    take_pass: Callable[[int], object],
    update: Callable[[], object],
    *,
    rows: int,
    passes: int,
    poll: Callable[[], object] = lambda: None,
    budget: float = BUDGET,
    warms_up: bool = False,
) -> float:
    """Seconds of a step of `passes` passes of `rows` rows each and one update.

    take_pass  computes the gradient of this many rows
    update     changes the weights by the gradient that is there
    poll       is called between any two of them; it may raise
    warms_up   one row is computed before the clock starts: the first pass on a GPU loads its kernels

    One row is timed first, then as many as the budget allows; what a pass of all rows takes is in proportion.
    """
    if warms_up:
        take_pass(1)
        poll()
    ends, sizes = time.perf_counter() + budget, divisors(rows)
    size, times = 1, [timed(take_pass, 1)]
    while True:
        poll()
        left = ends - time.perf_counter()
        larger = [n for n in sizes if n > size and 3 * times[-1] * n / size < left]
        if larger:
            size, times = larger[-1], []
        elif times[-1] > left or len(times) >= MOST or (len(times) > 3 and sum(times) > ENOUGH):
            break
        times.append(timed(take_pass, size))
    seconds = passes * statistics.median(times[1:] or times) * rows / size
    return seconds + timed_update(update, poll)


def timed_update(update: Callable[[], object], poll: Callable[[], object]) -> float:
    """Seconds of an update; the first one, which makes the averages, does not count unless it takes long."""
    poll()
    seconds = timed(update)
    if seconds < BUDGET:
        poll()
        seconds = timed(update)
    poll()
    return seconds


def timed(do: Callable[..., object], *given: int) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    do(*given)
    return time.perf_counter() - began


def divisors(n: int, most: int = 1 << 12) -> list[int]:
    """Those up to `most`, in order."""
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def measure_step(trainable: Trainable[Any], poll: Callable[[], object] = lambda: None, budget: float = BUDGET) -> float:
    """Seconds of a training step, not compiled; the weights are spoilt."""
    recipe, networks, timed = trainable.recipe, trainable.networks_to_time(), []
    for times, make in networks:
        make()
        timed.append((times, measure_network(trainable, poll, budget / len(networks))))
    trainable.recipe = recipe
    return extrapolated(timed)


def extrapolated(timed: Sequence[tuple[float, float]]) -> float:
    """Seconds of a step, where each network that was timed counts so many times (`Trainable.networks_to_time`).

    A step takes at least as long as the slowest of them, which are parts of it, however much other work disturbed.
    """
    return max(sum(times * seconds for times, seconds in timed), *(seconds for _, seconds in timed))


def measure_network(trainable: Trainable[Any], poll: Callable[[], object], budget: float) -> float:
    """Seconds of a step of the network that is there."""
    recipe, network, data, loss = trainable.recipe, trainable.network, trainable.make_data(), trainable.make_loss()
    t, optimizer = recipe.train, make_optimizer(recipe, network)
    bad = torch.zeros((), dtype=torch.bool, device=trainable.device)

    def wait() -> None:
        next(network.parameters()).flatten()[0].item()

    def take_pass(rows: int) -> None:
        optimizer.zero_grad()
        (loss(data.at(0, 0, t.batch * t.accumulate // rows)) / recipe.tokens_per_step).backward()
        wait()

    def update() -> None:
        clip(network.parameters(), t.clip)
        optimizer.step(bad)
        wait()

    network.train()
    rows = t.batch // trainable.processes.n_shares
    return seconds_per_step(
        take_pass,
        update,
        rows=rows,
        passes=t.accumulate,
        poll=poll,
        budget=budget,
        warms_up=trainable.device.type != "cpu",
    )


def fastest_seconds(
    steps: Mapping[Key, Callable[[], object]], budget: float, poll: Callable[[], object] = lambda: None
) -> dict[Key, float]:
    """The least seconds of each step, taken in turn so that other work on the machine slows all of them alike.

    After one step of each that is not timed, rounds follow while they fit into the budget, in seconds, and at least
    ROUNDS[0]. A step that takes much longer than the best one (CLOSE) is left out of later rounds. `poll` is called
    before each step; it may raise.
    """
    began, least = time.perf_counter(), dict.fromkeys(steps, math.inf)
    for step in steps.values():
        poll()
        step()
    running = list(steps)
    for n in range(ROUNDS[1]):
        for key in running:
            poll()
            least[key] = min(least[key], timed(steps[key]))
        is_first = n + 1 < ROUNDS[0]
        running = [key for key in running[::-1] if least[key] <= CLOSE[not is_first] * min(least.values())]
        round_seconds = sum(least[key] for key in running)
        if not is_first and (len(running) == 1 or time.perf_counter() - began + round_seconds > budget):
            break
    return least


def step_without_change(trainable: Trainable[Any], loss: BatchLoss, optimizer: Optimizer) -> Callable[[], None]:
    """A function that takes the first step of a run, with all its passes and its update at a learning rate of 0."""
    recipe, network, data = trainable.recipe, trainable.network, trainable.make_data()
    t, good = recipe.train, torch.zeros((), dtype=torch.bool, device=trainable.device)
    parameters = [p for p in network.parameters() if p.requires_grad]

    def step() -> None:
        optimizer.set_factor(0.0)
        optimizer.zero_grad()
        for micro in range(t.accumulate):
            batch = data.at(0, micro, t.accumulate * trainable.processes.n_shares)
            (loss(batch) / (batch.total or recipe.tokens_per_step)).backward()
        clip(parameters, t.clip or 1.0)
        optimizer.step(good)
        next(iter(parameters)).flatten()[0].item()  # reading a number waits for the device

    return step
