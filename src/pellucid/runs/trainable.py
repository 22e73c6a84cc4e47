"""What the pipeline of runs asks of one kind of model: its text, its network, its batches and its loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.json_shapes import OBJECT, Shape
from pellucid.model.weights import load_trained, trained_state
from pellucid.runs.device import compiled
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.options import RecipeT
from pellucid.runs.pace import Pace
from pellucid.runs.processes import SINGLE_PROCESS, Processes
from pellucid.runs.reporter import PlainReporter


class TrainingBatch(Protocol):
    """What one pass reads and predicts."""

    @property
    def total(self) -> int | None:
        """How many targets the whole step scores; None: `RunRecipe.tokens_per_step`."""
        ...


#: the sum of -log P over the scored targets of a pass, in nats
BatchLoss = Callable[[Any], Tensor]


class TrainingData(Protocol):
    """The batches of a run. They are pure functions of the step, so that a resumed run reads the same ones."""

    def at(self, step: int, micro: int, of: int) -> TrainingBatch:
        """Part `micro` of `of` of a step's batch."""
        ...

    def held_out(self) -> Iterator[Any]:
        """All that is held out, in a fixed order."""
        ...

    @property
    def n_held_out(self) -> int:
        """Held-out tokens."""
        ...

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Held-out tokens per byte of their text."""
        ...


@dataclass(frozen=True)
class HeldOutSums:
    """One batch of held-out targets.

    sums    float64, on the device: the sum of -log P in nats, how many targets were likeliest, how many were scored
    n_read  how many tokens were read
    """

    sums: Float[Tensor, "3"]
    n_read: int


class Startable(ABC, Generic[RecipeT]):
    """A kind of model in a run, as far as it is read, prepared and written; `start_run` takes one."""

    recipe: RecipeT
    #: the processes that train together
    processes: Processes = SINGLE_PROCESS

    @abstractmethod
    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        """Read what the recipe names, with the tokenizer in `run_dir` where the run is resumed.

        Raises Interrupted, with nothing left behind, when a signal comes.
        """

    @abstractmethod
    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        """Decide what the recipe leaves open, make the network, and return the lines that describe both."""

    @abstractmethod
    def files(self) -> dict[str, Any]:
        """JSON values for the run's folder by file name; data.json, which says what was read, is among them."""

    def fill(self, folder: Path) -> None:
        """Write what the run's folder holds besides JSON files."""

    def fill_folder(self, folder: Path) -> None:
        """Fill the folder of a new run."""
        self.fill(folder)


class CountedKind(Startable[RecipeT]):
    """A kind that is counted while it is prepared and takes no training steps."""

    #: the row of its evaluation, which `prepare` makes; its held_out_loss is None where some token has no probability
    evaluation: dict[str, Any]


class Trainable(Startable[RecipeT]):
    """A kind that is trained step by step; `resume_run` and the Trainer take one.

    A run calls `read`, then `prepare` (a new run) or `build` (a resumed one), then `begin`; the Trainer uses what
    `begin` has made.
    """

    network: nn.Module
    data: TrainingData
    #: the loss in the precision of the recipe, compiled where the recipe says so
    loss: BatchLoss
    #: what the loss of a step is counted in; that of held-out text is always in nats per token
    loss_unit = "nats/token"
    #: what helps a model that overfits
    remedies = "more text or a smaller model"
    #: whether a new run can start from the weights of this one (--from)
    can_start_from = False
    #: what the data.json of its runs holds
    data_shape: Shape = OBJECT
    #: the phase of `finish`
    finish_name = "finishing"

    def fill_folder(self, folder: Path) -> None:
        # from the start, so that where it is missing the checkpoints are lost and not yet to come
        (folder / "checkpoints").mkdir()
        super().fill_folder(folder)

    @abstractmethod
    def difference(self, data: Mapping[str, Any]) -> str:
        """How what was read differs from the data.json of a resumed run, "" where it does not."""

    @abstractmethod
    def check_memory(self) -> None:
        """Raise RecipeError where training cannot fit into the memory of this machine."""

    @abstractmethod
    def build(self) -> None:
        """Make the network with its first weights, on the device of the recipe."""

    def estimated_step_seconds(self) -> float | None:
        """About how long a step takes, where no process can take one alone and time it; None elsewhere."""
        return None

    def build_whole(self) -> None:
        """Make the network as `build` does, all of it in this process: to write a sample."""
        self.build()

    @abstractmethod
    def make_data(self) -> TrainingData:
        """The batches of the recipe; raises ValueError where there is too little for one."""

    @abstractmethod
    def make_loss(self) -> BatchLoss:
        """The loss of the network in the precision of the recipe, not compiled."""

    @property
    @abstractmethod
    def n_train(self) -> int:
        """Targets of one epoch."""

    @property
    @abstractmethod
    def n_trained(self) -> int:
        """How many numbers training changes."""

    @abstractmethod
    def held_out_sums(self, batch: Any) -> HeldOutSums:
        """The losses of one held-out batch."""

    def sample(self, seed: int, phase: Phase) -> str | None:
        """A text that the network writes, None where its logits are not finite; called where `can_sample`."""
        raise NotImplementedError

    def step_figures(self) -> dict[str, Tensor]:
        """Further figures of the step whose passes have just been computed, for its row of the metrics.

        `added` among them is what the passes' losses hold beside -log P, in nats; the row's loss is without it.
        """
        return {}

    @property
    def can_sample(self) -> bool:
        """Whether the network writes samples."""
        return False

    @property
    def starts_from_model(self) -> bool:
        """Whether the first weights are those of another model, whose held-out loss is then measured before step 1."""
        return False

    def state(self) -> dict[str, Tensor]:
        """The weights that a checkpoint holds: those that training changes."""
        return trained_state(self.network)

    def load_state(self, weights: Mapping[str, Tensor], where: str) -> None:
        """Put back what `state` gave; `where` names the checkpoint in an error. Raises WeightsError."""
        load_trained(self.network, weights, where)

    @property
    def device(self) -> torch.device:
        """The device of the recipe, which is decided."""
        return torch.device(self.recipe.train.device)

    def begin(self) -> None:
        """Make the batches and the loss of the recipe, which is complete now."""
        self.data, loss = self.make_data(), self.make_loss()
        compiles = self.recipe.train.compile == "yes" and not self.processes.divides_weights
        self.loss = compiled(loss) if compiles else loss
        self.processes.lay_out(self)

    @property
    def finish_field(self) -> str:
        """A field that only the row of `finish` has, by which a resumed run knows of it; "" where nothing follows the
        last step.
        """
        return ""

    @property
    def finish_cost(self) -> tuple[int, float]:
        """How many units `finish` reads with the network, and its seconds beside that: a run of minutes keeps time for
        both.
        """
        return 0, 0.0

    def finish(self, run_dir: Path, step: int, phase: Phase) -> tuple[dict[str, Any], list[str]]:
        """What follows the last step: a row of metrics, and lines to print. It may raise Interrupted."""
        raise NotImplementedError
