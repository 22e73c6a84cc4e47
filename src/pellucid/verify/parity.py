"""Did a conversion preserve the function? Compare logits on a fixed probe with those of the other implementation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Recorder, Transformer
from pellucid.model.positions import RotaryTable
from pellucid.model.weights import state_of
from pellucid.parameter_counts import count_parameters
from pellucid.reference.tap import OFF
from pellucid.tensor_names import names
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.verify.cases import NetworkCall, TextSlice, padded_batch, real_columns, single_text
from pellucid.verify.comparison import (
    COMPARED_AT_ONCE,
    compare,
    compare_case,
    first_difference_beyond_rounding,
    reference_tensors,
    run_reference,
)
from pellucid.verify.coverage import (
    MAX_BATCH_TOKENS,
    PROMPTS,
    far_positions,
    long_row_length,
    prompt_length,
    prompt_tokens,
    uncovered_by_row,
)
from pellucid.verify.long_row import engine_computation, first_difference, reference_computation
from pellucid.verify.report import TOLERANCE
from pellucid.verify.windows import compare_masks

#: tolerance relative to max(1, largest logit): float64 up to this many parameters, then float32; the families' own
#: tables are float32
MAX_FLOAT64_PARAMETERS = 3 * 10**8
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3}
#: transformers computes rotary angles in float32; this many times the resulting change of our logits is allowed
ROUNDING_FACTOR = 4.0
#: the relative precision of a float32 table
FLOAT32_TOLERANCE = 1e-6
#: lower ids are padding and other special tokens in many vocabularies, which RoBERTa gives no position
FIRST_ID = 3


class ParityError(ValueError):
    """Two implementations of one model give different logits."""


@dataclass(frozen=True)
class Parity:
    """How far two implementations are apart on the probe.

    largest    max |difference of logits|
    scale      max(1, max |logit|)
    kl         mean over positions of KL(theirs || ours), nats
    agreement  share of positions with the same likeliest token
    excess     the largest difference of a text, divided by the allowed rounding error: at most 1
    allowed    the allowed rounding error of that text's logits, relative to `scale`
    worst      the number of that text, and what is special about it
    first      the first tensor that differs there, among those that both implementations show
    uncovered  parts of the model that were not compared
    of_source  that of our reading of the source with the source's own implementation, where that is another one
    """

    other: str
    largest: float
    scale: float
    kl: float
    agreement: float
    n_tokens: int
    dtype: torch.dtype
    excess: float = 0.0
    allowed: float = 0.0
    worst: tuple[int, str] = (0, "")
    first: str = ""
    uncovered: tuple[str, ...] = ()
    of_source: "Parity | None" = None

    @property
    def holds(self) -> bool:
        return self.excess <= 1

    @property
    def figures(self) -> str:
        """A sentence with the distances."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"parity with {self.other}, {self.n_tokens:,} tokens in {dtype}: largest logit difference "
            f"{self.largest:.1e} (logits up to {self.scale:.3g}), KL {self.kl:.1e} nats, argmax agreement "
            f"{self.agreement:.1%}"
        )

    def __str__(self) -> str:
        source = f"; of the source: {self.of_source.figures}" if self.of_source else ""
        return self.figures + source + (f"; not compared: {'; '.join(self.uncovered)}" if self.uncovered else "")

    def named(self, find: Callable[[int], str]) -> "Parity":
        """The same; if it does not hold, with the first tensor that differs, which `find` looks for in the
        worst text.
        """
        return self if self.holds else replace(self, first=find(self.worst[0]))

    def require(self) -> "Parity":
        """Return itself. Raises ParityError if the difference is more than rounding."""
        if not self.holds:
            where = f" in {self.worst[1]}" if self.worst[1] else ""
            first = f"; the first tensor that differs{where} is {self.first}" if self.first else where
            raise ParityError(
                f"{self.figures}: {self.excess:.3g} times the allowed rounding error{first}; nothing was written"
            )
        return self


