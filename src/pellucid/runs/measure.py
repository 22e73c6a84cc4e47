"""How long a training step takes: one pass is timed and multiplied, so that no step is too large to be measured."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from pellucid.runs.optimizer import make_optimizer
from pellucid.runs.trainable import Trainable

#: seconds that measuring may take; what has begun is finished
BUDGET = 3.0
#: passes that are timed at most, and seconds after which fewer are enough
MOST, ENOUGH = 12, 1.0


def seconds_per_step(
    take_pass: Callable[[int], object],
    update: Callable[[], object],
    *,
    rows: int,
    passes: int,
    poll: Callable[[], object] = lambda: None,
    budget: float = BUDGET,
) -> float:
    """Seconds of a step of `passes` passes of `rows` rows each and one update.

    take_pass  computes the gradient of this many rows
    update     changes the weights by the gradient that is there
    poll       is called between any two of them; it may raise

    One row is timed first, then as many as the budget allows; what a pass of all rows takes is in proportion.
    """
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
        optimizer.step(bad)
        wait()

    network.train()
    rows = t.batch // trainable.processes.n_shares
    return seconds_per_step(take_pass, update, rows=rows, passes=t.accumulate, poll=poll, budget=budget)
