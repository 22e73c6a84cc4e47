"""The options that every training run has, whatever it trains, and what every recipe has."""

import dataclasses
import difflib
import json
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from pellucid.option_values import parse_value
from pellucid.runs.schedule import ScheduleName

#: the least beta_2 of RMSprop, whose sums grow by up to beta_2^-16 (`rmsprop.BLOCK`) before they are scaled
LEAST_BETA_2 = 0.01

OptimizerName = Literal["adamw", "muon"]
NGramOptimizerName = Literal["rmsprop", "adamw"]
#: pairs of steps
Segments = tuple[tuple[int, int], ...]
#: the options that say how long a run is; at most one of them is given
LENGTHS = ("steps", "tokens", "epochs", "minutes")
#: the options that say how many steps lie between evaluations, checkpoints and samples
INTERVALS = ("evaluate_every", "checkpoint_every", "sample_every")


#: values that version 0.1.0 wrote into recipes under another name, by field
RENAMED_VALUES = {"attention": {"written_out": "explicit"}}


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
    #: rmsprop for tables of n-grams, which costs nothing for the rows that a step does not meet, or adamw
    ngram_optimizer: NGramOptimizerName = "rmsprop"
    #: the largest learning rate of RMSprop
    ngram_learning_rate: float = 3e-3
    #: decay of AdamW's average of the gradients
    beta_1: float = 0.9
    #: decay of the average of the squared gradients, of AdamW and RMSprop
    beta_2: float = 0.99
    #: added to AdamW's divisor
    eps: float = 1e-8
    #: decoupled weight decay, of matrices only; -1: chosen for a transformer, from 0.1 for a long text to 0.7 for one
    #: that is short for the number of weights
    weight_decay: float = -1.0
    #: weight decay of the tables of n-grams, which would soon know the training text by heart, times learning_rate a
    #: step; -1: chosen by the steps that one reading of the text takes, so that a row is forgotten before its place is
    #: read again
    ngram_weight_decay: float = -1.0
    #: the largest norm of the gradient; 0: the gradient is not clipped
    clip: float = 1.0
    #: of a mixture of experts, b: the loss gains b experts sum_e f_e P_e for each target, with f_e the share of the
    #: choices that expert e has in a pass and P_e its mean probability; the mean over the layers (Switch); 0: nothing
    balance: float = 0.0
    #: auto: an n-gram of the training text is stored in the run, and its share beside the network is fitted on training
    #: text that is set aside from both; next-token alone
    mix: Literal["no", "auto"] = "no"
    #: how the learning rate falls after the warm-up: as a cosine, linearly, linearly over the last fifth (wsd), or not
    #: at all
    schedule: ScheduleName = "cosine"
    #: steps over which the learning rate rises from 0; -1: 2 % of the steps, at most 100
    warmup: int = -1
    #: the last learning rate as a share of the largest
    floor: float = 0.01
    #: standard deviation of the first weights
    init_std: float = 0.02
    #: the first values of the tokens' embedding and of the tables of n-grams: drawn as all others are, or counted in
    #: the training text; auto: counted where the network has such tables, is not started from another model, and
    #: learns the next token
    first_weights: Literal["auto", "drawn", "counted"] = "auto"

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
    #: held-out tokens that are read each time but the last, which reads all; 0: chosen
    evaluate_tokens: int = 0
    #: steps between checkpoints; 0: at every measurement of the held-out loss
    checkpoint_every: int = 0
    #: how many checkpoints are kept besides the best
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
        for name in ("learning_rate", "muon_learning_rate", "ngram_learning_rate", "eps", "init_std"):
            refuse_unless(getattr(self, name) > 0, name, "a number above 0")
        for name in ("weight_decay", "ngram_weight_decay"):
            decay = getattr(self, name)
            refuse_unless(decay >= 0 or decay == -1, name, "0 or more, or -1 to have it chosen")
            # a step multiplies a weight by 1 - rate x decay; decays that runs choose need no check
            by_muon = name == "weight_decay" and self.optimizer == "muon"
            rates = ("learning_rate", "muon_learning_rate") if by_muon else ("learning_rate",)
            largest = max(rates, key=lambda rate: getattr(self, rate))
            rate = getattr(self, largest)
            expected = f"at most 1 / {largest} = {1 / rate:g}, so that weights keep their signs"
            refuse_unless(decay <= 1 or rate * decay <= 1, name, expected)
        refuse_unless(0 < self.mask_share < 1, "mask_share", "a share between 0 and 1, such as 0.15")
        for name in ("beta_1", "beta_2"):
            refuse_unless(0 <= getattr(self, name) < 1, name, "a number from 0 up to, not including, 1")
        is_held = self.ngram_optimizer != "rmsprop" or self.beta_2 >= LEAST_BETA_2
        refuse_unless(is_held, "beta_2", f"{LEAST_BETA_2} or more for ngram_optimizer = rmsprop (adamw takes any)")
        refuse_unless(0 <= self.floor <= 1, "floor", "a number from 0 to 1")
        refuse_unless(self.keep_last >= 1, "keep_last", "1 or more")
        for name in ("warmup", "sample_every"):
            refuse_unless(getattr(self, name) >= -1, name, "-1 or more")


