"""Tokens on disk as what the loop asks for: passes on the device, held-out windows."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pellucid.text.batches import Batch, Batches, windows
from pellucid.text.tokens import Tokens
from pellucid.training.objectives import Pass
from pellucid.training.recipe import Recipe


class TokenData:
    """Batches of a recipe over prepared tokens; raises BatchesError where either part is too small for them."""

    def __init__(self, tokens: Tokens, recipe: Recipe, device: torch.device):
        t, self.inside = recipe.train, recipe.text.inside_documents == "yes"
        self.batch, self.n_ctx, self.device = t.batch, recipe.model.n_ctx, device
        whole = t.batch * t.accumulate
        self.batches = Batches(tokens, self.n_ctx, whole, t.seed, inside_documents=self.inside)
        self.part = tokens.part("held_out")
        self.held_out()  # what it would refuse at the first evaluation is refused now

    def at(self, step: int, micro: int, of: int) -> Pass:
        """Part `micro` of `of` of a step's batch."""
        return self._pass(self.batches.at(step, micro, of))

    def held_out(self) -> Iterator[Pass]:
        """All of the held-out text, in windows of the training context that do not overlap."""
        found = windows(self.part, self.n_ctx, batch=self.batch, inside_documents=self.inside)
        return (self._pass(batch, batch.counts) for batch in found)

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Tokens, separators included, per byte of the original held-out text."""
        return len(self.part) / self.part.n_bytes

    def _pass(self, batch: Batch, counts: np.ndarray | None = None) -> Pass:
        arrays = (batch.inputs, batch.targets, batch.documents, batch.positions, counts)
        return Pass(*(None if a is None else self._tensor(a) for a in arrays))  # type: ignore[arg-type]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
