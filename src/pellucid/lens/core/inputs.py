"""Texts or ids as one padded batch, with the other inputs of a forward pass."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.generate.text import Generated
from pellucid.model.mask import padding_mask, prefix_mask
from pellucid.text.tokenizers.base import MASK, Tokenizer
from pellucid.text_model import Model

#: the input of a network: a text, texts, ids, rows of ids, or what `generate` returned
Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor | Generated


class InputError(ValueError):
    """Texts, ids or options that are wrong for this model."""


@dataclass(frozen=True)
class Inputs:
    """One batch, the input of a forward pass.

    tokens       [b, n], rows shorter than the longest padded on the right with id 0
    lengths      of each row
    mask         True where a query may read a key [b, n, n], None for the architecture's own rule
    segments     kind of each token [b, n], None for all of kind 0
    source       the input of an encoder, None where there is none
    prefixes     how many tokens of each row every position may read, where attention.mask = prefix; (): none
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    mask: Tensor | None = None
    segments: Tensor | None = None
    source: "Inputs | None" = None
    prefixes: tuple[int, ...] = ()

    @property
    def predicted(self) -> Tensor:
        """True where a token after the first is predicted from tokens before it alone: not in a prefix, nor in padding
        [b, n - 1].
        """
        start = torch.tensor(self.prefixes or (0,) * len(self.lengths), device=self.tokens.device)
        return self.real[:, 1:] & (torch.arange(1, self.tokens.size(1), device=self.tokens.device) >= start[:, None])

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


class InputOptions(TypedDict, total=False):
    """How texts are read, for every function that takes texts; see `read_inputs`."""

    bos: bool | None
    source: Texts | None
    segments: Sequence[int] | Sequence[Sequence[int]] | Tensor | None
    prefix: int | Sequence[int]


def read_inputs(
    model: Model,
    texts: Texts,
    *,
    bos: bool | None = None,
    source: Texts | None = None,
    segments: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
    prefix: int | Sequence[int] = 0,
) -> Inputs:
    """Turn texts, ids, a batch of either, or what `generate` returned into one padded batch.

    bos       None adds what generating and filling add: before a text what the model's own tokenizer puts there
              (`Tokenizer.before`, such as <bos>; one made by Pellucid puts nothing there), after a text of a masked
              model what it puts there (`Tokenizer.after`), and before the target of an encoder-decoder the start token
              of training (`Tokenizer.start`). True adds the same, but the separator where nothing would stand before a
              text, and before every target in the place of the start token. False adds nothing. Ids are never
              changed
    source    the encoder's input; the separator is appended to a text, as in training
    segments  the segment number of each token, where the architecture has n_segments
    prefix    the number of tokens of each row that form the prefix, where attention.mask = prefix

    Raises InputError.
    """
    a, device, tokenizer = model.architecture, model.network.embed.token.weight.device, model.tokenizer
    if (source is not None) != (a.encoder is not None):
        remedy = "has no encoder: leave source out" if a.encoder is None else "reads a source: pass source=..."
        raise InputError(f"this architecture {remedy}")
    if isinstance(texts, Generated):
        prefix = len(texts.prompt_ids) if a.attention.mask == "prefix" else 0
        texts = [*texts.prompt_ids, *texts.ids]
    rows = _rows(texts, tokenizer, _role_of(a) if a.encoder is None else "target", bos)
    tokens, lengths = _padded(rows, a, device)
    prefixes = _prefixes(a, lengths, prefix)
    mask, kinds = _mask(a, lengths, prefixes, tokens), _segments(a, segments, tokens)
    if source is None:
        return Inputs(tokens, lengths, mask, kinds, prefixes=prefixes)
    assert a.encoder is not None
    source_rows = _rows(source, tokenizer, "source")
    source_rows = source_rows * len(rows) if len(source_rows) == 1 else source_rows
    if len(source_rows) != len(rows):
        raise InputError(f"{len(source_rows)} sources for {len(rows)} targets: give one for each, or one for all")
    source_tokens, source_lengths = _padded(source_rows, a.encoder, device)
    encoded = Inputs(source_tokens, source_lengths, _mask(a.encoder, source_lengths, (), source_tokens))
    return Inputs(tokens, lengths, mask, kinds, encoded, prefixes)


def last_tokens(model: Model, text: str, bos: bool | None = None) -> tuple[str | list[int], str]:
    """A text that a model without an encoder reads whole, and ""; or its last tokens, and a sentence that says so."""
    n_ctx = model.architecture.n_ctx
    ids = _ids(text, model.tokenizer, _role_of(model.architecture), bos)
    if len(ids) <= n_ctx:
        return text, ""
    return ids[-n_ctx:], f"This text has {len(ids):,} tokens; this model reads {n_ctx:,}: the last {n_ctx:,} are shown."


Role = Literal["text", "masked", "target", "source"]


def _role_of(a: Architecture) -> Role:
    """What a text is to a model without an encoder."""
    return "masked" if a.attention.mask == "bidirectional" else "text"


