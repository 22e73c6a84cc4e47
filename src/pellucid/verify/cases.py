"""Calls of a network, and the texts that the reference reads for each row of a call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.generate.readers import visible_keys
from pellucid.model import OFF, Tap, Transformer
from pellucid.model.mask import padding_mask
from pellucid.tensor_names import axes

ALL_ROWS = slice(None)


@dataclass(frozen=True)
class ReferenceText:
    """One text as the reference reads it, and the columns of a call that hold it.

    tokens, segments, source  [1, n] each; `source` are the tokens that the encoder reads
    positions                 [n]
    mask, source_mask         what the text may read, if the call has a mask for it
    columns, source_columns   the columns of the text and its source in the call
    """

    tokens: Tensor
    segments: Tensor | None = None
    source: Tensor | None = None
    positions: Tensor | None = None
    mask: Tensor | None = None
    source_mask: Tensor | None = None
    columns: slice = field(default_factory=lambda: ALL_ROWS)
    source_columns: slice = field(default_factory=lambda: ALL_ROWS)


@dataclass(frozen=True)
class NetworkCall:
    """One call of a network.

    name    what is special about it
    tokens  [batch, n]
    inputs  the other inputs of the call, by name; `encoder_mask` is the mask of the encoder's own call
    rows    the text that the reference reads for each row of the batch
    """

    name: str
    tokens: Tensor
    inputs: dict[str, Tensor]
    rows: tuple[ReferenceText, ...]

    def run(self, network: Transformer, tap: Tap = OFF) -> Tensor:
        """The logits of the network on the CPU, without gradients."""
        with torch.no_grad():
            return self.call(network, tap)

    def call(self, network: Transformer, tap: Tap = OFF) -> Tensor:
        """The logits of the network on the CPU."""
        device = next(network.parameters()).device
        inputs: dict[str, Any] = {name: value.to(device) for name, value in self.inputs.items()}
        encoder_mask = inputs.pop("encoder_mask", None)
        if "source" in inputs:
            inputs["source"] = network.encode(inputs["source"], encoder_mask, tap)
        return network(self.tokens.to(device), tap=tap, **inputs).cpu()


def single_text(a: Architecture, tokens: Tensor, name: str = "", **more_inputs: Tensor) -> NetworkCall:
    """A call with one text [1, n], with the inputs that the architecture needs and `more_inputs`."""
    inputs: dict[str, Any] = {} if a.encoder is None else {"source": source_of(a, tokens)}
    if a.n_segments:
        inputs["segments"] = segments(a, tokens.size(1))
    inputs |= more_inputs
    return NetworkCall(name, tokens, inputs, (ReferenceText(tokens, **inputs),))


def padded_batch(a: Architecture, texts: Sequence[Tensor], side: str) -> NetworkCall:
    """Texts [1, n] of different lengths in one call, padded on the `left` (as generation does) or on the `right`.

    The padding consists of tokens, so that a network that reads it gives other numbers. Sources are padded on the
    right.
    """
    width = max(text.size(1) for text in texts)
    columns = [columns_of(text.size(1), width, side) for text in texts]
    sources = [] if a.encoder is None else [source_of(a, text) for text in texts]
    kinds = [segments(a, text.size(1), first) for first, text in enumerate(texts)] if a.n_segments else []
    source_columns = [columns_of(source.size(1), width, "right") for source in sources]

    tokens = scatter_rows(texts, columns, torch.arange(width) % a.n_vocab)
    inputs = padding_inputs(a, columns, width, side)
    if kinds:
        inputs["segments"] = scatter_rows(kinds, columns, torch.zeros(width, dtype=torch.long))
    if a.encoder is not None:
        source_width = max(source.size(1) for source in sources)
        real = real_columns(source_columns, source_width)
        inputs["source"] = scatter_rows(sources, source_columns, torch.arange(source_width) % a.encoder.n_vocab)
        inputs |= {"encoder_mask": padding_mask(real), "source_mask": real[:, None].expand(-1, width, -1)}
    rows = [
        ReferenceText(
            text,
            kinds[r] if kinds else None,
            sources[r] if sources else None,
            columns=columns[r],
            source_columns=source_columns[r] if sources else ALL_ROWS,
        )
        for r, text in enumerate(texts)
    ]
    return NetworkCall(f"a batch padded on the {side}", tokens, inputs, tuple(rows))


def padding_inputs(a: Architecture, columns: Sequence[slice], width: int, side: str) -> dict[str, Tensor]:
    """The mask and the positions of a padded batch."""
    inputs, real = {}, real_columns(columns, width)
    lengths = [int(length) for length in real.sum(1)]
    if a.attention.mask == "bidirectional":
        inputs["mask"] = padding_mask(real)
    elif side == "left":
        mask = visible_keys(lengths, [0] * len(lengths), real.device)
        inputs |= {} if mask is None else {"mask": mask}
    # the largest position of a row says which frequencies longrope has
    if side == "left" or a.frequency_border:
        inputs["positions"] = (real.cumsum(1) - 1).clamp(min=0)
    return inputs


def columns_of(length: int, width: int, side: str) -> slice:
    """The columns of `length` tokens in `width` columns that are padded on this side."""
    return slice(width - length, width) if side == "left" else slice(0, length)


def real_columns(columns: Sequence[slice], width: int) -> Tensor:
    """Which columns hold a token rather than padding, bool [batch, width]."""
    real = torch.zeros(len(columns), width, dtype=torch.bool)
    for r, own in enumerate(columns):
        real[r, own] = True
    return real


def scatter_rows(values: Sequence[Tensor], columns: Sequence[slice], padding: Tensor) -> Tensor:
    """Put rows [1, n] of different lengths into their columns, with `padding` [width] elsewhere: [batch, width]."""
    filled = padding.repeat(len(values), 1)
    for r, own in enumerate(columns):
        filled[r, own] = values[r]
    return filled


@dataclass(frozen=True)
class TextSlice:
    """The part of a call's tensors that belongs to one text: its row, its queries, its readable keys, its source."""

    row: int
    queries: slice
    keys: slice
    source: slice

    def columns(self, name: str) -> dict[str, slice]:
        """The columns of the text on the axes i and j of a tensor.

        Keys and values are those of the call itself: only scores and patterns show what a cache holds.
        """
        if name.startswith("encoder."):
            return {"i": self.source, "j": self.source}
        if ".cross." in name:
            return {"i": self.queries, "j": self.source}
        return {"i": self.queries, "j": self.keys if has_key_axis(name) else self.queries}

    def of_call(self, name: str, value: Any) -> Any:
        """The part of a call's tensor that belongs to the text [1, ...]; scores and patterns keep every key, padding
        too.
        """
        own = self.columns(name)
        if has_key_axis(name):
            own["j"] = ALL_ROWS
        return value[(slice(self.row, self.row + 1), *(own.get(axis, ALL_ROWS) for axis in axes(name)[1:]))]

    def with_all_keys(self, name: str, value: np.ndarray, n_keys: int) -> np.ndarray:
        """A tensor of the text alone, with all n_keys keys of the call: other keys get score -inf and weight 0."""
        keys = self.columns(name).get("j", ALL_ROWS)
        if not has_key_axis(name) or keys == ALL_ROWS:
            return value
        values = np.full((*value.shape[:-1], n_keys), -np.inf if name.endswith(".scores") else 0.0)
        values[..., keys] = value
        return values


def has_key_axis(name: str) -> bool:
    """Whether the last axis of a tensor is keys: scores and patterns."""
    return name.endswith((".scores", ".pattern"))


def segments(a: Architecture, n: int, first: int = 0) -> Tensor:
    """All kinds of segments in turn, starting with `first` [1, n]."""
    return ((torch.arange(n) * a.n_segments // n + first) % a.n_segments)[None]


def source_of(a: Architecture, tokens: Tensor) -> Tensor:
    """The tokens as a source, cut to the encoder's vocabulary and context."""
    assert a.encoder is not None
    return tokens[:, : a.encoder.n_ctx] % a.encoder.n_vocab
