"""Faults as programmers make them, each planted into a network that is right, and where `verify` is to find it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model import OFF, Cache, Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.block import PreBlock, PreCrossBlock
from pellucid.model.cache import CachedSource, CacheLayer
from pellucid.model.embed import Embed, NGrams
from pellucid.model.kernels import FusedAttention
from pellucid.model.mask import Mask, attend_everywhere, causal
from pellucid.model.positions import Alibi, Learned, RotaryTable

BASE = Architecture(n_vocab=257, n_ctx=16, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2, "mlp.d_ff": 12})
LONG = {"n_ctx": 128}
ROTARY = {"positions.kind": "rotary"}
#: texts of more than 9 tokens have other frequencies
TWO_LISTS = ROTARY | {"n_ctx": 16, "attention.d_head": 8, "positions.scaling": "longrope", "positions.n_trained": 9}
TWO_LISTS |= {"positions.long_factors": (2.0, 3.5, 8.0, 9.0)}
NGRAMS = {"ngrams": (2, 3), "ngram_rows": 7}

Plant = Callable[[Transformer, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """One fault: what the architecture needs for it, how it is planted, the law that it breaks and the first tensor.

    encoder   the architecture reads an encoder of the same options
    """

    plant: Plant
    first: str
    fields: dict[str, Any] = field(default_factory=dict)
    law: str = "engine = reference"
    encoder: bool = False


# How faults are planted ---------------------------------------------------------------------------


def put(at: str, name: str, value: Any) -> Plant:
    """Another attribute of one of the network's modules."""

    def plant(network: Transformer, patch: pytest.MonkeyPatch) -> None:
        setattr(network.get_submodule(at) if at else network, name, value)

    return plant


def become(at: str, kind: type) -> Plant:
    """One of the network's modules of another class."""
    return put(at, "__class__", kind)


def replace_method(kind: type, name: str, method: Callable[..., Any]) -> Plant:
    """Another method of a class that no network holds."""
    return lambda network, patch: patch.setattr(kind, name, method)


def masks_become(kind: type) -> Plant:
    """The masks of all layers of another class."""

    def plant(network: Transformer, patch: pytest.MonkeyPatch) -> None:
        for block in network.blocks:
            block.attn.mask.__class__ = kind

    return plant


# Structure ----------------------------------------------------------------------------------------


class Transposed(nn.Linear):
    """x W + b where x W^T + b is meant."""

    def forward(self, input):
        return F.linear(input, self.weight.T, self.bias)


class FusedScale(FusedAttention):
    """The fused kernel forgets the scale, the explicit one does not."""

    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


class AlwaysDropping(nn.Dropout):
    """Dropout in evaluation too."""

    def forward(self, input):
        return F.dropout(input, 0.5, training=True)


def fused_becomes(kind: type) -> Plant:
    """The second block's fused kernel of another class."""

    def plant(network: Transformer, patch: pytest.MonkeyPatch) -> None:
        attention = network.blocks[1].attn
        attention.fused.__class__ = kind
        attention.kernel = attention.fused

    return plant


def unmask(network: Transformer, patch: pytest.MonkeyPatch | None = None) -> None:
    """The first block reads later tokens."""
    network.blocks[0].attn.mask.rule, network.blocks[0].attn.mask.plain = attend_everywhere, False


def untie(network: Transformer, patch: pytest.MonkeyPatch) -> None:
    """A readout of its own where the architecture says tied, as after a move that copies parameters."""
    network.unembed.weight = nn.Parameter(network.unembed.weight.detach() * 1.01)


def round_turns(network: Transformer, patch: pytest.MonkeyPatch) -> None:
    """Sines and cosines went through bfloat16."""
    network.rotary_table.values = network.rotary_table.values.bfloat16().to(network.rotary_table.values.dtype)


def norm_first(network: Transformer, patch: pytest.MonkeyPatch) -> None:
    """The first block's attention reads a norm, without a gain, of the stream."""
    network.blocks[0].norm_1 = Unnamed(8, elementwise_affine=False)


class Unnamed(nn.LayerNorm):
    """A norm that no tap sees."""

    def forward(self, x, tap=OFF, name=""):
        return super().forward(x)


class NoSegments(Embed):
    """Segments that are given are forgotten."""

    def forward(self, tokens, history, positions, segments, *rest):
        return super().forward(tokens, history, positions, None, *rest)


