"""What a family of another project would lose of an architecture: what does not come back from its entries."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.canonical_fields import canonical_fields
from pellucid.hub.tables.entries import FamilyError
from pellucid.hub.tables.rows import Family
from pellucid.option_values import ArchitectureError

#: fields that say what kind of model it is, the most telling first
KIND_FIELDS = (
    "encoder",
    "readout",
    "attention.mask",
    "mlp.experts",
    "block",
    "positions.kind",
    "norm.kind",
    "mlp.form",
)
#: how many families a refusal names
N_NAMED_FAMILIES = 3


@dataclass(frozen=True)
class Lost:
    """A field that a family cannot hold. `ends_comparison`: nothing else of the architecture could be compared."""

    field: str
    value: Any
    ends_comparison: bool = False

    def __str__(self) -> str:
        return f"{self.field} = {self.value}"


def lost(a: Architecture, family: Family) -> list[Lost]:
    """What does not come back from the family's own entries, the most telling first; [] if nothing is lost."""
    before = canonical_fields(a)
    if family.has_encoder != (a.encoder is not None):
        return [Lost("encoder", before["encoder"], True)]
    unmet = family.unmet_limits(a)
    try:
        after = canonical_fields(family.round_trip(a))
    except ArchitectureError:
        # the description does not state this size: it is d_model / n_heads
        return [Lost(name, before[name], True) for name in unmet or ["attention.d_head"]]
    except FamilyError as error:
        return [Lost(name, before[name], True) for name in unmet or [family.unreadable_field(a, error)]]
    names = [name for name, value in before.items() if name in unmet or after.get(name) != value]
    # None: without effect in one of the two, because of another field that differs
    compared = [name for name in names if before[name] is not None and (name in unmet or after.get(name) is not None)]
    before["attention.windows"] = list(a.attention.windows)  # as they were given, not layer by layer

    def rank(field: Lost) -> tuple[int, bool, bool]:
        """The kind of model first, then limits, options, and numbers, each in the order of the fields."""
        kind = KIND_FIELDS.index(field.field) if field.field in KIND_FIELDS else len(KIND_FIELDS)
        return kind, field.field not in unmet, not isinstance(field.value, str)

    return sorted((Lost(name, before[name]) for name in compared or names), key=rank)


def first_lossless_family(a: Architecture, families: Iterable[Family]) -> Family | None:
    """The first family that holds all of the architecture."""
    return next((family for family in families if not lost(a, family)), None)


def able_family(a: Architecture, families: Iterable[Family], what: str, advice: str = "") -> Family:
    """The same; where there is none, raises FamilyError, which names what the nearest targets cannot hold: of the first
    everything, of the others one field.

    what  the description that is asked for, such as "GGUF"
    """
    ways: dict[str, list[Lost]] = {}
    for family in families:
        if not (fields := lost(a, family)):
            return family
        ways[family.name] = fields
    nearest = sorted(ways.items(), key=lambda way: (way[1][0].ends_comparison, len(way[1])))[:N_NAMED_FAMILIES]
    (name, fields), *others = nearest
    parts = [f"{name} cannot represent {' and '.join(map(str, fields))}"]
    parts += [f"{name} cannot represent {fields[0]}" for name, fields in others]
    n_left = len(ways) - len(nearest)
    more = f", and {n_left} other families are no nearer" if n_left else ""
    raise FamilyError(f"this architecture cannot be written as {what}: {'; '.join(parts)}{more}{advice}")
