"""How a network is read while it generates text: with which weights, by which step, from which cache.

It is chosen once, here, for decoding, beams, conversations and the server. An option that a user named and that
something excludes is refused; `auto` goes without it, and a line says why.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, get_args

import torch

from pellucid.generate import row_products
from pellucid.generate.compiled_step import CompiledReader, CompiledStep, NotCompiledError, check_compilable
from pellucid.generate.encoder_inputs import read_sources
from pellucid.generate.errors import GenerationError
from pellucid.generate.pack_weights import cached_for_weights, packed_network
from pellucid.generate.packed_linear import available
from pellucid.generate.readers import NO_TAPS, CachedReader, RecomputingReader, TapFactory, evaluation_mode
from pellucid.model import Transformer
from pellucid.runs.device import CLEAR_GAIN

#: loaded: the network's own products; auto: the same weights by compiled products, or packed in float32, where that
#: saves time
Weights = Literal["auto", "loaded", "int8", "int4"]
#: whether the step of a single text is compiled; auto: where the time that it saves is clearly more than it takes
Compile = Literal["auto", "no", "yes"]
#: what reads the rows of a decoding, `read(rows) -> logits`, and keeps what their next step needs
Reader = CachedReader | RecomputingReader

#: `auto` changes products whose matrices do not fit into caches
LEAST_PARAMETERS = 10_000_000
#: ... for texts long enough to win back the time that it takes to pack them, or to compile products
#: (`python -m benchmarks.products` prints how long packing takes for GPT-2 small; other sizes were not measured)
LEAST_TOKENS = 32
#: where products are compiled, a copy is faster only for long prompts: `auto` packs for a server, which reads many
TOKENS_OF_A_SERVER = 100_000
#: ... if the copy fits into memory
MOST_BYTES = 4 << 30
#: seconds that compiling the file takes, once for a machine
COMPILING = 5.0
#: seconds for each block that listing a network's operations takes
LISTING_A_BLOCK = 1e-3
#: seconds that a compiled step saves at all: measured at widths 128 and 768 (docs/experiments/decoding.md)
SAVED = 5e-4
#: ... and for each block
SAVED_A_BLOCK = 3e-4


@dataclass(frozen=True)
class GenerationRequest:
    """What is to be generated with a network.

    n_tokens  about how many tokens each text gets
    n_rows    how many texts are generated together
    """

    network: Transformer
    n_tokens: int
    n_rows: int = 1
    beams: int = 0
    cache: bool = True
    taps: TapFactory = NO_TAPS


#: the option that is excluded, when, and why
EXCLUSIONS: tuple[tuple[str, Callable[[GenerationRequest], bool], str], ...] = (
    ("weights", lambda r: r.taps is not NO_TAPS, "taps and edits work on the loaded weights"),
    ("compile", lambda r: r.n_rows != 1, "it reads a single text and {r.n_rows} are generated together"),
    ("compile", lambda r: r.beams > 0, "beams = {r.beams} follows several texts"),
    ("compile", lambda r: not r.cache, "there is no cache"),
    ("compile", lambda r: r.taps is not NO_TAPS, "taps and edits need each operation by itself"),
)


def excluded_by(option: str, request: GenerationRequest) -> str:
    """Why an option is excluded, "" if it is not."""
    reasons = (why for name, applies, why in EXCLUSIONS if name == option and applies(request))
    return next(reasons, "").format(r=request)


def check_weight_format(weights: str, request: GenerationRequest) -> None:
    """Raise GenerationError for an unknown word, and for a packed format that the request excludes."""
    if weights not in get_args(Weights):
        raise GenerationError(f"weights = {weights!r}: choose one of {', '.join(get_args(Weights))}")
    if weights in ("int8", "int4") and (why := excluded_by("weights", request)):
        raise GenerationError(f"weights = {weights}: {why}; leave weights at auto")


@dataclass(frozen=True)
class Computation:
    """The network that computes a request, with its own weights or packed ones, and the step of a single text.

    reasons  a line about the weights, and one about the step
    """

    network: Transformer
    step: CompiledStep | None
    reasons: tuple[str, str]


def choose_computation(request: GenerationRequest, *, weights: str = "auto", compile: str = "auto") -> Computation:
    """What computes a request. Raises GenerationError for options that are named and cannot be met."""
    network, weights_line = choose_weights(request, weights)
    step, step_line = choose_compiled_step(replace(request, network=network), compile)
    return Computation(network, step, (weights_line, step_line))


def choose_weights(request: GenerationRequest, weights: str = "auto") -> tuple[Transformer, str]:
    """The network to generate with, packed or not, and a line that says which."""
    check_weight_format(weights, request)
    if weights == "auto":
        weights = "" if excluded_by("weights", request) else products_of_auto(request)
    elif weights == "loaded":
        weights = ""
    if not weights:
        return request.network, "weights: as loaded"
    packed = packed_network(request.network, weights)
    return packed.network, packed.summary


def products_of_auto(request: GenerationRequest) -> str:
    """The products (`packed_linear.PRODUCTS`) with which `auto` generates, "" for the network's own."""
    network, n_tokens = request.network, request.n_tokens
    weight, n = network.embed.token.weight, sum(p.numel() for p in network.parameters())
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or n < LEAST_PARAMETERS:
        return ""
    compiled = (n_tokens >= LEAST_TOKENS or row_products.is_compiled()) and available("loaded")
    packing_pays = n_tokens >= (TOKENS_OF_A_SERVER if compiled else LEAST_TOKENS)
    if packing_pays and 4 * n <= MOST_BYTES and available("float32"):
        return "float32"
    return "loaded" if compiled else ""


