"""The packed weights that `generate` writes with: how far they are from the weights, and what is computed with them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.generate.pack_weights import pack_network, packed_network
from pellucid.generate.packed_linear import PRODUCTS, available
from pellucid.model import Transformer
from pellucid.verify.comparison import Subject
from pellucid.verify.reads import Defined, ReadingPlan, compare_reads
from pellucid.verify.report import Difference

#: how large a network may be whose weights are packed in every kind, and in float32, which is what `auto` takes
MOST_PARAMETERS, MOST_PARAMETERS_IN_FLOAT32 = 200_000_000, 1_000_000_000
#: packed products round in another order than the network's own: by this many times as much, and by this much at least
TIMES, LEAST = 16.0, 2.0**-22
#: a packed network multiplies by no weight of a single head
WITHOUT = (".result",)


@dataclass(frozen=True)
class Kind:
    """A kind of packed weights: the farthest tensor, and the first that is farther than rounding makes it."""

    name: str
    worst: float
    first: Difference | None


def kinds_of(s: Subject) -> tuple[str, ...]:
    """The kinds of packed weights that are read: all, float32 alone for large networks, none where none can be had."""
    n = sum(p.numel() for p in s.network.parameters())
    most = dict.fromkeys(PRODUCTS, MOST_PARAMETERS) | {"float32": MOST_PARAMETERS_IN_FLOAT32}
    return () if refusal(s) else tuple(kind for kind in PRODUCTS if available(kind) and n <= most[kind])


def refusal(s: Subject) -> str:
    """Why `generate` packs nothing of this network, "" where it does."""
    weight = s.network.embed.token.weight
    if s.a.attention.mask == "bidirectional":
        return "attention.mask = bidirectional: nothing is generated"
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return ""
    return f"packs float32 on the CPU, and this is {str(weight.dtype)[6:]} on {weight.device.type}"


def compare_packed(s: Subject, plan: ReadingPlan) -> Iterator[Kind]:
    """What is generated with every kind of packed weights, beside the definition on the weights that the kind keeps.

    Each tensor may be as far from the definition as rounding to float32 makes it, which is measured on the network as
    it is loaded: a float32 number has the same digits in both, summed in another order.
    """
    expected = Defined(s.a, s.weights, plan)
    loaded = list(compare_reads(s.network, expected, WITHOUT))
    for kind in kinds_of(s):
        # float32 is what `generate` takes by itself and keeps, so that what it has kept is read
        packed = (packed_network if kind == "float32" else pack_network)(s.network, kind).network
        if (wrong := first_far_from_the_weights(s, packed, kind)) is not None:
            yield Kind(kind, float("inf"), wrong)
            continue
        if kind != "float32":
            expected = Defined(*definition_of(s, packed), plan)
        found = list(allow_rounding(loaded, list(compare_reads(packed, expected, WITHOUT))))
        worst = max((d.size for d in found), default=0.0)
        yield Kind(kind, worst, next((d for d in found if not d.small), None))


def allow_rounding(loaded: list[Difference], found: list[Difference]) -> Iterator[Difference]:
    """The differences of the packed network, each allowed a multiple of the loaded one's up to the same tensor."""
    allowed = LEAST
    for own, packed in zip(loaded, found, strict=True):
        allowed = max(allowed, TIMES * (own.value or 0.0))
        yield replace(packed, tolerance=allowed)


def kept_by(s: Subject, packed: Transformer) -> list[tuple[str, Tensor, Tensor]]:
    """Every packed matrix: the name of its weight, the numbers that are kept, and the weight; in order of the weights.

    The readout comes last, which may be one matrix with the embedding.
    """
    weights = dict(s.network.named_parameters()) | {"unembed.weight": s.network.unembed.weight}
    found: dict[str, Tensor] = {}
    for name, module in packed.named_modules():
        kept, (parent, _, last) = getattr(module, "kept", None), name.rpartition(".")
        if isinstance(kept, Tensor) and last == "joined":
            three = [f"{parent}.{part}.weight" for part in ("query", "key", "value")]
            found |= zip(three, kept.split([len(weights[part]) for part in three]), strict=True)
        elif isinstance(kept, Tensor) and f"{name}.weight" in weights:
            found[f"{name}.weight"] = kept
    return [(name, found[name], weight.detach()) for name, weight in weights.items() if name in found]


def definition_of(s: Subject, packed: Transformer) -> tuple[Architecture, dict[str, np.ndarray]]:
    """What the definition computes with so as to compute what the packed network should.

    A tied readout is packed, the rows that tokens are looked up in are not: the two are then two matrices.
    """
    kept = {name: matrix.double().numpy() for name, matrix, _ in kept_by(s, packed)}
    a = replace(s.a, unembed="untied") if "unembed.weight" in kept else s.a
    return a, {**s.weights, **kept}


def first_far_from_the_weights(s: Subject, packed: Transformer, kind: str) -> Difference | None:
    """The first matrix that is farther from the weight than rounding to the kind makes it."""
    for name, kept, weight in kept_by(s, packed):
        gap = ((kept - weight).abs() / rounding(kind, weight)).max().item()
        if not gap <= 1:
            return Difference(name, None, f"{gap:.1f} times as far from the weight as rounding to {kind} makes it")
    return None


def rounding(kind: str, weight: Tensor) -> Tensor:
    """How far rounding to the kind may move each weight: half a step of its digits, and of the smallest numbers."""
    if kind == "int8":
        return weight.abs().amax(1, keepdim=True) * (0.501 / 127) + 1e-30
    return weight.abs() * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[kind] * 1.001 + 2.0**-25
