"""Did a conversion keep the function? Logits on a fixed probe, beside those of the other implementation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.architecture import Architecture, count_parameters
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.reference.tap import OFF
from pellucid.text.interface import Tokenizer
from pellucid.verify.cases import alone, segments, source_of
from pellucid.verify.comparison import define, run
from pellucid.verify.examine import AFFORDABLE, MOST_TOKENS, PROMPTS, read_prompts

#: of max(1, largest logit): float64 up to this many parameters, then float32; the families' own tables are float32
EXACT_UP_TO = 3 * 10**8
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3}


class ParityError(ValueError):
    """Two implementations of one model that give different logits."""


@dataclass(frozen=True)
class Parity:
    """How far two implementations are apart on the probe.

    largest    max |difference of logits|
    scale      max(1, max |logit|)
    kl         mean over positions of KL(theirs || ours), nats
    agreement  share of positions with the same likeliest token
    """

    other: str
    largest: float
    scale: float
    kl: float
    agreement: float
    n_tokens: int
    dtype: torch.dtype

    @property
    def holds(self) -> bool:
        return self.largest <= TOLERANCES[self.dtype] * self.scale

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"parity with {self.other}, {self.n_tokens} tokens in {dtype}: largest logit difference "
            f"{self.largest:.1e} (logits up to {self.scale:.3g}), KL {self.kl:.1e} nats, argmax agreement "
            f"{self.agreement:.1%}"
        )

    def require(self) -> "Parity":
        """Itself; ParityError where the difference is not rounding."""
        if not self.holds:
            allowed = TOLERANCES[self.dtype] * self.scale
            raise ParityError(f"{self}: at most {allowed:.1e} is rounding; nothing was written")
        return self


@dataclass(frozen=True)
class Probe:
    """What both implementations read: texts of ours as tokens [1, n], and what else the architecture asks for."""

    tokens: tuple[Tensor, ...]
    given: dict[str, list[Tensor]]
    dtype: torch.dtype


def make_probe(a: Architecture, tokenizer: Tokenizer | None) -> Probe:
    """The fixed texts, or random tokens where there is no tokenizer; fewer tokens for larger models."""
    n_parameters = count_parameters(a)["total"]
    n = max(2, min(MOST_TOKENS, int(AFFORDABLE / max(n_parameters, 1))))
    tokens = read_prompts(a, tokenizer, PROMPTS, n)
    given: dict[str, list[Tensor]] = {}
    if a.encoder is not None:
        given["input_ids"] = [source_of(a, text) for text in tokens]
    if a.n_segments:
        given["token_type_ids"] = [segments(a, text.size(1)) for text in tokens]
    return Probe(tokens, given, torch.float64 if n_parameters <= EXACT_UP_TO else torch.float32)


def our_logits(network: Transformer, probe: Probe) -> list[Tensor]:
    """The engine's logits for each text, in the precision of the network."""
    return [run(network, text).double() for text in probe.tokens]


def defined_logits(network: Transformer, probe: Probe) -> list[Tensor]:
    """The logits by definition, in NumPy float64."""
    weights = {name: p.double().cpu().numpy() for name, p in state_of(network).items()}
    return [
        torch.from_numpy(define(network.architecture, weights, alone(network.architecture, text).rows[0], OFF))
        for text in probe.tokens
    ]


def compare_logits(ours: list[Tensor], theirs: list[Tensor], other: str, probe: Probe) -> Parity:
    """The three figures over all positions; logits [1, n, n_vocab] of each text.

    Raises ParityError where shapes differ or a logit is not a number.
    """
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise ParityError(
                f"{other} gives logits of shape {list(b.shape)}, ours {list(a.shape)}: nothing was written"
            )
    a, b = (torch.cat([x.flatten(0, 1) for x in logits]) for logits in (ours, theirs))
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ParityError(f"logits are not finite, ours or those of {other}: nothing was written")
    kl = (b.softmax(-1) * (b.log_softmax(-1) - a.log_softmax(-1))).sum(-1)
    return Parity(
        other,
        (a - b).abs().max().item(),
        max(1.0, b.abs().max().item()),
        max(0.0, kl.mean().item()),
        (a.argmax(-1) == b.argmax(-1)).double().mean().item(),
        len(a),
        probe.dtype,
    )
