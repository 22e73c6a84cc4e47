"""Every example runs and shows what it says; those that train are slow: make test-slow."""

import ast
import importlib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HELPERS = {"svg", "character_model"}
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in HELPERS)


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_says_what_it_shows(name: str):
    """It is imported without doing anything, names its item or its source, and is in the README."""
    module = example(name)
    assert callable(module.main)
    assert module.__doc__ is not None
    assert module.__doc__.startswith("S"), "the docstring begins with the item of the conformance list, or the source"
    assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_has_a_test_here(name: str):
    """Each script's main is called by a test of this file."""
    calls = [n.args[0].value for n in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8"))) if is_example(n)]
    assert name in calls


def is_example(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "example"
        and isinstance(node.args[0], ast.Constant)
    )


def drawn(folder: Path, name: str) -> None:
    """The figure is there, is XML, and has something in it besides its ground."""
    root = ElementTree.parse(folder / f"{name}.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root)) > 5


@pytest.mark.item("S4-att-a")
def test_day_after_annas_birthday(figures: Path):
    found = example("day_after_annas_birthday").main()
    assert found["right"] == 98
    drawn(figures, "day_after_annas_birthday")


@pytest.mark.item("S2-4-g", "S2-4-h", "S2-4-j")
def test_shift_of_sinusoids(figures: Path):
    found = example("shift_of_sinusoids").main()
    assert found["shift_error"] < 1e-12
    assert found["previous_6"] > 0.99
    drawn(figures, "shift_of_sinusoids")


@pytest.mark.item("S4-emb-d")
def test_hintons_family_trees(figures: Path):
    found = example("hintons_family_trees").main()
    assert (found["questions"], found["facts"]) == (104, 112)
    assert found["separable_mean"] >= 0.95
    assert found["right_unseen"] >= 0.3
    drawn(figures, "hintons_family_trees")


@pytest.mark.item("S1-1.1.2-j")
def test_mup_scores(figures: Path):
    found = example("mup_scores").main()
    assert found["muP_ratio"] <= 1.6
    assert found["standard_ratio"] >= 5
    drawn(figures, "mup_scores")
