"""Chooses precision, attention and compilation of a run: by rule, and by one timed step in each precision.

In bfloat16 the explicit kernel of attention is taken and in float32 the fused one, where both are allowed: wherever all
combinations were timed, one of the two was the fastest or within 5 % of it (docs/experiments/step-speed.md). Whether a
step is compiled follows what compiling usually saves and costs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pellucid.runs.device import COMPILE_SECONDS, can_compile, compile_pays, compiling_lacks
from pellucid.runs.length import resolve_intervals, resolve_steps, with_steps
from pellucid.runs.measure import BUDGET
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.pace import Pace
from pellucid.runs.processes import world_size
from pellucid.runs.reporter import Detail
from pellucid.text.read.chunks import counted
from pellucid.training import resolve_recipe as resolve
from pellucid.training.recipe import Recipe
from pellucid.training.step_functions import compile_saves

#: the share of a run of minutes that timing steps may take
MEASURING_SHARE = 0.03
#: seconds of a run that is too short to time a second precision
SHORT_SECONDS = 50.0
#: steps of a run that is too short to time any
SHORT_STEPS = 20

#: seconds of a step of a recipe that is not compiled, measured in about so many seconds; infinite where it cannot be
Measure = Callable[[Recipe, float], float]


@dataclass(frozen=True)
class StepChoice:
    """A recipe whose precision, attention and compilation are decided, and lines that explain them.

    seconds        of a step, None where none was timed
    eager_seconds  of the same step if it is not compiled
    reserve        seconds that compiling takes
    """

    recipe: Recipe
    lines: list[str]
    seconds: float | None = None
    eager_seconds: float | None = None
    reserve: float = 0.0


def resolve_step(
    recipe: Recipe, n_train: int, device: torch.device, measure: Measure, pace: Pace | None = None
) -> tuple[Recipe, list[str]]:
    """Choose precision, attention, compilation, number of steps and intervals; lines explain each choice.

    `n_train` tokens are one epoch. The number of steps of a run of minutes, whose `pace` is started, is a first guess:
    see `plan_in_time`.
    """
    choice = choose_step(with_train(recipe, device=str(device)), n_train, device, measure, pace)
    t, threads = choice.recipe.train, f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    where = f"device: {device}{threads}; {t.precision}, {t.attention} attention{', compiled' * (t.compile == 'yes')}"
    lines, seconds = [where, *map(Detail, choice.lines)], choice.seconds or 0.0
    # what was compiled before is found again, so of a short run half the time is left
    left = None if pace is None else max(pace.left - choice.reserve, pace.left / 2)
    n_steps, why = resolve_steps(choice.recipe, n_train, lambda: seconds, left=left)
    if not recipe.train.minutes:
        lines.append(why)
    if pace is not None:
        pace.start(seconds, reserve=choice.reserve)
    return resolve_intervals(with_steps(choice.recipe, n_steps), choice.eager_seconds), lines


def choose_step(
    recipe: Recipe, n_train: int, device: torch.device, measure: Measure, pace: Pace | None = None
) -> StepChoice:
    """How the steps of a run are computed. Raises RecipeError where train.compile = yes and something that compiling
    needs is missing.
    """
    asked = recipe.train.compile
    if asked == "yes" and not can_compile(device):
        raise RecipeError(f"train.compile = yes: {compiling_lacks(device)}: set it to no")
    eager, lines = eager_recipes(recipe, device)

    def n_steps(seconds: float) -> int:
        return resolve_steps(recipe, n_train, lambda: seconds, left=pace and pace.left)[0]

    is_short = n_steps(1.0) < SHORT_STEPS if pace is None else pace.total < SHORT_SECONDS
    budget = BUDGET if pace is None else min(BUDGET, MEASURING_SHARE * pace.total / len(eager))
    timed: list[float] = []
    if pace is not None or not (is_short or (len(eager) == 1 and asked is not None)):
        timed = [measure(eager[0], budget)]
        total = pace.total if pace else n_steps(timed[0]) * timed[0]
        if SHORT_SECONDS <= total < math.inf:
            timed += [measure(other, budget) for other in eager[1:]]
    seconds = min((s for s in timed if s < math.inf), default=None)
    chosen = eager[0] if seconds is None else eager[timed.index(seconds)]
    step = f"step: {chosen.train.precision}, {chosen.train.attention} attention"
    if len(timed) > 1:
        each = (f"{r.train.precision} {1e3 * s:.3g}" for r, s in zip(eager, timed, strict=True))
        step += f"; timed, ms a step: {', '.join(each)}"
    elif len(eager) > 1:
        step += ", by default: " + (
            "none was timed" if seconds is None and not is_short else "the run is too short to time others"
        )
    if asked is None and seconds is not None and not is_short:
        saves = compile_saves(recipe.model, device, world_size())
        pays, why = compile_pays(device, seconds, n_steps(seconds), saves)
        asked, step = "yes" if pays else "no", f"{step}; {why}"
    lines = [*lines, step]
    if asked != "yes":
        return StepChoice(chosen, lines, seconds, seconds)
    saved = compile_saves(recipe.model, device, world_size())
    faster = None if seconds is None else seconds * (1 - saved)
    return StepChoice(with_train(chosen, compile="yes"), lines, faster, seconds, COMPILE_SECONDS[device.type])


def eager_recipes(recipe: Recipe, device: torch.device) -> tuple[list[Recipe], list[str]]:
    """The recipe in every precision that it leaves open and that is fast on the device, the default first, with its
    kernel of attention and not compiled; and a line for each option that is decided already.
    """
    asked = recipe.train.precision
    kernels, why = resolve.allowed_kernels(recipe, device)
    precisions, lines = [asked], [f"precision: {asked}, as asked"]
    if asked is None:
        precisions, lines = [*(["bfloat16"] if resolve.may_use_bfloat16(device) else []), "float32"], []
    recipes = [
        with_train(recipe, precision=word, attention=kernels[-1 if word == "bfloat16" else 0], compile="no")
        for word in precisions
    ]
    return recipes, [*lines, *([why] if why else [])]
