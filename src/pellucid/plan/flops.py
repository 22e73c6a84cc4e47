"""Floating-point operations, where a multiplication and an addition count as two.

Matrix products and attention are counted as they are computed, including the masked half of a causal pattern. Lookups,
norms, activations and the optimizer are not counted. A backward pass is two forward passes: each product's gradient by
its input and by its weights (Kaplan et al. 2020, section 2.1).
"""

from dataclasses import dataclass

from pellucid.architecture import Architecture


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
    own = written(a, a.n_ctx)
    if a.encoder is None:
        return own
    share, encoded = a.encoder.n_ctx / a.n_ctx, written(a.encoder, a.encoder.n_ctx)
    # an encoder has no readout, and its output is multiplied once for each row
    encoder = encoded.products - 2.0 * readout_flops(a.encoder) + 2.0 * source_weights(a)
    return Flops(own.products + share * encoder, own.attention + share * encoded.attention)


def written(a: Architecture, read: int) -> Flops:
    """FLOPs of generating one token with a cache when it attends to `read` tokens, itself included."""
    source = 0 if a.encoder is None else a.encoder.n_ctx
    products = 2.0 * (multiplied(a) - source_weights(a))
    return Flops(products, 4.0 * a.n_layers * a.n_heads * a.d_head * (read + source))


def source_weights(a: Architecture) -> int:
    """The number of weights that compute keys and values from an encoder's output."""
    return 0 if a.encoder is None else a.n_layers * 2 * a.d_model * a.n_kv_heads * a.d_head


def readout_flops(a: Architecture) -> int:
    """The number of weights from the last vector to the logits."""
    if a.readout == "none":
        return 0
    between = a.embed_width * a.d_model if a.readout == "bert" or a.d_embed else 0
    return a.n_vocab * a.embed_width + between


def multiplied(a: Architecture) -> int:
    """The number of weights that a token is multiplied with: the matrices of blocks and readout, tied or not."""
    q, kv = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    attention = 2 * a.d_model * q + 2 * a.d_model * kv
    ups = (2 if a.mlp.form == "gated" else 1) if a.mlp.n_hidden else 0
    by_width = (ups + (a.mlp.n_hidden > 0)) * a.d_model
    mlp = by_width * a.d_ff + max(a.mlp.n_hidden - 1, 0) * a.d_ff**2
    mlp += a.d_model**2 if a.mlp.n_hidden == 0 else 0
    if a.mlp.experts:
        mlp = a.mlp.experts_per_token * mlp + a.mlp.experts * a.d_model + by_width * a.mlp.shared_d_ff
        mlp += a.d_model * (a.mlp.shared_d_ff > 0 and a.mlp.shared_gate == "sigmoid")
    reads = 1 + (a.encoder is not None)
    return a.d_embed * a.d_model + a.n_layers * (reads * attention + mlp) + readout_flops(a)
