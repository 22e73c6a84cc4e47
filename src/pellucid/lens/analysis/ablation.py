"""Ablation: the metric without each head, or without each block's attention or MLP."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.analysis.patching import MOST_ENTRIES
from pellucid.lens.analysis.steering import check_has_mean
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError, InputOptions, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, show
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model import Recorder
from pellucid.tensor_names import axes
from pellucid.text_model import Model


@dataclass(frozen=True, repr=False)
class Ablation(PrintsAsTable):
    """The metric with each part ablated, `values` [layer] or [layer, head], averaged over the texts.

    baseline  the metric of the untouched model
    effect    values - baseline
    """

    site: str
    kind: str
    metric: str
    baseline: float
    layers: list[int]
    values: Tensor

    @property
    def effect(self) -> Tensor:
        return self.values - self.baseline

    def printed(self) -> PrintedTable:
        """The ablated parts, the largest effect first."""
        indices = itertools.product(*map(range, self.values.shape))
        rows = [
            (".".join(str(k) for k in (self.layers[layer], *head)), float(value), float(value) - self.baseline)
            for (layer, *head), value in zip(indices, self.values.flatten(), strict=True)
        ]
        rows.sort(key=lambda row: -abs(row[-1]))
        heading = f"{self.metric} with {self.site} ablated ({self.kind}); {self.baseline:.3f} without"
        place = "layer.head" if self.values.dim() == 2 else "layer"
        return PrintedTable(heading, (place, "metric", "effect"), rows, ".values has all, .show() is a page")

    def show(self) -> Figure:
        """The effect of each part as a picture."""
        return show(self)


def ablate(
    model: Model,
    texts: Texts,
    metric: Metric,
    *,
    site: str = "attn.z",
    kind: Literal["zero", "mean", "resample"] = "mean",
    layers: Sequence[int] | None = None,
    reference: Texts | None = None,
    **options: Unpack[InputOptions],
) -> Ablation:
    """Ablate one part at a time, at every position, and measure the metric.

    site       attn.z is ablated head by head; attn_out, mlp_out, mlp.post, ... block by block
    kind       zero; mean: the mean over the positions of `reference`; resample: the values of another text, which is
               row b of `reference` or, without one, the text before
    reference  texts to take means or samples from; the texts themselves unless given

    Zero gives the model inputs that it never had in training; mean and resample less so. Scores that the mask hides
    (-inf) stay so. Raises InputError, also for the mean of scores and patterns, whose rows differ in length.
    """
    if kind not in ("zero", "mean", "resample"):
        raise InputError(f"kind = {kind!r}: expected zero, mean or resample")
    chosen = list(range(model.architecture.n_layers)) if layers is None else list(layers)
    names = [f"blocks.{layer}.{site}" for layer in chosen]
    t = Recording(model, read_inputs(model, texts, **options))
    names = [t.full_name(name) for name in names]
    if kind == "mean":
        for name in names:
            check_has_mean(name)
    other = t if reference is None else Recording(model, read_inputs(model, reference, **options))
    if kind == "resample" and other is t and len(t.inputs.lengths) < 2:
        raise InputError("resample takes the values of another text: give at least two texts, or a reference")
    if kind == "resample" and len({n for x in (t, other) for name in names for n in x.inputs_of(name).lengths}) > 1:
        raise InputError(
            "resample takes the values of another text at the same position: give texts with equal numbers of tokens"
        )
    prepared = PreparedMetric(metric, t)
    with frozen_network(model.network):
        parts = [_layer(t, prepared, name, _substitute(t, other, name, kind)) for name in names]
        values = torch.stack(parts) if parts else t.stream().new_zeros(0)
    return Ablation(site, kind, metric.name, float(prepared(t.logits.detach()).mean()), chosen, values)


def _substitute(t: Recording, other: Recording, name: str, kind: str) -> Tensor:
    """The replacement of the tensor, to be broadcast against it."""
    x = other[name]
    if kind == "zero":
        return torch.zeros_like(x[:1, ..., :1, :])
    if kind == "resample":
        rows = torch.arange(t.ids.size(0), device=x.device)
        return x[(rows - 1) % x.size(0)] if other is t else x[rows % x.size(0)]
    by_position = x.movedim(axes(name).index("i" if "i" in axes(name) else "j"), 1)
    mean = by_position[other.inputs_of(name).real].mean(0)
    return mean[None, :, None] if x.ndim == 4 else mean[None, None]


def _layer(t: Recording, metric: PreparedMetric, name: str, value: Tensor) -> Tensor:
    """The metric without each head of one tensor, or without the tensor, averaged over the rows [] or [head]."""
    letters, layer, n_rows = axes(name), int(name.split(".")[1]), t.ids.size(0)
    by_head = letters[1] in "hg"
    heads = list(range(t[name].size(1))) if by_head else [0]
    widest = max(t.architecture.d_ff, t.architecture.d_model) * t.ids.numel()
    at_once, metrics = max(1, MOST_ENTRIES // widest), []
    for first in range(0, len(heads), at_once):
        some = heads[first : first + at_once]

        def put(x: Tensor, some: list[int] = some) -> Tensor:
            ablated = x.clone()
            for k, head in enumerate(some):  # the rows of one text are adjacent, one for each head
                rows = ablated[k :: len(some)]
                if by_head:
                    rows[:, head] = value[:, head] if value.size(1) > 1 else value[:, 0]
                else:
                    rows[:] = value
            # whatever the scores become, no query reads a key that the mask hides
            return torch.where(x == -torch.inf, x, ablated) if name.endswith(".scores") else ablated

        x = t[f"blocks.{layer}.resid_pre"].repeat_interleave(len(some), 0)
        tap, reading = Recorder(edits={name: [put]}), t.passes[""].repeated(len(some))
        for l in range(layer, t.architecture.n_layers):
            x = t.passes[""].block(l, x, tap, reading)
        rows = torch.arange(n_rows, device=x.device).repeat_interleave(len(some))
        metrics.append(metric.of_stream(x, rows).view(n_rows, len(some)).mean(0))
    return torch.cat(metrics) if by_head else metrics[0][0]
