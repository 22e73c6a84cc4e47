"""Presets: architectures by name.

`n_vocab` depends on the text and can be given to `preset`; everything else is as the source states. S0 ... S4 are the
source texts of docs/mathematics.md.
"""

import difflib
from dataclasses import replace

from pellucid.architecture import MLP, Architecture, Attention, Dropout, Norm, Positions
from pellucid.option_values import ArchitectureError

TENTH = Dropout(embed=0.1, pattern=0.1, attn_out=0.1, mlp_out=0.1)


def gpt2(d_model: int, n_layers: int, n_heads: int) -> Architecture:
    """Radford et al. 2019: pre-norm, learned positions, tied."""
    return Architecture(
        n_vocab=50257,
        n_ctx=1024,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads=n_heads),
        dropout=TENTH,
    )


def modern(d_model: int, n_layers: int, n_heads: int, n_ctx: int) -> Architecture:
    """Rotary positions, RMS norm, query-key norm, squared ReLU, no biases, tied."""
    return Architecture(
        n_vocab=50257,
        n_ctx=n_ctx,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads=n_heads, bias="none", qk_norm="rms"),
        mlp=MLP(activation="relu2", bias="none"),
        positions=Positions(kind="rotary"),
        norm=Norm(kind="rms", eps=1e-6),
    )


def gated_width(d_model: int) -> int:
    """The width of a gated MLP whose three matrices have the weights of the usual two: 8/3 d_model, in 32s."""
    return max(32, 32 * round(8 * d_model / 96))


def qwen3(d_model: int, n_layers: int, n_heads: int, n_ctx: int) -> Architecture:
    """The options of Qwen3 (Yang et al. 2025): as `modern`, with a gated MLP of SiLU in place of squared ReLU."""
    plain = modern(d_model, n_layers, n_heads, n_ctx)
    return replace(plain, mlp=MLP(d_ff=gated_width(d_model), form="gated", activation="silu", bias="none"))


def llama(d_model: int, n_layers: int, n_heads: int, n_ctx: int) -> Architecture:
    """The options of Llama (Touvron et al. 2023; its small models are tied): as `qwen3`, without query-key norm."""
    return replace(qwen3(d_model, n_layers, n_heads, n_ctx), attention=Attention(n_heads=n_heads, bias="none"))


def bert(d_model: int, n_layers: int, n_heads: int) -> Architecture:
    """Devlin et al. 2018: every token reads every other one, post-norm, learned positions, two kinds of segment."""
    return Architecture(
        n_vocab=30522,
        n_ctx=512,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads=n_heads, mask="bidirectional"),
        mlp=MLP(activation="gelu"),
        norm=Norm(eps=1e-12),
        block="post",
        embed_norm="norm",
        final_norm="none",
        readout="bert",
        n_segments=2,
        dropout=TENTH,
    )


def t5(d_model: int, n_layers: int, n_heads: int, n_ctx: int) -> Architecture:
    """The options of T5 1.1 (Raffel et al. 2020; Shazeer 2020): relative positions, RMS norm, scores not scaled."""
    decoder = replace(
        qwen3(d_model, n_layers, n_heads, n_ctx),
        n_vocab=32128,
        attention=Attention(n_heads=n_heads, scale="1", bias="none"),
        positions=Positions(kind="relative"),
        unembed="untied",
        source_embed="shared",
    )
    decoder = replace(decoder, mlp=replace(decoder.mlp, activation="gelu_tanh"))
    encoder = replace(decoder, attention=replace(decoder.attention, mask="bidirectional"))
    return replace(decoder, encoder=encoder)


def original(d_model: int, n_layers: int, n_heads: int) -> Architecture:
    """Vaswani et al. 2017: an encoder and a decoder of one size, post-norm, sinusoids, embeddings times sqrt(d_model).

    The length of the longest sentence is not stated there; 512 tokens is ours.
    """
    decoder = Architecture(
        n_vocab=37000,
        n_ctx=512,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads=n_heads),
        mlp=MLP(activation="relu"),
        positions=Positions(kind="sinusoidal", layout="pairs"),
        block="post",
        embed_scale="sqrt(d_model)",
        final_norm="none",
        dropout=Dropout(embed=0.1, attn_out=0.1, mlp_out=0.1),
    )
    return replace(decoder, encoder=replace(decoder, attention=Attention(n_heads=n_heads, mask="bidirectional")))


def with_vocabulary(a: Architecture, n_vocab: int) -> Architecture:
    """`a`, and its encoder where it has one, for a tokenizer of `n_vocab` ids."""
    return replace(a, n_vocab=n_vocab, encoder=a.encoder and with_vocabulary(a.encoder, n_vocab))


BECKER_KAHN = Architecture(
    n_vocab=50257,
    n_ctx=256,
    d_model=128,
    n_layers=4,
    attention=Attention(n_heads=4, scale="1", bias="none"),
    mlp=MLP(activation="relu"),
    positions=Positions(kind="none"),
    norm=Norm(kind="none"),
    final_norm="none",
    unembed="untied",
)
GOON = Architecture(
    n_vocab=50257,
    n_ctx=256,
    d_model=128,
    n_layers=4,
    attention=Attention(n_heads=4, bias="none"),
    dropout=TENTH,
    unembed="untied",
)

