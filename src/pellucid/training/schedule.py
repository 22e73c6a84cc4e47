"""How the learning rate moves over a run: a factor from 0 to 1 for every step."""

import math
from typing import Literal

Shape = Literal["cosine", "wsd", "constant"]


def factor(step: int, n_steps: int, *, shape: Shape, warmup: int, floor: float, decay: float = 0.2) -> float:
    """The multiple of the peak learning rate for step 0 ... n_steps - 1.

    warm-up   (step + 1) / warmup for the first `warmup` steps
    cosine    floor + (1 - floor) (1 + cos(pi t)) / 2,  t from 0 to 1 over what follows   (Loshchilov and Hutter 2016)
    wsd       1, then down to `floor` linearly over the last `decay` share of the run   (Hu et al. 2024)
    constant  1
    """
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    if shape == "cosine":
        t = (step - warmup) / max(n_steps - 1 - warmup, 1)
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(t, 1.0))) / 2
    start = n_steps - max(round(decay * n_steps), 1)
    return 1.0 if step < start else floor + (1 - floor) * max(n_steps - 1 - step, 0) / max(n_steps - 1 - start, 1)
