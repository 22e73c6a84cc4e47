"""Edits of a forward pass, as data: which tensor to change, where in it, and to what.

An edit names a tensor of `pellucid.tensor_names` (`*` stands for anything). It applies to the whole tensor unless head,
kv_head, pos, key, neuron or row restrict it. Positions are absolute: the first token that is fed is 0, in a trace and
in generation alike, with a cache and without one. The engine (`pellucid.lens.core.interventions`) and the definition
(`pellucid.reference.edits`) read the same edits.

    zero         0
    mean         the mean of x over the rows of the batch, or over the positions, or a mean that was measured
    resample     what another input had there; row b takes the other's row b mod its number of rows
    set          value
    add          x + factor value
    scale        factor x
    project_out  x - (x . u) u,  u = value / |value|, along the last axis
    clamp        min(max(x, low), high)
    freeze       what the run without any edit has there, or `value`: nothing upstream acts through it

Scores that are -inf, of keys that a query may not read, stay -inf whatever the edit.
"""

import copy
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from pellucid.json_files import JSONFileError, parse_json_value

Op = Literal["zero", "mean", "resample", "set", "add", "scale", "project_out", "clamp", "freeze"]
#: the indices of an axis that an edit applies to: one, several, or a slice; None for all of them
Indices = int | Sequence[int] | range | slice | None
#: the options that restrict an edit to a part of a tensor, and the axis letters (`pellucid.tensor_names`) of each
AXES_OF_SELECTION = {"row": "b", "head": "h", "kv_head": "g", "pos": "ij", "key": "j", "neuron": "fs"}
#: the fields that hold numbers
NUMERIC_FIELDS = ("value", "factor", "low", "high")


class EditError(ValueError):
    """An edit that has no meaning, or that this tensor or this kind of run does not allow."""


class Where(TypedDict, total=False):
    """The part of a tensor that an edit applies to; what is left out is not restricted.

    row       rows of the batch
    head      heads of queries, patterns and results
    kv_head   heads of keys and values
    pos       positions of the tensor, from 0
    key       positions of the keys, of scores and patterns
    neuron    neurons of the hidden layer of an MLP, an expert or a shared expert
    """

    row: Indices
    head: Indices
    kv_head: Indices
    pos: Indices
    key: Indices
    neuron: Indices


