"""Run the engine and the reference on the same inputs, and measure how far apart their tensors are."""

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
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text_model import Model
from pellucid.verify.cases import NetworkCall, ReferenceText, TextSlice, single_text
from pellucid.verify.report import TOLERANCE, Difference

Weights = Mapping[str, np.ndarray]

#: how many numbers are compared at a time: copying all logits would need more memory than the network
COMPARED_AT_ONCE = 2**22


@dataclass(frozen=True)
class Subject:
    """A model under examination.

    exact   the float64 copy of its network on the CPU
    tokens  the tokens of its prompts [1, n]
    n_row   how many tokens are read in one row
    """

    model: Model
    exact: Transformer
    prompts: tuple[str, ...]
    tokens: tuple[Tensor, ...]
    n_row: int = 0

    @property
    def network(self) -> Transformer:
        return self.model.network

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where texts are ids in digits."""
        return None if isinstance(self.model.tokenizer, IdTokenizer) else self.model.tokenizer

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
    return single_text(network.architecture, tokens).run(network, tap)


def run_reference(a: Architecture, weights: Weights, row: ReferenceText, tap: NoRecorder) -> np.ndarray:
    """The reference's logits of a row."""
    inputs: dict[str, Any] = {}
    for name in ("segments", "positions", "mask", "source_mask"):
        if (value := getattr(row, name)) is not None:
            inputs[name] = value.numpy()
    if row.source is not None:
        inputs["source"] = reference.encode(a, weights, row.source.numpy(), tap=tap)
    return reference.forward(a, weights, row.tokens.numpy(), tap=tap, **inputs)


def reference_tensors(a: Architecture, weights: Weights, row: ReferenceText) -> dict[str, np.ndarray]:
    """Every named tensor of a row by the reference, in the order of computation."""
    tap, table = ReferenceTap(), set(names(a))
    run_reference(a, weights, row, tap)
    assert table <= tap.values.keys(), "the reference lacks a tensor of the table"
    return {name: value for name, value in tap.values.items() if name in table}


def compare(
    name: str, actual: Any, expected: Any, scale: float | None = None, tolerance: float = TOLERANCE
) -> Difference:
    """Compare a tensor with the expected one, relative to `scale` (default: max(1, its largest entry)).

    -inf must be at the same entries.
    """
    if actual is None:
        return Difference(name, None, "never computed")
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return Difference(name, None, f"shape {list(actual.shape)}, not {list(expected.shape)}")
    worst, top = 0.0, 1.0
    for own, other in _chunks(actual, expected):
        hidden = np.isneginf(other)
        if not np.array_equal(np.isneginf(own), hidden):
            return Difference(name, None, "other entries are -inf")
        own, other = np.where(hidden, 0, own), np.where(hidden, 0, other)
        if not (np.isfinite(own).all() and np.isfinite(other).all()):
            return Difference(name, None, "entries are not finite")
        worst = max(worst, float(np.abs(own - other).max(initial=0)))
        top = max(top, float(np.abs(other).max(initial=0)))
    return Difference(name, worst / (top if scale is None else scale), tolerance=tolerance)


def _chunks(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both arrays in slices of bounded size."""
    one, other = one.reshape(-1), other.reshape(-1)
    for start in range(0, len(one), COMPARED_AT_ONCE):
        yield one[start : start + COMPARED_AT_ONCE], other[start : start + COMPARED_AT_ONCE]


def largest_magnitude(*arrays: np.ndarray) -> float:
    """max(1, the largest entry of all arrays)."""
    return max(1.0, *(float(np.abs(array).max(initial=0)) for array in arrays))


def weights_of(network: Transformer) -> dict[str, np.ndarray]:
    """The weights in the form that the reference takes."""
    return {name: p.detach().numpy() for name, p in state_of(network).items()}


def first_difference_beyond_rounding(differences: Iterable[Difference]) -> Difference | None:
    """The first difference that is more than rounding."""
    return next((d for d in differences if not d.small), None)


def largest_differences(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """The largest difference for each name, in the order in which the names first occur."""
    worst: dict[str, Difference] = {}
    for d in differences:
        worst[d.name] = max(worst.get(d.name, d), d, key=lambda d: d.size)
    return tuple(worst.values())


def compare_case(
    network: Transformer, case: NetworkCall, expected: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Difference, ...]:
    """Compare every named tensor of the call: the worst over its rows, in the reference's order of computation.

    expected   the tensors of each row (`reference_tensors`)

    Logits are compared for a call without a tap and for one with a tap.
    """
    recorder = Recorder(expected[0])
    recorded, plain = case.run(network, recorder), case.run(network)
    differences: list[Difference] = []
    for r, (row, tensors) in enumerate(zip(case.rows, expected, strict=True)):
        text = TextSlice(r, row.columns, row.columns, row.source_columns)
        differences += (compare_at(text, name, recorder.values.get(name), value) for name, value in tensors.items())
        differences += (compare_at(text, "logits", logits, tensors["logits"]) for logits in (recorded, plain))
    return largest_differences(differences)


def compare_at(text: TextSlice, name: str, tensor: Tensor | None, expected: np.ndarray) -> Difference:
    """Compare the part of a call's tensor that belongs to one text with the reference's tensor of that text alone."""
    if tensor is None:
        return compare(name, None, expected)
    return compare(name, text.of_call(name, tensor), text.with_all_keys(name, expected, tensor.size(-1)))


def compare_tensors(subject: Subject) -> tuple[Difference, ...]:
    """Compare every named tensor and the loss: the worst over the prompts, in the reference's order of computation.

    Raises ValueError if the network's parameters are not those of its architecture.
    """
    differences: list[Difference] = []
    for tokens in subject.tokens:
        case = single_text(subject.a, tokens)
        expected = reference_tensors(subject.a, subject.weights, case.rows[0])
        differences += compare_case(subject.exact, case, [expected])
        if tokens.size(1) > 1:
            loss = F.cross_entropy(case.run(subject.exact)[0, :-1], tokens[0, 1:])
            differences.append(compare("loss", loss, next_token_loss(expected["logits"], tokens.numpy())))
    return largest_differences(differences)


def compare_gradients(subject: Subject, n: int) -> tuple[Difference, ...]:
    """Compare the loss's gradient by every weight as the forward pass uses it, on the longest prompt's first n tokens.

    The gradient is one vector, so errors are relative to its largest entry. Raises ValueError if the network's
    parameters are not those of its architecture.
    """
    a, exact, tokens = subject.a, subject.exact, subject.longest[:, :n]
    case = single_text(a, tokens)
    inputs: dict[str, Any] = {name: value.numpy() for name, value in case.inputs.items()}
    parameters = {name: p.requires_grad_() for name, p in exact.named_parameters()}
    if wrong := parameters.keys() ^ weight_shapes(a).keys():
        raise ValueError(f"the network's parameters and its architecture's differ in {', '.join(sorted(wrong))}")
    _, expected = loss_and_gradient(a, subject.weights, tokens.numpy(), **inputs)
    with torch.enable_grad():
        loss = F.cross_entropy(case.call(exact)[0, :-1], tokens[0, 1:])
        # a parameter without effect (a segment that no token has) may have no gradient
        gradient_list = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    gradients, scale = dict(zip(parameters, gradient_list, strict=True)), largest_magnitude(*expected.values())
    order = sorted(expected, key=lambda name: not name.startswith("encoder."))
    return tuple(compare(name, gradients[name], expected[name], scale) for name in order)
