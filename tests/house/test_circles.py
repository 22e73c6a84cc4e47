"""No circle of imports anywhere in the house.

An import counts wherever it is written: at the top of a module, under TYPE_CHECKING, inside a function or a class.
`from package import module` is an import of the module. Any other import is one of the module that it names, and not of
the packages that contain it.
"""

import ast
from pathlib import Path

import pytest

import pellucid

SOURCE = Path(pellucid.__file__).parent


def modules(root):
    """Every module of a package, by full name."""
    named = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(path, known):
    """The modules among `known` that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if module in known or node.module in known:
                    yield module if module in known else node.module


def circles(graph):
    """The strongly connected groups of more than one module (Tarjan 1972)."""
    index, low, stack, groups = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            start = stack.index(module)
            group = stack[start:]
            del stack[start:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return groups


def graph_of(root):
    known = modules(root)
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def test_no_modules_import_each_other_in_a_circle():
    assert not circles(graph_of(SOURCE))


CIRCLES = {
    "at the top": "from house.two import f\n",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.two import f\n",
    "inside a function": "def g():\n    import house.two\n",
    "of a module": "from house import two\n",
}


@pytest.mark.parametrize("kind", CIRCLES)
def test_a_circle_would_be_found(tmp_path, kind):
    root = tmp_path / "house"
    (root / "room").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "two.py").write_text("from house.room.three import f\n")
    (root / "room" / "three.py").write_text("from house.one import f\n")
    (root / "one.py").write_text(CIRCLES[kind])
    assert circles(graph_of(root)) == [["house.one", "house.room.three", "house.two"]]
    (root / "one.py").write_text("import math\n")
    assert not circles(graph_of(root))
