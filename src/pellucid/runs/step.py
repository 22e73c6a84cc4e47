"""One training step: the gradient of a batch, in one or more passes, its clipping, and the update of the weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pellucid.runs.gradients import clip
from pellucid.runs.optimizer import Optimizer
from pellucid.runs.trainable import Trainable, TrainingBatch


def training_step(
    trainable: Trainable[Any], optimizer: Optimizer, batches: Iterable[TrainingBatch], n_passes: int
) -> dict[str, Tensor] | None:
    """Update the weights by the gradient of `batches`, one for each of `n_passes`, and return the step's figures.

    They are the mean loss in nats per target, the norm of the gradient before clipping, whether one of the two is not
    finite (`bad`; then no weight changes), and those of `Trainable.step_figures`. None, without an update, where
    `batches` ends early.
    """
    figures = take_passes(trainable, optimizer, batches, n_passes)
    return figures and update(trainable, optimizer, figures)


def take_passes(
    trainable: Trainable[Any], optimizer: Optimizer, batches: Iterable[TrainingBatch], n_passes: int
) -> dict[str, Tensor] | None:
    """Forward and backward: the gradient is left in the parameters. Returns the loss in this process, and further
    figures; None where `batches` ends early.
    """
    optimizer.zero_grad()
    loss, n_taken, n_targets = torch.zeros((), device=next(trainable.network.parameters()).device), 0, 1
    for batch in batches:
        n_taken, n_targets = n_taken + 1, batch.total or trainable.recipe.tokens_per_step
        with trainable.processes.accumulating(is_last=n_taken == n_passes):
            share = trainable.loss(batch) / n_targets
            share.backward()
        loss += share.detach()
    if n_taken < n_passes:
        return None
    figures = trainable.step_figures()
    if "added" in figures:
        loss -= figures.pop("added") / n_targets
    return {"loss": loss} | figures


def update(trainable: Trainable[Any], optimizer: Optimizer, figures: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clip the gradient and update the weights, unless loss or gradient is not finite; the figures of the step."""
    loss = trainable.processes.summed(figures.pop("loss"))
    norm = clip(trainable.network.parameters(), trainable.recipe.train.clip, trainable.processes)
    bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
    optimizer.step(bad)
    return {"loss": loss, "grad_norm": norm, "bad": bad} | figures
