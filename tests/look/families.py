"""Small random models of the shapes that people import, and one of each arrangement that draws its own steps."""

import torch

from drawing import make_network
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.language_model import LanguageModel
from pellucid.lens.trace import Trace
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
SMALL = {"n_vocab": TOKENIZER.n_vocab, "n_ctx": 32, "d_model": 16, "n_layers": 3}
HEADS = Attention(n_heads=4, bias="none")
GROUPED = Attention(n_heads=4, n_kv_heads=2, bias="none")
GATED = MLP(d_ff=24, form="gated", activation="silu", bias="none")
RMS = Norm(kind="rms", eps=1e-6)
ROTARY = Positions(kind="rotary")

GPT2 = Architecture(**SMALL, attention=Attention(n_heads=4))
LLAMA = Architecture(**SMALL, attention=GROUPED, mlp=GATED, norm=RMS, positions=ROTARY, unembed="untied")
BERT = Architecture(
    **SMALL,
    attention=Attention(n_heads=4, mask="bidirectional"),
    block="post",
    embed_norm="norm",
    final_norm="none",
    readout="bert",
    n_segments=2,
)
FAMILIES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen3": LLAMA.with_fields({"attention.qk_norm": "rms", "unembed": "tied"}),
    "gemma2": LLAMA.with_fields(
        {
            "block": "sandwich",
            "attention.score_cap": 50.0,
            "attention.windows": (8, 0),
            "logit_cap": 30.0,
            "norm.gain": "1+g",
            "embed_scale": "sqrt(d_model)",
            "unembed": "tied",
        }
    ),
    "alibi": GPT2.with_fields({"positions.kind": "alibi"}),
    "relative": GPT2.with_fields({"positions.kind": "relative"}),
    "parallel": GPT2.with_fields({"block": "parallel", "positions.kind": "rotary", "positions.fraction": 0.5}),
    "post": GPT2.with_fields({"block": "post", "final_norm": "none", "positions.kind": "sinusoidal"}),
    "no norms": GPT2.with_fields({"norm.kind": "none", "final_norm": "none", "positions.kind": "none"}),
    "deep mlp": GPT2.with_fields({"mlp.n_hidden": 2, "ngrams": (2, 3), "ngram_rows": 50}),
    "projected": GPT2.with_fields({"d_embed": 6, "block": "post", "final_norm": "none"}),
    "projected sum": BERT.with_fields({"d_embed": 6, "embed_projection": "sum"}),
    "affine": GPT2.with_fields({"mlp.n_hidden": 0, "readout": "affine"}),
    "bert": BERT,
    "encoder-decoder": GPT2.with_fields({"positions.kind": "relative", "positions.n_buckets": 8}),
}
FAMILIES["encoder-decoder"] = Architecture.from_dict(
    FAMILIES["encoder-decoder"].to_dict()
    | {"encoder": FAMILIES["encoder-decoder"].with_fields({"attention.mask": "bidirectional", "n_layers": 2}).to_dict()}
)
#: the families that quick tests draw; the others are drawn by slow tests
QUICK = ("llama",)


def random_model(family: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    """A model of a family in which every parameter can be seen."""
    return LanguageModel(make_network(FAMILIES[family], dtype=dtype).eval(), TOKENIZER, {})


def trace_of(model: LanguageModel, text: str = "a cat and a cat") -> Trace:
    """A trace of a text; an encoder-decoder reads another one as its source."""
    return model.trace(text, source="two cats") if model.architecture.encoder is not None else model.trace(text)
