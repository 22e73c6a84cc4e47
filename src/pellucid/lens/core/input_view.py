"""The input of a recording as readable text, and tokens and positions by name."""

import copy
from typing import Self

import torch
from torch import Tensor

from pellucid.lens.core.inputs import InputError, Inputs, one_token
from pellucid.tensor_names import axes
from pellucid.text.read.chunks import counted
from pellucid.text.tokenizers.base import Tokenizer


class VocabularyView:
    """Converts token ids to readable text and back."""

    tokenizer: Tokenizer
    #: the ids that lists of tokens hold; None for all
    listed: Tensor | None = None

    @property
    def n_ids(self) -> int:
        """How many ids there are, numbered from 0."""
        raise NotImplementedError

    def spell(self, token: int) -> str:
        """A token as readable text; its id where the tokenizer has no such id."""
        if token >= self.tokenizer.n_vocab:
            return str(token)
        return self.tokenizer.token_str(token)

    def token_id(self, token: str | int) -> int:
        """The id of a token given as text or id; InputError where the text is not exactly one token, and for ids that
        the network does not have.
        """
        number = one_token(self.tokenizer, token) if isinstance(token, str) else int(token)
        if not 0 <= number < self.n_ids:
            raise InputError(f"token {number}: there are {self.n_ids}, numbered from 0")
        return number

    def largest(self, values: Tensor, k: int) -> list[tuple[str, float]]:
        """The k tokens with the largest of `values` [v], as text, with the values; of `listed` if given."""
        if self.listed is None:
            best = values.topk(min(k, values.numel()))
            ids = best.indices
        else:
            known = self.listed[self.listed < values.numel()].to(values.device)
            best = values[known].topk(min(k, int((values[known] > -torch.inf).sum())))
            ids = known[best.indices]
        return [(self.spell(int(i)), float(x)) for x, i in zip(best.values, ids, strict=True)]

    def among(self, ids: Tensor) -> Self:
        """The same, with lists of tokens that hold these ids alone."""
        view = copy.copy(self)
        view.listed = ids
        return view


class InputView(VocabularyView):
    """The tokens of a batch: `ids` and `tokens` are exactly the input of the network."""

    @property
    def inputs(self) -> Inputs:
        """The input of the pass."""
        raise NotImplementedError

    @property
    def ids(self) -> Tensor:
        """The input ids [b, n]. Rows shorter than the longest end in padding."""
        return self.inputs.tokens.clone()

    @property
    def tokens(self) -> list[str] | list[list[str]]:
        """The input tokens as text: a list for one text, a list of lists for a batch."""
        rows = [self._spelled(ids, n) for ids, n in zip(self.ids, self.inputs.lengths, strict=True)]
        return rows[0] if len(rows) == 1 else rows

    @property
    def source_tokens(self) -> list[list[str]]:
        """The input tokens of the encoder, row by row; empty without an encoder."""
        source = self.inputs.source
        if source is None:
            return []
        return [self._spelled(ids, n) for ids, n in zip(source.tokens, source.lengths, strict=True)]

    def spelled(self, row: int = 0) -> list[str]:
        """The tokens of one row, as text."""
        return self._spelled(self.ids[row], self.inputs.lengths[row])

    def _spelled(self, ids: Tensor, n: int) -> list[str]:
        return [self.spell(int(i)) for i in ids[:n]]

    def inputs_of(self, full: str) -> Inputs:
        """The inputs whose positions a tensor has: the encoder's for its own tensors and for cross-attention's keys."""
        of_source = full.startswith("encoder.") or (".cross." in full and "i" not in axes(full))
        return self.inputs.source if of_source and self.inputs.source is not None else self.inputs

    def position(self, pos: int, row: int = 0, of: str = "logits") -> int:
        """A position of the tensor `of`, counted from the row's start; negative `pos` counts from its last token."""
        n = self.inputs_of(of).lengths[row]
        if not -n <= pos < n:
            raise InputError(f"position {pos}: row {row} has {counted(n, 'token')}, so give {-n} to {n - 1}")
        return pos % n
