"""How evenly the positions of a pass use the experts, and the loss that evens it out (Fedus et al. 2021, Switch)."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.model import Recorder, Transformer
from pellucid.model.shapes import ExpertWeights
from pellucid.tensor_names import names


def expert_shares(r: ExpertWeights, k: int) -> Float[Tensor, " expert"]:
    """The share of the choices that each expert has, when every position chooses the k largest entries of r."""
    is_chosen = torch.zeros_like(r, dtype=torch.bool).scatter(-1, r.detach().topk(k).indices, True)
    return is_chosen.flatten(0, -2).sum(0) / (r[..., 0].numel() * k)


def balance(r: ExpertWeights, shares: Float[Tensor, " expert"]) -> Float[Tensor, ""]:
    """n_experts sum_e f_e P_e, with f_e the shares and P_e the mean of softmax(r)_e: 1 where the use is even

    Fedus et al. 2021, equations (4) to (6). With k choices Mixtral's code gives k times this, and takes all layers as
    one; here the mean over the layers is taken.
    """
    return r.size(-1) * (shares * r.float().softmax(-1).flatten(0, 1).mean(0)).sum()


class ExpertUse:
    """Adds `coefficient` times the balance of each pass to its loss, and keeps the figures of a step.

    The balance of a pass is weighted with its scored targets, so that passes add up to a step as their losses do.
    """

    def __init__(self, network: Transformer, coefficient: float):
        a = network.architecture
        self.coefficient, self.k = coefficient, a.mlp.experts_per_token
        self.names = [name for name in names(a) if name.endswith(".mlp.router") and not name.startswith("encoder.")]
        self.passes: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, objective: Callable[..., Tensor], network: Transformer, batch: Any, n_scored: Tensor) -> Tensor:
        """The loss of the pass, and its balance."""
        recorder = Recorder(self.names, grad=self.coefficient > 0)
        loss = objective(network, batch, recorder)
        logits = [recorder.values[name] for name in self.names]
        shares = torch.stack([expert_shares(r, self.k) for r in logits])
        value = torch.stack([balance(r, share) for r, share in zip(logits, shares, strict=True)]).mean()
        added = self.coefficient * n_scored * value
        if torch.is_grad_enabled():
            self.passes.append((added.detach(), value.detach(), shares))
        return loss + added

    def take_figures(self) -> dict[str, Tensor]:
        """Of the passes since the last call: what was added to the loss, and the mean balance and shares."""
        added, values, shares = map(torch.stack, zip(*self.passes, strict=True))
        self.passes.clear()
        mean = shares.mean(0)
        return {"added": added.sum(), "balance": values.mean(), "least_used": mean.min(), "most_used": mean.max()}
