"""Rotary positions in a config.json: rope_parameters, or rope_scaling and top-level entries in older files.

transformers uses the object rope_scaling if there is one, else rope_parameters, and fills in missing values from the
top-level entries.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import BOUNDS, REFUSED, Entries, FamilyError, format_value
from pellucid.hub.tables.rows import Derived

#: their kinds of scaled rotary positions, and our field for each entry that a kind reads
SCALED: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "positions.factor"},
    "llama3": {
        "factor": "positions.factor",
        "low_freq_factor": "positions.low",
        "high_freq_factor": "positions.high",
        "original_max_position_embeddings": "positions.n_trained",
    },
    "yarn": {
        "factor": "positions.factor",
        "beta_slow": "positions.low",
        "beta_fast": "positions.high",
        "original_max_position_embeddings": "positions.n_trained",
        "attention_factor": "positions.attention_factor",
    },
    "longrope": {
        "factor": "positions.factor",
        "original_max_position_embeddings": "positions.n_trained",
        "attention_factor": "positions.attention_factor",
        "short_factor": "positions.short_factors",
        "long_factor": "positions.long_factors",
    },
    "dynamic": {"factor": "positions.factor"},
}
#: the values of entries that may be missing, null or 0
YARN_DEFAULTS = {"beta_slow": 1.0, "beta_fast": 32.0}
#: entries that other kinds read, and these ignore
IGNORED_KEYS = ("mscale", "mscale_all_dim", "mrope_section", "mrope_interleaved")
IGNORED_KEYS += ("truncate",)
IGNORED_KEYS += tuple(sorted({name for names in SCALED.values() for name in names}))


@dataclass(frozen=True)
class OriginalContext:
    """Where a family's config.json holds the context of the training before the scaling.

    kinds    their names of scalings -> the name among `SCALED`
    default  the value of the entry beside the object, which these families always have; None for the others
    """

    kinds: Mapping[str, str] = field(default_factory=lambda: {kind: kind for kind in SCALED})
    default: int | None = None


def rotary(
    fraction: float | None = None,
    base: str = "rope_theta",
    share: str = "partial_rotary_factor",
    default_base: float = 10_000.0,
    trained: OriginalContext | None = None,
) -> Derived:
    """The rotary positions of a family: base, rotated share of each head, and scaling.

    `fraction` is the default share, None for families that rotate whole heads; `base` and `share` are the names of
    these two entries outside the object, and `default_base` is the base where there is no entry.
    """
    trained = trained or OriginalContext()

    def read(entries: Entries) -> dict[str, Any]:
        path = "rope_scaling" if entries.raw("rope_scaling") else "rope_parameters"
        check_flat(entries.raw(path), path)
        usual = 1.0 if fraction is None else fraction
        inside = f"{path}.partial_rotary_factor"
        # null is not the default share: some of their classes rotate whole heads then, the others fail
        null = usual if usual == 1 or entries.has(inside) else REFUSED
        part = entries.number(inside, entries.number(share, usual, null))
        if fraction is None and part != 1:
            raise FamilyError(
                f"partial_rotary_factor = {format_value(part)} in config.json: models of this family rotate whole heads"
            )
        theta = entries.number(f"{path}.rope_theta", entries.number(base, default_base, above=0), above=0)
        return scaling(entries, path, trained) | {"positions.base": theta, "positions.fraction": part}

    def write(a: Architecture) -> dict[str, Any]:
        if a.positions.scaling == "dynamic" and a.dynamic_factor == 1 and "dynamic" not in trained.kinds:
            a = replace(a, positions=replace(a.positions, scaling="none"))
        part = {} if fraction is None else {"partial_rotary_factor": a.positions.fraction}
        object_of_ours = {"rope_theta": a.positions.base} | scaling_to(a) | part
        is_outside = trained.default is not None and "positions.n_trained" in SCALED[scaling_kind(a)].values()
        outside = {"original_max_position_embeddings": a.positions.n_trained} if is_outside else {}
        return outside | {"rope_parameters": object_of_ours}

    return Derived(read, write)


def scaling(
    entries: Entries, path: str, trained: OriginalContext | None = None, nested: bool = False
) -> dict[str, Any]:
    """The scaling for longer texts in the object at this path, and n_ctx where a context is shorter than the file's.

    `nested` says that their class has an object for each kind of layer.
    """
    trained = trained or OriginalContext()
    kind = trained.kinds[entries.choice(f"{path}.rope_type|{path}.type", "default", trained.kinds)]
    # transformers prefers an entry outside the object, which it does not read beside nested ones
    outside = entries.raw("original_max_position_embeddings", trained.default)
    outside = None if nested else outside
    longest = entries.raw("max_position_embeddings")
    n_trained = longest if outside is None else outside
    entries.read_paths.update(f"{path}.{name}" for name in IGNORED_KEYS)
    values: dict[str, Any] = {"positions.scaling": "none" if kind == "default" else kind}
    if kind == "yarn" and not entries.flag(f"{path}.truncate", True):
        raise FamilyError(
            f"{path}.truncate = false in config.json: only planes that are whole bound the scaling (true, or no entry)"
        )
    for name, ours in SCALED[kind].items():
        if name == "original_max_position_embeddings":
            inside = n_trained if outside is not None else entries.integer(f"{path}.{name}", n_trained)
            values[ours] = Entries({name: inside}).integer(name, None)
        elif name in YARN_DEFAULTS:
            values[ours] = entries.number(f"{path}.{name}", 0.0, 0.0) or YARN_DEFAULTS[name]
        elif name == "attention_factor":
            yarn = kind == "yarn"
            values[ours] = (
                yarn_attention_factor(entries, path) if yarn else entries.number(f"{path}.{name}", 0.0, 0.0, above=0)
            )
        elif name in ("short_factor", "long_factor"):
            values[ours] = entries.numbers(f"{path}.{name}")
        elif kind == "longrope" and entries.raw(f"{path}.{name}") is None:
            continue  # their factor is then the ratio of both contexts
        elif not entries.has(f"{path}.{name}"):
            raise FamilyError(f"{path} lacks {name} in config.json, which rope_type = {kind!r} needs")
        else:
            values[ours] = entries.number(f"{path}.{name}", None)
    if kind in ("longrope", "dynamic"):
        values |= at_fixed_length(kind, Entries({"max_position_embeddings": longest}), values)
    return values


def at_fixed_length(kind: str, entries: Entries, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a scaling by the length of each text reads besides its own entries.

    longrope: the factor is the ratio of both contexts unless it is given. dynamic: transformers changes the frequencies
    with each further token of a text of more than n_trained, and in the context of the training nothing is scaled.
    """
    n_ctx = entries.integer("max_position_embeddings", REFUSED, most=BOUNDS["n_ctx"])
    if kind == "dynamic":
        return {"positions.n_trained": n_ctx}
    return {"positions.factor": n_ctx / values["positions.n_trained"], **values}


