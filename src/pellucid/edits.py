"""What to change in a forward pass, as data: which tensor, where in it, and to what.

An edit names a tensor of `pellucid.tensor_names` (`*` stands for anything) and applies everywhere in it unless head,
kv_head, pos, key, neuron or row narrow it down. Positions are absolute: the first token that is fed is 0, in a
trace and in generation alike, with a cache and without one. The same edit is understood by the engine
(`pellucid.lens.core.interventions`) and by the definition (`pellucid.reference.edits`).

    zero         0
    mean         the mean of x over the rows of the batch, or over the positions, or one that was measured
    resample     what another input had there; row b takes the other's row b mod its number of rows
    set          value
    add          x + factor value
    scale        factor x
    project_out  x - (x . u) u,  u = value / |value|, along the last axis
    clamp        min(max(x, low), high)
    freeze       what the run without any edit has there, or `value`: nothing upstream acts through it

Scores that are -inf, the keys a query may not read, stay so whatever the edit.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Op = Literal["zero", "mean", "resample", "set", "add", "scale", "project_out", "clamp", "freeze"]
Where = int | Sequence[int] | range | slice | None
#: the places that narrow an edit down, and the axis letters (`pellucid.tensor_names`) they belong to
PLACES = {"row": "b", "head": "h", "kv_head": "g", "pos": "ij", "key": "j", "neuron": "f"}


class EditError(ValueError):
    """An edit that cannot mean anything, or that this tensor or this kind of run has no place for."""


@dataclass(frozen=True, eq=False)
class Edit:
    """One change; made by the functions below. `value` is a number, nested lists, an array or a trace.

    A value is a number, a vector along the last axis, or an array with every axis of the tensor, each of them of
    length 1 or full; its position axes count absolute positions, and positions it does not reach are left alone.
    """

    op: Op
    name: str
    value: Any = None
    over: Literal["batch", "pos"] | None = None
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    row: Where = None
    head: Where = None
    kv_head: Where = None
    pos: Where = None
    key: Where = None
    neuron: Where = None

    def __post_init__(self):
        if self.op not in get_args(Op):
            raise EditError(f"op = {self.op!r} is no edit: say one of {', '.join(get_args(Op))}")
        if self.over not in (None, "batch", "pos"):
            raise EditError(f"over = {self.over!r}: say batch or pos, or give the mean that was measured as value")
        for place in PLACES:
            object.__setattr__(self, place, _places(place, getattr(self, place)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edit) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, in plain JSON types."""
        made = {f.name: _plain(f.name, getattr(self, f.name)) for f in fields(self)}
        defaults = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in made.items() if name in ("op", "name") or value != defaults[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Edit":
        """The edit that `to_dict` wrote; EditError for fields that no edit has."""
        known = {f.name for f in fields(cls)}
        if strange := sorted(set(values) - known):
            raise EditError(f"an edit has no field {strange[0]!r}: the fields are {', '.join(sorted(known))}")
        if missing := [name for name in ("op", "name") if name not in values]:
            raise EditError(f"an edit was given without {missing[0]}: say what is to be done, and to which tensor")
        made = {n: _span(v) if n in PLACES else _numbers(v) if n == "value" else v for n, v in values.items()}
        return cls(**made)


def zero(name: str, **where: Any) -> Edit:
    """0; `where` is any of head, kv_head, pos, key, neuron, row."""
    return Edit("zero", name, **where)


def mean(name: str, over: Any = "pos", **where: Any) -> Edit:
    """The mean over "pos" or "batch" of the run itself, or a measured one: an array, as `value` of Edit."""
    if isinstance(over, str):
        return Edit("mean", name, over=over, **where)  # type: ignore[arg-type]
    return Edit("mean", name, value=over, **where)


def resample(name: str, other: Any, **where: Any) -> Edit:
    """What `other`, a trace or an array with every axis, has there."""
    return Edit("resample", name, value=other, **where)


def set_to(name: str, value: Any, **where: Any) -> Edit:
    """A number, a vector, an array, or what a trace has there."""
    return Edit("set", name, value=value, **where)


def add(name: str, value: Any, factor: float = 1.0, **where: Any) -> Edit:
    """x + factor value."""
    return Edit("add", name, value=value, factor=factor, **where)


def scale(name: str, factor: float, **where: Any) -> Edit:
    """factor x."""
    return Edit("scale", name, factor=factor, **where)


def project_out(name: str, direction: Any, **where: Any) -> Edit:
    """What x has along `direction`, a vector of the last axis, taken out."""
    return Edit("project_out", name, value=direction, **where)


def clamp(name: str, low: float | None = None, high: float | None = None, **where: Any) -> Edit:
    """No entry below `low` or above `high`."""
    if low is None and high is None:
        raise EditError("clamp was given neither low nor high: give at least one")
    return Edit("clamp", name, low=low, high=high, **where)


def freeze(name: str, to: Any = None, **where: Any) -> Edit:
    """As it is without any edit, or as the trace or array `to` has it."""
    return Edit("freeze", name, value=to, **where)


def to_json(edits: Iterable[Edit]) -> str:
    """A list of edits as JSON."""
    return json.dumps([edit.to_dict() for edit in edits], allow_nan=False)


def from_json(text: str) -> list[Edit]:
    """The edits that `to_json` wrote."""
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        raise EditError("expected a JSON list of edits, each an object with op and name")
    return [Edit.from_dict(v) for v in values]


def _places(place: str, given: Any) -> Any:
    """An int or a sequence as a tuple, a slice without step as it is; EditError for negative or repeated places."""
    if given is None or isinstance(given, slice):
        ends = [] if given is None else [given.start or 0, 0 if given.stop is None else given.stop]
        if given is not None and given.step not in (None, 1):
            raise EditError(f"{place} = {given}: a slice of an edit has no step; give the numbers as a list")
    else:
        ends = [given] if isinstance(given, int) else list(given)
        given = tuple(ends)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in ends):
        raise EditError(f"{place} = {given}: places of an edit are counted from 0, and are not negative")
    return given


def _span(value: Any) -> Any:
    """A place read from JSON."""
    return slice(value.get("from"), value.get("to")) if isinstance(value, Mapping) else value


def _plain(name: str, value: Any) -> Any:
    """A field in JSON types."""
    if name in PLACES:
        if isinstance(value, slice):
            return {"from": value.start or 0, "to": value.stop}
        return list(value) if isinstance(value, tuple) else value
    if name == "value" and value is not None:
        if hasattr(value, "keep"):
            raise EditError("an edit that refers to a trace is written once it is resolved: use the edits of the trace")
        return _worded(value.tolist() if hasattr(value, "tolist") else value)
    return value


def _worded(value: Any) -> Any:
    """Nested numbers with the infinities as words, which JSON has no number for."""
    if isinstance(value, list | tuple):
        return [_worded(v) for v in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _numbers(value: Any) -> Any:
    """Nested numbers back from `_worded`."""
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return float(value) if isinstance(value, str) else value
