"""A small architecture, what each option needs beside it to be seen at all, and ids for the definition."""

import numpy as np
from hypothesis import strategies as st

from pellucid.architecture import Architecture

BASE = Architecture(n_vocab=11, n_ctx=6, d_model=8, n_layers=2).with_fields(
    {"attention.n_heads": 4, "attention.n_kv_heads": 2, "mlp.d_ff": 12, "n_segments": 2, "norm.eps": 1e-2}
)
#: by field, what its values need beside them
COMPANIONS = {
    "positions.layout": {"positions.kind": "rotary", "attention.d_head": 8},
    "positions.slopes": {"positions.kind": "alibi", "attention.n_heads": 3, "n_kv_heads": 0, "attention.d_head": 4},
    # longrope and dynamic change what is computed in contexts longer than n_trained
    "positions.scaling": {
        "positions.kind": "rotary",
        "attention.d_head": 8,
        "n_ctx": 40,
        "positions.n_trained": 30,
        "positions.long_factors": (1.0, 2.0, 3.0, 5.0),
    },
    "attention.scale": {"attention.d_head": 3, "attention.scale_value": 0.7},
    "mlp.form": {"mlp.activation": "silu"},
    "mlp.router_softmax": {"mlp.experts": 3},
    "mlp.shared_gate": {"mlp.experts": 3, "mlp.shared_d_ff": 4},
    "embed_norm": {"block": "post"},
    "embed_projection": {"d_embed": 6},
    "readout_bias": {"readout": "bert"},
    "embed_scale": {"embed_scale_value": 0.7},
    "logit_scale": {"logit_scale_value": 0.7},
    "readout": {"mlp.activation": "gelu"},
}


#: without a norm, powers of the stream grow beyond what a float's exponential holds
NORMED = {"norm.kind": st.sampled_from(["layer", "rms"])}


def draw_ids(rng: np.random.Generator, a: Architecture, batch: int = 2, n: int | None = None) -> np.ndarray:
    """Random tokens [batch, n], as many positions as the context holds unless n is given."""
    return rng.integers(0, a.n_vocab, (batch, a.n_ctx if n is None else n))
