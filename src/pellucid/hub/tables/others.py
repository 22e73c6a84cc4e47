"""OPT, BLOOM and MPT."""

from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError, format_value
from pellucid.hub.tables.rows import ACTIVATIONS, ALL_OR_NONE, QKV, TIED, ConfigField, Derived, Family, TensorRow


def embed_width(entries: Entries) -> dict[str, Any]:
    """The width of the embedding's rows, which are projected unless it is hidden_size (OPT 350m: 512 and 1024)."""
    width, d_model = entries.integer("word_embed_proj_dim", None, None), entries.integer("hidden_size", 768)
    return {"d_embed": 0 if width is None or width == d_model else width}


def opt_norms(entries: Entries) -> dict[str, Any]:
    """Norms before the sublayers and at the end, or after the sublayers."""
    before, no_last = entries.flag("do_layer_norm_before", True), entries.flag("_remove_final_layer_norm", False)
    if not before:
        return {"block": "post", "final_norm": "none"}
    return {"block": "pre", "final_norm": "none" if no_last else "norm"}


OPT = Family(
    name="opt",
    model_class="OPTForCausalLM",
    prefix="model.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50_272),
        ConfigField("max_position_embeddings", "n_ctx", 2048),
        ConfigField("hidden_size", "d_model", 768),
        ConfigField("num_hidden_layers", "n_layers", 12),
        ConfigField("num_attention_heads", "attention.n_heads", 12),
        ConfigField("ffn_dim", "mlp.d_ff", 3072),
        ConfigField("activation_function", "mlp.activation", "relu", ACTIVATIONS),
        ConfigField("enable_bias", ("attention.bias", "mlp.bias"), True, ALL_OR_NONE),
        ConfigField("attention_dropout", "dropout.pattern", 0.0),
        ConfigField("dropout", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(
        # without do_layer_norm_before (350m) there is no final norm either
        Derived(
            opt_norms,
            lambda a: {
                "do_layer_norm_before": a.block == "pre",
                "_remove_final_layer_norm": a.block == "pre" and a.final_norm == "none",
            },
        ),
        Derived(embed_width, lambda a: {"word_embed_proj_dim": a.embed_width}),
    ),
    fixed={"norm.eps": 1e-5, "norm.kind": "layer"},
    constants={"layer_norm_elementwise_affine": True},
    rows=(
        TensorRow("model.decoder.embed_tokens", "embed.token"),
        TensorRow("model.decoder.project_in", "embed.projection"),
        TensorRow("model.decoder.embed_positions", "embed.position", position_offset=2),
        TensorRow("model.decoder.layers.{i}.self_attn_layer_norm", "blocks.{i}.norm_1"),
        TensorRow("model.decoder.layers.{i}.self_attn.q_proj", "blocks.{i}.attn.query"),
        TensorRow("model.decoder.layers.{i}.self_attn.k_proj", "blocks.{i}.attn.key"),
        TensorRow("model.decoder.layers.{i}.self_attn.v_proj", "blocks.{i}.attn.value"),
        TensorRow("model.decoder.layers.{i}.self_attn.out_proj", "blocks.{i}.attn.out"),
        TensorRow("model.decoder.layers.{i}.final_layer_norm", "blocks.{i}.norm_2"),
        TensorRow("model.decoder.layers.{i}.fc1", "blocks.{i}.mlp.up.0"),
        TensorRow("model.decoder.layers.{i}.fc2", "blocks.{i}.mlp.down"),
        TensorRow("model.decoder.final_layer_norm", "final_norm"),
        TensorRow("model.decoder.project_out", "unembed.projection"),
        TensorRow("lm_head", "unembed"),
    ),
    limits={
        "attention.bias": lambda a: a.attention.bias != "none" or a.mlp.bias == "none",
        # what their class without a head gives is projected to the embedding's width
        "d_embed": lambda a: not a.d_embed or a.readout != "none",
        "block": lambda a: a.block != "post" or a.final_norm == "none",
    },
)

BLOOM = Family(
    name="bloom",
    model_class="BloomForCausalLM",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 250_880),
        # the training length: nothing in the model limits the length
        ConfigField("seq_length", "n_ctx", 2048),
        ConfigField("hidden_size|n_embed", "d_model", 64),
        ConfigField("n_layer|num_hidden_layers", "n_layers", 2),
        ConfigField("n_head|num_attention_heads", "attention.n_heads", 8),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("attention_dropout", "dropout.pattern", 0.0),
        ConfigField("hidden_dropout", ("dropout.attn_out", "dropout.mlp_out"), 0.0),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    fixed={"positions.kind": "alibi", "positions.slopes": "interleaved"}
    | {"embed_norm": "norm", "mlp.activation": "gelu_tanh"},
    constants={"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
    without_effect=dict.fromkeys(
        (
            "skip_bias_add",
            "skip_bias_add_qkv",
            "offset_alibi",
            "masked_softmax_fusion",
            "bias_dropout_fusion",
            "attention_softmax_in_fp32",
        ),
        "how Megatron computed it",
    ),
    rows=(
        TensorRow("transformer.word_embeddings", "embed.token"),
        TensorRow("transformer.word_embeddings_layernorm", "embed.norm"),
        TensorRow("transformer.h.{i}.input_layernorm", "blocks.{i}.norm_1"),
        TensorRow("transformer.h.{i}.self_attention.query_key_value", QKV, fused="heads"),
        TensorRow("transformer.h.{i}.self_attention.dense", "blocks.{i}.attn.out"),
        TensorRow("transformer.h.{i}.post_attention_layernorm", "blocks.{i}.norm_2"),
        TensorRow("transformer.h.{i}.mlp.dense_h_to_4h", "blocks.{i}.mlp.up.0"),
        TensorRow("transformer.h.{i}.mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        TensorRow("transformer.ln_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
)


def softmax_scale(entries: Entries) -> dict[str, Any]:
    """The number itself, or 1/sqrt(d_head) if it is null."""
    attention = entries.raw("attn_config")
    if attention is not None and not isinstance(attention, dict):
        raise FamilyError(f"attn_config = {format_value(attention)} in config.json: expected an object")
    scale = entries.number("attn_config.softmax_scale", None, None, above=0)
    if scale is None:
        return {"attention.scale": "1/sqrt(d_head)"}
    return {"attention.scale": "scale_value", "attention.scale_value": scale}


def softmax_scale_to(a: Architecture) -> dict[str, Any]:
    """The inverse of `softmax_scale`."""
    usual = a.attention.scale == "1/sqrt(d_head)"
    return {} if usual else {"attn_config.softmax_scale": a.score_scale}


MPT = Family(
    name="mpt",
    model_class="MptForCausalLM",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50_368),
        ConfigField("max_seq_len", "n_ctx", 2048),
        ConfigField("d_model|hidden_size", "d_model", 2048),
        ConfigField("n_layers|num_hidden_layers", "n_layers", 24),
        ConfigField("n_heads|num_attention_heads", "attention.n_heads", 16),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("resid_pdrop", "dropout.mlp_out", 0.0),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(Derived(softmax_scale, softmax_scale_to),),
    fixed={
        "positions.kind": "alibi",
        "positions.slopes": "interleaved",
        "norm.kind": "layer",
        "norm.bias": "none",
        "attention.bias": "none",
        "mlp.bias": "none",
        "mlp.activation": "gelu",
        "dropout.pattern": 0.0,
    },
    constants={
        "expansion_ratio": 4,
        # transformers accepts only integers
        "attn_config.attn_pdrop": 0,
        "attn_config.alibi": True,
        "attn_config.alibi_bias_max": 8,
        "attn_config.attn_type": "multihead_attention",
        "attn_config.clip_qkv": None,
        "attn_config.qk_ln": False,
        "attn_config.prefix_lm": False,
        "logit_scale": None,
        "no_bias": True,
    },
    rows=(
        TensorRow("transformer.wte", "embed.token"),
        TensorRow("transformer.blocks.{i}.norm_1", "blocks.{i}.norm_1"),
        TensorRow("transformer.blocks.{i}.attn.Wqkv", QKV),
        TensorRow("transformer.blocks.{i}.attn.out_proj", "blocks.{i}.attn.out"),
        TensorRow("transformer.blocks.{i}.norm_2", "blocks.{i}.norm_2"),
        TensorRow("transformer.blocks.{i}.ffn.up_proj", "blocks.{i}.mlp.up.0"),
        TensorRow("transformer.blocks.{i}.ffn.down_proj", "blocks.{i}.mlp.down"),
        TensorRow("transformer.norm_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    without_effect={
        "attn_config": "an object, whose entries are read one by one",
        "attn_config.attn_impl": "how the computation is carried out",
        "attn_config.attn_uses_sequence_id": "their code of today does not read it",
        "learned_pos_emb": "there are no learned positions beside ALiBi",
        "norm_type": "a precision of the norms",
        "embedding_fraction": "the gradient of the embedding alone",
        "emb_pdrop": "their code of today does not read it",
        "init_device": "how the weights were when training began",
        "init_config": "how the weights were when training began",
        "verbose": "what is printed",
    },
)
