"""Families whose MLPs are mixtures of experts. Files hold the maps of every expert by themselves."""

from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.llama import (
    ALL_OR_NONE,
    IGNORED,
    LLAMA_OPTIONS,
    QWEN_WINDOWS,
    SIZES,
    WINDOW,
    alternating,
    layer_types,
    rows_without,
    with_defaults,
    without,
)
from pellucid.hub.tables.rotary import EVEN, rotary
from pellucid.hub.tables.rows import ConfigField, Derived, Family, TensorRow, visible_windows

EXPERTS = (
    ConfigField("num_experts|num_local_experts", "mlp.experts", 128),
    ConfigField("num_experts_per_tok", "mlp.experts_per_token", 8),
)
SOFTMAX = ConfigField("norm_topk_prob", "mlp.router_softmax", False, {True: "chosen", False: "all"})
#: the rotary positions of the files of gpt-oss that name none
GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GPT_OSS_ROPE |= {"original_max_position_embeddings": 4096}
EXPERTS_AND_EVEN = {"mlp.experts": lambda a: a.mlp.experts > 0, **EVEN}
GATED = {"gate_proj": "gate", "up_proj": "up.0", "down_proj": "down"}
STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def rows_of_experts(router: str, experts: str, maps: dict[str, str]) -> tuple[TensorRow, ...]:
    """Llama's rows with a router and experts in the place of the MLP: `router` and `experts` are below the layer."""
    return (
        *rows_without(".mlp."),
        TensorRow(f"model.layers.{{i}}.{router}", "blocks.{i}.mlp.router"),
        *(
            TensorRow(f"model.layers.{{i}}.{experts}.{{e}}.{theirs}", f"blocks.{{i}}.mlp.experts.{{e}}.{ours}")
            for theirs, ours in maps.items()
        ),
    )


def even_windows(entries: Entries) -> dict[str, Any]:
    """Every other layer up to max_window_layers has a window, if windows are used at all."""
    width = entries.integer("sliding_window", 4096, None, least=0)
    last = entries.integer("max_window_layers", 28, least=0)
    window = width if entries.flag("use_sliding_window", False) and width else None
    return alternating(entries, window, lambda i: window is not None and i % 2 == 0 and i < last, 24)


def window_of_all(entries: Entries) -> dict[str, Any]:
    """One window for every layer, if windows are used at all."""
    width, is_used = entries.integer("sliding_window", 4096, None), entries.flag("use_sliding_window", False)
    return {"attention.windows": [width if is_used and width else 0]}


def write_window_of_all(a: Architecture) -> dict[str, Any]:
    """The inverse."""
    width = max(visible_windows(a), default=0) or None
    return {"use_sliding_window": width is not None, "sliding_window": width}


QWEN3_MOE = Family(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    prefix="model.",
    fields=(
        *without(
            with_defaults(
                SIZES,
                vocab_size=151_936,
                hidden_size=2048,
                num_hidden_layers=24,
                num_key_value_heads=4,
                max_position_embeddings=32_768,
            ),
            "intermediate_size",
        ),
        ConfigField("moe_intermediate_size", "mlp.d_ff", 768),
        ConfigField("attention_bias", "attention.bias", False, ALL_OR_NONE),
        *EXPERTS,
        SOFTMAX,
    ),
    derived=(rotary(), Derived(window_of_all, write_window_of_all)),
    # another value, or a list of layers, gives some layers one MLP instead of experts
    constants={"decoder_sparse_step": 1, "mlp_only_layers": []},
    fixed=LLAMA_OPTIONS | {"mlp.bias": "none", "attention.qk_norm": "rms"},
    rows=rows_of_experts("mlp.gate", "mlp.experts", GATED),
    stacked=STACKED,
    without_effect={
        "intermediate_size": "the width of layers without experts, of which there are none",
        "max_window_layers": "their code of today does not read it",
    },
    ignored=IGNORED,
    limits=EXPERTS_AND_EVEN,
)