PRESETS = {
    # the default, which two cores train in minutes (docs/experiments/quality.md) and transformers and llama.cpp open
    "small": qwen3(128, 4, 4, 128),
    "modern": modern(384, 6, 6, 256),
    # Radford et al. 2018: post-norm, no final norm
    "gpt1": Architecture(
        n_vocab=40478,
        n_ctx=512,
        d_model=768,
        n_layers=12,
        attention=Attention(n_heads=12),
        block="post",
        final_norm="none",
        dropout=TENTH,
    ),
    "gpt2": gpt2(768, 12, 12),
    "gpt2-medium": gpt2(1024, 24, 16),
    "gpt2-large": gpt2(1280, 36, 20),
    "gpt2-xl": gpt2(1600, 48, 25),
    # Brown et al. 2020: GPT-2 with every other layer banded; the band's width is not stated there, 256 is ours
    "gpt3": Architecture(
        n_vocab=50257,
        n_ctx=2048,
        d_model=12288,
        n_layers=96,
        attention=Attention(n_heads=96, d_head=128, windows=(0, 256)),
    ),
    # S0, Becker-Kahn: no norm, no positions, no biases, scores not scaled
    "becker-kahn": BECKER_KAHN,
    # S0 Remark 4.1
    "becker-kahn-parallel": replace(BECKER_KAHN, block="parallel"),
    # S1, Goon: pre-norm, learned positions, attention without biases, multi-query as its variant
    "goon": GOON,
    "goon-multi-query": replace(GOON, attention=replace(GOON.attention, n_kv_heads=1)),
    # S2, the notes: sinusoids in halves, no norm
    "notes": Architecture(
        n_vocab=50257,
        n_ctx=256,
        d_model=128,
        n_layers=4,
        attention=Attention(n_heads=4, bias="none"),
        mlp=MLP(activation="relu"),
        positions=Positions(kind="sinusoidal"),
        norm=Norm(kind="none"),
        final_norm="none",
        unembed="untied",
    ),
    # S3, AP & MF: post-norm with epsilon outside the root, d_ff = 2 d_model
    "slides": Architecture(
        n_vocab=50257,
        n_ctx=256,
        d_model=128,
        n_layers=4,
        attention=Attention(n_heads=4, bias="none"),
        mlp=MLP(d_ff=256, activation="relu"),
        norm=Norm(eps_at="outside"),
        block="post",
        final_norm="none",
        unembed="untied",
    ),
    # S4, Dobriban: the matrix form with one head
    "dobriban": Architecture(
        n_vocab=50257,
        n_ctx=256,
        d_model=128,
        n_layers=4,
        attention=Attention(n_heads=1, bias="none"),
        mlp=MLP(activation="relu", bias="none"),
        dropout=TENTH,
        unembed="untied",
    ),
    # Vaswani et al. 2017, base: the encoder-decoder, in sinusoids and post-norm. There the source's embeddings are
    # those of the target; here the encoder has its own, n_vocab x 512 numbers more
    "original": original(512, 6, 8),
    "bert": bert(768, 12, 12),
    # small networks of the options that other software has, for training here: exported by family, and to GGUF
    "llama-mini": llama(128, 4, 4, 128),
    "smollm3-mini": replace(llama(128, 4, 4, 128), positions=Positions(kind="rotary", base=2_000_000.0, every=4)),
    "gpt2-mini": replace(gpt2(128, 4, 4), n_ctx=128),
    "bert-mini": replace(bert(128, 4, 4), n_ctx=128),
    "t5-mini": t5(128, 4, 4, 128),
    # Yang et al. 2025: the dense model of 0.6 billion parameters
    "qwen3": Architecture(
        n_vocab=151_936,
        n_ctx=40_960,
        d_model=1024,
        n_layers=28,
        attention=Attention(n_heads=16, n_kv_heads=8, d_head=128, bias="none", qk_norm="rms"),
        mlp=MLP(d_ff=3072, form="gated", activation="silu", bias="none"),
        positions=Positions(kind="rotary", base=1_000_000.0),
        norm=Norm(kind="rms", eps=1e-6),
    ),
    # Touvron et al. 2023: the smallest, of seven billion parameters
    "llama": Architecture(
        n_vocab=32_000,
        n_ctx=2048,
        d_model=4096,
        n_layers=32,
        attention=Attention(n_heads=32, bias="none"),
        mlp=MLP(d_ff=11_008, form="gated", activation="silu", bias="none"),
        positions=Positions(kind="rotary"),
        norm=Norm(kind="rms", eps=1e-6),
        unembed="untied",
    ),
}


def preset(name: str, n_vocab: int | None = None) -> Architecture:
    """The preset of that name, with the tokenizer's vocabulary where one is given.

    Raises ArchitectureError naming the presets when there is none of that name.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name.lower(), PRESETS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArchitectureError(f"there is no preset {name!r}: {hint}choose one of {', '.join(PRESETS)}")
    architecture = PRESETS[name]
    return architecture if n_vocab is None else with_vocabulary(architecture, n_vocab)
