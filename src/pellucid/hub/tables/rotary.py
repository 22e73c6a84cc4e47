"""Rotary positions in a config.json: rope_parameters, or rope_scaling and the entries beside it in older files.

transformers takes the object rope_scaling where there is one, else rope_parameters, and fills what it lacks from the
entries beside it.
"""

from collections.abc import Mapping
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import Entries, FamilyError, shown
from pellucid.hub.tables.rows import Derived

#: their kinds of scaled rotary positions, and our field of each entry that a kind reads
SCALED: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "positions.factor"},
    "llama3": {
        "factor": "positions.factor",
        "low_freq_factor": "positions.low",
        "high_freq_factor": "positions.high",
        "original_max_position_embeddings": "positions.n_trained",
    },
}
#: entries that other kinds read, and these ignore
OF_OTHERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "mrope_section")
OF_OTHERS += ("short_factor", "long_factor", "mrope_interleaved", *SCALED["llama3"])


def rotary(fraction: float | None = None, base: str = "rope_theta", share: str = "partial_rotary_factor") -> Derived:
    """The rotary positions of a family: base, rotated share of each head, and scaling.

    `fraction` is the share where nothing says it, None for families that rotate whole heads; `base` and `share` are
    what the two are called beside the object.
    """

    def read(entries: Entries) -> dict[str, Any]:
        path = "rope_scaling" if entries.given("rope_scaling") else "rope_parameters"
        check_flat(entries.given(path), path)
        usual = 1.0 if fraction is None else fraction
        part = entries.number(f"{path}.partial_rotary_factor", entries.number(share, usual, usual))
        if fraction is None and part != 1:
            raise FamilyError(
                f"partial_rotary_factor = {shown(part)} in config.json: models of this family rotate whole heads"
            )
        theta = entries.number(f"{path}.rope_theta", entries.number(base, 10_000.0, above=0), above=0)
        return scaling(entries, path) | {"positions.base": theta, "positions.fraction": part}

    def write(a: Architecture) -> dict[str, Any]:
        part = {} if fraction is None else {"partial_rotary_factor": a.positions.fraction}
        return {"rope_parameters": {"rope_theta": a.positions.base} | scaling_to(a) | part}

    return Derived(read, write)


def scaling(entries: Entries, path: str) -> dict[str, Any]:
    """What the object at the path says of longer texts than were trained on."""
    kind = entries.word(f"{path}.rope_type|{path}.type", "default", SCALED)
    # transformers lets an entry beside the object win
    outside = entries.given("original_max_position_embeddings")
    n_trained = entries.given("max_position_embeddings") if outside is None else outside
    entries.asked.update(f"{path}.{name}" for name in OF_OTHERS)
    values: dict[str, Any] = {"positions.scaling": "none" if kind == "default" else kind}
    for name, ours in SCALED[kind].items():
        if name == "original_max_position_embeddings":
            inside = n_trained if outside is not None else entries.whole(f"{path}.{name}", n_trained)
            values[ours] = Entries({name: inside}).whole(name, None)
        elif not entries.has(f"{path}.{name}"):
            raise FamilyError(f"{path} lacks {name} in config.json, which rope_type = {kind!r} asks for")
        else:
            values[ours] = entries.number(f"{path}.{name}", None)
    return values


def scaling_to(a: Architecture) -> dict[str, Any]:
    """The same written, as entries of that object."""
    kind = "default" if a.positions.scaling == "none" else a.positions.scaling
    part = {f"positions.{name}": value for name, value in a.to_dict()["positions"].items()}
    return {"rope_type": kind} | {theirs: part[ours] for theirs, ours in SCALED[kind].items()}


def check_flat(rope: Any, path: str) -> None:
    """FamilyError for what is no object, or one that says other things of other layers."""
    if rope is not None and not isinstance(rope, Mapping):
        raise FamilyError(f"{path} = {shown(rope)} in config.json: expected an object with rope_type and rope_theta")
    for name, value in (rope or {}).items():
        if isinstance(value, Mapping):
            raise FamilyError(
                f"{path}.{name} = {shown(value)} in config.json: the layers of this family have one kind of positions, "
                "so numbers and texts were expected"
            )


def is_even(a: Architecture) -> bool:
    """Whether an even number of coordinates is rotated, which families that cut them off before they rotate ask for."""
    return a.positions.kind != "rotary" or int(a.d_head * a.positions.fraction) % 2 == 0


#: their tables have one coordinate more than is rotated, or than there is: of whole heads, and of a part of each
EVEN, EVEN_PART = {"attention.d_head": is_even}, {"positions.fraction": is_even}
