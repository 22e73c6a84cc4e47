"""Directions in the stream: differences of means for steering, and probes with their baselines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from pellucid.lens.core.inputs import InputError, InputOptions, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.tensor_names import axes
from pellucid.text_model import Model

#: candidate ridge penalties, times the mean squared singular value of the activations
PENALTIES = tuple(10.0**k for k in range(-6, 4))


def activations(
    model: Model,
    texts: Texts,
    name: str,
    pos: int | Literal["mean"] = -1,
    at_once: int = 32,
    **options: Unpack[InputOptions],
) -> Tensor:
    """A vector for each text: a tensor at one position, or its mean over the positions [text, m]."""
    rows = []
    for t in _recordings(model, texts, at_once, options):
        full = t.full_name(name)
        if len(axes(full)) != 3:
            raise InputError(f"{full} has axes {' '.join(axes(full))}: expected one vector for each position")
        x = t[full]
        for row, n in enumerate(t.inputs_of(full).lengths):
            rows.append(x[row, :n].mean(0) if pos == "mean" else x[row, t.position(pos, row, full)])
    return torch.stack(rows)


def mean_activation(
    model: Model,
    texts: Texts,
    at: str,
    at_once: int = 32,
    **options: Unpack[InputOptions],
) -> Tensor:
    """The mean of a tensor over every position of every text of a data set, without padding.

    Its batch and position axes have length 1, so that it can be the value of an edit: `edits.mean(at, over=mean)`.
    Raises InputError for scores and patterns, whose rows have a different length at each position, and for the loss.
    """
    total, count = torch.zeros(()), 0
    for t in _recordings(model, texts, at_once, options):
        full = t.full_name(at)
        check_has_mean(full)
        if full == "loss":
            raise InputError("the loss is no tensor that an edit changes: its mean over a text is trace(text).loss")
        inputs = t.inputs_of(full)
        rows = t[full].movedim(next(k for k, letter in enumerate(axes(full)) if letter in "ij"), 1)
        # sums are taken in float64, which MPS lacks
        total, count = total + rows[inputs.real].cpu().double().sum(0), count + sum(inputs.lengths)
    weight = model.network.embed.token.weight
    mean = (total / count).to(weight.dtype).to(weight.device)
    return mean[None, :, None] if mean.ndim == 2 else mean[None, None]


def check_has_mean(full: str) -> None:
    """Raise InputError for scores and patterns, which have no mean over positions."""
    letters = axes(full)
    if {"i", "j"} <= {*letters}:
        raise InputError(f"{full} has axes {' '.join(letters)}: its rows differ in length, so they have no mean")


def _recordings(model: Model, texts: Any, at_once: int, options: InputOptions) -> Iterator[Recording]:
    """Recordings of the texts, `at_once` at a time, each with the options that belong to its texts."""
    listed: Any = [texts] if isinstance(texts, str) else texts.tolist() if isinstance(texts, Tensor) else list(texts)
    if listed and not isinstance(listed[0], str | list | tuple | Tensor):
        listed = [listed]
    for first in range(0, max(len(listed), 1), at_once):
        span = slice(first, first + at_once)
        here: dict[str, Any] = {**options}
        here |= {name: x[span] for name, x in here.items() if _has_entry_per_text(name, x, len(listed))}
        yield Recording(model, read_inputs(model, listed[span], **here))


def _has_entry_per_text(name: str, value: Any, n: int) -> bool:
    """Whether an option has an entry for each of n texts: sources as texts or rows of ids, lengths of prefixes."""
    if not isinstance(value, list | tuple | Tensor) or len(value) != n:
        return False
    return name in ("prefix", "segments") or (name == "source" and isinstance(value[0], str | list | tuple | Tensor))


def direction(
    model: Model,
    towards: Texts,
    away: Texts,
    at: str,
    pos: int | Literal["mean"] = -1,
    at_once: int = 32,
    **options: Unpack[InputOptions],
) -> Tensor:
    """mean(activations of `towards`) - mean(activations of `away`) [m]: the vector to steer by.

    `edits.add(at, direction, factor=...)` steers, in a trace and while text is generated (Turner et al. 2023; Marks
    and Tegmark 2023). The options are those of `activations`.
    """
    one, other = (activations(model, texts, at, pos, at_once, **options) for texts in (towards, away))
    return one.mean(0) - other.mean(0)


@dataclass(frozen=True, repr=False)
class Probe(PrintsAsTable):
    """A ridge regression from activations to labels or numbers, with its scores.

    classes   the labels in order, empty for numbers; `weights` [class or 1, m], `bias` [class or 1]
    penalty   chosen by leave-one-out error on the training part
    trained   accuracy (R^2 for numbers) on the part that it was fitted on
    held_out  the same on the part that it was not fitted on
    shuffled  held-out scores of probes that were fitted to shuffled labels: the baseline
    """

    classes: list[Any]
    weights: Tensor
    bias: Tensor
    penalty: float
    trained: float
    held_out: float
    shuffled: list[float]

    def printed(self) -> PrintedTable:
        """The scores, and that of probes of shuffled labels."""
        score = "accuracy" if self.classes else "R^2"
        rows = [("training part", self.trained), ("held out", self.held_out)]
        rows += [("held out, shuffled labels", sum(self.shuffled) / len(self.shuffled))] if self.shuffled else []
        of = f"{len(self.classes)} classes" if self.classes else "numbers"
        return PrintedTable(f"linear probe for {of}, penalty {self.penalty:.3g}", ("part", score), rows)

    def predict(self, x: Tensor) -> Any:
        """The label, or the number, for each row of x [n, m]."""
        values = x.detach().cpu().double() @ self.weights.T + self.bias
        return [self.classes[int(k)] for k in values.argmax(1)] if self.classes else values[:, 0]


def probe(
    model: Model,
    texts: Texts,
    targets: Sequence[Any] | Tensor,
    at: str,
    *,
    pos: int | Literal["mean"] = -1,
    held_out: float = 0.3,
    shuffles: int = 5,
    seed: int = 0,
    **options: Unpack[InputOptions],
) -> Probe:
    """Fit a ridge regression from a tensor of each text (`activations`) to targets, one for each text (`fit_probe`)."""
    x = activations(model, texts, at, pos, **options)
    return fit_probe(x, targets, held_out=held_out, shuffles=shuffles, seed=seed)


def fit_probe(
    x: Tensor, targets: Sequence[Any] | Tensor, *, held_out: float = 0.3, shuffles: int = 5, seed: int = 0
) -> Probe:
    """Fit a ridge probe on activations x [n, m], and measure it on held-out rows.

    targets   labels (text, whole numbers, booleans), one of several classes; or numbers, where any of them is a
              floating-point one

    Equal rows, such as those of one text given twice, are held out together, count as one where the penalty is chosen,
    and have one label in the baseline: else a probe that has only learned them by heart would seem to know.

    Alain and Bengio 2016; the shuffled baseline as in Hewitt and Liang 2019. Raises InputError for too few different
    rows, and for targets that are neither labels alone nor numbers alone.
    """
    listed = targets.tolist() if isinstance(targets, Tensor) else targets
    values = [target.item() if isinstance(target, Tensor | np.generic) else target for target in listed]
    if len(values) != len(x) or len(values) < 4 or not 0 < held_out < 1:
        raise InputError(f"{len(x)} rows with {len(values)} targets, {held_out} held out: expected 4 or more of each")
    classes = _classes(values)
    if len(classes) == 1:
        raise InputError(f"every target is {classes[0]!r}: expected at least two classes")
    generator = torch.Generator().manual_seed(seed)
    rows, group = x.detach().cpu().double(), equal_rows(x)
    n_groups = int(group.max()) + 1
    if n_groups < 4:
        raise InputError(
            f"{len(x)} rows, of which {n_groups} are different: expected 4 or more different ones; at this place these "
            "texts have the same activations"
        )
    order = torch.randperm(n_groups, generator=generator)
    n_out = min(max(1, round(held_out * n_groups)), n_groups - 2)
    if not classes and n_out < 2:
        raise InputError(
            f"{held_out} of {n_groups} different rows is one held-out row, and the R^2 of numbers needs two: give more "
            "rows, or a larger held_out"
        )
    is_out = torch.isin(group, order[:n_out])
    out, into = is_out.nonzero().flatten(), (~is_out).nonzero().flatten()
    y = torch.tensor([[v == c for c in classes] if classes else [v] for v in values], dtype=torch.float64)
    weights, bias, penalty = _ridge(rows[into], y[into], group[into])
    baseline = []
    for _ in range(shuffles):
        members = into[torch.randperm(len(into), generator=generator)]
        a_member = torch.zeros(n_groups, dtype=torch.long).index_copy_(0, group[members], members)
        of_other = torch.zeros(n_groups, dtype=torch.long)
        of_other[order[n_out:]] = order[n_out:][torch.randperm(n_groups - n_out, generator=generator)]
        w, b, _ = _ridge(rows[into], y[a_member[of_other[group[into]]]], group[into])
        baseline.append(_score(rows[out] @ w.T + b, y[out], bool(classes)))
    trained, unseen = (_score(rows[part] @ weights.T + bias, y[part], bool(classes)) for part in (into, out))
    return Probe(classes, weights, bias, penalty, trained, unseen, baseline)


def equal_rows(x: Tensor) -> Tensor:
    """A number for each row of x [n, m], the same for rows that are equal but for rounding, in order from 0 [n].

    One text in two batches has activations that differ in their last bits.
    """
    rows = x.detach().cpu().double()
    eps = torch.finfo(x.dtype if x.is_floating_point() else rows.dtype).eps
    # distances are themselves rounded, to about 1e-7 of the lengths
    tolerance = min(max(32 * eps, 1e-6), 0.01) * rows.norm(dim=1).max()
    first = [(torch.cdist(some, rows) <= tolerance).byte().argmax(1) for some in rows.split(256)]
    return torch.cat(first).unique(return_inverse=True)[1]


def _classes(targets: list[Any]) -> list[Any]:
    """The distinct labels in order; none for numbers, which targets are where any of them is a floating-point one."""
    floating = [target for target in targets if isinstance(target, float)]
    if not floating:
        return sorted(set(targets), key=str)
    if labels := [target for target in targets if not isinstance(target, int | float)]:
        raise InputError(
            f"the targets hold the number {floating[0]!r} and the label {labels[0]!r}: expected labels alone, or "
            "numbers alone"
        )
    return []


def _ridge(x: Tensor, y: Tensor, group: Tensor) -> tuple[Tensor, Tensor, float]:
    """W [k, m], b [k] and the penalty with the least error where one group of equal rows is left out, all from one
    singular value decomposition.
    """
    mean_x, mean_y = x.mean(0), y.mean(0)
    # a group is one row with the root of its size as its weight: the fit is the same
    _, member, size_of = group.unique(return_inverse=True, return_counts=True)
    weight = size_of.double().sqrt()[:, None]
    x, y = (
        weight.new_zeros(len(weight), z.size(1)).index_add_(0, member, z - mean) / weight
        for z, mean in ((x, mean_x), (y, mean_y))
    )
    U, s, Vt = torch.linalg.svd(x, full_matrices=False)
    size, projected = float(s.square().mean()) or 1.0, U.T @ y
    best: tuple[float, float] = (torch.inf, 0.0)
    for penalty in PENALTIES:
        shrink = s.square() / (s.square() + penalty * size)
        fitted = U @ (shrink[:, None] * projected)
        leverage = (U.square() * shrink).sum(1, keepdim=True) + weight.square() / weight.square().sum()
        error = float(((y - fitted) / (1 - leverage).clamp(min=1e-9)).square().mean())
        best = min(best, (error, penalty))
    W = (Vt.T @ ((s / (s.square() + best[1] * size))[:, None] * projected)).T
    return W, mean_y - W @ mean_x, best[1]


def _score(predicted: Tensor, y: Tensor, labels: bool) -> float:
    """Accuracy, or the share of the variance explained."""
    if labels:
        return float((predicted.argmax(1) == y.argmax(1)).double().mean())
    return float(1 - (predicted - y).square().sum() / (y - y.mean(0)).square().sum())
