"""The text of the definition, and where in it a tensor is computed: at the line that gives it to its tap."""

import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

#: the files of the definition that tap tensors
TAPPING = ("reference/transformer.py", "reference/layers.py")
FUNCTION = re.compile(r"def (\w+)\(")
#: tap("scores", ...), tap(f"pre{number}", ...), and tap(called, ...) of a norm, whose name its caller chooses
TAP = re.compile(r'\btap\((?:f?"([a-z_]+)|called)')
#: inner("scale", ...), and the part of its name that `inner` puts before it: inner = tap.at("shared")
INNER = re.compile(r'\binner\("([a-z_]+)')
SCOPE = re.compile(r'\binner = tap\.at\((?:f?"([a-z_]+))?')


@dataclass(frozen=True)
class SourceLine:
    """A function of the package, or a method Class.method, and the index of a line in it."""

    file: str
    function: str
    line: int


def place_of(name: str, block: str) -> SourceLine:
    """Where the definition computes a tensor, in a model or an encoder with blocks of this kind."""
    words = re.sub(r"\.\d+|(?<=expert_)\d+", "", name).split(".")
    for key in (".".join(words[-2:]), words[-1], ""):
        if lines := tap_places().get(key):
            return next((line for line in lines if line.function == f"{block}_block"), lines[0])
    raise LookupError(f"the definition has no tap of {name}")


@cache
def tap_places() -> dict[str, list[SourceLine]]:
    """Each place of the definition that taps a tensor, by the tensor's name without its block; "" for any norm."""
    lines_by_key: dict[str, list[SourceLine]] = {}
    for file in TAPPING:
        function, first, scope = "", 0, ""
        for number, line in enumerate(package_lines(file)):
            if match := FUNCTION.match(line):
                function, first = match[1], number
            if match := SCOPE.search(line):
                scope = f"{match[1]}." if match[1] else ""
            keys = [key or "" for key in TAP.findall(line)] + [scope + key for key in INNER.findall(line)]
            for key in keys:
                lines_by_key.setdefault(key, []).append(SourceLine(file, function, number - first))
    return lines_by_key


@cache
def package_lines(file: str) -> list[str]:
    """The lines of a file of the package."""
    text = resources.files("pellucid").joinpath(*file.split("/")).read_text(encoding="utf-8")
    return text.splitlines(keepends=True)


@cache
def source_text(file: str, name: str) -> dict[str, Any]:
    """The text of a function, or of a method Class.method, in a file of the package, and its first line's number."""
    lines = package_lines(file)
    start, end = 0, len(lines)
    for part in name.split("."):
        # no ast.parse: two threads that parse at once disturb each other in Python 3.11 ("recursion depth mismatch")
        opening = re.compile(rf"\s*(async )?(def|class) {part}\b")
        first = next((k for k in range(start, end) if opening.match(lines[k])), None)
        if first is None:
            raise LookupError(f"pellucid/{file} has no {name}")
        start, end = first, first + len(inspect.getblock(lines[first:end]))
    return {"file": f"pellucid/{file}", "first": start + 1, "lines": [line.rstrip("\n") for line in lines[start:end]]}
