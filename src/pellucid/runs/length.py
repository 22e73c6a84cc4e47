"""How long a run is: its number of steps, and the steps between evaluations, checkpoints and samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pellucid.runs.device import COMPILE_SAVES, COMPILE_SECONDS
from pellucid.runs.options import (
    INTERVALS,
    LENGTHS,
    RecipeError,
    RecipeT,
    RunRecipe,
    TrainOptions,
    parse_options,
    with_train,
)
from pellucid.runs.pace import Pace
from pellucid.text.read.chunks import counted

#: evaluations of a run, and seconds between two of them at least and at most: a run of seconds is measured at its end,
#: one of days every quarter of an hour
EVALUATIONS, SHORTEST, LONGEST = 10, 25.0, 900.0


def resolve_steps(
    recipe: RunRecipe,
    n_train: int,
    seconds_per_step: Callable[[], float] | None,
    compiled: bool = False,
    left: float | None = None,
    unit: str = "token",
) -> tuple[int, str]:
    """The number of steps and a sentence that explains it.

    n_train           targets of one epoch, counted in `unit`s (tokens or images)
    seconds_per_step  measures a step that is not compiled; only a run of minutes calls it
    compiled          whether the steps will be compiled on the recipe's device; then the compilation takes time too
    left              seconds that remain of a run of minutes, all of them unless given
    """
    t, per_step = recipe.train, recipe.tokens_per_step
    if t.steps:
        return t.steps, f"length: {counted(t.steps, 'step')} of {per_step:,} {unit}s, as asked"
    if t.tokens:
        return max(1, round(t.tokens / per_step)), f"length: {t.tokens:,} {unit}s, {per_step:,} a step"
    if t.epochs:
        steps = max(1, round(t.epochs * n_train / (t.batch * t.accumulate * recipe.row)))
        return steps, f"length: {t.epochs:g} epochs of {n_train:,} {unit}s, {counted(steps, 'step')}"
    assert seconds_per_step is not None
    seconds = seconds_per_step()
    left = 0.93 * max(left if left is not None else 60 * t.minutes, 0.0)  # the rest is for saving and evaluating
    if compiled:
        kind = recipe.train.device.partition(":")[0]
        # of a short run half the time is left: what was compiled before is found again, and the deadline holds anyway
        seconds, left = seconds * (1 - COMPILE_SAVES[kind]), max(left - COMPILE_SECONDS[kind], left / 2)
    steps = max(1, int(left / seconds))
    how = " once compiled" if compiled else ""
    return steps, f"length: {t.minutes:g} minutes, {counted(steps, 'step')} at {seconds * 1e3:.0f} ms{how}"


def with_length(recipe: RecipeT, length: Mapping[str, Any]) -> RecipeT:
    """A copy with this length; ten minutes where neither `length` nor the recipe has one."""
    asked = {name: value for name, value in length.items() if value}
    if not asked and not any(getattr(recipe.train, name) for name in LENGTHS):
        asked = {"minutes": 10.0}
    return with_train(recipe, **{**dict.fromkeys(LENGTHS, 0), **asked}) if asked else recipe


def lengthen(
    recipe: RecipeT,
    step: int,
    length: Mapping[str, Any],
    measure: Callable[[], float],
    n_train: int,
    pace: Pace | None = None,
    seconds_per_step: float | None = None,
) -> RecipeT:
    """The recipe with a new segment of the schedule from `step` on; the same recipe where no length was asked for.

    Steps, tokens and epochs count from the beginning of the run. Minutes, for which there is a `pace`, count from now.
    Intervals that the run chose are chosen again; `seconds_per_step` is what its steps took, where that is known.
    Raises RecipeError where the run already has more steps than that.
    """
    asked = {name: value for name, value in length.items() if value}
    if not asked:
        return recipe
    longer = recipe
    if pace:
        pace.start(measure())
        for _ in range(2):  # as in `plan_in_time`
            segment = with_segment(recipe, step, pace.end_of(longer, step))
            longer = choose_intervals_again(segment, pace.per_step, may_move=True)
    else:
        total, _ = resolve_steps(with_length(recipe, asked), n_train, measure)
        longer = choose_intervals_again(with_segment(recipe, step, total), seconds_per_step)
    if (total := longer.n_steps) == recipe.n_steps:
        return recipe
    if total <= step:
        raise RecipeError(f"the run has {step} steps already: ask for more than that, not {total}")
    return longer


def with_segment(recipe: RecipeT, step: int, total: int) -> RecipeT:
    """The recipe with a segment of the schedule from `step` to `total` in place of those that have not begun."""
    # earlier segments keep the end they were meant to have: steps that are taken again have the same rates
    begun = [tuple(pair for pair in pairs if pair[0] < step) for pairs in (recipe.segments, recipe.replans)]
    return replace(recipe, segments=(*begun[0], (step, total)), replans=begun[1])


def warmup_warnings(recipe: RunRecipe, remedy: str) -> list[str]:
    """A warning where the last segment of the schedule ends within its warm-up; `remedy` says what to do then."""
    n_steps, warmup = recipe.n_steps - recipe.segments[-1][0] if recipe.segments else 0, recipe.train.warmup
    if not 0 < n_steps <= warmup:
        return []
    return [
        f"warning: train.warmup = {warmup} and there are {counted(n_steps, 'step')}: the run ends within its warm-up, "
        f"at {n_steps / warmup:.0%} of the largest learning rate; {remedy}"
    ]


def choose_intervals_again(recipe: RecipeT, seconds_per_step: float | None, may_move: bool = False) -> RecipeT:
    """The recipe of a run that was made longer, with the intervals that it chose for its former length chosen for this
    one.
    """
    chosen = recipe.chosen_intervals
    # its minutes are those of the former length, and the measured steps are compiled already where it is compiled
    opened = with_train(recipe, minutes=0.0, compile="no", **dict.fromkeys(chosen, 0))
    resolved = resolve_intervals(opened, seconds_per_step, may_move)
    return with_train(recipe, **{name: getattr(resolved.train, name) for name in chosen})


def with_intervals(recipe: RecipeT, asked: Mapping[str, Any]) -> RecipeT:
    """The recipe of a run that goes on with the intervals and `keep_last` that are `asked` for, as text or typed.

    An interval of 0 is one that the run chooses: it becomes one of `chosen_intervals`, and keeps its value until
    `choose_intervals_again`. Intervals that the run chose follow those of the evaluations, as in a new run.
    """
    given = {name: value for name, value in asked.items() if name not in INTERVALS or str(value) != "0"}
    own = {*recipe.chosen_intervals, *asked}
    chosen = tuple(name for name in INTERVALS if name in own and name not in given)
    if "evaluate_every" in given:
        given = {**dict.fromkeys(chosen, given["evaluate_every"]), **given}
    train = parse_options(TrainOptions, {**vars(recipe.train), **given}, "train")
    return replace(recipe, train=train, chosen_intervals=chosen)


def plan_in_time(recipe: RecipeT, opened: RecipeT, pace: Pace) -> tuple[RecipeT, str]:
    """The recipe with as many steps as fit into the time that is left, and a sentence that says how many.

    `opened` is the recipe with the intervals that were asked for.
    """
    t, asked = recipe.train, opened.train
    intervals = {name: getattr(asked, name) for name in INTERVALS}
    for _ in range(2):  # evaluations take time, and their number depends on that of the steps
        recipe = replace(recipe, segments=((0, pace.end_of(recipe, 0)),))
        recipe = resolve_intervals(with_train(recipe, **intervals), pace.per_step, may_move=True)
    return recipe, (
        f"length: {t.minutes:g} minutes, about {counted(recipe.n_steps, 'step')} at {pace.per_step * 1e3:.0f} ms; "
        "their number follows their speed"
        if t.minutes
        else ""
    )


def resolve_intervals(recipe: RecipeT, seconds_per_step: float | None = None, may_move: bool = False) -> RecipeT:
    """Evaluation, checkpoint and sample intervals, in steps; a measured step is one that is not compiled.

    `may_move`: the end may become a later one, and what is only done there is not to be done before.
    """
    t = recipe.train
    chosen = tuple(name for name in INTERVALS if not getattr(t, name))
    evaluate = t.evaluate_every or evaluation_interval(recipe, seconds_per_step)
    if may_move and not t.evaluate_every and evaluate >= recipe.n_steps:
        evaluate = 2 * recipe.n_steps
    return replace(
        recipe,
        chosen_intervals=chosen,
        train=replace(
            t,
            evaluate_every=evaluate,
            evaluate_tokens=t.evaluate_tokens or 20 * max(1024, recipe.tokens_per_step // t.accumulate),
            checkpoint_every=t.checkpoint_every or evaluate,
            sample_every=t.sample_every or evaluate,
        ),
    )


def evaluation_interval(recipe: RunRecipe, seconds_per_step: float | None) -> int:
    """Steps between evaluations, all intervals alike and the last one at the end.

    A run has ten, but they are about SHORTEST seconds apart at least, and LONGEST at most. It has ten as well where its
    time is not known.
    """
    t, n = recipe.train, EVALUATIONS
    seconds = 60 * t.minutes
    if not seconds and seconds_per_step is not None:
        saved = COMPILE_SAVES[t.device.partition(":")[0]] if t.compile == "yes" else 0.0
        seconds = recipe.n_steps * seconds_per_step * (1 - saved)
    if seconds:
        n = max(1, min(EVALUATIONS, round(seconds / SHORTEST)), math.ceil(seconds / LONGEST))
    return max(1, math.ceil(recipe.n_steps / n))
