"""Tokens on disk as what the loop asks for: passes on the device, held-out windows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pellucid.runs.options import RecipeError
from pellucid.text.tokenizers.base import MASK
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.batches import Batch, Batches, ScoredBatch, noise, windows
from pellucid.text.tokens.store import Tokens
from pellucid.training.chat import ChatData
from pellucid.training.objectives import MicroBatch, after_prefix, hide_random_tokens
from pellucid.training.recipe import Recipe
from pellucid.training.row_data import RecipeData
from pellucid.training.source_target import SourceTargetData


class TokenData(RecipeData):
    """Batches of a recipe over prepared tokens; raises BatchesError where either part is too small for them."""

    def __init__(self, tokens: Tokens, recipe: Recipe, device: torch.device):
        super().__init__(tokens, recipe, device)
        self.inside, self.n_ctx = recipe.text.inside_documents == "yes", recipe.model.n_ctx
        self.batches = Batches(tokens, self.n_ctx, self.rows_per_step, self.seed, inside_documents=self.inside)
        self.windows()  # what it would refuse at the first evaluation is refused now

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        return replace(self._pass(self.batches.at(step, micro, of)), samples=self.samples(step, micro, of))

    def held_out(self) -> Iterator[MicroBatch]:
        """All of the held-out text, in windows of the training context that do not overlap."""
        return (self._pass(batch, batch.counts) for batch in self.windows())

    def windows(self) -> Iterator[ScoredBatch]:
        """The held-out windows, in order."""
        return windows(self.tokens.part("held_out"), self.n_ctx, batch=self.batch, inside_documents=self.inside)

    def _pass(self, batch: Batch, counts: np.ndarray | None = None) -> MicroBatch:
        arrays = (batch.inputs, batch.targets, batch.documents, batch.positions, counts)
        return MicroBatch(*(None if a is None else self.tensor(a) for a in arrays))  # type: ignore[arg-type]


class PrefixData(TokenData):
    """Rows whose first tokens, 0 to n_ctx / 2 of them, are read both ways and not predicted.

    Held-out text is read without a prefix: its loss compares with the next-token objective's.
    """

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        lengths = self.lengths(step, np.arange(self.rows_per_step))
        own = lengths[self.own_rows(micro, of)]
        total = int(after_prefix(lengths, self.n_ctx).sum())
        counts, prefix = self.tensor(after_prefix(own, self.n_ctx)), self.tensor(own)
        return replace(super().at(step, micro, of), counts=counts, prefix=prefix, total=total)

    def lengths(self, step: int, rows: np.ndarray) -> np.ndarray:
        """The prefix's length in each of these rows of a step."""
        return (noise(self.seed, step, rows, 1)[:, 0] % np.uint64(self.n_ctx // 2 + 1)).astype(np.int64)


class MaskedData(TokenData):
    """Rows with a share of their tokens hidden, to be predicted from all the others."""

    def __init__(self, tokens: Tokens, recipe: Recipe, device: torch.device):
        super().__init__(tokens, recipe, device)
        tokenizer = load_tokenizer(tokens.folder, trust=True)  # its own, which has encoded the text
        if tokenizer.mask is None:
            raise RecipeError(f"train.objective = masked hides tokens, and the tokenizer has no {MASK} to put there")
        self.mask_id, self.mask_share = tokenizer.mask, recipe.train.mask_share
        #: what a hidden token may be replaced with at random
        self.plain_ids = np.setdiff1d(np.arange(tokenizer.n_vocab), list(tokenizer.special.values()))

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        tokens = self.batches.at(step, micro, of).inputs
        batch = self.hidden(tokens, noise(self.seed, step, self.own_rows(micro, of), self.n_ctx))
        return replace(
            batch, total=self.rows_per_step * self.n_hidden(self.n_ctx), samples=self.samples(step, micro, of)
        )

    def held_out(self) -> Iterator[MicroBatch]:
        """The held-out windows, the same places of them hidden every time."""
        first = 0
        for batch in self.windows():
            rows = np.arange(first, first + len(batch.inputs))
            first += len(rows)
            masked = self.hidden(batch.inputs, noise(self.seed, -1, rows, batch.inputs.shape[1]))
            assert masked.counts is not None
            assert batch.counts is not None
            # a position that two windows share is scored in one of them
            yield replace(masked, counts=masked.counts & self.tensor(batch.counts))

    def n_hidden(self, width: int) -> int:
        """How many tokens of a row of this width are hidden."""
        return max(1, round(self.mask_share * width))

    def hidden(self, tokens: np.ndarray, draws: np.ndarray) -> MicroBatch:
        """These rows with places hidden: inputs, the tokens themselves as targets, and which are scored."""
        inputs, mask = hide_random_tokens(tokens, draws, self.n_hidden(tokens.shape[1]), self.mask_id, self.plain_ids)
        return MicroBatch(self.tensor(inputs), self.tensor(tokens), counts=self.tensor(mask))


DATA: dict[str, Any] = {
    "next-token": TokenData,
    "prefix": PrefixData,
    "masked": MaskedData,
    "source-target": SourceTargetData,
    "chat": ChatData,
}


def make_data(tokens: Tokens, recipe: Recipe, device: torch.device) -> TokenData | SourceTargetData | ChatData:
    """The data of the recipe's objective."""
    return DATA[recipe.train.objective](tokens, recipe, device)