SHARED = {f"shared_expert.{theirs}": f"mlp.{ours}" for theirs, ours in GATED.items()} | {"shared_expert_gate": "scale"}
QWEN2_MOE = Family(
    name="qwen2_moe",
    model_class="Qwen2MoeForCausalLM",
    prefix="model.",
    fields=(
        *without(
            with_defaults(
                SIZES,
                vocab_size=151_936,
                hidden_size=2048,
                num_hidden_layers=24,
                num_attention_heads=16,
                num_key_value_heads=16,
                max_position_embeddings=32_768,
            ),
            "intermediate_size",
            "head_dim",
        ),
        ConfigField("moe_intermediate_size", "mlp.d_ff", 1408),
        ConfigField("shared_expert_intermediate_size", "mlp.shared_d_ff", 5632),
        ConfigField("qkv_bias", "attention.bias", True, {True: "qkv", False: "none"}),
        *with_defaults(EXPERTS, **{"num_experts|num_local_experts": 60, "num_experts_per_tok": 4}),
        SOFTMAX,
    ),
    derived=(rotary(), Derived(even_windows, QWEN_WINDOWS.write)),
    constants={"decoder_sparse_step": 1, "mlp_only_layers": [], "head_dim": None},
    fixed=LLAMA_OPTIONS | {"mlp.bias": "none", "attention.qk_norm": "none", "mlp.shared_gate": "sigmoid"},
    rows=(
        *rows_of_experts("mlp.gate", "mlp.experts", GATED),
        *(
            TensorRow(f"model.layers.{{i}}.mlp.{theirs}", f"blocks.{{i}}.mlp.shared.{ours}")
            for theirs, ours in SHARED.items()
        ),
    ),
    stacked=STACKED,
    without_effect={"intermediate_size": "the width of layers without experts, of which there are none"},
    ignored=IGNORED,
    limits={"mlp.shared_d_ff": lambda a: a.mlp.shared_d_ff > 0, **EXPERTS_AND_EVEN},
)

OLMOE = Family(
    name="olmoe",
    model_class="OlmoeForCausalLM",
    prefix="model.",
    fields=(
        *without(
            with_defaults(
                SIZES,
                vocab_size=50_304,
                hidden_size=2048,
                intermediate_size=2048,
                num_hidden_layers=16,
                num_attention_heads=16,
                max_position_embeddings=4096,
                rms_norm_eps=1e-5,
            ),
            "head_dim",
        ),
        ConfigField("attention_bias", "attention.bias", False, ALL_OR_NONE),
        *with_defaults(EXPERTS, **{"num_experts|num_local_experts": 64}),
        SOFTMAX,
    ),
    derived=(rotary(),),
    # clip_qkv cuts queries, keys and values off; their norms have the width of whole heads
    constants={"clip_qkv": None, "head_dim": None},
    fixed=LLAMA_OPTIONS | {"mlp.bias": "none", "attention.qk_norm": "rms_all"},
    rows=rows_of_experts("mlp.gate", "mlp.experts", GATED),
    stacked=STACKED,
    ignored=IGNORED,
    limits=EXPERTS_AND_EVEN,
)

