"""GPT and what was made after it: learned positions, or rotary ones in GPT-NeoX."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.rows import ACTIVATIONS, QKV, SCALING, TIED, Derived, Family, Field, Row, visible_windows

GPT2 = Family(
    name="gpt2",
    model_class="GPT2LMHeadModel",
    prefix="transformer.",
    fields=(
        Field("vocab_size", "n_vocab", 50257),
        Field("n_positions", "n_ctx", 1024),
        Field("n_embd", "d_model", 768),
        Field("n_layer", "n_layers", 12),
        Field("n_head", "attention.n_heads", 12),
        Field("n_inner", "mlp.d_ff", 0),
        Field("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        Field("layer_norm_epsilon", "norm.eps", 1e-5),
        Field("scale_attn_weights", "attention.scale", True, {True: "1/sqrt(d_head)", False: "1"}),
        Field("embd_pdrop", "dropout.embed", 0.1),
        Field("attn_pdrop", "dropout.pattern", 0.1),
        Field("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    constants={
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    rows=(
        Row("transformer.wte", "embed.token"),
        Row("transformer.wpe", "embed.position"),
        Row("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        Row("transformer.h.{i}.attn.c_attn", QKV, transposed=True),
        Row("transformer.h.{i}.attn.c_proj", "blocks.{i}.attn.out", transposed=True),
        Row("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        Row("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0", transposed=True),
        Row("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down", transposed=True),
        Row("transformer.ln_f", "final_norm"),
        Row("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.(masked_)?bias$": "the causal mask, written out"},
)

GPT_NEOX = Family(
    name="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    fields=(
        Field("vocab_size", "n_vocab", 50432),
        Field("max_position_embeddings", "n_ctx", 2048),
        Field("hidden_size", "d_model", 6144),
        Field("num_hidden_layers", "n_layers", 44),
        Field("num_attention_heads", "attention.n_heads", 64),
        Field("intermediate_size", "mlp.d_ff", 24576),
        Field("hidden_act", "mlp.activation", "gelu", ACTIVATIONS),
        Field("layer_norm_eps", "norm.eps", 1e-5),
        Field("rope_parameters.rope_theta|rotary_emb_base", "positions.base", 10_000.0),
        Field("rope_parameters.partial_rotary_factor|rotary_pct", "positions.fraction", 0.25),
        Field("attention_bias", "attention.bias", True, {True: "all", False: "none"}),
        Field("use_parallel_residual", "block", True, {True: "parallel", False: "pre"}),
        Field("attention_dropout", "dropout.pattern", 0.0),
        Field("hidden_dropout", ("dropout.embed", "dropout.attn_out", "dropout.mlp_out"), 0.0),
        Field("tie_word_embeddings", "unembed", False, TIED),
    ),
    derived=(SCALING,),
    words={"positions.kind": "rotary"},
    rows=(
        Row("gpt_neox.embed_in", "embed.token"),
        Row("gpt_neox.layers.{i}.input_layernorm", "blocks.{i}.norm_1"),
        Row("gpt_neox.layers.{i}.attention.query_key_value", QKV, fused="heads"),
        Row("gpt_neox.layers.{i}.attention.dense", "blocks.{i}.attn.out"),
        Row("gpt_neox.layers.{i}.post_attention_layernorm", "blocks.{i}.norm_2"),
        Row("gpt_neox.layers.{i}.mlp.dense_h_to_4h", "blocks.{i}.mlp.up.0"),
        Row("gpt_neox.layers.{i}.mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        Row("gpt_neox.final_layer_norm", "final_norm"),
        Row("lm_head", "unembed"),
    ),
    spellings={"embed_out.": "lm_head."},
    ignored={
        r"\.attention\.(masked_)?bias$": "the causal mask, written out",
        r"rotary_emb\.inv_freq$": "a constant of the rotary positions",
    },
    # of an odd width their tables turn one coordinate more than there is
    limits={"positions.fraction": lambda a: int(a.d_head * a.positions.fraction) % 2 == 0},
)

GPT1 = Family(
    name="openai-gpt",
    model_class="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    fields=(
        Field("vocab_size", "n_vocab", 40478),
        Field("n_positions", "n_ctx", 512),
        Field("n_embd", "d_model", 768),
        Field("n_layer", "n_layers", 12),
        Field("n_head", "attention.n_heads", 12),
        # their "gelu" is the tanh approximation
        Field("afn", "mlp.activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
        Field("layer_norm_epsilon", "norm.eps", 1e-5),
        Field("embd_pdrop", "dropout.embed", 0.1),
        Field("attn_pdrop", "dropout.pattern", 0.1),
        Field("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    words={"block": "post", "final_norm": "none"},
    rows=(
        Row("transformer.tokens_embed", "embed.token"),
        Row("transformer.positions_embed", "embed.position"),
        Row("transformer.h.{i}.attn.c_attn", QKV, transposed=True),
        Row("transformer.h.{i}.attn.c_proj", "blocks.{i}.attn.out", transposed=True),
        Row("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        Row("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0", transposed=True),
        Row("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down", transposed=True),
        Row("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        Row("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.bias$": "the causal mask, written out", r"position_ids$": "0, 1, 2, ..."},
)

GPT_BIGCODE = Family(
    name="gpt_bigcode",
    model_class="GPTBigCodeForCausalLM",
    prefix="transformer.",
    fields=GPT2.fields,
    derived=(
        Derived(
            lambda config: {"attention.n_kv_heads": 0 if config.get("multi_query") is False else 1},
            lambda a: {"multi_query": a.n_kv_heads == 1},
        ),
    ),
    constants={"add_cross_attention": False},
    rows=tuple(
        # Linear where GPT-2 has Conv1D
        dataclasses.replace(row, transposed=False, fused="heads" if row.ours is QKV else "modules")
        for row in GPT2.rows
    ),
    ignored=GPT2.ignored,
)


def neo_windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """attention_types [[[kind, ...], times], ...] is what files hold, attention_layers its expansion."""
    layers, n_layers = config.get("attention_layers"), config.get("num_layers", 24)
    if layers is None:
        types = config.get("attention_types") or [[["global", "local"], 12]]
        each = (kind for kinds, times in types if kinds for _ in range(times) for kind in kinds)
        # no more than could be right, whatever the file says
        layers = list(itertools.islice(each, n_layers + 1))
    if len(layers) != n_layers:
        raise ValueError(f"attention_types does not describe num_layers = {n_layers} layers")
    if unknown := set(layers) - {"global", "local"}:
        raise ValueError(
            f"attention_types holds {sorted(unknown)[0]!r} in config.json: only 'global', 'local' are known"
        )
    window = config.get("window_size", 256)
    return {"attention.windows": [0 if kind == "global" else window for kind in layers] or [0]}


def neo_layers(a: Architecture) -> dict[str, Any]:
    """The same written: windows of one width, or none."""
    windows = visible_windows(a)
    kinds = [[["local" if window else "global"], 1] for window in windows]
    return {"attention_types": kinds, "window_size": max(windows, default=0) or 256}


GPT_NEO = Family(
    name="gpt_neo",
    model_class="GPTNeoForCausalLM",
    prefix="transformer.",
    fields=(
        Field("vocab_size", "n_vocab", 50257),
        Field("max_position_embeddings", "n_ctx", 2048),
        Field("hidden_size", "d_model", 2048),
        Field("num_layers", "n_layers", 24),
        Field("num_heads", "attention.n_heads", 16),
        Field("intermediate_size", "mlp.d_ff", 0),
        Field("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        Field("layer_norm_epsilon", "norm.eps", 1e-5),
        Field("embed_dropout", "dropout.embed", 0.0),
        Field("attention_dropout", "dropout.pattern", 0.0),
        Field("resid_dropout", ("dropout.attn_out", "dropout.mlp_out"), 0.0),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(Derived(neo_windows, neo_layers),),
    words={"attention.scale": "1", "attention.bias": "out"},
    rows=(
        Row("transformer.wte", "embed.token"),
        Row("transformer.wpe", "embed.position"),
        Row("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        Row("transformer.h.{i}.attn.attention.q_proj", "blocks.{i}.attn.query"),
        Row("transformer.h.{i}.attn.attention.k_proj", "blocks.{i}.attn.key"),
        Row("transformer.h.{i}.attn.attention.v_proj", "blocks.{i}.attn.value"),
        Row("transformer.h.{i}.attn.attention.out_proj", "blocks.{i}.attn.out"),
        Row("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        Row("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0"),
        Row("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down"),
        Row("transformer.ln_f", "final_norm"),
        Row("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.attention\.(masked_)?bias$": "the causal mask, written out"},
)
