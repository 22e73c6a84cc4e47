"""Conversations as micro-batches: several in a row, none of which reads another, and the loss on what the assistant
writes.
"""

import numpy as np
import torch

from pellucid.runs.options import RecipeError
from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokens.conversations import ConversationTokens
from pellucid.text.tokens.store import Tokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.row_data import RowData


class ChatData(RowData):
    """Rows of conversations in drawn order, each once an epoch.

    Packing changes no loss: a token reads its own conversation alone, from position 0. Raises RecipeError where no
    conversation of a part has an answer within the context.
    """

    def __init__(self, tokens: ConversationTokens, recipe: Recipe, device: torch.device):
        n_ctx = recipe.model.n_ctx
        self.packed = {name: tokens.packed(name, n_ctx) for name in SPLIT_PARTS}
        super().__init__(tokens, recipe, device, {name: part.targets_per_row for name, part in self.packed.items()})
        for part, purpose in zip(self.packed.values(), ("train on", "hold out"), strict=True):
            if not part.rows:
                raise RecipeError(
                    f"none of the conversations to {purpose} has an answer within model.n_ctx = {n_ctx} tokens: give a "
                    f"longer context, up to {int(part.part.lengths.max())}"
                )

    @property
    def n_held_out(self) -> int:
        part = self.packed["held_out"]
        return len(part.rows) * part.n_ctx

    def micro_batch(self, part: str, rows: np.ndarray) -> MicroBatch:
        arrays = self.packed[part].arrays(rows, self.tokens.separator)
        inputs, targets, documents, positions, counts = map(self.tensor, arrays)
        return MicroBatch(inputs, targets, documents, positions, counts)


def epoch_targets(tokens: Tokens, n_ctx: int) -> int:
    """How many targets one epoch has: of conversations, those inside the context."""
    if isinstance(tokens, ConversationTokens):
        return tokens.packed("train", n_ctx).n_targets
    return len(tokens.part("train"))


def lines_on_packing(tokens: ConversationTokens, n_ctx: int) -> list[str]:
    """Lines to print: how full the rows to train on are, and what was cut or left out."""
    part = tokens.packed("train", n_ctx)
    if not part.rows:
        return []  # ChatData refuses it
    filled = sum(np.minimum(part.part.lengths[row] - 1, n_ctx).sum() for row in part.rows) / (len(part.rows) * n_ctx)
    lines = [f"packing: {len(part.rows):,} rows of {n_ctx} tokens, {filled:.0%} full; no conversation reads another"]
    if part.n_cut:
        are = "conversation is" if part.n_cut == 1 else "conversations are"
        lines.append(
            f"{part.n_cut:,} {are} longer than the context and cut at the end; {part.n_left_out:,} have no answer in "
            "what is left, and are left out"
        )
    return lines