@dataclass(frozen=True, kw_only=True)
class RunRecipe(ABC):
    """What every recipe has.

    `segments` are the ranges of steps over which the schedule runs from warm-up to its end: one for a
    run, one more for each time its length was changed. A step is in the last one that has begun. `replans` are
    pairs (step, end): at that step of a run of minutes the end of its segment was moved (`schedule.position`).
    `chosen_intervals` are those of INTERVALS that were left open: a run that is made longer chooses them again.
    """

    inputs: tuple[str, ...]
    train: TrainOptions = TrainOptions()
    segments: Segments = ()
    replans: Segments = ()
    chosen_intervals: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def n_steps(self) -> int:
        """The step after the last one."""
        return planned_end(self.segments, self.replans) or self.train.steps

    @property
    @abstractmethod
    def row(self) -> float:
        """Targets of one sequence, on average where sequences differ; an image has one, its class."""

    @property
    def tokens_per_step(self) -> int:
        """Targets of one step, on average where sequences differ."""
        return round(self.train.batch * max(1, self.train.accumulate) * self.row)


RecipeT = TypeVar("RecipeT", bound=RunRecipe)


def planned_end(segments: Segments, replans: Segments) -> int:
    """The step after the last one, 0 where nothing is planned."""
    start, end = segments[-1] if segments else (0, 0)
    return next((to for step, to in reversed(replans) if step >= start), end)


def with_train(recipe: RecipeT, **changes: Any) -> RecipeT:
    """A copy with fields of `train` changed."""
    return replace(recipe, train=replace(recipe.train, **changes))


def parse_options(kind: type[OptionsT], values: Mapping[str, Any], part: str) -> OptionsT:
    """An object of the options class `kind` from values as text or typed; `part` is its name in the recipe.

    Raises RecipeError for a field that does not exist, with the nearest one, and for values that are never valid.
    """
    hints = typing.get_type_hints(kind)
    if kind is TrainOptions:
        values = {name: renamed_value(name, value) for name, value in values.items()}
    for name in values:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            raise RecipeError(f"there is no field {part}.{name}" + (f"; did you mean {near[0]!r}?" if near else ""))
    options = kind(**{name: parse_value(f"{part}.{name}", value, hints[name]) for name, value in values.items()})
    options.check()
    return options


def renamed_value(name: str, value: Any) -> Any:
    """The value of a training option, under its present name if it had another."""
    return RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def refuser(options: Any, part: str) -> Callable[[bool, str, str], None]:
    """A function that raises RecipeError unless something is true: which field of `options`, and what was expected."""

    def refuse_unless(true: bool, name: str, expected: str) -> None:
        if not true:
            raise RecipeError(f"{part}.{name} = {getattr(options, name)}: expected {expected}")

    return refuse_unless
