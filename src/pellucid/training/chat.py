"""Conversations as passes: several in a row, none of which reads another, and the loss on what the assistant writes."""

import bisect
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pellucid.runs.device import on_device
from pellucid.runs.options import RecipeError
from pellucid.text.tokens.batches import drawn_numbers, row_numbers
from pellucid.text.tokens.conversations import ConversationPart, ConversationTokens
from pellucid.text.tokens.pairs import PairTokens
from pellucid.text.tokens.store import Tokens
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe


class PackedPart:
    """One part of the conversations in rows of `n_ctx` tokens to read, each row as full as whole conversations make it.

    Of a conversation of n tokens n - 1 are read, and all but the first are targets. A longer one than the context is
    cut at its end; one without an answer in what is left is left out.
    """

    def __init__(self, part: ConversationPart, n_ctx: int):
        self.part, self.n_ctx = part, n_ctx
        reads = np.minimum(part.lengths - 1, n_ctx)
        scored = np.concatenate([[0], np.cumsum(part.answers)])
        starts = part.starts[:-1]
        answers = scored[starts + 1 + reads] - scored[starts + 1]
        usable = np.flatnonzero(answers > 0)
        self.n_cut = int((part.lengths - 1 > n_ctx).sum())
        self.n_left_out = len(starts) - len(usable)
        self.rows = pack(reads[usable], usable, n_ctx)
        #: targets of each row that are scored
        self.n_scored = np.array([answers[row].sum() for row in self.rows], dtype=np.int64)

    @property
    def n_targets(self) -> int:
        """How many targets of all rows are scored: those of one epoch."""
        return int(self.n_scored.sum())

    def arrays(self, numbers: np.ndarray, fill: int) -> tuple[np.ndarray, ...]:
        """These rows as inputs, targets, conversation and position of each input, and which targets are scored.

        Each is [len(numbers), n_ctx]. What no conversation fills reads `fill`, and is a conversation of its own.
        """
        shape = len(numbers), self.n_ctx
        inputs, targets = (np.full(shape, fill, dtype=np.int64) for _ in range(2))
        documents, positions = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        counts = np.zeros(shape, dtype=bool)
        for i, number in enumerate(numbers):
            at = 0
            for k, conversation in enumerate(self.rows[number]):
                start = int(self.part.starts[conversation])
                n = min(int(self.part.lengths[conversation]) - 1, self.n_ctx)
                inputs[i, at : at + n] = self.part.ids[start : start + n]
                targets[i, at : at + n] = self.part.ids[start + 1 : start + 1 + n]
                counts[i, at : at + n] = self.part.answers[start + 1 : start + 1 + n]
                documents[i, at : at + n] = k
                positions[i, at : at + n] = np.arange(n)
                at += n
            documents[i, at:] = len(self.rows[number])
            positions[i, at:] = np.arange(self.n_ctx - at)
        return inputs, targets, documents, positions, counts


def pack(lengths: np.ndarray, numbers: np.ndarray, capacity: int) -> list[np.ndarray]:
    """Rows of these numbers, whose lengths sum to `capacity` at most: the longest first, each where least is left over
    (best fit decreasing).
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # what is left in a row, and its number, in order
    for i in np.argsort(-lengths, kind="stable"):
        length = int(lengths[i])
        j = bisect.bisect_left(open_rows, (length, -1))
        left, row = open_rows.pop(j) if j < len(open_rows) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(int(numbers[i]))
        if left - length > 1:  # the shortest conversation reads two tokens
            bisect.insort(open_rows, (left - length, row))
    return [np.array(row, dtype=np.int64) for row in rows]


class ChatData:
    """Rows of conversations in drawn order, each once an epoch.

    Packing changes no loss: a token reads its own conversation alone, from position 0. Raises RecipeError where no
    conversation of a part has an answer within the context.
    """

    def __init__(self, tokens: ConversationTokens, recipe: Recipe, device: torch.device):
        t, n_ctx = recipe.train, recipe.model.n_ctx
        self.batch, self.whole, self.seed, self.device = t.batch, t.batch * t.accumulate, t.seed, device
        self.separator = tokens.separator
        self.packed, self.measured = (PackedPart(tokens.part(name), n_ctx) for name in ("train", "held_out"))
        for part, name in ((self.packed, "train on"), (self.measured, "hold out")):
            if not part.rows:
                raise RecipeError(
                    f"none of the conversations to {name} has an answer within model.n_ctx = {n_ctx} tokens: give a "
                    f"longer context, up to {int(part.part.lengths.max())}"
                )

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch."""
        if self.whole % of or not 0 <= micro < of:
            raise RecipeError(
                f"part {micro} of {of} of a batch of {self.whole} rows: expected a divisor, and one of its parts"
            )
        self.packed.part.stored.check_files()
        rows, share = drawn_numbers(step, self.whole, len(self.packed.rows), self.seed), self.whole // of
        own = self._pass(self.packed, rows[micro * share : (micro + 1) * share])
        samples = self._tensor(row_numbers(self.seed, step, np.arange(micro * share, (micro + 1) * share)))
        return replace(own, total=int(self.packed.n_scored[rows].sum()), samples=samples)

    def held_out(self) -> Iterator[MicroBatch]:
        """Every held-out row once, in order."""
        self.measured.part.stored.check_files()
        for first in range(0, len(self.measured.rows), self.batch):
            yield self._pass(self.measured, np.arange(first, min(first + self.batch, len(self.measured.rows))))

    @property
    def n_held_out(self) -> int:
        """Held-out tokens that are read."""
        return len(self.measured.rows) * self.measured.n_ctx

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Tokens of the assistant, with what ends its texts, per byte of its held-out texts."""
        part = self.measured.part
        return len(part) / part.n_bytes

    def _pass(self, part: PackedPart, numbers: np.ndarray) -> MicroBatch:
        inputs, targets, documents, positions, counts = map(self._tensor, part.arrays(numbers, self.separator))
        return MicroBatch(inputs, targets, documents, positions, counts)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)


def epoch_targets(tokens: Tokens | PairTokens | ConversationTokens, n_ctx: int) -> int:
    """How many targets one epoch has: of conversations, those inside the context."""
    if isinstance(tokens, ConversationTokens):
        return PackedPart(tokens.part("train"), n_ctx).n_targets
    return len(tokens.part("train"))


def lines_on_packing(tokens: ConversationTokens, n_ctx: int) -> list[str]:
    """Lines to print: how full the rows to train on are, and what was cut or left out."""
    part = PackedPart(tokens.part("train"), n_ctx)
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
