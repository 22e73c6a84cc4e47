"""How the learning rate moves over a run: a factor from 0 to 1 for every step."""

import math
from typing import Literal

ScheduleName = Literal["wsd", "cosine", "linear", "constant"]
#: (first, end): the learning rate falls from step `first` on and has reached its floor at step end - 1, the last one
Decay = tuple[int, int]
#: the share of a run's steps over which wsd lets the learning rate fall
DECAY_SHARE = 0.35


def decay_of(shape: ScheduleName, n_steps: int, warmup: int) -> Decay:
    """The steps over which the learning rate falls in a run of so many steps.

    wsd       the last DECAY_SHARE of them, but for the first, so that a checkpoint stands before the decay
    cosine, linear  all that follow the warm-up
    constant  none
    """
    first = {"wsd": max(n_steps - max(round(DECAY_SHARE * n_steps), 1), 1), "constant": n_steps}.get(shape, warmup)
    return min(max(first, warmup), n_steps), n_steps


def rate_factor(step: int, decay: Decay | None, *, shape: ScheduleName, warmup: int, floor: float) -> float:
    """The multiple of the peak learning rate; `decay` is None as long as it is not known when it begins.

    warm-up   (step + 1) / warmup for the first `warmup` steps, then 1 up to the decay

    With t from 0 to 1 over the steps of the decay:
    wsd       1 - (1 - floor) sqrt(t)   (Hägele et al. 2024, eq. 1)
    cosine    floor + (1 - floor) (1 + cos(pi t)) / 2   (Loshchilov and Hutter 2016)
    linear    1 - (1 - floor) t   (Defazio et al. 2023)
    """
    if step < warmup:
        return (step + 1) / warmup
    if decay is None or step < decay[0] or shape == "constant":
        return 1.0
    first, end = decay
    t = min((step - first) / (end - 1 - first), 1.0) if end - 1 > first else 1.0
    if shape == "cosine":
        return floor + (1 - floor) * (1 + math.cos(math.pi * t)) / 2
    return 1 - (1 - floor) * (math.sqrt(t) if shape == "wsd" else t)
