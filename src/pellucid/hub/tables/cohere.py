"""Cohere's Command R and R7B, and EXAONE 4: rotary positions in layers with a window alone, or scaled logits."""

from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import BOUNDS, Entries, FamilyError
from pellucid.hub.tables.llama import INNER_ROWS, ROWS, alternating, llama_family, rotary_layers
from pellucid.hub.tables.rotary import rotary
from pellucid.hub.tables.rows import ATTENTION_BIAS, ConfigField, Derived, visible_windows


def logit_scale(entries: Entries) -> dict[str, Any]:
    """The factor of the logits."""
    return scale_of_logits(entries, entries.number("logit_scale", 0.0625, above=0), 8192)


def scale_of_logits(entries: Entries, factor: float, d_model: int) -> dict[str, Any]:
    """The option that multiplies logits by `factor`; `d_model` is the default of hidden_size."""
    m = entries.integer("hidden_size", d_model)
    option = {1.0: "1", m**-0.5: "1/sqrt(d_model)"}.get(factor, "logit_scale_value")
    return {"logit_scale": option} | ({"logit_scale_value": factor} if option == "logit_scale_value" else {})


LOGIT_SCALE = Derived(logit_scale, lambda a: {"logit_scale": a.unembed_scale})
COHERE_OPTIONS = {
    "positions.layout": "pairs",
    "norm.kind": "layer",
    "norm.bias": "none",
    "block": "shared",
}
COHERE = llama_family(
    "cohere",
    "CohereForCausalLM",
    sizes=dict(
        vocab_size=256_000,
        max_position_embeddings=8192,
        hidden_size=8192,
        intermediate_size=22_528,
        num_hidden_layers=40,
        num_attention_heads=64,
        tie_word_embeddings=True,
    ),
    omit=("rms_norm_eps",),
    fields=(
        ConfigField("layer_norm_eps", "norm.eps", 1e-5),
        ATTENTION_BIAS,
        # Command R+
        ConfigField("use_qk_norm", "attention.qk_norm", False, {True: "layer_own", False: "none"}),
    ),
    derived=(rotary(default_base=500_000.0), LOGIT_SCALE),
    fixed=COHERE_OPTIONS,
    rows=tuple(replace(row, fused="rows") if "_norm" in row.theirs else row for row in ROWS),
)


def rotated_where_windowed(entries: Entries, windows: list[int], n_layers: int) -> dict[str, Any]:
    """`positions.every` from the windows, where layers have rotary positions if, and only if, they have a window."""
    n_layers = entries.integer("num_hidden_layers", n_layers, least=0, most=BOUNDS["n_layers"])
    rotated = [int(window > 0) for window in windows[:n_layers]]
    every = rotated.index(0) + 1 if 0 in rotated else 0
    if rotated != rotary_layers(n_layers, every):
        raise FamilyError(
            "layer_types in config.json: expected 'full_attention' for every n-th layer, since these layers have no "
            "rotary positions, and 'sliding_attention' for the others"
        )
    return {"attention.windows": windows, "positions.every": every}


def cohere2_layers(entries: Entries) -> dict[str, Any]:
    """Three of four layers have a window and rotary positions, unless `sliding_window_pattern` says otherwise."""
    every = 4 if entries.raw("layer_types") is not None else entries.integer("sliding_window_pattern", 4)
    entries.read_paths.add("sliding_window_pattern")
    width = entries.integer("sliding_window", 4096, None)
    windows = alternating(entries, width, lambda i: (i + 1) % every != 0, 40)["attention.windows"]
    return rotated_where_windowed(entries, windows, 40)


def windows_where_rotated(a: Architecture) -> dict[str, Any]:
    """The inverse: a window as wide as the context in layers that have rotary positions and none."""
    kinds = ["sliding_attention" if a.rotates(layer) else "full_attention" for layer in range(a.n_layers)]
    return {"layer_types": kinds, "sliding_window": max(visible_windows(a), default=0) or a.n_ctx}


COHERE2 = replace(
    COHERE,
    name="cohere2",
    model_class="Cohere2ForCausalLM",
    body="",
    fields=tuple(f for f in COHERE.fields if f.theirs != "use_qk_norm"),
    derived=(rotary(), LOGIT_SCALE, Derived(cohere2_layers, windows_where_rotated)),
    fixed={**COHERE.fixed, "attention.qk_norm": "none"},
    rows=ROWS,
)


def exaone4_layers(entries: Entries) -> dict[str, Any]:
    """All layers have rotary positions where there is no window; otherwise those with a window have them."""
    width = entries.integer("sliding_window", 4096, None)
    listed = entries.raw("layer_types") is not None
    every = 4 if listed or width is None else entries.integer("sliding_window_pattern", 4)
    entries.read_paths.add("sliding_window_pattern")
    windows = alternating(entries, width, lambda i: width is not None and (i + 1) % every != 0)["attention.windows"]
    return {"attention.windows": windows} if width is None else rotated_where_windowed(entries, windows, 32)


def exaone4_entries(a: Architecture) -> dict[str, Any]:
    """The inverse."""
    if all(map(a.rotates, range(a.n_layers))) and not any(visible_windows(a)):
        return {"layer_types": ["full_attention"] * a.n_layers, "sliding_window": None}
    return windows_where_rotated(a)


EXAONE4 = llama_family(
    "exaone4",
    "Exaone4ForCausalLM",
    sizes=dict(vocab_size=102_400, intermediate_size=16_384, num_key_value_heads=32, rms_norm_eps=1e-5),
    derived=(rotary(), Derived(exaone4_layers, exaone4_entries)),
    fixed={"attention.qk_norm": "rms", "block": "inner"},
    rows=INNER_ROWS,
)
