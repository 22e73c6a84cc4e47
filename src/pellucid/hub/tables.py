"""The tables of the families: Hugging Face names beside ours. A family made of existing words is one more table.

A row names a module; `.weight` and `.bias` follow it on both sides (a norm's weight is our gain). `{i}`
counts the layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.architecture import Architecture


@dataclass(frozen=True)
class Row:
    """A module of theirs, and the module of ours that it is, or the several that it holds as one.

    transposed  theirs is stored in x out (GPT-2's Conv1D)
    fused       how rows of several modules of ours lie in theirs: one module after the other, or
                head by head (q_1 k_1 v_1 q_2 k_2 v_2 ...)
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    fused: Literal["modules", "heads"] = "modules"

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Field:
    """An entry of their config.json, the fields of ours that it sets, and its value where it is absent or null.

    `theirs` is a path; older spellings that are read and not written follow after `|`. `words` translates values.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any
    words: Mapping[Any, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Family:
    """One family. `name` is the model_type of its config.json.

    words      what every model of the family is, in our words
    constants  entries of config.json that say the same; another value there is refused
    ignored    pattern of their tensor names -> why we have none of that name
    twins      their tensors that repeat another of theirs: name -> the other
    spellings  older names of tensors, replaced wherever they occur
    limits     our field -> whether the family can hold the architecture's value, where the config alone cannot tell
    """

    name: str
    model_class: str
    prefix: str
    fields: tuple[Field, ...]
    rows: tuple[Row, ...]
    words: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
TIED = {True: "tied", False: "untied"}
QKV = ("blocks.{i}.attn.query", "blocks.{i}.attn.key", "blocks.{i}.attn.value")

GPT2 = Family(
    name="gpt2",
    model_class="GPT2LMHeadModel",
    prefix="transformer.",
    fields=(
        Field("vocab_size", "n_vocab", 50257),
        Field("n_positions", "n_ctx", 1024),
        Field("n_embd", "d_model", 768),
        Field("n_layer", "n_layers", 12),
        Field("n_head", "attention.n_heads", 12),
        Field("n_inner", "mlp.d_ff", 0),
        Field("activation_function", "mlp.activation", "gelu_new", ACTIVATIONS),
        Field("layer_norm_epsilon", "norm.eps", 1e-5),
        Field("scale_attn_weights", "attention.scale", True, {True: "1/sqrt(d_head)", False: "1"}),
        Field("embd_pdrop", "dropout.embed", 0.1),
        Field("attn_pdrop", "dropout.pattern", 0.1),
        Field("resid_pdrop", ("dropout.attn_out", "dropout.mlp_out"), 0.1),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    constants={
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    rows=(
        Row("transformer.wte", "embed.token"),
        Row("transformer.wpe", "embed.position"),
        Row("transformer.h.{i}.ln_1", "blocks.{i}.norm_1"),
        Row("transformer.h.{i}.attn.c_attn", QKV, transposed=True),
        Row("transformer.h.{i}.attn.c_proj", "blocks.{i}.attn.out", transposed=True),
        Row("transformer.h.{i}.ln_2", "blocks.{i}.norm_2"),
        Row("transformer.h.{i}.mlp.c_fc", "blocks.{i}.mlp.up.0", transposed=True),
        Row("transformer.h.{i}.mlp.c_proj", "blocks.{i}.mlp.down", transposed=True),
        Row("transformer.ln_f", "final_norm"),
        Row("lm_head", "unembed"),
    ),
    ignored={r"\.attn\.(masked_)?bias$": "the causal mask, written out"},
)

GPT_NEOX = Family(
    name="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    fields=(
        Field("vocab_size", "n_vocab", 50432),
        Field("max_position_embeddings", "n_ctx", 2048),
        Field("hidden_size", "d_model", 6144),
        Field("num_hidden_layers", "n_layers", 44),
        Field("num_attention_heads", "attention.n_heads", 64),
        Field("intermediate_size", "mlp.d_ff", 24576),
        Field("hidden_act", "mlp.activation", "gelu", ACTIVATIONS),
        Field("layer_norm_eps", "norm.eps", 1e-5),
        Field("rope_parameters.rope_theta|rotary_emb_base", "positions.base", 10_000.0),
        Field("rope_parameters.partial_rotary_factor|rotary_pct", "positions.fraction", 0.25),
        Field("attention_bias", "attention.bias", True, {True: "all", False: "none"}),
        Field("use_parallel_residual", "block", True, {True: "parallel", False: "pre"}),
        Field("attention_dropout", "dropout.pattern", 0.0),
        Field("hidden_dropout", ("dropout.embed", "dropout.attn_out", "dropout.mlp_out"), 0.0),
        Field("tie_word_embeddings", "unembed", False, TIED),
    ),
    words={"positions.kind": "rotary"},
    constants={"rope_parameters.rope_type": "default", "rope_scaling": None},
    rows=(
        Row("gpt_neox.embed_in", "embed.token"),
        Row("gpt_neox.layers.{i}.input_layernorm", "blocks.{i}.norm_1"),
        Row("gpt_neox.layers.{i}.attention.query_key_value", QKV, fused="heads"),
        Row("gpt_neox.layers.{i}.attention.dense", "blocks.{i}.attn.out"),
        Row("gpt_neox.layers.{i}.post_attention_layernorm", "blocks.{i}.norm_2"),
        Row("gpt_neox.layers.{i}.mlp.dense_h_to_4h", "blocks.{i}.mlp.up.0"),
        Row("gpt_neox.layers.{i}.mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        Row("gpt_neox.final_layer_norm", "final_norm"),
        Row("lm_head", "unembed"),
    ),
    spellings={"embed_out.": "lm_head."},
    ignored={
        r"\.attention\.(masked_)?bias$": "the causal mask, written out",
        r"rotary_emb\.inv_freq$": "a constant of the rotary positions",
    },
    # of an odd width their tables turn one coordinate more than there is
    limits={"positions.fraction": lambda a: int(a.d_head * a.positions.fraction) % 2 == 0},
)

BERT = Family(
    name="bert",
    model_class="BertForMaskedLM",
    prefix="bert.",
    fields=(
        Field("vocab_size", "n_vocab", 30522),
        Field("max_position_embeddings", "n_ctx", 512),
        Field("hidden_size", "d_model", 768),
        Field("num_hidden_layers", "n_layers", 12),
        Field("num_attention_heads", "attention.n_heads", 12),
        Field("intermediate_size", "mlp.d_ff", 3072),
        Field("hidden_act", "mlp.activation", "gelu", ACTIVATIONS),
        Field("type_vocab_size", "n_segments", 2),
        Field("layer_norm_eps", "norm.eps", 1e-12),
        Field("attention_probs_dropout_prob", "dropout.pattern", 0.1),
        Field("hidden_dropout_prob", ("dropout.embed", "dropout.attn_out", "dropout.mlp_out"), 0.1),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    words={
        "attention.mask": "bidirectional",
        "block": "post",
        "embed_norm": "norm",
        "final_norm": "none",
        "readout": "bert",
    },
    constants={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    rows=(
        Row("bert.embeddings.word_embeddings", "embed.token"),
        Row("bert.embeddings.position_embeddings", "embed.position"),
        Row("bert.embeddings.token_type_embeddings", "embed.segment"),
        Row("bert.embeddings.LayerNorm", "embed.norm"),
        Row("bert.encoder.layer.{i}.attention.self.query", "blocks.{i}.attn.query"),
        Row("bert.encoder.layer.{i}.attention.self.key", "blocks.{i}.attn.key"),
        Row("bert.encoder.layer.{i}.attention.self.value", "blocks.{i}.attn.value"),
        Row("bert.encoder.layer.{i}.attention.output.dense", "blocks.{i}.attn.out"),
        Row("bert.encoder.layer.{i}.attention.output.LayerNorm", "blocks.{i}.norm_1"),
        Row("bert.encoder.layer.{i}.intermediate.dense", "blocks.{i}.mlp.up.0"),
        Row("bert.encoder.layer.{i}.output.dense", "blocks.{i}.mlp.down"),
        Row("bert.encoder.layer.{i}.output.LayerNorm", "blocks.{i}.norm_2"),
        Row("cls.predictions.transform.dense", "unembed.dense"),
        Row("cls.predictions.transform.LayerNorm", "unembed.norm"),
        Row("cls.predictions.decoder", "unembed"),
    ),
    twins={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    spellings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    ignored={
        r"embeddings\.position_ids$": "0, 1, 2, ...",
        r"^bert\.pooler\.": "the pooler, which no language model reads",
        r"^cls\.seq_relationship\.": "the next-sentence head, which no language model reads",
    },
    limits={"n_segments": lambda a: a.n_segments >= 1},
)

FAMILIES = {family.name: family for family in (GPT2, GPT_NEOX, BERT)}
