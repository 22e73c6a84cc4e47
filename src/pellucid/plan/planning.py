"""Plans a run before it starts: its size, its memory and its time, on this and on other machines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pellucid.architecture import Architecture
from pellucid.hub.targets import opens_in
from pellucid.json_files import JSONFileError, read_json_file
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.plan.accelerators import (
    DEFAULT_ACCELERATORS,
    READING_SHARE,
    TRAINING_SHARE,
    USABLE,
    Accelerator,
    PlanError,
    accelerator,
)
from pellucid.plan.flops import Flops, flops, flops_per_generated_token
from pellucid.plan.processes import ProcessPlan, fastest, layout_of, plan_processes
from pellucid.plan.speed import StepSpeed, training_speed
from pellucid.presets import preset, with_vocabulary
from pellucid.runs.device import compiling_lacks, device_here, memory_bytes, resolve_device
from pellucid.runs.kept_memory import kept_memory
from pellucid.runs.options import LENGTHS, with_train
from pellucid.training import resolve_recipe as resolve
from pellucid.training.kinds import run_kind
from pellucid.training.load import check_saved, read_recipe
from pellucid.training.memory import Memory, first_in_chunks, training_memory
from pellucid.training.recipe import MASK_OBJECTIVE, Recipe
from pellucid.training.step_choice import choose_step

#: parameters or scores of a network that can be planned at most
MOST_PARAMETERS = 1 << 55
#: the largest batch that is tried
LARGEST_BATCH = 1 << 24
#: seconds that timing a step may take, while precisions are compared
MEASURING_SECONDS = 1.0
#: how many layouts a search shows for each accelerator
SHOWN_LAYOUTS = 3
#: training tokens for each parameter where no length is given (Hoffmann et al. 2022)
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class AcceleratorPlan:
    """The plan for one accelerator: bytes at the plan's batch, the largest batch, and tokens per second."""

    accelerator: Accelerator
    precision: str
    memory: Memory
    largest_batch: int
    training: float
    writing: float


@dataclass(frozen=True)
class Plan:
    """The size, memory and time of a run, in bytes, FLOPs and seconds.

    `step_lines` say how a step is computed and why, as the lines of a run do.
    """

    name: str
    recipe: Recipe
    parameters: dict[str, int]
    flops: Flops
    memory: Memory
    tokens: int
    device: str
    device_memory: float
    largest_batch: int
    speed: StepSpeed | None = None
    step_lines: tuple[str, ...] = ()
    elsewhere: list[AcceleratorPlan] = field(default_factory=list)
    changes: list[tuple[str, float]] = field(default_factory=list)
    on_processes: list[ProcessPlan] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether training fits into this machine's memory."""
        return self.memory.peak <= USABLE * self.device_memory


