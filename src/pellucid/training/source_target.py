"""Pairs as passes: a source to encode, and a target to predict behind the separator."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pellucid.runs.device import on_device
from pellucid.text.read.pairs import PairsError
from pellucid.text.tokens.batches import drawn_numbers, row_numbers
from pellucid.text.tokens.pairs import PairPart, PairTokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe

#: widths of a batch are multiples of this, so that a compiled step is compiled for few of them
MULTIPLE = 8


class SourceTargetData:
    """Pairs in drawn order, each once an epoch: the encoder reads source + separator, the decoder start + target
    (`Tokenizer.start`, most often the separator too), and what it is to predict is target + separator.

    Both sides are padded to the longest of their pass, rounded up to a multiple of 8: sentences are far shorter than
    the longest of a corpus, and the time of a step grows with its width. Padding is not read and not scored, so a pass
    says the same whatever its width. Raises PairsError for pairs longer than the contexts.
    """

    def __init__(self, tokens: PairTokens, recipe: Recipe, device: torch.device):
        t, encoder = recipe.train, recipe.model.encoder
        assert encoder is not None
        self.most = encoder.n_ctx, recipe.model.n_ctx
        tokens.check_lengths(*self.most)
        self.batch, self.whole, self.seed, self.device = t.batch, t.batch * t.accumulate, t.seed, device
        self.separator, self.start = tokens.separator, tokens.start
        self.part, self.measured = tokens.part("train"), tokens.part("held_out")

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch."""
        pairs = self.pairs(step)
        if self.whole % of or not 0 <= micro < of:
            raise PairsError(
                f"part {micro} of {of} of a batch of {self.whole} pairs: expected a divisor, and one of its parts"
            )
        self.part.check_files()
        share = self.whole // of
        own = self._pass(self.part, pairs[micro * share : (micro + 1) * share])
        samples = self._tensor(row_numbers(self.seed, step, np.arange(micro * share, (micro + 1) * share)))
        return replace(own, total=int(self.part.target.lengths[pairs].sum()), samples=samples)

    def pairs(self, step: int) -> np.ndarray:
        """The numbers of a step's pairs."""
        return drawn_numbers(step, self.whole, self.part.n_pairs, self.seed)

    def held_out(self) -> Iterator[MicroBatch]:
        """Every held-out pair once, in order."""
        self.measured.check_files()
        for first in range(0, self.measured.n_pairs, self.batch):
            yield self._pass(self.measured, np.arange(first, min(first + self.batch, self.measured.n_pairs)))

    @property
    def n_held_out(self) -> int:
        """Held-out tokens."""
        return len(self.measured)

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Target tokens, separators included, per byte of the original held-out targets."""
        return len(self.measured) / self.measured.n_bytes

    def _pass(self, part: PairPart, pairs: np.ndarray) -> MicroBatch:
        wide = [
            min(-(-int(side.lengths[pairs].max()) // MULTIPLE) * MULTIPLE, most)
            for side, most in zip((part.source, part.target), self.most, strict=True)
        ]
        source, real = part.source.rows(pairs, wide[0], self.separator)
        targets, counts = part.target.rows(pairs, wide[1], self.separator)
        inputs = np.roll(targets, 1, axis=1)
        inputs[:, 0] = self.start
        return MicroBatch(
            inputs=self._tensor(inputs),
            targets=self._tensor(targets),
            counts=self._tensor(counts),
            source=self._tensor(source),
            real=None if real.all() else self._tensor(real),
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)
