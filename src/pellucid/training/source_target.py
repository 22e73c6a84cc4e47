"""Pairs as micro-batches: a source to encode, and a target to predict behind the separator."""

import numpy as np
import torch

from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokens.pairs import PairTokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.row_data import RowData

#: widths of a batch are multiples of this, so that a compiled step is compiled for few of them
MULTIPLE = 8


class SourceTargetData(RowData):
    """Pairs in drawn order, each once an epoch: the encoder reads source + separator, the decoder start + target
    (`Tokenizer.start`, most often the separator too), and what it is to predict is target + separator.

    Both sides are padded to the longest of their micro-batch, rounded up to a multiple of 8: sentences are far shorter
    than the longest of a corpus, and the time of a step grows with its width. Padding is not read and not scored, so a
    micro-batch says the same whatever its width. Raises PairsError for pairs longer than the contexts.
    """

    tokens: PairTokens

    def __init__(self, tokens: PairTokens, recipe: Recipe, device: torch.device):
        super().__init__(tokens, recipe, device, {name: tokens.part(name).lengths for name in SPLIT_PARTS})
        assert recipe.model.encoder is not None
        self.contexts = recipe.model.encoder.n_ctx, recipe.model.n_ctx
        tokens.check_lengths(*self.contexts)
        self.separator, self.start = tokens.separator, tokens.start

    def micro_batch(self, part: str, rows: np.ndarray) -> MicroBatch:
        padded = []
        for side, n_ctx in zip(self.tokens.sides(part), self.contexts, strict=True):
            longest = int(side.lengths[rows].max())
            padded.append(side.padded(rows, min(-(-longest // MULTIPLE) * MULTIPLE, n_ctx), self.separator))
        (source, real), (targets, counts) = padded
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = self.start
        return MicroBatch(
            inputs=self.tensor(inputs),
            targets=self.tensor(targets),
            counts=self.tensor(counts),
            source=self.tensor(source),
            real=None if real.all() else self.tensor(real),
        )
