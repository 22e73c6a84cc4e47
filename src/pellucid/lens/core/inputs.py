"""What is fed: texts or ids, padded to one length, with everything else that a pass reads, all of it visible."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.mask import padding_mask, prefix_mask
from pellucid.text.tokenizers.base import Tokenizer

#: how a blank is written in a text for a masked model, and the special token it becomes
BLANK, MASK = "[MASK]", "<|mask|>"


class InputError(ValueError):
    """Texts or ids that this model cannot be shown."""


@dataclass(frozen=True)
class Inputs:
    """One batch as it is fed.

    tokens       [b, n], rows shorter than the longest padded on the right with id 0
    lengths      of each row
    mask         True where a query may read a key [b, n, n], None for the architecture's own rule
    segments     kind of each token [b, n], None for all of kind 0
    source       what an encoder reads, None where there is none
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    mask: Tensor | None = None
    segments: Tensor | None = None
    source: "Inputs | None" = None

    @property
    def real(self) -> Tensor:
        """True where a position holds a token and not padding [b, n]."""
        n = torch.tensor(self.lengths, device=self.tokens.device)
        return torch.arange(self.tokens.size(1), device=self.tokens.device) < n[:, None]

    @property
    def source_mask(self) -> Tensor | None:
        """Which source positions each query may read [b, n, n_source], None for all."""
        if self.source is None or len(set(self.source.lengths)) == 1:
            return None
        return self.source.real[:, None].expand(-1, self.tokens.size(1), -1)


def read_inputs(
    network: Transformer,
    tokenizer: Tokenizer | None,
    given: Any,
    *,
    bos: bool | None = None,
    source: Any = None,
    segments: Any = None,
    prefix: int | Sequence[int] = 0,
) -> Inputs:
    """Texts, ids, a batch of either, or what `generate` returned, as they are fed.

    bos       True puts the separator before every text. None: before the target of an encoder-decoder what its
              training began with (`Tokenizer.start`), and nothing before another text. Ids are taken as they are
    source    what an encoder-decoder reads, with the separator behind a text, as in its training
    segments  kinds of the tokens, where the architecture has n_segments
    prefix    how many tokens of each row are read as a prefix, where the mask's word is prefix

    Raises InputError.
    """
    a, place = network.architecture, network.embed.token.weight.device
    if (source is not None) != (a.encoder is not None):
        has = "reads no source: leave source out" if a.encoder is None else "reads a source: pass source=..."
        raise InputError(f"this architecture {has}")
    if hasattr(given, "prompt_ids"):
        given, prefix = [*given.prompt_ids, *given.ids], len(given.prompt_ids) if a.attention.mask == "prefix" else 0
    target = "target" if a.encoder is not None else "text"
    rows = _rows(given, tokenizer, target if bos is None else "separated" if bos else "text")
    tokens, lengths = _padded(rows, a, place)
    mask = _mask(a, lengths, prefix, tokens)
    kinds = None if segments is None else torch.as_tensor(segments, device=place).expand_as(tokens)
    if source is None:
        return Inputs(tokens, lengths, mask, kinds)
    assert a.encoder is not None
    read = _rows(source, tokenizer, "source")
    read = read * len(rows) if len(read) == 1 else read
    if len(read) != len(rows):
        raise InputError(f"{len(read)} sources for {len(rows)} targets: give one for each, or one for all")
    source_tokens, source_lengths = _padded(read, a.encoder, place)
    encoded = Inputs(source_tokens, source_lengths, _mask(a.encoder, source_lengths, 0, source_tokens))
    return Inputs(tokens, lengths, mask, kinds, encoded)


Role = Literal["text", "separated", "target", "source"]


def _rows(given: Any, tokenizer: Tokenizer | None, role: Role) -> list[list[int]]:
    """Ids row by row."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Tensor):
        given = given.tolist()
    many = list(given)
    if many and not isinstance(many[0], str | list | tuple | Tensor):
        many = [many]
    return [_ids(text, tokenizer, role) for text in many]


def _ids(text: Any, tokenizer: Tokenizer | None, role: Role) -> list[int]:
    """The ids of one text, with its blanks as mask tokens and its separators; ids as they are."""
    if not isinstance(text, str):
        return [operator.index(i) for i in text]
    if tokenizer is None:
        raise InputError("a text was given to a network without a tokenizer: give ids")
    parts = text.split(BLANK) if MASK in tokenizer.special else [text]
    ids = {"separated": [tokenizer.separator], "target": [tokenizer.start]}.get(role, [])
    for i, part in enumerate(parts):
        ids += ([tokenizer.special[MASK]] if i else []) + tokenizer.encode(part)
    return tokenizer.source_ids(ids) if role == "source" else ids


def _padded(rows: list[list[int]], a: Architecture, place: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """Rows as one tensor, and their lengths; InputError for empty or overlong ones and ids outside the vocabulary."""
    if not rows:
        raise InputError("nothing was given: pass a text, ids, or a list of either")
    for r, ids in enumerate(rows):
        if not 1 <= len(ids) <= a.n_ctx:
            raise InputError(f"text {r} has {len(ids)} tokens: expected 1 to n_ctx = {a.n_ctx}; bos=True adds one")
        if outside := [i for i in ids if not 0 <= i < a.n_vocab]:
            raise InputError(f"text {r} holds id {outside[0]}: this network knows 0 to {a.n_vocab - 1}")
    lengths = tuple(len(ids) for ids in rows)
    padded = [ids + [0] * (max(lengths) - len(ids)) for ids in rows]
    return torch.tensor(padded, device=place), lengths


def _mask(a: Architecture, lengths: tuple[int, ...], prefix: int | Sequence[int], tokens: Tensor) -> Tensor | None:
    """The mask that padding or a prefix needs; under a causal rule nothing reads padding on the right."""
    if prefix:
        if a.attention.mask != "prefix":
            raise InputError(f"a prefix was given and attention.mask = {a.attention.mask}: leave prefix out")
        ends = torch.tensor([prefix] * len(lengths) if isinstance(prefix, int) else list(prefix), device=tokens.device)
        if len(ends) != len(lengths) or (ends > torch.tensor(lengths, device=tokens.device)).any():
            raise InputError(f"prefix = {prefix} for rows of {list(lengths)} tokens: one for each, none longer")
        return prefix_mask(ends, tokens.size(1))
    if a.attention.mask == "bidirectional" and len(set(lengths)) > 1:
        real = torch.arange(tokens.size(1), device=tokens.device) < torch.tensor(lengths, device=tokens.device)[:, None]
        return padding_mask(real)
    return None


def one_token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a text that is exactly one token; InputError shows the tokens of one that is not."""
    special = tokenizer.special.get(text)
    if special is not None:
        return special
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        shown = " + ".join(repr(tokenizer.token_str(i)) for i in ids)
        raise InputError(f"{text!r} is {len(ids)} tokens, {shown}: give a text that is one, or an id")
    return ids[0]
