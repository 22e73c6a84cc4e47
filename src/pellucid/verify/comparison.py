"""The engine and the definition run on the same inputs, and how far apart their tensors are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model import OFF, Recorder, Tap, Transformer
from pellucid.model.weights import state_of
from pellucid.reference import transformer as reference
from pellucid.reference.learning import loss_and_gradient, next_token_loss
from pellucid.reference.tap import NoRecorder
from pellucid.reference.tap import TensorRecorder as ReferenceTap
from pellucid.reference.weights import weight_shapes
from pellucid.tensor_names import names
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.verify.cases import Case, Place, ReferenceText, alone
from pellucid.verify.report import TOLERANCE, Difference

Weights = Mapping[str, np.ndarray]

#: numbers that are compared at a time: copies of a whole tensor of logits would need more memory than the network
COMPARED_AT_ONCE = 2**22


@dataclass(frozen=True)
class Subject:
    """A model under examination.

    network, exact  as it is, and as a float64 copy on the CPU
    tokens          those of its prompts [1, n]
    n_row           how many tokens are read in a row
    """

    network: Transformer
    exact: Transformer
    tokenizer: Tokenizer | None
    prompts: tuple[str, ...]
    tokens: tuple[Tensor, ...]
    n_row: int = 0

    @property
    def a(self) -> Architecture:
        return self.network.architecture

    @property
    def longest(self) -> Tensor:
        return max(self.tokens, key=lambda t: t.size(1))

    @property
    def weights(self) -> Weights:
        return weights_of(self.exact)


def run_engine(network: Transformer, tokens: Tensor, tap: Tap = OFF) -> Tensor:
    """The logits of one text on the CPU, without gradients."""
    return alone(network.architecture, tokens).run(network, tap)


def define(a: Architecture, weights: Weights, row: ReferenceText, tap: NoRecorder) -> np.ndarray:
    """The logits of a row by definition."""
    given: dict[str, Any] = {}
    for name in ("segments", "positions", "mask", "source_mask"):
        if (value := getattr(row, name)) is not None:
            given[name] = value.numpy()
    if row.source is not None:
        given["source"] = reference.encode(a, weights, row.source.numpy(), tap=tap)
    return reference.forward(a, weights, row.tokens.numpy(), tap=tap, **given)


def defined(a: Architecture, weights: Weights, row: ReferenceText) -> dict[str, np.ndarray]:
    """Every named tensor of a row by definition, in the order of its computation."""
    tap, known = ReferenceTap(), set(names(a))
    define(a, weights, row, tap)
    assert known <= tap.values.keys(), "the reference lacks a tensor of the table"
    return {name: value for name, value in tap.values.items() if name in known}


def compare(
    name: str, given: Any, expected: Any, scale: float | None = None, tolerance: float = TOLERANCE
) -> Difference:
    """One tensor with the one expected, measured by `scale` (max(1, its largest entry) unless given).

    -inf must be at the same entries.
    """
    if given is None:
        return Difference(name, None, "never computed")
    given, expected = np.asarray(given), np.asarray(expected)
    if given.shape != expected.shape:
        return Difference(name, None, f"shape {list(given.shape)}, not {list(expected.shape)}")
    worst, top = 0.0, 1.0
    for own, other in _slabs(given, expected):
        hidden = np.isneginf(other)
        if not np.array_equal(np.isneginf(own), hidden):
            return Difference(name, None, "other entries are -inf")
        own, other = np.where(hidden, 0, own), np.where(hidden, 0, other)
        if not (np.isfinite(own).all() and np.isfinite(other).all()):
            return Difference(name, None, "entries are not finite")
        worst = max(worst, float(np.abs(own - other).max(initial=0)))
        top = max(top, float(np.abs(other).max(initial=0)))
    return Difference(name, worst / (top if scale is None else scale), tolerance=tolerance)


def _slabs(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both arrays, some numbers at a time."""
    one, other = one.reshape(-1), other.reshape(-1)
    for start in range(0, len(one), COMPARED_AT_ONCE):
        yield one[start : start + COMPARED_AT_ONCE], other[start : start + COMPARED_AT_ONCE]


