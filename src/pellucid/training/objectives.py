"""What is predicted from what. The shift between inputs and targets belongs here, not to the model.

next-token     every token from those before it                       (GPT: Becker-Kahn 4.3; Radford et al. 2018)
prefix         every token behind a prefix that is read both ways     (Liu et al. 2018; Raffel et al. 2020)
masked         tokens that were hidden, from all the others           (Devlin et al. 2018)
source-target  a target's tokens from its source and those before it  (Sutskever et al. 2014; Vaswani et al. 2017)
chat           what an assistant writes, from the conversation before  (Ouyang et al. 2022, supervised fine-tuning)
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.model import Transformer
from pellucid.model.dropout import draw_by_sample
from pellucid.model.mask import documents_mask, padding_mask, prefix_mask
from pellucid.model.shapes import Logits, Samples, Tokens, Visible
from pellucid.model.tap import OFF, Tap
from pellucid.training.chunked_loss import chunked_loss
from pellucid.training.cross_entropy import UNSCORED, cross_entropy, is_likeliest
from pellucid.training.expert_use import ExpertUse

#: logits that exist at a time where a pass would have MANY_LOGITS or more, 32 MiB in float32: larger blocks are mapped
#: anew each time (docs/experiments/step-speed.md)
LOGITS_AT_ONCE = 2**23
#: logits from which on a pass computes them in chunks, 256 MiB in float32
MANY_LOGITS = 2**26
#: what a hidden token is replaced with, by share: the mask, a random token, itself (Devlin et al. 2018, 3.1)
HIDDEN_AS = (0.8, 0.1, 0.1)


@dataclass(frozen=True)
class MicroBatch:
    """What one pass reads and what it is to predict at each position, each [batch, pos].

    `documents` and `positions`, one number per position, are there where nothing is read across the
    border of two documents; `counts` where not every target is scored; `prefix`, one length per row, where
    a prefix is read both ways. `total` is how many targets the whole step scores, all of them unless given.
    `samples` are the numbers from which each row's dropout is drawn, None outside of training.
    `source`, [batch, source_pos], is what an encoder reads; `real` says which of it is not padding, None: all.
    """

    inputs: Tokens
    targets: Tokens
    documents: Tokens | None = None
    positions: Tokens | None = None
    counts: Visible | None = None
    prefix: Int[Tensor, " batch"] | None = None
    total: int | None = None
    source: Int[Tensor, "batch source_pos"] | None = None
    real: Bool[Tensor, "batch source_pos"] | None = None
    samples: Samples | None = None


Loss = Callable[[MicroBatch], Tensor]


def logits_of(network: Transformer, batch: MicroBatch, tap: Tap = OFF) -> Logits:
    """The network's logits, under the mask that the pass says."""
    return network(batch.inputs, **model_inputs(network, batch, tap))


def model_inputs(network: Transformer, batch: MicroBatch, tap: Tap = OFF) -> dict[str, Any]:
    """Mask and positions that the pass says, what is read of a source, and a tap where there is one."""
    mask = None if batch.documents is None else documents_mask(batch.documents)
    if batch.prefix is not None:
        mask = prefix_mask(batch.prefix, batch.inputs.size(1))
    tapped = {} if tap is OFF else {"tap": tap}  # other kinds of networks have no taps
    return {"mask": mask, "positions": batch.positions, **encoded(network, batch), **tapped}


def encoded(network: Transformer, batch: MicroBatch) -> dict[str, Tensor]:
    """What the decoder reads of a source: the encoder's output, and what of it is no padding."""
    if batch.source is None:
        return {}
    if batch.real is None:
        return {"source": network.encode(batch.source)}
    readable = batch.real[:, None].expand(-1, batch.inputs.size(1), -1)
    return {"source": network.encode(batch.source, padding_mask(batch.real)), "source_mask": readable}


def summed_loss(network: Transformer, batch: MicroBatch, tap: Tap = OFF) -> Float[Tensor, ""]:
    """Sum over the scored positions of -log P(target | what is read), in nats (Dobriban, empirical risk).

    The sum, not the mean: passes of different sizes add up to the large batch.
    """
    return summed(logits_of(network, batch, tap).flatten(0, 1), scored_targets(batch))


def summed_loss_in_chunks(network: Transformer, batch: MicroBatch, tap: Tap = OFF) -> Float[Tensor, ""]:
    """The same, LOGITS_AT_ONCE logits at a time: for vocabularies whose logits would be most of what training keeps."""
    x = network.hidden(batch.inputs, **model_inputs(network, batch, tap))
    return chunked_loss(network.unembed, summed, x.flatten(0, 1), scored_targets(batch), LOGITS_AT_ONCE)


