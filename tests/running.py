"""Running drawn networks: inputs of every kind, encoder-decoders made of the drawn words, and what answers hold."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from drawing import architectures
from pellucid.architecture import Architecture
from pellucid.model import OFF, Tap, Transformer


def with_encoder(a: Architecture) -> Architecture:
    """The same words, reading an encoder made of the same words with a bidirectional mask."""
    if a.block not in ("pre", "post"):
        a = a.with_fields({"block": "post", "first_norm": "norm"})
    plain = {"unembed": "tied", "readout": "linear", "readout_bias": "all"}
    encoder = a.with_fields({**plain, "attention.mask": "bidirectional"})
    return Architecture.from_dict(a.to_dict() | {"encoder": encoder.to_dict()})


def any_architectures(fixed: Mapping[str, Any] | None = None, max_ctx: int = 8) -> st.SearchStrategy[Architecture]:
    """Decoder-only architectures, and one in four with an encoder."""
    plain = architectures(fixed, max_ctx)
    return st.integers(0, 3).flatmap(lambda n: plain.map(with_encoder) if n == 3 else plain)


def draw_tokens(a: Architecture, batch: int = 2, n: int = 4, seed: int = 0) -> torch.Tensor:
    """Random tokens [batch, n]."""
    return torch.randint(0, a.n_vocab, (batch, n), generator=torch.Generator().manual_seed(seed))


def call(network: Transformer, tokens: torch.Tensor, *, tap: Tap = OFF, **reading: Any) -> torch.Tensor:
    """Logits, or the stream where readout = none; an encoder-decoder reads other tokens, the same ones at each call."""
    a = network.architecture
    if a.encoder is not None and "source" not in reading:
        reading["source"] = network.encode(source_tokens(a, tokens.size(0)), tap=tap)
    return (network.hidden if a.readout == "none" else network)(tokens, tap=tap, **reading)


def source_tokens(a: Architecture, batch: int) -> torch.Tensor:
    """What `call` has an encoder read [batch, 3]."""
    assert a.encoder is not None
    return draw_tokens(a.encoder, batch, 3, seed=7)


def arrays_of(answer: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The arrays of an answer, or of a panel of a saved page, by name."""
    files = {name: io.BytesIO(base64.b64decode(text)) for name, text in answer["arrays"].items()}
    return {name: torch.from_numpy(np.load(file)) for name, file in files.items()}
