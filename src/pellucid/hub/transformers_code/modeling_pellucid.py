"""The model of this folder for transformers: its network, and the classes that the auto classes open.

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)

This file needs torch and transformers. Pellucid wrote it from its own source: first come the network's modules, each
with the equation that it computes, then the classes that transformers calls.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from pellucid.hub.transformers_code.configuration_pellucid import PellucidConfig
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.cache import NoCache
from pellucid.model.embed import Unembed
from pellucid.model.mask import causal, everything
from pellucid.model.tables import Table
from pellucid.model.tap import OFF, Recorder, Tap
from pellucid.model.transformer import Backbone, Transformer

# The classes that transformers calls -------------------------------------------------------------


class TransformersCache(NoCache):
    """A cache of transformers as the network reads and extends one.

    Layer l keeps the keys and values of block l. Where n-grams reach back to earlier tokens, one more layer behind
    these keeps the tokens, so that beam search reorders and `crop` crops them together with the keys.
    """

    def __init__(self, past: DynamicCache | EncoderDecoderCache, n_layers: int, keeps_tokens: bool):
        self.both = past
        self.own = past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past
        self.length, self.n_layers, self.keeps_tokens = past_length(past), n_layers, keeps_tokens

    def __getitem__(self, layer: int) -> "CacheOfLayer":
        return CacheOfLayer(self, layer)

    def remember(self, tokens: Tensor) -> Tensor:
        """The tokens read so far, these among them; these alone where nothing reaches back."""
        if not self.keeps_tokens:
            return tokens
        while len(self.own.layers) <= self.n_layers:
            self.own.layers.append(DynamicLayer())
        column = tokens[:, None, :, None]
        return self.own.update(column, column, self.n_layers)[0][:, 0, :, 0]


class CacheOfLayer(NoCache):
    """One layer of a cache of transformers, as its block's attention sees it."""

    def __init__(self, cache: TransformersCache, layer: int):
        self.cache, self.layer, self.length = cache, layer, cache.length

    def of_source(self) -> "NoCache":
        return CacheOfSource(self.cache.both, self.layer)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to now, the new ones behind the kept ones."""
        return self.cache.own.update(k, v, self.layer)


class CacheOfSource(NoCache):
    """Keys and values of an encoder's output in one layer: computed at the first call and kept."""

    def __init__(self, both: Any, layer: int):
        self.both, self.layer = both, layer

    def recall(self, compute: Any) -> tuple[Tensor, Tensor]:
        cross = self.both.cross_attention_cache
        if not self.both.is_updated.get(self.layer):
            self.both.is_updated[self.layer] = True
            return cross.update(*compute(), self.layer)
        return cross.layers[self.layer].keys, cross.layers[self.layer].values


def past_length(past: Any) -> int:
    """How many positions a cache keeps; ValueError for a kind of cache that this model cannot fill."""
    each = (past.self_attention_cache, past.cross_attention_cache) if isinstance(past, EncoderDecoderCache) else (past,)
    if wrong := [cache for cache in each if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False)]:
        raise ValueError(
            f"past_key_values is a {type(wrong[0]).__name__}: this model fills a DynamicCache that is not offloaded, "
            "which is what generate makes unless cache_implementation says otherwise"
        )
    return int(each[0].get_seq_length())


def real_tokens(attention_mask: Tensor, n: int) -> Tensor | None:
    """Which of n positions hold tokens, bool [batch, n]; None where all do.

    Raises ValueError for a mask of another shape, and for padding between two tokens, which would tear them apart.
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
    """`positions` and `mask` of n_new tokens behind n_past: counted without the padding, which nobody reads."""
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
    visible = (everything if a.attention.mask == "bidirectional" else causal)(i, j)
    if prefix_length is not None:
        visible = visible | (j < torch.as_tensor(prefix_length, device=j.device).reshape(-1, 1, 1))
    if real is not None:
        # padding reads itself: a row with nothing to read would not be a number
        visible = (visible & real.to(j.device)[:, None]) | (i == j)
    return {"positions": position_ids, "mask": visible}


def check_prefix(mask: str, n_past: int, prefix_length: int | Tensor) -> None:
    """Refuse a prefix where none is read, and one of which only a part is in the cache."""
    if mask != "prefix":
        raise ValueError(f"prefix_length was given to a model with attention.mask = {mask}: leave it out")
    longest = int(torch.as_tensor(prefix_length).max())
    if 0 < n_past < longest:
        raise ValueError(
            f"the cache keeps {n_past} positions of a prefix of {longest}, whose tokens all read each other: read the "
            "whole prefix in one call"
        )


def recorder(n_layers: int, sites: Sequence[str]) -> Tap:
    """A tap that keeps these tensors of every block."""
    names = [f"blocks.{i}.{site}" for i in range(n_layers) for site in sites]
    return Recorder(names, grad=torch.is_grad_enabled()) if names else OFF


def kept(tap: Tap, n_layers: int, site: str) -> tuple[Tensor, ...]:
    """What the recorder kept of every block, in order."""
    values = tap.values if isinstance(tap, Recorder) else {}
    return tuple(values[f"blocks.{i}.{site}"] for i in range(n_layers))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss in nats over the labels that are not -100, summed in float32 or better."""
    exact = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(exact, labels.to(logits.device).flatten())


