"""Rows so long that not all tensors fit into memory: compare the stream after each block first, then one block.

A row of 1,024 tokens has 1,024^2 scores for each head of each layer. So two computations are compared by their stream
(the input and output of every block), and where it differs both run once more and record the tensors of that block.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from pellucid.architecture import Architecture
from pellucid.model import Recorder, Transformer
from pellucid.reference.tap import NoRecorder
from pellucid.tensor_names import names
from pellucid.verify.cases import NetworkCall
from pellucid.verify.comparison import Weights, compare, run_reference
from pellucid.verify.report import Difference

Compute = Callable[[Iterable[str]], Mapping[str, Any]]


class SelectiveRecorder(NoRecorder):
    """A tap for the reference that records only the tensors of these names."""

    def __init__(self, keep: Iterable[str]):
        self.keep, self.prefix = frozenset(keep), ""
        self.values: dict[str, np.ndarray] = {}

    def __call__(self, name: str, value: Any) -> Any:
        if self.prefix + name in self.keep:
            self.values[self.prefix + name] = np.asarray(value)
        return value

    def at(self, scope: str) -> "SelectiveRecorder":
        inner = object.__new__(type(self))
        inner.__dict__.update(self.__dict__, prefix=f"{self.prefix}{scope}.")
        return inner


def stages(a: Architecture) -> dict[str, tuple[str, ...]]:
    """The stream's tensors that are compared first, each with the tensors that lead to it."""
    stages_by_name: dict[str, tuple[str, ...]] = {}
    pending: list[str] = []
    for name in names(a):
        pending.append(name)
        if name.endswith(("resid_pre", "resid_post", "logits")) or name in ("final_norm", "encoder.final_norm"):
            stages_by_name[name], pending = tuple(pending), []
    return stages_by_name


def first_difference(a: Architecture, engine: Compute, reference: Compute) -> tuple[Difference | None, float]:
    """The first tensor in which two computations differ (None if all agree), and the distance of their streams."""
    names_by_stage, worst = stages(a), 0.0
    actual, expected = engine(names_by_stage), reference(names_by_stage)
    for stage, names_inside in names_by_stage.items():
        if stage not in expected:
            continue
        difference = compare(stage, actual.get(stage), expected[stage])
        if not difference.small:
            return _first_differing_tensor(names_inside, difference, engine, reference), difference.size
        worst = max(worst, difference.size)
    return None, worst


def _first_differing_tensor(names: Iterable[str], last: Difference, engine: Compute, reference: Compute) -> Difference:
    """The first of these tensors that differs; the last is known to differ."""
    actual, expected = engine(names), reference(names)
    # in the order in which the reference computes them: scores before the pattern, and so on
    differences = (compare(name, actual.get(name), value) for name, value in expected.items())
    return next((d for d in differences if not d.small), last)


def keep_last_result(compute: Compute) -> Compute:
    """The same computation, which remembers its last result for a repeated request."""
    last: dict[frozenset[str], Mapping[str, Any]] = {}

    def answer(keep: Iterable[str]) -> Mapping[str, Any]:
        names = frozenset(keep)
        if names not in last:
            last.clear()
            last[names] = compute(names)
        return last[names]

    return answer


def engine_computation(network: Transformer, case: NetworkCall) -> Compute:
    """The network on a case, as a computation for `first_difference`."""

    def compute(keep: Iterable[str]) -> Mapping[str, Any]:
        recorder = Recorder(keep)
        case.run(network, recorder)
        return recorder.values

    return compute


def reference_computation(a: Architecture, weights: Weights, case: NetworkCall) -> Compute:
    """The reference on a case of one row, as a computation for `first_difference`."""

    def compute(keep: Iterable[str]) -> Mapping[str, Any]:
        tap = SelectiveRecorder(keep)
        run_reference(a, weights, case.rows[0], tap)
        return tap.values

    return compute
