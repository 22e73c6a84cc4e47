"""How long a run is: its number of steps, and the steps between evaluations, checkpoints and samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pellucid.option_values import is_auto, overlaid
from pellucid.runs.device import COMPILE_SAVES
from pellucid.runs.options import (
    INTERVALS,
    LENGTHS,
    RecipeError,
    RecipeT,
    RunRecipe,
    with_record,
    with_train,
)
from pellucid.runs.pace import ON_THE_WAY, SAMPLE, SAVE, STEP_TO_FORWARD, Pace, affordable_units
from pellucid.runs.schedule import decay_of
from pellucid.text.read.chunks import counted

#: evaluations of a run
EVALUATIONS = 10
#: the fewest seconds between two of them: a run of seconds is measured at its end
SHORTEST_INTERVAL = 25.0
#: ... and the most: a run of days is measured every quarter of an hour
LONGEST_INTERVAL = 900.0


def resolve_steps(
    recipe: RunRecipe,
    n_train: int,
    seconds_per_step: Callable[[], float] | None,
    left: float | None = None,
) -> tuple[int, str]:
    """The number of steps and a sentence that explains it.

    n_train           targets of one epoch
    seconds_per_step  measures a step that is not compiled; only a run of minutes calls it
    left              seconds that remain of a run of minutes, all of them unless given
    """
    t, per_step = recipe.train, recipe.tokens_per_step
    if t.steps:
        return t.steps, f"length: {counted(t.steps, 'step')} of {per_step:,} tokens, as asked"
    if t.tokens:
        return max(1, round(t.tokens / per_step)), f"length: {t.tokens:,} tokens, {per_step:,} a step"
    if t.epochs:
        steps = max(1, round(t.epochs * n_train / (t.batch * t.accumulate * recipe.row)))
        return steps, f"length: {t.epochs:g} epochs of {n_train:,} tokens, {counted(steps, 'step')}"
    assert seconds_per_step is not None
    seconds = seconds_per_step()
    left = 0.93 * max(left if left is not None else 60 * t.minutes, 0.0)  # the rest is for saving and evaluating
    steps = max(1, int(left / seconds))
    return steps, f"length: {t.minutes:g} minutes, {counted(steps, 'step')} at {seconds * 1e3:.0f} ms"


def with_length(recipe: RecipeT, length: Mapping[str, Any]) -> RecipeT:
    """A copy with this length; ten minutes where neither `length` nor the recipe has one."""
    asked = {name: value for name, value in length.items() if value}
    if not asked and not any(getattr(recipe.train, name) for name in LENGTHS):
        asked = {"minutes": 10.0}
    return with_train(recipe, **{**dict.fromkeys(LENGTHS, 0), **asked}) if asked else recipe


def with_steps(recipe: RecipeT, n_steps: int, step: int = 0, by_clock: bool | None = None) -> RecipeT:
    """The recipe of so many steps, `step` of which have been taken: its warm-up, and when its learning rate falls.

    by_clock  the number of steps is the expected one, and the decay begins when the time says so; unless given, in runs
              of minutes
    """
    t = recipe.train
    if t.warmup is None:
        recipe = with_train(recipe, warmup=min(100, n_steps // 50))
    if bool(t.minutes) if by_clock is None else by_clock:
        return with_record(recipe, planned=n_steps, decay=None)
    first, end = decay_of(t.schedule, n_steps, recipe.train.warmup)
    return with_record(recipe, planned=0, decay=(min(max(first, step), end), end))


def length_asked(recipe: RecipeT, step: int, length: Mapping[str, Any], n_train: int) -> RecipeT:
    """The recipe of a run that has taken `step` steps with another length in steps, tokens or epochs from its start on.

    The same recipe where that is the length it has, or none is asked for. Raises RecipeError where the run has as many
    steps already.
    """
    if not any(length.values()):
        return recipe
    total, _ = resolve_steps(with_length(recipe, length), n_train, None)
    if total == recipe.n_steps and recipe.record.decay:
        return recipe
    if total <= step:
        raise RecipeError(f"the run has {step} steps already: ask for more than that, not {total}")
    return with_steps(recipe, total, step_to_go_on_from(recipe, step), by_clock=False)


def step_to_go_on_from(recipe: RunRecipe, step: int) -> int:
    """The step from which a run that has taken so many is made longer: the one before its decay, if that has begun.

    Raises RecipeError where the learning rate falls over the whole run.
    """
    if recipe.record.decay is None or step <= recipe.record.decay[0]:
        return step
    if recipe.train.schedule in ("cosine", "linear"):
        raise RecipeError(
            "the run cannot be made longer: its learning rate falls from its beginning on (train.schedule = "
            f"{recipe.train.schedule}), and that of a longer run falls otherwise. Start a new run, with schedule=wsd "
            "if it is to be made longer later, or with --from and the folder of this one"
        )
    return recipe.record.decay[0]


def warmup_warnings(recipe: RunRecipe, remedy: str) -> list[str]:
    """A warning where a run ends within its warm-up; `remedy` says what to do then."""
    n_steps, warmup = recipe.n_steps, recipe.train.warmup
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
    chosen = recipe.record.chosen_intervals
    # its minutes are those of the former length, and the measured steps are compiled already where it is compiled
    opened = with_train(recipe, minutes=0.0, compile="no", **dict.fromkeys(chosen))
    resolved = resolve_intervals(opened, seconds_per_step, may_move)
    return with_train(recipe, **{name: getattr(resolved.train, name) for name in chosen})


def with_intervals(recipe: RecipeT, asked: Mapping[str, Any]) -> RecipeT:
    """The recipe of a run that goes on with the intervals and `keep_last` that are `asked` for, as text or typed.

    An interval of None, or auto, is one that the run chooses: it becomes one of `chosen_intervals`, and keeps its value
    until `choose_intervals_again`. Intervals that the run chose follow those of the evaluations, as in a new run.
    """
    fixed = {name: value for name, value in asked.items() if name not in INTERVALS or not is_auto(value)}
    own = {*recipe.record.chosen_intervals, *asked}
    chosen = tuple(name for name in INTERVALS if name in own and name not in fixed)
    if "evaluate_every" in fixed:
        fixed = {**dict.fromkeys(chosen, fixed["evaluate_every"]), **fixed}
    return with_record(replace(recipe, train=overlaid(recipe.train, fixed, "train")), chosen_intervals=chosen)


def plan_in_time(recipe: RecipeT, asked: RecipeT, pace: Pace, step: int = 0) -> tuple[RecipeT, str]:
    """The recipe with as many steps as fit into the time that is left, and a sentence that says how many.

    `asked` is the recipe with the intervals and the warm-up that were asked for; `step` steps have been taken.
    """
    t = recipe.train
    intervals = {name: getattr(asked.train, name) for name in INTERVALS}
    for _ in range(2):  # evaluations take time, and their number depends on that of the steps
        recipe = with_steps(with_train(recipe, warmup=asked.train.warmup), pace.end_of(recipe, step), by_clock=True)
        opened = with_train(recipe, **intervals)
        recipe = resolve_intervals(opened, pace.per_step, may_move=True, seconds_per_round=pace.round(recipe))
    return recipe, (
        f"length: {t.minutes:g} minutes, about {counted(recipe.n_steps, 'step')} at {pace.per_step * 1e3:.0f} ms; "
        "their number follows their speed"
        if t.minutes
        else ""
    )


def resolve_intervals(
    recipe: RecipeT,
    seconds_per_step: float | None = None,
    may_move: bool = False,
    seconds_per_round: float | None = None,
) -> RecipeT:
    """Evaluation, checkpoint and sample intervals, in steps; a measured step is one that is not compiled.

    may_move           the end may become a later one, and what is only done there is not to be done before
    seconds_per_round  what an evaluation, a sample and a checkpoint take together, estimated unless given
    """
    t = recipe.train
    chosen = tuple(name for name in INTERVALS if getattr(t, name) is None)
    if t.evaluate_tokens is None:
        usual = 20 * max(1024, recipe.tokens_per_step // t.accumulate)
        recipe = with_train(recipe, evaluate_tokens=min(usual, affordable_units(recipe)))
        t = recipe.train
    evaluate = t.evaluate_every or evaluation_interval(recipe, seconds_per_step, seconds_per_round)
    if may_move and not t.evaluate_every and evaluate >= recipe.n_steps:
        evaluate = 2 * recipe.n_steps
    recipe = with_train(
        recipe,
        evaluate_every=evaluate,
        checkpoint_every=t.checkpoint_every or evaluate,
        sample_every=evaluate if t.sample_every is None else t.sample_every,
    )
    return with_record(recipe, chosen_intervals=chosen)


def evaluation_interval(
    recipe: RunRecipe, seconds_per_step: float | None, seconds_per_round: float | None = None
) -> int:
    """Steps between evaluations, all intervals alike and the last one at the end.

    A run has ten, but they are about SHORTEST_INTERVAL seconds apart at least, and LONGEST_INTERVAL at most; and those
    before the end, with the samples and checkpoints between, take ON_THE_WAY of its time at most. Where the time of a
    step is not known, a sample and a checkpoint together count as much as the tokens of an evaluation.
    """
    t, n = recipe.train, EVALUATIONS
    steps_per_evaluation = t.evaluate_tokens / STEP_TO_FORWARD / recipe.tokens_per_step
    seconds, affordable = 60 * t.minutes, ON_THE_WAY * recipe.n_steps / (2 * steps_per_evaluation)
    if not seconds and seconds_per_step is not None:
        saved = COMPILE_SAVES[t.device.partition(":")[0]] if t.compile == "yes" else 0.0
        seconds = recipe.n_steps * seconds_per_step * (1 - saved)
    if seconds:
        n = max(1, min(EVALUATIONS, round(seconds / SHORTEST_INTERVAL)), math.ceil(seconds / LONGEST_INTERVAL))
        estimated = steps_per_evaluation * seconds / recipe.n_steps + SAMPLE + SAVE
        affordable = ON_THE_WAY * seconds / (seconds_per_round or estimated)
    return max(1, math.ceil(recipe.n_steps / min(n, 1 + int(affordable))))
