"""The options that every training run has, whatever it trains, and what every recipe has."""

import dataclasses
import difflib
import json
import math
import os
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeVar

from pellucid.json_files import JSONFileError
from pellucid.json_shapes import COUNT, OBJECT, POSITIVE, TEXT, Fields, ListOf, OrNull, Row
from pellucid.option_values import parse_value
from pellucid.runs.schedule import Decay, ScheduleName
from pellucid.text.read.find import STANDARD_INPUT, located

OptimizerName = Literal["adamw", "muon"]
#: the options that say how long a run is; at most one of them is given
LENGTHS = ("steps", "tokens", "epochs", "minutes")
#: the options that say how many steps lie between evaluations, checkpoints and samples
INTERVALS = ("evaluate_every", "checkpoint_every", "sample_every")


class RecipeError(ValueError):
    """An option that does not exist, or two that contradict each other."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A part of a recipe."""

    def check(self) -> None:
        """Raise RecipeError for values that are never valid."""


OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """How the weights are found. Rates are per step; losses in nats per token."""

    #: length in updates of the weights; give at most one of steps, tokens, epochs and minutes
    steps: int = 0
    #: length in tokens that are trained on
    tokens: int = 0
    #: length in epochs, each of which reads the training text once
    epochs: float = 0.0
    #: length in minutes; the number of steps follows from measuring one
    minutes: float = 0.0

    #: what is predicted: the next token, the text after a prefix, tokens that are masked, a target from its source, or
    #: what the assistant writes in a conversation
    objective: Literal["next-token", "prefix", "masked", "source-target", "chat"] = "next-token"
    #: share of the tokens that are hidden where the objective is masked
    mask_share: float = 0.15

    #: sequences in one micro-batch; 0: chosen
    batch: int = 0
    #: micro-batches whose gradients are added up before a step; 0: chosen, and batch is then divided among them
    accumulate: int = 0
    #: adamw for every weight, or muon for the matrices inside the blocks and AdamW for the others
    optimizer: OptimizerName = "muon"
    #: the largest learning rate of AdamW
    learning_rate: float = 5e-3
    #: the largest learning rate of Muon
    muon_learning_rate: float = 2e-2
    #: decay of AdamW's average of the gradients
    beta_1: float = 0.9
    #: decay of AdamW's average of the squared gradients
    beta_2: float = 0.99
    #: added to AdamW's divisor
    eps: float = 1e-8
    #: decoupled weight decay, of matrices only; -1: chosen for a transformer, from 0.1 for a long text to 0.7 for one
    #: that is short for the number of weights
    weight_decay: float = -1.0
    #: the largest norm of the gradient; 0: the gradient is not clipped
    clip: float = 1.0
    #: of a mixture of experts, b: the loss gains b experts sum_e f_e P_e for each target, with f_e the share of the
    #: choices that expert e has in a pass and P_e its mean probability; the mean over the layers (Switch); 0: nothing
    balance: float = 0.0
    #: auto: an n-gram of the training text is stored in the run, and its share beside the network is fitted on training
    #: text that is set aside from both; next-token alone
    mix: Literal["no", "auto"] = "no"
    #: how the learning rate falls after the warm-up: over the last third of the run (wsd), so that the run can be made
    #: longer; over all of it, as a cosine or linearly; or not at all
    schedule: ScheduleName = "wsd"
    #: steps over which the learning rate rises from 0; -1: 2 % of the steps, at most 100
    warmup: int = -1
    #: the last learning rate as a share of the largest
    floor: float = 0.01
    #: standard deviation of the first weights
    init_std: float = 0.02

    #: where the first weights, the order of the batches and the dropout are drawn from
    seed: int = 1337
    #: auto, cpu, cuda or mps; auto takes a GPU where there is one
    device: str = "auto"
    #: the precision of matrix products; auto: the faster one, timed together with compile and attention
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: whether torch.compile is used; auto: where it saves more time than it takes, timed where the run is long enough
    compile: Literal["auto", "no", "yes"] = "auto"
    #: the kernel of attention, PyTorch's fused one or softmax(q k^T) v step by step; auto: the faster one, timed
    attention: Literal["auto", "fused", "explicit"] = "auto"
    #: yes: the activations of a block are computed again in the backward pass, which saves memory and takes time
    recompute: Literal["no", "yes"] = "no"
    #: yes: only algorithms that give the same result in every run
    deterministic: Literal["no", "yes"] = "no"

    #: steps between measurements of the held-out loss; 0: chosen by the length of the run
    evaluate_every: int = 0
    #: held-out tokens that are read each time but the last; 0: chosen. The last reads all, or as many as 7 % of the
    #: run's time allows, in a run of steps never fewer than these
    evaluate_tokens: int = 0
    #: steps between checkpoints; 0: at every measurement of the held-out loss
    checkpoint_every: int = 0
    #: how many checkpoints are kept besides the best and the one before the learning rate falls
    keep_last: int = 2
    #: steps between samples of generated text; 0: at every measurement of the held-out loss; -1: never
    sample_every: int = 0
    #: the prompt of the samples; empty: chosen by what the text has
    sample_prompt: str = ""
    #: tensorboard or wandb: the figures of metrics.jsonl are sent there too; needs that package
    track: Literal["no", "tensorboard", "wandb"] = "no"

    def check_decay_is_set(self) -> None:
        """Raise RecipeError where the weight decay is left open, which only a transformer's run chooses."""
        refuser(self, "train")(self.weight_decay >= 0, "weight_decay", "0 or more; it is chosen for transformers alone")

    def check(self) -> None:
        """Raise RecipeError for values that no run can have."""
        refuse_unless = refuser(self, "train")
        for f in fields(self):
            value = getattr(self, f.name)
            refuse_unless(not isinstance(value, float) or math.isfinite(value), f.name, "a finite number")
        lengths = [name for name in LENGTHS if getattr(self, name)]
        if len(lengths) > 1:
            raise RecipeError(f"the length is given twice, by {' and '.join(lengths)}: give one of them")
        for name in (
            *LENGTHS,
            "batch",
            "accumulate",
            "clip",
            "balance",
            "evaluate_every",
            "evaluate_tokens",
            "checkpoint_every",
        ):
            refuse_unless(getattr(self, name) >= 0, name, "0 or more")
        for name in ("learning_rate", "muon_learning_rate", "eps", "init_std"):
            refuse_unless(getattr(self, name) > 0, name, "a number above 0")
        decay, by_muon = self.weight_decay, self.optimizer == "muon"
        refuse_unless(decay >= 0 or decay == -1, "weight_decay", "0 or more, or -1 to have it chosen")
        # a step multiplies a weight by 1 - rate x decay; decays that runs choose need no check
        rates = ("learning_rate", "muon_learning_rate") if by_muon else ("learning_rate",)
        largest = max(rates, key=lambda rate: getattr(self, rate))
        rate = getattr(self, largest)
        expected = f"at most 1 / {largest} = {1 / rate:g}, so that weights keep their signs"
        refuse_unless(decay <= 1 or rate * decay <= 1, "weight_decay", expected)
        refuse_unless(0 < self.mask_share < 1, "mask_share", "a share between 0 and 1, such as 0.15")
        for name in ("beta_1", "beta_2"):
            refuse_unless(0 <= getattr(self, name) < 1, name, "a number from 0 up to, not including, 1")
        refuse_unless(0 <= self.floor <= 1, "floor", "a number from 0 to 1")
        refuse_unless(self.keep_last >= 1, "keep_last", "1 or more")
        refuse_unless(-(2**63) <= self.seed < 2**63, "seed", "a number of 64 bits, from -2^63 to 2^63 - 1")
        for name in ("warmup", "sample_every"):
            refuse_unless(getattr(self, name) >= -1, name, "-1 or more")


