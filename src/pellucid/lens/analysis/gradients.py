"""Gradients of a metric with respect to the tensors of a recording."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pellucid.lens.analysis.metrics import Metric
from pellucid.lens.core.forward import frozen_network, run_forward
from pellucid.lens.core.recording import Recording
from pellucid.model import Recorder
from pellucid.tensor_names import select


def gradient(
    t: Recording, metric: Metric | Callable[[Tensor], Tensor], patterns: str | Sequence[str]
) -> dict[str, Tensor]:
    """d metric(logits) / d tensor for every tensor that the patterns choose, by full name.

    `metric` is one of `pellucid.lens.analysis.metrics`, or maps logits [b, n, v] to a number or to one number
    for each row; the numbers of the rows are summed. The pass is run again, with the edits of `t`; each tensor's
    gradient is taken after its edits have been made. Weights need not require gradients.
    """
    measured = metric.of(t) if isinstance(metric, Metric) else metric
    chosen = select(patterns, t.architecture)
    shifts: dict[str, Tensor] = {}

    def shifted(name: str) -> Callable[[Tensor], Tensor]:
        def shift(x: Tensor) -> Tensor:
            shifts[name] = torch.zeros_like(x, requires_grad=True)
            return x + shifts[name]

        return shift

    edits = {name: list(changes) for name, changes in t.functions.items()}
    for name in chosen:
        edits.setdefault(name, []).append(shifted(name))
    with frozen_network(t.network, grad=True):
        value = measured(run_forward(t.module(""), t.inputs, Recorder(edits=edits))).sum()
        slopes = torch.autograd.grad(value, [shifts[name] for name in chosen], materialize_grads=True)
    return dict(zip(chosen, slopes, strict=True))


def saliency(t: Recording, metric: Metric | Callable[[Tensor], Tensor], name: str = "embed") -> Tensor:
    """Gradient x input, summed over each position's coordinates [b, i] (Denil et al. 2014).

    `metric` is as for `gradient`. To first order this is the loss of the metric if the tensor were 0 there.
    """
    full = t.full_name(name)
    return (t.detached()[full] * gradient(t, metric, full)[full]).sum(-1)
