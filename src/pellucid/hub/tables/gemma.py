"""Gemma 1 to 3: scaled embeddings and gains 1 + g; then norms on both sides of a sublayer, caps, two kinds of layer."""

from collections.abc import Mapping
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.llama import ALL_OR_NONE, IGNORED, ROWS, SIZES, WORDS, alternating
from pellucid.hub.tables.rows import ACTIVATIONS, SCALING, TIED, Derived, Family, Field, Row, scaling_of, scaling_to

GEMMA_WORDS = WORDS | {"norm.gain": "1+g", "embed_scale": "sqrt(d_model)", "mlp.bias": "none"}
CAUSAL = {"use_bidirectional_attention": False}
#: their "gelu" was meant to be the tanh approximation
TANH = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "tanh": "tanh"}
SAME = {f.theirs: f for f in SIZES}


def sizes(**defaults: int) -> tuple[Field, ...]:
    """What the configurations of all three say, with the defaults in which they differ."""
    widths = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    widths += ("num_key_value_heads", "head_dim", "max_position_embeddings")
    return (
        *(Field(name, SAME[name].ours, defaults[name]) for name in widths),
        SAME["rms_norm_eps"],
        SAME["attention_dropout"],
        Field("attention_bias", "attention.bias", False, ALL_OR_NONE),
        Field("tie_word_embeddings", "unembed", True, TIED),
    )


GEMMA = Family(
    name="gemma",
    model_class="GemmaForCausalLM",
    prefix="model.",
    fields=(
        *sizes(
            vocab_size=256_000,
            hidden_size=3072,
            intermediate_size=24_576,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=16,
            head_dim=256,
            max_position_embeddings=8192,
        ),
        SAME["rope_parameters.rope_theta|rope_theta"],
        Field("hidden_act", "mlp.activation", "gelu_pytorch_tanh", TANH),
    ),
    derived=(SCALING,),
    words=GEMMA_WORDS | {"block": "pre", "attention.qk_norm": "none"},
    constants=CAUSAL,
    rows=ROWS,
    ignored=IGNORED,
)


def query_scale(config: Mapping[str, Any]) -> dict[str, Any]:
    """query_pre_attn_scalar s stands for the scale 1/sqrt(s)."""
    s, d = config.get("query_pre_attn_scalar", 256), config.get("head_dim", 256)
    shared = config.get("hidden_size", 2304) / config.get("num_attention_heads", 8)
    words = {1: "1", d * d: "1/d_head", shared: "1/sqrt(d_model/n_heads)", d: "1/sqrt(d_head)"}
    if s not in words:
        raise ValueError(
            f"query_pre_attn_scalar = {s!r} in config.json: only head_dim, its square, hidden_size / "
            "num_attention_heads and 1 can be said in our words"
        )
    return {"attention.scale": words[s]}


def query_scalar(a: Architecture) -> dict[str, Any]:
    """The same written."""
    d, shared = a.d_head, a.d_model / a.n_heads
    words = {"1": 1, "1/d_head": d * d, "1/sqrt(d_head)": d, "1/sqrt(d_model/n_heads)": shared}
    s = words[a.attention.scale]
    return {"query_pre_attn_scalar": int(s) if s == int(s) else s}