@kept_memory()
def make_plan(
    what: str | Path | Architecture = "small",
    *,
    batch: int | None = None,
    n_ctx: int | None = None,
    vocabulary: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    accelerators: Sequence[str] = DEFAULT_ACCELERATORS,
    tokens: int | None = None,
    processes: int = 1,
    replicate: int = 0,
    shard: int = 0,
    tensor: int = 0,
    search: bool = False,
    measure: bool = True,
    progress: Callable[[str, int, int], object] = lambda stage, done, total: None,
) -> Plan:
    """Plan a run of a preset, of the JSON file of an architecture, of an earlier run, or of an Architecture.

    The full network is never built.

    batch         sequences in one micro-batch; unless given, the run's, or what a run would choose
    n_ctx, vocabulary, precision   replace its own
    accelerators  names of `ACCELERATORS`, planned from their data sheets
    tokens        number of training tokens; unless given, the run's, or 20 for each parameter
    processes     plan for this many, which `batch` rows are divided among (default: one row for each)
    replicate, shard, tensor   their layout (`layout_of`); with `search`, all layouts that fit are tried instead
    measure       time steps for a few seconds on this machine; how a step is computed is chosen by the function that a
                  run uses
    progress      called as progress(stage, done, total), with 0 and 0 where the total is unknown

    Raises PlanError, ArchitectureError or RecipeError for a name or file that does not exist.
    """
    others = [accelerator(name) for name in accelerators]
    name, recipe = _recipe_of(what)
    planned = recipe.n_steps and recipe.n_steps * recipe.tokens_per_step  # by the sizes of a run itself
    sizes = {n: v for n, v in (("n_ctx", n_ctx), ("batch", batch)) if v is not None}
    if wrong := [
        n for n, v in (*sizes.items(), ("vocabulary", vocabulary), ("tokens", tokens)) if v is not None and v < 1
    ]:
        raise PlanError(f"{wrong[0]} below 1: give a number from 1 on")
    model = recipe.model if n_ctx is None else replace(recipe.model, n_ctx=n_ctx)
    recipe = replace(recipe, model=model if vocabulary is None else with_vocabulary(model, vocabulary))
    check_size(recipe.model)
    # a run of another machine is planned for this one
    here = device_here(recipe.train.device) if device == "auto" else resolve_device(device)
    if recipe.train.compile == "yes" and compiling_lacks(here):
        recipe = with_train(recipe, compile=None)
    on_processes = _on_processes(recipe, others, batch, precision, processes, (replicate, shard, tensor), search)
    parameters, room = count_parameters(recipe.model), float(memory_bytes(here))
    recipe = _with_batch(recipe, here, None if on_processes else batch, precision)
    n_tokens = tokens or planned or TOKENS_PER_PARAMETER * parameters["total"]
    room_here = USABLE * room

    def seconds_of(tried: Recipe, budget: float) -> float:
        speed = training_speed(tried, here, min(budget, MEASURING_SECONDS), room_here) if measure else None
        return math.inf if speed is None or speed.is_estimated else speed.seconds

    length = dict.fromkeys(LENGTHS, 0) | {"steps": max(1, round(n_tokens / recipe.tokens_per_step))}
    choice = choose_step(with_train(recipe, **length), n_tokens, here, seconds_of)
    t = choice.recipe.train
    recipe = with_train(recipe, precision=t.precision, attention=t.attention, compile=t.compile)
    memory = training_memory(recipe)
    plan = Plan(
        name=name,
        recipe=recipe,
        parameters={part: n for part, n in parameters.items() if n},
        flops=flops(recipe.model),
        memory=memory,
        tokens=n_tokens,
        device=str(here),
        device_memory=room,
        largest_batch=largest_batch(recipe, room_here),
        speed=training_speed(recipe, here, memory=room_here) if measure else None,
        step_lines=tuple(choice.lines),
        elsewhere=[_plan_for_accelerator(recipe, other, precision) for other in others],
        on_processes=on_processes,
    )
    return plan if plan.fits else replace(plan, changes=changes_that_help(recipe))


def check_size(a: Architecture) -> None:
    """Raise PlanError for a network beyond any machine, whose tensors PyTorch cannot describe."""
    numbers = {"parameters": count_parameters(a)["total"], "attention scores in a sequence": a.n_heads * a.n_ctx**2}
    for what, n in numbers.items():
        if n > MOST_PARAMETERS:
            raise PlanError(
                f"the network has more than {MOST_PARAMETERS:.1e} {what}, for which no machine has room: make n_ctx, "
                "d_model or its other sizes smaller"
            )


def _recipe_of(what: str | Path | Architecture) -> tuple[str, Recipe]:
    """The name and the recipe of the planned run."""
    if isinstance(what, Architecture):
        return "architecture", default_recipe(what)
    path = Path(what)
    if path.is_dir():
        if (kind := run_kind(path)) != "transformer":
            raise PlanError(f"{path} is a run of kind {kind}, and a plan is of a transformer's training")
        recipe = read_recipe(path)
        check_saved(path, recipe)
        return str(what), recipe
    if path.suffix == ".json":
        try:
            return path.name, default_recipe(Architecture.from_dict(read_json_file(path)))
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}") from None
        except JSONFileError as error:
            raise PlanError(str(error)) from None
    return str(what), default_recipe(preset(str(what)))


