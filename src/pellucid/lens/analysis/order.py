"""What the order of the tokens does: a shuffled text, with and without what tells a model the order.

Without positions and without a causal mask a transformer is covariant: h(P x) = P h(x) for every permutation P of the
positions (Becker-Kahn 2023; the notes on transformers). Position embeddings, rotations, biases by distance, tables of
n-grams, windows and the causal mask are what break this.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pellucid.architecture import Positions
from pellucid.lens.core.inputs import InputError, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.model import Transformer


@dataclass(frozen=True)
class Reordering:
    """One text in two orders.

    order       position i of the shuffled text holds the token of position order[i]
    stream      the last stream of the text as it was [n, m]
    shuffled    the last stream of the shuffled text, each token's at its old position [n, m]
    """

    order: tuple[int, ...]
    stream: Tensor
    shuffled: Tensor

    @property
    def difference(self) -> Tensor:
        """How far each token's vector moved, as a share of its length [n]; 0 where order does not matter."""
        return (self.shuffled - self.stream).norm(dim=-1) / self.stream.norm(dim=-1).clamp(min=1e-30)


def without_order(network: Transformer, *, positions: bool = True, mask: bool = True) -> Transformer:
    """The network with the same weights, without what tells it positions, and without its mask, as asked for.

    positions  False removes position embeddings, rotations, biases by distance, and tables of n-grams
    mask       False lets every position read every other one. The positions enter as they did: layers that had a window
               keep its rotations (positions.local_base), and one-sided buckets of relative positions stay so, in which
               every later key counts as one at distance 0
    """
    a = network.architecture
    if not positions:
        a = replace(a, positions=Positions(kind="none"), ngrams=())
    if not mask:
        a = replace(a, attention=replace(a.attention, mask="bidirectional", windows=(0,)))
    if a == network.architecture:
        return network
    weight = network.embed.token.weight
    other = Transformer(a).to(weight.dtype).to(weight.device)
    state = network.state_dict()
    other.load_state_dict({name: state[name] for name in other.state_dict()})
    if positions:
        _keep_positions(network, other)
    return other.eval()


def _keep_positions(network: Transformer, other: Transformer) -> None:
    """Let positions enter `other` as they enter `network`, whatever the rule and the windows of its mask."""
    for block, of_other in zip(network.blocks, other.blocks, strict=True):
        cast(Any, of_other).attn.rotary = cast(Any, block).attn.rotary
        cast(Any, of_other).attn.mask.position_bias = cast(Any, block).attn.mask.position_bias


def reorder(trace: Recording, order: list[int], *, positions: bool = True, mask: bool = True) -> Reordering:
    """Run the tokens of the trace's one row in two orders, through the network or through it `without_order`.

    Without the edits of the trace: an edit of a position would meet another token in the other order.
    Raises InputError for an order that is no permutation, and for models that read a source.
    """
    n = trace.inputs.lengths[0]
    if sorted(order) != list(range(n)):
        raise InputError(f"order {order}: expected each position from 0 to {n - 1} once")
    if trace.inputs.source is not None:
        raise InputError("this model reads a source beside the text: its order is not taken apart here")
    ids = trace.ids[0, :n].tolist()
    rows = [ids, [ids[i] for i in order]]
    other = replace(trace.model, network=without_order(trace.module(""), positions=positions, mask=mask))
    both = Recording(other, read_inputs(other, rows))
    stream = both.stream()
    back = torch.empty_like(stream[1])
    back[torch.tensor(order)] = stream[1]
    return Reordering(tuple(order), stream[0], back)
