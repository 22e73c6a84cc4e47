"""Beam search: find the likeliest texts instead of drawing random ones."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch

from pellucid.generate.choose_reader import ReadingOptions, choose_reader
from pellucid.generate.decode import check_prompts
from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.generate.readers import NextLogits, SequenceState, evaluation_mode
from pellucid.model import Transformer

#: digits of log P (nats) that distinguish texts: adding the same terms in another order changes later digits
DIGITS = 9

#: the text of generated ids, of which they may be all, and whether it holds a stop string
TextOf = Callable[[Sequence[int], bool], tuple[str, bool]]


@dataclass(frozen=True)
class Hypothesis:
    """An unfinished text: its row, and log P of what it has generated, nats."""

    row: SequenceState
    log_prob: float

    @property
    def score(self) -> float:
        """The mean log P of a token: sums would favour short texts (Wu et al. 2016, section 7, with alpha = 1)."""
        return self.log_prob / max(len(self.row.generated), 1)


@dataclass(frozen=True)
class DeliveredStep:
    """One more token for each text that is not finished."""

    rows: list[SequenceState]
    tokens: list[int]


class BeamSearch:
    """The texts that the search found, best first for each prompt, delivered token by token as `Decoding` delivers its
    own.

    rows     `sample` is a text's rank; empty until tokens are delivered
    scores   mean log P per token of each row, nats
    reasons  lines that say how the reader was chosen
    """

    def __init__(self, best: list[Hypothesis], reasons: Sequence[str] = ()):
        self.best, self.reasons = best, tuple(reasons)
        self.scores = [hypothesis.score for hypothesis in best]
        self.rows = [SequenceState(h.row.prompt, h.row.sample, 0, h.row.given) for h in best]
        for row, hypothesis in zip(self.rows, best, strict=True):
            row.finish_reason = None if hypothesis.row.generated else hypothesis.row.finish_reason

    def __iter__(self) -> Iterator[DeliveredStep]:
        while going := [k for k, row in enumerate(self.rows) if row.finish_reason is None]:
            tokens = []
            for k in going:
                row, complete_row = self.rows[k], self.best[k].row
                tokens.append(complete_row.generated[len(row.generated)])
                row.generated.append(tokens[-1])
                if len(row.generated) == len(complete_row.generated):
                    row.finish_reason = complete_row.finish_reason
            yield DeliveredStep([self.rows[k] for k in going], tokens)

    def stop(self, row: SequenceState) -> None:
        """End this row here; the tokens it has delivered stay."""
        row.finish_reason = "stop"


def search_beams(
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    beams: int,
    max_tokens: int,
    n: int = 1,
    stop_ids: Collection[int] = (),
    n_allowed: int | None = None,
    text_of: TextOf | None = None,
    **reading: Unpack[ReadingOptions],
) -> BeamSearch:
    """The `n` best of the texts that `beams` beams find for every prompt   (Sutskever et al. 2014, section 3.2)

    At every step the likeliest extensions are kept, as many as there are beams. A hypothesis that ends, by a stop id, a
    stop string or its length, is complete and frees no beam, unless a better one has the same text. Complete texts are
    ordered by mean log P per token. Ties are ordered by beam and then by id, so the result is deterministic; one beam
    is greedy decoding. There are fewer than `n` texts where fewer different ones were found.

    text_of   the text of a row's ids, without it every row of ids is a text of its own and there are no stop strings

    The other options are those of `generate_ids`. Raises GenerationError.
    """
    prompt_ids = check_prompts(network, prompts, max_tokens, n_allowed)
    if beams < 1 or not 1 <= n <= beams:
        raise GenerationError(f"beams = {beams}, n = {n}: expected at least one beam, and 1 <= n <= beams")
    reader, reasons = choose_reader(network, prompt_ids, max_tokens, beams=beams, **reading)
    alive = [Hypothesis(SequenceState(k, 0, 0, ids), 0.0) for k, ids in enumerate(prompt_ids)]
    complete: list[dict[object, Hypothesis]] = [{} for _ in prompt_ids]
    with evaluation_mode(reader.network):
        for length in range(1, max_tokens + 1):
            if not alive:
                break
            logits = reader.read([hypothesis.row for hypothesis in alive])[:, :n_allowed]
            alive, parents = _extend(alive, _log_probs(logits), complete, beams)
            going = []
            for k, hypothesis in enumerate(alive):
                text = _text_if_complete(hypothesis, stop_ids, length == max_tokens, text_of)
                if text is None:
                    going.append(k)
                    continue
                of_prompt = complete[hypothesis.row.prompt]
                if text not in of_prompt or of_prompt[text].score < hypothesis.score:
                    of_prompt[text] = hypothesis
            alive = [alive[k] for k in going]
            if alive:
                reader.select([parents[k] for k in going])
    for hypothesis in alive:  # max_tokens is 0
        hypothesis.row.finish_reason = "length"
        complete[hypothesis.row.prompt][()] = hypothesis
    return BeamSearch([best for of_prompt in complete for best in _ranked(list(of_prompt.values()))[:n]], reasons)


def _log_probs(logits: NextLogits) -> torch.Tensor:
    """Log-probabilities in float64 on the CPU."""
    if not torch.isfinite(logits.amax(-1)).all():
        raise LogitsError("the network's logits hold NaN or infinity, so no token can be chosen: check the weights")
    return logits.cpu().double().log_softmax(-1)


def _extend(
    alive: list[Hypothesis], log_probs: torch.Tensor, complete: Sequence[Collection[object]], beams: int
) -> tuple[list[Hypothesis], list[int]]:
    """The likeliest extensions of every prompt's hypotheses, and the index in `alive` that each extends."""
    sums = log_probs + torch.tensor([[hypothesis.log_prob] for hypothesis in alive], dtype=torch.float64)
    extended, parents = [], []
    for prompt, done in enumerate(complete):
        own = [k for k, hypothesis in enumerate(alive) if hypothesis.row.prompt == prompt]
        if not own:
            continue
        candidates = sums[own].flatten().round(decimals=DIGITS)
        room = min(beams - len(done), len(candidates))
        least = candidates.topk(room).values[-1]
        indices = ((candidates >= least) & (candidates > -torch.inf)).nonzero().flatten()
        # a stable sort keeps ties in the order of their beams and ids
        for candidate in indices[candidates[indices].sort(descending=True, stable=True).indices[:room]].tolist():
            k, token = own[candidate // sums.size(1)], candidate % sums.size(1)
            before = alive[k].row
            row = SequenceState(prompt, 0, 0, before.given, [*before.generated, token])
            extended.append(Hypothesis(row, float(sums[k, token])))
            parents.append(k)
    return extended, parents


def _text_if_complete(hypothesis: Hypothesis, stop_ids: Collection[int], full: bool, text_of: TextOf | None) -> object:
    """What tells a complete text from others, and its row gets its finish reason; None of one that goes on."""
    row = hypothesis.row
    row.finish_reason = "end" if row.generated[-1] in stop_ids else "length" if full else None
    if text_of is None:
        return tuple(row.generated) if row.finish_reason else None
    text, is_stopped = text_of(row.generated, row.finish_reason is not None)
    row.finish_reason = "stop" if is_stopped else row.finish_reason
    return text if row.finish_reason else None


def _ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Sort best first, and write each text's rank into its row."""
    ranked = sorted(hypotheses, key=lambda hypothesis: -round(hypothesis.score, DIGITS))
    for rank, hypothesis in enumerate(ranked):
        hypothesis.row.sample = rank
    return ranked
