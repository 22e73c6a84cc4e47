"""Chooses precision, attention, compilation and the passes of a step together: what is left open is timed on the run's
own steps.

Timing takes a few seconds of a run that is long enough to win them back, and is remembered for the machine and the
shape. What was chosen stands in recipe.json, so that a resumed run keeps it.
"""

import contextlib
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from pellucid.destination import replace_file
from pellucid.model.kernels import KernelName
from pellucid.runs.device import (
    CLEAR_GAIN,
    COMPILE_SECONDS,
    can_compile,
    compile_pays,
    compiling_lacks,
    describe_device,
)
from pellucid.runs.length import resolve_intervals, resolve_steps
from pellucid.runs.measure import BUDGET, ROUNDS, extrapolated, fastest_seconds
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.pace import Pace
from pellucid.runs.processes import world_size
from pellucid.runs.run_dir import cache_folder, read_json
from pellucid.training import resolve_recipe as resolve
from pellucid.training import step_functions
from pellucid.training.recipe import Recipe
from pellucid.training.step_functions import compile_saves

#: the shares of a run's time that measuring one step and comparing combinations may take, and the seconds after which a
#: comparison has enough rounds
MEASURING, COMPARING, ENOUGH = 0.03, 0.02, 20.0
#: steps of each combination that a comparison needs; seconds and steps of a run below which nothing is compared
NEEDED, SHORT = 1 + ROUNDS[0], (50.0, 20)
#: times the best time without compilation above which a combination is not compiled to be timed
FAR = 1.4
#: the options of training on which the time of a step depends, beside the combination
SHAPE = (
    *("batch", "accumulate", "objective", "optimizer", "ngram_optimizer"),
    *("clip", "balance", "recompute", "deterministic"),
)


