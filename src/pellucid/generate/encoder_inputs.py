"""What an encoder makes of the sources, read once, and handed to the decoder row by row."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pellucid.generate.errors import GenerationError
from pellucid.model import OFF, Tap, Transformer
from pellucid.model.mask import padding_mask
from pellucid.text.tokenizers.base import Tokenizer


class NoSources:
    """For networks that read none."""

    def of(self, prompts: Sequence[int], n_queries: int) -> dict[str, Any]:
        """What the network is given for rows of these prompts, each of `n_queries` positions."""
        return {}


class Sources(NoSources):
    """The encoder's output for the source of each prompt, all of them read in one pass.

    Shorter ones are padded on the right, and nobody reads the padding.
    """

    def __init__(self, network: Transformer, sources: Sequence[Sequence[int]], tap: Tap = OFF):
        lengths = torch.tensor([len(ids) for ids in sources])
        width, device = int(lengths.max()), network.embed.token.weight.device
        tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sources], device=device)
        real = (torch.arange(width) < lengths[:, None]).to(device)
        self.real = None if bool((lengths == width).all()) else real
        self.encoded = network.encode(tokens, None if self.real is None else padding_mask(self.real), tap)

    def of(self, prompts: Sequence[int], n_queries: int) -> dict[str, Any]:
        """The rows' encoded sources, and which of their positions may be read."""
        at = torch.tensor(list(prompts), device=self.encoded.device)
        given = {"source": self.encoded[at]}
        if self.real is not None:
            given["source_mask"] = self.real[at][:, None].expand(-1, n_queries, -1)
        return given


NO_SOURCES = NoSources()


def encode_source(tokenizer: Tokenizer, text: str) -> list[int]:
    """A source as training gave it to the encoder (`source_ids`); GenerationError for an empty one."""
    if not (ids := tokenizer.encode(text)):
        raise GenerationError("the source is empty: give the text that the encoder is to read")
    return tokenizer.source_ids(ids)


def read_sources(
    network: Transformer,
    sources: Sequence[Sequence[int]] | None,
    n_prompts: int,
    tap_of: Callable[[Sequence[int]], Tap] = lambda lengths: OFF,
) -> NoSources:
    """The sources of `n_prompts` prompts, encoded; to be called inside `reading(network)`.

    Raises GenerationError for a network with an encoder and no sources, the other way round, and ids or lengths that
    the encoder does not know. `tap_of`, given the lengths of the sources, is handed the encoder's named tensors.
    """
    encoder = network.architecture.encoder
    if encoder is None and sources is None:
        return NO_SOURCES
    if encoder is None:
        raise GenerationError("a source was given to a network without an encoder: give it as the prompt instead")
    if sources is None:
        raise GenerationError("this network has an encoder and no source was given: pass source=..., or --source")
    if len(sources) != n_prompts:
        raise GenerationError(f"{len(sources)} sources for {n_prompts} prompts: give one for each")
    checked = [[operator.index(i) for i in ids] for ids in sources]
    for n, ids in enumerate(checked):
        if not 1 <= len(ids) <= encoder.n_ctx:
            raise GenerationError(
                f"source {n} has {len(ids)} tokens: expected 1 to {encoder.n_ctx}, the encoder's n_ctx, its separator "
                "among them"
            )
        if outside := [i for i in ids if not 0 <= i < encoder.n_vocab]:
            raise GenerationError(f"source {n} holds id {outside[0]}; this network knows 0 to {encoder.n_vocab - 1}")
    return Sources(network, checked, tap_of([len(ids) for ids in checked])) if checked else NO_SOURCES
