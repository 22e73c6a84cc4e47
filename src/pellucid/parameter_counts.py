"""The number of parameters of an architecture, by part, in all and for one position."""

import itertools
import math

from pellucid.architecture import Architecture

#: limit on the numbers in a position table, unless the weights have more: 131,072 positions of 128 coordinates
LARGEST_TABLE = 1 << 24


def oversized_table(a: Architecture, n_numbers: int) -> str:
    """What is wrong with a position table, which no file holds, beside weights of `n_numbers`; "" for a usual one."""
    for part in (a, a.encoder):
        if part is not None and (size := part.n_ctx * part.position_table_width) > max(LARGEST_TABLE, n_numbers):
            return f"positions of n_ctx = {part.n_ctx} would be a table of {size:,} numbers"
    return ""


def count_parameters(a: Architecture) -> dict[str, int]:
    """The number of trainable parameters by part: embed, positions, attention, mlp, norms, unembed, total.

    A tied unembedding counts once, under embed. Item X-PARAMS of docs/mathematics.md.
    """
    m, d, e, s = a.d_model, a.d_head, a.embed_width, a.embed_sum_width
    q, kv = a.n_heads * d, a.n_kv_heads * d
    bias_qkv, bias_out = a.attention.bias in ("qkv", "all"), a.attention.bias in ("out", "all")
    attention = attention_matrices(a) + bias_qkv * (q + 2 * kv) + bias_out * m
    has_gain = a.norm.gain != "1"
    own = {"none": 0, "rms": 2 * d, "rms_all": q + kv, "layer": 2 * d, "layer_own": q + kv}
    attention += has_gain * own[a.attention.qk_norm]
    attention += 2 * d * (a.attention.qk_norm == "layer" and a.norm.bias == "all")
    norm = {"none": 0, "layer": has_gain + (a.norm.bias == "all"), "rms": has_gain}[a.norm.kind]
    # the first block alone may have others
    norms_of_blocks = a.n_layers * len(a.norms_of(1)) - (len(a.norms_of(1)) - len(a.norms_of(0))) * (a.n_layers > 0)
    cross = a.encoder is not None
    has_bias = a.readout in ("affine", "bert") and a.readout_bias in ("all", "logits")
    counts = {
        "embed": a.n_vocab * e
        + (a.n_segments + len(a.ngrams) * a.ngram_rows) * s
        + (a.d_embed + (a.embed_projection == "sum")) * m,
        "positions": math.prod(a.position_weights) if a.position_weights else 0,
        "attention": a.n_layers * (1 + cross) * attention,
        "mlp": a.n_layers * mlp_weights(a, a.mlp.experts, a.mlp.bias == "all"),
        "norms": norm * m * (norms_of_blocks + a.n_layers * cross + (a.final_norm == "norm"))
        + norm * s * (a.embed_norm == "norm"),
        "unembed": (a.unembed == "untied") * a.n_vocab * e + before_unembedding(a) + has_bias * a.n_vocab,
    }
    if a.readout == "bert":
        counts["unembed"] += norm * e + (a.readout_bias in ("all", "dense")) * e
    if a.encoder is not None:
        counts["encoder"] = (
            sum(count for part, count in count_parameters(a.encoder).items() if part not in ("unembed", "total"))
            - (a.source_embed == "shared") * a.n_vocab * e
        )
    return counts | {"total": sum(counts.values())}


def count_active_parameters(a: Architecture) -> int:
    """The number of parameters that one position uses: all of them, without the experts that it does not use."""
    experts, used, has_bias = a.mlp.experts, a.mlp.experts_per_token, a.mlp.bias == "all"
    unused = mlp_weights(a, experts, has_bias) - mlp_weights(a, used, has_bias)
    of_encoder = 0 if a.encoder is None else count_parameters(a.encoder)["total"] - count_active_parameters(a.encoder)
    return count_parameters(a)["total"] - a.n_layers * unused - of_encoder


def attention_matrices(a: Architecture) -> int:
    """The number of weights in the matrices of one attention: of queries, keys, values and its output."""
    return 2 * a.d_model * a.d_head * (a.n_heads + a.n_kv_heads)


def mlp_weights(a: Architecture, n_experts: int, has_bias: bool) -> int:
    """The number of weights in one layer's MLP, or in its mixture with so many of its experts; biases where wanted."""

    def one(d_ff: int) -> int:
        widths = [a.d_model] + [d_ff] * a.mlp.n_hidden + [a.d_model]
        gate = (a.mlp.form == "gated") * (a.d_model + has_bias) * d_ff
        return gate + sum((n_in + has_bias) * n_out for n_in, n_out in itertools.pairwise(widths))

    if not a.mlp.experts:
        return one(a.d_ff)
    mixture = a.mlp.experts * a.d_model + n_experts * one(a.d_ff)
    if a.mlp.shared_d_ff:
        mixture += one(a.mlp.shared_d_ff) + a.d_model * (a.mlp.shared_gate == "sigmoid")
    return mixture


def before_unembedding(a: Architecture) -> int:
    """The number of weights in the matrix between the last vector of the stream and W_U; 0 where there is none."""
    width = {"none": 0, "bert": a.embed_width}.get(a.readout, a.d_embed)
    return width * a.d_model
