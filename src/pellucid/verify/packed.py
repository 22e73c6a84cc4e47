"""The packed weights of `generate`: how far they are from the weights, and what is computed with them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.generate.pack_weights import pack_network, packed_network, readout_format
from pellucid.generate.packed_linear import PRODUCTS, Int4, available
from pellucid.model import Transformer
from pellucid.model.weights import load_state
from pellucid.verify.comparison import Subject, Weights
from pellucid.verify.reads import Defined, ReadingPlan, compare_reads
from pellucid.verify.report import Difference

#: the largest network that is packed in every kind, and in those that `auto` uses
MOST_PARAMETERS, MOST_PARAMETERS_OF_AUTO = 200_000_000, 1_000_000_000
KINDS_OF_AUTO = ("loaded", "float32")
#: packed products round in another order than the network's own: by at most this many times as much, or this much
TIMES, LEAST = 16.0, 2.0**-22
#: a packed network does not multiply by the weights of a single head
WITHOUT = (".result",)


@dataclass(frozen=True)
class Kind:
    """A kind of packed weights: its largest difference, and the first that is more than rounding."""

    name: str
    worst: float
    first: Difference | None


def kinds_of(s: Subject) -> tuple[str, ...]:
    """The kinds of packed weights to check: all, those of `auto` for large networks, none if none is available."""
    n = sum(p.numel() for p in s.network.parameters())
    most = dict.fromkeys(PRODUCTS, MOST_PARAMETERS) | dict.fromkeys(KINDS_OF_AUTO, MOST_PARAMETERS_OF_AUTO)
    return () if refusal(s) else tuple(kind for kind in PRODUCTS if available(kind) and n <= most[kind])


def refusal(s: Subject) -> str:
    """Why `generate` packs nothing of this network, "" if it does."""
    weight = s.network.embed.token.weight
    if s.a.attention.mask == "bidirectional":
        return "attention.mask = bidirectional: nothing is generated"
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return ""
    return f"packs float32 on the CPU, and this is {str(weight.dtype)[6:]} on {weight.device.type}"


def compare_packed(s: Subject, plan: ReadingPlan) -> Iterator[Kind]:
    """Compare generation with every kind of packed weights with the definition on those packed weights.

    Each tensor may be as far from the definition as rounding to float32 makes it, measured on an unpacked network with
    the same weights: a float32 number has the same digits in both, summed in another order.
    """
    expected = Defined(s.a, s.weights, plan)
    unpacked = list(compare_reads(s.network, expected, WITHOUT))
    for kind in kinds_of(s):
        # `generate` itself chooses these and caches what it packed, so the cached network is checked
        packed = (packed_network if kind in KINDS_OF_AUTO else pack_network)(s.network, kind).network
        if (wrong := first_far_from_the_weights(s, packed, kind)) is not None:
            yield Kind(kind, float("inf"), wrong)
            continue
        if kind not in KINDS_OF_AUTO:
            a, weights = definition_of(s, packed)
            expected = Defined(a, weights, plan)
            unpacked = list(compare_reads(network_of(a, weights), expected, WITHOUT))
        differences = list(allow_rounding(unpacked, list(compare_reads(packed, expected, WITHOUT))))
        worst = max((d.size for d in differences), default=0.0)
        yield Kind(kind, worst, next((d for d in differences if not d.small), None))


def network_of(a: Architecture, weights: Weights) -> Transformer:
    """A float32 network with these weights, none of them packed."""
    with torch.random.fork_rng(devices=[]):  # verify draws nothing from the caller's generator
        network = Transformer(a)
    load_state(network, {name: torch.from_numpy(weight).float() for name, weight in weights.items()})
    return network


def allow_rounding(unpacked: list[Difference], differences: list[Difference]) -> Iterator[Difference]:
    """Allow each difference of the packed network a multiple of the unpacked one's up to the same tensor."""
    allowed = LEAST
    for own, packed in zip(unpacked, differences, strict=True):
        allowed = max(allowed, TIMES * (own.value or 0.0))
        yield replace(packed, tolerance=allowed)


def kept_by(s: Subject, packed: Transformer) -> list[tuple[str, Tensor, Tensor]]:
    """Every packed matrix: the name of its weight, the stored numbers, and the weight; in order of the weights.

    The readout, which may share its matrix with the embedding, comes last.
    """
    weights = dict(s.network.named_parameters()) | {"unembed.weight": s.network.unembed.weight}
    stored: dict[str, Tensor] = {}
    for name, module in packed.named_modules():
        matrix, (parent, _, last) = getattr(module, "kept", None), name.rpartition(".")
        if isinstance(matrix, Tensor) and last == "qkv":
            three = [f"{parent}.{part}.weight" for part in ("query", "key", "value")]
            stored |= zip(three, matrix.split([len(weights[part]) for part in three]), strict=True)
        elif isinstance(matrix, Tensor) and f"{name}.weight" in weights:
            stored[f"{name}.weight"] = matrix
    return [(name, stored[name], weight.detach()) for name, weight in weights.items() if name in stored]


def definition_of(s: Subject, packed: Transformer) -> tuple[Architecture, dict[str, np.ndarray]]:
    """The architecture and weights with which the definition computes what the packed network should.

    A tied readout is packed, but the embedding is not: they become two matrices.
    """
    packed_weights = {name: matrix.double().numpy() for name, matrix, _ in kept_by(s, packed)}
    a = replace(s.a, unembed="untied") if "unembed.weight" in packed_weights else s.a
    return a, {**s.weights, **packed_weights}


def first_far_from_the_weights(s: Subject, packed: Transformer, kind: str) -> Difference | None:
    """The first matrix whose distance from the weight is more than rounding."""
    for name, packed_matrix, weight in kept_by(s, packed):
        own = readout_format(kind) if name == "unembed.weight" else kind
        gap = ((packed_matrix - weight).abs() / rounding(own, weight)).max().item()
        if not gap <= 1:
            return Difference(name, None, f"{gap:.1f} times as far from the weight as rounding to {own} makes it")
    return None


def rounding(kind: str, weight: Tensor) -> Tensor:
    """The largest change of each weight by rounding: half a step of its digits, and of the smallest numbers."""
    if kind == "int8":
        return weight.abs().amax(1, keepdim=True) * (0.501 / 127) + 1e-30
    if kind == "int4":
        groups = F.pad(weight.abs(), (0, -weight.size(1) % Int4.group)).unflatten(1, (-1, Int4.group))
        step = (groups.amax(2, keepdim=True) / 8).expand_as(groups).flatten(1)[:, : weight.size(1)]
        # there is no eighth step on the side on which the group's largest weight is not
        return step * torch.where(weight.abs() > 7.4 * step, 1.04, 0.51) + 1e-30
    return weight.abs() * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[kind] * 1.001 + 2.0**-25
