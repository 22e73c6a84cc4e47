"""The logit lens: the prediction that the network would make if it ended at a point of the stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.lens.analysis.attribution import points_of_stream
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable


@dataclass(frozen=True, repr=False)
class Lens(PrintsAsTable):
    """The predictions at each of `points` of the stream, all [point, b, i].

    tokens       the k likeliest ids [point, b, i, k]; probabilities theirs
    target       the id that is followed [b, i], -1 where there is none
    probability  of the target, nan where there is none
    rank         of the target, 0 for the likeliest, -1 where there is none
    entropy      of the distribution, nats
    kl           sum_v P_end log(P_end / P_here), nats: the distance to the final prediction; 0 at the last point
    """

    points: list[str]
    tokens: Tensor
    probabilities: Tensor
    target: Tensor
    probability: Tensor
    rank: Tensor
    entropy: Tensor
    kl: Tensor

    def printed(self) -> PrintedTable:
        """The last position of the first text at each point: the likeliest id, and how far the last prediction is."""
        parts = (self.tokens[:, 0, -1, 0], self.probabilities[:, 0, -1, 0], self.entropy[:, 0, -1], self.kl[:, 0, -1])
        rows = list(zip(self.points, *(part.tolist() for part in parts), strict=True))
        heading = "logit lens at the last position of the first text, from the last point back"
        return PrintedTable(heading, ("point", "id", "probability", "entropy, nats", "KL, nats"), rows[::-1])


def logit_lens(t: Recording, *, mid: bool = True, target: str | int | None = None, k: int = 5) -> Lens:
    """Compute logits at every point of the stream: the final norm with the scale at that point, then the readout.

    mid     also between attention and MLP, where a block has such a point
    target  a token to follow; the next token of the text unless given (the token itself for a masked model)

    nostalgebraist 2020. At the last point this is the network's own output, bit for bit.
    """
    rows = list(lens_points(t, mid=mid, target=target, k=k))
    parts = ("tokens", "probabilities", "probability", "rank", "entropy", "kl")
    joined = {part: torch.cat([getattr(row, part) for row in rows]) for part in parts}
    return Lens([row.points[0] for row in rows], target=rows[0].target, **joined)


def lens_points(t: Recording, *, mid: bool = True, target: str | int | None = None, k: int = 5) -> Iterator[Lens]:
    """The logit lens point by point, each a `Lens` of one point, for long texts and large vocabularies."""
    points = _points(t, mid)
    wanted, last = _targets(t, target), _log_probs(t, points[-1])
    for point in points:
        columns = [column[None] for column in _layer_prediction(_log_probs(t, point), last, wanted, k)]
        yield Lens([point], columns[0], columns[1], wanted, *columns[2:])


@dataclass(frozen=True)
class Trajectories:
    """Some tokens at one position, followed through the stream: `probability` and `rank` [point, token].

    ids   the tokens; rank 0 is the likeliest of the vocabulary
    """

    points: list[str]
    ids: list[int]
    probability: Tensor
    rank: Tensor


def follow_tokens(
    t: Recording, tokens: Sequence[str | int], *, pos: int = -1, row: int = 0, mid: bool = True
) -> Trajectories:
    """The probability and the rank of tokens at every point of the stream, at one position, as the logit lens has them.

    Costs one row of logits a point, where `logit_lens` computes those of all positions. Raises InputError.
    """
    t = t.detached()
    points, position, ids = _points(t, mid), t.position(pos, row), [t.token_id(token) for token in tokens]
    chosen = torch.tensor(ids, device=t.ids.device)
    probability, rank = [], []
    for point in points:
        with frozen_network(t.network):
            logits = t.module("unembed")(t.module("final_norm")(t[point][row, position]))
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        probability.append(log_p[chosen].exp())
        rank.append((log_p[None] > log_p[chosen, None]).sum(-1))
    return Trajectories(points, ids, torch.stack(probability), torch.stack(rank))


def _points(t: Recording, mid: bool) -> list[str]:
    points = points_of_stream(t, mid)
    if not points:
        raise InputError("n_layers = 0: the stream has no points before the end")
    return points


def lens_logits(t: Recording, point: str) -> Tensor:
    """The logits that the readout gives at a point of the stream [b, i, v]."""
    with frozen_network(t.network):
        return t.module("unembed")(t.module("final_norm")(t.detached()[point]))


def _log_probs(t: Recording, point: str) -> Tensor:
    logits = lens_logits(t, point)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _targets(t: Recording, target: str | int | None) -> Tensor:
    """The id to follow at each position [b, i], -1 where there is none."""
    if target is not None:
        return torch.full_like(t.ids, t.token_id(target)).masked_fill(~t.inputs.real, -1)
    if t.architecture.attention.mask == "bidirectional":
        return t.ids.masked_fill(~t.inputs.real, -1)
    following = F.pad(t.ids[:, 1:], (0, 1), value=-1)
    return following.masked_fill(~F.pad(t.inputs.real[:, 1:], (0, 1)), -1)


def _layer_prediction(here: Tensor, last: Tensor, wanted: Tensor, k: int) -> tuple[Tensor, ...]:
    """Top tokens and their probabilities, the target's probability and rank, entropy, and KL to the end."""
    best = here.topk(min(k, here.size(-1)), dim=-1)
    at = here.gather(-1, wanted.clamp(min=0)[..., None])
    rank = (here > at).sum(-1).masked_fill(wanted < 0, -1)
    entropy = -(here.exp() * here).sum(-1)
    kl = (last.exp() * (last - here)).sum(-1)
    return best.indices, best.values.exp(), at[..., 0].exp().masked_fill(wanted < 0, torch.nan), rank, entropy, kl
