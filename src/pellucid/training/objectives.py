"""What is predicted from what. The shift between inputs and targets belongs here, not to the model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from pellucid.model import Transformer
from pellucid.model.mask import documents_mask
from pellucid.model.shapes import Logits, Tokens, Visible


@dataclass(frozen=True)
class Pass:
    """What one pass reads: `targets` are `inputs` one token later, each [batch, pos].

    `documents` and `positions`, one number per position, are there where nothing is read across the
    border of two documents; `counts` where not every target is scored.
    """

    inputs: Tokens
    targets: Tokens
    documents: Tokens | None = None
    positions: Tokens | None = None
    counts: Visible | None = None


Loss = Callable[[Pass], Tensor]


def logits_of(network: Transformer, given: Pass) -> Logits:
    """The network's logits, read inside documents where the pass has their borders."""
    mask = None if given.documents is None else documents_mask(given.documents)
    return network(given.inputs, mask=mask, positions=given.positions)


def next_token_loss(network: Transformer, given: Pass) -> Float[Tensor, ""]:
    """Sum over all positions of -log P(target | inputs up to it), in nats (S4, empirical risk).

    The sum, not the mean: passes of different sizes add up to the large batch.
    """
    flat = logits_of(network, given).flatten(0, 1)
    return F.cross_entropy(at_least_float32(flat), given.targets.flatten(), reduction="sum")


def token_losses(network: Transformer, given: Pass) -> Float[Tensor, "batch pos"]:
    """-log P(target) at every position, in nats."""
    flat = logits_of(network, given).flatten(0, 1)
    losses = F.cross_entropy(at_least_float32(flat), given.targets.flatten(), reduction="none")
    return losses.unflatten(0, given.targets.shape)


def at_least_float32(x: Tensor) -> Tensor:
    """Sums over a vocabulary lose their digits in bfloat16."""
    return x.float() if x.dtype == torch.bfloat16 else x


def precise(network: Transformer, device: torch.device, precision: str) -> Loss:
    """The loss of `network` in the precision of the recipe; weights stay float32."""

    def loss(given: Pass) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return next_token_loss(network, given)

    return loss
