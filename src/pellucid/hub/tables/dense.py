"""Dense families near Llama's: other norms, plain MLPs, fused maps, or rotary positions for a part of each head."""

from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.llama import WINDOW, alternating, layer_types, llama_family, rows_without
from pellucid.hub.tables.rotary import OriginalContext, rotary
from pellucid.hub.tables.rows import (
    ALL_OR_NONE,
    ATTENTION_BIAS,
    MLP_BIAS,
    QKV,
    ConfigField,
    Derived,
    TensorRow,
    visible_windows,
)

RESIDUAL = ("dropout.attn_out", "dropout.mlp_out")
PLAIN_LAYER = {
    "norm.kind": "layer",
    "norm.bias": "all",
    "mlp.form": "plain",
}
QKV_BIAS = {True: "qkv", False: "none"}
#: one matrix for the gate and the values that it multiplies
GATE_UP = ("blocks.{i}.mlp.gate", "blocks.{i}.mlp.up.0")

STARCODER2 = llama_family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    sizes=dict(
        vocab_size=49_152,
        max_position_embeddings=4096,
        hidden_size=3072,
        intermediate_size=12_288,
        num_hidden_layers=30,
        num_attention_heads=24,
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    ),
    omit=(
        "rms_norm_eps",
        "head_dim",
    ),
    fields=(
        ConfigField("norm_epsilon", "norm.eps", 1e-5),
        ConfigField("use_bias", ("attention.bias", "mlp.bias"), True, ALL_OR_NONE),
        ConfigField("residual_dropout", RESIDUAL, 0.0),
        ConfigField("embedding_dropout", "dropout.embed", 0.0),
    ),
    derived=(rotary(), WINDOW),
    # the first files of StarCoder2 name these, which their code of today fixes
    constants={"head_dim": None, "mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
    fixed=PLAIN_LAYER,
    rows=(
        *rows_without(".mlp."),
        TensorRow("model.layers.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0"),
        TensorRow("model.layers.{i}.mlp.c_proj", "blocks.{i}.mlp.down"),
    ),
    without_effect={"activation_function": "hidden_act says it", "layer_norm_epsilon": "norm_epsilon says it"}
    | dict.fromkeys(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"), "the precision of the softmax"),
)

NEMOTRON = llama_family(
    "nemotron",
    "NemotronForCausalLM",
    sizes=dict(
        vocab_size=256_000,
        max_position_embeddings=4096,
        hidden_size=6144,
        intermediate_size=24_576,
        num_attention_heads=48,
        hidden_act="relu2",
    ),
    omit=("rms_norm_eps",),
    fields=(
        ConfigField("norm_eps", "norm.eps", 1e-5),
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
    derived=(rotary(0.5),),
    free=("positions.fraction",),
    fixed=PLAIN_LAYER | {"norm.gain": "1+g"},
    rows=rows_without("gate_proj"),
)

ARCEE = llama_family(
    "arcee",
    "ArceeForCausalLM",
    sizes=dict(
        max_position_embeddings=4096, hidden_size=2560, intermediate_size=18_432, rms_norm_eps=1e-5, hidden_act="relu2"
    ),
    fields=(
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
    fixed={
        "mlp.form": "plain",
    },
    rows=rows_without("gate_proj"),
)

#: in their older files longrope is called su or yarn
PHI3_KINDS = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
PHI3_TRAINED = OriginalContext(PHI3_KINDS, default=4096)


def scaled_as_phi3(a: Architecture) -> bool:
    """Whether rotary positions are scaled as longrope or not at all."""
    return a.positions.scaling == "longrope" or not a.scales_rotation


PHI3 = llama_family(
    "phi3",
    "Phi3ForCausalLM",
    sizes=dict(
        vocab_size=32_064, max_position_embeddings=4096, hidden_size=3072, intermediate_size=8192, rms_norm_eps=1e-5
    ),
    omit=("head_dim",),
    fields=(ConfigField("resid_pdrop", RESIDUAL, 0.0),),
    derived=(rotary(1.0, trained=PHI3_TRAINED), WINDOW),
    # the files of Phi-3.5 and Phi-4 name options that the published code, and transformers', has no other values of
    constants={"head_dim": None, "attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
    | {"full_attn_mod": 1, "interpolate_factor": 1},
    free=("positions.fraction",),
    rows=(
        *rows_without("q_", "k_", "v_proj", "gate_proj", "up_proj"),
        TensorRow("model.layers.{i}.self_attn.qkv_proj", QKV),
        TensorRow("model.layers.{i}.mlp.gate_up_proj", GATE_UP),
    ),
    without_effect={"embd_pdrop": "their code of today does not read it"},
    limits={"positions.scaling": scaled_as_phi3},
)

GLM = llama_family(
    "glm",
    "GlmForCausalLM",
    sizes=dict(
        vocab_size=151_552,
        max_position_embeddings=131_072,
        intermediate_size=13_696,
        num_hidden_layers=40,
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=1.5625e-7,
    ),
    fields=(ConfigField("attention_bias", "attention.bias", True, QKV_BIAS),),
    derived=(rotary(0.5),),
    free=("positions.fraction",),
    fixed={"positions.layout": "pairs", "block": "pre"},
    rows=(
        *rows_without("gate_proj", "up_proj"),
        TensorRow("model.layers.{i}.mlp.gate_up_proj", GATE_UP),
    ),
)

#: a norm before and after each sublayer
GLM4_NORMS = {
    "input_layernorm": "norm_1",
    "post_self_attn_layernorm": "norm_1_out",
    "post_attention_layernorm": "norm_2",
    "post_mlp_layernorm": "norm_2_out",
}
GLM4 = replace(
    GLM,
    name="glm4",
    model_class="Glm4ForCausalLM",
    body="",
    fixed={**GLM.fixed, "block": "sandwich"},
    rows=(
        *(row for row in GLM.rows if "layernorm" not in row.theirs),
        *(TensorRow(f"model.layers.{{i}}.{theirs}", f"blocks.{{i}}.{ours}") for theirs, ours in GLM4_NORMS.items()),
    ),
)


SEED_BIASES = {(True, True): "all", (True, False): "qkv", (False, True): "out", (False, False): "none"}


def seed_biases(entries: Entries) -> dict[str, Any]:
    """Biases of queries, keys and values, and of the output, by two entries."""
    of_inputs, of_output = entries.flag("attention_bias", True), entries.flag("attention_out_bias", False)
    return {"attention.bias": SEED_BIASES[of_inputs, of_output]}


SEED_OSS = llama_family(
    "seed_oss",
    "SeedOssForCausalLM",
    sizes=dict(
        vocab_size=155_136,
        max_position_embeddings=524_288,
        intermediate_size=27_648,
        num_hidden_layers=64,
        num_attention_heads=80,
        num_key_value_heads=8,
        head_dim=128,
        attention_dropout=0.1,
    ),
    fields=(
        MLP_BIAS,
        ConfigField("residual_dropout", RESIDUAL, 0.1),
    ),
    free=("attention.bias",),
    derived=(
        rotary(),
        Derived(
            seed_biases,
            lambda a: {
                "attention_bias": a.attention.bias in ("qkv", "all"),
                "attention_out_bias": a.attention.bias in ("out", "all"),
            },
        ),
    ),
)


def ministral_windows(entries: Entries) -> dict[str, Any]:
    """Every layer has the window, unless layer_types names those without."""
    width = entries.integer("sliding_window", 4096, None)
    return alternating(entries, width, lambda i: width is not None)


MINISTRAL = llama_family(
    "ministral",
    "MinistralForCausalLM",
    sizes=dict(num_key_value_heads=8, intermediate_size=14_336, max_position_embeddings=131_072),
    derived=(rotary(), Derived(ministral_windows, layer_types)),
    # their class refuses a model without a window
    export_limits={"attention.windows": lambda a: any(visible_windows(a))},
)