def choose_compiled_step(request: GenerationRequest, compile: str = "auto") -> tuple[CompiledStep | None, str]:
    """The compiled step of a single text, if one is to be used, and a line that says so."""
    if compile not in get_args(Compile):
        raise GenerationError(f"compile = {compile!r}: choose one of {', '.join(get_args(Compile))}")
    if compile == "no":
        return None, "compiled: no"
    start, n_blocks = time.perf_counter(), len(request.network.blocks)
    why = excluded_by("compile", request)
    if not why and compile == "auto":
        cost = LISTING_A_BLOCK * n_blocks + (0.0 if row_products.is_compiled() else COMPILING)
        if request.n_tokens * (SAVED + SAVED_A_BLOCK * n_blocks) < CLEAR_GAIN * cost:
            return None, f"compiled: no ({request.n_tokens} tokens are too few)"
    step = why or compiled_step(request.network)
    if isinstance(step, CompiledStep):
        return step, f"compiled: yes (ready in {time.perf_counter() - start:.1f} s)"
    if compile == "yes":
        raise GenerationError(f"compile = yes: the step cannot be compiled, since {step}; leave compile at auto")
    return None, f"compiled: no ({step})"


def compiled_step(network: Transformer) -> CompiledStep | str:
    """The step of this network, or why there is none; the same one until the weights change."""

    def make() -> CompiledStep | str:
        try:
            return CompiledStep(network)
        except NotCompiledError as why:
            return str(why)

    try:
        check_compilable(network)  # at once, before all weights are read
    except NotCompiledError as why:
        return str(why)
    return cached_for_weights(network, "compiled step", make)


class ReadingOptions(TypedDict, total=False):
    """How a network is read; `choose_reader` describes each option and holds the defaults."""

    cache: bool
    weights: str
    compile: str
    taps: TapFactory
    sources: Sequence[Sequence[int]] | None


def choose_reader(
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    *,
    n_samples: int = 1,
    beams: int = 0,
    cache: bool = True,
    weights: str = "loaded",
    compile: str = "no",
    taps: TapFactory = NO_TAPS,
    sources: Sequence[Sequence[int]] | None = None,
) -> tuple[Reader, tuple[str, ...]]:
    """What reads the texts that continue these prompts by up to `n_tokens`, and lines that say how it was chosen.

    cache    False recomputes everything at every step, one row at a time: slower, same result
    weights  loaded, int8, int4 or auto (`Weights`)
    compile  no, yes or auto: further tokens of a single text are read by compiled code (`Compile`)
    taps     makes the tap of every call, given the positions of its columns
    sources  for a network with an encoder: the ids that it reads once for each prompt

    Raises GenerationError for options that do not fit the network or each other.
    """
    request = GenerationRequest(network, n_tokens, len(prompts) * n_samples, beams, cache, taps)
    chosen = choose_computation(request, weights=weights, compile=compile)
    with evaluation_mode(chosen.network):
        encoded = read_sources(chosen.network, sources, len(prompts), taps.of_sources)
    longest = max(map(len, prompts), default=0) + n_tokens
    if chosen.step is not None:
        reader = CompiledReader(chosen.network, longest, chosen.step)
    elif cache:
        reader = CachedReader(chosen.network, longest, encoded, taps)
    else:
        reader = RecomputingReader(chosen.network, encoded, taps)
    return reader, chosen.reasons
