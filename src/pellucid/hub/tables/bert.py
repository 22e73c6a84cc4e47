"""Masked models: BERT and its kin."""

import dataclasses

from pellucid.hub.tables.entries import BOUNDS
from pellucid.hub.tables.rows import ACTIVATIONS, TIED, Derived, Family, Field, Row

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

#: rows 0 and 1 of their positions belong to padding: the first token is at 2, after pad_token_id = 1
OFFSET = Derived(
    lambda entries: {"n_ctx": entries.whole("max_position_embeddings", 512, least=3, most=BOUNDS["n_ctx"] + 2) - 2},
    lambda a: {"max_position_embeddings": a.n_ctx + 2},
)
ROBERTA_NAMES = {
    "bert.": "roberta.",
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    "cls.predictions.decoder": "lm_head.decoder",
}


def renamed(name: str, names: dict[str, str]) -> str:
    """A module's name with the first beginning that applies replaced."""
    return next((new + name[len(old) :] for old, new in names.items() if name.startswith(old)), name)


ROBERTA = Family(
    name="roberta",
    model_class="RobertaForMaskedLM",
    prefix="roberta.",
    fields=(
        *(f for f in BERT.fields if f.theirs not in ("max_position_embeddings", "hidden_act", "vocab_size")),
        Field("vocab_size", "n_vocab", 50_265),
        # the readout's is gelu whatever the blocks' is, and ours are one word
        Field("hidden_act", "mlp.activation", "gelu", {"gelu": "gelu"}),
    ),
    derived=(OFFSET,),
    words=BERT.words,
    constants={**BERT.constants, "pad_token_id": 1},
    rows=tuple(
        dataclasses.replace(
            row, theirs=renamed(row.theirs, ROBERTA_NAMES), unread=2 if row.ours == "embed.position" else 0
        )
        for row in BERT.rows
    ),
    twins={"lm_head.bias": "lm_head.decoder.bias"},
    spellings=BERT.spellings,
    ignored={
        r"embeddings\.position_ids$": "0, 1, 2, ...",
        r"^roberta\.pooler\.": "the pooler, which no language model reads",
    },
    limits=BERT.limits,
)

DISTILBERT = Family(
    name="distilbert",
    model_class="DistilBertForMaskedLM",
    prefix="distilbert.",
    fields=(
        Field("vocab_size", "n_vocab", 30_522),
        Field("max_position_embeddings", "n_ctx", 512),
        Field("dim|hidden_size", "d_model", 768),
        Field("n_layers|num_hidden_layers", "n_layers", 6),
        Field("n_heads|num_attention_heads", "attention.n_heads", 12),
        Field("hidden_dim", "mlp.d_ff", 3072),
        Field("activation", "mlp.activation", "gelu", ACTIVATIONS),
        Field("attention_dropout", "dropout.pattern", 0.1),
        Field("dropout", ("dropout.embed", "dropout.mlp_out"), 0.1),
        Field("tie_word_embeddings", "unembed", True, TIED),
    ),
    words={**BERT.words, "norm.eps": 1e-12, "n_segments": 0},
    constants={"sinusoidal_pos_embds": False},
    without_effect={"tie_weights_": "tie_word_embeddings says it"},
    rows=(
        Row("distilbert.embeddings.word_embeddings", "embed.token"),
        Row("distilbert.embeddings.position_embeddings", "embed.position"),
        Row("distilbert.embeddings.LayerNorm", "embed.norm"),
        Row("distilbert.transformer.layer.{i}.attention.q_lin", "blocks.{i}.attn.query"),
        Row("distilbert.transformer.layer.{i}.attention.k_lin", "blocks.{i}.attn.key"),
        Row("distilbert.transformer.layer.{i}.attention.v_lin", "blocks.{i}.attn.value"),
        Row("distilbert.transformer.layer.{i}.attention.out_lin", "blocks.{i}.attn.out"),
        Row("distilbert.transformer.layer.{i}.sa_layer_norm", "blocks.{i}.norm_1"),
        Row("distilbert.transformer.layer.{i}.ffn.lin1", "blocks.{i}.mlp.up.0"),
        Row("distilbert.transformer.layer.{i}.ffn.lin2", "blocks.{i}.mlp.down"),
        Row("distilbert.transformer.layer.{i}.output_layer_norm", "blocks.{i}.norm_2"),
        Row("vocab_transform", "unembed.dense"),
        Row("vocab_layer_norm", "unembed.norm"),
        Row("vocab_projector", "unembed"),
    ),
    ignored={r"embeddings\.position_ids$": "0, 1, 2, ..."},
)
