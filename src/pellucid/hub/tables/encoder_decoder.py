"""T5, BART, mBART and Marian: an encoder and a decoder, most of which share their token embedding."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import BOUNDS, Entries, FamilyError, format_value
from pellucid.hub.tables.rows import ACTIVATIONS, TIED, ConfigField, Derived, Family, TensorRow


def on_both_stacks(*names: str) -> tuple[str, ...]:
    """The fields of the decoder, and the same fields of the encoder."""
    return (*names, *(f"encoder.{name}" for name in names))


def options_of_both_stacks(**words: Any) -> dict[str, Any]:
    """Options for both stacks; `__` in a keyword stands for a dot."""
    return {name: word for key, word in words.items() for name in on_both_stacks(key.replace("__", "."))}


def sublayer_rows(theirs: str, ours: str, modules: Mapping[str, str], **more: Any) -> tuple[TensorRow, ...]:
    """A row for each module of a block, with the prefixes of both sides."""
    return tuple(TensorRow(f"{theirs}.{name}", f"{ours}.{module}", **more) for name, module in modules.items())


DROPOUT = ("dropout.embed", "dropout.attn_out", "dropout.mlp_out")

# T5 -----------------------------------------------------------------------------------------------


T5_LAYERS = "num_layers|num_hidden_layers"


def decoder_layers(entries: Entries) -> dict[str, Any]:
    """The number of decoder layers; that of the encoder if the entry is missing."""
    most = BOUNDS["n_layers"]
    n_layers = entries.integer(T5_LAYERS, 6, least=0, most=most)
    return {"n_layers": entries.integer("num_decoder_layers", n_layers, n_layers, least=0, most=most)}


def feed_forward(entries: Entries) -> dict[str, Any]:
    """ACTIVATION, or gated-ACTIVATION; gated-gelu uses the tanh approximation.

    transformers also stores what it derived from the entry (dense_act_fn, is_gated_act), which must agree.
    """
    known = [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)]
    said = entries.choice("feed_forward_proj", "relu", known)
    gated, _, name = said.rpartition("-")
    name = "gelu_new" if said == "gated-gelu" else name
    for path, expected in (("dense_act_fn", name), ("is_gated_act", gated == "gated")):
        if entries.has(path) and entries.raw(path) != expected:
            raise FamilyError(
                f"{path} = {format_value(entries.raw(path))} in config.json: feed_forward_proj implies {expected!r}"
            )
    form = "gated" if gated else "plain"
    return options_of_both_stacks(mlp__form=form, mlp__activation=ACTIVATIONS[name])


def feed_forward_proj(a: Architecture) -> dict[str, Any]:
    """The inverse of `feed_forward`."""
    name = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == a.mlp.activation)
    if a.mlp.form == "gated":
        name = "gated-" + ("gelu" if name == "gelu_new" else name)
    return {"feed_forward_proj": name}


def scaled_readout(entries: Entries) -> dict[str, Any]:
    """A tied readout is scaled; an untied one (v1.1, Flan) is not.

    transformers 5 always writes tie_word_embeddings = true, and stores the value it read as scale_decoder_outputs.
    """
    tied = entries.flag("tie_word_embeddings", True)
    scaled = entries.flag("scale_decoder_outputs", tied)
    if scaled and not tied:
        raise FamilyError(
            "scale_decoder_outputs = true and tie_word_embeddings = false in config.json: Pellucid cannot "
            "represent an untied readout that is scaled"
        )
    tied = scaled
    return {"unembed": TIED[tied], "logit_scale": "1/sqrt(d_model)" if tied else "1"}


T5_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}


def t5_stack(theirs: str, cross: bool) -> tuple[TensorRow, ...]:
    """The rows of one stack: an encoder block has two layers, a decoder block three."""
    ours, block = "" if cross else "encoder.", f"{theirs}.block.{{i}}.layer"
    at, last = f"{ours}blocks.{{i}}", f"{block}.{2 if cross else 1}"
    form = "mlp.form" if cross else "encoder.mlp.form"
    rows = (
        TensorRow(f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias", f"{ours}relative"),
        TensorRow(f"{block}.0.layer_norm", f"{at}.norm_1"),
        *sublayer_rows(f"{block}.0.SelfAttention", f"{at}.attn", T5_ATTENTION),
        TensorRow(f"{last}.layer_norm", f"{at}.norm_2"),
        *sublayer_rows(f"{last}.DenseReluDense", f"{at}.mlp", {"wi": "up.0"}, where={form: ("plain",)}),
        *sublayer_rows(
            f"{last}.DenseReluDense", f"{at}.mlp", {"wi_0": "gate", "wi_1": "up.0"}, where={form: ("gated",)}
        ),
        TensorRow(f"{last}.DenseReluDense.wo", f"{at}.mlp.down"),
        TensorRow(f"{theirs}.final_layer_norm", f"{ours}final_norm"),
    )
    crossing = (TensorRow(f"{block}.1.layer_norm", f"{at}.norm_cross"),)
    crossing += sublayer_rows(f"{block}.1.EncDecAttention", f"{at}.cross", T5_ATTENTION)
    return rows + (crossing if cross else ())


def t5_encoder(t5: Family) -> Family:
    """T5EncoderModel: the encoder's part of the T5 tables for a model without a readout."""

    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        return {n.removeprefix("encoder."): v for n, v in values.items() if n.startswith("encoder.")}

    fields = ((f, tuple(own(dict.fromkeys(f.names)))) for f in t5.fields)
    rows = (row for row in t5.rows if row.modules[0].startswith("encoder."))
    return dataclasses.replace(
        t5,
        model_class="T5EncoderModel",
        body="T5EncoderModel",
        fields=tuple(dataclasses.replace(f, ours=names) for f, names in fields if names),
        rows=(
            TensorRow("shared", "embed.token"),
            *(dataclasses.replace(r, ours=r.modules[0].removeprefix("encoder."), where=own(r.where)) for r in rows),
        ),
        derived=(Derived(lambda entries: own(feed_forward(entries)), feed_forward_proj),),
        fixed=own(t5.fixed) | {"readout": "none"},
        constants={},
        optional_tied={"encoder.embed_tokens.weight": "shared.weight"},
        ignored={r"^(decoder|lm_head)\.": "the decoder, which this class does not have"},
        limits={"n_layers": t5.limits["n_layers"]},
        without_effect=dict.fromkeys(
            ("num_decoder_layers", "tie_word_embeddings", "scale_decoder_outputs"), "of the decoder"
        ),
    )


