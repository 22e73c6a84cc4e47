"""The compiled step of `generate` beside the ordinary step of the same network: the same logits but for rounding."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from pellucid.generate.choose_step import compiled_step
from pellucid.generate.compiled_step import CompiledReader, CompiledStep
from pellucid.generate.pack_weights import packed_network
from pellucid.generate.readers import CachedReader, evaluation_mode
from pellucid.model import Transformer
from pellucid.verify.comparison import Subject, compare
from pellucid.verify.packed import TIMES, Kind, kinds_of
from pellucid.verify.reads import STEPS, ReadingPlan

#: the kinds of packed weights that a compiled step reads
KINDS = ("float32", "int8", "int4")
#: logits may always be this far apart, relative to the largest or to 1
LEAST = 2.0**-20


def compare_compiled(s: Subject, plan: ReadingPlan) -> tuple[list[Kind], float]:
    """Compare compiled steps with ordinary ones, for the loaded weights and each kind of packed weights, and the bound.

    The bound is `TIMES` as much as the ordinary step in float32 is from that of the network's float64 copy.
    """
    exact = logits_alone(s.exact, plan)
    rounding = max(
        compare("logits", own, of).size for own, of in zip(logits_alone(s.network, plan), exact, strict=True)
    )
    bound, kinds = max(LEAST, TIMES * rounding), []
    for kind, network in networks(s):
        pairs = zip(logits_alone(network, plan, step_of(network)), logits_alone(network, plan), strict=True)
        differences = [replace(compare("logits", own, ordinary), tolerance=bound) for own, ordinary in pairs]
        first = next((d for d in differences if not d.small), None)
        kinds.append(Kind(kind, max(d.size for d in differences), first))
    return kinds, bound


def networks(s: Subject) -> Iterator[tuple[str, Transformer]]:
    """The networks whose steps are compiled, by the kind of their weights."""
    yield "loaded", s.network
    for kind in KINDS:
        if kind in kinds_of(s):
            yield kind, packed_network(s.network, kind).network


def step_of(network: Transformer) -> CompiledStep:
    """The compiled step that `generate` uses for a network of which one can be compiled."""
    step = compiled_step(network)
    assert isinstance(step, CompiledStep), step
    return step


def logits_alone(network: Transformer, plan: ReadingPlan, step: CompiledStep | None = None) -> list[Tensor]:
    """The logits [1, n_vocab] of each text of the plan by itself: of its prompt, and after each further token."""
    logits = []
    with evaluation_mode(network):
        for row in plan.texts():
            longest = len(row.given) + STEPS
            reader = CachedReader(network, longest) if step is None else CompiledReader(network, longest, step)
            for n in range(STEPS + 1):
                logits.append(reader.read([row]).cpu())
                row.generated += plan.following[row.prompt][n : n + 1]
    return logits
