"""How the learning rate moves over a run: a factor from 0 to 1 for every step."""

import math
from collections.abc import Iterable
from typing import Literal

ScheduleName = Literal["cosine", "linear", "wsd", "constant"]


def position(step: int, start: int, end: int, moved: Iterable[tuple[int, int]] = ()) -> float:
    """Where a step stands on the schedule that was first planned from step `start` to `end`.

    moved  pairs (step, end), in order: at that step the end was moved to there. What was left of the schedule is
           stretched, or pressed together, over the steps that are left: the rate makes no jump, and the last step
           stands at the schedule's last.
    """
    at, since, until, last = float(start), start, end, end - 1
    for at_step, to in moved:
        if at_step > step:
            break
        at, since, until = _along(at_step, at, since, until, last), at_step, to
    return _along(step, at, since, until, last)


def _along(step: int, at: float, since: int, until: int, last: int) -> float:
    """On the line from `at`, at step `since`, to `last`, at the step before `until`."""
    n = until - 1 - since
    return at + (last - at) * (step - since) / n if n > 0 else float(last)


def rate_factor(
    step: float, n_steps: int, *, shape: ScheduleName, warmup: int, floor: float, decay: float = 0.2
) -> float:
    """The multiple of the peak learning rate for step 0 ... n_steps - 1.

    warm-up   (step + 1) / warmup for the first `warmup` steps
    cosine    floor + (1 - floor) (1 + cos(pi t)) / 2,  t from 0 to 1 over what follows   (Loshchilov and Hutter 2016)
    linear    1 - (1 - floor) t   (Defazio et al. 2023)
    wsd       1, then down to `floor` linearly over the last `decay` share of the run   (Hu et al. 2024)
    constant  1
    """
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    t = min((step - warmup) / max(n_steps - 1 - warmup, 1), 1.0)
    if shape == "cosine":
        return floor + (1 - floor) * (1 + math.cos(math.pi * t)) / 2
    if shape == "linear":
        return 1 - (1 - floor) * t
    start = n_steps - max(round(decay * n_steps), 1)
    return 1.0 if step < start else floor + (1 - floor) * max(n_steps - 1 - step, 0) / max(n_steps - 1 - start, 1)
