"""Small architectures drawn from every word of the vocabulary, for property tests."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pellucid.architecture import Architecture, words

SIZES: dict[str, Any] = {
    "n_vocab": st.integers(2, 11),
    "n_ctx": st.integers(5, 9),
    "d_model": st.sampled_from([4, 8, 12]),
    "n_layers": st.integers(0, 3),
    "attention.n_heads": st.sampled_from([1, 2, 4]),
    "attention.n_kv_heads": st.sampled_from([0, 1, 2]),
    "attention.d_head": st.sampled_from([4, 6]),
    "attention.windows": st.sampled_from([(0,), (3,), (0, 2)]),
    "mlp.d_ff": st.integers(1, 9),
    "mlp.n_hidden": st.integers(0, 3),
    "positions.base": st.sampled_from([10.0, 10_000.0]),
    "positions.fraction": st.sampled_from([0.5, 1.0]),
    "norm.eps": st.sampled_from([1e-5, 1e-2]),
    "n_segments": st.integers(0, 2),
}
NEAREST = Architecture(n_vocab=5, n_ctx=5, d_model=4, n_layers=1)


@st.composite
def architectures(draw, encoder: bool | None = None, **fixed: Any) -> Architecture:
    """An architecture of any words, with `fixed` fields (dots written `__`); encoder None draws it too."""
    fixed = {name.replace("__", "."): value for name, value in fixed.items()}
    choices = {name: draw(st.sampled_from(options)) for name, options in words()}
    choices |= {name: draw(size) for name, size in SIZES.items()} | fixed
    if choices["attention.n_heads"] % (choices["attention.n_kv_heads"] or 1):
        choices["attention.n_kv_heads"] = 1
    if choices["mlp.form"] == "gated":
        choices["mlp.n_hidden"] = 1
    with_encoder = draw(st.booleans()) if encoder is None else encoder
    if with_encoder and choices["block"] == "parallel":
        choices["block"] = "post"
    a = NEAREST.with_fields(choices)
    if not with_encoder:
        return a
    inner = a.with_fields({"attention.mask": "bidirectional", "unembed": "tied", "readout": "linear"})
    return Architecture.from_dict(a.to_dict() | {"encoder": inner.to_dict()})


def draw_tokens(rng: np.random.Generator, a: Architecture, batch: int = 2, n: int | None = None) -> np.ndarray:
    """Random tokens [batch, n], as many positions as the context holds unless n is given."""
    return rng.integers(0, a.n_vocab, (batch, a.n_ctx if n is None else n))