#: test_verify moves every tensor by itself: here are faults of another kind than a wrong product
STRUCTURE = {
    "query transposed": Fault(become("blocks.1.attn.query", Transposed), "blocks.1.attn.q"),
    "mask gone": Fault(unmask, "blocks.0.attn.scores"),
    "scale 1 in the fast path alone": Fault(fused_becomes(FusedScale), "blocks.1.attn.z"),
    "the readout's other activation": Fault(put("unembed", "f", torch.tanh), "logits", {"readout": "bert"}),
    "dropout left on": Fault(put("blocks.0", "drop_attn", AlwaysDropping()), "blocks.0.attn_out"),
    "tied weights apart": Fault(untie, "unembed.weight"),
    "angles that lost their digits": Fault(round_turns, "rotary_table.values", ROTARY),
    "segments forgotten": Fault(become("embed", NoSegments), "seg_embed", {"n_segments": 2}),
    "an encoder that cannot look ahead": Fault(
        lambda network, patch: unmask_the_other_way(network), "encoder.blocks.0.attn.scores", encoder=True
    ),
}


def unmask_the_other_way(network: Transformer) -> None:
    network.encoder.blocks[0].attn.mask.rule = causal
    network.encoder.blocks[0].attn.mask.unlimited = False


# Positions and windows beyond the prompts -----------------------------------------------------------


class ClampedRows(Learned):
    """Rows beyond the forty-eighth are that one."""

    def forward(self, input):
        return super().forward(input.clamp(max=48))


class ClampedFar(Learned):
    """Rows beyond 1,024 are that one."""

    def forward(self, input):
        return super().forward(input.clamp(max=1024))


class RoundedTurns(RotaryTable):
    """Positions in bfloat16, which has no odd numbers beyond 256."""

    def forward(self, positions):
        return super().forward(positions.bfloat16().long().clamp(max=positions.max()))


class ClampedFarSlopes(Alibi):
    """Distances grow up to 1,100."""

    def score_bias(self, i, j):
        return -self.values[:, None, None] * (i - j).abs().clamp(max=1100)


class WindowlessWhenLong(FusedAttention):
    """The fused kernel takes the causal flag for long rows, whatever the window."""

    def forward(self, q, k, v, mask):
        if q.size(2) > 48:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return super().forward(q, k, v, mask)


class FlagOfPlain(Mask):
    """Whoever asks is told that the causal flag says it all."""

    def is_causal(self, n_queries, n_keys, given):
        return given is None and n_queries == n_keys and n_keys > 48


def slopes_become(kind: type) -> Plant:
    def plant(network: Transformer, patch: pytest.MonkeyPatch) -> None:
        for block in network.blocks:
            block.attn.mask.position_bias.__class__ = kind

    return plant


LONG_ROW, LATER, MASKS = "a long row = reference", "later positions = reference", "masks up to n_ctx = reference"
WINDOWS = {"attention.windows": (60, 0)}
WIDE = {"n_ctx": 1500, "attention.windows": (0, 1200), "attention.n_heads": 1}

FAR = {
    "learned positions clamped": Fault(become("embed.position", ClampedRows), "pos_embed", LONG, LONG_ROW),
    "learned positions clamped beyond 1,024": Fault(
        become("embed.position", ClampedFar), "pos_embed", {"n_ctx": 1500, "n_layers": 1, "attention.n_heads": 1}, LATER
    ),
    "rotary positions in bfloat16": Fault(
        become("rotary_table", RoundedTurns), "blocks.0.attn.rot_q", {"n_ctx": 400} | ROTARY, LONG_ROW
    ),
    "alibi's distances clamped beyond 1,024": Fault(
        slopes_become(ClampedFarSlopes),
        "blocks.0.attn.scores",
        {"n_ctx": 1500, "n_layers": 1, "attention.n_heads": 1, "positions.kind": "alibi"},
        MASKS,
    ),
    "a window of 60 read as 61": Fault(
        put("blocks.0.attn.mask", "window", 61), "blocks.0.attn.scores", LONG | WINDOWS, LONG_ROW
    ),
    "a window of 1,200 read as 1,199": Fault(
        put("blocks.1.attn.mask", "window", 1199), "blocks.1.attn.scores", WIDE, MASKS
    ),
    "a window that the fused kernel forgets": Fault(
        fused_becomes(WindowlessWhenLong), "blocks.1.attn.z", LONG | {"attention.windows": (0, 60)}, LONG_ROW
    ),
    "the causal flag in the place of a wide window": Fault(
        become("blocks.1.attn.mask", FlagOfPlain), "blocks.1.attn.scores", WIDE, MASKS
    ),
}


# Batches ------------------------------------------------------------------------------------------


class FirstMask(Mask):
    """All rows read what the first may read."""

    def forward(self, n_queries, n_keys, given, like):
        return super().forward(n_queries, n_keys, None if given is None else given[:1], like)


class NoPadding(Mask):
    """A mask for each row is forgotten; one for all rows is not."""

    def forward(self, n_queries, n_keys, given, like):
        given = given if given is None or given.ndim == 2 or len(given) == 1 else None
        return super().forward(n_queries, n_keys, given, like)

    def is_causal(self, n_queries, n_keys, given):
        given = given if given is None or given.ndim == 2 or len(given) == 1 else None
        return super().is_causal(n_queries, n_keys, given)


