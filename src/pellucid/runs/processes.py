"""What a run asks of the processes that train it together; `training/parallel.py` answers for several of them."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor


def world_size() -> int:
    """How many processes the launcher has started (torchrun and Slurm scripts set WORLD_SIZE); 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Processes:
    """The processes of one run. Of this class itself there is one process, which asks nobody."""

    n = 1
    #: whether this process decides, writes and prints
    is_first = True
    #: processes among which the rows of a pass are divided
    n_shares = 1

    def arrange(self, recipe: Any) -> None:
        """Take the layout of the recipe; RecipeError where the model or the batch cannot be divided by it."""

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

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """The context of a pass: gradients are summed over the processes in the last pass of a step."""
        return nullcontext()


#: the answers of a run in one process
ALONE = Processes()
