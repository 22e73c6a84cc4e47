"""Packs a network's weights for generation on a CPU.

When one token is generated at a time, every product is a matrix times one vector, and its time is that of reading the
matrix from memory. This module chooses the memory layout and the number of bits of the matrices. The forward pass is
the network's own, with packed products in place of its linear maps. docs/experiments/decoding.md has the measurements.
"""

import copy
import weakref
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from pellucid.generate import row_products
from pellucid.generate.errors import GenerationError
from pellucid.generate.packed_linear import PRODUCTS, available, why_unavailable
from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.fingerprint import checksum
from pellucid.model.shapes import Encoded, NewKeys, Queries, Stream

#: loaded: as they are; auto: float32 weights are read by compiled products where they lie, or packed where that saves
#: time, and others stay as loaded
Weights = Literal["auto", "loaded", "float32", "float16", "bfloat16", "int8", "int4"]

#: `auto` changes products whose matrices do not fit into caches, for texts long enough to win back the time that it
#: takes to pack them, or to compile products (`python -m benchmarks.products` prints how long packing takes for GPT-2
#: small; other sizes were not measured)
LEAST_PARAMETERS, LEAST_TOKENS = 10_000_000, 32
#: where products are compiled, a copy is faster only for long prompts: `auto` packs for a server, which reads many, if
#: the copy fits into memory
TOKENS_OF_A_SERVER, MOST_BYTES = 100_000, 4 << 30


@dataclass(frozen=True)
class PackedNetwork:
    """A network with packed products.

    weights   the format of the stored weights
    errors    of each matrix, by name: ||stored W - W|| / ||W||, Frobenius norms
    said      a line about both, for the user
    """

    network: Transformer
    weights: str
    errors: dict[str, float]
    said: str


def pack_network(network: Transformer, weights: str) -> PackedNetwork:
    """A copy of a float32 network on the CPU whose matrix products are packed; it shares all other weights.

    The embedding table is not packed, tied or not: only matrices that a step reads completely are. `loaded` copies no
    matrix: compiled products read the network's own. Raises GenerationError for other formats, types and devices.
    """
    check(network, weights)
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
    return PackedNetwork(copied, weights, errors, sentence(weights, errors))


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


def check(network: Transformer, weights: str) -> None:
    """Raise GenerationError for weights that cannot be packed."""
    weight = network.embed.token.weight
    if weights not in PRODUCTS:
        raise GenerationError(f"weights = {weights!r}: choose one of {', '.join(get_args(Weights))}")
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise GenerationError(
            f"weights = {weights} packs a float32 network on the CPU and this one is {str(weight.dtype)[6:]} on "
            f"{weight.device.type}: load it so, or leave weights at auto"
        )
    if why := why_unavailable(weights):
        raise GenerationError(f"weights = {weights}: {why}: choose another format, or auto")


def sentence(weights: str, errors: dict[str, float]) -> str:
    """A line about the format, and the mean and the largest rounding error."""
    if not errors:
        return "weights: as loaded, by compiled products" if weights == "loaded" else "weights: float32, packed"
    worst = max(errors, key=errors.__getitem__)
    why = row_products.why_not_compiled() if weights == "int8" else ""
    stored = f", stored in two bytes a weight ({why})" if why else ""
    mean = sum(errors.values()) / len(errors)
    return f"weights: {weights}{stored}, {mean:.2%} from float32 ({worst}: {errors[worst]:.2%})"


_KEPT: "weakref.WeakKeyDictionary[Transformer, dict[str, tuple[tuple[int, ...], PackedNetwork]]]" = (
    weakref.WeakKeyDictionary()
)


def weights_state(network: Transformer) -> tuple[int, ...]:
    """What changes where a weight moves or changes, through `.data` too: addresses, and checksums of the bits.

    It reads all weights once, in one thread: about as long as an ordinary step of float32 weights takes there.
    """
    tensors = [*network.parameters(), *network.buffers()]
    return *(t.data_ptr() for t in tensors), *map(checksum, tensors)


def packed_network(network: Transformer, weights: str) -> PackedNetwork:
    """`pack_network`, whose result is cached until the network is freed or its weights change."""
    state, kept = weights_state(network), _KEPT.setdefault(network, {})
    if weights not in kept or kept[weights][0] != state:
        kept[weights] = state, pack_network(network, weights)
    return kept[weights][1]


def network_for(network: Transformer, weights: str, n_tokens: int) -> tuple[Transformer, str]:
    """The network for generating about `n_tokens`, packed or not, and a line that says which."""
    if weights not in get_args(Weights):
        raise GenerationError(f"weights = {weights!r}: choose one of {', '.join(get_args(Weights))}")
    if weights == "auto":
        weights = kind_for(network, n_tokens)
    elif weights == "loaded":
        weights = ""
    if not weights:
        return network, "weights: as loaded"
    copied = packed_network(network, weights)
    return copied.network, copied.said


def kind_for(network: Transformer, n_tokens: int) -> str:
    """The kind of products with which `auto` generates about `n_tokens`, "" for the network's own."""
    weight, n = network.embed.token.weight, sum(p.numel() for p in network.parameters())
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or n < LEAST_PARAMETERS:
        return ""
    many = n_tokens >= LEAST_TOKENS
    compiled = (many or row_products.is_compiled()) and available("loaded")
    packing_pays = n_tokens >= (TOKENS_OF_A_SERVER if compiled else LEAST_TOKENS)
    if packing_pays and 4 * n <= MOST_BYTES and available("float32"):
        return "float32"
    return "loaded" if compiled else ""
