"""The architectures of llama.cpp that GGUF files are read and written of, as tables of their entries and tensors.

An entry has no architecture in front of its name here: `block_count` is `llama.block_count` in a file. What a file says
by its tensors, or leaves open, is read as entries that begin with `tensors.`, which no file holds.
"""

from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import REFUSED, Entries
from pellucid.hub.tables.llama import LLAMA_OPTIONS
from pellucid.hub.tables.rotary import EVEN
from pellucid.hub.tables.rows import ALL_OR_NONE, QKV, TIED, ConfigField, Derived, Family, TensorRow

#: the numbers of Llama 3's scaling, in the order of `tensors.llama3`
LLAMA3_FIELDS = ("positions.factor", "positions.low", "positions.high", "positions.n_trained")

SIZES = (
    ConfigField("tensors.n_vocab", "n_vocab", REFUSED),
    ConfigField("tensors.tied", "unembed", True, TIED),
    ConfigField("block_count", "n_layers", REFUSED),
    ConfigField("context_length", "n_ctx", REFUSED),
    ConfigField("embedding_length", "d_model", REFUSED),
    ConfigField("feed_forward_length", "mlp.d_ff", REFUSED),
    ConfigField("attention.head_count", "attention.n_heads", REFUSED),
)

GPT2 = Family(
    name="gpt2",
    model_class="",
    prefix="",
    source="the GGUF file",
    fields=(*SIZES, ConfigField("attention.layer_norm_epsilon", "norm.eps", REFUSED)),
    rows=(
        TensorRow("token_embd", "embed.token"),
        TensorRow("position_embd", "embed.position"),
        TensorRow("blk.{i}.attn_norm", "blocks.{i}.norm_1"),
        TensorRow("blk.{i}.attn_qkv", QKV),
        TensorRow("blk.{i}.attn_output", "blocks.{i}.attn.out"),
        TensorRow("blk.{i}.ffn_norm", "blocks.{i}.norm_2"),
        TensorRow("blk.{i}.ffn_up", "blocks.{i}.mlp.up.0"),
        TensorRow("blk.{i}.ffn_down", "blocks.{i}.mlp.down"),
        TensorRow("output_norm", "final_norm"),
        TensorRow("output", "unembed"),
    ),
)


def rotary_positions(entries: Entries) -> dict[str, Any]:
    """The base and the scaling. As in llama.cpp, a missing type is linear, the factor may have its older name, and 0
    stands for 1.
    """
    base = {"positions.base": entries.number("rope.freq_base", 10_000.0, above=0)}
    kind = entries.choice("rope.scaling.type", "linear", ("linear", "none"))
    factor = entries.number("rope.scaling.factor", entries.number("rope.scale_linear", 0.0))
    if (llama3 := entries.raw("tensors.llama3")) is not None:
        return base | {"positions.scaling": "llama3"} | dict(zip(LLAMA3_FIELDS, llama3, strict=True))
    if kind == "none" or factor in (0, 1):
        return base | {"positions.scaling": "none"}
    return base | {"positions.scaling": "linear", "positions.factor": factor}


def rotary_entries(a: Architecture) -> dict[str, Any]:
    """The inverse; of Llama 3's scaling a file holds nothing but a tensor of factors."""
    p = a.positions
    entries: dict[str, Any] = {"rope.freq_base": p.base}
    if p.scaling == "linear":
        entries |= {"rope.scaling.type": "linear", "rope.scaling.factor": p.factor}
    if p.scaling == "llama3":
        entries |= {"tensors.llama3": (p.factor, p.low, p.high, p.n_trained)}
    return entries


def head_width_entries(*names: str) -> Derived:
    """Entries that say the width of a head once more; a reader compares them with it."""
    return Derived(lambda entries: {}, lambda a: dict.fromkeys(names, a.d_head))


ROTARY = Derived(rotary_positions, rotary_entries)
HEADS = (
    ConfigField("attention.head_count_kv", "attention.n_kv_heads", 0),
    ConfigField("attention.key_length", "attention.d_head", 0),
    ConfigField("attention.layer_norm_rms_epsilon", "norm.eps", REFUSED),
)
QWEN3 = Family(
    name="qwen3",
    model_class="",
    prefix="",
    source="the GGUF file",
    fields=(*SIZES, *HEADS),
    derived=(ROTARY, head_width_entries("attention.value_length")),
    fixed={**LLAMA_OPTIONS, "mlp.activation": "silu", "attention.qk_norm": "rms"},
    rows=(
        TensorRow("token_embd", "embed.token"),
        TensorRow("blk.{i}.attn_norm", "blocks.{i}.norm_1"),
        TensorRow("blk.{i}.attn_q", "blocks.{i}.attn.query"),
        TensorRow("blk.{i}.attn_k", "blocks.{i}.attn.key"),
        TensorRow("blk.{i}.attn_v", "blocks.{i}.attn.value"),
        TensorRow("blk.{i}.attn_q_norm", "blocks.{i}.attn.query_norm"),
        TensorRow("blk.{i}.attn_k_norm", "blocks.{i}.attn.key_norm"),
        TensorRow("blk.{i}.attn_output", "blocks.{i}.attn.out"),
        TensorRow("blk.{i}.ffn_norm", "blocks.{i}.norm_2"),
        TensorRow("blk.{i}.ffn_gate", "blocks.{i}.mlp.gate"),
        TensorRow("blk.{i}.ffn_up", "blocks.{i}.mlp.up.0"),
        TensorRow("blk.{i}.ffn_down", "blocks.{i}.mlp.down"),
        TensorRow("output_norm", "final_norm"),
        TensorRow("output", "unembed"),
    ),
    limits=EVEN,
)

FREE_IN_LLAMA = ("attention.bias", "mlp.bias", "positions.layout")
LLAMA = Family(
    name="llama",
    model_class="",
    prefix="",
    source="the GGUF file",
    fields=(
        *SIZES,
        *HEADS,
        ConfigField("tensors.attention_bias", "attention.bias", False, ALL_OR_NONE),
        ConfigField("tensors.mlp_bias", "mlp.bias", False, ALL_OR_NONE),
        ConfigField("tensors.layout", "positions.layout", "halves", {"halves": "halves", "pairs": "pairs"}),
    ),
    derived=(
        ROTARY,
        head_width_entries("attention.value_length", "rope.dimension_count"),
        Derived(lambda entries: {}, lambda a: {"vocab_size": a.n_vocab}),
    ),
    fixed={name: word for name, word in LLAMA_OPTIONS.items() if name not in FREE_IN_LLAMA}
    | {"mlp.activation": "silu"},
    rows=tuple(replace(row, fused="pairs") if row.theirs.endswith(("attn_q", "attn_k")) else row for row in QWEN3.rows),
    limits=EVEN,
)
GGUF_FAMILIES = {family.name: family for family in (GPT2, LLAMA, QWEN3)}
