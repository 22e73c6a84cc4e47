"""Granite 3, dense and with experts: Llama with four factors (embedding, scores, sublayers' outputs, logits)."""

import math
from typing import Any

from pellucid.hub.tables.cohere import scale_of_logits
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.experts import HAS_EXPERTS
from pellucid.hub.tables.llama import llama_family, rows_without
from pellucid.hub.tables.rotary import rotary
from pellucid.hub.tables.rows import ATTENTION_BIAS, MLP_BIAS, ConfigField, Derived, TensorRow


def multipliers(entries: Entries) -> dict[str, Any]:
    """The options of the four factors. logits_scaling divides the logits."""
    m, n_heads = entries.integer("hidden_size", 4096), entries.integer("num_attention_heads", 32)
    d = entries.integer("head_dim", 0, 0) or max(m // n_heads, 1)
    of_embedding = entries.number("embedding_multiplier", 1.0, above=0)
    of_scores = entries.number("attention_multiplier", 1.0, above=0)
    embed = {1.0: "1", m**0.5: "sqrt(d_model)"}.get(of_embedding, "embed_scale_value")
    scores = {1.0: "1", 1 / d: "1/d_head", (m / n_heads) ** -0.5: "1/sqrt(d_model/n_heads)", d**-0.5: "1/sqrt(d_head)"}
    scale = scores.get(of_scores, "scale_value")
    return {
        "embed_scale": embed,
        "attention.scale": scale,
        "residual_scale": entries.number("residual_multiplier", 1.0, above=0),
        **({"embed_scale_value": of_embedding} if embed == "embed_scale_value" else {}),
        **({"attention.scale_value": of_scores} if scale == "scale_value" else {}),
        **scale_of_logits(entries, 1 / entries.number("logits_scaling", 1.0, above=0), 4096),
    }


def divisor(factor: float) -> float:
    """The c with 1 / c = factor, in floating point too if there is one."""
    c = 1 / factor
    near = (float(round(c)), c, math.nextafter(c, math.inf), math.nextafter(c, 0.0))
    return next((one for one in near if one and 1 / one == factor), c)


MULTIPLIERS = Derived(
    multipliers,
    lambda a: {
        "embedding_multiplier": a.embed_factor,
        "attention_multiplier": a.score_scale,
        "residual_multiplier": a.residual_scale,
        "logits_scaling": divisor(a.unembed_scale),
    },
)
GRANITE = llama_family(
    "granite",
    "GraniteForCausalLM",
    fields=(
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
    derived=(rotary(), MULTIPLIERS),
    fixed={"block": "pre"},
)


MOE = "model.layers.{i}.block_sparse_moe."
EXPERT = "blocks.{i}.mlp.experts.{e}."
GRANITEMOE = llama_family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    fields=(
        ATTENTION_BIAS,
        ConfigField("num_local_experts", "mlp.experts", 8),
        ConfigField("num_experts_per_tok", "mlp.experts_per_token", 2),
    ),
    derived=(rotary(), MULTIPLIERS),
    fixed={"mlp.router_softmax": "chosen", "block": "pre"},
    rows=(
        *rows_without(".mlp."),
        TensorRow(f"{MOE}router.layer", "blocks.{i}.mlp.router"),
        TensorRow(f"{MOE}input_linear", (f"{EXPERT}gate", f"{EXPERT}up.0"), fused="experts"),
        TensorRow(f"{MOE}output_linear", (f"{EXPERT}down",), fused="experts"),
    ),
    # the names in transformers' memory
    renames={
        ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
        ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
        ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
    },
    limits=HAS_EXPERTS,
)