@dataclass(frozen=True, kw_only=True)
class RunRecipe(ABC):
    """What every recipe has.

    `decay` are the steps over which the learning rate falls; in a run of minutes it is None until they are known.
    `planned` is the number of steps that such a run is expected to have, and 0 where their number was asked for.
    `chosen_intervals` are those of INTERVALS that were left open: a run that is made longer chooses them again.
    `started_in` is the folder where the run was started or last given inputs, in which relative ones are looked up; ""
    where it is not known, as in runs of earlier versions, whose inputs are looked up in the current folder.
    """

    inputs: tuple[str, ...]
    train: TrainOptions = TrainOptions()
    decay: Decay | None = None
    planned: int = 0
    chosen_intervals: tuple[str, ...] = ()
    started_in: str = ""

    @property
    def input_folder(self) -> str:
        """The folder in which relative inputs are looked up; "" where none is relative or it is the current one."""
        is_relative = any(path != STANDARD_INPUT and not os.path.isabs(path) for path in self.input_files)
        return self.started_in if is_relative and self.started_in != os.getcwd() else ""

    def located(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Inputs of this recipe as they are found from the current folder."""
        return tuple(located(path, self.input_folder) for path in paths)

    @property
    def input_files(self) -> tuple[str, ...]:
        """The files, folders and patterns that the run reads."""
        return self.inputs

    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        """A copy with these inputs, of which relative ones are looked up in the current folder; `self` without any."""
        return replace(self, inputs=inputs, started_in=os.getcwd()) if inputs else self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def n_steps(self) -> int:
        """How many steps the run has; as many as are expected in a run of minutes whose decay has not begun."""
        return self.decay[1] if self.decay else self.planned or self.train.steps

    @property
    def before_decay(self) -> int | None:
        """The step from which a longer run goes on, None where that is not known or there is none."""
        goes_on = self.decay and self.train.schedule not in ("cosine", "linear")
        return self.decay[0] if self.decay and goes_on else None

    def is_last(self, step: int) -> bool:
        """Whether this is the last step."""
        return self.decay is not None and step == self.decay[1]

    @property
    @abstractmethod
    def row(self) -> float:
        """Targets of one sequence, on average where sequences differ."""

    @property
    def tokens_per_step(self) -> int:
        """Targets of one step, on average where sequences differ."""
        return round(self.train.batch * max(1, self.train.accumulate) * self.row)


RecipeT = TypeVar("RecipeT", bound=RunRecipe)


#: the entries of recipe.json that are no options, and the parts that hold the options, of runs of all kinds
RECORDED = Fields(
    {
        "inputs": ListOf(TEXT),
        "decay": OrNull(Row((COUNT, COUNT))),
        "planned": COUNT,
        "chosen_intervals": ListOf(TEXT),
        **dict.fromkeys(("train", "text", "model", "adapt", "parallel"), OBJECT),
        "base": OrNull(Fields(dict.fromkeys(("path", "checkpoint", "revision"), TEXT), needed=("path",))),
        "started_in": TEXT,
        "new_ids": ListOf(COUNT),
        "tokens_per_row": POSITIVE,
    },
    needed=("inputs",),
)


def recorded_length(kind: type[RunRecipe], values: Mapping[str, Any]) -> dict[str, Any]:
    """What recipe.json (`values`) records of the length of a run whose recipe is of this kind.

    Raises RecipeError for an entry that such a recipe does not have or is of another type, and for steps that no
    schedule has.
    """
    try:
        RECORDED.check(values, "the recipe")
    except JSONFileError as error:
        raise RecipeError(str(error)) from None
    if unknown := sorted(values.keys() - {f.name for f in fields(kind)}):
        raise RecipeError(f"there is no entry {unknown[0]!r} in a recipe; take it out")
    decay = values.get("decay")
    if decay is not None and not 0 <= decay[0] <= decay[1] > 0:
        raise RecipeError(f"decay = {decay}: expected the first step of the decay and the end of the run")
    recorded: dict[str, Any] = {"decay": decay and tuple(decay), "planned": values.get("planned", 0)}
    recorded["chosen_intervals"] = tuple(values.get("chosen_intervals", ()))
    if unknown := sorted({*recorded["chosen_intervals"]} - {*INTERVALS}):
        raise RecipeError(f"chosen_intervals has {unknown[0]!r}: expected some of {', '.join(INTERVALS)}")
    return recorded


def with_train(recipe: RecipeT, **changes: Any) -> RecipeT:
    """A copy with fields of `train` changed."""
    return replace(recipe, train=replace(recipe.train, **changes))


def parse_options(kind: type[OptionsT], values: Mapping[str, Any], part: str) -> OptionsT:
    """An object of the options class `kind` from values as text or typed; `part` is its name in the recipe.

    Raises RecipeError for a field that does not exist, with the nearest one, and for values that are never valid.
    """
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            raise RecipeError(f"there is no field {part}.{name}" + (f"; did you mean {near[0]!r}?" if near else ""))
    options = kind(**{name: parse_value(f"{part}.{name}", value, hints[name]) for name, value in values.items()})
    options.check()
    return options


def refuser(options: Any, part: str) -> Callable[[bool, str, str], None]:
    """A function that raises RecipeError unless something is true: which field of `options`, and what was expected."""

    def refuse_unless(true: bool, name: str, expected: str) -> None:
        if not true:
            raise RecipeError(f"{part}.{name} = {getattr(options, name)}: expected {expected}")

    return refuse_unless
