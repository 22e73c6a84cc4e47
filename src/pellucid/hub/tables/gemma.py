"""Gemma 1 to 3: scaled embeddings and gains 1 + g; then norms on both sides of a sublayer, caps, two kinds of layer."""

from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError, format_value
from pellucid.hub.tables.llama import ROWS, alternating, llama_family
from pellucid.hub.tables.rotary import IGNORED_KEYS, check_flat, rotary, scaling, scaling_to
from pellucid.hub.tables.rows import ACTIVATIONS, ATTENTION_BIAS, ConfigField, Derived, TensorRow

GEMMA_OPTIONS = {
    "norm.gain": "1+g",
    "embed_scale": "sqrt(d_model)",
}
ONE_WAY = {"use_bidirectional_attention": False}
#: their "gelu" means the tanh approximation
TANH = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "tanh": "tanh"}


def heads(n_kv_heads: int) -> tuple[ConfigField, ...]:
    """The entries of the heads, which their classes refuse as null."""
    return (
        ConfigField("num_key_value_heads", "attention.n_kv_heads", n_kv_heads),
        ConfigField("head_dim", "attention.d_head", 256),
        ATTENTION_BIAS,
    )


GEMMA = llama_family(
    "gemma",
    "GemmaForCausalLM",
    sizes=dict(
        vocab_size=256_000,
        hidden_size=3072,
        intermediate_size=24_576,
        num_hidden_layers=28,
        num_attention_heads=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    omit=("hidden_act", "num_key_value_heads", "head_dim"),
    fields=(
        *heads(16),
        ConfigField("hidden_act", "mlp.activation", "gelu_pytorch_tanh", TANH),
    ),
    without_effect={"hidden_activation": "hidden_act says it"},
    fixed=GEMMA_OPTIONS
    | {
        "block": "pre",
    },
    constants=ONE_WAY,
)


def query_scale(entries: Entries) -> dict[str, Any]:
    """query_pre_attn_scalar s means the scale 1/sqrt(s)."""
    s, d = entries.number("query_pre_attn_scalar", 256, above=0), entries.integer("head_dim", 256)
    shared = entries.integer("hidden_size", 2304) / entries.integer("num_attention_heads", 8)
    words = {1: "1", d * d: "1/d_head", shared: "1/sqrt(d_model/n_heads)", d: "1/sqrt(d_head)"}
    return {"attention.scale": words.get(s, "scale_value")} | ({} if s in words else {"attention.scale_value": s**-0.5})


def query_scalar(a: Architecture) -> dict[str, Any]:
    """The inverse of `query_scale`."""
    d, shared = a.d_head, a.d_model / a.n_heads
    words = {"1": 1, "1/d_head": d * d, "1/sqrt(d_head)": d, "1/sqrt(d_model/n_heads)": shared}
    s = words.get(a.attention.scale) or nearest_scalar(a.score_scale)
    return {"query_pre_attn_scalar": int(s) if s == int(s) else s}


def nearest_scalar(scale: float) -> float:
    """The s with 1/sqrt(s) = scale, an integer if one gives the same scale."""
    s = scale**-2.0
    return round(s) if s > 0.5 and round(s) ** -0.5 == scale else s


def gemma2_layers(entries: Entries) -> dict[str, Any]:
    """Every second layer of Gemma 2 has a window."""
    return alternating(entries, entries.integer("sliding_window", 4096, None), lambda i: (i + 1) % 2 > 0, n_layers=26)


def gemma3_layers(entries: Entries) -> dict[str, Any]:
    """Five of six layers of Gemma 3 have a window, unless `sliding_window_pattern` gives another number."""
    every = entries.integer("sliding_window_pattern", 6)
    window = entries.integer("sliding_window", 4096, None)
    return alternating(entries, window, lambda i: (i + 1) % every > 0, n_layers=26)


def kinds_of_layers(a: Architecture) -> dict[str, Any]:
    """The inverse: windows of one width, or none."""
    windows = [a.window(layer) for layer in range(a.n_layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": kinds, "sliding_window": max(windows, default=0) or a.n_ctx}


def caps(entries: Entries) -> dict[str, Any]:
    """null means no cap; a missing entry means the default."""
    return {
        "logit_cap": entries.number("final_logit_softcapping", 30.0, 0.0, above=0),
        "attention.score_cap": entries.number("attn_logit_softcapping", 50.0, 0.0, above=0),
    }


ROPE, LOCAL_BASE = "rope_parameters", "rope_local_base_freq"


def two_bases(
    entries: Entries,
    default: float = 1_000_000.0,
    local_default: float = 10_000.0,
    local_entry: str = LOCAL_BASE,
    entry: str = "rope_theta",
) -> dict[str, Any]:
    """The rotary bases of layers without a window and of those with one; the latter are never scaled.

    `entry` and `local_entry` are their names outside the object; `local_entry` is "" if it has none there.
    """
    global_path, local = f"{ROPE}.full_attention", f"{ROPE}.sliding_attention"
    rope = entries.raw(ROPE)
    if rope and not (isinstance(rope, dict) and set(rope) <= {"full_attention", "sliding_attention"}):
        raise FamilyError(
            f"{ROPE} = {format_value(rope)} in config.json: "
            "expected an object with full_attention and sliding_attention"
        )
    check_flat(entries.raw(global_path), global_path)
    check_flat(entries.raw(local), local)
    if entries.raw("rope_scaling"):
        if rope:
            raise FamilyError(f"{ROPE} and rope_scaling in config.json are one entry: keep one")
        global_path = "rope_scaling"  # as the files on the hub have it
        check_flat(entries.raw(global_path), global_path)
        older = entries.raw(f"{global_path}.type", "default")
        if older != "default" and entries.raw(f"{global_path}.rope_type") is None:
            raise FamilyError(
                f"{global_path}.type = {format_value(older)} in config.json: "
                "transformers does not read this older name in "
                "models of this family, and scales nothing: call it rope_type, or leave rope_scaling out if the model "
                "was trained without it"
            )
    for path in (global_path, local):
        if entries.number(f"{path}.partial_rotary_factor|partial_rotary_factor", 1.0, 1.0) != 1:
            raise FamilyError(f"{path}.partial_rotary_factor in config.json: models of this family rotate whole heads")
    entries.choice(f"{local}.rope_type|{local}.type", "default", ("default",))
    entries.read_paths.update(f"{local}.{name}" for name in IGNORED_KEYS)
    base = entries.number(f"{global_path}.rope_theta", entries.number(entry, default, above=0), above=0)
    outside = entries.number(local_entry, local_default, above=0) if local_entry else local_default
    local_base = entries.number(f"{local}.rope_theta", outside)
    bases = {"positions.base": base, "positions.local_base": local_base}
    values = scaling(entries, global_path, nested=True) | bases
    # dynamic scales nothing in the context that a file has
    same = base == local_base and values["positions.scaling"] in ("none", "dynamic")
    return values | ({"positions.local_base": 0.0} if same else {})


def two_entries(a: Architecture) -> dict[str, Any]:
    """The inverse of `two_bases`."""
    global_entries = {"rope_theta": a.positions.base} | scaling_to(a)
    local = {"rope_theta": a.positions.local_base or a.positions.base, "rope_type": "default"}
    return {"rope_parameters": {"full_attention": global_entries, "sliding_attention": local}}


SANDWICH = {
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_1_out",
    "pre_feedforward_layernorm": "norm_2",
    "post_feedforward_layernorm": "norm_2_out",
}
SANDWICH_ROWS = (
    *(row for row in ROWS if "layernorm" not in row.theirs),
    *(TensorRow(f"model.layers.{{i}}.{theirs}", f"blocks.{{i}}.{ours}") for theirs, ours in SANDWICH.items()),
)
HEADS = Derived(query_scale, query_scalar)


def whole_scalar(a: Architecture) -> bool:
    """Whether query_pre_attn_scalar is an integer, as the class requires."""
    return isinstance(query_scalar(a)["query_pre_attn_scalar"], int)


#: checked for export only: a file with another number is read
EXPORT_CHECKS = {"attention.scale": whole_scalar}

GEMMA2 = llama_family(
    "gemma2",
    "Gemma2ForCausalLM",
    sizes=dict(
        vocab_size=256_000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    omit=("hidden_act", "num_key_value_heads", "head_dim"),
    fields=(
        *heads(4),
        ConfigField("hidden_activation", "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS),
    ),
    derived=(
        rotary(),
        HEADS,
        Derived(gemma2_layers, kinds_of_layers),
        Derived(
            caps,
            lambda a: {
                "final_logit_softcapping": a.logit_cap or None,
                "attn_logit_softcapping": a.attention.score_cap or None,
            },
        ),
    ),
    fixed=GEMMA_OPTIONS
    | {
        "block": "sandwich",
    },
    without_effect={"hidden_act": "hidden_activation says it", "cache_implementation": "caching"},
    constants=ONE_WAY,
    rows=SANDWICH_ROWS,
    export_limits=EXPORT_CHECKS,
)

GEMMA3 = llama_family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    sizes=dict(
        vocab_size=262_208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    ),
    omit=("hidden_act", "num_key_value_heads", "head_dim"),
    fields=(
        *heads(4),
        ConfigField("hidden_activation", "mlp.activation", "gelu_pytorch_tanh", ACTIVATIONS),
    ),
    derived=(
        HEADS,
        Derived(gemma3_layers, kinds_of_layers),
        Derived(two_bases, two_entries),
        Derived(
            lambda entries: {"logit_cap": entries.number("final_logit_softcapping", 0.0, 0.0, above=0)},
            lambda a: {"final_logit_softcapping": a.logit_cap or None},
        ),
    ),
    fixed=GEMMA_OPTIONS | {"block": "sandwich", "attention.qk_norm": "rms", "attention.score_cap": 0.0},
    # their code reads no score cap, whatever the file holds
    constants=ONE_WAY | {"attn_logit_softcapping": None},
    without_effect={"_sliding_window_pattern": "layer_types is its expansion", "cache_implementation": "caching"},
    body="Gemma3TextModel",
    rows=SANDWICH_ROWS,
    export_limits=EXPORT_CHECKS,
)