def default_recipe(a: Architecture) -> Recipe:
    """A recipe with the objective that the architecture's mask allows."""
    objective = "source-target" if a.encoder is not None else MASK_OBJECTIVE[a.attention.mask]
    return with_train(Recipe(inputs=(), model=a), objective=objective)


def _with_batch(recipe: Recipe, device: torch.device, batch: int | None, precision: str | None) -> Recipe:
    """The recipe with the precision that was asked for, and its batch and passes as a run would begin with them."""
    recipe = with_train(recipe, precision=precision or recipe.train.precision, device=str(device))
    if batch:
        recipe = with_train(recipe, batch=batch, accumulate=recipe.train.accumulate or 1)
    return resolve.resolve_batch(recipe, device)


def _plan_for_accelerator(recipe: Recipe, other: Accelerator, precision: str | None) -> AcceleratorPlan:
    """The plan for an accelerator: attention fused, bfloat16 unless another precision was asked for."""
    recipe = with_train(recipe, attention="fused", precision=precision or "bfloat16")
    word = recipe.train.precision
    a = recipe.model
    read = (2 if word == "bfloat16" else 4) * count_parameters(a)["total"] + cache_bytes(a, word)
    return AcceleratorPlan(
        other,
        word,
        training_memory(recipe),
        largest_batch(recipe, USABLE * other.memory),
        TRAINING_SHARE * other.peak(word) / flops(a).training,
        READING_SHARE * other.bandwidth / read,
    )


def _on_processes(
    recipe: Recipe,
    others: Sequence[Accelerator],
    batch: int | None,
    precision: str | None,
    processes: int,
    numbers: tuple[int, int, int],
    search: bool,
) -> list[ProcessPlan]:
    """The plan of one of many processes on each accelerator; with `search`, of the fastest layouts that fit."""
    if processes == 1 and not search and not any(numbers):
        return []
    replicate, shard, tensor = numbers
    layout = layout_of(processes, replicate=replicate, shard=shard, tensor=tensor)
    if search and any(numbers):
        raise PlanError("search tries every layout: leave out replicate, shard and tensor, or search")
    recipe = with_train(
        recipe, batch=batch or processes, accumulate=1, precision=precision or "bfloat16", attention="fused"
    )
    if not search:
        return [plan_processes(recipe, layout, other) for other in others]
    return [plan for other in others for plan in fastest(recipe, processes, other)[:SHOWN_LAYOUTS]]


def cache_bytes(a: Architecture, precision: str = "float32") -> int:
    """Bytes of the keys, values and token ids in the cache of a full context of one sequence; 0 where there is no
    cache.
    """
    if a.attention.mask == "bidirectional":
        return 0
    wide = a.n_kv_heads * a.d_head * (2 if precision == "bfloat16" else 4)
    of_source = 0 if a.encoder is None else 2 * a.n_layers * a.encoder.n_ctx * wide
    return a.n_ctx * (2 * a.n_layers * wide + 8) + of_source


def largest_batch(recipe: Recipe, room: float) -> int:
    """The largest batch of one pass with which training needs at most `room` bytes; 0 where a batch of 1 needs more.

    The memory increases with the batch, except for the batch from which on logits are computed in chunks.
    """
    chunked = first_in_chunks(recipe)
    return _largest_fitting_batch(recipe, room, chunked, LARGEST_BATCH) or _largest_fitting_batch(
        recipe, room, 1, chunked - 1
    )


def _largest_fitting_batch(recipe: Recipe, room: float, first: int, last: int) -> int:
    """The largest batch from `first` to `last` that fits, 0 where none does.

    The memory is about the largest of some linear functions of the batch, so the secant method converges quickly.
    """

    def need(batch: int) -> float:
        return _memory(with_train(recipe, batch=batch)).peak

    if first > last or need(first) > room:
        return 0
    low, high = first, min(64 * first, last)
    while need(high) <= room:
        if high == last:
            return last
        each = (need(high) - need(low)) / (high - low)
        low, high = high, min(last, high + max(1, math.ceil((room - need(high)) / max(each, 1e-9))))
    while high - low > 1:
        chord = low + int((room - need(low)) / (need(high) - need(low)) * (high - low))
        middle = min(max(chord, low + 1), high - 1)
        if need(middle) > room:
            high = middle
        else:
            low, high = middle, middle + 1 if need(middle + 1) > room else high
    return low