@dataclass(frozen=True, eq=False)
class Edit:
    """One change to one tensor; the functions below make them.

    `value` is a number, a vector along the last axis, or an array (a tensor, nested lists, or a trace, which gives its
    tensor of the same name) with every axis of the tensor, each of length 1 or full. Its position axes count absolute
    positions; positions beyond its end are not changed. The edit holds a copy: an array that is changed later does not
    change it.
    """

    op: Op
    name: str
    value: Any = None
    over: Literal["batch", "pos"] | None = None
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    row: Indices = None
    head: Indices = None
    kv_head: Indices = None
    pos: Indices = None
    key: Indices = None
    neuron: Indices = None

    def __post_init__(self):
        if self.op not in get_args(Op):
            raise EditError(f"op = {self.op!r} is not an edit: give one of {', '.join(get_args(Op))}")
        if self.over not in (None, "batch", "pos"):
            raise EditError(f"over = {self.over!r}: give batch or pos, or give the mean that was measured as value")
        object.__setattr__(self, "value", _copied(self.value))
        for axis in AXES_OF_SELECTION:
            object.__setattr__(self, axis, _checked(axis, getattr(self, axis)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edit) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, in plain JSON types."""
        values = {f.name: _field_to_json(f.name, getattr(self, f.name)) for f in fields(self)}
        defaults = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in values.items() if name in ("op", "name") or value != defaults[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Edit":
        """The edit that `to_dict` wrote; EditError for fields that no edit has, and for other text than numbers."""
        known = {f.name for f in fields(cls)}
        if strange := sorted(set(values) - known):
            raise EditError(f"an edit has no field {strange[0]!r}: the fields are {', '.join(sorted(known))}")
        if missing := [name for name in ("op", "name") if name not in values]:
            raise EditError(f"an edit was given without {missing[0]}: give op and name")
        options: dict[str, Any] = {n: _span(v) if n in AXES_OF_SELECTION else v for n, v in values.items()}
        for n in [n for n in NUMERIC_FIELDS if n in options]:
            try:
                options[n] = _decode_numbers(options[n])
            except ValueError as error:
                raise EditError(f"{n} of the edit of {values['name']} is no array of numbers: {error}") from None
        return cls(**options)


def zero(name: str, **where: Unpack[Where]) -> Edit:
    """Replace by 0; `where` is any of head, kv_head, pos, key, neuron, row (`Where`)."""
    return Edit("zero", name, **where)


def mean(name: str, over: Literal["pos", "batch"] | Any = "pos", **where: Unpack[Where]) -> Edit:
    """Replace by the mean over "pos" or "batch" of the run itself, or by a measured mean: an array, as Edit's value."""
    if isinstance(over, str):
        return Edit("mean", name, over=cast(Literal["pos", "batch"], over), **where)
    return Edit("mean", name, value=over, **where)


def resample(name: str, other: Any, **where: Unpack[Where]) -> Edit:
    """Replace by what `other` has there, a trace or an array with every axis."""
    return Edit("resample", name, value=other, **where)


def set_to(name: str, value: Any, **where: Unpack[Where]) -> Edit:
    """Replace by a number, a vector, an array, or what a trace has there."""
    return Edit("set", name, value=value, **where)


def add(name: str, value: Any, factor: float = 1.0, **where: Unpack[Where]) -> Edit:
    """Add factor times value."""
    return Edit("add", name, value=value, factor=factor, **where)


def scale(name: str, factor: float, **where: Unpack[Where]) -> Edit:
    """Multiply by factor."""
    return Edit("scale", name, factor=factor, **where)


def project_out(name: str, direction: Any, **where: Unpack[Where]) -> Edit:
    """Remove the component along `direction`, a vector of the last axis."""
    return Edit("project_out", name, value=direction, **where)


def clamp(name: str, low: float | None = None, high: float | None = None, **where: Unpack[Where]) -> Edit:
    """Limit every entry to the range from `low` to `high`."""
    if low is None and high is None:
        raise EditError("clamp was given neither low nor high: give at least one")
    return Edit("clamp", name, low=low, high=high, **where)


def freeze(name: str, to: Any = None, **where: Unpack[Where]) -> Edit:
    """Keep what the run without any edit has there, or what the trace or array `to` has."""
    return Edit("freeze", name, value=to, **where)


def to_json(edits: Iterable[Edit]) -> str:
    """A list of edits as JSON."""
    return json.dumps([edit.to_dict() for edit in edits], allow_nan=False)


def from_json(text: str) -> list[Edit]:
    """The edits that `to_json` wrote."""
    try:
        values = parse_json_value(text, "the list of edits")
    except JSONFileError as error:
        raise EditError(str(error)) from None
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        raise EditError("expected a JSON list of edits, each an object with op and name")
    return [Edit.from_dict(v) for v in values]


def _copied(value: Any) -> Any:
    """A tensor, an array or nested lists with memory of their own; a trace as it is, since nothing changes it."""
    if hasattr(value, "clone"):
        return value.clone()
    return copy.deepcopy(value) if isinstance(value, list | tuple) or hasattr(value, "tolist") else value


def _checked(axis: str, indices: Any) -> Any:
    """An int or a sequence as a tuple, a slice without step as it is; EditError for negative indices, and for none."""
    if indices is None:
        return None
    refused = EditError(f"{axis} = {indices}: expected whole numbers from 0 on, which is the first")
    empty = EditError(f"{axis} = {indices} stands for no index, so the edit would change nothing: give one or more")
    if isinstance(indices, slice) and indices.step not in (None, 1):
        raise EditError(f"{axis} = {indices}: a slice of an edit has no step; give the numbers as a list")
    try:
        if isinstance(indices, slice):
            numbers = [_as_integer(indices.start or 0), _as_integer(0 if indices.stop is None else indices.stop)]
        else:
            numbers = _wholes(indices)
    except TypeError:
        raise refused from None
    if min(numbers, default=0) < 0:
        raise refused
    if not isinstance(indices, slice):
        if not numbers:
            raise empty
        return tuple(numbers)
    if indices.stop is not None and numbers[1] <= numbers[0]:
        raise empty
    return slice(numbers[0], None if indices.stop is None else numbers[1])


def _wholes(indices: Any) -> list[int]:
    """One integer, or several. Raises TypeError for others."""
    try:
        return [_as_integer(indices)]
    except TypeError:
        return [_as_integer(n) for n in indices]


def _as_integer(number: Any) -> int:
    """An integer of Python, NumPy or PyTorch. Raises TypeError for everything else, True and False too."""
    if isinstance(number, bool) or str(getattr(number, "dtype", "")).endswith("bool"):
        raise TypeError
    return operator.index(number)


def _span(value: Any) -> Any:
    """Indices read from JSON."""
    return slice(value.get("from"), value.get("to")) if isinstance(value, Mapping) else value


def _field_to_json(name: str, value: Any) -> Any:
    """A field in JSON types."""
    if name in AXES_OF_SELECTION:
        if isinstance(value, slice):
            return {"from": value.start or 0, "to": value.stop}
        return list(value) if isinstance(value, tuple) else value
    if hasattr(value, "keep"):
        raise EditError("an edit that refers to a trace cannot be written: write `trace.edits`, which hold the tensors")
    return _json_numbers(value) if name in NUMERIC_FIELDS else value


def _json_numbers(value: Any) -> Any:
    """Nested numbers, tensors and arrays as lists, with infinities and nan as text: JSON has no number for them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_numbers(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _decode_numbers(value: Any) -> Any:
    """Nested numbers back from `_json_numbers`. Raises ValueError for other text."""
    if isinstance(value, list):
        return [_decode_numbers(v) for v in value]
    if isinstance(value, str) and value not in ("inf", "-inf", "nan"):
        raise ValueError(f"{value[:40]!r}: expected a number, or inf, -inf or nan as text")
    return float(value) if isinstance(value, str) else value
