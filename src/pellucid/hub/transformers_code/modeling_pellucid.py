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
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
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
from pellucid.hub.transformers_code.inputs_pellucid import (
    TransformersCache,
    inputs_with_padding,
    past_length,
    real_tokens,
)
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.embed import Unembed
from pellucid.model.tables import Table
from pellucid.model.tap import OFF, Recorder, Tap
from pellucid.model.transformer import Backbone, Transformer

# The classes that transformers calls -------------------------------------------------------------


def recorder(n_layers: int, sites: Sequence[str]) -> Tap:
    """A tap that records these tensors of every block."""
    names = [f"blocks.{i}.{site}" for i in range(n_layers) for site in sites]
    return Recorder(names, grad=torch.is_grad_enabled()) if names else OFF


def recorded(tap: Tap, n_layers: int, site: str) -> tuple[Tensor, ...]:
    """The recorded tensor of every block, in order."""
    values = tap.values if isinstance(tap, Recorder) else {}
    return tuple(values[f"blocks.{i}.{site}"] for i in range(n_layers))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss in nats over the labels that are not -100, summed in float32 or better."""
    exact = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(exact, labels.to(logits.device).flatten())


class PellucidPreTrainedModel(PreTrainedModel):
    """The network with the methods that transformers needs to load, save and initialise it."""

    config: PellucidConfig
    config_class = PellucidConfig
    _supports_sdpa = True
    # blocks read tables of the network, so that device_map="auto" leaves all of it on one device
    _no_split_modules: Any = ("Transformer",)

    def __init__(self, config: PellucidConfig):
        super().__init__(config)
        a = config.options
        self.network = Transformer(a)
        self.n_layers, self.n_ctx, self.mask, self.border = a.n_layers, a.n_ctx, a.attention.mask, a.frequency_border
        self.keeps_tokens = bool(a.ngrams) or not a.n_layers
        choose_attention_kernel(self.network, "explicit" if config._attn_implementation == "eager" else "fused")
        self._tied_weights_keys = shared_parameters(self)
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Every further name of a shared parameter -> its first name; not only the embedding may be shared."""
        return dict(self._tied_weights_keys)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """Attention is chosen when a model is loaded: eager computes the pattern explicitly, sdpa does not."""
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
        """The stream after the last block, the cache, and the tap that recorded the tensors at `sites` of
        every block.
        """
        tokens = self.tokens_of(input_ids, inputs_embeds)
        past = self.cache_of(past_key_values, use_cache)
        cache = None if past is None else TransformersCache(past, self.n_layers, self.keeps_tokens)
        n_past, n_new = 0 if cache is None else cache.length, tokens.size(1)
        inputs = inputs_with_padding(self.network, n_past, n_new, attention_mask, position_ids, prefix_length)
        tap = recorder(self.n_layers, sites)
        inputs |= {"segments": token_type_ids, "embeddings": inputs_embeds, **source}
        return self.network.hidden(tokens, cache=cache, tap=tap, **inputs), past, tap

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
        """The stream after the last block of a network without an encoder, with the requested extra outputs."""
        sites = self.sites_of(output_hidden_states, output_attentions, "attn")
        arguments = (input_ids, attention_mask, position_ids, token_type_ids, past_key_values, inputs_embeds, use_cache)
        x, past, tap = self.read(*arguments, prefix_length, sites)
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
        """Encode the source, unless encoder_outputs are given, and return the stream of the target that reads it."""
        if decoder_input_ids is None:
            raise ValueError("decoder_input_ids are missing: pass the target shifted one token to the right")
        sites = self.sites_of(output_hidden_states, output_attentions, "attn", "cross")
        encoded = self.encoded(input_ids, attention_mask, encoder_outputs, sites)
        source: Tensor = encoded[0]
        real = None if attention_mask is None else real_tokens(attention_mask, source.size(1))
        visible = None if real is None else real[:, None].expand(-1, decoder_input_ids.size(1), -1)
        arguments = (decoder_input_ids, decoder_attention_mask, decoder_position_ids, decoder_token_type_ids)
        arguments = (*arguments, past_key_values, None, use_cache, prefix_length, sites)
        x, past, tap = self.read(*arguments, source=source, source_mask=visible)
        return Seq2SeqModelOutput(
            x,
            past,
            **self.outputs_of(tap, sites, x, "decoder_"),
            encoder_last_hidden_state=source,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )

    def encoded(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, encoder_outputs: Any, sites: tuple[str, ...]
    ) -> BaseModelOutput:
        """The encoder's output for the source, or the output that was passed in."""
        if encoder_outputs is not None:
            return (
                encoder_outputs if isinstance(encoder_outputs, BaseModelOutput) else BaseModelOutput(*encoder_outputs)
            )
        if input_ids is None:
            raise ValueError("neither input_ids nor encoder_outputs were given: pass the source")
        asked = {"output_attentions": "attn.pattern" in sites, "output_hidden_states": "resid_pre" in sites}
        return self.get_encoder()(input_ids, attention_mask, **asked)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self if self.network.encoder is None else SourceEncoder(self.network.encoder)

    def tokens_of(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The tokens, or stand-ins for them if embeddings are passed instead."""
        if input_ids is not None:
            return input_ids
        if inputs_embeds is None:
            raise ValueError("neither input_ids nor inputs_embeds were given: pass one of them")
        if self.network.embed.ngrams is not None:
            raise ValueError("this model adds vectors for n-grams of tokens: pass input_ids beside inputs_embeds")
        return torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)

    def cache_of(self, past_key_values: Any, use_cache: bool | None) -> Any:
        """The cache to read and extend: the one that was passed in, or a new one if use_cache asks for it."""
        if self.mask == "bidirectional" and (use_cache or past_key_values is not None):
            raise ValueError(
                "attention.mask = bidirectional: earlier positions read later ones, so nothing can be cached"
            )
        if past_key_values is not None or not use_cache:
            return past_key_values
        decoder = self.network.encoder is not None
        return EncoderDecoderCache(DynamicCache(), DynamicCache()) if decoder else DynamicCache()

    def sites_of(self, hidden_states: bool | None, attentions: bool | None, *names: str) -> tuple[str, ...]:
        """The tensors of every block to record, if the call or the configuration asks for them."""
        hidden_states = self.config.output_hidden_states if hidden_states is None else hidden_states
        attentions = getattr(self.config, "output_attentions", False) if attentions is None else attentions
        return ("resid_pre",) * bool(hidden_states) + tuple(f"{name}.pattern" for name in names) * bool(attentions)

    def outputs_of(self, tap: Tap, sites: tuple[str, ...], x: Tensor, prefix: str = "") -> dict[str, Any]:
        """hidden_states and attentions of a call, under transformers' names."""
        outputs: dict[str, Any] = {}
        if "resid_pre" in sites:
            outputs[f"{prefix}hidden_states"] = (*recorded(tap, self.n_layers, "resid_pre"), x)
        if "attn.pattern" in sites:
            outputs[f"{prefix}attentions"] = recorded(tap, self.n_layers, "attn.pattern")
        if "cross.pattern" in sites:
            outputs["cross_attentions"] = recorded(tap, self.n_layers, "cross.pattern")
        return outputs

    def logits(self, x: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
        """The logits of all positions, of the last `logits_to_keep`, or of those that a tensor lists."""
        at = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return self.network.unembed(x[:, at])

    def with_logits(self, states: Any, logits_to_keep: int | Tensor = 0) -> dict[str, Any]:
        """The entries of an output of the network, with logits in the place of the last stream."""
        entries = dict(states)
        return {"logits": self.logits(entries.pop("last_hidden_state"), logits_to_keep), **entries}


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
        inputs = inputs_with_padding(self.network, 0, input_ids.size(1), attention_mask)
        tap = recorder(self.n_layers, sites)
        x = self.network(input_ids, tap=tap, **inputs)
        hidden = (*recorded(tap, self.n_layers, "resid_pre"), x) if output_hidden_states else None
        return BaseModelOutput(x, hidden, recorded(tap, self.n_layers, "attn.pattern") if output_attentions else None)


class PellucidModel(PellucidPreTrainedModel):
    """The network without its readout: the residual stream after the last block."""

    def __init__(self, config: PellucidConfig):
        super().__init__(config)
        self.states = self.states_of_both if config.is_encoder_decoder else self.states_of_one

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **arguments: Any
    ) -> BaseModelOutputWithPast | Seq2SeqModelOutput:
        """The arguments of PellucidForCausalLM or PellucidForConditionalGeneration, without those about logits."""
        return self.states(input_ids, attention_mask, **arguments)


class PellucidGeneration(PellucidPreTrainedModel, GenerationMixin):
    """`generate` with prefixes, and for texts longer than the context.

    When a text outgrows the context, the older half of the context is dropped and the rest is read again at positions
    0, 1, ..., as `pellucid generate` does.
    """

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. In a model with a prefix mask, the whole prompt is the prefix, unless prefix_length says
        otherwise.
        """
        if self.mask == "bidirectional":
            raise ValueError("attention.mask = bidirectional: there is no next token to predict; fill masked tokens")
        n = self.prompt_length(kwargs.get("input_ids") if inputs is None else inputs, kwargs)
        if self.mask == "prefix":
            kwargs.setdefault("prefix_length", n)
        if n > self.n_ctx or self.border:
            kwargs["prompt_length"] = n
        theirs: Any = super()
        return theirs.generate(inputs, *args, **kwargs)

    def prompt_length(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> int:
        """The number of decoder positions before generation starts, padding included."""
        if not self.config.is_encoder_decoder:
            first_inputs = kwargs.get("inputs_embeds") if input_ids is None else input_ids
            return 1 if first_inputs is None else first_inputs.size(1)
        if (ids := kwargs.get("decoder_input_ids")) is None:
            return 1
        # generate puts the start token first if no row begins with it
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
        """The network's inputs for a step: the tokens that are not cached, and the inputs that go with them.

        Versions of transformers pass the number of new tokens in different ways. Unknown arguments are dropped here:
        `generate`
        has refused those that nobody knows.
        """
        known = inspect.signature(self.forward).parameters.keys() - {"labels"}
        inputs = {name: value for name, value in kwargs.items() if name in known}
        inputs |= {"past_key_values": past_key_values, "prefix_length": prefix_length}
        cached = 0 if past_key_values is None else past_length(past_key_values)
        n_new = next_sequence_length or (input_ids.size(1) if cache_position is None else len(cache_position))
        part = "decoder_" if self.config.is_encoder_decoder else ""
        if inputs_embeds is not None and not cached:
            return inputs | {"inputs_embeds": inputs_embeds}
        if (input_ids.size(1) > self.n_ctx or self.border) and inputs_embeds is None:
            input_ids, n_new = self.last_part(input_ids, inputs, f"{part}attention_mask", cached, n_new, prompt_length)
        n_new = n_new if cached else input_ids.size(1)
        for name in ("position_ids", "token_type_ids"):
            if (value := inputs.get(part + name)) is not None:
                inputs[part + name] = value[..., -n_new:]
        return inputs | {f"{part}input_ids": input_ids[:, -n_new:]}

    def last_part(
        self, input_ids: Tensor, inputs: dict[str, Any], own: str, cached: int, n_new: int, prompt_length: int | None
    ) -> tuple[Tensor, int]:
        """The columns inside some row's window, and how many of them are not cached.

        This changes `inputs` to fit them, and empties the cache if a window moved. `own` is the name of the mask of
        these tokens.
        """
        n, mask, past = input_ids.size(1), inputs.get(own), inputs["past_key_values"]
        if inputs.get("use_cache") and n_new > 1 and n != prompt_length and n > min(self.n_ctx, self.border or n):
            border = f"positions.n_trained = {self.border}" if self.border else f"the context of {self.n_ctx}"
            raise ValueError(
                f"tokens were guessed ahead beyond {border}, where the text before them is read afresh: "
                "generate fewer tokens, or without assistant_model and prompt_lookup_num_tokens"
            )
        lengths = input_ids.new_full(input_ids.shape[:1], n) if mask is None else mask.sum(1).to(input_ids.device)
        prompts = lengths - n + (prompt_length or 0)
        starts = window_starts(prompts, lengths, self.n_ctx)
        moved = not cached or bool((starts != window_starts(prompts, lengths - n_new, self.n_ctx)).any())
        if self.border:  # longer texts have other frequencies
            moved |= bool(((lengths - starts - n_new <= self.border) & (self.border < lengths - starts)).any())
        if moved and past is not None:
            past.crop(-cached)
        first = n - lengths + starts
        cut = int(first.min())
        inputs[own] = (torch.arange(n, device=first.device) >= first[:, None])[:, cut:].long()
        inputs |= {name: None for name in ("position_ids", "decoder_position_ids") if name in inputs}
        if inputs["prefix_length"] is not None:
            inputs["prefix_length"] = torch.as_tensor(inputs["prefix_length"] - cut).clamp(min=0)
        return input_ids[:, cut:], n - cut if moved else n_new


def window_starts(prompts: Tensor, lengths: Tensor, n_ctx: int) -> Tensor:
    """The first token that is read of each text, given the texts' lengths and the lengths of their prompts.

    A prompt keeps its last n_ctx tokens; whenever one token more than the context would be read, the older half of it
    is dropped.
    """
    first, hop = (prompts - n_ctx).clamp(min=0), max(1, n_ctx // 2)
    excess = (lengths - first - n_ctx).clamp(min=0)
    return first + (excess + hop - 1) // hop * hop


class PellucidForCausalLM(PellucidGeneration):
    """The network with its readout: logits of the next token at each position."""

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
        position_ids     of each token; by default 0, 1, ..., without counting padding
        token_type_ids   the kind of segment of each token, for architectures with n_segments
        past_key_values  a DynamicCache, which is read and extended; use_cache makes one
        inputs_embeds    vectors in the place of the tokens' embeddings
        labels           the tokens themselves, -100 where none is scored: the loss is that of each after those before
        prefix_length    how many of the first columns all read each other, for models with a prefix mask
        """
        arguments = (input_ids, attention_mask, position_ids, token_type_ids, past_key_values, inputs_embeds, use_cache)
        states = self.states_of_one(*arguments, output_attentions, output_hidden_states, prefix_length)
        out = self.with_logits(states, logits_to_keep)
        loss = None if labels is None else cross_entropy(out["logits"][:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss=loss, **out)


class PellucidForMaskedLM(PellucidPreTrainedModel):
    """The network with its readout: logits of the token at each position, masked ones included."""

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
        """The arguments of PellucidForCausalLM; `labels` are the original tokens, -100 where none is scored.

        use_cache may only be False: earlier positions read later ones, so nothing can be cached.
        """
        arguments = (input_ids, attention_mask, position_ids, token_type_ids, None, inputs_embeds, use_cache)
        out = self.with_logits(self.states_of_one(*arguments, output_attentions, output_hidden_states))
        loss = None if labels is None else cross_entropy(out["logits"], labels)
        return MaskedLMOutput(loss=loss, **out)


class PellucidForConditionalGeneration(PellucidGeneration):
    """Encoder and decoder with the readout: logits of the target's next token at each position."""

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
        """Logits of the target's tokens given the source `input_ids`, in which `attention_mask` is 0 for padding.

        labels            the target, its end among it, -100 where none is scored
        decoder_input_ids the target one to the right, after the start token; by default made from the labels
        encoder_outputs   what the encoder made of the source, in the place of input_ids
        past_key_values   an EncoderDecoderCache, which is read and extended; use_cache makes one
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        arguments = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, decoder_position_ids)
        arguments = (*arguments, decoder_token_type_ids, encoder_outputs, past_key_values, use_cache)
        states = self.states_of_both(*arguments, output_attentions, output_hidden_states, prefix_length)
        out = self.with_logits(states, logits_to_keep)
        loss = None if labels is None else cross_entropy(out["logits"], labels)
        return Seq2SeqLMOutput(loss=loss, **out)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels shifted one to the right, after the start token; unscored labels become padding."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ValueError("config.decoder_start_token_id is not set: pass decoder_input_ids, or set it")
        first = labels.new_full((labels.size(0), 1), start)
        return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == -100, start)], 1)
