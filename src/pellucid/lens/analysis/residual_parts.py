"""The residual stream at one position, in parts too many to be kept for all: every neuron, every source token."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pellucid.lens.analysis.residual import (
    Decomposition,
    Write,
    by_head,
    decompose,
    down,
    edited_writes,
    module_of,
    norm_out,
    writes,
)
from pellucid.lens.core.inputs import InputError
from pellucid.lens.trace import Trace


def decompose_at(t: Trace, point: str | None, by: str, pos: int, row: int = 0) -> Decomposition:
    """The stream at a point and a position as the sum of what was written before it: `values` [part, m].

    neuron   every neuron of the last hidden layer of each MLP by itself, a_n W_out e_n (S4; Geva et al. 2021)
    source   every head by the token it read from, A_ij W_OV x_j (S0 (3.6); Elhage et al. 2021)

    Everything else that was written, and biases, are parts of their own. Raises InputError where an edit of z or of a
    head's result has made of a head what no source token accounts for.
    """
    end = None if point is None else t.full_name(point)
    prefix = "encoder." if end is not None and end.startswith("encoder.") else ""
    place = t.position(pos, row, end or "logits")
    if by in ("component", "head"):
        whole = decompose(t, point, by)
        return Decomposition(whole.point, whole.labels, whole.values[:, row, place])
    labels: list[str] = []
    values: list[Tensor] = []
    for w in writes(t, end, prefix):
        norms = [norm.at(row, place) for norm in w.norms]
        for label, pieces in _pieces(t, w, by, row, place):
            labels += [label] if pieces.ndim == 1 else [f"{label}{k}" for k in range(len(pieces))]
            x = pieces[None] if pieces.ndim == 1 else pieces
            for norm in norms:
                x = norm(x)
            values.append(x)
    return Decomposition(end or "the stream that is read out", labels, torch.cat(values))


def _pieces(t: Trace, w: Write, by: str, row: int, place: int) -> Iterator[tuple[str, Tensor]]:
    """One write as vectors [m], and as rows of vectors [k, m] that are numbered."""
    if by == "source" and w.name.endswith(("attn_out", "cross_out")):
        for label, value in (by_head(t, w.name) or {}).items():
            scope, _, head = label.rpartition(".head.")
            if scope:
                yield f"{label} <- ", norm_out(t, w.name).at(row, place)(_by_source(t, scope, int(head), row, place))
            else:
                yield label, value[row, place]
    elif by == "neuron" and w.name.endswith("mlp_out") and module_of(t, w.name.removesuffix("_out")).up:
        post, W_out, bias = down(t, w.name)
        mlp, norm = w.name.removesuffix("_out"), norm_out(t, w.name).at(row, place)
        neurons = norm(post[row, place, :, None] * W_out.T)
        rest = w.value()[row, place] - neurons.sum(0)
        yield f"{mlp}.neuron.", neurons
        for label, b in ((f"{mlp}.bias", None if bias is None else norm(bias)), (f"{w.name} (norm's bias)", norm.bias)):
            if b is not None:
                yield label, b
                rest = rest - b
        if edited_writes(t, w.name):
            yield f"{w.name} (edited)", rest
    else:
        yield w.name, w.value()[row, place]


def _by_source(t: Trace, scope: str, head: int, row: int, place: int) -> Tensor:
    """A_ij v_j W_O^T for every j [j, m]"""
    if any(e.name in (f"{scope}.z", f"{scope}.result") for e in t.edits):
        raise InputError(f"{scope} has an edited z or result, which no source token accounts for: ask by='head'")
    attention = module_of(t, scope)
    W_O = attention.out.weight.detach().unflatten(1, (-1, attention.d_head))[:, head]
    v = t[f"{scope}.v"][row, head // attention.group]
    return t[f"{scope}.pattern"][row, head, place, :, None] * (v @ W_O.T)
