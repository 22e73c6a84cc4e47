"""Rotary positions in a config.json: rope_parameters, or rope_scaling and top-level entries in older files.

transformers uses the object rope_scaling if there is one, else rope_parameters, and fills in missing values from the
top-level entries.
"""

import math
from collections.abc import Mapping
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError, shown
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
}
#: the values of entries that may be missing, null or 0
YARN_DEFAULTS = {"beta_slow": 1.0, "beta_fast": 32.0}
#: entries that other kinds read, and these ignore
OF_OTHERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "mrope_section")
OF_OTHERS += ("short_factor", "long_factor", "mrope_interleaved", *SCALED["llama3"])


def rotary(
    fraction: float | None = None,
    base: str = "rope_theta",
    share: str = "partial_rotary_factor",
    default_base: float = 10_000.0,
) -> Derived:
    """The rotary positions of a family: base, rotated share of each head, and scaling.

    `fraction` is the default share, None for families that rotate whole heads; `base` and `share` are the names of
    these two entries outside the object, and `default_base` is the base where there is no entry.
    """

    def read(entries: Entries) -> dict[str, Any]:
        path = "rope_scaling" if entries.raw("rope_scaling") else "rope_parameters"
        check_flat(entries.raw(path), path)
        usual = 1.0 if fraction is None else fraction
        part = entries.number(f"{path}.partial_rotary_factor", entries.number(share, usual, usual))
        if fraction is None and part != 1:
            raise FamilyError(
                f"partial_rotary_factor = {shown(part)} in config.json: models of this family rotate whole heads"
            )
        theta = entries.number(f"{path}.rope_theta", entries.number(base, default_base, above=0), above=0)
        return scaling(entries, path) | {"positions.base": theta, "positions.fraction": part}

    def write(a: Architecture) -> dict[str, Any]:
        part = {} if fraction is None else {"partial_rotary_factor": a.positions.fraction}
        return {"rope_parameters": {"rope_theta": a.positions.base} | scaling_to(a) | part}

    return Derived(read, write)


def scaling(entries: Entries, path: str) -> dict[str, Any]:
    """The scaling for longer texts in the object at this path."""
    kind = entries.choice(f"{path}.rope_type|{path}.type", "default", SCALED)
    # transformers prefers an entry outside the object
    outside = entries.raw("original_max_position_embeddings")
    n_trained = entries.raw("max_position_embeddings") if outside is None else outside
    entries.asked.update(f"{path}.{name}" for name in OF_OTHERS)
    values: dict[str, Any] = {"positions.scaling": "none" if kind == "default" else kind}
    for name, ours in SCALED[kind].items():
        if name == "original_max_position_embeddings":
            inside = n_trained if outside is not None else entries.integer(f"{path}.{name}", n_trained)
            values[ours] = Entries({name: inside}).integer(name, None)
        elif name in YARN_DEFAULTS:
            values[ours] = entries.number(f"{path}.{name}", 0.0, 0.0) or YARN_DEFAULTS[name]
        elif name == "attention_factor":
            values[ours] = yarn_factor(entries, path)
        elif not entries.has(f"{path}.{name}"):
            raise FamilyError(f"{path} lacks {name} in config.json, which rope_type = {kind!r} needs")
        else:
            values[ours] = entries.number(f"{path}.{name}", None)
    return values


def yarn_factor(entries: Entries, path: str) -> float:
    """The factor of rotated queries and keys, 0 where it is that of the paper; DeepSeek's files give a quotient of two."""
    if entries.flag(f"{path}.truncate", True) is not True:
        raise FamilyError(f"{path}.truncate = false in config.json: planes between two whole ones cannot be represented")
    own = entries.number(f"{path}.attention_factor", 0.0, 0.0, above=0)
    above, below = (entries.number(f"{path}.{name}", 0.0, 0.0) for name in ("mscale", "mscale_all_dim"))
    factor = entries.number(f"{path}.factor", None, above=0)
    if own or not (above and below) or factor <= 1:
        return own or (1.0 if above and below else 0.0)
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def scaling_to(a: Architecture) -> dict[str, Any]:
    """The inverse of `scaling`: the entries of that object."""
    kind = "default" if a.positions.scaling == "none" else a.positions.scaling
    part = {f"positions.{name}": value for name, value in a.to_dict()["positions"].items()}
    entries = {theirs: part[ours] for theirs, ours in SCALED[kind].items()}
    if kind == "yarn" and not entries["attention_factor"]:
        del entries["attention_factor"]
    return {"rope_type": kind} | entries


def check_flat(rope: Any, path: str) -> None:
    """Raise FamilyError if this is not an object, or if it differs between layers."""
    if rope is not None and not isinstance(rope, Mapping):
        raise FamilyError(f"{path} = {shown(rope)} in config.json: expected an object with rope_type and rope_theta")
    for name, value in (rope or {}).items():
        if isinstance(value, Mapping):
            raise FamilyError(
                f"{path}.{name} = {shown(value)} in config.json: the layers of this family have one kind of positions, "
                "so numbers and texts were expected"
            )


def is_even(a: Architecture) -> bool:
    """Whether an even number of coordinates is rotated, as families need that cut these off before rotating them."""
    return a.positions.kind != "rotary" or int(a.d_head * a.positions.fraction) % 2 == 0


#: some families' tables have one coordinate more than is rotated, for whole heads or for a part of each
EVEN, EVEN_PART = {"attention.d_head": is_even}, {"positions.fraction": is_even}
