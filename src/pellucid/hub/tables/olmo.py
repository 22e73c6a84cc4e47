"""OLMo 1, whose norms have neither gain nor bias, and OLMo 3: OLMo 2 with windows in three of four layers, and scaled
rotary positions in the others.
"""

import dataclasses
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.gemma import kinds_of_layers, two_bases, two_entries
from pellucid.hub.tables.llama import OLMO2, alternating, llama_family, rows_without
from pellucid.hub.tables.rows import ATTENTION_BIAS, Derived, visible_windows

#: a norm divides by the deviation and stores nothing
BARE_NORM = {"norm.kind": "layer", "norm.gain": "1", "norm.bias": "none", "norm.eps": 1e-5}

OLMO = llama_family(
    "olmo",
    "OlmoForCausalLM",
    sizes=dict(vocab_size=50_304),
    omit=("rms_norm_eps",),
    fields=(ATTENTION_BIAS,),
    constants={"clip_qkv": None},
    fixed=BARE_NORM | {"block": "pre"},
    rows=rows_without("norm"),
)


def olmo3_layers(entries: Entries) -> dict[str, Any]:
    """Three of four layers have a window."""
    return alternating(entries, entries.integer("sliding_window", 4096, None), lambda i: (i + 1) % 4 != 0)


def windows_unscaled(a: Architecture) -> bool:
    """Whether rotary positions are scaled at most in layers without a window."""
    return not a.scales_rotation or a.positions.local_base > 0 or not any(visible_windows(a))


OLMO3 = dataclasses.replace(
    OLMO2,
    name="olmo3",
    model_class="Olmo3ForCausalLM",
    body="Olmo3Model",
    derived=(
        Derived(olmo3_layers, kinds_of_layers),
        # rope_theta outside the object is the base of the layers without a window alone
        Derived(lambda entries: two_bases(entries, 500_000.0, 500_000.0, ""), two_entries),
    ),
    limits={"positions.scaling": windows_unscaled, **OLMO2.limits},
)
