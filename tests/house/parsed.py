"""The files of the package and of its tests as syntax trees, each parsed once by a process that runs tests."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