MIXTRAL = Family(
    name="mixtral",
    model_class="MixtralForCausalLM",
    prefix="model.",
    fields=(
        *with_defaults(
            SIZES,
            num_key_value_heads=8,
            intermediate_size=14_336,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
        ),
        ConfigField("num_local_experts|num_experts", "mlp.experts", 8),
        ConfigField("num_experts_per_tok", "mlp.experts_per_token", 2),
    ),
    derived=(
        rotary(default_base=1_000_000.0),
        WINDOW,
    ),
    fixed=LLAMA_OPTIONS
    | {
        "attention.bias": "none",
        "mlp.bias": "none",
        "attention.qk_norm": "none",
        "mlp.router_softmax": "chosen",
    },
    rows=rows_of_experts(
        "block_sparse_moe.gate", "block_sparse_moe.experts", {"w1": "gate", "w3": "up.0", "w2": "down"}
    ),
    stacked={"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
    # in memory transformers calls the block mlp
    renames={".mlp.experts.": ".block_sparse_moe.experts.", ".mlp.gate.": ".block_sparse_moe.gate."},
    without_effect={"router_jitter_noise": "read in training alone"},
    ignored=IGNORED,
    limits=EXPERTS_AND_EVEN,
)


def gpt_oss_positions() -> Derived:
    """Rotary positions that are scaled where config.json says nothing of them."""
    named = rotary(default_base=150_000.0)

    def read(entries: Entries) -> dict[str, Any]:
        if entries.raw("rope_scaling") or entries.raw("rope_parameters") is not None:
            return dict(named.read(entries))
        usual = Entries({**entries.values, "rope_parameters": GPT_OSS_ROPE})
        values = dict(named.read(usual))
        entries.asked |= usual.asked
        return values

    return Derived(read, named.write)


def gpt_oss_windows(entries: Entries) -> dict[str, Any]:
    """The first of every two layers has a window."""
    return alternating(entries, entries.integer("sliding_window", 128), lambda i: i % 2 == 0, 36)


IN_ONE, EXPERT = {".weight": "", ".bias": "_bias"}, "blocks.{i}.mlp.experts.{e}."
GPT_OSS = Family(
    name="gpt_oss",
    model_class="GptOssForCausalLM",
    prefix="model.",
    fields=(
        *without(
            with_defaults(
                SIZES,
                vocab_size=201_088,
                max_position_embeddings=131_072,
                hidden_size=2880,
                num_hidden_layers=36,
                num_attention_heads=64,
                num_key_value_heads=8,
                head_dim=64,
                intermediate_size=2880,
                rms_norm_eps=1e-5,
            ),
            "hidden_act",
        ),
        ConfigField("attention_bias", "attention.bias", True, ALL_OR_NONE),
        *with_defaults(EXPERTS, num_experts_per_tok=4),
        ConfigField("swiglu_limit", "mlp.gate_limit", 7.0),
    ),
    derived=(
        gpt_oss_positions(),
        # their class makes a mask with a window for every model
        Derived(
            gpt_oss_windows, lambda a: layer_types(a) | {"sliding_window": max(visible_windows(a), default=0) or 128}
        ),
    ),
    constants={"swiglu_alpha": 1.702},
    fixed=LLAMA_OPTIONS
    | {
        "attention.sinks": "learned",
        "attention.qk_norm": "none",
        "mlp.activation": "quick_gelu",
        "mlp.up": "1+u",
        "mlp.bias": "all",
        "mlp.router_bias": "all",
        "mlp.router_softmax": "chosen",
    },
    rows=(
        *rows_without(".mlp."),
        TensorRow("model.layers.{i}.self_attn.sinks", "blocks.{i}.attn.sinks", endings={"": ""}),
        TensorRow("model.layers.{i}.mlp.router", "blocks.{i}.mlp.router"),
        TensorRow(
            "model.layers.{i}.mlp.experts.gate_up_proj",
            (f"{EXPERT}gate", f"{EXPERT}up.0"),
            transposed=True,
            fused="experts, rows in turn",
            endings=IN_ONE,
        ),
        TensorRow(
            "model.layers.{i}.mlp.experts.down_proj",
            f"{EXPERT}down",
            transposed=True,
            fused="experts",
            endings=IN_ONE,
        ),
    ),
    without_effect={
        "hidden_act": "the class of transformers does not read it: its experts have one gate",
        "experts_per_token": "num_experts_per_tok again, which is read",
        "initial_context_length": "original_max_position_embeddings again, which is read",
    },
    ignored=IGNORED,
    limits={"mlp.gate_limit": lambda a: a.mlp.gate_limit > 0, **EXPERTS_AND_EVEN},
)
