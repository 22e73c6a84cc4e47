"""From logits to the next token: penalties, temperature, truncation, and one uniform number for each draw.

The order is that of Hugging Face's processors: penalties, temperature, top-k, top-p, min-p; each works on the result of
the one before. A token is drawn by inverting the cumulative distribution over ids in float64 at a number that depends
only on (seed, sample, step), so a text does not depend on the rest of its batch.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.model.float64 import in_float64
from pellucid.model.transfer import on_device

Scores = Float[Tensor, "rows n_vocab"]
#: in the place of an id: no token could be chosen
UNPICKED = -1


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen. The defaults leave the model's distribution unchanged.

    temperature         logits are divided by it; 0 takes the likeliest token, the lowest id among equals
    top_k               exactly this many tokens stay, lower ids first among equals; 0 keeps all
    top_p               the smallest set of likeliest tokens whose mass reaches p stays, the first one always
    min_p               tokens of at least min_p times the likeliest one's probability stay
    repetition_penalty  logits of tokens in the prompt or generated so far: l / r if l > 0, else l r
                        (Keskar et al. 2019, section 4.1, with the sign repaired as Hugging Face does)
    frequency_penalty   logits fall by this much for every time the token was generated; the prompt
                        does not count (as in OpenAI's interface)
    presence_penalty    logits fall by this much once if the token was generated at all; the prompt does not count
    logit_bias          pairs of an id and what is added to its logit, before temperature and truncation

    Raises GenerationError for values out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self):
        for token, bias in self.logit_bias:
            if token < 0 or not math.isfinite(bias):
                raise GenerationError(f"logit_bias of id {token} is {bias}: expected an id and a finite number")
        for f in fields(self):
            if f.name == "logit_bias":
                continue
            value = getattr(self, f.name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not _RANGE[f.name][0](value):
                raise GenerationError(f"{f.name} = {value!r}: expected {_RANGE[f.name][1]}")

    @property
    def greedy(self) -> bool:
        """Whether the choice is deterministic."""
        return self.temperature == 0

    @property
    def keeps_logits(self) -> bool:
        """Whether there are neither penalties nor biases."""
        return not (self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty or self.logit_bias)


_RANGE = {
    "temperature": (lambda t: t >= 0, "a number of at least 0; 0 always takes the likeliest token"),
    "top_k": (lambda k: k >= 0 and k == int(k), "the number of tokens to keep, or 0 to keep all"),
    "top_p": (lambda p: 0 <= p <= 1, "a probability from 0 to 1; 1 keeps all"),
    "min_p": (lambda p: 0 <= p <= 1, "a fraction from 0 to 1; 0 keeps all"),
    "repetition_penalty": (lambda r: r > 0, "a number above 0; 1 changes nothing, more discourages repetition"),
    "frequency_penalty": (lambda f: True, "a number; 0 changes nothing, more discourages repetition"),
    "presence_penalty": (lambda f: True, "a number; 0 changes nothing, more discourages repetition"),
}


def uniform(seed: int, sample: int, step: int) -> float:
    """A number in [0, 1) that is a pure function of its arguments: 53 bits of their BLAKE2b hash."""
    digest = hashlib.blake2b(f"{seed}/{sample}/{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def choose_tokens(
    logits: Scores,
    sampling: Sampling,
    numbers: Sequence[float] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    generated: Sequence[Sequence[int]] | None = None,
    n_allowed: int | None = None,
) -> Int[Tensor, " rows"]:
    """The next id of every row.

    numbers    one in [0, 1) per row (`uniform`); not needed if temperature is 0
    prompts    each row's prompt, for the repetition penalty
    generated  what each row has generated, for the penalties
    n_allowed  ids from here on do not exist for the tokenizer and are never chosen

    `logits` is not changed. Raises LogitsError if a row's largest logit is not finite.
    """
    chosen = pick_tokens(logits, sampling, numbers, prompts, generated, n_allowed)
    check_picked(chosen.tolist())
    return chosen


def check_picked(tokens: Sequence[int]) -> None:
    """Raise LogitsError where `pick_tokens` could choose no token."""
    if UNPICKED in tokens:
        raise LogitsError(
            "the network's logits hold NaN or infinity, so no token can be chosen: check the weights, "
            "and the precision they are run in"
        )


def pick_tokens(
    logits: Scores,
    sampling: Sampling,
    numbers: Sequence[float] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    generated: Sequence[Sequence[int]] | None = None,
    n_allowed: int | None = None,
) -> Int[Tensor, " rows"]:
    """As `choose_tokens`, and UNPICKED for a row whose largest logit is not finite: nothing waits for a GPU here."""
    allowed = logits.detach()[:, :n_allowed]
    chosen = _picked(allowed, sampling, numbers, prompts, generated)
    # of a device without float64, probabilities are on the CPU, and so is what is drawn
    return chosen.masked_fill(~torch.isfinite(allowed.amax(-1)).to(chosen.device), UNPICKED)


def _picked(
    allowed: Scores,
    sampling: Sampling,
    numbers: Sequence[float] | None,
    prompts: Sequence[Sequence[int]] | None,
    generated: Sequence[Sequence[int]] | None,
) -> Int[Tensor, " rows"]:
    if sampling.greedy and sampling.keeps_logits:
        # the largest is the largest in float64 too, and a copy of all logits takes longer than finding it
        return allowed.argmax(-1)
    empty = [()] * len(allowed)
    x = penalise(in_float64(allowed), sampling, prompts or empty, generated or empty)
    if sampling.greedy:
        return x.argmax(-1)
    if numbers is None:
        raise GenerationError("temperature above 0 needs one random number per row: pass numbers")
    return draw_tokens(probabilities(x, sampling), on_device(np.array(numbers, np.float64), x.device))


def penalise(
    logits: Scores, sampling: Sampling, prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]
) -> Scores:
    """Logits after penalties and biases; a new tensor if any is on."""
    if sampling.repetition_penalty != 1:
        seen = _counts(logits, [[*p, *g] for p, g in zip(prompts, generated, strict=True)]) > 0
        r = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / r, logits * r), logits)
    if sampling.frequency_penalty:
        logits = logits - sampling.frequency_penalty * _counts(logits, generated)
    if sampling.presence_penalty:
        logits = logits - sampling.presence_penalty * (_counts(logits, generated) > 0)
    if sampling.logit_bias:
        biases = np.zeros(logits.size(-1))
        for token, bias in sampling.logit_bias:
            if token < len(biases):
                biases[token] = bias
        logits = logits + on_device(biases, logits.device)
    return logits


def probabilities(logits: Scores, sampling: Sampling) -> Scores:
    """The distribution that is drawn from, float64: temperature (> 0), then top-k, top-p and min-p."""
    x = in_float64(logits.detach())
    # subtract the largest first: a small temperature would overflow
    x = (x - x.amax(-1, keepdim=True)).div_(sampling.temperature)
    x = keep_top_k(x, int(sampling.top_k)) if sampling.top_k else x
    p = x.softmax(-1)
    p = keep_top_p(p, sampling.top_p) if sampling.top_p < 1 else p
    p = p.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), 0) if sampling.min_p else p
    return p.div_(p.sum(-1, keepdim=True))


def keep_top_k(logits: Scores, k: int) -> Scores:
    """-inf for all but the k largest of every row; ties go to the lower ids."""
    if k >= logits.size(-1):
        return logits
    kth = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(~_top_k_mask(logits, k, kth), -torch.inf)


def keep_top_p(p: Scores, mass: float) -> Scores:
    """0 for all but the fewest likeliest tokens whose mass reaches `mass` (Holtzman et al. 2020); ties go to
    lower ids.
    """
    # on a CPU sorting a whole vocabulary takes longer than a step of a small network and is seldom needed; the host of
    # a GPU would wait to know whether it is
    falling = p.topk(min(TRIED_FIRST, p.size(-1)), dim=-1).values if p.device.type == "cpu" else None
    if falling is None or (falling.sum(-1) < mass).any():
        falling = p.sort(dim=-1, descending=True).values
    before = cumulative_sums(falling) - falling
    k = (before < mass).sum(-1, keepdim=True).clamp(min=1)
    return p.masked_fill(~_top_k_mask(p, k, falling.gather(-1, k - 1)), 0)


def cumulative_sums(p: Scores) -> Scores:
    """p_1, p_1 + p_2, ...; on the CPU where algorithms are to be deterministic, which CUDA has none for."""
    if p.is_cuda and torch.are_deterministic_algorithms_enabled():
        return p.cpu().cumsum(-1).to(p.device)
    return p.cumsum(-1)


#: how many of the likeliest tokens are tried first: usually they reach the mass
TRIED_FIRST = 512


def _top_k_mask(x: Scores, k: int | Tensor, kth: Tensor) -> Bool[Tensor, "rows n_vocab"]:
    """A mask of the k largest of each row, given the k-th largest value; ties go to the lower ids."""
    reached = x >= kth
    # as nearly always: none that is left out is as large as the k-th
    if x.device.type == "cpu" and (reached.sum(-1, keepdim=True) == k).all():
        return reached
    above, equal = x > kth, x == kth
    room = k - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


def draw_tokens(p: Scores, numbers: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The first id whose cumulative probability exceeds the row's number; never an id of probability 0."""
    cumulative = cumulative_sums(p)
    # the number is at most 1 - 2^-53, so it stays below the total even after rounding
    reached = numbers[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, reached, right=True)[:, 0]


def _counts(like: Scores, tokens: Sequence[Sequence[int]]) -> Scores:
    """How often each id of the vocabulary occurs in each row's tokens; larger ids are ignored."""
    n = like.size(-1)
    rows = [torch.tensor([i for i in row if i < n], dtype=torch.int64) for row in tokens]
    return on_device(torch.stack([row.bincount(minlength=n) for row in rows]).numpy(), like.device).to(like.dtype)