@lru_cache(maxsize=256)
def _memory(recipe: Recipe) -> Memory:
    return training_memory(recipe)


def changes_that_help(recipe: Recipe) -> list[tuple[str, float]]:
    """Changes of the recipe that save memory, each with the bytes that training then needs; the cheapest come first."""
    t, a = recipe.train, recipe.model
    tried: list[tuple[str, Recipe]] = []
    if t.batch > 1:
        fewer = max(n for n in range(1, t.batch) if t.batch % n == 0)
        passes = t.batch // fewer * t.accumulate
        said = f"batch={fewer}, accumulate={passes} (the same step in more micro-batches)"
        tried.append((said, with_train(recipe, batch=fewer, accumulate=passes)))
        tried.append((f"batch=1, accumulate={t.batch * t.accumulate}", with_train(recipe, batch=1)))
    if t.recompute == "no":
        tried.append(("recompute=yes (a third more time)", with_train(recipe, recompute="yes")))
        tried.append(("recompute=yes and batch=1", with_train(recipe, recompute="yes", batch=1)))
    tried.append((f"n_ctx={a.n_ctx // 2} and batch=1", _with_half_the_context(with_train(recipe, batch=1))))
    if a.n_layers > 1:
        shallow = replace(recipe, model=replace(a, n_layers=a.n_layers // 2))
        tried.append((f"n_layers={a.n_layers // 2} and batch=1", with_train(shallow, batch=1)))
    return [(said, _memory(changed).peak) for said, changed in tried]


def _with_half_the_context(recipe: Recipe) -> Recipe:
    return replace(recipe, model=replace(recipe.model, n_ctx=max(1, recipe.model.n_ctx // 2)))


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan in plain JSON values."""
    one, cached = (
        flops_per_generated_token(plan.recipe.model, 1),
        flops_per_generated_token(plan.recipe.model, plan.recipe.model.n_ctx),
    )
    return {
        "name": plan.name,
        "architecture": plan.recipe.model.to_dict(),
        "opens_in": opens_in(plan.recipe.model).removeprefix("opens in: "),
        "batch": plan.recipe.train.batch,
        "accumulate": plan.recipe.train.accumulate,
        "precision": plan.recipe.train.precision,
        "attention": plan.recipe.train.attention,
        "compile": plan.recipe.train.compile,
        "parameters": plan.parameters,
        "active_parameters": count_active_parameters(plan.recipe.model),
        "flops_per_token": {
            "training": plan.flops.training,
            "written_first": one.forward,
            "written_last": cached.forward,
        },
        "training_bytes": vars(plan.memory) | {"peak": plan.memory.peak},
        "cache_bytes": cache_bytes(plan.recipe.model),
        "tokens": plan.tokens,
        "device": plan.device,
        "device_bytes": plan.device_memory,
        "fits": plan.fits,
        "largest_batch": plan.largest_batch,
        "step": list(plan.step_lines),
        "speed": None if plan.speed is None else vars(plan.speed),
        "elsewhere": [
            {
                "accelerator": vars(e.accelerator),
                "precision": e.precision,
                "training_bytes": e.memory.peak,
                "largest_batch": e.largest_batch,
                "training_tokens_per_second": e.training,
                "written_tokens_per_second": e.writing,
            }
            for e in plan.elsewhere
        ],
        "on_processes": [
            asdict(p) | {"peak": p.peak, "fits": p.fits, "seconds": p.seconds, "waiting": p.waiting}
            for p in plan.on_processes
        ],
        "changes": [{"change": said, "training_bytes": n} for said, n in plan.changes],
    }
