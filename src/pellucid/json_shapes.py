"""Say once which values a JSON file holds, and check them where it is read: `DATA.check(values, "data.json")`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pellucid.json_files import JSONFileError


class Shape(Protocol):
    """What a value of a JSON file may be."""

    def check(self, value: Any, where: str, name: str = "") -> None:
        """Raise JSONFileError, with the file `where` and the field `name` in it, unless the value has this shape."""


def refuse_unless(holds: bool, value: Any, expected: str, where: str, name: str) -> None:
    """Raise JSONFileError, which says what was found and what was expected, unless `holds`."""
    if not holds:
        field = f"{name.removeprefix('.')} of {where}" if name else where
        raise JSONFileError(f"{field} is {value!r:.60}: expected {expected}; was the file changed, or damaged?")


@dataclass(frozen=True)
class Scalar:
    """A single value; `what` says in messages what is expected."""

    what: str
    holds: Callable[[Any], bool]

    def check(self, value: Any, where: str, name: str = "") -> None:
        refuse_unless(self.holds(value), value, self.what, where, name)


@dataclass(frozen=True)
class ListOf:
    """A list of any length, whose values have one shape."""

    of: Shape

    def check(self, value: Any, where: str, name: str = "") -> None:
        LIST.check(value, where, name)
        for number, item in enumerate(value):
            self.of.check(item, where, f"{name}[{number}]")


@dataclass(frozen=True)
class Row:
    """A list of as many values as there are shapes, each of its own."""

    of: Sequence[Shape]

    def check(self, value: Any, where: str, name: str = "") -> None:
        LIST.check(value, where, name)
        refuse_unless(len(value) == len(self.of), value, f"a list of {len(self.of)} values", where, name)
        for number, (item, shape) in enumerate(zip(value, self.of, strict=True)):
            shape.check(item, where, f"{name}[{number}]")


@dataclass(frozen=True)
class ObjectOf:
    """An object with any names, whose values have one shape."""

    of: Shape

    def check(self, value: Any, where: str, name: str = "") -> None:
        OBJECT.check(value, where, name)
        for key, item in value.items():
            self.of.check(item, where, f"{name}.{key}")


@dataclass(frozen=True)
class Fields:
    """An object with fields of these shapes, in which the `needed` ones must be; what else is in it is not checked."""

    shapes: Mapping[str, Shape]
    needed: tuple[str, ...] = ()

    def check(self, value: Any, where: str, name: str = "") -> None:
        OBJECT.check(value, where, name)
        for key in self.needed:
            refuse_unless(key in value, value, f"an object with {key!r} in it", where, name)
        for key, shape in self.shapes.items():
            if key in value:
                shape.check(value[key], where, f"{name}.{key}")


@dataclass(frozen=True)
class OrNull:
    """A value of this shape, or null."""

    of: Shape

    def check(self, value: Any, where: str, name: str = "") -> None:
        if value is not None:
            self.of.check(value, where, name)


LIST = Scalar("a list", lambda value: isinstance(value, list))
OBJECT = Scalar("an object", lambda value: isinstance(value, dict))
TEXT = Scalar("a text", lambda value: isinstance(value, str))
FLAG = Scalar("true or false", lambda value: isinstance(value, bool))
COUNT = Scalar("a whole number from 0 on, below 2^63", lambda value: type(value) is int and 0 <= value < 1 << 63)
NUMBER = Scalar("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
POSITIVE = Scalar("a number from 0 on", lambda value: NUMBER.holds(value) and value >= 0)
