"""Rows so long that not every tensor can be kept: the stream behind each block first, then one block's tensors.

A row of 1,024 tokens has 1,024^2 scores for each head of each layer. So two computations are compared by their stream
(what every block reads and writes), and where it differs both run once more and keep the tensors of that one block.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from pellucid.architecture import Architecture
from pellucid.model import Recorder, Transformer
from pellucid.reference.tap import NoRecorder
from pellucid.tensor_names import names
from pellucid.verify.cases import Case
from pellucid.verify.comparison import Weights, compare, define
from pellucid.verify.report import Difference

Compute = Callable[[Iterable[str]], Mapping[str, Any]]


class Keep(NoRecorder):
    """The definition's tap that keeps the tensors of these names and no others."""

    def __init__(self, keep: Iterable[str]):
        self.keep, self.prefix = frozenset(keep), ""
        self.values: dict[str, np.ndarray] = {}

    def __call__(self, name: str, value: Any) -> Any:
        if self.prefix + name in self.keep:
            self.values[self.prefix + name] = np.asarray(value)
        return value

    def at(self, scope: str) -> "Keep":
        inner = object.__new__(type(self))
        inner.__dict__.update(self.__dict__, prefix=f"{self.prefix}{scope}.")
        return inner


def stages(a: Architecture) -> dict[str, tuple[str, ...]]:
    """The tensors of the stream that are compared first, each with the tensors that are computed on the way to it."""
    found: dict[str, tuple[str, ...]] = {}
    passed: list[str] = []
    for name in names(a):
        passed.append(name)
        if name.endswith(("resid_pre", "resid_post", "logits")) or name in ("final_norm", "encoder.final_norm"):
            found[name], passed = tuple(passed), []
    return found


def first_difference(a: Architecture, ours: Compute, theirs: Compute) -> tuple[Difference | None, float]:
    """The first tensor in which two computations differ, None where all agree, and how far apart their streams are."""
    on_the_way, worst = stages(a), 0.0
    own, expected = ours(on_the_way), theirs(on_the_way)
    for stage, inside in ((stage, inside) for stage, inside in on_the_way.items() if stage in expected):
        difference = compare(stage, own.get(stage), expected[stage])
        if not difference.small:
            return _first_inside(inside, difference, ours, theirs), difference.size
        worst = max(worst, difference.size)
    return None, worst


def _first_inside(names: Iterable[str], last: Difference, ours: Compute, theirs: Compute) -> Difference:
    """The first of these tensors that differs; the last of them is known to."""
    own, expected = ours(names), theirs(names)
    # scores come before the pattern and so on: in the order in which the definition computes them
    found = (compare(name, own.get(name), value) for name, value in expected.items())
    return next((d for d in found if not d.small), last)


def remembered(compute: Compute) -> Compute:
    """The same, whose last answer is given again to who asks for the same names."""
    last: dict[frozenset[str], Mapping[str, Any]] = {}

    def answer(keep: Iterable[str]) -> Mapping[str, Any]:
        asked = frozenset(keep)
        if asked not in last:
            last.clear()
            last[asked] = compute(asked)
        return last[asked]

    return answer


def by_engine(network: Transformer, case: Case) -> Compute:
    """The network on a case, as `first_difference` asks it."""

    def compute(keep: Iterable[str]) -> Mapping[str, Any]:
        recorder = Recorder(keep)
        case.run(network, recorder)
        return recorder.values

    return compute


def by_definition(a: Architecture, weights: Weights, case: Case) -> Compute:
    """The definition on a case of one row."""

    def compute(keep: Iterable[str]) -> Mapping[str, Any]:
        tap = Keep(keep)
        define(a, weights, case.rows[0], tap)
        return tap.values

    return compute
