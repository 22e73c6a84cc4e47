"""Networks whose every next token is known beforehand: after position i comes script[i]."""

from collections.abc import Sequence

import torch

from pellucid.architecture import Architecture, Attention, Norm, Positions
from pellucid.model import Transformer


def scripted(script: Sequence[int], n_vocab: int = 257, n_ctx: int | None = None) -> Transformer:
    """No blocks, no token vectors: the logits are 50 at script[i], else 0, whatever was read."""
    n_ctx = n_ctx or len(script)
    a = Architecture(
        n_vocab=n_vocab,
        n_ctx=n_ctx,
        d_model=len(script),
        n_layers=0,
        unembed="untied",
        attention=Attention(n_heads=1),
        norm=Norm(kind="none"),
        positions=Positions(kind="learned"),
    )
    network = Transformer(a).double().eval()
    with torch.no_grad():
        network.embed.token.weight.zero_()
        network.embed.position.weight.copy_(torch.eye(n_ctx, len(script)))
        network.unembed.weight.zero_()
        for i, token in enumerate(script):
            network.unembed.weight[token, i] = 50
    return network


def speaking(prompt: str, continuation: bytes, end: bool = True) -> Transformer:
    """A network that continues `prompt`, in bytes, with these bytes and then the separator."""
    return scripted([0] * (len(prompt.encode()) - 1) + [*continuation, *[256] * end])
