"""Masked models: BERT and its relatives."""

import dataclasses
from typing import Any

from pellucid.hub.tables.entries import BOUNDS, Entries
from pellucid.hub.tables.rows import ACTIVATIONS, POSITION_IDS, TIED, ConfigField, Derived, Family, TensorRow

BERT = Family(
    name="bert",
    model_class="BertForMaskedLM",
    prefix="bert.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 30522),
        ConfigField("max_position_embeddings", "n_ctx", 512),
        ConfigField("hidden_size", "d_model", 768),
        ConfigField("num_hidden_layers", "n_layers", 12),
        ConfigField("num_attention_heads", "attention.n_heads", 12),
        ConfigField("intermediate_size", "mlp.d_ff", 3072),
        ConfigField("hidden_act", "mlp.activation", "gelu", ACTIVATIONS),
        ConfigField("type_vocab_size", "n_segments", 2),
        ConfigField("layer_norm_eps", "norm.eps", 1e-12),
        ConfigField("attention_probs_dropout_prob", "dropout.pattern", 0.1),
        ConfigField("hidden_dropout_prob", ("dropout.embed", "dropout.attn_out", "dropout.mlp_out"), 0.1),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    fixed={
        "attention.mask": "bidirectional",
        "block": "post",
        "embed_norm": "norm",
        "final_norm": "none",
        "readout": "bert",
    },
    constants={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    rows=(
        TensorRow("bert.embeddings.word_embeddings", "embed.token"),
        TensorRow("bert.embeddings.position_embeddings", "embed.position"),
        TensorRow("bert.embeddings.token_type_embeddings", "embed.segment"),
        TensorRow("bert.embeddings.LayerNorm", "embed.norm"),
        TensorRow("bert.encoder.layer.{i}.attention.self.query", "blocks.{i}.attn.query"),
        TensorRow("bert.encoder.layer.{i}.attention.self.key", "blocks.{i}.attn.key"),
        TensorRow("bert.encoder.layer.{i}.attention.self.value", "blocks.{i}.attn.value"),
        TensorRow("bert.encoder.layer.{i}.attention.output.dense", "blocks.{i}.attn.out"),
        TensorRow("bert.encoder.layer.{i}.attention.output.LayerNorm", "blocks.{i}.norm_1"),
        TensorRow("bert.encoder.layer.{i}.intermediate.dense", "blocks.{i}.mlp.up.0"),
        TensorRow("bert.encoder.layer.{i}.output.dense", "blocks.{i}.mlp.down"),
        TensorRow("bert.encoder.layer.{i}.output.LayerNorm", "blocks.{i}.norm_2"),
        TensorRow("cls.predictions.transform.dense", "unembed.dense"),
        TensorRow("cls.predictions.transform.LayerNorm", "unembed.norm"),
        TensorRow("cls.predictions.decoder", "unembed"),
    ),
    tied={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    renames={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    ignored={
        **POSITION_IDS,
        r"^bert\.pooler\.": "the pooler, which no language model reads",
        r"^cls\.seq_relationship\.": "the next-sentence head, which no language model reads",
    },
    limits={"n_segments": lambda a: a.n_segments >= 1},
)

#: their positions have two unused rows for padding: the first token has row 2, after pad_token_id = 1
OFFSET = Derived(
    lambda entries: {"n_ctx": entries.integer("max_position_embeddings", 512, least=3, most=BOUNDS["n_ctx"] + 2) - 2},
    lambda a: {"max_position_embeddings": a.n_ctx + 2},
)
ROBERTA_NAMES = {
    "bert.": "roberta.",
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    "cls.predictions.decoder": "lm_head.decoder",
}


def renamed(name: str, names: dict[str, str]) -> str:
    """A module's name with the first matching prefix replaced."""
    return next((new + name[len(old) :] for old, new in names.items() if name.startswith(old)), name)


ROBERTA = Family(
    name="roberta",
    model_class="RobertaForMaskedLM",
    prefix="roberta.",
    fields=(
        *(f for f in BERT.fields if f.theirs not in ("max_position_embeddings", "hidden_act", "vocab_size")),
        ConfigField("vocab_size", "n_vocab", 50_265),
        # the readout always uses gelu, whatever the blocks use, and Pellucid has one option for both
        ConfigField("hidden_act", "mlp.activation", "gelu", {"gelu": "gelu"}),
    ),
    derived=(OFFSET,),
    fixed=BERT.fixed,
    constants={**BERT.constants, "pad_token_id": 1},
    rows=tuple(
        dataclasses.replace(
            row, theirs=renamed(row.theirs, ROBERTA_NAMES), position_offset=2 if row.ours == "embed.position" else 0
        )
        for row in BERT.rows
    ),
    tied={"lm_head.bias": "lm_head.decoder.bias"},
    renames=BERT.renames,
    ignored={
        **POSITION_IDS,
        r"^roberta\.pooler\.": "the pooler, which no language model reads",
    },
    limits=BERT.limits,
)

#: the same network; its class takes another number of tokens where config.json gives none
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    name="xlm-roberta",
    model_class="XLMRobertaForMaskedLM",
    body="",
    fields=tuple(dataclasses.replace(f, default=30_522) if f.theirs == "vocab_size" else f for f in ROBERTA.fields),
)

ELECTRA_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size")
ELECTRA_NAMES = {
    "bert.": "electra.",
    "cls.predictions.transform.dense": "generator_predictions.dense",
    "cls.predictions.transform.LayerNorm": "generator_predictions.LayerNorm",
    "cls.predictions.decoder": "generator_lm_head",
}


def electra_width(entries: Entries) -> dict[str, Any]:
    """Embeddings as wide as the stream, or the norm of their sum projected to its width (small: 128 to 256)."""
    narrow, wide = entries.integer("embedding_size", 128), entries.integer("hidden_size", 256)
    if narrow == wide:
        return {"d_model": wide, "d_embed": 0, "embed_projection": "tokens"}
    return {"d_model": wide, "d_embed": narrow, "embed_projection": "sum"}


ELECTRA = Family(
    name="electra",
    model_class="ElectraForMaskedLM",
    prefix="electra.",
    # the discriminator gives each token one number, for which there is no readout
    headless=("ElectraForPreTraining",),
    fields=(
        *(f for f in BERT.fields if f.theirs not in ELECTRA_SIZES and f.theirs != "hidden_act"),
        ConfigField("num_attention_heads", "attention.n_heads", 4),
        ConfigField("intermediate_size", "mlp.d_ff", 1024),
        # as RoBERTa's readout
        ConfigField("hidden_act", "mlp.activation", "gelu", {"gelu": "gelu"}),
    ),
    derived=(Derived(electra_width, lambda a: {"embedding_size": a.embed_width, "hidden_size": a.d_model}),),
    fixed=BERT.fixed,
    constants=BERT.constants,
    rows=(
        *(dataclasses.replace(row, theirs=renamed(row.theirs, ELECTRA_NAMES)) for row in BERT.rows),
        TensorRow("electra.embeddings_project", "embed.projection"),
    ),
    renames=BERT.renames,
    ignored={
        **POSITION_IDS,
        r"^discriminator_predictions\.": "the discriminator's number for each token, which is no logit of a token",
    },
    limits=BERT.limits,
)

DISTILBERT = Family(
    name="distilbert",
    model_class="DistilBertForMaskedLM",
    prefix="distilbert.",
    fields=(
        ConfigField("vocab_size", "n_vocab", 30_522),
        ConfigField("max_position_embeddings", "n_ctx", 512),
        ConfigField("dim|hidden_size", "d_model", 768),
        ConfigField("n_layers|num_hidden_layers", "n_layers", 6),
        ConfigField("n_heads|num_attention_heads", "attention.n_heads", 12),
        ConfigField("hidden_dim", "mlp.d_ff", 3072),
        ConfigField("activation", "mlp.activation", "gelu", ACTIVATIONS),
        ConfigField("attention_dropout", "dropout.pattern", 0.1),
        ConfigField("dropout", ("dropout.embed", "dropout.mlp_out"), 0.1),
        ConfigField("tie_word_embeddings", "unembed", True, TIED),
    ),
    fixed={**BERT.fixed, "norm.eps": 1e-12, "n_segments": 0},
    constants={"sinusoidal_pos_embds": False},
    without_effect={"tie_weights_": "tie_word_embeddings says it"},
    rows=(
        TensorRow("distilbert.embeddings.word_embeddings", "embed.token"),
        TensorRow("distilbert.embeddings.position_embeddings", "embed.position"),
        TensorRow("distilbert.embeddings.LayerNorm", "embed.norm"),
        TensorRow("distilbert.transformer.layer.{i}.attention.q_lin", "blocks.{i}.attn.query"),
        TensorRow("distilbert.transformer.layer.{i}.attention.k_lin", "blocks.{i}.attn.key"),
        TensorRow("distilbert.transformer.layer.{i}.attention.v_lin", "blocks.{i}.attn.value"),
        TensorRow("distilbert.transformer.layer.{i}.attention.out_lin", "blocks.{i}.attn.out"),
        TensorRow("distilbert.transformer.layer.{i}.sa_layer_norm", "blocks.{i}.norm_1"),
        TensorRow("distilbert.transformer.layer.{i}.ffn.lin1", "blocks.{i}.mlp.up.0"),
        TensorRow("distilbert.transformer.layer.{i}.ffn.lin2", "blocks.{i}.mlp.down"),
        TensorRow("distilbert.transformer.layer.{i}.output_layer_norm", "blocks.{i}.norm_2"),
        TensorRow("vocab_transform", "unembed.dense"),
        TensorRow("vocab_layer_norm", "unembed.norm"),
        TensorRow("vocab_projector", "unembed"),
    ),
    ignored=POSITION_IDS,
)
