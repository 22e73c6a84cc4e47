"""The values of options: read as typed on a command line, checked, and refused with the name of the field."""

import dataclasses
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, ParamSpec, TypeAlias, TypeVar

OptionsT = TypeVar("OptionsT")
Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")
if TYPE_CHECKING:
    #: the type of an option that the run chooses while it is None, which is typed and shown as auto. Type checkers let
    #: its value be used as it is: nearly all code reads options after the run has chosen them
    Open: TypeAlias = OptionsT | Any
else:
    Open = Optional


class ArchitectureError(ValueError):
    """A field that does not exist, or a value that is not valid."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """A part of a recipe, whose values are read by `build`."""

    def check(self) -> None:
        """Raise ValueError for values that are never valid."""


def suggest_keywords(
    further: Iterable[str] = (),
) -> Callable[[Callable[Arguments, ResultT]], Callable[Arguments, ResultT]]:
    """A decorator by which a function refuses an unknown keyword with the nearest right one, or with all of them.
    `further` are the names that its **options stand for.
    """

    def decorate(function: Callable[Arguments, ResultT]) -> Callable[Arguments, ResultT]:
        parameters = inspect.signature(function).parameters.values()
        known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
        known += further

        @functools.wraps(function)
        def checked(*args: Arguments.args, **keywords: Arguments.kwargs) -> ResultT:
            for name in keywords:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
                    raise TypeError(f"{function.__name__}() has no argument {name!r}: {hint}")
            return function(*args, **keywords)

        return checked

    return decorate


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


def is_auto(value: Any) -> bool:
    """Whether this value of an option, as text or typed, leaves it to the run."""
    return value is None or (isinstance(value, str) and value == "auto")


def option_text(value: Any) -> str:
    """The value of an option as it is typed."""
    return "auto" if value is None else ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def parse_value(name: str, value: Any, hint: Any, is_open: bool = False) -> Any:
    """`value` as the type `hint` asks for; text is read as typed on a command line, and where the type allows None,
    auto stands for it (`is_open`).

    Raises ArchitectureError with the field, what was given and what was expected.
    """
    if types.NoneType in (choices := typing.get_args(hint)):
        (kind,) = set(choices) - {types.NoneType}
        return None if is_auto(value) else parse_value(name, value, kind, is_open=True)
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options:
            near = difflib.get_close_matches(str(value), options, 1)
            best = f"; did you mean {near[0]!r}?" if near else ""
            listed = ", ".join(["auto"] * is_open + [*options])
            raise ArchitectureError(f"{name} = {value!r} is not one of its options: choose one of {listed}{best}")
        return value
    if hint == tuple[str, ...]:  # paths, which may hold any character
        return (value,) if isinstance(value, str) else tuple(map(str, value))
    if typing.get_origin(hint) is tuple:
        parts = [p for p in value.strip("()[] ").split(",") if p.strip()] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            parts = [parts]
        of_one, *others = typing.get_args(hint)
        if others not in ([], [...]) and len(parts) != 1 + len(others):
            raise ArchitectureError(f"{name} = {value!r}: expected {1 + len(others)} values")
        return tuple(parse_value(name, p.strip() if isinstance(p, str) else p, of_one) for p in parts)
    try:
        number = hint(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if hint is float and isinstance(number, int) and not isinstance(number, bool):
        number = float(number)
    if not isinstance(number, hint) or isinstance(number, bool):
        raise ArchitectureError(
            f"{name} = {value!r}: expected {'an integer' if hint is int else 'a number'}" + ", or auto" * is_open
        )
    return number


#: the types of a dataclass's fields by name, worked out once for each
field_hints = functools.cache(typing.get_type_hints)


def build(cls: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """The dataclass `cls` from nested plain values, which are all checked, by `Options.check` too where it has that.

    A field that holds a dataclass is built so too, unless its value is one. ArchitectureError names the field, below
    `path`, that is unknown, missing, or not of its type.
    """
    what = path or cls.__name__.lower()
    if not isinstance(values, Mapping):
        raise ArchitectureError(f"{what} = {values!r}: expected an object with named fields")
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
        if dataclasses.is_dataclass(value):
            checked[name] = value
        elif part is None:
            checked[name] = parse_value(full, value, hints[name])
        elif value is None and types.NoneType in choices:
            checked[name] = None
        else:
            checked[name] = build(part, typing.cast(Any, value), full)
    if missing := [f.name for f in dataclasses.fields(cls) if f.name not in checked and not _has_default(f)]:
        raise ArchitectureError(f"{what} lacks {', '.join(missing)}: give each a value")
    built = cls(**checked)
    if isinstance(built, Options):
        built.check()
    return built


def check_types(options: Any) -> None:
    """Raise ArchitectureError where a field of this dataclass holds a value that is not of its type."""
    for name, hint in field_hints(type(options)).items():
        if parse_value(name, value := getattr(options, name), hint) != value:
            raise ArchitectureError(f"{name} = {value!r}: expected a value, not its text")


def overlaid(options: Any, values: Mapping[str, Any], path: str) -> Any:
    """A copy of this dataclass with other values of its fields, all checked as by `build`."""
    return build(type(options), {**vars(options), **values}, path)


def _has_default(f: dataclasses.Field) -> bool:
    return f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
