"""Beam search: the likeliest texts instead of drawn ones."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from pellucid.generate.decode import check_counts, check_prompt
from pellucid.generate.encoder_inputs import read_sources
from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.generate.readers import (
    NO_TAPS,
    CachedReader,
    NextLogits,
    RecomputingReader,
    SequenceState,
    TapFactory,
    check_readable,
    evaluation_mode,
)
from pellucid.model import Transformer

#: digits of log P, nats, that tell texts apart: the same terms added in another order differ in later ones
DIGITS = 9


@dataclass(frozen=True)
class Hypothesis:
    """A text on its way: its row, and log P of what it has generated, nats."""

    row: SequenceState
    log_prob: float

    @property
    def score(self) -> float:
        """log P of a token on average: sums would favour short texts (Wu et al. 2016, section 7, with alpha = 1)."""
        return self.log_prob / max(len(self.row.generated), 1)


@dataclass(frozen=True)
class Retold:
    """A token more for each text that is not finished."""

    rows: list[SequenceState]
    tokens: list[int]


class BeamSearch:
    """The texts that were found, best first for each prompt, retold token by token as `Decoding` tells its own.

    rows     `sample` is a text's rank; empty until they are told
    scores   log P per token of each row, nats
    """

    def __init__(self, found: list[Hypothesis]):
        self.found = found
        self.scores = [hypothesis.score for hypothesis in found]
        self.rows = [SequenceState(h.row.prompt, h.row.sample, 0, h.row.given) for h in found]
        for row, told in zip(self.rows, found, strict=True):
            row.finish_reason = None if told.row.generated else told.row.finish_reason

    def __iter__(self) -> Iterator[Retold]:
        while going := [k for k, row in enumerate(self.rows) if row.finish_reason is None]:
            tokens = []
            for k in going:
                row, whole = self.rows[k], self.found[k].row
                tokens.append(whole.generated[len(row.generated)])
                row.generated.append(tokens[-1])
                if len(row.generated) == len(whole.generated):
                    row.finish_reason = whole.finish_reason
            yield Retold([self.rows[k] for k in going], tokens)

    def stop(self, row: SequenceState) -> None:
        """End this row here; what it has told stays."""
        row.finish_reason = "stop"


def search_beams(
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    beams: int,
    max_tokens: int,
    n: int = 1,
    stop_ids: Collection[int] = (),
    cache: bool = True,
    n_allowed: int | None = None,
    sources: Sequence[Sequence[int]] | None = None,
    taps: TapFactory = NO_TAPS,
) -> BeamSearch:
    """The `n` best of the texts that `beams` beams find for every prompt   (Sutskever et al. 2014, section 3.2)

    At every step the likeliest extensions of what is going on are kept, as many as there are beams; one that
    ends, with a stop id or by its length, is complete and takes its beam with it. The complete ones are
    ordered by log P per token. Equals are ordered by their own beam and then by id, so the result depends on
    nothing else; one beam is greedy decoding. Other options are those of `generate_ids`. Raises GenerationError.
    """
    check_readable(network)
    check_counts(network, max_tokens, n_allowed)
    if beams < 1 or not 1 <= n <= beams:
        raise GenerationError(f"beams = {beams}, n = {n}: expected at least one beam, and 1 <= n <= beams")
    a = network.architecture
    given = [check_prompt(prompt, k, a.n_vocab)[-a.n_ctx :] for k, prompt in enumerate(prompts)]
    alive = [Hypothesis(SequenceState(k, 0, 0, ids), 0.0) for k, ids in enumerate(given)]
    complete: list[list[Hypothesis]] = [[] for _ in given]
    longest = max(map(len, given), default=0) + max_tokens
    with evaluation_mode(network):
        encoded = read_sources(network, sources, len(prompts), taps.of_sources)
        reader = CachedReader(network, longest, encoded, taps) if cache else RecomputingReader(network, encoded, taps)
        for length in range(1, max_tokens + 1):
            if not alive:
                break
            logits = reader.read([hypothesis.row for hypothesis in alive])[:, :n_allowed]
            alive, parents = _extend(alive, _log_probs(logits), complete, beams)
            kept = [k for k, hypothesis in enumerate(alive) if not _ends(hypothesis, stop_ids, length == max_tokens)]
            for hypothesis in alive:
                if hypothesis.row.finish_reason:
                    complete[hypothesis.row.prompt].append(hypothesis)
            alive = [alive[k] for k in kept]
            if alive:
                reader.select([parents[k] for k in kept])
    for hypothesis in alive:  # nothing was asked for
        hypothesis.row.finish_reason = "length"
        complete[hypothesis.row.prompt].append(hypothesis)
    return BeamSearch([best for found in complete for best in _ranked(found)[:n]])


def _log_probs(logits: NextLogits) -> torch.Tensor:
    """float64, on the CPU."""
    if not torch.isfinite(logits.amax(-1)).all():
        raise LogitsError("the network's logits hold NaN or infinity, so no token can be chosen: check the weights")
    return logits.cpu().double().log_softmax(-1)


def _extend(
    alive: list[Hypothesis], log_probs: torch.Tensor, complete: list[list[Hypothesis]], beams: int
) -> tuple[list[Hypothesis], list[int]]:
    """The likeliest extensions of every prompt's hypotheses, and which of `alive` each extends."""
    sums = log_probs + torch.tensor([[hypothesis.log_prob] for hypothesis in alive], dtype=torch.float64)
    extended, parents = [], []
    for prompt, done in enumerate(complete):
        own = [k for k, hypothesis in enumerate(alive) if hypothesis.row.prompt == prompt]
        if not own:
            continue
        candidates = sums[own].flatten().round(decimals=DIGITS)
        room = min(beams - len(done), len(candidates))
        least = candidates.topk(room).values[-1]
        places = ((candidates >= least) & (candidates > -torch.inf)).nonzero().flatten()
        # a stable sort leaves equals in the order of their beams and ids
        for place in places[candidates[places].sort(descending=True, stable=True).indices[:room]].tolist():
            k, token = own[place // sums.size(1)], place % sums.size(1)
            before = alive[k].row
            row = SequenceState(prompt, 0, 0, before.given, [*before.generated, token])
            extended.append(Hypothesis(row, float(sums[k, token])))
            parents.append(k)
    return extended, parents


def _ends(hypothesis: Hypothesis, stop_ids: Collection[int], full: bool) -> bool:
    """Whether this text is complete, which its row then says."""
    row = hypothesis.row
    row.finish_reason = "end" if row.generated[-1] in stop_ids else "length" if full else None
    return row.finish_reason is not None


def _ranked(found: list[Hypothesis]) -> list[Hypothesis]:
    """Best first, each told its rank."""
    ranked = sorted(found, key=lambda hypothesis: -round(hypothesis.score, DIGITS))
    for rank, hypothesis in enumerate(ranked):
        hypothesis.row.sample = rank
    return ranked
