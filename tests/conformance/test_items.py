"""The list is complete: each item is shown by a test or says what it waits for; the reference cites its sources."""

import ast
import inspect
import pkgutil
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import pellucid.reference

TESTS = Path(__file__).parent.parent
ITEMS = {
    name: item
    for section in tomllib.loads((Path(__file__).parent / "items.toml").read_text(encoding="utf-8")).values()
    for name, item in section.items()
}
ROOMS = {"engine", "train", "text", "generate", "lens", "serve", "parity", "docs", "experiments"}
MODULES = [import_module(f"pellucid.reference.{m.name}") for m in pkgutil.iter_modules(pellucid.reference.__path__)]


def shown() -> dict[str, list[str]]:
    """Item -> the tests marked with it, read from the source of every test file."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.item":
                    for argument in mark.args:
                        found.setdefault(ast.literal_eval(argument), []).append(f"{path.name}::{node.name}")
    return found


def test_the_list_has_every_item_of_the_five_texts():
    texts = {text: sum(name.startswith(text) for name in ITEMS) for text in ("S0", "S1", "S2", "S3", "S4", "X")}
    assert texts == {"S0": 68, "S1": 40, "S2": 25, "S3": 30, "S4": 91, "X": 5}
    assert sum(texts.values()) == len(ITEMS) == 259
    assert all(set(item) <= {"says", "waits"} and item["says"] for item in ITEMS.values())


def test_every_item_is_shown_or_waits_for_a_room():
    marked = shown()
    assert set(marked) <= set(ITEMS), sorted(set(marked) - set(ITEMS))
    neither = [name for name, item in ITEMS.items() if name not in marked and "waits" not in item]
    assert not neither
    assert {item["waits"].partition(":")[0] for item in ITEMS.values() if "waits" in item} <= ROOMS


def functions():
    for module in MODULES:
        for name, f in inspect.getmembers(module, inspect.isfunction):
            if f.__module__ == module.__name__ and not name.startswith("_"):
                yield f"{module.__name__}.{name}", f


@pytest.mark.item("S4-code-b")
def test_every_function_of_the_reference_cites_its_source():
    """A text by number and place, or what the function is for where it is bookkeeping of the package."""
    bookkeeping = {"tape", "functions.erf"}
    for name, f in functions():
        assert f.__doc__, name
        if not any(part in name for part in bookkeeping):
            assert re.search(r"\bS[0-4]\b|(?:et al\.|and [A-Z]\w+) \d{4}|pellucid\.tensor_names", f.__doc__), name
        for erratum in re.findall(r"E-(\d+)", f.__doc__):
            assert int(erratum) in {*range(1, 80), 81, 82}, name


@pytest.mark.item("S4-code-b")
def test_the_reference_is_short_enough_to_read():
    for module in MODULES:
        assert len(inspect.getsource(module).splitlines()) <= 350, module.__name__
    for name, f in functions():
        assert len(inspect.getsource(f).splitlines()) <= 45, name


@pytest.mark.item("S0-0-c")
def test_the_reference_imports_numpy_and_the_vocabulary_alone():
    allowed = ("numpy", "pellucid.architecture", "pellucid.tensor_names", "pellucid.edits", "pellucid.reference")
    standard = {
        "ast",
        "collections",
        "dataclasses",
        "fractions",
        "functools",
        "itertools",
        "math",
        "typing",
        "unicodedata",
    }
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith(allowed) or name.split(".")[0] in standard, f"{module.__name__} imports {name}"
