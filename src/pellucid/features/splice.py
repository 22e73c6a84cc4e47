"""Dictionaries within a network: what stands at their sites, and the network with their outputs in its place."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.features.dictionary import Site
from pellucid.model import Recorder, Transformer
from pellucid.training.objectives import MicroBatch, model_inputs

#: what a dictionary reads and what it is to write, a row for each token
Pair = tuple[Float[Tensor, "rows d_in"], Float[Tensor, "rows d_out"]]


@torch.no_grad()
def site_activations(network: Transformer, batch: MicroBatch, sites: Sequence[Site]) -> list[Pair]:
    """What the network has at these sites."""
    tap = Recorder(keep={name for site in sites for name in (site.reads, site.writes)})
    network.hidden(batch.inputs, **model_inputs(network, batch, tap))
    return [(tap.values[site.reads].flatten(0, 1), tap.values[site.writes].flatten(0, 1)) for site in sites]


def splicing(sites: Sequence[Site], replacements: Sequence[Any]) -> Recorder:
    """A tap that puts at each site what its replacement, a function, computes from what it reads."""
    tap = Recorder(keep={site.reads for site in sites if site.kind == "transcoder"})

    def replaced(site: Site, replacement: Any) -> Any:
        if site.kind == "autoencoder":
            return replacement
        return lambda value: replacement(tap.values[site.reads])

    tap.edits = {site.writes: (replaced(site, own),) for site, own in zip(sites, replacements, strict=True)}
    return tap


class Spliced:
    """A network in which dictionaries, or other functions, stand in the place of what they explain."""

    def __init__(self, network: Transformer, sites: Sequence[Site], replacements: Sequence[Any]):
        self.network, self.sites, self.replacements = network, sites, replacements

    def __call__(self, tokens: Tensor, **inputs: Any) -> Tensor:
        """The logits."""
        return self.network(tokens, tap=splicing(self.sites, self.replacements), **inputs)
