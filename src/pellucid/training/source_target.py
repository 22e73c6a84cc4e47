"""Pairs as micro-batches: a source to encode, and a target to predict behind the separator."""

import numpy as np
import torch

from pellucid.text.tokens.pairs import PairPart, PairTokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.row_data import RowData

#: widths of a batch are multiples of this, so that a compiled step is compiled for few of them
MULTIPLE = 8


class SourceTargetData(RowData[PairPart]):
    """Pairs in drawn order, each once an epoch: the encoder reads source + separator, the decoder start + target
    (`Tokenizer.start`, most often the separator too), and what it is to predict is target + separator.

    Both sides are padded to the longest of their micro-batch, rounded up to a multiple of 8: sentences are far shorter
    than the longest of a corpus, and the time of a step grows with its width. Padding is not read and not scored, so a
    micro-batch says the same whatever its width. Raises PairsError for pairs longer than the contexts.
    """

    def __init__(self, tokens: PairTokens, recipe: Recipe, device: torch.device):
        super().__init__(tokens.part("train"), tokens.part("held_out"), recipe, device)
        assert recipe.model.encoder is not None
        self.contexts = recipe.model.encoder.n_ctx, recipe.model.n_ctx
        tokens.check_lengths(*self.contexts)
        self.separator, self.start = tokens.separator, tokens.start

    @property
    def n_held_out(self) -> int:
        return len(self.measured)

    @property
    def held_out_tokens_per_byte(self) -> float:
        return len(self.measured) / self.measured.n_bytes

    def micro_batch(self, part: PairPart, rows: np.ndarray) -> MicroBatch:
        widths = [
            min(-(-int(side.lengths[rows].max()) // MULTIPLE) * MULTIPLE, n_ctx)
            for side, n_ctx in zip((part.source, part.target), self.contexts, strict=True)
        ]
        source, real = part.source.rows(rows, widths[0], self.separator)
        targets, counts = part.target.rows(rows, widths[1], self.separator)
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = self.start
        return MicroBatch(
            inputs=self.tensor(inputs),
            targets=self.tensor(targets),
            counts=self.tensor(counts),
            source=self.tensor(source),
            real=None if real.all() else self.tensor(real),
        )
