"""Small architectures drawn from every word of the vocabulary, encoders too, for property tests of the reference."""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from drawing import WORDS_WITH_LOGITS
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions

PARTS: dict[str, Any] = {"attention": Attention, "mlp": MLP, "positions": Positions, "norm": Norm}
SIZES: dict[str, Any] = {
    "n_vocab": st.integers(2, 11),
    "n_ctx": st.integers(5, 9),
    "d_model": st.sampled_from([4, 8, 12]),
    "n_layers": st.integers(0, 3),
    "d_embed": st.sampled_from([0, 0, 3, 16]),
    "attention.n_heads": st.sampled_from([1, 2, 4]),
    "attention.n_kv_heads": st.sampled_from([0, 1, 2]),
    "attention.d_head": st.sampled_from([4, 6]),
    "attention.windows": st.sampled_from([(0,), (3,), (0, 2)]),
    "mlp.d_ff": st.integers(1, 9),
    "mlp.n_hidden": st.integers(0, 3),
    "mlp.experts": st.sampled_from([0, 0, 3]),
    "mlp.experts_per_token": st.integers(1, 3),
    "mlp.shared_d_ff": st.sampled_from([0, 4]),
    "attention.scale_value": st.sampled_from([0.3, 1.5]),
    "embed_scale_value": st.sampled_from([0.5, 3.0]),
    "logit_scale_value": st.sampled_from([0.25, 2.0]),
    "residual_scale": st.sampled_from([1.0, 0.4]),
    "positions.base": st.sampled_from([10.0, 10_000.0]),
    "positions.factor": st.sampled_from([2.0, 8.0]),
    "positions.attention_factor": st.sampled_from([0.0, 0.7]),
    "positions.low": st.sampled_from([1.0, 0.1]),
    "positions.local_base": st.sampled_from([0.0, 30.0]),
    "positions.every": st.sampled_from([0, 0, 1, 2]),
    "attention.score_cap": st.sampled_from([0.0, 0.0, 2.0]),
    "logit_cap": st.sampled_from([0.0, 0.0, 3.0]),
    "positions.n_buckets": st.sampled_from([4, 6, 9]),
    "positions.max_distance": st.sampled_from([5, 8, 20]),
    "positions.n_trained": st.sampled_from([3, 16, 8192]),
    "positions.fraction": st.sampled_from([0.5, 0.9, 1.0]),
    "norm.eps": st.sampled_from([1e-5, 1e-2]),
    "n_segments": st.integers(0, 2),
    "ngrams": st.sampled_from([(), (), (2,), (2, 3)]),
    "ngram_rows": st.sampled_from([1, 7]),
}


def build(fields: dict[str, Any]) -> Architecture:
    """The architecture of dotted fields; parts are made directly, because with_fields also reads strings."""
    whole = {name: value for name, value in fields.items() if "." not in name}
    for part, kind in PARTS.items():
        whole[part] = kind(**{n[len(part) + 1 :]: v for n, v in fields.items() if n.startswith(part + ".")})
    return Architecture(**whole)


@st.composite
def architectures(draw, encoder: bool | None = None, **fixed: Any) -> Architecture:
    """An architecture of any words, with `fixed` fields (dots written `__`); encoder None draws it too."""
    choices = {name: st.sampled_from(options) for name, options in WORDS_WITH_LOGITS} | SIZES
    choices |= {name.replace("__", "."): st.just(value) for name, value in fixed.items()}
    fields = {name: draw(strategy) for name, strategy in choices.items()}
    if fields["attention.n_heads"] % (fields["attention.n_kv_heads"] or 1):
        fields["attention.n_kv_heads"] = 1
    n_planes = int(fields["attention.d_head"] * fields["positions.fraction"]) // 2
    if fields["positions.scaling"] == "dynamic" and n_planes < 2:
        fields["positions.scaling"] = "none"  # one plane has no last one, whose w_k would be divided
    if fields["positions.scaling"] == "longrope":
        for name, first in (("short_factors", 1.0), ("long_factors", 3.0)):
            factors = tuple(first + k for k in range(n_planes))
            fields[f"positions.{name}"] = draw(st.sampled_from([(), factors]))
        if fields["n_ctx"] > fields["positions.n_trained"]:
            # texts on both sides of the border: tests/parity/test_scaled_positions.py, tests/test_verify.py
            fields["positions.short_factors"] = fields["positions.long_factors"]
    if not fields["d_embed"] or (fields["positions.kind"] == "sinusoidal" and fields["d_embed"] % 2):
        fields["embed_projection"] = "tokens"
    if fields["mlp.form"] == "gated":
        fields["mlp.n_hidden"] = 1
    if fields["mlp.n_hidden"] != 1:
        fields["mlp.experts"] = 0
    if not fields["mlp.experts"]:
        fields["mlp.shared_d_ff"] = 0
    with_encoder = draw(st.booleans()) if encoder is None else encoder
    if with_encoder and fields["block"] not in ("pre", "post"):
        fields["block"] = "post"
    if fields["readout"] != "bert":
        fields["readout_bias"] = "all"
    if fields["block"] in ("post", "inner"):
        fields["first_norm"] = "norm"
    if not with_encoder:
        return build(fields)
    plain = {"unembed": "tied", "readout": "linear", "readout_bias": "all"}
    inner = build(fields | plain | {"attention.mask": "bidirectional"})
    return dataclasses.replace(build(fields), encoder=inner)


def draw_tokens(rng: np.random.Generator, a: Architecture, batch: int = 2, n: int | None = None) -> np.ndarray:
    """Random tokens [batch, n], as many positions as the context holds unless n is given."""
    return rng.integers(0, a.n_vocab, (batch, a.n_ctx if n is None else n))