class PellucidPreTrainedModel(PreTrainedModel):
    """The network, and what transformers asks of every model: how to load, save and initialise it."""

    config: PellucidConfig
    config_class = PellucidConfig
    _supports_sdpa = True

    def __init__(self, config: PellucidConfig):
        super().__init__(config)
        a = config.options
        self.network = Transformer(a)
        self.n_layers, self.n_ctx, self.mask = a.n_layers, a.n_ctx, a.attention.mask
        self.keeps_tokens = bool(a.ngrams) or not a.n_layers
        choose_attention_kernel(self.network, "written_out" if config._attn_implementation == "eager" else "fused")
        self._tied_weights_keys = shared_parameters(self)
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Every further name of a shared parameter -> its first name; more than the embedding may be shared."""
        return dict(self._tied_weights_keys)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """How attention is computed is chosen when a model is loaded: eager writes the pattern out, sdpa does not."""
        return False

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        """There are no experts."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.network.embed.token

    def get_output_embeddings(self) -> nn.Module:
        return self.network.unembed

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise ValueError(
            "the vocabulary of this model has a fixed size: train a model with the vocabulary that you want"
        )

    def _init_weights(self, module: nn.Module) -> None:
        """Random weights for `from_config`, and the tables that no file holds, rounded from float64."""
        super()._init_weights(module)
        if isinstance(module, Unembed):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Table):
            dtype = torch.promote_types(module.values.dtype, torch.float32)
            module.values = module.exact.to(module.values.device, dtype)

    def read(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        prefix_length: int | Tensor | None = None,
        sites: tuple[str, ...] = (),
        **source: Tensor | None,
    ) -> tuple[Tensor, Any, Tap]:
        """The stream behind the last block, the cache, and the tap that kept the tensors at `sites` of every block."""
        tokens = self.tokens_of(input_ids, inputs_embeds)
        past = self.cache_of(past_key_values, use_cache)
        cache = None if past is None else TransformersCache(past, self.n_layers, self.keeps_tokens)
        n_past, n_new = 0 if cache is None else cache.length, tokens.size(1)
        given = inputs_with_padding(self.network, n_past, n_new, attention_mask, position_ids, prefix_length)
        tap = recorder(self.n_layers, sites)
        given |= {"segments": token_type_ids, "embeddings": inputs_embeds, **source}
        return Backbone.forward(self.network, tokens, cache=cache, tap=tap, **given), past, tap

    def states_of_one(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        prefix_length: int | Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """The stream behind the last block of a network without an encoder, and what was asked for beside it."""
        sites = self.sites_of(output_hidden_states, output_attentions, "attn")
        given = (input_ids, attention_mask, position_ids, token_type_ids, past_key_values, inputs_embeds, use_cache)
        x, past, tap = self.read(*given, prefix_length, sites)
        return BaseModelOutputWithPast(x, past, **self.outputs_of(tap, sites, x))

    def states_of_both(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        decoder_token_type_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        prefix_length: int | Tensor | None = None,
    ) -> Seq2SeqModelOutput:
        """The source encoded, unless encoder_outputs are given, and the stream of the target that reads it."""
        if decoder_input_ids is None:
            raise ValueError("decoder_input_ids are missing: pass the tokens before each that is to be predicted")
        sites = self.sites_of(output_hidden_states, output_attentions, "attn", "cross")
        encoded = self.encoded(input_ids, attention_mask, encoder_outputs, sites)
        source: Tensor = encoded[0]
        real = None if attention_mask is None else real_tokens(attention_mask, source.size(1))
        visible = None if real is None else real[:, None].expand(-1, decoder_input_ids.size(1), -1)
        given = (decoder_input_ids, decoder_attention_mask, decoder_position_ids, decoder_token_type_ids)
        given = (*given, past_key_values, None, use_cache, prefix_length, sites)
        x, past, tap = self.read(*given, source=source, source_mask=visible)
        return Seq2SeqModelOutput(
            x,
            past,
            **self.outputs_of(tap, sites, x, "decoder_"),
            encoder_last_hidden_state=source,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    def encoded(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, given: Any, sites: tuple[str, ...]
    ) -> BaseModelOutput:
        """What the encoder makes of the source, or made of it before."""
        if given is not None:
            return given if isinstance(given, BaseModelOutput) else BaseModelOutput(*given)
        if input_ids is None:
            raise ValueError("neither input_ids nor encoder_outputs were given: pass the source")
        asked = {"output_attentions": "attn.pattern" in sites, "output_hidden_states": "resid_pre" in sites}
        return self.get_encoder()(input_ids, attention_mask, **asked)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self if self.network.encoder is None else SourceEncoder(self.network.encoder)

    def tokens_of(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The tokens, or stand-ins for them where vectors are given in their place."""
        if input_ids is not None:
            return input_ids
        if inputs_embeds is None:
            raise ValueError("neither input_ids nor inputs_embeds were given: pass one of them")
        if self.network.embed.ngrams is not None:
            raise ValueError("this model adds vectors for n-grams of tokens: pass input_ids beside inputs_embeds")
        return torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)

    def cache_of(self, past_key_values: Any, use_cache: bool | None) -> Any:
        """The cache to read and extend: the one given, or a new one where one is asked for."""
        if self.mask == "bidirectional" and (use_cache or past_key_values is not None):
            raise ValueError(
                "attention.mask = bidirectional: earlier positions read later ones, so nothing can be kept"
            )
        if past_key_values is not None or not use_cache:
            return past_key_values
        decoder = self.network.encoder is not None
        return EncoderDecoderCache(DynamicCache(), DynamicCache()) if decoder else DynamicCache()

    def sites_of(self, hidden_states: bool | None, attentions: bool | None, *names: str) -> tuple[str, ...]:
        """The tensors to keep of every block, where the call or the configuration asks for them."""
        hidden_states = self.config.output_hidden_states if hidden_states is None else hidden_states
        attentions = getattr(self.config, "output_attentions", False) if attentions is None else attentions
        return ("resid_pre",) * bool(hidden_states) + tuple(f"{name}.pattern" for name in names) * bool(attentions)

    def outputs_of(self, tap: Tap, sites: tuple[str, ...], x: Tensor, prefix: str = "") -> dict[str, Any]:
        """hidden_states and attentions of a call, as transformers calls them."""
        found: dict[str, Any] = {}
        if "resid_pre" in sites:
            found[f"{prefix}hidden_states"] = (*kept(tap, self.n_layers, "resid_pre"), x)
        if "attn.pattern" in sites:
            found[f"{prefix}attentions"] = kept(tap, self.n_layers, "attn.pattern")
        if "cross.pattern" in sites:
            found["cross_attentions"] = kept(tap, self.n_layers, "cross.pattern")
        return found

    def logits(self, x: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
        """The logits of all positions, of the last so many, or of those that a tensor names."""
        at = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return self.network.unembed(x[:, at])


def shared_parameters(model: nn.Module) -> dict[str, str]:
    """Every further name of a parameter that several modules share -> its first name."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    pairs = [(name, first.setdefault(id(p), name)) for name, p in named]
    return {name: source for name, source in pairs if name != source}


class SourceEncoder(nn.Module):
    """The encoder of an encoder-decoder, as transformers calls it."""

    def __init__(self, network: Backbone):
        super().__init__()
        self.network, self.n_layers = network, network.architecture.n_layers

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """The encoder's output for source tokens [batch, pos]; 0 in attention_mask marks padding."""
        sites = ["resid_pre"] * bool(output_hidden_states) + ["attn.pattern"] * bool(output_attentions)
        given = inputs_with_padding(self.network, 0, input_ids.size(1), attention_mask)
        tap = recorder(self.n_layers, sites)
        x = self.network(input_ids, tap=tap, **given)
        hidden = (*kept(tap, self.n_layers, "resid_pre"), x) if output_hidden_states else None
        return BaseModelOutput(x, hidden, kept(tap, self.n_layers, "attn.pattern") if output_attentions else None)


class PellucidModel(PellucidPreTrainedModel):
    """The network without its readout: the residual stream behind the last block."""

    def __init__(self, config: PellucidConfig):
        super().__init__(config)
        self.states = self.states_of_both if config.is_encoder_decoder else self.states_of_one

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **given: Any
    ) -> BaseModelOutputWithPast | Seq2SeqModelOutput:
        """The arguments of PellucidForCausalLM or PellucidForConditionalGeneration, without those about logits."""
        return self.states(input_ids, attention_mask, **given)


class PellucidGeneration(PellucidPreTrainedModel, GenerationMixin):
    """`generate` with prefixes, and for texts longer than the context.

    Where a text outgrows the context, the older half of the context is dropped and the rest is read afresh at
    positions 0, 1, ..., as `pellucid generate` does.
    """

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. The whole prompt is the prefix of a model with a prefix mask, unless prefix_length says
        otherwise."""
        if self.mask == "bidirectional":
            raise ValueError("attention.mask = bidirectional: there is no next token to predict; fill masked tokens")
        n = self.prompt_length(kwargs.get("input_ids") if inputs is None else inputs, kwargs)
        if self.mask == "prefix":
            kwargs.setdefault("prefix_length", n)
        if n > self.n_ctx:
            kwargs["prompt_length"] = n
        theirs: Any = super()
        return theirs.generate(inputs, *args, **kwargs)

    def prompt_length(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> int:
        """The positions that the decoder is given before it writes, the padding among them."""
        if not self.config.is_encoder_decoder:
            given = kwargs.get("inputs_embeds") if input_ids is None else input_ids
            return 1 if given is None else given.size(1)
        if (ids := kwargs.get("decoder_input_ids")) is None:
            return 1
        # generate puts the start in front where no row begins with it
        start = kwargs.get("decoder_start_token_id", self.generation_config.decoder_start_token_id)
        return ids.size(1) + bool((ids[:, 0] != start).all())

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        prefix_length: int | Tensor | None = None,
        prompt_length: int | None = None,
        next_sequence_length: int | None = None,
        cache_position: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """What the network is given at a step: the tokens that the cache does not keep, and what goes with them.

        Versions of transformers say in different ways how many those are. What `forward` does not know is left out:
        `generate` has refused what nobody knows.
        """
        known = inspect.signature(self.forward).parameters.keys() - {"labels"}
        given = {name: value for name, value in kwargs.items() if name in known}
        given |= {"past_key_values": past_key_values, "prefix_length": prefix_length}
        cached = 0 if past_key_values is None else past_length(past_key_values)
        n_new = next_sequence_length or (input_ids.size(1) if cache_position is None else len(cache_position))
        part = "decoder_" if self.config.is_encoder_decoder else ""
        if inputs_embeds is not None and not cached:
            return given | {"inputs_embeds": inputs_embeds}
        if input_ids.size(1) > self.n_ctx and inputs_embeds is None:
            input_ids, n_new = self.last_part(input_ids, given, f"{part}attention_mask", cached, n_new, prompt_length)
        n_new = n_new if cached else input_ids.size(1)
        for name in ("position_ids", "token_type_ids"):
            if (value := given.get(part + name)) is not None:
                given[part + name] = value[..., -n_new:]
        return given | {f"{part}input_ids": input_ids[:, -n_new:]}

    def last_part(
        self, input_ids: Tensor, given: dict[str, Any], own: str, cached: int, n_new: int, prompt_length: int | None
    ) -> tuple[Tensor, int]:
        """The columns that are in some row's window, and how many of them are not in the cache.

        What is given is changed to fit them, and the cache is emptied where a window has moved. `own` is the name of
        the mask of these tokens.
        """
        n, mask, past = input_ids.size(1), given.get(own), given["past_key_values"]
        if given.get("use_cache") and n_new > 1 and n != prompt_length:
            raise ValueError(
                f"tokens were guessed ahead beyond the context of {self.n_ctx}, where the text before them is read "
                "afresh: generate fewer tokens, or without assistant_model and prompt_lookup_num_tokens"
            )
        lengths = input_ids.new_full(input_ids.shape[:1], n) if mask is None else mask.sum(1).to(input_ids.device)
        prompts = lengths - n + (prompt_length or 0)
        starts = window_starts(prompts, lengths, self.n_ctx)
        moved = not cached or bool((starts != window_starts(prompts, lengths - n_new, self.n_ctx)).any())
        if moved and past is not None:
            past.crop(-cached)
        first = n - lengths + starts
        cut = int(first.min())
        given[own] = (torch.arange(n, device=first.device) >= first[:, None])[:, cut:].long()
        given |= {name: None for name in ("position_ids", "decoder_position_ids") if name in given}
        if given["prefix_length"] is not None:
            given["prefix_length"] = torch.as_tensor(given["prefix_length"] - cut).clamp(min=0)
        return input_ids[:, cut:], n - cut if moved else n_new


def window_starts(prompts: Tensor, lengths: Tensor, n_ctx: int) -> Tensor:
    """The first token of each text that is read, when the texts have these lengths and began with these prompts.

    A prompt keeps its last n_ctx tokens; whenever one token more than the context would be read, the older half of it
    is dropped.
    """
    first, hop = (prompts - n_ctx).clamp(min=0), max(1, n_ctx // 2)
    excess = (lengths - first - n_ctx).clamp(min=0)
    return first + (excess + hop - 1) // hop * hop


class PellucidForCausalLM(PellucidGeneration):
    """The network with its readout: logits of the token after each one."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        prefix_length: int | Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, pos, n_vocab] of the token after each of `input_ids` [batch, pos].

        attention_mask   1 for tokens and 0 for padding, which nobody reads [batch, cached and new positions]
        position_ids     of each token; 0, 1, ... without the padding unless given
        token_type_ids   the kind of segment of each token, for architectures with n_segments
        past_key_values  a DynamicCache, which is read and extended; use_cache makes one
        inputs_embeds    vectors in the place of the tokens' embeddings
        labels           the tokens themselves, -100 where none is scored: the loss is that of each after those before
        prefix_length    how many of the first columns all read each other, for models with a prefix mask
        """
        given = (input_ids, attention_mask, position_ids, token_type_ids, past_key_values, inputs_embeds, use_cache)
        out = dict(self.states_of_one(*given, output_attentions, output_hidden_states, prefix_length))
        logits = self.logits(out.pop("last_hidden_state"), logits_to_keep)
        loss = None if labels is None else cross_entropy(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss=loss, logits=logits, **out)


class PellucidForMaskedLM(PellucidPreTrainedModel):
    """The network with its readout: logits of what stands at each position, hidden tokens among them."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        """The arguments of PellucidForCausalLM; `labels` are the tokens to find, -100 where none is scored.

        use_cache may be False alone: nothing can be kept where earlier positions read later ones.
        """
        given = (input_ids, attention_mask, position_ids, token_type_ids, None, inputs_embeds, use_cache)
        out = dict(self.states_of_one(*given, output_attentions, output_hidden_states))
        logits = self.logits(out.pop("last_hidden_state"))
        loss = None if labels is None else cross_entropy(logits, labels)
        return MaskedLMOutput(loss=loss, logits=logits, **out)


class PellucidForConditionalGeneration(PellucidGeneration):
    """Encoder and decoder with the readout: logits of the target's token after each one."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        decoder_token_type_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        prefix_length: int | Tensor | None = None,
    ) -> Seq2SeqLMOutput:
        """Logits of the target's tokens given the source `input_ids`, of which `attention_mask` marks the padding.

        labels            the target, its end among it, -100 where none is scored
        decoder_input_ids the same, one to the right behind the start; made of the labels unless given
        encoder_outputs   what the encoder made of the source, in the place of input_ids
        past_key_values   an EncoderDecoderCache, which is read and extended; use_cache makes one
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        given = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, decoder_position_ids)
        given = (*given, decoder_token_type_ids, encoder_outputs, past_key_values, use_cache)
        out = dict(self.states_of_both(*given, output_attentions, output_hidden_states, prefix_length))
        logits = self.logits(out.pop("last_hidden_state"), logits_to_keep)
        loss = None if labels is None else cross_entropy(logits, labels)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **out)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels one to the right, behind the start; what is not scored is padding."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ValueError("config.decoder_start_token_id is not set: pass decoder_input_ids, or set it")
        first = labels.new_full((labels.size(0), 1), start)
        return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == -100, start)], 1)
