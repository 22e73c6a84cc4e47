"""The values of options: read as typed on a command line, checked, and refused with the name of the field."""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal


class ArchitectureError(ValueError):
    """A field that does not exist, or a value that is not valid."""


def require(holds: bool, name: str, value: Any, expected: str) -> None:
    """Raise ArchitectureError, with the field and what was expected of it, unless `holds`."""
    if not holds:
        raise ArchitectureError(f"{name} = {value}: expected {expected}")


def resolve_field(name: str, known: Sequence[str]) -> str:
    """The full dotted name that `name` stands for; ArchitectureError names the nearest right one."""
    if name in known:
        return name
    matches = [k for k in known if k.endswith("." + name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ArchitectureError(f"{name!r} is ambiguous: choose one of {', '.join(matches)}")
    # last parts of names are compared too, so that `n_head` finds attention.n_heads
    tails = {k.rpartition(".")[2]: k for k in reversed(known)}
    near = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(name.rpartition(".")[2], tails, 1)
    hint = f"did you mean {tails.get(near[0], near[0])!r}?" if near else f"known fields: {', '.join(known)}"
    raise ArchitectureError(f"there is no field {name!r}; {hint}")


def check_given_once(names: Iterable[str], resolve: Callable[[str], str]) -> None:
    """Raise ArchitectureError where one of these names of fields stands there twice, or two of them for one field, of
    which `resolve` gives the full name.
    """
    first: dict[str, str] = {}
    for name in names:
        if (full := resolve(name)) in first:
            other = "" if name == first[full] else f", as {first[full]} and as {name}"
            raise ArchitectureError(f"{full} is given twice{other}: give it once")
        first[full] = name


def parse_value(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint` asks for; text is read as typed on a command line.

    Raises ArchitectureError with the field, what was given and what was expected.
    """
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options:
            near = difflib.get_close_matches(str(value), options, 1)
            best = f"; did you mean {near[0]!r}?" if near else ""
            listed = ", ".join(options)
            raise ArchitectureError(f"{name} = {value!r} is not one of its options: choose one of {listed}{best}")
        return value
    if hint == tuple[str, ...]:  # paths, which may hold any character
        return (value,) if isinstance(value, str) else tuple(map(str, value))
    if typing.get_origin(hint) is tuple:
        parts = [p for p in value.strip("()[] ").split(",") if p.strip()] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            parts = [parts]
        of_one = typing.get_args(hint)[0]
        return tuple(parse_value(name, p.strip() if isinstance(p, str) else p, of_one) for p in parts)
    try:
        number = hint(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if hint is float and isinstance(number, int) and not isinstance(number, bool):
        number = float(number)
    if not isinstance(number, hint) or isinstance(number, bool):
        raise ArchitectureError(f"{name} = {value!r}: expected {'an integer' if hint is int else 'a number'}")
    return number


#: the types of a dataclass's fields by name, worked out once for each
field_hints = functools.cache(typing.get_type_hints)


def build(cls: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """The dataclass `cls` from nested plain values, which are all checked; a field that holds a dataclass is built so
    too. ArchitectureError names the field, below `path`, that is unknown, missing, or not of its type."""
    if not isinstance(values, Mapping):
        raise ArchitectureError(f"{path or 'architecture'} = {values!r}: expected an object with named fields")
    hints = field_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    checked = {}
    for name, value in values.items():
        full = f"{path}.{name}" if path else name
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known)}"
            raise ArchitectureError(f"there is no field {full!r}; {hint}")
        choices = typing.get_args(hints[name]) or (hints[name],)
        part = next(filter(dataclasses.is_dataclass, choices), None)
        if part is None:
            checked[name] = parse_value(full, value, hints[name])
        elif value is None and types.NoneType in choices:
            checked[name] = None
        else:
            checked[name] = build(part, typing.cast(Any, value), full)
    if missing := [f.name for f in dataclasses.fields(cls) if f.name not in checked and not _has_default(f)]:
        raise ArchitectureError(f"{path or 'architecture'} lacks {', '.join(missing)}: give each a value")
    return cls(**checked)


def _has_default(f: dataclasses.Field) -> bool:
    return f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