@dataclass(frozen=True)
class ProbeInput:
    """The texts that both implementations read, and what they do not cover."""

    a: Architecture
    cases: tuple[NetworkCall, ...]
    dtype: torch.dtype
    uncovered: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[Tensor, ...]:
        """The tokens of every call [batch, n]."""
        return tuple(case.tokens for case in self.cases)

    @property
    def given(self) -> dict[str, list[Tensor | None]]:
        """The other inputs by transformers' names, one for each call, None if it has no such input."""
        each = [transformers_inputs(self.a, case) for case in self.cases]
        input_names = {name for inputs in each for name in inputs}
        return {name: [inputs.get(name) for inputs in each] for name in sorted(input_names)}


def transformers_inputs(a: Architecture, case: NetworkCall) -> dict[str, Tensor]:
    """The inputs of transformers besides the tokens, for the same call."""
    inputs, n = {}, case.tokens.size(1)
    if "source" in case.inputs:
        inputs["input_ids"] = case.inputs["source"]
    if "segments" in case.inputs:
        inputs["token_type_ids"] = case.inputs["segments"]
    if "positions" in case.inputs and (a.adds_positions or a.rotates_somewhere):
        inputs["position_ids"] = case.inputs["positions"].expand(case.tokens.shape)
    if len(case.rows) > 1 or "position_ids" in inputs:
        # without a mask, transformers reads non-consecutive positions as texts packed into one row
        real = real_columns([row.columns for row in case.rows], n).long()
        inputs["attention_mask" if a.encoder is None else "decoder_attention_mask"] = real
    if len(case.rows) > 1 and "source" in case.inputs:
        columns = [row.source_columns for row in case.rows]
        inputs["attention_mask"] = real_columns(columns, case.inputs["source"].size(1)).long()
    return inputs


