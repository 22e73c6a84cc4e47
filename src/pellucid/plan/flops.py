"""Floating-point operations, where a multiplication and an addition count as two.

Matrix products and attention are counted as they are computed, including the masked half of a causal pattern. Lookups,
norms, activations and the optimizer are not counted. A backward pass is two forward passes: each product's gradient by
its input and by its weights (Kaplan et al. 2020, section 2.1).
"""

from dataclasses import dataclass

from pellucid.architecture import Architecture
from pellucid.parameter_counts import attention_matrices, before_unembedding, mlp_weights


@dataclass(frozen=True)
class Flops:
    """FLOPs of a forward pass per predicted token: in products with weights, and in attention's own products."""

    products: float
    attention: float

    @property
    def forward(self) -> float:
        return self.products + self.attention

    @property
    def training(self) -> float:
        """Forward and backward."""
        return 3 * self.forward


def flops(a: Architecture) -> Flops:
    """FLOPs per token of a row of n_ctx tokens. An encoder reads a full context for each row."""
    own = flops_per_generated_token(a, a.n_ctx)
    if a.encoder is None:
        return own
    share, encoded = a.encoder.n_ctx / a.n_ctx, flops_per_generated_token(a.encoder, a.encoder.n_ctx)
    # an encoder has no readout, and its output is multiplied once for each row
    encoder = encoded.products - 2.0 * readout_matrices(a.encoder) + 2.0 * source_weights(a)
    return Flops(own.products + share * encoder, own.attention + share * encoded.attention)


def flops_per_generated_token(a: Architecture, read: int) -> Flops:
    """FLOPs of generating one token with a cache when it attends to `read` tokens, itself included."""
    source = 0 if a.encoder is None else a.encoder.n_ctx
    products = 2.0 * (multiplied(a) - source_weights(a))
    return Flops(products, 4.0 * a.n_layers * a.n_heads * a.d_head * (read + source))


def source_weights(a: Architecture) -> int:
    """The number of weights that compute keys and values from an encoder's output."""
    return 0 if a.encoder is None else a.n_layers * 2 * a.d_model * a.n_kv_heads * a.d_head


def readout_matrices(a: Architecture) -> int:
    """The number of weights in the matrices from the last vector to the logits, tied or not."""
    return 0 if a.readout == "none" else a.n_vocab * a.embed_width + before_unembedding(a)


def multiplied(a: Architecture) -> int:
    """The number of weights that a token is multiplied with, in the matrices of embedding, blocks and readout."""
    reads = 1 + (a.encoder is not None)
    layer = reads * attention_matrices(a) + mlp_weights(a, a.mlp.experts_per_token, has_bias=False)
    return a.d_embed * a.d_model + a.n_layers * layer + readout_matrices(a)
