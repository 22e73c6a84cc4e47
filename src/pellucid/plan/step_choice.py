"""Chooses how a planned run computes its steps, by the function and the remembered timings of real runs.

A run times steps of its own network (`pellucid.training.autotune`). A plan has neither that network nor its text: it
times steps on random tokens, of networks of few layers where the planned one is deep. Both keep what they timed in the
same file for each machine and shape, and both look there first, so they choose alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from pellucid.plan.speed import shallow_networks, steppers, training_speed
from pellucid.runs.options import LENGTHS, with_train
from pellucid.training.autotune import Choice, Tuner
from pellucid.training.recipe import Recipe

#: seconds that measuring one step may take, and comparing combinations
MEASURING, COMPARING = 1.0, 10.0


class RandomStepTimer:
    """Takes steps on random tokens to time them (`training.autotune.StepTimer`), of networks that need at most `memory`
    bytes.
    """

    #: what a plan chooses is timed in a few seconds, and compiling takes longer
    compiles = False
    shares, divides = 1, False

    def __init__(self, recipe: Recipe, device: torch.device, memory: float):
        self.recipe, self.device, self.memory = recipe, device, memory
        self.network = recipe.model

    def measure(self, recipe: Recipe, budget: float) -> float:
        """Seconds of a step; infinite where it is too large to be taken here."""
        speed = training_speed(recipe, self.device, min(budget, MEASURING), self.memory)
        return math.inf if speed.is_estimated else speed.seconds

    def networks(self) -> Sequence[tuple[float, Callable[[], object]]]:
        def make(few: Recipe) -> Callable[[], object]:
            return lambda: setattr(self, "network", few.model)

        return [(times, make(few)) for times, few in shallow_networks(self.recipe)]

    def steps(self, recipes: Sequence[Recipe]) -> list[Callable[[], None]]:
        return steppers([replace(recipe, model=self.network) for recipe in recipes], self.device)


def choose_step(
    recipe: Recipe, device: torch.device, n_tokens: int, passes: Sequence[int], memory: float, *, measure: bool
) -> Choice:
    """Precision, attention, compilation and passes of a run, and lines that explain them.

    recipe    its batch is resolved
    n_tokens  that the run trains on
    passes    the numbers of passes that a step may have; the recipe's own unless given
    memory    bytes that networks to be timed may take
    measure   whether steps may be timed; otherwise what is remembered decides, or the default
    """
    length = dict.fromkeys(LENGTHS, 0) | {"steps": max(1, round(n_tokens / recipe.tokens_per_step))}
    recipe = with_train(recipe, **length)
    timer = RandomStepTimer(recipe, device, memory)
    return Tuner(recipe, n_tokens, device, timer, passes=passes, limit=COMPARING, times=measure).choose()