class FirstTurns(RotaryTable):
    """All rows have the first one's positions."""

    def forward(self, positions):
        return super().forward(positions[0] if positions.ndim == 2 else positions)


class KeysOfTheNeighbour(MultiHeadAttention):
    """Every row reads the keys of the row before it."""

    def project_qkv(self, x, y, cache=None):
        q, k, v = super().project_qkv(x, y, cache)
        return q, k.roll(1, 0), v


class MeanMLP(PreBlock):
    """The MLP reads the mean over the batch."""

    def feed_forward(self, x, tap):
        return super().feed_forward(x.mean(0, keepdim=True).expand_as(x), tap)


class PaddedNGrams(NGrams):
    """An n-gram may begin in what stands before the text."""

    def forward(self, history, positions):
        return super().forward(history, torch.full_like(positions, max(map(int, self.tables))))


class FirstSegments(Embed):
    """All rows have the first one's segments."""

    def forward(self, tokens, history, positions, segments, *rest):
        segments = segments if segments is None else segments[:1].expand_as(tokens)
        return super().forward(tokens, history, positions, segments, *rest)


class ForgetfulCross(PreCrossBlock):
    """Cross-attention reads all of the source, padding too."""

    def cross_attend(self, x, reading, cache, tap):
        return super().cross_attend(x, type(reading)(reading.rotation, reading.visible, reading.source), cache, tap)


def neighbour(network: Transformer, patch: pytest.MonkeyPatch) -> None:
    attention = network.blocks[1].attn
    attention.__class__ = KeysOfTheNeighbour
    attention.project = attention.project_qkv


class EncodesPadding(Transformer):
    """The encoder is not told what is padding."""

    def encode(self, tokens, mask=None, tap=OFF):
        return super().encode(tokens, None, tap)


BATCH = "a batch = its rows"
BATCHES = {
    "the first row's mask for all rows": Fault(masks_become(FirstMask), "blocks.0.attn.scores", law=BATCH),
    "padding is read": Fault(masks_become(NoPadding), "blocks.0.attn.scores", law=BATCH),
    "the first row's positions for all rows": Fault(
        become("rotary_table", FirstTurns), "blocks.0.attn.rot_q", ROTARY, BATCH
    ),
    "keys of the neighbouring row": Fault(neighbour, "blocks.1.attn.k", law=BATCH),
    "an MLP that reads the mean of the batch": Fault(become("blocks.1", MeanMLP), "blocks.1.mlp.pre", law=BATCH),
    "n-grams that begin in the padding": Fault(become("embed.ngrams", PaddedNGrams), "ngram_embed", NGRAMS, BATCH),
    "the first row's segments for all rows": Fault(
        become("embed", FirstSegments), "seg_embed", {"n_segments": 3}, BATCH
    ),
    "an encoder that reads padding": Fault(
        become("", EncodesPadding), "encoder.blocks.0.attn.scores", law=BATCH, encoder=True
    ),
    "a source's mask forgotten": Fault(
        become("blocks.1", ForgetfulCross), "blocks.1.cross.scores", law=BATCH, encoder=True
    ),
}


# Caches -------------------------------------------------------------------------------------------

EXTEND = CacheLayer.extend


def extend_backwards(self, k, v):
    end = self.length + k.size(2)
    self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = k, v
    return self.keys[:, :, :end].flip(2), self.values[:, :, :end]


def extend_keys_alone(self, k, v):
    """Values of later calls are not kept: the first one stands in their places."""
    keys, values = EXTEND(self, k, v)
    if self.length:
        values[:, :, self.length :] = values[:, :, :1]
    return keys, values


def recall_the_first_layer(self, compute):
    """All layers read the first one's keys and values of the source."""
    if 0 not in self.kept:
        self.kept[0] = compute()
    return self.kept[0]


class CountsFromZero(Transformer):
    """Every call counts its positions from 0, whatever the cache keeps."""

    def positions_after(self, start, tokens):
        return super().positions_after(0, tokens)


CACHED = "cached = uncached"
CACHES = {
    "a cache in the wrong order": Fault(
        replace_method(CacheLayer, "extend", extend_backwards), "blocks.0.attn.scores", law=CACHED
    ),
    "a cache that keeps no later values": Fault(
        replace_method(CacheLayer, "extend", extend_keys_alone), "blocks.0.attn.z", law=CACHED
    ),
    "a cache that forgets the tokens": Fault(
        replace_method(Cache, "remember", lambda self, tokens: tokens), "ngram_embed", NGRAMS, CACHED
    ),
    "positions counted from 0 in each call": Fault(become("", CountsFromZero), "pos_embed", law=CACHED),
    "the first layer's keys of the source for all": Fault(
        replace_method(CachedSource, "recall", recall_the_first_layer), "blocks.1.cross.k", law=CACHED, encoder=True
    ),
}


FAULTS = STRUCTURE | FAR | BATCHES | CACHES
