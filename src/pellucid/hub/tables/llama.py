"""Llama and its successors: rotary positions, gated MLPs, RMS norms."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import BOUNDS, Entries, FamilyError, format_value
from pellucid.hub.tables.rotary import EVEN, EVEN_PART, rotary
from pellucid.hub.tables.rows import (
    ACTIVATIONS,
    ATTENTION_BIAS,
    MLP_BIAS,
    ROTARY_FREQUENCIES,
    TIED,
    ConfigField,
    Derived,
    Family,
    TensorRow,
    visible_windows,
)

#: their entries for sizes, with the defaults of Llama
SIZES = (
    ConfigField("vocab_size", "n_vocab", 32_000),
    ConfigField("max_position_embeddings", "n_ctx", 2048),
    ConfigField("hidden_size", "d_model", 4096),
    ConfigField("num_hidden_layers", "n_layers", 32),
    ConfigField("num_attention_heads", "attention.n_heads", 32),
    ConfigField("num_key_value_heads", "attention.n_kv_heads", 0, null=0),
    ConfigField("head_dim", "attention.d_head", 0, null=0),
    ConfigField("intermediate_size", "mlp.d_ff", 11_008),
    ConfigField("hidden_act", "mlp.activation", "silu", ACTIVATIONS),
    ConfigField("rms_norm_eps", "norm.eps", 1e-6),
    ConfigField("attention_dropout", "dropout.pattern", 0.0),
    ConfigField("tie_word_embeddings", "unembed", False, TIED),
)


def alternating(
    entries: Entries, window: int | None, sliding: Callable[[int], bool], n_layers: int = 32
) -> dict[str, Any]:
    """The windows by `layer_types`, or, if it is missing, by `sliding`; `n_layers` is the default."""
    n_layers = entries.integer("num_hidden_layers", n_layers, least=0, most=BOUNDS["n_layers"])
    kinds = entries.choices("layer_types", ("sliding_attention", "full_attention"))
    if kinds is None:
        kinds = ["sliding_attention" if sliding(i) else "full_attention" for i in range(n_layers)]
    if len(kinds) != n_layers:
        raise FamilyError(
            f"layer_types has {len(kinds)} entries in config.json: expected num_hidden_layers = {n_layers}"
        )
    if window is None and "sliding_attention" in kinds:
        raise FamilyError("layer_types holds 'sliding_attention' in config.json, and there is no sliding_window")
    return {"attention.windows": [window if kind == "sliding_attention" else 0 for kind in kinds] or [0]}


def layer_types(a: Architecture) -> dict[str, Any]:
    """The inverse: one width, in the layers that have a window."""
    windows = visible_windows(a)
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": kinds, "sliding_window": max(windows, default=0) or None}


def qwen_windows(entries: Entries) -> dict[str, Any]:
    """Qwen's layers from max_window_layers on have a window, if windows are used at all."""
    width, first = entries.integer("sliding_window", 4096, None), entries.integer("max_window_layers", 28, least=0)
    window = width if entries.flag("use_sliding_window", False) else None
    return alternating(entries, window, lambda i: window is not None and i >= first)


QWEN_WINDOWS = Derived(qwen_windows, lambda a: layer_types(a) | {"use_sliding_window": any(visible_windows(a))})
#: one window for every layer
WINDOW = Derived(
    lambda entries: {"attention.windows": [entries.integer("sliding_window", None, None) or 0]},
    lambda a: {"sliding_window": max(visible_windows(a), default=0) or None},
)
LLAMA_OPTIONS = {
    "positions.kind": "rotary",
    "positions.layout": "halves",
    "positions.fraction": 1.0,
    "norm.kind": "rms",
    "mlp.form": "gated",
    "mlp.n_hidden": 1,
    "attention.bias": "none",
    "mlp.bias": "none",
    "attention.qk_norm": "none",
}
ROWS = (
    TensorRow("model.embed_tokens", "embed.token"),
    TensorRow("model.layers.{i}.input_layernorm", "blocks.{i}.norm_1"),
    TensorRow("model.layers.{i}.self_attn.q_proj", "blocks.{i}.attn.query"),
    TensorRow("model.layers.{i}.self_attn.k_proj", "blocks.{i}.attn.key"),
    TensorRow("model.layers.{i}.self_attn.v_proj", "blocks.{i}.attn.value"),
    TensorRow("model.layers.{i}.self_attn.q_norm", "blocks.{i}.attn.query_norm"),
    TensorRow("model.layers.{i}.self_attn.k_norm", "blocks.{i}.attn.key_norm"),
    TensorRow("model.layers.{i}.self_attn.o_proj", "blocks.{i}.attn.out"),
    TensorRow("model.layers.{i}.post_attention_layernorm", "blocks.{i}.norm_2"),
    TensorRow("model.layers.{i}.mlp.gate_proj", "blocks.{i}.mlp.gate"),
    TensorRow("model.layers.{i}.mlp.up_proj", "blocks.{i}.mlp.up.0"),
    TensorRow("model.layers.{i}.mlp.down_proj", "blocks.{i}.mlp.down"),
    TensorRow("model.norm", "final_norm"),
    TensorRow("lm_head", "unembed"),
)


