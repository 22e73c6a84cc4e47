"""What a trace was fed, for people to read, and the tokens and positions that they name."""

from torch import Tensor

from pellucid.lens.core.inputs import InputError, Inputs
from pellucid.lens.core.spelling import Spelling
from pellucid.tensor_names import axes


class Fed(Spelling):
    """The tokens of a batch: `ids` and `tokens` are exactly what was fed."""

    inputs: Inputs

    @property
    def ids(self) -> Tensor:
        """Exactly what was fed [b, n]; rows shorter than the longest end in padding."""
        return self.inputs.tokens

    @property
    def tokens(self) -> list[str] | list[list[str]]:
        """Exactly what was fed, for people to read: one text's tokens, or a list of lists for a batch."""
        rows = [self._spelled(ids, n) for ids, n in zip(self.ids, self.inputs.lengths, strict=True)]
        return rows[0] if len(rows) == 1 else rows

    @property
    def source_tokens(self) -> list[list[str]]:
        """What the encoder was fed, row by row; nothing where there is none."""
        source = self.inputs.source
        if source is None:
            return []
        return [self._spelled(ids, n) for ids, n in zip(source.tokens, source.lengths, strict=True)]

    def spelled(self, row: int = 0) -> list[str]:
        """The tokens of one row, for people to read."""
        return self._spelled(self.ids[row], self.inputs.lengths[row])

    def _spelled(self, ids: Tensor, n: int) -> list[str]:
        return [self.spell(int(i)) for i in ids[:n]]

    def inputs_of(self, full: str) -> Inputs:
        """The text whose positions a tensor has: the source for an encoder's and for what is read of its output."""
        of_source = full.startswith("encoder.") or (".cross." in full and "i" not in axes(full))
        return self.inputs.source if of_source and self.inputs.source is not None else self.inputs

    def position(self, pos: int, row: int = 0, of: str = "logits") -> int:
        """A position of the tensor `of` counted from the row's start; negative ones from its end, padding aside."""
        n = self.inputs_of(of).lengths[row]
        if not -n <= pos < n:
            raise InputError(f"position {pos}: row {row} has {n} tokens, so say {-n} to {n - 1}")
        return pos % n
