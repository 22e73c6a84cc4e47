"""How long a training step takes: one pass is timed and multiplied, so that no step is too large to be measured."""

import statistics
import time
from collections.abc import Callable
from copy import copy
from typing import Any

from torch import Tensor, nn

from pellucid.runs.device import products_in
from pellucid.runs.interrupt import Interruption
from pellucid.runs.length import plan_in_time, resolve_intervals, resolve_steps, with_steps
from pellucid.runs.optimizer import make_optimizer
from pellucid.runs.pace import Pace
from pellucid.runs.processes import SINGLE_PROCESS
from pellucid.runs.step import take_passes, update
from pellucid.runs.trainable import Trainable

#: seconds that measuring may take; what has begun is finished
BUDGET = 3.0
#: the most passes that are timed
MOST_PASSES = 12
#: seconds after which fewer are enough
ENOUGH_SECONDS = 1.0


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
        elif times[-1] > left or len(times) >= MOST_PASSES or (len(times) > 3 and sum(times) > ENOUGH_SECONDS):
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


def timed(do: Callable[..., object], *sizes: int) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    do(*sizes)
    return time.perf_counter() - began


def divisors(n: int, most: int = 1 << 12) -> list[int]:
    """Those up to `most`, in order."""
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def measure_step(trainable: Trainable[Any], poll: Callable[[], object] = lambda: None, budget: float = BUDGET) -> float:
    """Seconds of a training step by this process alone, not compiled; no weight changes."""
    if (seconds := trainable.estimated_step_seconds()) is not None:
        return seconds
    recipe, network, data, alone = (
        trainable.recipe,
        trainable.network,
        trainable.make_data(),
        uncompiled_single_process(trainable),
    )
    t, optimizer = recipe.train, make_optimizer(recipe, network)
    optimizer.set_factor(0.0)
    figures: dict[str, Tensor] = {}

    def take_pass(rows: int) -> None:
        batch = data.at(0, 0, t.batch * t.accumulate // rows)
        figures.update(take_passes(alone, optimizer, [batch], 1) or {})
        synchronize(network)

    def take_update() -> None:
        update(alone, optimizer, dict(figures))
        synchronize(network)

    network.train()
    rows = t.batch // trainable.processes.n_shares
    with products_in(t.precision):
        return seconds_per_step(
            take_pass,
            take_update,
            rows=rows,
            passes=t.accumulate,
            poll=poll,
            budget=budget,
            warms_up=trainable.device.type != "cpu",
        )


def uncompiled_single_process(trainable: Trainable[Any]) -> Trainable[Any]:
    """What takes steps of the same network in this process alone, not compiled."""
    alone = copy(trainable)
    alone.processes, alone.loss = SINGLE_PROCESS, alone.make_loss()
    return alone


def synchronize(network: nn.Module) -> None:
    """Wait until the device has computed the weights: reading a number does."""
    next(network.parameters()).flatten()[0].item()


def settle_length(trainable: Trainable[Any], interruption: Interruption, pace: Pace | None) -> None:
    """Decide the steps and the intervals of a new run whose other options are decided, and make the network.

    A run with a pace times a step for it. Raises ValueError for a text that is too small for a batch.
    """
    n_held_out = trainable.make_data().n_held_out

    def timed_step() -> float:
        trainable.build()
        with interruption.phase("measuring a step") as phase:
            return measure_step(trainable, phase)

    if pace:
        pace.start(timed_step())
        pace.know(n_held_out, trainable.n_trained, finish=trainable.finish_cost, can_sample=trainable.can_sample)
        trainable.recipe, _ = plan_in_time(trainable.recipe, trainable.recipe, pace)
    else:
        n_steps, _ = resolve_steps(trainable.recipe, trainable.n_train, timed_step)
        trainable.recipe = resolve_intervals(with_steps(trainable.recipe, n_steps))
    trainable.build()