T5 = Family(
    name="t5",
    model_class="T5ForConditionalGeneration",
    prefix="",
    fields=(
        ConfigField("vocab_size", on_both_stacks("n_vocab"), 32_128),
        # the training length: nothing in the model limits the length
        ConfigField("n_positions", on_both_stacks("n_ctx"), 512),
        ConfigField("d_model|hidden_size", on_both_stacks("d_model"), 512),
        ConfigField(T5_LAYERS, "encoder.n_layers", 6),
        ConfigField("num_heads|num_attention_heads", on_both_stacks("attention.n_heads"), 8),
        ConfigField("d_kv|head_dim", on_both_stacks("attention.d_head"), 64),
        ConfigField("d_ff", on_both_stacks("mlp.d_ff"), 2048),
        ConfigField("relative_attention_num_buckets", on_both_stacks("positions.n_buckets"), 32),
        ConfigField("relative_attention_max_distance", on_both_stacks("positions.max_distance"), 128),
        ConfigField("layer_norm_epsilon", on_both_stacks("norm.eps"), 1e-6),
        ConfigField("dropout_rate", on_both_stacks("dropout.pattern", *DROPOUT), 0.1),
    ),
    derived=(
        Derived(decoder_layers, lambda a: {"num_decoder_layers": a.n_layers}),
        Derived(feed_forward, feed_forward_proj),
        Derived(
            scaled_readout,
            lambda a: {"tie_word_embeddings": a.unembed == "tied", "scale_decoder_outputs": a.logit_scale != "1"},
        ),
    ),
    fixed=options_of_both_stacks(
        positions__kind="relative",
        norm__kind="rms",
        attention__scale="1",
        attention__bias="none",
        mlp__bias="none",
    )
    | {"encoder.attention.mask": "bidirectional", "source_embed": "shared"},
    constants={"is_encoder_decoder": True},
    rows=(
        TensorRow("shared", "embed.token"),
        *t5_stack("encoder", cross=False),
        *t5_stack("decoder", cross=True),
        TensorRow("lm_head", "unembed"),
    ),
    optional_tied={f"{part}.embed_tokens.weight": "shared.weight" for part in ("encoder", "decoder")},
    ignored={r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_": "biases that nothing reads"},
    # a stack without layers has no table, because the table is part of the first layer
    limits={
        "n_layers": lambda a: a.n_layers > 0,
        "encoder.n_layers": lambda a: a.encoder is not None and a.encoder.n_layers > 0,
        "logit_scale": lambda a: (a.logit_scale == "1") == (a.unembed == "untied") or a.readout == "none",
    },
)
T5 = dataclasses.replace(T5, encoder=t5_encoder(T5))


# BART ---------------------------------------------------------------------------------------------

BART_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
BART_MLP = {"fc1": "mlp.up.0", "fc2": "mlp.down"}


def bart_stack(theirs: str, cross: bool) -> tuple[TensorRow, ...]:
    """The rows of one stack; rows 0 and 1 of its position table are unused."""
    ours, layer = "" if cross else "encoder.", f"{theirs}.layers.{{i}}"
    at = f"{ours}blocks.{{i}}"
    rows = (
        TensorRow(f"{theirs}.embed_positions", f"{ours}embed.position", position_offset=2),
        TensorRow(f"{theirs}.layernorm_embedding", f"{ours}embed.norm"),
        *sublayer_rows(f"{layer}.self_attn", f"{at}.attn", BART_ATTENTION),
        TensorRow(f"{layer}.self_attn_layer_norm", f"{at}.norm_1"),
        *sublayer_rows(layer, at, BART_MLP),
        TensorRow(f"{layer}.final_layer_norm", f"{at}.norm_2"),
    )
    crossing = (TensorRow(f"{layer}.encoder_attn_layer_norm", f"{at}.norm_cross"),)
    crossing += sublayer_rows(f"{layer}.encoder_attn", f"{at}.cross", BART_ATTENTION)
    return rows + (crossing if cross else ())


BART = Family(
    name="bart",
    model_class="BartForConditionalGeneration",
    prefix="model.",
    fields=(
        ConfigField("vocab_size", on_both_stacks("n_vocab"), 50_265),
        ConfigField("max_position_embeddings", on_both_stacks("n_ctx"), 1024),
        ConfigField("d_model|hidden_size", on_both_stacks("d_model"), 1024),
        ConfigField("encoder_layers|num_hidden_layers", "encoder.n_layers", 12),
        ConfigField("decoder_layers", "n_layers", 12),
        ConfigField("encoder_attention_heads|num_attention_heads", "encoder.attention.n_heads", 16),
        ConfigField("decoder_attention_heads", "attention.n_heads", 16),
        ConfigField("encoder_ffn_dim", "encoder.mlp.d_ff", 4096),
        ConfigField("decoder_ffn_dim", "mlp.d_ff", 4096),
        ConfigField("activation_function", on_both_stacks("mlp.activation"), "gelu", ACTIVATIONS),
        ConfigField("scale_embedding", on_both_stacks("embed_scale"), False, {True: "sqrt(d_model)", False: "1"}),
        ConfigField("attention_dropout", on_both_stacks("dropout.pattern"), 0.0),
        ConfigField("dropout", on_both_stacks(*DROPOUT), 0.1),
    ),
    derived=(
        # if untied, each matrix is separate
        Derived(
            lambda entries: (
                {"unembed": "tied", "source_embed": "shared"}
                if entries.flag("tie_word_embeddings", True)
                else {"unembed": "untied", "source_embed": "own"}
            ),
            lambda a: {"tie_word_embeddings": a.unembed == "tied"},
        ),
    ),
    fixed=options_of_both_stacks(block="post", embed_norm="norm", final_norm="none", norm__kind="layer", norm__eps=1e-5)
    | {"encoder.attention.mask": "bidirectional", "readout": "affine"},
    # the last six occur in files on the hub, whose authors' code read them
    constants={"is_encoder_decoder": True, "normalize_before": False, "normalize_embedding": True}
    | {"add_final_layer_norm": False, "static_position_embeddings": False, "add_bias_logits": False}
    | {"do_blenderbot_90_layernorm": False},
    without_effect={
        "extra_pos_embeddings": "the two rows before the first position, which every model of them has",
        "force_bos_token_to_be_generated": "how texts are drawn",
        "save_step": "how it was trained",
    },
    rows=(
        TensorRow("model.shared", "embed.token", where={"unembed": ("tied",)}),
        TensorRow("model.decoder.embed_tokens", "embed.token", where={"unembed": ("untied",)}),
        TensorRow("model.encoder.embed_tokens", "encoder.embed.token"),
        *bart_stack("model.encoder", cross=False),
        *bart_stack("model.decoder", cross=True),
        TensorRow("lm_head", "unembed"),
        TensorRow("final_logits_bias", "unembed.bias", tensor=True),
    ),
    optional_tied={f"model.{part}.embed_tokens.weight": "model.shared.weight" for part in ("encoder", "decoder")},
    # the class needs this entry, although nothing reads it if nothing is tied
    tied={"model.shared.weight": "model.decoder.embed_tokens.weight"},
    limits={"source_embed": lambda a: (a.source_embed == "shared") == (a.unembed == "tied")},
)


# mBART and Marian ---------------------------------------------------------------------------------

MBART = dataclasses.replace(
    BART,
    name="mbart",
    model_class="MBartForConditionalGeneration",
    body="",
    fixed={**BART.fixed, **options_of_both_stacks(block="pre", final_norm="norm")},
    constants={**BART.constants, "normalize_before": True, "add_final_layer_norm": True},
    rows=(
        *BART.rows,
        TensorRow("model.encoder.layer_norm", "encoder.final_norm"),
        TensorRow("model.decoder.layer_norm", "final_norm"),
    ),
)


def embedding_choices(entries: Entries) -> dict[str, Any]:
    """The decoder's vocabulary, whether the encoder shares its embedding, and whether the readout is tied to it."""
    shared = entries.flag("share_encoder_decoder_embeddings", True)
    tied = entries.flag("tie_word_embeddings", True)
    n_source = entries.integer("vocab_size", 58_101, most=BOUNDS["n_vocab"])
    n_target = entries.integer("decoder_vocab_size", n_source, n_source, most=BOUNDS["n_vocab"])
    if shared and not tied:
        raise FamilyError(
            "share_encoder_decoder_embeddings = true and tie_word_embeddings = false in config.json: transformers "
            "shares nothing if it ties nothing, so set share_encoder_decoder_embeddings to false"
        )
    if shared and n_target != n_source:
        raise FamilyError(
            f"decoder_vocab_size = {n_target} in config.json: share_encoder_decoder_embeddings = true implies "
            f"vocab_size = {n_source}"
        )
    return {"n_vocab": n_target, "unembed": TIED[tied], "source_embed": "shared" if shared else "own"}


def embedding_entries(a: Architecture) -> dict[str, Any]:
    """The inverse of `embedding_choices`."""
    shared, tied = a.source_embed == "shared", a.unembed == "tied"
    return {
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "decoder_vocab_size": a.n_vocab,
    }


MARIAN = dataclasses.replace(
    BART,
    name="marian",
    model_class="MarianMTModel",
    body="MarianModel",
    fields=(
        ConfigField("vocab_size", "encoder.n_vocab", 58_101),
        *(f for f in BART.fields if f.theirs != "vocab_size"),
    ),
    derived=(Derived(embedding_choices, embedding_entries),),
    fixed={
        **BART.fixed,
        **options_of_both_stacks(
            embed_norm="none", positions__kind="sinusoidal", positions__base=10_000.0, positions__layout="halves"
        ),
    },
    constants={**BART.constants, "normalize_embedding": False, "static_position_embeddings": True},
    without_effect={**BART.without_effect, "extra_pos_embeddings": "positions are computed, not learned"},
    rows=(
        TensorRow("model.shared", "embed.token", where={"source_embed": ("shared",)}),
        TensorRow("model.decoder.embed_tokens", "embed.token", where={"source_embed": ("own",)}),
        *(
            row
            for row in BART.rows
            if row.modules[0] not in ("embed.token", *on_both_stacks("embed.position", "embed.norm"))
        ),
    ),
    tied={},
    ignored={r"embed_positions\.weight$": "the sines and cosines of positions, which are computed"},
    limits={"source_embed": lambda a: a.source_embed == "own" or a.unembed == "tied"},
)
