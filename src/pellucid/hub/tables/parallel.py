"""GPT-J, Phi and Falcon: attention and MLP read the same norm of the stream and write to it together."""

import math
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError
from pellucid.hub.tables.gpt import SIZES
from pellucid.hub.tables.rotary import EVEN, EVEN_PART, rotary
from pellucid.hub.tables.rows import (
    ACTIVATIONS,
    ALL_OR_NONE,
    QKV,
    ROTARY_FREQUENCIES,
    TIED,
    ConfigField,
    Derived,
    Family,
    TensorRow,
)

CAUSAL_MASK = {r"\.attn\.(masked_)?bias$": "the causal mask, written out"}


def rotary_dim(entries: Entries) -> dict[str, Any]:
    """The rotated share of each head, as a fraction that gives back the same integer."""
    n, d = (
        entries.integer("rotary_dim", 64),
        entries.integer(SIZES[2].theirs, 4096) // entries.integer(SIZES[4].theirs, 16),
    )
    if not 0 < n <= d or n % 2:
        raise FamilyError(f"rotary_dim = {n} in config.json: expected an even number from 2 to n_embd / n_head = {d}")
    return {"positions.fraction": n / d if int(d * (n / d)) == n else math.nextafter(n / d, 1.0)}


GPTJ = Family(
    name="gptj",
    model_class="GPTJForCausalLM",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50_400),
        ConfigField(SIZES[1].theirs, "n_ctx", 2048),
        ConfigField(SIZES[2].theirs, "d_model", 4096),
        ConfigField(SIZES[3].theirs, "n_layers", 28),
        ConfigField(SIZES[4].theirs, "attention.n_heads", 16),
        ConfigField("n_inner", "mlp.d_ff", 0, null=0),
        ConfigField("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("embd_pdrop", "dropout.embed", 0.0),
        ConfigField("attn_pdrop", "dropout.pattern", 0.0),
        ConfigField("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.0),
        ConfigField("tie_word_embeddings", "unembed", False, TIED),
    ),
    derived=(Derived(rotary_dim, lambda a: {"rotary_dim": a.d_rotary}),),
    fixed={
        "positions.kind": "rotary",
        "positions.layout": "pairs",
        "positions.base": 10_000.0,
        "positions.scaling": "none",
        "block": "shared",
        "readout": "affine",
        "attention.bias": "none",
        "mlp.bias": "all",
    },
    rows=(
        TensorRow("transformer.wte", "embed.token"),
        TensorRow("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        TensorRow("transformer.h.{i}.attn.q_proj", "blocks.{i}.attn.query"),
        TensorRow("transformer.h.{i}.attn.k_proj", "blocks.{i}.attn.key"),
        TensorRow("transformer.h.{i}.attn.v_proj", "blocks.{i}.attn.value"),
        TensorRow("transformer.h.{i}.attn.out_proj", "blocks.{i}.attn.out"),
        TensorRow("transformer.h.{i}.mlp.fc_in", "blocks.{i}.mlp.up.0"),
        TensorRow("transformer.h.{i}.mlp.fc_out", "blocks.{i}.mlp.down"),
        TensorRow("transformer.ln_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored=CAUSAL_MASK | {r"embed_positions$": "a constant of the rotary positions"},
    # these occur in files on the hub, whose authors' code read them
    constants={"rotary": True, "scale_attn_weights": True},
    without_effect={"n_ctx": "n_positions says it"},
)

PHI = Family(
    name="phi",
    model_class="PhiForCausalLM",
    prefix="model.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 51_200),
        ConfigField("max_position_embeddings", "n_ctx", 2048),
        ConfigField("hidden_size", "d_model", 2048),
        ConfigField("num_hidden_layers", "n_layers", 24),
        ConfigField("num_attention_heads", "attention.n_heads", 32),
        ConfigField("num_key_value_heads", "attention.n_kv_heads", 0, null=0),
        ConfigField("head_dim", "attention.d_head", 0),
        ConfigField("intermediate_size", "mlp.d_ff", 8192),
        ConfigField("hidden_act", "mlp.activation", "gelu_new", ACTIVATIONS),
        ConfigField("layer_norm_eps", "norm.eps", 1e-5),
        ConfigField("qk_layernorm", "attention.qk_norm", False, {True: "layer", False: "none"}),
        ConfigField("embd_pdrop", "dropout.embed", 0.0),
        ConfigField("attention_dropout", "dropout.pattern", 0.0),
        ConfigField("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.0),
        ConfigField("tie_word_embeddings", "unembed", False, TIED),
    ),
    derived=(rotary(0.5),),
    fixed={"positions.kind": "rotary", "positions.layout": "halves", "block": "shared", "readout": "affine"},
    rows=(
        TensorRow("model.embed_tokens", "embed.token"),
        TensorRow("model.layers.{i}.input_layernorm", "blocks.{i}.norm_1"),
        TensorRow("model.layers.{i}.self_attn.q_proj", "blocks.{i}.attn.query"),
        TensorRow("model.layers.{i}.self_attn.k_proj", "blocks.{i}.attn.key"),
        TensorRow("model.layers.{i}.self_attn.v_proj", "blocks.{i}.attn.value"),
        TensorRow("model.layers.{i}.self_attn.q_layernorm", "blocks.{i}.attn.query_norm"),
        TensorRow("model.layers.{i}.self_attn.k_layernorm", "blocks.{i}.attn.key_norm"),
        TensorRow("model.layers.{i}.self_attn.dense", "blocks.{i}.attn.out"),
        TensorRow("model.layers.{i}.mlp.fc1", "blocks.{i}.mlp.up.0"),
        TensorRow("model.layers.{i}.mlp.fc2", "blocks.{i}.mlp.down"),
        TensorRow("model.final_layernorm", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored=ROTARY_FREQUENCIES,
    limits=EVEN_PART,
)


def falcon_block(entries: Entries) -> dict[str, Any]:
    """The blocks of Falcon 7b (one norm, one key head), of its sequential variant, and of 40b and 180b."""
    if entries.flag("alibi", False, False):
        raise FamilyError(
            "alibi = true in config.json: transformers rounds slope times position to bfloat16, so that neighbouring "
            "keys beyond position 256 share one bias, and its eager code adds it twice where its sdpa code adds it "
            "once: only rotary positions (alibi = false) can be represented"
        )
    new, parallel = entries.flag("new_decoder_architecture", False, False), entries.flag("parallel_attn", True, False)
    n_norms = entries.integer("num_ln_in_parallel_attn", 2 if new else 1, 2 if new else 1)
    if (new and not parallel) or n_norms not in ((1, 2) if new else (1,)):
        raise FamilyError(
            f"num_ln_in_parallel_attn = {n_norms}, parallel_attn = {parallel}, new_decoder_architecture = {new} in "
            "config.json: expected parallel attention with 1 or 2 norms where the architecture is new, else 1"
        )
    n_kv_heads, old = entries.integer("num_kv_heads", 0, 0), 1 if entries.flag("multi_query", True, False) else 0
    return {
        "block": "parallel" if n_norms == 2 else "shared" if parallel else "pre",
        "attention.n_kv_heads": n_kv_heads if new else old,
    }


def falcon_entries(a: Architecture) -> dict[str, Any]:
    """The inverse of `falcon_block`, in the older form if that is possible."""
    new = a.block == "parallel" or (a.block == "shared" and a.n_kv_heads not in (1, a.n_heads))
    return {
        "alibi": False,
        "new_decoder_architecture": new,
        "multi_query": a.n_kv_heads == 1,
        "num_kv_heads": a.n_kv_heads,
        "parallel_attn": a.block != "pre",
        "num_ln_in_parallel_attn": 2 if a.block == "parallel" else 1,
    }


FALCON = Family(
    name="falcon",
    model_class="FalconForCausalLM",
    prefix="transformer.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 65_024),
        ConfigField("max_position_embeddings", "n_ctx", 2048),
        ConfigField("hidden_size|n_embed", "d_model", 4544),
        ConfigField("num_hidden_layers|n_layer", "n_layers", 32),
        ConfigField("num_attention_heads|n_head", "attention.n_heads", 71),
        ConfigField("ffn_hidden_size", "mlp.d_ff", 0, null=0),
        ConfigField("activation", "mlp.activation", "gelu", ACTIVATIONS),
        ConfigField("bias", ("attention.bias", "mlp.bias"), False, ALL_OR_NONE, null=False),
        ConfigField("layer_norm_epsilon", "norm.eps", 1e-5),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(rotary(), Derived(falcon_block, falcon_entries)),
    # dropout there falls on the sum of attention and MLP, which no option describes
    fixed={"positions.kind": "rotary", "positions.layout": "halves", "positions.fraction": 1.0}
    | {f"dropout.{site}": 0.0 for site in ("embed", "pattern", "attn_out", "mlp_out")},
    constants={"hidden_dropout": 0.0, "attention_dropout": 0.0, "head_dim": None},
    without_effect={"apply_residual_connection_post_layernorm": "their code of today does not read it"},
    rows=(
        TensorRow("transformer.word_embeddings", "embed.token"),
        TensorRow("transformer.h.{i}.input_layernorm", "blocks.{i}.norm_1", where={"block": ("pre", "shared")}),
        TensorRow("transformer.h.{i}.ln_attn", "blocks.{i}.norm_1", where={"block": ("parallel",)}),
        TensorRow("transformer.h.{i}.self_attention.query_key_value", QKV, fused="heads"),
        TensorRow("transformer.h.{i}.self_attention.dense", "blocks.{i}.attn.out"),
        TensorRow("transformer.h.{i}.post_attention_layernorm", "blocks.{i}.norm_2", where={"block": ("pre",)}),
        TensorRow("transformer.h.{i}.ln_mlp", "blocks.{i}.norm_2", where={"block": ("parallel",)}),
        TensorRow("transformer.h.{i}.mlp.dense_h_to_4h", "blocks.{i}.mlp.up.0"),
        TensorRow("transformer.h.{i}.mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        TensorRow("transformer.ln_f", "final_norm"),
        TensorRow("lm_head", "unembed"),
    ),
    ignored=ROTARY_FREQUENCIES,
    limits=EVEN | {"attention.bias": lambda a: a.attention.bias == "none" or a.mlp.bias == "all"},
)
