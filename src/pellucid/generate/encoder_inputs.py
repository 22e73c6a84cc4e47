"""The encoder's output for the sources: computed once and passed to the decoder row by row."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pellucid.generate.errors import GenerationError
from pellucid.model import OFF, Tap, Transformer
from pellucid.model.mask import padding_mask
from pellucid.model.transfer import on_device
from pellucid.text.tokenizers.base import Tokenizer


class NoSources:
    """For networks without an encoder."""

    def of(self, prompts: Sequence[int], n_queries: int) -> dict[str, Any]:
        """The keyword arguments of the network for rows of these prompts, with `n_queries` positions each."""
        return {}


class Sources(NoSources):
    """The encoder's output for the source of each prompt, computed in one pass.

    Shorter sources are padded on the right, and a mask hides the padding.
    """

    def __init__(self, network: Transformer, sources: Sequence[Sequence[int]], tap: Tap = OFF):
        lengths = torch.tensor([len(ids) for ids in sources])
        width, device = int(lengths.max()), network.embed.token.weight.device
        tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sources], device=device)
        real = (torch.arange(width) < lengths[:, None]).to(device)
        self.real = None if bool((lengths == width).all()) else real
        self.encoded = network.encode(tokens, None if self.real is None else padding_mask(self.real), tap)

    def of(self, prompts: Sequence[int], n_queries: int) -> dict[str, Any]:
        """The rows' encoded sources, and a mask of the source positions that may be read."""
        at = on_device(list(prompts), self.encoded.device)
        inputs = {"source": self.encoded[at]}
        if self.real is not None:
            inputs["source_mask"] = self.real[at][:, None].expand(-1, n_queries, -1)
        return inputs


NO_SOURCES = NoSources()


def encode_source(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a source as training did (`source_ids`). Raises GenerationError for an empty one."""
    if not (ids := tokenizer.encode(text)):
        raise GenerationError("the source is empty: give a text for the encoder")
    return tokenizer.source_ids(ids)


def read_sources(
    network: Transformer,
    sources: Sequence[Sequence[int]] | None,
    n_prompts: int,
    tap_of: Callable[[Sequence[int]], Tap] = lambda lengths: OFF,
) -> NoSources:
    """Encode the sources of `n_prompts` prompts; call it inside `evaluation_mode(network)`.

    Raises GenerationError if exactly one of encoder and sources is missing, and for ids or lengths that the encoder
    does not have. `tap_of` gets the lengths of the sources and returns the tap for the encoder's tensors.
    """
    encoder = network.architecture.encoder
    if encoder is None and sources is None:
        return NO_SOURCES
    if encoder is None:
        raise GenerationError("this network has no encoder, so it cannot read a source: pass the text as the prompt")
    if sources is None:
        raise GenerationError("this network has an encoder and needs a source: pass source=..., or --source")
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
            raise GenerationError(f"source {n} holds id {outside[0]}; expected 0 to {encoder.n_vocab - 1}")
    return Sources(network, checked, tap_of([len(ids) for ids in checked])) if checked else NO_SOURCES