def largest(*arrays: np.ndarray) -> float:
    """max(1, the largest entry of all of them)."""
    return max(1.0, *(float(np.abs(array).max(initial=0)) for array in arrays))


def weights_of(network: Transformer) -> dict[str, np.ndarray]:
    """The weights as the definition takes them."""
    return {name: p.detach().numpy() for name, p in state_of(network).items()}


def first_wrong(found: Iterable[Difference]) -> Difference | None:
    """The first that is more than rounding."""
    return next((d for d in found if not d.small), None)


def worst_of(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """The worst of each name, in the order in which the names came."""
    worst: dict[str, Difference] = {}
    for d in found:
        worst[d.name] = max(worst.get(d.name, d), d, key=lambda d: d.size)
    return tuple(worst.values())


def compare_case(
    network: Transformer, case: Case, expected: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Difference, ...]:
    """Every named tensor of the call: the worst over its rows, in the order of the definition's computation.

    expected   the tensors of each row by definition (`defined`)

    The logits are those of a call without a tap and of one with it.
    """
    recorder = Recorder(expected[0])
    kept, plain = case.run(network, recorder), case.run(network)
    found: list[Difference] = []
    for r, (row, tensors) in enumerate(zip(case.rows, expected, strict=True)):
        place = Place(r, row.columns, row.columns, row.source_columns)
        found += (compare_at(place, name, recorder.values.get(name), value) for name, value in tensors.items())
        found += (compare_at(place, "logits", logits, tensors["logits"]) for logits in (kept, plain))
    return worst_of(found)


def compare_at(place: Place, name: str, given: Tensor | None, expected: np.ndarray) -> Difference:
    """What a tensor of a call holds of one text, with the definition's of the text alone."""
    if given is None:
        return compare(name, None, expected)
    return compare(name, place.cut(name, given), place.expect(name, expected, given.size(-1)))


def compare_tensors(subject: Subject) -> tuple[Difference, ...]:
    """Every named tensor and the loss: the worst over the prompts, in the order of the definition's computation.

    Raises ValueError where the network's parameters are not those of its architecture.
    """
    found: list[Difference] = []
    for tokens in subject.tokens:
        case = alone(subject.a, tokens)
        expected = defined(subject.a, subject.weights, case.rows[0])
        found += compare_case(subject.exact, case, [expected])
        if tokens.size(1) > 1:
            loss = F.cross_entropy(case.run(subject.exact)[0, :-1], tokens[0, 1:])
            found.append(compare("loss", loss, next_token_loss(expected["logits"], tokens.numpy())))
    return worst_of(found)


def compare_gradients(subject: Subject, n: int) -> tuple[Difference, ...]:
    """The derivative of the loss on the longest prompt's first n tokens by every weight, as the forward pass uses them.

    The gradient is one vector: what it is out by is measured by its largest entry. Raises ValueError where the
    network's parameters are not those of its architecture.
    """
    a, exact, tokens = subject.a, subject.exact, subject.longest[:, :n]
    case = alone(a, tokens)
    given: dict[str, Any] = {name: value.numpy() for name, value in case.given.items()}
    parameters = {name: p.requires_grad_() for name, p in exact.named_parameters()}
    if wrong := parameters.keys() ^ weight_shapes(a).keys():
        raise ValueError(f"the network's parameters and its architecture's differ in {', '.join(sorted(wrong))}")
    _, expected = loss_and_gradient(a, subject.weights, tokens.numpy(), **given)
    with torch.enable_grad():
        loss = F.cross_entropy(case.call(exact)[0, :-1], tokens[0, 1:])
        # a parameter that decides nothing (a segment that no token has) may have no gradient at all
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    gradients, scale = dict(zip(parameters, found, strict=True)), largest(*expected.values())
    order = sorted(expected, key=lambda name: not name.startswith("encoder."))
    return tuple(compare(name, gradients[name], expected[name], scale) for name in order)
