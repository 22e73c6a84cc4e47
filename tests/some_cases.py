"""Which cases of a long table run in `make test`: evenly spread ones; the others run in `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, cases: Iterable[Any]) -> list[Any]:
    """The cases for pytest.mark.parametrize: all but every n-th one are marked slow. A tuple is several arguments."""
    return [case if number % n == 0 else slow(case) for number, case in enumerate(cases)]


def slow(case: Any) -> Any:
    """The case, in make test-slow alone; it may be a pytest.param already."""
    if hasattr(case, "marks"):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
