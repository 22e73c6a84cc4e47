"""A run of minutes ends in time: how many steps fit, asked before the first one and again as they are taken.

A step takes another time than the one that was measured, and what else runs on a machine comes and goes. The learning
rate therefore stays at its peak until the steps that fit into the time that is left are those of the decay; only then
the end of the run is known, and recorded (`RunRecord.decay`). Time is that of the whole run: what came before the first
step, saving, evaluating, sampling and the report are taken off.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.runs.options import RunRecipe
from pellucid.runs.schedule import Decay, decay_of

#: the share of the time after which it is asked again whether the decay begins
DECAY_CHECK_SHARE = 0.002
#: share of the whole time over which the speed of steps is averaged
AVERAGED_SHARE = 0.1
#: seconds of the report at the end
REPORT = 0.3
#: seconds of a sample where none was written yet
SAMPLE = 0.4
#: seconds of a save where none was made yet, beside those of its bytes
SAVE = 0.05
#: bytes a second of a save
DISK = 3e8
#: how many times longer a step takes for each of its tokens than an evaluation does
STEP_TO_FORWARD = 3.0
#: the share of the time by which a run is stopped where even the moved end does not come
HARD_STOP = 0.1
#: the share of the time that measuring, sampling and saving on the way take at most where a run chooses when
ON_THE_WAY = 0.03
#: the share of the time that the last evaluation takes; what it does not come to is not read
EVALUATING = 0.07
#: held-out units that the last evaluation reads at least, whatever time is left
LEAST_EVALUATED = 4096


def last_evaluation_units(recipe: RunRecipe) -> int:
    """How many held-out units the last evaluation of a run of steps reads at most, so that it takes its share."""
    return max(recipe.train.evaluate_tokens, affordable_units(recipe))


def affordable_units(recipe: RunRecipe) -> int:
    """How many held-out units are read in the share of the time that the last evaluation takes, at least a few."""
    return max(int(EVALUATING * STEP_TO_FORWARD * recipe.n_steps * recipe.tokens_per_step), LEAST_EVALUATED)


@dataclass
class Pace:
    """What is known of the time of a run: when it is to end, and how long steps and what comes between them take.

    total      seconds that the run has in all
    ends_at    by time.monotonic(), when they are over
    per_step   seconds of a step, as measured so far
    most       steps that are taken at most, however many fit
    reserve    seconds that the first step takes beyond a step's, of short runs at most half the time
    n_bytes    of a checkpoint
    n_held_out held-out tokens
    can_sample whether the model writes samples
    finish_cost  tokens that are read after the last step, and the seconds of what else is done then
    """

    total: float
    ends_at: float
    per_step: float = 0.0
    most: float = math.inf
    reserve: float = 0.0
    n_bytes: float = 0.0
    n_held_out: int = 0
    can_sample: bool = True
    finish_cost: tuple[int, float] = (0, 0.0)
    took: dict[str, float] = field(default_factory=lambda: {"save": 0.0, "sample": 0.0, "token": 0.0})
    """seconds of the last save and sample, and of a held-out token of the median batch; 0 where there was none"""
    asked: float = 0.0
    """when `end_of` was asked, by time.monotonic(), and its answer"""
    expected: int = 0
    _seconds: float = 0.0
    _steps: float = 0.0

    @classmethod
    def from_now(cls, seconds: float) -> "Pace":
        """A run that has so many seconds, beginning with this one."""
        return cls(seconds, time.monotonic() + seconds)

    @classmethod
    def of_minutes(cls, minutes: float, began: float | None = None) -> "Pace | None":
        """A run of so many minutes, which began at `began` by time.monotonic(), or now; None of 0 minutes."""
        seconds = 60 * minutes
        return cls(seconds, (time.monotonic() if began is None else began) + seconds) if minutes else None

    @property
    def left(self) -> float:
        """Seconds until the run is to be over."""
        return self.ends_at - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the run is to stop wherever it is."""
        return self.left < -HARD_STOP * self.total

    def must_end(self, recipe: RunRecipe) -> bool:
        """Whether what is left is just enough for a sample, for what follows the last step, and for the report."""
        return self.left < self.sample(recipe) + self.finish(recipe) + REPORT

    def start(self, per_step: float, reserve: float = 0.0) -> None:
        """Begin with what was measured, which counts as one step."""
        self.per_step, self._seconds, self._steps, self.reserve = per_step, per_step, 1.0, reserve
        self.asked = time.monotonic()

    def know(
        self,
        n_held_out: int,
        n_trained: int,
        most: float = math.inf,
        finish: tuple[int, float] = (0, 0.0),
        can_sample: bool = True,
    ) -> None:
        """What is evaluated and saved, how many steps are taken at most, what follows the last one (tokens that are
        read, and seconds beside), and whether samples are written.
        """
        self.n_held_out, self.n_bytes, self.most, self.finish_cost = n_held_out, 12.0 * n_trained, most, finish
        self.can_sample = can_sample

    @classmethod
    def resumed(cls, recipe: RunRecipe, state: Mapping[str, Any]) -> "Pace | None":
        """Of a run of minutes that was interrupted: what it had left, beginning with this moment.

        None of other runs, and where nothing is left: then the steps that were planned are taken.
        """
        if state.get("seconds_left", 0.0) <= 0:
            return None
        pace = cls.from_now(state["seconds_left"])
        pace.total = state.get("seconds_in_all", max(60 * recipe.train.minutes, pace.total))
        pace.most = state.get("most_steps") or math.inf
        pace.start(state["seconds_per_step"])
        return pace

    def state(self) -> dict[str, float | None]:
        """What a run that is resumed needs to know."""
        return {
            "seconds_left": round(self.left, 3),
            "seconds_per_step": self.per_step,
            "seconds_in_all": self.total,
            "most_steps": self.most if math.isfinite(self.most) else None,
        }

    def stepped(self, seconds: float, counts: bool = True) -> None:
        """A step took so long; those of long ago are forgotten. One that does not count was compiled first."""
        self.reserve = 0.0
        if not counts:
            return
        decay = math.exp(-seconds / max(AVERAGED_SHARE * self.total, 1e-9))
        self._seconds, self._steps = decay * self._seconds + seconds, decay * self._steps + 1
        self.per_step = self._seconds / self._steps

    def waited(self, seconds: float) -> None:
        """The last steps, which were launched on a GPU and are counted, were done after so many seconds more."""
        self._seconds += seconds
        self.per_step = self._seconds / self._steps

    def end_of(self, recipe: RunRecipe, step: int) -> int:
        """The step after the last one, if the run is to end in time with `step` steps taken."""
        self.asked = time.monotonic()
        low, high = 1, max(1, min(int(max(self.left, 0.0) / max(self.per_step, 1e-9)) + 1, 1 << 40))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds_of(recipe, step, middle) <= self.left else (low, middle - 1)
        self.expected = int(max(step + 1, min(step + low, self.most)))
        return self.expected

    def decay_from(self, recipe: RunRecipe, step: int) -> Decay | None:
        """The steps of the decay, if it begins now: after `step` steps, in a run of minutes."""
        is_last = step >= self.most
        if time.monotonic() - self.asked < DECAY_CHECK_SHARE * self.total and not is_last:
            return None
        end = self.end_of(recipe, step)
        first, _ = decay_of(recipe.train.schedule, end, recipe.train.warmup)
        if first == end:  # a constant rate, or a run that ends within its warm-up
            return (end, end) if end == step + 1 else None
        return (step, end) if first <= step else None

    def seconds_of(self, recipe: RunRecipe, step: int, n: int) -> float:
        """Of `n` more steps, of what is due between them as far as the recipe says when, and of the end."""
        t, seconds = recipe.train, n * self.per_step
        for every, cost in (
            (t.checkpoint_every, self.save),
            (t.evaluate_every, self.evaluation(t.evaluate_tokens or 0, recipe)),
            (t.sample_every, self.sample(recipe)),
        ):
            seconds += cost * (((step + n - 1) // every - step // every) if every else 0)
        seconds += min(self.reserve, self.left / 2)
        evaluation = min(self.evaluation(self.n_held_out, recipe), EVALUATING * self.total)
        return seconds + self.save + evaluation + self.sample(recipe) + self.finish(recipe) + REPORT

    def round(self, recipe: RunRecipe) -> float:
        """Seconds of a save, an evaluation on the way and a sample."""
        return self.save + self.evaluation(recipe.train.evaluate_tokens or 0, recipe) + self.sample(recipe)

    @property
    def save(self) -> float:
        """Seconds of a save."""
        return self.took["save"] or SAVE + self.n_bytes / DISK

    def sample(self, recipe: RunRecipe) -> float:
        """Seconds of a sample, 0 where none is written."""
        return (self.took["sample"] or SAMPLE) if self.can_sample and recipe.train.sample_every != 0 else 0.0

    def evaluation(self, n_tokens: int, recipe: RunRecipe) -> float:
        """Seconds of reading so many held-out tokens, at most all of them."""
        return min(n_tokens, self.n_held_out) * self.per_token(recipe)

    def per_token(self, recipe: RunRecipe) -> float:
        """Seconds of reading a held-out token."""
        return self.took["token"] or self.per_step / recipe.tokens_per_step / STEP_TO_FORWARD

    def finish(self, recipe: RunRecipe) -> float:
        """Seconds of what follows the last step."""
        n_tokens, seconds = self.finish_cost
        return n_tokens * self.per_token(recipe) + seconds
