"""The logit lens: the prediction that the network would make if it ended at a point of the stream."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.lens.analysis.attribution import points_of_stream
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording


@dataclass(frozen=True)
class Lens:
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


def logit_lens(t: Recording, *, mid: bool = True, target: str | int | None = None, k: int = 5) -> Lens:
    """Compute logits at every point of the stream: the final norm with the scale at that point, then the readout.

    mid     also between attention and MLP, where a block has such a point
    target  a token to follow; the next token of the text unless given (the token itself for a masked model)

    nostalgebraist 2020; S4 "Deep Architecture". At the last point this is the network's own output, bit for bit.
    """
    points = points_of_stream(t, mid)
    if not points:
        raise InputError("n_layers = 0: the stream has no points before the end")
    wanted = _targets(t, target)
    last = _log_probs(t, points[-1])
    rows = [_read(_log_probs(t, point), last, wanted, k) for point in points]
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    return Lens(points, columns[0], columns[1], wanted, *columns[2:])


def lens_logits(t: Recording, point: str) -> Tensor:
    """The logits that the readout gives at a point of the stream [b, i, v]."""
    with frozen_network(t.network):
        return t.network.unembed(t.network.final_norm(t[point]))


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


def _read(here: Tensor, last: Tensor, wanted: Tensor, k: int) -> tuple[Tensor, ...]:
    """Top tokens and their probabilities, the target's probability and rank, entropy, and KL to the end."""
    best = here.topk(min(k, here.size(-1)), dim=-1)
    at = here.gather(-1, wanted.clamp(min=0)[..., None])
    rank = (here > at).sum(-1).masked_fill(wanted < 0, -1)
    entropy = -(here.exp() * here).sum(-1)
    kl = (last.exp() * (last - here)).sum(-1)
    return best.indices, best.values.exp(), at[..., 0].exp().masked_fill(wanted < 0, torch.nan), rank, entropy, kl
