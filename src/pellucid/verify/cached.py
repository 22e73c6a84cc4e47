"""Read a text through a cache in pieces, and join its tensors as if it had been read at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.model import Cache, Recorder, Transformer
from pellucid.tensor_names import axes
from pellucid.verify.cases import single_text
from pellucid.verify.comparison import Subject
from pellucid.verify.long_row import Compute, engine_computation, first_difference
from pellucid.verify.report import Difference

#: the value in the joined tensors where a piece has no column for a later key
MASKED_VALUE = {"scores": -torch.inf, "pattern": 0.0}


def compare_cached(s: Subject, tokens: Tensor, sizes: Sequence[int]) -> tuple[Difference | None, float]:
    """Compare a text read in pieces of these sizes with the text read at once.

    Returns the first tensor that differs and the distance of the streams, as `first_difference`.
    """
    return first_difference(
        s.a, cached_computation(s.exact, tokens, sizes), engine_computation(s.exact, single_text(s.a, tokens))
    )


def cached_computation(network: Transformer, tokens: Tensor, sizes: Sequence[int]) -> Compute:
    """The named tensors of a text [1, n] that is read through a cache, in pieces of these sizes."""

    def compute(keep: Iterable[str]) -> Mapping[str, Any]:
        names, n = tuple(keep), tokens.size(1)
        inputs, encoded = dict(single_text(network.architecture, tokens).inputs), Recorder(names)
        cache, start = Cache(network.architecture, capacity=n, dtype=torch.float64), 0
        pieces: list[Mapping[str, Tensor]] = []
        with torch.no_grad():
            if "source" in inputs:
                inputs["source"] = network.encode(inputs["source"], tap=encoded)
            for size in filter(None, sizes):
                piece, recorder = slice(start, start + size), Recorder(names)
                kinds = {name: value[:, piece] for name, value in inputs.items() if name == "segments"}
                network(tokens[:, piece], cache=cache, tap=recorder, **inputs | kinds)
                pieces.append(recorder.values)
                start += size
        decoder = {name: _joined(name, [p[name] for p in pieces], n) for name in names if name in pieces[0]}
        return encoded.values | decoder

    return compute


def _joined(name: str, pieces: Sequence[Tensor], n: int) -> Tensor:
    """Join the pieces of a tensor into that of the whole text of n tokens."""
    order, kind = axes(name), name.rpartition(".")[2]
    if ".cross." in name and "i" not in order:
        return pieces[-1]  # keys and values of the source, which the cache holds since the first piece
    if kind in MASKED_VALUE and ".cross." not in name:
        pieces = [F.pad(piece, (0, n - piece.size(-1)), value=MASKED_VALUE[kind]) for piece in pieces]
    return torch.cat(list(pieces), order.index("i" if "i" in order else "j"))
