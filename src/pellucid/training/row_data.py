"""Rows in drawn order as micro-batches: what batches of pairs and of packed conversations have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from pellucid.runs.device import on_device
from pellucid.text.tokens.batches import BatchesError, drawn_numbers, row_numbers
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe


class RowPart(Protocol):
    """Rows of tokens, and how many targets of each are scored, int64 [rows]."""

    @property
    def targets_per_row(self) -> np.ndarray: ...
    def check_files(self) -> None: ...


RowPartT = TypeVar("RowPartT", bound=RowPart)


class RowData(ABC, Generic[RowPartT]):
    """Rows in drawn order, each once an epoch. `train` and `measured` are the training part and the held-out one."""

    def __init__(self, train: RowPartT, measured: RowPartT, recipe: Recipe, device: torch.device):
        t = recipe.train
        self.train, self.measured, self.device = train, measured, device
        self.batch, self.rows_per_step, self.seed = t.batch, t.batch * t.accumulate, t.seed

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch."""
        if self.rows_per_step % of or not 0 <= micro < of:
            raise BatchesError(
                f"part {micro} of {of} of {self.rows_per_step} rows: expected a divisor, and one of its parts"
            )
        self.train.check_files()
        rows, share = self.rows(step), self.rows_per_step // of
        own = np.arange(micro * share, (micro + 1) * share)
        total, samples = self.train.targets_per_row[rows].sum(), row_numbers(self.seed, step, own)
        return replace(self.micro_batch(self.train, rows[own]), total=int(total), samples=self.tensor(samples))

    def rows(self, step: int) -> np.ndarray:
        """The numbers of a step's rows."""
        return drawn_numbers(step, self.rows_per_step, len(self.train.targets_per_row), self.seed)

    def held_out(self) -> Iterator[MicroBatch]:
        """Every held-out row once, in order."""
        self.measured.check_files()
        n = len(self.measured.targets_per_row)
        for first in range(0, n, self.batch):
            yield self.micro_batch(self.measured, np.arange(first, min(first + self.batch, n)))

    @property
    @abstractmethod
    def n_held_out(self) -> int:
        """Held-out tokens that are read."""

    @property
    @abstractmethod
    def held_out_tokens_per_byte(self) -> float:
        """Scored held-out tokens, with separators or what ends an answer, per byte of their texts."""

    @abstractmethod
    def micro_batch(self, part: RowPartT, rows: np.ndarray) -> MicroBatch:
        """These rows of a part."""

    def tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)