def make_probe(a: Architecture, tokenizer: Tokenizer | None) -> ProbeInput:
    """The fixed texts or random tokens, a long row, late positions of the context, and padded batches.

    Larger models get fewer tokens.
    """
    n_parameters = count_parameters(a)["total"]
    prompts = prompt_tokens(a, tokenizer, PROMPTS, prompt_length(n_parameters))
    texts = [text if tokenizer else without_specials(a, text) for text in prompts]
    n_row, longest = long_row_length(a, n_parameters), max(text.size(1) for text in texts)
    cases = [single_text(a, text) for text in texts]
    if n_row > longest:
        cases.append(single_text(a, probe_tokens(a, n_row), f"a row of {n_row} tokens"))
    positions = far_positions(a.n_ctx, n_row, longest)
    name = f"{len(positions)} tokens at positions up to {a.n_ctx - 1}"
    if a.adds_positions or a.rotates_somewhere:
        cases.append(single_text(a, probe_tokens(a, len(positions)), name, positions=positions))
    widest = min(longest, MAX_BATCH_TOKENS)
    rows = [probe_tokens(a, k) for k in ((widest + 1) // 2, widest, 1)]
    cases += [padded_batch(a, rows, side) for side in ("left", "right")]
    dtype = torch.float64 if n_parameters <= MAX_FLOAT64_PARAMETERS else torch.float32
    return ProbeInput(a, tuple(cases), dtype, ("int8 and int4 products", *uncovered_by_row(a, n_row)))


def probe_tokens(a: Architecture, n: int) -> Tensor:
    """Random tokens [1, n]."""
    return without_specials(a, torch.randint(0, a.n_vocab, (1, n), generator=torch.Generator().manual_seed(n)))


def without_specials(a: Architecture, tokens: Tensor) -> Tensor:
    """Tokens without the first ids of the vocabulary."""
    return tokens.clamp(min=min(FIRST_ID, a.n_vocab - 1))


def our_logits(network: Transformer, probe: ProbeInput) -> list[Tensor]:
    """The engine's logits for each call, in the precision of the network."""
    return [case.run(network).double() for case in probe.cases]


def check_masks(network: Transformer) -> None:
    """Raise ParityError if a mask differs from the reference's, up to the end of the context.

    This covers windows that are too wide for a row; the other implementation's masks cannot be inspected.
    """
    weights = {name: p.double().cpu().numpy() for name, p in state_of(network).items() if "relative" in name}
    exact = network.embed.token.weight.dtype == torch.float64
    first = first_difference_beyond_rounding(compare_masks(network, weights, TOLERANCE if exact else FLOAT32_TOLERANCE))
    if first is not None:
        raise ParityError(f"{first.name} differs from the reference: {first}; nothing was written")


def logits_of_float32_angles(network: Transformer, probe: ProbeInput) -> list[Tensor] | None:
    """The logits with rotary angles rounded to float32; None if that changes nothing."""
    if not probe.a.rotates_somewhere:
        return None
    with float32_angles(network):
        return our_logits(network, probe)


@contextmanager
def float32_angles(network: Transformer) -> Iterator[None]:
    """Use i w_k as a product of float32 numbers, rounded to float32: off by up to 2^-24 i."""
    tables = [module for module in network.modules() if isinstance(module, RotaryTable) and module.exact.size(2) > 1]
    saved_values = [table.values for table in tables]
    try:
        for table in tables:
            angle = torch.atan2(table.exact[1, :, 1], table.exact[0, :, 1]).float()  # w_k: the angles of position 1
            positions = torch.arange(table.exact.size(2), dtype=torch.float32)
            angles = (positions[:, None] * angle[:, None]).double()
            factor = table.exact[0, :, :1]  # c cos 0
            table.values = (factor * torch.stack([angles.cos(), angles.sin()])).to(table.values)
        yield
    finally:
        for table, values in zip(tables, saved_values, strict=True):
            table.values = values


def defined_logits(network: Transformer, probe: ProbeInput) -> list[Tensor]:
    """The reference's logits, in NumPy float64, of each text alone; 0 at padding."""
    weights = {name: p.double().cpu().numpy() for name, p in state_of(network).items()}
    logits_list = []
    for case in probe.cases:
        logits = torch.zeros(*case.tokens.shape, probe.a.n_vocab, dtype=torch.float64)
        for r, row in enumerate(case.rows):
            logits[r, row.columns] = torch.from_numpy(run_reference(probe.a, weights, row, OFF))[0]
        logits_list.append(logits)
    return logits_list


def compare_logits(
    ours: Sequence[Tensor],
    theirs: Sequence[Tensor | None],
    other: str,
    probe: ProbeInput,
    rounded: Sequence[Tensor] | None = None,
    tolerance: float | None = None,
) -> Parity:
    """Compare logits [batch, n, n_vocab] of each call over all positions except padding.

    theirs     None for a call that the other implementation does not support, which is reported
    rounded    ours with the known rounding of the other implementation (`logits_of_float32_angles`)
    tolerance  relative to max(1, largest logit), instead of `TOLERANCES`

    Raises ParityError if shapes differ or a logit is not finite.
    """
    sums_of_case: dict[int, Sums] = {}
    for number, (case, own, their) in enumerate(zip(probe.cases, ours, theirs, strict=True)):
        if their is None:
            continue
        if own.shape != their.shape:
            raise ParityError(
                f"{other} gives logits of shape {list(their.shape)}, ours {list(own.shape)}: nothing was written"
            )
        sums_of_case[number] = Sums()
        for r, row in enumerate(case.rows):
            for a, b in _slabs(own[r, row.columns], their[r, row.columns]):
                if not (a.isfinite().all() and b.isfinite().all()):
                    raise ParityError(f"logits are not finite, ours or those of {other}: nothing was written")
                sums_of_case[number].add(a, b)
    total = sum(sums_of_case.values(), Sums())
    allowed: dict[int, float] = {}
    for number in sums_of_case:
        # transformers reads padded batches in float32
        usual = TOLERANCES[torch.float32 if len(probe.cases[number].rows) > 1 else probe.dtype]
        rounding = 0.0 if rounded is None else _max_difference(rounded[number], ours[number])
        allowed[number] = (usual if tolerance is None else tolerance) * total.scale + ROUNDING_FACTOR * rounding
    worst = max(sums_of_case, key=lambda number: sums_of_case[number].largest / allowed[number])
    return Parity(
        other,
        total.largest,
        total.scale,
        max(0.0, total.kl / total.n),
        total.agreeing / total.n,
        total.n,
        probe.dtype,
        sums_of_case[worst].largest / allowed[worst],
        allowed[worst] / total.scale,
        (worst, probe.cases[worst].name),
        uncovered=(*probe.uncovered, *_unsupported_calls(probe, theirs)),
    )


def _max_difference(one: Tensor, other: Tensor) -> float:
    """max |one - other| of two tensors of one shape."""
    return max((a - b).abs().max().item() for a, b in _slabs(one.flatten(0, 1), other.flatten(0, 1)))


def _unsupported_calls(probe: ProbeInput, theirs: Sequence[Tensor | None]) -> Iterator[str]:
    """The calls whose inputs the other implementation does not have."""
    for case, logits in zip(probe.cases, theirs, strict=True):
        if logits is None:
            yield f"{case.name} (the other takes no such input)"


@dataclass
class Sums:
    """Sums over positions."""

    n: int = 0
    largest: float = 0.0
    scale: float = 1.0
    kl: float = 0.0
    agreeing: int = 0

    def add(self, ours: Tensor, theirs: Tensor) -> None:
        """Add the logits [n, n_vocab] of some positions."""
        self.n += len(ours)
        self.largest = max(self.largest, (ours - theirs).abs().max().item())
        self.scale = max(self.scale, theirs.abs().max().item())
        self.kl += (theirs.softmax(-1) * (theirs.log_softmax(-1) - ours.log_softmax(-1))).sum().item()
        self.agreeing += int((ours.argmax(-1) == theirs.argmax(-1)).sum())

    def __add__(self, other: "Sums") -> "Sums":
        larger = max(self.largest, other.largest), max(self.scale, other.scale)
        return Sums(self.n + other.n, *larger, self.kl + other.kl, self.agreeing + other.agreeing)


def _slabs(ours: Tensor, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both logits in slices: the figures of all of them at once would need several times their memory."""
    n = max(1, COMPARED_AT_ONCE // ours.size(-1))
    return zip(ours.split(n), theirs.split(n), strict=True)


# The first tensor that differs --------------------------------------------------------------------


def first_of_networks(ours: Transformer, theirs: Transformer, case: NetworkCall) -> str:
    """The first tensor in which two networks of one architecture differ."""
    first, _ = first_difference(ours.architecture, engine_computation(ours, case), engine_computation(theirs, case))
    return "" if first is None else first.name


def first_beside_definition(ours: Transformer, weights: Transformer, case: NetworkCall) -> str:
    """The first tensor in which a network differs from the reference on the weights of another."""
    arrays = {name: p.double().cpu().numpy() for name, p in state_of(weights).items()}
    if len(case.rows) > 1:
        expected = [reference_tensors(ours.architecture, arrays, row) for row in case.rows]
        first = first_difference_beyond_rounding(compare_case(ours, case, expected))
    else:
        first, _ = first_difference(
            ours.architecture, engine_computation(ours, case), reference_computation(ours.architecture, arrays, case)
        )
    return "" if first is None else first.name


def first_of_streams(ours: Transformer, case: NetworkCall, hidden: Sequence[Tensor | None], tolerance: float) -> str:
    """The first of transformers' hidden states that differs: the stream before each block, and the last.

    hidden   these tensors, the encoder's first; if their number differs from ours, the result is ""
    """
    state_names = hidden_state_names(ours.architecture)
    if len(state_names) != len(hidden):
        return ""
    recorder = Recorder(state_names)
    case.run(ours, recorder)
    for name, theirs in zip(state_names, hidden, strict=True):
        assert theirs is not None
        for r, row in enumerate(case.rows):
            text = TextSlice(r, row.columns, row.columns, row.source_columns)
            expected = text.of_call(name, theirs).numpy()
            if not compare(name, text.of_call(name, recorder.values[name]), expected, tolerance=tolerance).small:
                return name
    return "logits"


def hidden_state_names(a: Architecture) -> list[str]:
    """Our names of the tensors in its `hidden_states`."""
    known, state_names = names(a), []
    for prefix, part in (("encoder.", a.encoder), ("", a)):
        if part is not None:
            last = [f"{prefix}final_norm", f"{prefix}blocks.{part.n_layers - 1}.resid_post"]
            end = next((name for name in last if name in known), "")
            state_names += [*(f"{prefix}blocks.{layer}.resid_pre" for layer in range(part.n_layers)), end]
    return [name for name in state_names if name]