@dataclass(frozen=True)
class Combination:
    """How a step is computed; `passes` is how many it is divided into, 0 where that is not open."""

    precision: str
    attention: KernelName
    compiled: bool = False
    passes: int = 0

    def __str__(self) -> str:
        passes = f", {self.passes:,} micro-batch{'es' if self.passes > 1 else ''}" if self.passes else ""
        return f"{self.precision}, {self.attention} attention{passes}" + (", compiled" if self.compiled else "")

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this combination; its step has the same rows."""
        t = recipe.train
        passes = self.passes or t.accumulate
        return with_train(
            recipe,
            precision=self.precision,
            attention=self.attention,
            compile="yes" if self.compiled else "no",
            batch=t.batch * t.accumulate // passes if self.passes else t.batch,
            accumulate=passes,
        )


class StepTimer(Protocol):
    """What takes steps of a run to time them."""

    #: whether compiled steps can be timed
    compiles: bool
    #: how many processes divide the rows of a pass
    shares: int
    #: whether they divide the network too, so that steps of a few of its layers are timed
    divides: bool

    def measure(self, recipe: Recipe, budget: float) -> float:
        """Seconds of a step that is not compiled, measured in about `budget` seconds, however large the step is."""
        ...

    def networks(self) -> Sequence[tuple[float, Callable[[], object]]]:
        """What is compared: how many times each network counts in a step, and what makes it."""
        ...

    def steps(self, recipes: Sequence[Recipe]) -> list[Callable[[], None]]:
        """A function for each recipe that takes a whole step of it with the network that is there, and changes no
        weight.
        """
        ...


@dataclass
class Timings:
    """Seconds of a step in each combination that was timed, and of compiling one; `remembered` from another run."""

    seconds: dict[Combination, float]
    compiling: float = 0.0
    remembered: bool = False

    @property
    def fastest(self) -> list[Combination]:
        """All of them, the fastest first."""
        return sorted(self.seconds, key=self.seconds.__getitem__)

    @property
    def eager(self) -> Combination:
        """The fastest one that is not compiled."""
        return next(c for c in self.fastest if not c.compiled)

    def told(self, known: Sequence[Combination]) -> str:
        """Milliseconds of the combinations among `known`, the fastest first."""
        listed = ", ".join(f"{c} {1e3 * self.seconds[c]:.3g}" for c in self.fastest if c in known)
        how = "remembered of this machine and shape" if self.remembered else "timed"
        return f"{how}, ms a step: {listed}" + (f" ({self.compiling:.0f} s to compile)" if self.compiling else "")


@dataclass(frozen=True)
class Choice:
    """The chosen combination, lines that explain it, and seconds of a step where they were measured: of the combination
    itself, and without compilation. `reserve` is what compiling it takes.
    """

    combination: Combination
    lines: list[str]
    seconds: float | None = None
    eager_seconds: float | None = None
    reserve: float = 0.0


def autotune(
    recipe: Recipe,
    n_train: int,
    device: torch.device,
    timer: StepTimer,
    poll: Callable[[], object] = lambda: None,
    pace: Pace | None = None,
    passes: Sequence[int] = (),
) -> tuple[Recipe, list[str]]:
    """Choose precision, attention, compilation, passes, number of steps and intervals; lines explain each choice.

    n_train  tokens of one epoch
    passes   the numbers of passes that a step may have, the recipe's own among them; that one alone unless given

    The number of steps of a run of minutes, whose `pace` is started, is a first guess; see `plan_in_time`. Raises
    RecipeError where train.compile = yes and what compiling needs is not there.
    """
    recipe = with_train(recipe, device=str(device))
    choice = Tuner(recipe, n_train, device, timer, poll, pace, passes).choose()
    recipe = choice.combination.applied(recipe)
    where = f"device: {device}, {torch.get_num_threads()} threads" if device.type == "cpu" else f"device: {device}"
    lines, seconds = [where, *choice.lines], choice.seconds or 0.0
    # what was compiled before is found again, so of a short run half the time is left
    left = None if pace is None else max(pace.left - choice.reserve, pace.left / 2)
    n_steps, why = resolve_steps(recipe, n_train, lambda: seconds, left=left)
    if not recipe.train.minutes:
        lines.append(why)
    if pace is not None:
        pace.start(seconds, reserve=choice.reserve)
    return resolve_intervals(replace(recipe, segments=((0, n_steps),)), choice.eager_seconds), lines


def combinations(recipe: Recipe, device: torch.device) -> tuple[list[Combination], list[str]]:
    """Every combination of what the recipe leaves open and this device can compute, not compiled; and a line for each
    option that is decided already.
    """
    t = recipe.train
    kernels, why = resolve.allowed_kernels(recipe, device)
    precisions, lines = [t.precision], [f"precision: {t.precision}, as asked"]
    if t.precision == "auto":
        precisions, lines = ["float32", *(["bfloat16"] if resolve.may_use_bfloat16(device) else [])], []
    return [Combination(p, k) for p, k in itertools.product(precisions, kernels)], lines + ([why] if why else [])


def default_of(eager: Sequence[Combination]) -> Combination:
    """What is taken of these combinations where none is timed: bfloat16 where the processor multiplies it, and the
    explicit kernel beside it where the context is short enough for that to be allowed.
    """
    precision = eager[-1].precision
    kernel = eager[-1].attention if precision == "bfloat16" else eager[0].attention
    return Combination(precision, kernel)


@dataclass
class Tuner:
    """Chooses the combination of a run; the first fields are those of `autotune`.

    limit  the most seconds that a comparison of steps may take
    times  whether steps may be taken; where they may not, or `timer` says that a step takes infinitely long, the choice
           is by what is remembered, or the default
    """

    recipe: Recipe
    n_train: int
    device: torch.device
    timer: StepTimer
    poll: Callable[[], object] = lambda: None
    pace: Pace | None = None
    passes: Sequence[int] = ()
    limit: float = math.inf
    times: bool = True

    def choose(self) -> Choice:
        """The combination with which the run ends first; in a run of minutes, with which it takes the most steps."""
        asked = self.recipe.train.compile
        if asked == "yes" and not can_compile(self.device):
            raise RecipeError(f"train.compile = yes: {compiling_lacks(self.device)}: set it to no")
        by_rule, lines = combinations(self.recipe, self.device)
        default, every = default_of(by_rule), by_rule
        if len(self.passes) > 1:
            own = self.recipe.train.accumulate
            every = [replace(c, passes=n) for c in by_rule for n in self.passes]
            default, by_rule = replace(default, passes=own), [replace(c, passes=own) for c in by_rule]
        if len(every) == 1 and asked != "auto":
            lines.append(f"compiled: {asked}, as asked")
            return self.untimed(default, lines, "", measures=self.pace is not None)
        if self.is_short:
            return self.untimed(default, lines, "the run is too short to time others", measures=self.pace is not None)
        timings = recall(self.memory) or Timings({})
        seconds = self.measured(default) if self.times else math.inf
        can_time = seconds < math.inf
        if not can_time:
            seconds = timings.seconds.get(default, math.inf)

        def can_be_had(compared: list[Combination]) -> bool:
            return set(compared) <= set(timings.seconds) or (
                can_time and (len(compared) == 1 or self.budget(seconds) >= NEEDED * len(compared) * seconds)
            )

        # with the number of passes that `resolve_batch` gives where there is no time to compare others
        eager = next(filter(can_be_had, (every, by_rule)), None)
        if eager is None and can_time:
            return self.untimed(default, lines, self.why_untimed(seconds), measures=True, seconds=seconds)
        if eager is None:
            return self.untimed(default, lines, "no step of this shape was timed on this machine", measures=False)
        if not set(eager) <= set(timings.seconds):
            timings = self.timed_eager(eager, seconds) if len(eager) > 1 else Timings({default: seconds})
        return self.fastest_of(timings, eager, default, seconds, lines)

    @property
    def is_short(self) -> bool:
        """Whether the run is over before any comparison could be won back."""
        if self.pace is not None:
            return self.pace.total < SHORT[0]
        return self.n_steps(1.0) < SHORT[1]

    def n_steps(self, seconds: float) -> int:
        """The steps of the run where one takes so long."""
        return resolve_steps(self.recipe, self.n_train, lambda: seconds, left=self.pace and self.pace.left)[0]

    def budget(self, seconds: float) -> float:
        """The seconds that a comparison may take, where a step takes `seconds`."""
        total = self.n_steps(seconds) * seconds if self.pace is None else self.pace.total
        return min(self.limit, COMPARING * total)

    def why_untimed(self, seconds: float) -> str:
        """Why combinations are not compared, where a step takes `seconds`."""
        if self.budget(seconds) == self.limit:
            return f"timing others would take more than {self.limit:.0f} s"
        return "the run has too few steps to time others"

    def measured(self, combination: Combination) -> float:
        """Seconds of a step of this combination, not compiled."""
        budget = BUDGET if self.pace is None else min(BUDGET, MEASURING * self.pace.total)
        return self.timer.measure(combination.applied(self.recipe), budget)

    def untimed(
        self, default: Combination, lines: list[str], why: str, *, measures: bool, seconds: float | None = None
    ) -> Choice:
        """The default without a comparison, and compiled only where that was asked for."""
        if measures and seconds is None:
            seconds = self.measured(default)
        chosen = replace(default, compiled=self.recipe.train.compile == "yes")
        said = [f"step: {chosen}, by default: {why}"] if why else []
        saves, reserve = self.assumed if chosen.compiled else (0.0, 0.0)
        faster = None if seconds is None else seconds * (1 - saves)
        return Choice(chosen, [*lines, *said], faster, seconds, reserve)

    @property
    def assumed(self) -> tuple[float, float]:
        """The share of a step that compiling saves, and the seconds that it takes, where neither was measured."""
        return compile_saves(self.recipe.model, self.device, world_size()), COMPILE_SECONDS[self.device.type]

    def timed_eager(self, eager: list[Combination], seconds: float) -> Timings:
        """Every combination without compilation, timed on whole steps in turn."""
        budget = min(self.budget(seconds), max(ENOUGH, NEEDED * len(eager) * seconds))
        networks, timed = self.timer.networks(), []
        for times, make in networks:
            make()
            timed.append((times, self.compared(eager, budget / len(networks))))
        return Timings({c: extrapolated([(times, found[c]) for times, found in timed]) for c in eager})

    def compared(self, combinations: Sequence[Combination], budget: float) -> dict[Combination, float]:
        """Seconds of a step of the network that is there in each combination."""
        steps = self.timer.steps([c.applied(self.recipe) for c in combinations])
        return fastest_seconds(dict(zip(combinations, steps, strict=True)), budget, self.poll)

    def time_compiled(self, timings: Timings, eager: list[Combination]) -> tuple[bool, str, list[str]]:
        """Compile and time as many combinations as the run could win back, those first that are fastest without
        compilation, and add them to the timings. Of each precision and kernel only the best number of passes is
        compiled.

        Returns whether compiling pays by what it usually saves, a line about it, and a line for each combination whose
        compiled step fails and which is left out (`compile_each`).
        """
        seconds = timings.seconds[timings.eager]
        steps = self.n_steps(seconds)
        pays, why = compile_pays(self.device, seconds, steps, self.assumed[0])
        if not pays or not self.timer.compiles:
            return pays, why, []
        saves, cost = self.assumed
        most = int(saves * seconds * steps / (CLEAR_GAIN * cost))
        best: dict[tuple[str, str], Combination] = {}
        for c in timings.fastest:
            if c in eager and timings.seconds[c] <= FAR * seconds:
                best.setdefault((c.precision, c.attention), c)
        candidates = [replace(c, compiled=True) for c in list(best.values())[:most]]
        left_out: list[str] = []
        if missing := [c for c in candidates if c not in timings.seconds]:
            compared = [timings.eager, *missing]
            taken = dict(zip(compared, self.timer.steps([c.applied(self.recipe) for c in compared]), strict=True))
            left_out = self.compile_each(taken, timings)
            if len(taken) > 1:
                found = fastest_seconds(taken, ENOUGH, self.poll)
                # other work on the machine may have come or gone since the first comparison
                timings.seconds |= {c: found[c] * seconds / found[timings.eager] for c in taken if c.compiled}
                timings.remembered = False
        if left_out and not any(c in timings.seconds for c in candidates):
            return False, "", left_out
        return pays, why, left_out

    def compile_each(self, taken: dict[Combination, Callable[[], None]], timings: Timings) -> list[str]:
        """Take the first step of each compiled combination, and remove those that fail from `taken`.

        Returns a line for each of these; where train.compile = yes, the error is raised.
        """
        lines = []
        for combination in [c for c in taken if c.compiled]:
            self.poll()
            began = time.perf_counter()
            try:
                taken[combination]()
            except RuntimeError as error:  # of the compiler, or of a graph that needs more memory than there is
                if self.recipe.train.compile == "yes":
                    raise
                del taken[combination]
                lines.append(f"not timed: {combination} (its first step failed: {first_line(error)})")
                continue
            timings.compiling = max(timings.compiling, time.perf_counter() - began)
        return lines

    def fastest_of(
        self, timings: Timings, eager: list[Combination], default: Combination, seconds: float, lines: list[str]
    ) -> Choice:
        """The combination with which the steps of the run, and compiling it, take the least time."""
        asked = self.recipe.train.compile
        pays, why, left_out = self.time_compiled(timings, eager) if asked != "no" else (False, "", [])
        if len(timings.seconds) > 1 and not timings.remembered:
            remember(self.memory, timings)
        now = seconds / timings.seconds[default]  # what was remembered may be of a machine with less to do
        steps = self.n_steps(now * timings.seconds[timings.eager])

        def total(combination: Combination) -> float:
            return now * steps * timings.seconds[combination] + combination.compiled * timings.compiling

        known = [c for c in timings.seconds if replace(c, compiled=False) in eager]
        timed = [c for c in known if c.compiled]
        allowed = {"no": [c for c in known if not c.compiled], "yes": timed or known, "auto": known}[asked]
        chosen = min(allowed, key=total)
        per_step, reserve = now * timings.seconds[chosen], chosen.compiled * timings.compiling
        if not chosen.compiled and (asked == "yes" or (pays and not timed)):
            saves, reserve = self.assumed
            chosen, per_step = replace(chosen, compiled=True), per_step * (1 - saves)
        said = f"step: {chosen}; {timings.told(known)}" + (f"; {why}" if why and not timed and asked == "auto" else "")
        return Choice(chosen, [*lines, *left_out, said], per_step, now * timings.seconds[timings.eager], reserve)

    @property
    def memory(self) -> Path:
        """Where the timings of this machine and this shape are kept."""
        t = self.recipe.train
        shape = {
            "machine": describe_device(self.device) | {"flags": resolve.processor_flags()},
            "model": self.recipe.model.to_dict(),
            "adapt": asdict(self.recipe.adapt),
            "train": {name: getattr(t, name) for name in SHAPE},
            "open": (t.precision, t.attention, *(list(self.passes) if len(self.passes) > 1 else ())),
            "processes": self.timer.shares,
            "memory": "kept",  # timings of before pellucid.runs.kept_memory are of other steps
            "functions": step_functions.SOURCE.is_usable(),
            **({"divided": True} if self.timer.divides else {}),
        }
        digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode()).hexdigest()
        return cache_folder() / "steps" / f"{digest[:16]}.json"


def first_line(error: RuntimeError) -> str:
    """The first line of an error; of one that PyTorch's compiler has wrapped, that of the error inside."""
    inner = getattr(error, "inner_exception", error)
    return next(iter(str(inner).splitlines()), type(inner).__name__)


def remember(path: Path, timings: Timings) -> None:
    """Keep the timings for later runs; a cache that cannot be written is left as it is."""
    rows = [asdict(c) | {"seconds": s} for c, s in timings.seconds.items()]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"steps": rows, "compiling": timings.compiling}).encode())


def recall(path: Path) -> Timings | None:
    """The timings of an earlier run; None where there are none, or their file is damaged."""
    try:
        kept = read_json(path)
        seconds = {
            Combination(row["precision"], row["attention"], row["compiled"], row["passes"]): float(row["seconds"])
            for row in kept["steps"]
        }
        timings = Timings(seconds, float(kept["compiling"]), remembered=True)
    except (RecipeError, KeyError, TypeError, ValueError):
        return None
    return timings if all(0 < s < math.inf for s in timings.seconds.values()) else None
