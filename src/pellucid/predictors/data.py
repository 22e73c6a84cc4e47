"""The batches of predictors, from tokens on disk: for those that read a fixed number of tokens, and recurrent ones."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pellucid.predictors.neural import NeuralProbabilisticOptions
from pellucid.predictors.recipe import PredictorRecipe
from pellucid.runs.device import on_device
from pellucid.text.tokens.batches import Batches, windows
from pellucid.text.tokens.store import TokenSequence
from pellucid.training.objectives import Loss, MicroBatch, token_losses

#: inputs of a held-out window of a predictor that reads a fixed number of tokens
HELD_OUT_WINDOW = 1024


class PredictorData:
    """Batches in which every target has the full context that the predictor reads.

    Where the context is a fixed number of tokens, windows are longer by that number; the extra tokens are read and not
    scored. So each token is a target once an epoch, and the beginning of a window is not taken for one of a text.
    """

    def __init__(self, train: TokenSequence, held_out: TokenSequence, recipe: PredictorRecipe, device: torch.device):
        self.extra = recipe.model.reach - 1 if isinstance(recipe.model, NeuralProbabilisticOptions) else 0
        self.n_ctx, self.batch, self.device = recipe.window, recipe.train.batch, device
        self.batches = Batches(train, self.n_ctx, self.batch * recipe.train.accumulate, recipe.train.seed)
        self.train, self.part = train, held_out
        self.counts = torch.arange(self.extra + self.n_ctx, device=device) >= self.extra
        self._checked = -1
        self.held_out()  # raise now what the first evaluation would raise

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch."""
        if (epoch := int(self.batches.epoch(step))) != self._checked:
            self.train.check_files()
            self._checked = epoch
        rows = np.stack([self._ring(int(start) - self.extra) for start in self.batches.starts(step, micro, of)])
        return self._pass(rows[:, :-1], rows[:, 1:], self.counts.expand(len(rows), -1))

    def _ring(self, start: int) -> np.ndarray:
        """extra + n_ctx + 1 tokens from `start` on; the text continues at its beginning."""
        out, n = np.empty(self.extra + self.n_ctx + 1, dtype=np.int64), len(self.train)
        filled = 0
        while filled < len(out):
            at = (start + filled) % n
            piece = self.train.read(at, min(n, at + len(out) - filled))
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
        return out

    def held_out(self) -> Iterator[MicroBatch]:
        """The whole held-out text; each token after the first is scored once."""
        stride = HELD_OUT_WINDOW if self.extra else self.n_ctx
        per_batch = max(1, self.batch * self.n_ctx // stride)
        found = windows(self.part, stride + self.extra, stride, per_batch)
        return (self._pass(b.inputs, b.targets, self._tensor(b.counts)) for b in found if b.counts is not None)

    @property
    def n_held_out(self) -> int:
        """Held-out tokens."""
        return len(self.part)

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Tokens, separators included, per byte of the original held-out text."""
        return len(self.part) / self.part.n_bytes

    def _pass(self, inputs: np.ndarray, targets: np.ndarray, counts: Tensor) -> MicroBatch:
        return MicroBatch(self._tensor(inputs), self._tensor(targets), counts=counts)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)


def counted_loss(network: nn.Module, device: torch.device, precision: str) -> Loss:
    """The sum of -log P over the targets that count, in nats."""

    def loss(given: MicroBatch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return (token_losses(network, given) * given.counts).sum()  # type: ignore[arg-type]

    return loss
