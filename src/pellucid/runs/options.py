"""The options that every training run has, whatever it trains, and what every recipe has."""

import dataclasses
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeVar

from pellucid.option_values import Open, Options, build, option_text
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
class TrainOptions(Options):
    """How the weights are found. Rates are per step; losses in nats per token."""

    steps: int = 0
    """length in updates of the weights; give at most one of steps, tokens, epochs and minutes"""
    tokens: int = 0
    """length in tokens that are trained on"""
    epochs: float = 0.0
    """length in epochs, each of which reads the training text once"""
    minutes: float = 0.0
    """length in minutes; the number of steps follows from measuring one"""

    objective: Literal["next-token", "prefix", "masked", "source-target", "chat"] = "next-token"
    """what is predicted: the next token, the text after a prefix, tokens that are masked, a target from its source, or
    what the assistant writes in a conversation
    """
    mask_share: float = 0.15
    """share of the tokens that are hidden where the objective is masked"""

    batch: Open[int] = None
    """sequences in one micro-batch"""
    accumulate: Open[int] = None
    """micro-batches whose gradients are added up before a step; auto: batch is divided among them"""
    optimizer: OptimizerName = "muon"
    """adamw for every weight, or muon for the matrices inside the blocks and AdamW for the others"""
    learning_rate: float = 5e-3
    """the largest learning rate of AdamW"""
    muon_learning_rate: float = 2e-2
    """the largest learning rate of Muon"""
    beta_1: float = 0.9
    """decay of AdamW's average of the gradients"""
    beta_2: float = 0.99
    """decay of AdamW's average of the squared gradients"""
    eps: float = 1e-8
    """added to AdamW's divisor"""
    weight_decay: Open[float] = None
    """decoupled weight decay, of matrices only; auto: chosen for a transformer, from 0.1 for a long text to 0.7 for one
    that is short for the number of weights
    """
    clip: float = 1.0
    """the largest norm of the gradient; 0: the gradient is not clipped"""
    balance: float = 0.0
    """of a mixture of experts, b: the loss gains b experts sum_e f_e P_e for each target, with f_e the share of the
    choices that expert e has in a pass and P_e its mean probability; the mean over the layers (Switch); 0: nothing
    """
    mix: Literal["no", "auto"] = "no"
    """auto: an n-gram of the training text is stored in the run, and its share beside the network is fitted on training
    text that is set aside from both; next-token alone
    """
    schedule: ScheduleName = "wsd"
    """how the learning rate falls after the warm-up: over the last third of the run (wsd), so that the run can be made
    longer; over all of it, as a cosine or linearly; or not at all
    """
    warmup: Open[int] = None
    """steps over which the learning rate rises from 0; auto: 2 % of the steps, at most 100"""
    floor: float = 0.01
    """the last learning rate as a share of the largest"""
    init_std: float = 0.02
    """standard deviation of the first weights"""

    seed: int = 1337
    """where the first weights, the order of the batches and the dropout are drawn from"""
    device: Open[str] = None
    """auto, cpu, cuda or mps; auto takes a GPU where there is one"""
    precision: Open[Literal["float32", "tf32", "bfloat16"]] = None
    """the precision of matrix products; tf32 is float32 with factors rounded to 11 bits, on NVIDIA GPUs; auto: the
    faster one of the other two, timed together with compile and attention
    """
    compile: Open[Literal["no", "yes"]] = None
    """whether torch.compile is used; auto: where it saves more time than it takes, timed where the run is long enough
    """
    attention: Open[Literal["fused", "explicit"]] = None
    """the kernel of attention, PyTorch's fused one or softmax(q k^T) v step by step; auto: the faster one, timed"""
    recompute: Literal["no", "yes"] = "no"
    """yes: the activations of a block are computed again in the backward pass, which saves memory and takes time"""
    deterministic: Literal["no", "yes"] = "no"
    """yes: only algorithms that give the same result in every run"""

    evaluate_every: Open[int] = None
    """steps between measurements of the held-out loss; auto: chosen by the length of the run"""
    evaluate_tokens: Open[int] = None
    """held-out tokens that are read each time but the last. The last reads all, or as many as 7 % of the run's time
    allows, in a run of steps never fewer than these
    """
    checkpoint_every: Open[int] = None
    """steps between checkpoints; auto: at every measurement of the held-out loss"""
    keep_last: int = 2
    """how many checkpoints are kept besides the best and the one before the learning rate falls"""
    sample_every: Open[int] = None
    """steps between samples of generated text; auto: at every measurement of the held-out loss; 0: never"""
    sample_prompt: Open[str] = None
    """the prompt of the samples; auto: chosen by what the text has"""
    track: Literal["no", "tensorboard", "wandb"] = "no"
    """tensorboard or wandb: the figures of metrics.jsonl are sent there too; needs that package"""

    def check_decay_is_set(self) -> None:
        """Raise RecipeError where the weight decay is left open, which only a transformer's run chooses."""
        is_set = self.weight_decay is not None
        refuser(self, "train")(is_set, "weight_decay", "0 or more; it is chosen for transformers alone")

    def check(self) -> None:
        """Raise RecipeError for values that no run can have."""
        refuse_unless = refuser(self, "train")
        for f in fields(self):
            value = getattr(self, f.name)
            refuse_unless(not isinstance(value, float) or math.isfinite(value), f.name, "a finite number")
        lengths = [name for name in LENGTHS if getattr(self, name)]
        if len(lengths) > 1:
            raise RecipeError(f"the length is given twice, by {' and '.join(lengths)}: give one of them")
        for name in (*LENGTHS, "clip", "balance"):
            refuse_unless(getattr(self, name) >= 0, name, "0 or more")
        for name in ("batch", "accumulate", "evaluate_every", "evaluate_tokens", "checkpoint_every"):
            refuse_unless((value := getattr(self, name)) is None or value >= 1, name, "1 or more, or auto")
        for name in ("weight_decay", "warmup", "sample_every"):
            refuse_unless((value := getattr(self, name)) is None or value >= 0, name, "0 or more, or auto")
        for name in ("learning_rate", "muon_learning_rate", "eps", "init_std"):
            refuse_unless(getattr(self, name) > 0, name, "a number above 0")
        decay, by_muon = self.weight_decay or 0.0, self.optimizer == "muon"
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


