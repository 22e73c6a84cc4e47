"""Read and write token ids as text: the stand-in tokenizer of a model that has none."""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property

from pellucid.text.tokenizers.base import Tokenizer, TokenizerError


class IdTokenizer(Tokenizer):
    """A stand-in tokenizer: a text is token ids in decimal digits, separated by white space, such as "17 4 250".

    `ends` are the ids that end a text, and the first of them is the separator. Without any, a text cannot begin with a
    separator and generation runs until `max_tokens`. Targets begin with `start`, or else with the separator.
    """

    kind, units = "ids", "ids"
    lossless = False

    def __init__(self, n_vocab: int, ends: Sequence[int] = (), start: int | None = None):
        self.n_vocab, self.special = n_vocab, {}
        self._ends, self.model_start = list(ends), start

    @property
    def separator(self) -> int:  # type: ignore[override]
        if not self._ends:
            raise TokenizerError(
                "this model has no tokenizer, and its files do not say which id ends a text: start with an id of "
                "your own (generate), or with no separator (score: start='none')"
            )
        return self._ends[0]

    @property
    def ends(self) -> list[int]:
        return list(self._ends)

    def with_model_ids(self, start: int | None, ends: Sequence[int]) -> "IdTokenizer":
        """The same tokenizer with these ids too; the first of `ends` is the separator where there was none."""
        own = self._ends if not ends else self._ends[:1]
        return IdTokenizer(
            self.n_vocab, list(dict.fromkeys([*own, *ends])), self.model_start if start is None else start
        )

    @cached_property
    def hash(self) -> str:
        content = f"ids below {self.n_vocab}, ends {self._ends}"
        content += "" if self.model_start is None else f", start {self.model_start}"
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> str:
        raise TokenizerError("this model has no tokenizer to write: load it with tokenizer=PATH")

    def _with_special(self, *names: str) -> "Tokenizer":
        raise TokenizerError(f"this model has no tokenizer to add {names[0]!r} to: load it with tokenizer=PATH")

    def _encode(self, text: str) -> list[int]:
        ids = []
        for word in text.split():
            if not re.fullmatch("[0-9]{1,9}", word) or int(word) >= self.n_vocab:
                raise TokenizerError(
                    f"{word[:40]!r} is not a token id: this model has no tokenizer, so write ids from 0 to "
                    f"{self.n_vocab - 1} separated by spaces, such as '1 0 2', or load it with tokenizer=PATH to "
                    "write text"
                )
            ids.append(int(word))
        return ids

    def source_ids(self, ids: Sequence[int]) -> list[int]:
        """The encoder's input: these ids, and the separator unless they end with it, as ids from elsewhere may."""
        return [*ids] if ids and ids[-1] == self.separator else [*ids, self.separator]

    def pieces_of(self, text: str, ids: Sequence[int]) -> list[bytes]:
        """The bytes of text for each id, with the white space before it; the last id also takes what follows it."""
        return [piece.encode() for piece in re.findall(r"\s*\S+(?:\s+$)?", text)]

    def _table(self) -> Sequence[bytes]:
        return self._spelled

    @cached_property
    def _spelled(self) -> list[bytes]:
        return [f" {i}".encode() for i in range(self.n_vocab)]

    def token_str(self, token: int) -> str:
        return self.token_bytes(token).decode().strip()
