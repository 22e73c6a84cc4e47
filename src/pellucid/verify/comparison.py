"""The engine and the definition run on the same inputs, and how far apart their tensors are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model import OFF, Recorder, Tap, Transformer
from pellucid.model.weights import state_of
from pellucid.names import names
from pellucid.reference import transformer as reference
from pellucid.reference.learning import loss_and_gradient, next_token_loss
from pellucid.reference.tap import Tap as ReferenceTap
from pellucid.reference.weights import weight_shapes
from pellucid.text.interface import Tokenizer
from pellucid.verify.report import Difference


@dataclass(frozen=True)
class Subject:
    """A model under examination: as it is, as a float64 copy on the CPU, and the tokens of its prompts [1, n]."""

    network: Transformer
    exact: Transformer
    tokenizer: Tokenizer | None
    prompts: tuple[str, ...]
    tokens: tuple[Tensor, ...]

    @property
    def a(self) -> Architecture:
        return self.network.architecture

    @property
    def longest(self) -> Tensor:
        return max(self.tokens, key=lambda t: t.size(1))


def run(network: Transformer, tokens: Tensor, **inputs: Any) -> Tensor:
    """The logits of `call`, without gradients."""
    with torch.no_grad():
        return call(network, tokens, **inputs)


def call(
    network: Transformer, tokens: Tensor, *, tap: Tap = OFF, source: Tensor | None = None, **masks: Tensor
) -> Tensor:
    """Logits on the CPU. Where an encoder is read it reads `source` (the same tokens unless given)."""
    a, place = network.architecture, next(network.parameters()).device
    reading = {name: mask.to(place) for name, mask in masks.items()}
    if a.encoder is not None:
        reading["source"] = encode(network, tokens if source is None else source, tap)
    if a.n_segments:
        reading["segments"] = segments(a, tokens.size(1)).to(place)
    return network(tokens.to(place), tap=tap, **reading).cpu()


def segments(a: Architecture, n: int) -> Tensor:
    """Every kind of segment in turn [1, n]."""
    return (torch.arange(n) * a.n_segments // n)[None]


def source_of(a: Architecture, tokens: Tensor) -> Tensor:
    """The tokens, as far as the encoder's vocabulary and context go."""
    assert a.encoder is not None
    return tokens[:, : a.encoder.n_ctx] % a.encoder.n_vocab


def encode(network: Transformer, tokens: Tensor, tap: Tap = OFF) -> Tensor:
    """What the encoder makes of the tokens."""
    place = next(network.parameters()).device
    return network.encode(source_of(network.architecture, tokens).to(place), tap=tap)


def define(
    a: Architecture, weights: dict[str, np.ndarray], tokens: Tensor, tap: ReferenceTap, **masks: Tensor
) -> np.ndarray:
    """The logits by definition, of the same inputs as `run`."""
    reading: dict[str, Any] = {name: mask.numpy() for name, mask in masks.items()}
    if a.encoder is not None:
        reading["source"] = reference.encode(a, weights, source_of(a, tokens).numpy(), tap=tap)
    if a.n_segments:
        reading["segments"] = segments(a, tokens.size(1)).numpy()
    return reference.forward(a, weights, tokens.numpy(), tap=tap, **reading)


def compare(name: str, given: Any, expected: np.ndarray, scale: float | None = None) -> Difference:
    """One tensor of the engine with the reference's, by `scale` (max(1, its largest entry) unless given).

    -inf must be at the same entries.
    """
    if given is None:
        return Difference(name, None, "never computed")
    given = np.asarray(given)
    if given.shape != expected.shape:
        return Difference(name, None, f"shape {list(given.shape)}, not {list(expected.shape)}")
    hidden = np.isneginf(expected)
    if not np.array_equal(np.isneginf(given), hidden):
        return Difference(name, None, "other entries are -inf")
    given, expected = np.where(hidden, 0, given), np.where(hidden, 0, expected)
    if not (np.isfinite(given).all() and np.isfinite(expected).all()):
        return Difference(name, None, "entries are not finite")
    scale = largest(expected) if scale is None else scale
    return Difference(name, float(np.abs(given - expected).max(initial=0)) / scale)


