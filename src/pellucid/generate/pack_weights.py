"""A network made ready to write: the same one, its weights packed for reading them once a token.

A token at a time, every product is a matrix with one vector, and takes as long as memory takes to deliver the matrix.
What is chosen here is how the matrices lie in memory, and in how many bits; the forward pass stays the network's own,
with other products in its places. docs/log.md has what was measured.
"""

import copy
import weakref
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from pellucid.generate.errors import GenerationError
from pellucid.generate.packed_linear import PRODUCTS, available
from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.shapes import Encoded, NewKeys, Queries, Stream

#: loaded: as they are; auto: float32 is packed where that pays, all else is as loaded
Weights = Literal["auto", "loaded", "float32", "float16", "bfloat16", "int8"]

#: where `auto` packs: networks whose matrices do not fit into caches, texts long enough to win back what packing took
#: (`python -m benchmarks.products` prints both for GPT-2 small; other sizes were not measured), and memory for a copy
LEAST_PARAMETERS, LEAST_TOKENS, MOST_BYTES = 10_000_000, 32, 4 << 30


@dataclass(frozen=True)
class PackedNetwork:
    """A network with packed products.

    weights   in what they are kept
    errors    of each matrix, by name: ||W kept - W|| / ||W||, Frobenius norms
    said      in a sentence, for the user
    """

    network: Transformer
    weights: str
    errors: dict[str, float]
    said: str


def pack_network(network: Transformer, weights: str) -> PackedNetwork:
    """A copy of a float32 network on the CPU whose matrix products are packed; it shares all other weights.

    The rows that tokens are looked up in stay as they are, tied or not: only what a step reads as a whole is
    packed. Raises GenerationError for other words, types and devices.
    """
    check(network, weights)
    shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, shared).eval()
    errors: dict[str, float] = {}
    with torch.inference_mode():
        for block_name, block in list(copied.named_modules()):
            for name, child in list(block.named_children()):
                if isinstance(child, MultiHeadAttention) and not child.cross:
                    setattr(block, name, with_packed_qkv(child, weights, f"{block_name}.{name}", errors))
        for parent_name, parent in list(copied.named_modules()):
            if isinstance(parent, MultiHeadAttention):
                parent.kernel = parent.fused  # faster than the explicit kernel for one query too
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, packed(child.weight, child.bias, weights, f"{parent_name}.{name}", errors))
                elif isinstance(child, nn.Dropout):
                    setattr(parent, name, nn.Identity())
        a = copied.architecture
        if (a.readout, a.logit_cap, a.logit_scale) == ("linear", 0.0, "1"):
            copied.unembed = packed(copied.unembed.weight, None, weights, "unembed", errors)
    return PackedNetwork(copied, weights, errors, sentence(weights, errors))


class PackedAttention(MultiHeadAttention):
    """Self-attention whose q, k and v are one product; everything else is that of the attention that it replaces."""

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
        """Queries, keys and values of x, which is y."""
        q, k, v = self.heads(self.qkv(x)).split(self.n_heads_each, dim=1)
        return q, k, v


def with_packed_qkv(
    attention: MultiHeadAttention, weights: str, name: str, errors: dict[str, float]
) -> PackedAttention:
    """The attention with one packed matrix, whose rows are those of its three."""
    linear_maps = (attention.query, attention.key, attention.value)
    biases: list[Tensor] = [linear.bias for linear in linear_maps if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    joined = torch.cat([linear.weight for linear in linear_maps])
    return PackedAttention(attention, packed(joined, bias, weights, f"{name}.qkv", errors))


def packed(weight: Tensor, bias: Tensor | None, weights: str, name: str, errors: dict[str, float]) -> nn.Module:
    """The product in the place of a matrix, and its error noted."""
    weight = weight.detach()
    product = PRODUCTS[weights](weight, None if bias is None else bias.detach())
    if weights != "float32":
        errors[name] = float((cast(Tensor, product.kept) - weight).norm() / weight.norm().clamp(min=1e-30))
    return product


def check(network: Transformer, weights: str) -> None:
    """Refuse what cannot be packed."""
    weight = network.embed.token.weight
    if weights not in PRODUCTS:
        raise GenerationError(f"weights = {weights!r}: choose one of {', '.join(get_args(Weights))}")
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise GenerationError(
            f"weights = {weights} packs a float32 network on the CPU and this one is {str(weight.dtype)[6:]} on "
            f"{weight.device.type}: load it so, or leave weights at auto"
        )
    if not available(weights):
        raise GenerationError(f"weights = {weights}: this build of PyTorch cannot multiply so; say auto")


def sentence(weights: str, errors: dict[str, float]) -> str:
    """What was done, and how far the weights are from what they were."""
    if not errors:
        return "weights: float32, packed"
    worst = max(errors, key=errors.__getitem__)
    return f"weights: {weights}, {sum(errors.values()) / len(errors):.2%} from float32 ({worst}: {errors[worst]:.2%})"


_KEPT: "weakref.WeakKeyDictionary[Transformer, dict[str, tuple[tuple[int, ...], PackedNetwork]]]" = (
    weakref.WeakKeyDictionary()
)


def packed_network(network: Transformer, weights: str) -> PackedNetwork:
    """`prepare`, kept as long as the network lives and nobody changes its weights."""
    versions = tuple(p._version for p in network.parameters() if not p.is_inference())
    kept = _KEPT.setdefault(network, {})
    if weights not in kept or kept[weights][0] != versions:
        kept[weights] = versions, pack_network(network, weights)
    return kept[weights][1]


def network_for(network: Transformer, weights: str, n_tokens: int) -> tuple[Transformer, str]:
    """The network to write about `n_tokens` with, and a sentence that says which it is."""
    if weights not in get_args(Weights):
        raise GenerationError(f"weights = {weights!r}: choose one of {', '.join(get_args(Weights))}")
    if weights == "auto":
        weights = "float32" if packing_pays(network, n_tokens) else "loaded"
    if weights == "loaded":
        return network, "weights: as loaded"
    copied = packed_network(network, weights)
    return copied.network, copied.said


def packing_pays(network: Transformer, n_tokens: int) -> bool:
    """Whether packing float32 weights saves more time than it takes."""
    weight = network.embed.token.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or not available("float32"):
        return False
    n = sum(p.numel() for p in network.parameters())
    return n_tokens >= LEAST_TOKENS and n >= LEAST_PARAMETERS and 4 * n <= MOST_BYTES
