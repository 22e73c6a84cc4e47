"""ModernBERT: a masked model of pre-norm blocks, with rotary positions, gated MLPs and windows (Warner et al. 2024)."""

from functools import partial
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError, format_value
from pellucid.hub.tables.gemma import two_bases, two_entries
from pellucid.hub.tables.llama import alternating
from pellucid.hub.tables.rotary import EVEN
from pellucid.hub.tables.rows import (
    ACTIVATIONS,
    ALL_OR_NONE,
    ATTENTION_BIAS,
    MLP_BIAS,
    QKV,
    ROTARY_FREQUENCIES,
    TIED,
    ConfigField,
    Derived,
    Family,
    TensorRow,
)

#: (classifier_bias, decoder_bias) -> which of the readout's maps have a bias
BIASES = {(True, True): "all", (True, False): "dense", (False, True): "logits", (False, False): "none"}


def layers(entries: Entries) -> dict[str, Any]:
    """One of three layers reads all positions, the others those at most local_attention / 2 away on either side."""
    every = entries.integer("global_attn_every_n_layers", 3)
    width = entries.integer("local_attention", 128, least=0)
    # their class takes it in the place of local_attention / 2
    if (half := entries.integer("sliding_window", width // 2, least=0)) != width // 2:
        raise FamilyError(
            f"sliding_window = {half} and local_attention = {width} in config.json: expected sliding_window to be half "
            "of local_attention, or to be left out"
        )
    return alternating(entries, half + 1, lambda i: i % every > 0, n_layers=22)


def layer_entries(a: Architecture) -> dict[str, Any]:
    """The inverse: windows of one width, or none."""
    windows = [a.window(layer) for layer in range(a.n_layers)]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": kinds, "local_attention": 2 * ((max(windows, default=0) or a.n_ctx) - 1)}


def activation(entries: Entries) -> dict[str, Any]:
    """The activation of the MLPs and of the readout, for which Pellucid has one option."""
    of_blocks, of_readout = (
        entries.choice(name, "gelu", ACTIVATIONS.keys()) for name in ("hidden_activation", "classifier_activation")
    )
    if ACTIVATIONS[of_blocks] != ACTIVATIONS[of_readout]:
        raise FamilyError(
            f"classifier_activation = {format_value(of_readout)} and "
            f"hidden_activation = {format_value(of_blocks)} in config.json: "
            "Pellucid has one activation for the MLPs and the readout"
        )
    return {"mlp.activation": ACTIVATIONS[of_blocks]}


def activation_entries(a: Architecture) -> dict[str, Any]:
    """The inverse."""
    name = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == a.mlp.activation), None)
    return {"hidden_activation": name, "classifier_activation": name}


def readout_bias(entries: Entries) -> dict[str, Any]:
    """Which maps of the readout have a bias."""
    return {"readout_bias": BIASES[entries.flag("classifier_bias", False), entries.flag("decoder_bias", True)]}


def readout_flags(a: Architecture) -> dict[str, Any]:
    """The inverse."""
    dense, logits = next(flags for flags, word in BIASES.items() if word == a.readout_bias)
    return {"classifier_bias": dense, "decoder_bias": logits}


BASES = partial(two_bases, default=160_000.0, entry="global_rope_theta", local_entry="local_rope_theta")
MODERNBERT = Family(
    name="modernbert",
    model_class="ModernBertForMaskedLM",
    prefix="model.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 50_368),
        ConfigField("max_position_embeddings", "n_ctx", 8192),
        ConfigField("hidden_size", "d_model", 768),
        ConfigField("num_hidden_layers", "n_layers", 22),
        ConfigField("num_attention_heads", "attention.n_heads", 12),
        ConfigField("intermediate_size", "mlp.d_ff", 1152),
        ConfigField("norm_eps", "norm.eps", 1e-5),
        ConfigField("norm_bias", "norm.bias", False, ALL_OR_NONE),
        ATTENTION_BIAS,
        MLP_BIAS,
        ConfigField("attention_dropout", ("dropout.pattern", "dropout.attn_out"), 0.0),
        ConfigField("embedding_dropout", "dropout.embed", 0.0),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    derived=(
        Derived(activation, activation_entries),
        Derived(readout_bias, readout_flags),
        Derived(layers, layer_entries),
        Derived(BASES, two_entries),
    ),
    fixed={
        "attention.mask": "bidirectional",
        "positions.kind": "rotary",
        "positions.layout": "halves",
        "positions.fraction": 1.0,
        "norm.kind": "layer",
        "mlp.form": "gated",
        "mlp.n_hidden": 1,
        "block": "pre",
        "first_norm": "none",
        "embed_norm": "norm",
        "final_norm": "norm",
        "readout": "bert",
    },
    # rope_scaling would scale the positions of layers with a window too; with head_dim their rotary tables would have
    # another width than their heads
    constants={"rope_scaling": None, "head_dim": None},
    without_effect={
        "layer_norm_eps": "norm_eps says it",
        "position_embedding_type": "their code does not read it",
        "mlp_dropout": "read in training alone",
        "initializer_cutoff_factor": "how the weights were when training began",
        "deterministic_flash_attn": "how the computation is carried out",
        "reference_compile": "how the computation is carried out",
        "repad_logits_with_grad": "how the computation is carried out",
        "classifier_pooling": "heads for other tasks",
        "sparse_prediction": "which logits a loss is computed of",
        "sparse_pred_ignore_index": "which logits a loss is computed of",
    },
    rows=(
        TensorRow("model.embeddings.tok_embeddings", "embed.token"),
        TensorRow("model.embeddings.norm", "embed.norm"),
        TensorRow("model.layers.{i}.attn_norm", "blocks.{i}.norm_1"),
        TensorRow("model.layers.{i}.attn.Wqkv", QKV),
        TensorRow("model.layers.{i}.attn.Wo", "blocks.{i}.attn.out"),
        TensorRow("model.layers.{i}.mlp_norm", "blocks.{i}.norm_2"),
        TensorRow("model.layers.{i}.mlp.Wi", ("blocks.{i}.mlp.gate", "blocks.{i}.mlp.up.0")),
        TensorRow("model.layers.{i}.mlp.Wo", "blocks.{i}.mlp.down"),
        TensorRow("model.final_norm", "final_norm"),
        TensorRow("head.dense", "unembed.dense"),
        TensorRow("head.norm", "unembed.norm"),
        TensorRow("decoder", "unembed"),
    ),
    ignored=ROTARY_FREQUENCIES,
    limits=EVEN,
)
