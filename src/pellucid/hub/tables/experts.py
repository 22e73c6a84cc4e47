"""Families whose MLPs are mixtures of experts. Files hold the maps of every expert by themselves."""

from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.llama import QWEN_WINDOWS, WINDOW, alternating, llama_family, rows_without
from pellucid.hub.tables.rotary import rotary
from pellucid.hub.tables.rows import ATTENTION_BIAS, ConfigField, Derived, TensorRow, visible_windows


def experts(n: int, per_token: int) -> tuple[ConfigField, ...]:
    """The entries for the number of experts and of those that each token uses, with their defaults."""
    return (
        ConfigField("num_experts|num_local_experts", "mlp.experts", n),
        ConfigField("num_experts_per_tok", "mlp.experts_per_token", per_token),
    )


SOFTMAX = ConfigField("norm_topk_prob", "mlp.router_softmax", False, {True: "chosen", False: "all"})
HAS_EXPERTS = {"mlp.experts": lambda a: a.mlp.experts > 0}
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


QWEN3_MOE = llama_family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    sizes=dict(
        vocab_size=151_936,
        hidden_size=2048,
        num_hidden_layers=24,
        num_key_value_heads=4,
        max_position_embeddings=32_768,
    ),
    omit=("intermediate_size",),
    fields=(
        ConfigField("moe_intermediate_size", "mlp.d_ff", 768),
        ATTENTION_BIAS,
        *experts(128, 8),
        SOFTMAX,
    ),
    derived=(rotary(), Derived(window_of_all, write_window_of_all)),
    # another value, or a list of layers, gives some layers one MLP instead of experts
    constants={"decoder_sparse_step": 1, "mlp_only_layers": []},
    fixed={"attention.qk_norm": "rms"},
    rows=rows_of_experts("mlp.gate", "mlp.experts", GATED),
    stacked=STACKED,
    without_effect={
        "intermediate_size": "the width of layers without experts, of which there are none",
        "max_window_layers": "their code of today does not read it",
    },
    limits=HAS_EXPERTS,
)

SHARED = {f"shared_expert.{theirs}": f"mlp.{ours}" for theirs, ours in GATED.items()} | {"shared_expert_gate": "scale"}
QWEN2_MOE = llama_family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    sizes=dict(
        vocab_size=151_936,
        hidden_size=2048,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=32_768,
    ),
    omit=(
        "intermediate_size",
        "head_dim",
    ),
    fields=(
        ConfigField("moe_intermediate_size", "mlp.d_ff", 1408),
        ConfigField("shared_expert_intermediate_size", "mlp.shared_d_ff", 5632),
        ConfigField("qkv_bias", "attention.bias", True, {True: "qkv", False: "none"}),
        *experts(60, 4),
        SOFTMAX,
    ),
    derived=(rotary(), Derived(even_windows, QWEN_WINDOWS.write)),
    constants={"decoder_sparse_step": 1, "mlp_only_layers": [], "head_dim": None},
    fixed={"mlp.shared_gate": "sigmoid"},
    rows=(
        *rows_of_experts("mlp.gate", "mlp.experts", GATED),
        *(
            TensorRow(f"model.layers.{{i}}.mlp.{theirs}", f"blocks.{{i}}.mlp.shared.{ours}")
            for theirs, ours in SHARED.items()
        ),
    ),
    stacked=STACKED,
    without_effect={"intermediate_size": "the width of layers without experts, of which there are none"},
    limits={"mlp.shared_d_ff": lambda a: a.mlp.shared_d_ff > 0, **HAS_EXPERTS},
)

OLMOE = llama_family(
    "olmoe",
    "OlmoeForCausalLM",
    sizes=dict(
        vocab_size=50_304,
        hidden_size=2048,
        intermediate_size=2048,
        num_hidden_layers=16,
        num_attention_heads=16,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    ),
    omit=("head_dim",),
    fields=(
        ATTENTION_BIAS,
        *experts(64, 8),
        SOFTMAX,
    ),
    # clip_qkv cuts queries, keys and values off; their norms have the width of whole heads
    constants={"clip_qkv": None, "head_dim": None},
    fixed={"attention.qk_norm": "rms_all"},
    rows=rows_of_experts("mlp.gate", "mlp.experts", GATED),
    stacked=STACKED,
    limits=HAS_EXPERTS,
)

MIXTRAL = llama_family(
    "mixtral",
    "MixtralForCausalLM",
    sizes=dict(num_key_value_heads=8, intermediate_size=14_336, max_position_embeddings=131_072, rms_norm_eps=1e-5),
    fields=(
        ConfigField("num_local_experts|num_experts", "mlp.experts", 8),
        ConfigField("num_experts_per_tok", "mlp.experts_per_token", 2),
    ),
    derived=(
        rotary(default_base=1_000_000.0),
        WINDOW,
    ),
    fixed={
        "mlp.router_softmax": "chosen",
    },
    rows=rows_of_experts(
        "block_sparse_moe.gate", "block_sparse_moe.experts", {"w1": "gate", "w3": "up.0", "w2": "down"}
    ),
    stacked={"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
    # in memory transformers calls the block mlp
    renames={".mlp.experts.": ".block_sparse_moe.experts.", ".mlp.gate.": ".block_sparse_moe.gate."},
    without_effect={"router_jitter_noise": "read in training alone"},
    limits=HAS_EXPERTS,
)