def rows_without(*parts: str) -> tuple[TensorRow, ...]:
    """Llama's rows but those whose names hold one of the parts."""
    return tuple(row for row in ROWS if not any(part in row.theirs for part in parts))


def llama_family(
    name: str,
    model_class: str,
    *,
    sizes: Mapping[str, Any] = {},
    omit: Collection[str] = (),
    fields: tuple[ConfigField, ...] = (),
    derived: tuple[Derived, ...] = (rotary(),),
    free: Collection[str] = (),
    fixed: Mapping[str, Any] = {},
    rows: tuple[TensorRow, ...] = ROWS,
    limits: Mapping[str, Callable[[Architecture], bool]] = {},
    **others: Any,
) -> Family:
    """A family that differs from Llama in what is given; `others` are further fields of `Family`.

    sizes   entries of SIZES -> their defaults; `omit` names those that the family does not have
    fields  further entries. The options that they set are not fixed
    free    options of Llama that `derived` sets, so that they are not fixed either
    fixed   the options that are others than Llama's
    """
    entries = tuple(replace(f, default=sizes.get(f.theirs, f.default)) for f in SIZES if f.theirs not in omit)
    is_set = {name for field in fields for name in field.names} | set(free)
    return Family(
        name,
        model_class,
        "model.",
        entries + fields,
        rows,
        derived,
        {**{option: value for option, value in LLAMA_OPTIONS.items() if option not in is_set}, **fixed},
        ignored=ROTARY_FREQUENCIES,
        limits={**limits, **(EVEN_PART if "positions.fraction" in free else EVEN)},
        **others,
    )


