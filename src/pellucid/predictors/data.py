"""The batches of predictors, from tokens on disk: for those that read a fixed number of tokens, and recurrent ones."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pellucid.predictors.neural import NeuralProbabilisticOptions
from pellucid.predictors.recipe import PredictorRecipe
from pellucid.text.tokens.batches import Batches, windows
from pellucid.text.tokens.store import Tokens
from pellucid.training.objectives import Loss, MicroBatch, token_losses
from pellucid.training.row_data import RecipeData

#: inputs of a held-out window of a predictor that reads a fixed number of tokens
HELD_OUT_WINDOW = 1024


class PredictorData(RecipeData):
    """Batches in which every target has the full context that the predictor reads.

    Where the context is a fixed number of tokens, windows are longer by that number; the extra tokens are read and not
    scored. So each token is a target once an epoch, and the beginning of a window is not taken for one of a text.
    """

    def __init__(self, tokens: Tokens, recipe: PredictorRecipe, device: torch.device):
        super().__init__(tokens, recipe, device)
        self.extra = recipe.model.reach - 1 if isinstance(recipe.model, NeuralProbabilisticOptions) else 0
        self.n_ctx = recipe.window
        self.batches = Batches(tokens, self.n_ctx, self.rows_per_step, self.seed, before=self.extra)
        self.counts = torch.arange(self.extra + self.n_ctx, device=device) >= self.extra
        self.held_out()  # raise now what the first evaluation would raise

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        inputs, targets = self.batches.at(step, micro, of)
        return self._pass(inputs, targets, self.counts.expand(len(inputs), -1))

    def held_out(self) -> Iterator[MicroBatch]:
        """The whole held-out text; each token after the first is scored once."""
        stride = HELD_OUT_WINDOW if self.extra else self.n_ctx
        per_batch = max(1, self.batch * self.n_ctx // stride)
        batches = windows(self.tokens.part("held_out"), stride + self.extra, stride, per_batch)
        return (self._pass(b.inputs, b.targets, self.tensor(b.counts)) for b in batches if b.counts is not None)

    def _pass(self, inputs: np.ndarray, targets: np.ndarray, counts: Tensor) -> MicroBatch:
        return MicroBatch(self.tensor(inputs), self.tensor(targets), counts=counts)


def counted_loss(network: nn.Module, device: torch.device, precision: str) -> Loss:
    """The sum of -log P over the targets that count, in nats."""

    def loss(batch: MicroBatch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return (token_losses(network, batch) * batch.counts).sum()  # type: ignore[arg-type]

    return loss
