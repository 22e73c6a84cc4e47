"""The logit lens as panels show it."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pellucid.lens.analysis.attribution import points_of_stream
from pellucid.lens.analysis.logit_lens import Lens, lens_points
from pellucid.lens.core.recording import Recording

#: what a cell of the lens grid can show, each with its unit; the order of the array `stats`
LENS_STATS = {
    "probability": "of the likeliest token",
    "rank": "of the target, 0 for the likeliest",
    "kl": "bits to the final prediction",
    "entropy": "bits",
    "surprisal": "bits of the target",
}


def lens_grid(
    t: Recording, *, mid: bool = True, target: str | int | None = None, k: int = 10, row: int = 0
) -> Iterator[dict[str, Any]]:
    """The logit lens at every point and position of one text: {"done", "of"} after each point, then the panel, with
    `arrays`.

    stats          [stat, point, i] in the order of LENS_STATS; nan where there is no target
    ids            the k likeliest tokens [point, i, k], whose texts are in `words`
    probabilities  theirs [point, i, k]
    """
    n, n_points = t.inputs.lengths[row], len(points_of_stream(t, mid))
    read: list[Lens] = []
    for point in lens_points(t, mid=mid, target=target, k=k):
        read.append(point)
        yield {"done": len(read), "of": n_points}
    arrays = {
        "stats": torch.stack([_stats(point, row)[:, :n] for point in read], 1),
        "ids": torch.stack([point.tokens[0, row, :n] for point in read]).int(),
        "probabilities": torch.stack([point.probabilities[0, row, :n] for point in read]),
    }
    wanted = read[0].target[row, :n].tolist()
    used = {*arrays["ids"].flatten().tolist(), *(i for i in wanted if i >= 0)}
    argument = "" if target is None else f", target={target!r}"
    yield {
        "points": [point.points[0] for point in read],
        "tokens": t.spelled(row),
        "target": [i if i >= 0 else None for i in wanted],
        "words": {str(i): t.spell(i) for i in sorted(used)},
        "stats": LENS_STATS,
        "code": f"lens = trace.lens(mid={mid}{argument}, k={k})",
        "not_shown": "Each point is read as if it were the last: early layers need not write in the directions that "
        "the readout reads.",
        "arrays": arrays,
    }


def _stats(lens: Lens, row: int) -> Tensor:
    """The numbers of LENS_STATS at one point, for one row [stat, i]."""
    bits, has_target = math.log(2), lens.rank[0, row] >= 0
    rank = lens.rank[0, row].to(lens.kl.dtype).masked_fill(~has_target, math.nan)
    surprisal = -lens.probability[0, row].log2()
    kl, entropy = lens.kl[0, row].clamp(min=0) / bits, lens.entropy[0, row] / bits
    return torch.stack([lens.probabilities[0, row, :, 0], rank, kl, entropy, surprisal])