def largest(*arrays: np.ndarray) -> float:
    """max(1, the largest entry of all of them)."""
    return max(1.0, *(float(np.abs(array).max(initial=0)) for array in arrays))


def weights_of(network: Transformer) -> dict[str, np.ndarray]:
    """The weights as the definition takes them."""
    return {name: p.detach().numpy() for name, p in state_of(network).items()}


def compare_tensors(subject: Subject) -> tuple[Difference, ...]:
    """Every named tensor and the loss: the worst over the prompts, in order of the definition's computation.

    The logits are those of a run without a tap and of one with it. Raises ValueError where the network's
    parameters are not those of its architecture.
    """
    weights = weights_of(subject.exact)
    known = set(names(subject.a))
    worst: dict[str, Difference] = {}
    for tokens in subject.tokens:
        recorder, tap = Recorder(known), ReferenceTap()
        expected = define(subject.a, weights, tokens, tap)
        plain, kept = run(subject.exact, tokens), run(subject.exact, tokens, tap=recorder)
        assert known <= tap.values.keys(), "the reference lacks a tensor of the table"
        found = [compare(n, recorder.values.get(n), value) for n, value in tap.values.items() if n in known]
        found += [compare("logits", logits, expected) for logits in (kept, plain)]
        if tokens.size(1) > 1:
            loss = F.cross_entropy(plain[0, :-1], tokens[0, 1:])
            found.append(compare("loss", loss, np.asarray(next_token_loss(expected, tokens.numpy()))))
        for d in found:
            worst[d.name] = max(worst.get(d.name, d), d, key=lambda d: d.size)
    return tuple(worst.values())


def compare_gradients(subject: Subject, n: int) -> tuple[Difference, ...]:
    """The derivative of the loss on the longest prompt's first n tokens by every weight, as the forward pass uses them.

    The gradient is one vector: what it is out by is measured by its largest entry. Raises ValueError where the
    network's parameters are not those of its architecture.
    """
    a, exact, tokens = subject.a, subject.exact, subject.longest[:, :n]
    reading: dict[str, Any] = {} if a.encoder is None else {"source": source_of(a, tokens).numpy()}
    if a.n_segments:
        reading["segments"] = segments(a, tokens.size(1)).numpy()
    parameters = {name: p.requires_grad_() for name, p in exact.named_parameters()}
    if wrong := parameters.keys() ^ weight_shapes(a).keys():
        raise ValueError(f"the network's parameters and its architecture's differ in {', '.join(sorted(wrong))}")
    _, expected = loss_and_gradient(a, weights_of(exact), tokens.numpy(), **reading)
    with torch.enable_grad():
        loss = F.cross_entropy(call(exact, tokens)[0, :-1], tokens[0, 1:])
        # a parameter that decides nothing (a segment that no token has) may have no gradient at all
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    given, scale = dict(zip(parameters, found, strict=True)), largest(*expected.values())
    order = sorted(expected, key=lambda name: not name.startswith("encoder."))
    return tuple(compare(name, given[name], expected[name], scale) for name in order)


def compare_masked(subject: Subject, **masks: Tensor) -> tuple[Difference, ...]:
    """Every named tensor of the longest prompt read under these masks, in order of the definition's computation.

    The logits are those of a run without a tap and of one with it. Raises ValueError as `compare_tensors`.
    """
    known, tokens = set(names(subject.a)), subject.longest
    recorder, tap = Recorder(known), ReferenceTap()
    expected = define(subject.a, weights_of(subject.exact), tokens, tap, **masks)
    kept, plain = run(subject.exact, tokens, tap=recorder, **masks), run(subject.exact, tokens, **masks)
    found = [compare(n, recorder.values.get(n), value) for n, value in tap.values.items() if n in known]
    return (*found, *(compare("logits", logits, expected) for logits in (kept, plain)))
