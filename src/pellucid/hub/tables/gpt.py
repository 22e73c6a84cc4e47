"""GPT and its successors: learned positions, or rotary ones in GPT-NeoX."""

import dataclasses
import itertools
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import BOUNDS, Entries, FamilyError, format_value
from pellucid.hub.tables.rotary import EVEN_PART, rotary
from pellucid.hub.tables.rows import (
    ACTIVATIONS,
    POSITION_IDS,
    QKV,
    TIED,
    ConfigField,
    Derived,
    Family,
    TensorRow,
    visible_windows,
)

#: GPT-2 has two names for each size; transformers reads both
SIZES = (
    ConfigField("vocab_size", "n_vocab", 50257),
    ConfigField("n_positions|max_position_embeddings", "n_ctx", 1024),
    ConfigField("n_embd|hidden_size", "d_model", 768),
    ConfigField("n_layer|num_hidden_layers", "n_layers", 12),
    ConfigField("n_head|num_attention_heads", "attention.n_heads", 12),
)

#: entries of StarCoder's files
ANOTHER_PROGRAM = ("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "pad_key_length")
ANOTHER_PROGRAM += ("max_sequence_length", "max_batch_size")
#: OpenAI's files state the context twice
N_CTX = {"n_ctx": "n_positions says it"}
#: and say how the vocabulary was laid out
SPECIAL = dict.fromkeys(("n_special", "predict_special_tokens"), "which rows the embedding has; vocab_size says it")

GPT2 = Family(
    name="gpt2",
    model_class="GPT2LMHeadModel",
    prefix="transformer.",
    fields=(
        *SIZES,
        ConfigField("n_inner", "mlp.d_ff", 0, null=0),
        ConfigField("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("scale_attn_weights", "attention.scale", True, {True: "1/sqrt(d_head)", False: "1"}),
        ConfigField("embd_pdrop", "dropout.embed", 0.1),
        ConfigField("attn_pdrop", "dropout.pattern", 0.1),
        ConfigField("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    constants={
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    rows=(
        TensorRow("transformer.wte", "embed.token"),
        TensorRow("transformer.wpe", "embed.position"),
        TensorRow("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        TensorRow("transformer.h.{i}.attn.c_attn", QKV, transposed=True),
        TensorRow("transformer.h.{i}.attn.c_proj", "blocks.{i}.attn.out", transposed=True),
        TensorRow("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        TensorRow("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0", transposed=True),
        TensorRow("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down", transposed=True),
        TensorRow("transformer.ln_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.(masked_)?bias$": "the causal mask, written out"},
    without_effect={**N_CTX, **SPECIAL},
)

GPT_NEOX = Family(
    name="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50432),
        ConfigField("max_position_embeddings", "n_ctx", 2048),
        ConfigField("hidden_size", "d_model", 6144),
        ConfigField("num_hidden_layers", "n_layers", 44),
        ConfigField("num_attention_heads", "attention.n_heads", 64),
        ConfigField("intermediate_size", "mlp.d_ff", 24576),
        ConfigField("hidden_act", "mlp.activation", "gelu", ACTIVATIONS),
        ConfigField("layer_norm_eps", "norm.eps", 1e-5),
        ConfigField("attention_bias", "attention.bias", True, {True: "all", False: "none"}),
        ConfigField("use_parallel_residual", "block", True, {True: "parallel", False: "pre"}),
        ConfigField("attention_dropout", "dropout.pattern", 0.0),
        ConfigField("hidden_dropout", ("dropout.embed", "dropout.attn_out", "dropout.mlp_out"), 0.0),
        ConfigField("tie_word_embeddings", "unembed", False, TIED),
    ),
    derived=(rotary(0.25, "rotary_emb_base", "rotary_pct"),),
    fixed={"positions.kind": "rotary", "positions.layout": "halves"},
    limits=EVEN_PART,
    # otherwise their rotary tables would have this width, but their attention another
    constants={"head_dim": None},
    rows=(
        TensorRow("gpt_neox.embed_in", "embed.token"),
        TensorRow("gpt_neox.layers.{i}.input_layernorm", "blocks.{i}.norm_1"),
        TensorRow("gpt_neox.layers.{i}.attention.query_key_value", QKV, fused="heads"),
        TensorRow("gpt_neox.layers.{i}.attention.dense", "blocks.{i}.attn.out"),
        TensorRow("gpt_neox.layers.{i}.post_attention_layernorm", "blocks.{i}.norm_2"),
        TensorRow("gpt_neox.layers.{i}.mlp.dense_h_to_4h", "blocks.{i}.mlp.up.0"),
        TensorRow("gpt_neox.layers.{i}.mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        TensorRow("gpt_neox.final_layer_norm", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    renames={"embed_out.": "lm_head."},
    ignored={
        r"\.attention\.(masked_)?bias$": "the causal mask, written out",
        r"rotary_emb\.inv_freq$": "a constant of the rotary positions",
    },
)

GPT1 = Family(
    name="openai-gpt",
    model_class="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 40478),
        ConfigField("n_positions|max_position_embeddings", "n_ctx", 512),
        *SIZES[2:],
        # their "gelu" means the tanh approximation
        ConfigField(
            "afn", "mlp.activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
        ),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("embd_pdrop", "dropout.embed", 0.1),
        ConfigField("attn_pdrop", "dropout.pattern", 0.1),
        ConfigField("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    fixed={"block": "post", "final_norm": "none"},
    rows=(
        TensorRow("transformer.tokens_embed", "embed.token"),
        TensorRow("transformer.positions_embed", "embed.position"),
        TensorRow("transformer.h.{i}.attn.c_attn", QKV, transposed=True),
        TensorRow("transformer.h.{i}.attn.c_proj", "blocks.{i}.attn.out", transposed=True),
        TensorRow("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        TensorRow("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0", transposed=True),
        TensorRow("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down", transposed=True),
        TensorRow("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.bias$": "the causal mask, written out", **POSITION_IDS},
    without_effect={**N_CTX, **SPECIAL},
)

GPT_BIGCODE = Family(
    name="gpt_bigcode",
    model_class="GPTBigCodeForCausalLM",
    prefix="transformer.",
    fields=GPT2.fields,
    derived=(
        Derived(
            lambda entries: {"attention.n_kv_heads": 1 if entries.flag("multi_query", True) else 0},
            lambda a: {"multi_query": a.n_kv_heads == 1},
        ),
    ),
    constants={"add_cross_attention": False},
    without_effect=dict.fromkeys(
        ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"), "the precision of the softmax"
    )
    | {"num_key_value_heads": "multi_query says it", **N_CTX}
    | dict.fromkeys(ANOTHER_PROGRAM, "read by another program"),
    rows=tuple(
        # Linear where GPT-2 has Conv1D
        dataclasses.replace(row, transposed=False, fused="heads" if row.ours is QKV else "modules")
        for row in GPT2.rows
    ),
    ignored=GPT2.ignored,
)


def neo_windows(entries: Entries) -> dict[str, Any]:
    """Files hold attention_types [[[kind, ...], times], ...], and attention_layers is its expansion."""
    n_layers = entries.integer("num_layers|num_hidden_layers", 24, least=0, most=BOUNDS["n_layers"])
    described = expanded(entries.raw("attention_types"), n_layers)
    layers = entries.choices("attention_layers", ("global", "local"))
    for name, kinds in (("attention_types", described), ("attention_layers", layers)):
        if kinds is not None and len(kinds) != n_layers:
            raise FamilyError(f"{name} does not describe num_layers = {n_layers} layers in config.json")
    window = entries.integer("window_size", 256)
    return {"attention.windows": [0 if kind == "global" else window for kind in layers or described] or [0]}


def expanded(types: Any, n_layers: int) -> list[str]:
    """The kinds of the layers, and of at most one more, which is enough to compare their number with n_layers."""
    types = [[["global", "local"], 12]] if types is None else types
    sound = isinstance(types, list) and all(
        isinstance(one, list)
        and len(one) == 2
        and isinstance(one[0], list)
        and all(kind in ("global", "local") for kind in one[0])
        and type(one[1]) is int
        for one in types
    )
    if not sound:
        raise FamilyError(
            f"attention_types = {format_value(types)} in config.json: "
            "expected [[[kind, ...], times], ...] with the kinds "
            "'global' and 'local'"
        )
    each = (kind for kinds, times in types if kinds for _ in range(times) for kind in kinds)
    return list(itertools.islice(each, n_layers + 1))


def neo_layers(a: Architecture) -> dict[str, Any]:
    """The inverse: windows of one width, or none."""
    windows = visible_windows(a)
    kinds = [[["local" if window else "global"], 1] for window in windows]
    return {"attention_types": kinds, "window_size": max(windows, default=0) or 256}


GPT_NEO = Family(
    name="gpt_neo",
    model_class="GPTNeoForCausalLM",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50257),
        ConfigField("max_position_embeddings", "n_ctx", 2048),
        ConfigField("hidden_size", "d_model", 2048),
        ConfigField("num_layers|num_hidden_layers", "n_layers", 24),
        ConfigField("num_heads|num_attention_heads", "attention.n_heads", 16),
        ConfigField("intermediate_size", "mlp.d_ff", 0, null=0),
        ConfigField("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("embed_dropout", "dropout.embed", 0.0),
        ConfigField("attention_dropout", "dropout.pattern", 0.0),
        ConfigField("resid_dropout", ("dropout.attn_out", "dropout.mlp_out"), 0.0),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(Derived(neo_windows, neo_layers),),
    fixed={"attention.scale": "1", "attention.bias": "out"},
    rows=(
        TensorRow("transformer.wte", "embed.token"),
        TensorRow("transformer.wpe", "embed.position"),
        TensorRow("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        TensorRow("transformer.h.{i}.attn.attention.q_proj", "blocks.{i}.attn.query"),
        TensorRow("transformer.h.{i}.attn.attention.k_proj", "blocks.{i}.attn.key"),
        TensorRow("transformer.h.{i}.attn.attention.v_proj", "blocks.{i}.attn.value"),
        TensorRow("transformer.h.{i}.attn.attention.out_proj", "blocks.{i}.attn.out"),
        TensorRow("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        TensorRow("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0"),
        TensorRow("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down"),
        TensorRow("transformer.ln_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.attention\.(masked_)?bias$": "the causal mask, written out"},
)
