"""What the network reads besides tokens when transformers calls it: a cache, and positions and masks for padding."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from pellucid.model.cache import NoCache
from pellucid.model.mask import attend_everywhere, causal
from pellucid.model.transformer import Backbone


class TransformersCache(NoCache):
    """A cache of transformers with the interface that the network uses.

    Layer l holds the keys and values of block l. If n-grams reach back to earlier tokens, one more layer after these
    holds the tokens, so that beam search reorders them and `crop` crops them together with the keys.
    """

    def __init__(self, past: DynamicCache | EncoderDecoderCache, n_layers: int, keeps_tokens: bool):
        self.both = past
        self.own = past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past
        self.length, self.n_layers, self.keeps_tokens = past_length(past), n_layers, keeps_tokens

    def __getitem__(self, layer: int) -> "CacheOfLayer":
        return CacheOfLayer(self, layer)

    def remember(self, tokens: Tensor) -> Tensor:
        """All tokens read so far, including these; only these if nothing reaches back."""
        if not self.keeps_tokens:
            return tokens
        while len(self.own.layers) <= self.n_layers:
            self.own.layers.append(DynamicLayer())
        column = tokens[:, None, :, None]
        return self.own.update(column, column, self.n_layers)[0][:, 0, :, 0]


class CacheOfLayer(NoCache):
    """One layer of a transformers cache, with the interface that a block's attention uses."""

    def __init__(self, cache: TransformersCache, layer: int):
        self.cache, self.layer, self.length = cache, layer, cache.length

    def of_source(self) -> "NoCache":
        return CacheOfSource(self.cache.both, self.layer)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, with the new ones at the end."""
        return self.cache.own.update(k, v, self.layer)


class CacheOfSource(NoCache):
    """The keys and values of an encoder's output in one layer, computed at the first call."""

    def __init__(self, both: Any, layer: int):
        self.both, self.layer = both, layer

    def recall(self, compute: Any) -> tuple[Tensor, Tensor]:
        cross = self.both.cross_attention_cache
        if not self.both.is_updated.get(self.layer):
            self.both.is_updated[self.layer] = True
            return cross.update(*compute(), self.layer)
        return cross.layers[self.layer].keys, cross.layers[self.layer].values


def past_length(past: Any) -> int:
    """The number of cached positions. Raises ValueError for a kind of cache that this model cannot fill."""
    each = (past.self_attention_cache, past.cross_attention_cache) if isinstance(past, EncoderDecoderCache) else (past,)
    if wrong := [cache for cache in each if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False)]:
        raise ValueError(
            f"past_key_values is a {type(wrong[0]).__name__}: this model fills a DynamicCache that is not offloaded, "
            "which is what generate makes unless cache_implementation says otherwise"
        )
    return int(each[0].get_seq_length())


def real_tokens(attention_mask: Tensor, n: int) -> Tensor | None:
    """Which of n positions hold tokens, bool [batch, n]; None if all do.

    Raises ValueError for a mask of another shape, and for padding between two tokens.
    """
    if attention_mask.ndim != 2 or attention_mask.size(1) != n:
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)}: expected [batch, {n}], one entry for each token, "
            "those in the cache included"
        )
    real = attention_mask.bool()
    if real.all():
        return None
    begins = torch.cat([real[:, :1], real[:, 1:] & ~real[:, :-1]], 1)
    if (begins.sum(1) > 1).any():
        raise ValueError(
            "attention_mask has padding between two tokens: pad on the left (tokenizer.padding_side = 'left'), "
            "or on the right where nothing is generated"
        )
    return real


def inputs_with_padding(
    network: Backbone,
    n_past: int,
    n_new: int,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    prefix_length: int | Tensor | None = None,
) -> dict[str, Tensor | None]:
    """`positions` and `mask` of n_new tokens after n_past; padding is not counted and nobody reads it."""
    a, n = network.architecture, n_past + n_new
    real = None if attention_mask is None else real_tokens(attention_mask, n)
    if prefix_length is not None:
        check_prefix(a.attention.mask, n_past, prefix_length)
    if position_ids is None and real is not None:
        position_ids = (real.cumsum(1) - 1).clamp(min=0)[:, n_past:]
    if position_ids is not None and n > a.n_ctx and (last := int(position_ids.max())) >= a.n_ctx:
        raise ValueError(f"position {last} was given to a model whose context has {a.n_ctx}: pass fewer tokens")
    if real is None and prefix_length is None:
        return {"positions": position_ids, "mask": None}
    j = torch.arange(n, device=network.embed.token.weight.device)
    i = j[n_past:, None]
    visible = (attend_everywhere if a.attention.mask == "bidirectional" else causal)(i, j)
    if prefix_length is not None:
        visible = visible | (j < torch.as_tensor(prefix_length, device=j.device).reshape(-1, 1, 1))
    if real is not None:
        # padding attends to itself: a row with nothing to attend to would not be a number
        visible = (visible & real.to(j.device)[:, None]) | (i == j)
    return {"positions": position_ids, "mask": visible}


def check_prefix(mask: str, n_past: int, prefix_length: int | Tensor) -> None:
    """Raise ValueError for a prefix that the model does not use, or of which only a part is cached."""
    if mask != "prefix":
        raise ValueError(f"prefix_length was given to a model with attention.mask = {mask}: leave it out")
    longest = int(torch.as_tensor(prefix_length).max())
    if 0 < n_past < longest:
        raise ValueError(
            f"the cache keeps {n_past} positions of a prefix of {longest}, whose tokens all read each other: read the "
            "whole prefix in one call"
        )