def summed(logits: Float[Tensor, "pos n_vocab"], targets: Int[Tensor, " pos"]) -> Float[Tensor, ""]:
    """Sum of -log P(target) over the targets that are scored."""
    loss: Any = cross_entropy(logits, targets, "sum")
    return loss.to_local() if hasattr(loss, "to_local") else loss  # logits that processes share give a DTensor


def scored_targets(batch: MicroBatch) -> Int[Tensor, " pos"]:
    """The targets of all rows one after another, UNSCORED where they do not count."""
    targets = batch.targets if batch.counts is None else batch.targets.masked_fill(~batch.counts, UNSCORED)
    return targets.flatten()


def losses_and_hits(network: Transformer, batch: MicroBatch) -> tuple[Float[Tensor, "batch pos"], Visible]:
    """-log P(target) at every position, in nats, and whether the target was the likeliest token.

    The two need not move together (Dobriban, accuracy and log-loss). Where a pass of a network that no processes divide
    has MANY_LOGITS or more, LOGITS_AT_ONCE of them exist at a time, as in training.
    """
    targets = batch.targets.flatten()
    if has_many_logits(network, batch):
        rows = max(1, LOGITS_AT_ONCE // network.architecture.n_vocab)
        pieces = network.hidden(batch.inputs, **model_inputs(network, batch)).flatten(0, 1).split(rows)
        logits = (network.unembed(x) for x in pieces)
    else:
        rows, logits = len(targets), (logits_of(network, batch).flatten(0, 1),)
    results = [
        (cross_entropy(x, wanted), is_likeliest(x, wanted))
        for x, wanted in zip(logits, targets.split(rows), strict=True)
    ]
    losses, hits = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*results, strict=True))
    return losses.unflatten(0, batch.targets.shape), hits.unflatten(0, batch.targets.shape)


def has_many_logits(network: Transformer, batch: MicroBatch) -> bool:
    """Whether a pass of a network that no processes divide would have MANY_LOGITS or more."""
    if not isinstance(network, Transformer) or hasattr(network.embed.token.weight, "to_local"):
        return False
    return batch.targets.numel() * network.architecture.n_vocab >= MANY_LOGITS


def token_losses(network: Transformer, batch: MicroBatch) -> Float[Tensor, "batch pos"]:
    """-log P(target) at every position, in nats."""
    return losses_and_hits(network, batch)[0]


def autocast(
    network: Transformer,
    device: torch.device,
    precision: str,
    n_logits: int = 0,
    expert_use: ExpertUse | None = None,
) -> Loss:
    """The loss of `network` in the precision of the recipe; weights stay float32.

    `n_logits` is how many a pass has: from MANY_LOGITS on they are made in chunks. `expert_use` adds its balance.
    """
    objective = summed_loss_in_chunks if n_logits >= MANY_LOGITS else summed_loss

    def loss(batch: MicroBatch) -> Tensor:
        # float32 does not enter autocast at all, so that its graphs are kept without what `keep_compiled` tells PyTorch
        with torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext():
            if expert_use is None:
                return objective(network, batch)
            return expert_use(objective, network, batch, (scored_targets(batch) != UNSCORED).sum())

    return loss


def with_dropout_by_sample(network: Transformer, loss: Loss) -> Loss:
    """The loss, whose dropout each pass draws from the numbers of its rows."""

    def sampled(batch: MicroBatch) -> Tensor:
        draw_by_sample(network, batch.samples)
        return loss(batch)

    return sampled


def hide_random_tokens(
    tokens: np.ndarray, draws: np.ndarray, n_hidden: int, mask_id: int, plain_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with `n_hidden` places of each row hidden, and which places those are; both [batch, pos].

    `draws`, uint64 [batch, pos], decide everything: the places are those of the smallest draws, and what
    stands there instead follows HIDDEN_AS. Random tokens are drawn from `plain_ids`.
    """
    hidden = np.zeros(tokens.shape, dtype=bool)
    np.put_along_axis(hidden, np.argsort(draws, axis=1, kind="stable")[:, :n_hidden], True, axis=1)
    # the draws that chose the places are small; their lower half is as good as new
    low = draws & np.uint64(0xFFFFFFFF)
    share = low / 2.0**32
    random = plain_ids[(low * np.uint64(0x9E3779B1) >> np.uint64(13)).astype(np.int64) % len(plain_ids)]
    masked, drawn = HIDDEN_AS[0], HIDDEN_AS[0] + HIDDEN_AS[1]
    instead = np.where(share < masked, mask_id, np.where(share < drawn, random, tokens))
    return np.where(hidden, instead, tokens), hidden


def after_prefix(lengths: np.ndarray, n_ctx: int) -> np.ndarray:
    """Which targets lie behind the prefix, bool [batch, n_ctx]: target i is token i + 1 of its row."""
    return np.arange(1, n_ctx + 1) >= np.maximum(lengths, 1)[:, None]
