"""Packs a network's weights for generation on a CPU.

When one token is generated at a time, every product is a matrix times one vector, and its time is that of reading the
matrix from memory. This module chooses the memory layout and the number of bits of the matrices. The forward pass is
the network's own, with packed products in place of its linear maps. docs/experiments/decoding.md has the measurements.
"""

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from pellucid.generate.errors import GenerationError
from pellucid.generate.packed_linear import PRODUCTS, why_unavailable
from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.fingerprint import checksum
from pellucid.model.shapes import Encoded, NewKeys, Queries, Stream

PackedT = TypeVar("PackedT")


@dataclass(frozen=True)
class PackedNetwork:
    """A network with packed products.

    weights   the format of the stored weights
    errors    of each matrix, by name: ||stored W - W|| / ||W||, Frobenius norms
    summary   a line about both, for the user
    """

    network: Transformer
    weights: str
    errors: dict[str, float]
    summary: str


def pack_network(network: Transformer, weights: str) -> PackedNetwork:
    """A copy of a float32 network on the CPU whose matrix products are packed; it shares all other weights.

    The embedding table is not packed, tied or not: only matrices that a step reads completely are. `loaded` copies no
    matrix: compiled products read the network's own. Raises GenerationError for other formats, types and devices.
    """
    if why := why_not_packed(network, weights):
        raise GenerationError(f"weights = {weights}: {why}; leave weights at auto")
    shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, shared).eval()
    errors: dict[str, float] = {}
    with torch.inference_mode():
        for block_name, block in list(copied.named_modules()):
            for name, child in list(block.named_children()):
                if isinstance(child, MultiHeadAttention) and not child.cross and weights != "loaded":
                    setattr(block, name, with_packed_qkv(child, weights, f"{block_name}.{name}", errors))
        for parent_name, parent in list(copied.named_modules()):
            if isinstance(parent, MultiHeadAttention):
                parent.kernel = parent.fused  # it is faster than the explicit kernel for one query too
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, packed(child.weight, child.bias, weights, f"{parent_name}.{name}", errors))
                elif isinstance(child, nn.Dropout):
                    setattr(parent, name, nn.Identity())
        a = copied.architecture
        if (a.readout, a.logit_cap, a.logit_scale, a.d_embed) == ("linear", 0.0, "1", 0):
            copied.unembed = packed(copied.unembed.weight, None, readout_format(weights), "unembed", errors)
    return PackedNetwork(copied, weights, errors, summarize(weights, errors))


class PackedAttention(MultiHeadAttention):
    """Self-attention with one product for q, k and v; the rest is that of the attention that it replaces."""

    def __init__(self, attention: MultiHeadAttention, qkv: nn.Module):
        """`qkv` maps x to q, k and v of all heads, one after another."""
        nn.Module.__init__(self)
        self.d_head, self.group, self.cross = attention.d_head, attention.group, attention.cross
        linear_maps = (attention.query, attention.key, attention.value)
        self.n_heads_each = [linear.out_features // attention.d_head for linear in linear_maps]
        self.qkv, self.out = qkv, attention.out
        self.query_norm, self.key_norm, self.rotary = attention.query_norm, attention.key_norm, attention.rotary
        self.mask, self.explicit, self.fused = attention.mask, attention.explicit, attention.fused
        self.kernel = attention.kernel

    def project_qkv(self, x: Stream, y: Encoded, cache: NoCache = NO_CACHE) -> tuple[Queries, NewKeys, NewKeys]:
        """Queries, keys and values of x; y is x, since this is self-attention."""
        q, k, v = self.heads(self.qkv(x)).split(self.n_heads_each, dim=1)
        return q, k, v


def with_packed_qkv(
    attention: MultiHeadAttention, weights: str, name: str, errors: dict[str, float]
) -> PackedAttention:
    """The attention with one packed matrix in place of three: their rows, one after another."""
    linear_maps = (attention.query, attention.key, attention.value)
    biases: list[Tensor] = [linear.bias for linear in linear_maps if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    joined = torch.cat([linear.weight for linear in linear_maps])
    return PackedAttention(attention, packed(joined, bias, weights, f"{name}.qkv", errors))


def readout_format(weights: str) -> str:
    """The format of the readout: eight bits a weight where the blocks have four, because it tells ids apart."""
    return "int8" if weights == "int4" else weights


def packed(weight: Tensor, bias: Tensor | None, weights: str, name: str, errors: dict[str, float]) -> nn.Module:
    """The packed product of a matrix; its rounding error is added to `errors`."""
    weight = weight.detach()
    product = PRODUCTS[weights](weight, None if bias is None else bias.detach())
    if weights not in ("loaded", "float32"):
        errors[name] = float((cast(Tensor, product.kept) - weight).norm() / weight.norm().clamp(min=1e-30))
    return product


def why_not_packed(network: Transformer, weights: str) -> str:
    """Why these weights are not packed in this format on this machine, "" if they are."""
    weight = network.embed.token.weight
    if weights not in PRODUCTS:
        return f"expected one of {', '.join(PRODUCTS)}"
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return (
            f"a float32 network on the CPU is packed, and this one is {str(weight.dtype)[6:]} on {weight.device.type}"
        )
    return why_unavailable(weights)


def summarize(weights: str, errors: dict[str, float]) -> str:
    """A line about the format, and the mean and the largest rounding error."""
    if not errors:
        return "weights: as loaded, by compiled products" if weights == "loaded" else "weights: float32, packed"
    worst = max(errors, key=errors.__getitem__)
    mean = sum(errors.values()) / len(errors)
    return f"weights: {weights}, {mean:.2%} from float32 ({worst}: {errors[worst]:.2%})"


def weights_state(network: Transformer) -> tuple[int, ...]:
    """What changes where a weight moves or changes, through `.data` too: addresses, and checksums of the bits.

    It reads all weights once, in one thread: about as long as an ordinary step of float32 weights takes there.
    """
    tensors = [*network.parameters(), *network.buffers()]
    return *(t.data_ptr() for t in tensors), *map(checksum, tensors)


#: of each network: its `weights_state`, and what was made of these weights
_CACHE_OF_NETWORK: "weakref.WeakKeyDictionary[Transformer, tuple[tuple[int, ...], dict[str, Any]]]" = (
    weakref.WeakKeyDictionary()
)


def cached_for_weights(network: Transformer, name: str, make: Callable[[], PackedT]) -> PackedT:
    """The result of `make`, cached under this name until the network is freed or its weights change.

    The result must not refer to the network, which it would keep in memory.
    """
    state = weights_state(network)
    if network not in _CACHE_OF_NETWORK or _CACHE_OF_NETWORK[network][0] != state:
        _CACHE_OF_NETWORK[network] = state, {}
    cached = _CACHE_OF_NETWORK[network][1]
    if name not in cached:
        cached[name] = make()
    return cached[name]


def packed_network(network: Transformer, weights: str) -> PackedNetwork:
    """`pack_network`, whose result is cached until the network is freed or its weights change."""
    return cached_for_weights(network, weights, lambda: pack_network(network, weights))
