"""The fields of an architecture, so that two architectures of one function have the same values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture, architecture_fields

#: fields without effect in an encoder, which has no readout
DECODER_ONLY_FIELDS = ("unembed", "readout", "logit_scale", "logit_scale_value", "logit_cap", "source_embed")


def without_dropout(a: Architecture) -> Architecture:
    """The architecture with every dropout rate at 0, which computes the same function outside training."""
    encoder = a.encoder and without_dropout(a.encoder)
    return replace(replace(a, encoder=None).with_fields({"dropout": 0.0}), encoder=encoder)


def canonical_fields(a: Architecture) -> dict[str, Any]:
    """Every field by its dotted name. Derived sizes are filled in, and fields without effect are left out."""
    values: dict[str, Any] = {"encoder": "given" if a.encoder is not None else None}
    nested = a.to_dict()
    for name in [*(n for n in architecture_fields() if n != "dropout"), *(f"dropout.{n}" for n in nested["dropout"])]:
        values[name] = value_at(nested, name)
    values |= {"attention.d_head": a.d_head, "attention.n_kv_heads": a.n_kv_heads, "mlp.d_ff": a.d_ff}
    windows = [a.window(layer) for layer in range(a.n_layers)]
    values["attention.windows"] = [0 if w >= a.n_ctx and not a.positions.local_base else w for w in windows]
    if not any(windows):
        values["positions.local_base"] = 0.0
    values |= {name: None for name in values if name.startswith("positions.") and name[10:] not in a.position_fields}
    if values["positions.scaling"] == "dynamic" and a.dynamic_factor == 1:
        # nothing is scaled in a context as long as that of the training
        values |= {"positions.scaling": "none", "positions.factor": None, "positions.n_trained": None}
    for name in ("short_factors", "long_factors"):
        if values[f"positions.{name}"] is not None and not values[f"positions.{name}"]:
            values[f"positions.{name}"] = [1.0] * (a.d_rotary // 2)
    if a.positions.kind == "alibi" and a.n_heads & (a.n_heads - 1) == 0:
        values["positions.slopes"] = "interleaved"
    if a.attention.scale != "scale_value":
        values["attention.scale_value"] = None
    for name in ("embed_scale", "logit_scale"):
        if values[name] != f"{name}_value":
            values[f"{name}_value"] = None
    if a.norm.kind == "rms" and a.attention.qk_norm != "layer":
        values["norm.bias"] = None
    of_experts = ("experts_per_token", "router_softmax", "shared_d_ff", "shared_gate")
    unused = () if a.mlp.shared_d_ff else of_experts[3:] if a.mlp.experts else of_experts
    values |= dict.fromkeys(f"mlp.{name}" for name in unused)
    if a.encoder is None:
        return values | {"source_embed": None}
    return values | {
        f"encoder.{n}": None if n in DECODER_ONLY_FIELDS else v for n, v in canonical_fields(a.encoder).items()
    }


def value_at(values: Mapping[str, Any], paths: str) -> Any:
    """The value at the first of the paths (`a.b|c`) that exists, else None."""
    for path in paths.split("|"):
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def set_at(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path (`a.b`) of nested objects."""
    *parts, last = path.split(".")
    for part in parts:
        values = values.setdefault(part, {})
    values[last] = value
