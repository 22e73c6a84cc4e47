"""Tokens as people read and write them, with a tokenizer or without one."""

from torch import Tensor

from pellucid.lens.core.inputs import InputError, one_token
from pellucid.text.tokenizers.base import Tokenizer


class Spelling:
    """Ids to text and back; without a tokenizer a token is called by its number."""

    tokenizer: Tokenizer | None

    def spell(self, token: int) -> str:
        """A token for people to read; its id where there is no tokenizer, or none of this number."""
        known = self.tokenizer is not None and token < self.tokenizer.n_vocab
        return self.tokenizer.token_str(token) if known and self.tokenizer else str(token)

    def token_id(self, token: str | int) -> int:
        """The id of a token given as text or id; InputError where the text is not exactly one token."""
        if not isinstance(token, str):
            return int(token)
        if self.tokenizer is None:
            raise InputError(f"the token {token!r} was given as text to a network without a tokenizer: give its id")
        return one_token(self.tokenizer, token)

    def largest(self, values: Tensor, k: int) -> list[tuple[str, float]]:
        """The k tokens with the largest of `values` [v], as text, with the values."""
        best = values.topk(min(k, values.numel()))
        return [(self.spell(int(i)), float(x)) for x, i in zip(best.values, best.indices, strict=True)]
