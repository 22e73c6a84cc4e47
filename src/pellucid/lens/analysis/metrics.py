"""Metrics of experiments: a number for each row, computed from the logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A number for each row of a batch; made by the functions below.

    name     the label in results
    pos      the position whose logits it reads, negative from the row's end; None: all of them
    prepare  from the trace of the rows, makes the function of logits [row, v] (or [row, i, v]) and row numbers
    own      what of this trace the logits are compared with: its tokens, its logits, or "" for nothing
    """

    name: str
    pos: int | None
    prepare: Callable[[Recording], Measure]
    own: Literal["", "tokens", "logits"] = ""

    def of(self, t: Recording) -> "PreparedMetric":
        """The metric of the rows of a trace: a function of logits [b, n, v]."""
        return PreparedMetric(self, t)


class PreparedMetric:
    """A metric of certain rows: it has their ids, their lengths, and the ids of its tokens."""

    def __init__(self, metric: Metric, t: Recording):
        if not isinstance(metric, Metric):
            raise InputError(
                f"expected a metric of pellucid.lens.analysis.metrics, such as logit_diff(one, other), got "
                f"{type(metric).__name__}: apply_metric(f) makes one of a function of logits"
            )
        self.metric, self.t = metric, t
        self.measure = metric.prepare(t)
        self.places: Tensor | None = None
        if metric.pos is not None:
            rows = range(len(t.inputs.lengths))
            self.places = torch.tensor([t.position(metric.pos, row) for row in rows], device=t.ids.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """The metric from the logits of all rows, [b, n, v] -> [b]."""
        rows = torch.arange(logits.size(0), device=logits.device)
        return self.measure(_precise(logits if self.places is None else logits[rows, self.places]), rows)

    def of_stream(self, x: Tensor, rows: Tensor, start: int = 0) -> Tensor:
        """The metric from streams after the last block, [r, n - start, m] -> [r]; row r belongs to the trace's row
        rows[r].

        x has no positions before `start`. Logits are computed only at the positions that the metric reads.
        """
        final_norm, unembed = self.t.module("final_norm"), self.t.module("unembed")
        if self.places is None:
            return self.measure(_precise(unembed(final_norm(x))), rows)
        at = torch.arange(x.size(0), device=x.device)
        chosen = x[at, self.places[rows] - start][:, None]
        return self.measure(_precise(unembed(final_norm(chosen))[:, 0]), rows)


def _precise(logits: Tensor) -> Tensor:
    """The logits in float32 or better: in bfloat16 a logarithm of a softmax, or a sum, has two digits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def logit_diff(one: str | int, other: str | int, pos: int = -1) -> Metric:
    """logit(one) - logit(other) at a position."""

    def prepare(t: Recording) -> Measure:
        a, b = t.token_id(one), t.token_id(other)
        return lambda logits, rows: logits[..., a] - logits[..., b]

    return Metric(f"logit of {one!r} - logit of {other!r}", pos, prepare)


def logit(token: str | int, pos: int = -1) -> Metric:
    """The logit of a token at a position."""

    def prepare(t: Recording) -> Measure:
        a = t.token_id(token)
        return lambda logits, rows: logits[..., a]

    return Metric(f"logit of {token!r}", pos, prepare)


def probability(token: str | int, pos: int = -1) -> Metric:
    """P(token) at a position."""

    def prepare(t: Recording) -> Measure:
        a = t.token_id(token)
        return lambda logits, rows: logits.softmax(-1)[..., a]

    return Metric(f"probability of {token!r}", pos, prepare)


def log_probability(token: str | int, pos: int = -1) -> Metric:
    """log P(token) at a position, nats."""

    def prepare(t: Recording) -> Measure:
        a = t.token_id(token)
        return lambda logits, rows: logits.log_softmax(-1)[..., a]

    return Metric(f"log probability of {token!r}", pos, prepare)


def kl(to: Recording | None = None, pos: int = -1) -> Metric:
    """sum_v P_to log(P_to / P) at a position, nats; `to` is a trace with as many rows.

    Without `to` it is the run itself: in an experiment the run before its change, which is the corrupt run in `patch`
    and the clean run in `path_patch`.
    """

    def prepare(t: Recording) -> Measure:
        other = t if to is None else to
        if len(other.inputs.lengths) != len(t.inputs.lengths):
            raise InputError(f"KL to a trace of {len(other.inputs.lengths)} rows from {len(t.inputs.lengths)} rows")
        indices = [other.position(pos, row) for row in range(len(other.inputs.lengths))]
        reference = torch.stack([other.logits[row, position] for row, position in enumerate(indices)])
        expected = _precise(reference.detach()).log_softmax(-1)

        def measure(logits: Tensor, rows: Tensor) -> Tensor:
            return (expected[rows].exp() * (expected[rows] - logits.log_softmax(-1))).sum(-1)

        return measure

    return Metric("KL from the reference", pos, prepare, "logits" if to is None else "")


def loss() -> Metric:
    """The mean -log P of each row's tokens after the first, or after its prefix, nats.

    An experiment scores all its runs on the tokens of the run that it changes, so that their losses differ by what the
    network says alone: those of the corrupt text in `patch`, and of the clean text in `path_patch`. The other run's
    loss on its own text is `trace(text).loss`. Raises InputError for texts without a token that is predicted.
    """

    def prepare(t: Recording) -> Measure:
        if t.architecture.attention.mask == "bidirectional":
            raise InputError("attention.mask = bidirectional: there is no next-token loss; use log_probability")
        ids, predicted = t.ids, t.inputs.predicted
        if (empty := ~predicted.any(1)).any():
            raise InputError(
                f"text {int(empty.nonzero()[0])} has no token that is predicted from others before it, so it has no "
                "loss: give texts of two tokens or more, with one after the prefix"
            )

        def measure(logits: Tensor, rows: Tensor) -> Tensor:
            log_p = logits[:, :-1].log_softmax(-1).gather(-1, ids[rows, 1:, None])[..., 0]
            counts = predicted[rows]
            return -torch.where(counts, log_p, 0).sum(1) / counts.sum(1)

        return measure

    return Metric("loss", None, prepare, "tokens")


def apply_metric(of: Callable[[Tensor], Tensor], pos: int | None = -1, name: str = "") -> Metric:
    """A custom metric: `of` maps the logits of a position [row, v] to a number for each row [row].

    With pos=None its argument has all positions [row, i, v], including padding.
    """
    return Metric(name or getattr(of, "__name__", "measure"), pos, lambda t: lambda logits, rows: of(logits))