LLAMA = llama_family(
    "llama",
    "LlamaForCausalLM",
    fields=(
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
    constants={"rope_interleaved": False},  # their code of today does not read it; SmolLM's files have it
    without_effect={"is_llama_config": "says what the files are"},
)

MISTRAL = llama_family(
    "mistral",
    "MistralForCausalLM",
    sizes=dict(num_key_value_heads=8, intermediate_size=14_336, max_position_embeddings=131_072),
    derived=(
        rotary(),
        Derived(
            lambda entries: {"attention.windows": [entries.integer("sliding_window", 4096, 0)]},
            lambda a: {"sliding_window": max(visible_windows(a), default=0) or None},
        ),
    ),
)

QWEN2 = llama_family(
    "qwen2",
    "Qwen2ForCausalLM",
    sizes=dict(vocab_size=151_936, intermediate_size=22_016, num_key_value_heads=32, max_position_embeddings=32_768),
    derived=(rotary(), QWEN_WINDOWS),
    constants={"use_mrope": False},
    fixed={
        "attention.bias": "qkv",
    },
)

QWEN3 = llama_family(
    "qwen3",
    "Qwen3ForCausalLM",
    sizes=dict(
        vocab_size=151_936,
        intermediate_size=22_016,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=32_768,
    ),
    fields=(ATTENTION_BIAS,),
    derived=(rotary(), QWEN_WINDOWS),
    constants={"use_mrope": False},
    fixed={"attention.qk_norm": "rms"},
)

STABLELM = llama_family(
    "stablelm",
    "StableLmForCausalLM",
    sizes=dict(
        vocab_size=50_304,
        hidden_size=2560,
        intermediate_size=6912,
        num_key_value_heads=32,
        max_position_embeddings=4096,
    ),
    omit=("rms_norm_eps", "head_dim"),
    fields=(
        ConfigField("layer_norm_eps", "norm.eps", 1e-5),
        ConfigField("use_qkv_bias", "attention.bias", False, {True: "qkv", False: "none"}),
        ConfigField("hidden_dropout", "dropout.mlp_out", 0.0),
        ConfigField("use_parallel_residual", "block", False, {True: "shared", False: "pre"}),
        ConfigField("qk_layernorm", "attention.qk_norm", False, {True: "layer_own", False: "none"}),
    ),
    derived=(rotary(0.25),),
    free=("positions.fraction",),
    fixed={"norm.kind": "layer", "norm.bias": "all"},
    # otherwise their rotary tables would have the width head_dim, but their attention another
    constants={"head_dim": None},
    rows=(
        *rows_without("q_norm", "k_norm"),
        TensorRow("model.layers.{i}.self_attn.q_layernorm.norms.{h}", "blocks.{i}.attn.query_norm", fused="rows"),
        TensorRow("model.layers.{i}.self_attn.k_layernorm.norms.{h}", "blocks.{i}.attn.key_norm", fused="rows"),
    ),
)


def layers_without_rotary(entries: Entries) -> dict[str, Any]:
    """`positions.every` from the layers' 0 (no rotary positions) and 1, and the windows, which default to the zeros."""
    n_layers = entries.integer("num_hidden_layers", 36, least=0, most=BOUNDS["n_layers"])
    interval = entries.integer("no_rope_layer_interval", 4)
    rotated = entries.raw("no_rope_layers")
    if rotated is None:
        rotated = rotary_layers(n_layers, interval)
    if not isinstance(rotated, list):
        raise FamilyError(f"no_rope_layers = {format_value(rotated)} in config.json: expected a list of 0 and 1")
    every = rotated.index(0) + 1 if 0 in rotated[:n_layers] else 0
    if rotated[:n_layers] != rotary_layers(n_layers, every):
        raise FamilyError(
            f"no_rope_layers = {format_value(rotated)} in config.json: "
            "expected 0 for every n-th layer and 1 for the others, "
            f"at least num_hidden_layers = {n_layers} in all"
        )
    slides, window = entries.flag("use_sliding_window", False), entries.integer("sliding_window", None, None)
    windows = alternating(entries, window, lambda i: slides and window is not None and not rotated[i], 36)
    return {"positions.every": every, **windows}


def rotary_layers(n_layers: int, every: int) -> list[int]:
    """1 for each layer with rotary positions, 0 for every n-th without."""
    return [int(not every or (layer + 1) % every != 0) for layer in range(n_layers)]


SMOLLM3 = llama_family(
    "smollm3",
    "SmolLM3ForCausalLM",
    sizes=dict(
        vocab_size=128_256,
        max_position_embeddings=32_768,
        hidden_size=2048,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    ),
    fields=(
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
    derived=(
        rotary(default_base=2_000_000.0),
        Derived(
            layers_without_rotary,
            lambda a: {
                **layer_types(a),
                "no_rope_layers": rotary_layers(a.n_layers, a.positions.every),
                "no_rope_layer_interval": a.positions.every or a.n_layers + 1,
                "use_sliding_window": any(visible_windows(a)),
                "pad_token_id": None,  # theirs is 128004 where there is no entry, beyond most vocabularies
            },
        ),
    ),
)

#: a norm after each sublayer
INNER_ROWS = (
    *(row for row in ROWS if "layernorm" not in row.theirs),
    TensorRow("model.layers.{i}.post_attention_layernorm", "blocks.{i}.norm_1_out"),
    TensorRow("model.layers.{i}.post_feedforward_layernorm", "blocks.{i}.norm_2_out"),
)
OLMO2 = llama_family(
    "olmo2",
    "Olmo2ForCausalLM",
    sizes=dict(vocab_size=50_304, rms_norm_eps=1e-5),
    fields=(ATTENTION_BIAS,),
    fixed={"attention.qk_norm": "rms_all", "block": "inner"},
    rows=INNER_ROWS,
)
