"""A penalty under which a network keeps only the attention heads that it needs."""

import torch
from torch import Tensor

from pellucid.model import Transformer


def head_sizes(network: Transformer) -> Tensor:
    """|W_V| + |W_O| of every head [layer, head], Frobenius; their sum is a group lasso (Yuan and Lin 2006)."""
    rows = []
    for block in network.blocks:
        W_O = block.attn.out.weight.unflatten(1, (-1, block.attn.d_head))
        W_V = block.attn.value.weight.unflatten(0, (-1, block.attn.d_head))
        # a little inside the root keeps the slope finite where a head is gone
        rows.append((W_O.square().sum((0, 2)) + 1e-8).sqrt() + (W_V.square().sum((1, 2)) + 1e-8).sqrt())
    return torch.stack(rows)
