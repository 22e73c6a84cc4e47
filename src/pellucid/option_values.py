"""The values of options: read as typed on a command line, checked, and refused with the name of the field."""

import difflib
import typing
from collections.abc import Sequence
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
    if hint is float and isinstance(number, int):
        number = float(number)
    if not isinstance(number, hint) or isinstance(number, bool):
        raise ArchitectureError(f"{name} = {value!r}: expected {'an integer' if hint is int else 'a number'}")
    return number
