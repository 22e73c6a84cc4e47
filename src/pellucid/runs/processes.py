"""What a run asks of the processes that train it together; `training/parallel.py` answers for several of them."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.utils import get_total_norm


def world_size() -> int:
    """How many processes the launcher has started (torchrun and Slurm scripts set WORLD_SIZE); 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Processes:
    """The processes of one run. Of this class itself there is one process, which asks nobody."""

    n = 1
    #: how many of them run on this machine
    n_here = 1
    #: whether this process decides, writes and prints
    is_first = True
    #: processes among which the rows of a pass are divided
    n_shares = 1
    #: which part of the tensors this process holds, counted from 1, and how many parts there are
    part_number = n_parts = 1

    def arrange(self, recipe: Any) -> None:
        """Take the layout of the recipe; RecipeError where the model or the batch cannot be divided by it."""

    def check_sizes(self, architecture: Any, has_vocabulary: bool, new_ids: Sequence[int] = ()) -> None:
        """RecipeError where sizes of the model cannot be divided by the layout; the vocabulary may not be known yet."""

    @property
    def divides_weights(self) -> bool:
        """Whether each process holds a part of the weights, and compiles block by block, not the loss as a whole."""
        return self.n_parts > 1

    def lay_out(self, trainable: Any) -> None:
        """Make the network, the batches and the loss of `trainable` those of this process."""

    def announce(self, run_dir: Path, step: int | None) -> None:
        """Tell the other processes to train in this folder, from the checkpoint of `step` where there is one."""

    def announced(self) -> tuple[Path, int | None]:
        """What the first process has announced; SystemExit where it stopped without a run."""
        raise NotImplementedError("the first process announces and is told nothing")

    def largest(self, value: int) -> int:
        """The largest of the numbers that the processes ask with; all of them ask at the same place."""
        return value

    def summed(self, values: Tensor) -> Tensor:
        """The sum of these numbers over the processes that read other rows."""
        return values

    def gathered(self, value: Any) -> list[Any]:
        """What every process gives, in order of their numbers; a thread beside the training asks."""
        return [value]

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """The context of a pass: gradients are summed over the processes in the last pass of a step."""
        return nullcontext()

    def evaluating(self) -> AbstractContextManager[object]:
        """The context of a held-out batch."""
        return nullcontext()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, the same in every process."""
        return get_total_norm(gradients)

    def divided(self, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process holds of whole tensors: as much as of the parameter that the name begins with."""
        return dict(tensors)

    def plain(self, trainable: Any) -> AbstractContextManager[object]:
        """A context in which the first process has the whole network, to compute with alone."""
        return nullcontext()

    def local_part(self, x: Tensor) -> Tensor:
        """What this process holds of a parameter or of its gradient, as a plain tensor that shares its memory."""
        return x

    def whole_matrices(self, parts: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Whole matrices, one after another, from what this process holds of each of `matrices`."""
        return parts

    def parts_of(self, whole: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """The inverse of `whole_matrices`."""
        return whole


class Clocks:
    """The clocks of the wall and of this thread, from now on."""

    def __init__(self):
        self.wall, self.thread = time.perf_counter(), time.thread_time()

    def passed(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self.wall

    def waiting(self) -> float:
        """The share of the time since then in which this thread did not compute, which it does on CPUs alone."""
        computed = time.thread_time() - self.thread
        return round(max(0.0, 1 - computed / max(self.passed(), 1e-9)), 3)


#: the answers of a run in one process
SINGLE_PROCESS = Processes()