def yarn_attention_factor(entries: Entries, path: str) -> float:
    """The factor of rotated queries and keys, 0 where it is that of the paper; DeepSeek's is a quotient of two."""
    own = entries.number(f"{path}.attention_factor", 0.0, 0.0, above=0)
    above, below = (entries.number(f"{path}.{name}", 0.0, 0.0) for name in ("mscale", "mscale_all_dim"))
    factor = entries.number(f"{path}.factor", 1.0, above=0)
    if own or not (above and below) or factor <= 1:
        return own or (1.0 if above and below else 0.0)
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def scaling_kind(a: Architecture) -> str:
    """Their name of the scaling."""
    return "default" if a.positions.scaling == "none" else a.positions.scaling


def scaling_to(a: Architecture) -> dict[str, Any]:
    """The inverse of `scaling`: the entries of that object."""
    kind = scaling_kind(a)
    part = {f"positions.{name}": value for name, value in a.to_dict()["positions"].items()}
    entries = {theirs: part[ours] for theirs, ours in SCALED[kind].items()}
    if not entries.get("attention_factor"):
        entries.pop("attention_factor", None)
    if kind == "longrope":
        ones = [1.0] * (a.d_rotary // 2)
        entries["short_factor"], entries["long_factor"] = (
            entries["short_factor"] or ones,
            entries["long_factor"] or ones,
        )
    return {"rope_type": kind} | entries


def check_flat(rope: Any, path: str) -> None:
    """Raise FamilyError if this is not an object, or if it differs between layers."""
    if rope is not None and not isinstance(rope, Mapping):
        raise FamilyError(
            f"{path} = {format_value(rope)} in config.json: expected an object with rope_type and rope_theta"
        )
    for name, value in (rope or {}).items():
        if isinstance(value, Mapping):
            raise FamilyError(
                f"{path}.{name} = {format_value(value)} in config.json: "
                "the layers of this family have one kind of positions, "
                "so numbers and texts were expected"
            )


def is_even(a: Architecture) -> bool:
    """Whether an even number of coordinates is rotated, as families need that cut these off before rotating them."""
    return a.positions.kind != "rotary" or int(a.d_head * a.positions.fraction) % 2 == 0


#: some families' tables have one coordinate more than is rotated, for whole heads or for a part of each
EVEN, EVEN_PART = {"attention.d_head": is_even}, {"positions.fraction": is_even}