@dataclass(frozen=True, kw_only=True)
class RunRecord(Options):
    """What happened in a run, or is expected to."""

    decay: Decay | None = None
    """the steps over which the learning rate falls; None in a run of minutes until they are known"""
    planned: int = 0
    """the number of steps that a run of minutes is expected to have, 0 where their number was asked for"""
    chosen_intervals: tuple[str, ...] = ()
    """those of INTERVALS that were left open: a run that is made longer chooses them again"""
    started_in: str = ""
    """the folder where the run was started or last given inputs, in which relative ones are looked up; "" where it is
    not known, and they are looked up in the current folder
    """

    def check(self) -> None:
        """Raise RecipeError for steps that no schedule has, and intervals that do not exist."""
        refuse_unless = refuser(self, "record")
        first, end = self.decay or (0, 1)
        refuse_unless(0 <= first <= end > 0, "decay", "the first step of the decay and the end of the run")
        refuse_unless(self.planned >= 0, "planned", "a number of steps")
        refuse_unless({*self.chosen_intervals} <= {*INTERVALS}, "chosen_intervals", f"some of {', '.join(INTERVALS)}")


@dataclass(frozen=True, kw_only=True)
class RunRecipe(ABC):
    """What every recipe has: the options of the run, and the record of what happened."""

    inputs: tuple[str, ...]
    train: TrainOptions = TrainOptions()
    record: RunRecord = RunRecord()

    @property
    def input_folder(self) -> str:
        """The folder in which relative inputs are looked up; "" where none is relative or it is the current one."""
        is_relative = any(path != STANDARD_INPUT and not os.path.isabs(path) for path in self.input_files)
        return self.record.started_in if is_relative and self.record.started_in != os.getcwd() else ""

    def located(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Inputs of this recipe as they are found from the current folder."""
        return tuple(located(path, self.input_folder) for path in paths)

    @property
    def input_files(self) -> tuple[str, ...]:
        """The files, folders and patterns that the run reads."""
        return self.inputs

    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        """A copy with these inputs, of which relative ones are looked up in the current folder; `self` without any."""
        return with_record(replace(self, inputs=inputs), started_in=os.getcwd()) if inputs else self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the options, and the record."""
        options = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"options": options, "record": options.pop("record")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote. Raises RecipeError or ArchitectureError, which name the entry that is wrong."""
        if wrong := sorted({*values} ^ {"options", "record"}):
            raise RecipeError(f"a recipe has the entries options and record alone: see to {wrong[0]!r}")
        if not isinstance(values["options"], Mapping):
            raise RecipeError(f"options = {values['options']!r:.60}: expected an object with named fields")
        return build(cls, {**values["options"], "record": values["record"]})

    @property
    def n_steps(self) -> int:
        """How many steps the run has; as many as are expected in a run of minutes whose decay has not begun."""
        return self.record.decay[1] if self.record.decay else self.record.planned or self.train.steps

    @property
    def before_decay(self) -> int | None:
        """The step from which a longer run goes on, None where that is not known or there is none."""
        goes_on = self.record.decay and self.train.schedule not in ("cosine", "linear")
        return self.record.decay[0] if self.record.decay and goes_on else None

    def is_last(self, step: int) -> bool:
        """Whether this is the last step."""
        return self.record.decay is not None and step == self.record.decay[1]

    @property
    @abstractmethod
    def row(self) -> float:
        """Targets of one sequence, on average where sequences differ."""

    @property
    def tokens_per_step(self) -> int:
        """Targets of one step, on average where sequences differ."""
        return round(self.train.batch * (self.train.accumulate or 1) * self.row)


RecipeT = TypeVar("RecipeT", bound=RunRecipe)


def with_train(recipe: RecipeT, **changes: Any) -> RecipeT:
    """A copy with fields of `train` changed."""
    return replace(recipe, train=replace(recipe.train, **changes))


def with_record(recipe: RecipeT, **changes: Any) -> RecipeT:
    """A copy with fields of `record` changed."""
    return replace(recipe, record=replace(recipe.record, **changes))


def refuser(options: Any, part: str) -> Callable[[bool, str, str], None]:
    """A function that raises RecipeError unless something is true: which field of `options`, and what was expected."""

    def refuse_unless(true: bool, name: str, expected: str) -> None:
        if not true:
            raise RecipeError(f"{part}.{name} = {option_text(getattr(options, name))}: expected {expected}")

    return refuse_unless
