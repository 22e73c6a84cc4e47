"""Sequences of which one step computes a token each: all that have no edits, or all that have the same ones."""

from collections.abc import Sequence

from pellucid.generate.compiled_step import CompiledStep
from pellucid.generate.readers import NextLogits, TapFactory
from pellucid.model import Cache, Tap, Transformer
from pellucid.serve.batch_cache import BatchCache
from pellucid.serve.generation import Generation


class DecodingGroup:
    """A batch and its sequences, row by row.

    taps      the edits of all of them
    memory    bytes that the batch may take in order to grow less often (`BatchCache`)
    compiled  the step of a single sequence that nothing edits, where there is one
    """

    def __init__(
        self,
        network: Transformer,
        taps: TapFactory,
        max_rows: int,
        memory: int,
        compiled: CompiledStep | None = None,
    ):
        self.taps = taps
        self.batch = BatchCache(network, max_rows, memory, compiled)
        self.generations: list[Generation] = []

    def join(self, generation: Generation, cache: Cache, width: int) -> None:
        """Add a sequence that `cache` holds and that grows to `width` tokens."""
        self.batch.join(cache, width)
        self.generations.append(generation)

    def leave(self, row: int) -> None:
        """Take a sequence out of the batch; the last row takes its place."""
        self.batch.leave(row)
        self.generations[row] = self.generations[-1]
        self.generations.pop()

    def clear(self) -> None:
        """Take all sequences out of the batch."""
        self.batch.clear()
        self.generations.clear()

    def step(self) -> tuple[NextLogits, dict[int, Exception]]:
        """The logits of each row's next token, and what went wrong in the rows that have none.

        Where the step that all rows share fails, each row is computed by itself.
        """
        tokens = [generation.newest for generation in self.generations]
        try:
            return self.batch.step(tokens, self.tap_of), {}
        except Exception:
            return self.batch.step_each(tokens, self.tap_of)

    def tap_of(self, rows: range, width: int) -> Tap:
        """What edits one more token of these rows, which have `width` columns with it."""
        generations: Sequence[Generation] = self.generations[rows.start : rows.stop]
        return self.taps.of(
            [g.prompt for g in generations],
            [g.window_start for g in generations],
            [self.batch.lengths[row] + 1 for row in rows],
            width,
            1,
        )
