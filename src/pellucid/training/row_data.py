"""Tokens as micro-batches on the device: what batches of documents, pairs and packed conversations have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pellucid.model.transfer import on_device
from pellucid.text.tokens.batches import BatchesError, drawn_numbers, row_numbers
from pellucid.text.tokens.store import Tokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe, TextRecipe


class RecipeData(ABC):
    """The micro-batches of a recipe over prepared tokens."""

    def __init__(self, tokens: Tokens, recipe: TextRecipe, device: torch.device):
        t = recipe.train
        self.tokens, self.device, self.seed = tokens, device, t.seed
        self.batch, self.rows_per_step = t.batch, t.batch * t.accumulate

    @abstractmethod
    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch."""

    @abstractmethod
    def held_out(self) -> Iterator[MicroBatch]:
        """All of the held-out part, in order."""

    @property
    def n_held_out(self) -> int:
        """Held-out tokens that are read."""
        return len(self.tokens.part("held_out"))

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Scored held-out tokens, with separators or what ends an answer, per byte of the original text."""
        targets = self.tokens.targets("held_out")
        return len(targets) / targets.n_bytes

    def own_rows(self, micro: int, of: int) -> np.ndarray:
        """The numbers, within the step's batch, of the rows of one part of it."""
        if self.rows_per_step % of or not 0 <= micro < of:
            raise BatchesError(
                f"part {micro} of {of} of {self.rows_per_step} rows: expected a divisor, and one of its parts"
            )
        share = self.rows_per_step // of
        return np.arange(micro * share, (micro + 1) * share)

    def samples(self, step: int, micro: int, of: int) -> Tensor:
        """The numbers from which the dropout of one part of a step is drawn."""
        return self.tensor(row_numbers(self.seed, step, self.own_rows(micro, of)))

    def tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)


class RowData(RecipeData):
    """Rows of tokens in drawn order, each once an epoch.

    `targets_per_row` says of each part how many targets of each of its rows are scored, int64 [rows].
    """

    def __init__(self, tokens: Tokens, recipe: Recipe, device: torch.device, targets_per_row: Mapping[str, np.ndarray]):
        super().__init__(tokens, recipe, device)
        self.targets_per_row = targets_per_row

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        rows, own = self.rows(step), self.own_rows(micro, of)
        self.tokens.check_files()
        total = int(self.targets_per_row["train"][rows].sum())
        return replace(self.micro_batch("train", rows[own]), total=total, samples=self.samples(step, micro, of))

    def rows(self, step: int) -> np.ndarray:
        """The numbers of a step's rows."""
        return drawn_numbers(step, self.rows_per_step, len(self.targets_per_row["train"]), self.seed)

    def held_out(self) -> Iterator[MicroBatch]:
        self.tokens.check_files()
        n = len(self.targets_per_row["held_out"])
        for first in range(0, n, self.batch):
            yield self.micro_batch("held_out", np.arange(first, min(first + self.batch, n)))

    @abstractmethod
    def micro_batch(self, part: str, rows: np.ndarray) -> MicroBatch:
        """These rows of a part."""