def layer_kinds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every second layer of Gemma 2 has a window, five of six in Gemma 3 (`sliding_window_pattern`)."""
    every = config.get("sliding_window_pattern", 6) if config.get("model_type") == "gemma3_text" else 2
    return alternating(config, config.get("sliding_window", 4096), lambda i: (i + 1) % every > 0)


def kinds_of_layers(a: Architecture) -> dict[str, Any]:
    """The same written: windows of one width, or none."""
    windows = [a.window(layer) for layer in range(a.n_layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": kinds, "sliding_window": max(windows, default=0) or a.n_ctx}


def caps(config: Mapping[str, Any]) -> dict[str, Any]:
    """null is no cap, an entry that is missing the default."""
    return {
        "logit_cap": config.get("final_logit_softcapping", 30.0) or 0.0,
        "attention.score_cap": config.get("attn_logit_softcapping", 50.0) or 0.0,
    }


def two_bases(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions of the layers without a window, and of those with one, which are never scaled."""
    rope = config.get("rope_parameters") or {}
    if "full_attention" not in rope:
        # as the files on the hub have it
        rope = {
            "full_attention": {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})},
            "sliding_attention": {"rope_theta": config.get("rope_local_base_freq")},
        }
    whole, local = rope["full_attention"], rope.get("sliding_attention") or {}
    if (local.get("rope_type") or "default") != "default":
        raise ValueError(
            f"rope_parameters.sliding_attention.rope_type = {local['rope_type']!r}: only 'default' is known"
        )
    values = scaling_of(whole, config.get("max_position_embeddings")) | {
        "positions.base": whole.get("rope_theta") or 1_000_000.0,
        "positions.local_base": local.get("rope_theta") or 10_000.0,
    }
    same = values["positions.base"] == values["positions.local_base"] and values["positions.scaling"] == "none"
    return values | ({"positions.local_base": 0.0} if same else {})


def two_entries(a: Architecture) -> dict[str, Any]:
    """The same written."""
    whole = {"rope_theta": a.positions.base} | scaling_to(a)
    local = {"rope_theta": a.positions.local_base or a.positions.base, "rope_type": "default"}
    return {"rope_parameters": {"full_attention": whole, "sliding_attention": local}}


SANDWICH = {
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_1_out",
    "pre_feedforward_layernorm": "norm_2",
    "post_feedforward_layernorm": "norm_2_out",
}
SANDWICH_ROWS = (
    *(row for row in ROWS if "layernorm" not in row.theirs),
    *(Row(f"model.layers.{{i}}.{theirs}", f"blocks.{{i}}.{ours}") for theirs, ours in SANDWICH.items()),
)
#: query_pre_attn_scalar is a whole number
WHOLE = {"attention.scale": lambda a: a.attention.scale != "1/sqrt(d_model/n_heads)" or a.d_model % a.n_heads == 0}
HEADS = Derived(query_scale, query_scalar)
LAYERS = Derived(layer_kinds, kinds_of_layers)

GEMMA2 = Family(
    name="gemma2",
    model_class="Gemma2ForCausalLM",
    prefix="model.",
    fields=(
        *sizes(
            vocab_size=256_000,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            max_position_embeddings=8192,
        ),
        SAME["rope_parameters.rope_theta|rope_theta"],
        Field("hidden_activation", "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS),
    ),
    derived=(
        SCALING,
        HEADS,
        LAYERS,
        Derived(
            caps,
            lambda a: {
                "final_logit_softcapping": a.logit_cap or None,
                "attn_logit_softcapping": a.attention.score_cap or None,
            },
        ),
    ),
    words=GEMMA_WORDS | {"block": "sandwich", "attention.qk_norm": "none"},
    constants=CAUSAL,
    rows=SANDWICH_ROWS,
    ignored=IGNORED,
    limits=WHOLE,
)

GEMMA3 = Family(
    name="gemma3_text",
    model_class="Gemma3ForCausalLM",
    prefix="model.",
    fields=(
        *sizes(
            vocab_size=262_208,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            max_position_embeddings=131_072,
        ),
        Field("hidden_activation", "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS),
    ),
    derived=(
        HEADS,
        LAYERS,
        Derived(two_bases, two_entries),
        Derived(
            lambda config: {"logit_cap": config.get("final_logit_softcapping") or 0.0},
            lambda a: {"final_logit_softcapping": a.logit_cap or None},
        ),
    ),
    words=GEMMA_WORDS | {"block": "sandwich", "attention.qk_norm": "rms", "attention.score_cap": 0.0},
    # their code reads no cap of the scores, whatever the file says
    constants=CAUSAL | {"attn_logit_softcapping": None},
    rows=SANDWICH_ROWS,
    ignored=IGNORED,
    limits=WHOLE,
)