def _rows(texts: Any, tokenizer: Tokenizer, role: Role, bos: bool | None = None) -> list[list[int]]:
    """The ids of each row."""
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, Tensor):
        texts = texts.tolist()
    rows = list(texts)
    if rows and not isinstance(rows[0], str | list | tuple | Tensor):
        rows = [rows]
    return [_ids(row, tokenizer, role, bos) for row in rows]


def _ids(text: Any, tokenizer: Tokenizer, role: Role, bos: bool | None) -> list[int]:
    """The ids of one text, in which blanks are mask tokens, and what is read beside it; ids are returned unchanged."""
    if not isinstance(text, str):
        return [operator.index(i) for i in text]
    # other projects' names of the mask token are blanks only where a model fills blanks
    ids = tokenizer.blanked_ids(text) if role == "masked" or MASK in tokenizer.special else tokenizer.encode(text)
    if role == "source":
        return tokenizer.source_ids(ids)
    if bos is False:
        return ids
    if role == "target":
        return [tokenizer.separator if bos else tokenizer.start, *ids]
    lead = tokenizer.opening if bos else tokenizer.before
    return [*lead, *ids, *(tokenizer.after if role == "masked" else ())]


def _padded(rows: list[list[int]], a: Architecture, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """Rows as one tensor, and their lengths. Raises InputError for empty or too long rows and unknown ids."""
    if not rows:
        raise InputError("no text was given: pass a text, ids, or a list of either")
    for r, ids in enumerate(rows):
        if not ids:
            raise InputError(f"text {r} has no token: give some text, or bos=True, which puts a token before it")
        if len(ids) > a.n_ctx:
            raise InputError(f"text {r} has {len(ids):,} tokens, and this model reads at most {a.n_ctx:,}: give fewer")
        if outside := [i for i in ids if not 0 <= i < a.n_vocab]:
            raise InputError(f"text {r} holds id {outside[0]}: this network knows 0 to {a.n_vocab - 1}")
    lengths = tuple(len(ids) for ids in rows)
    if min(lengths) <= a.frequency_border < max(lengths):
        raise InputError(
            f"texts of {min(lengths)} to {max(lengths)} tokens: longrope has other frequencies for those of more than "
            f"positions.n_trained = {a.frequency_border}; give both kinds apart"
        )
    padded = [ids + [0] * (max(lengths) - len(ids)) for ids in rows]
    return torch.tensor(padded, device=device), lengths


def _segments(a: Architecture, segments: Any, tokens: Tensor) -> Tensor | None:
    """The kind of each token [b, n], None where none are given. Raises InputError for another shape or kind."""
    if segments is None:
        return None
    expected = f"give one number from 0 to {a.n_segments - 1} for each of {tokens.size(1)} tokens of {len(tokens)} rows"
    if not a.n_segments:
        raise InputError("segments were given, but n_segments = 0: leave segments out")
    try:
        kinds = torch.as_tensor(segments, device=tokens.device).expand_as(tokens).clone()
    except (RuntimeError, ValueError, TypeError):
        raise InputError(f"segments = {segments!r:.200}: {expected}") from None
    if kinds.is_floating_point() or not ((kinds >= 0) & (kinds < a.n_segments)).all():
        raise InputError(f"segments = {segments!r:.200}: {expected}")
    return kinds


def _prefixes(a: Architecture, lengths: tuple[int, ...], prefix: int | Sequence[int]) -> tuple[int, ...]:
    """The length of each row's prefix, () where none is given. Raises InputError for others than 0 to the row's."""
    ends = (prefix,) * len(lengths) if isinstance(prefix, int) else tuple(prefix)
    if not any(ends):
        return ()
    if a.attention.mask != "prefix":
        raise InputError(f"prefix was given, but attention.mask = {a.attention.mask}: leave prefix out")
    if len(ends) != len(lengths) or not all(0 <= end <= n for end, n in zip(ends, lengths, strict=True)):
        raise InputError(
            f"prefix = {prefix} for rows of {list(lengths)} tokens: give one number for each row, from 0 to its length"
        )
    return ends


def _mask(a: Architecture, lengths: tuple[int, ...], prefixes: tuple[int, ...], tokens: Tensor) -> Tensor | None:
    """The mask for padding or a prefix. A causal mask needs none, since no token reads the padding on its right."""
    if prefixes:
        return prefix_mask(torch.tensor(prefixes, device=tokens.device), tokens.size(1))
    if a.attention.mask == "bidirectional" and len(set(lengths)) > 1:
        real = torch.arange(tokens.size(1), device=tokens.device) < torch.tensor(lengths, device=tokens.device)[:, None]
        return padding_mask(real)
    return None


def one_token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a text that is exactly one token. Raises InputError, which shows the tokens, for other texts."""
    special = tokenizer.special.get(text)
    if special is not None:
        return special
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        shown = " + ".join(repr(tokenizer.token_str(i)) for i in ids)
        raise InputError(f"{text!r} is {len(ids)} tokens, {shown}: give a text that is one, or an id")
    return ids[0]
