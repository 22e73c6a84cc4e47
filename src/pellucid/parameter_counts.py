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
    m, d, f, e, s = a.d_model, a.d_head, a.d_ff, a.embed_width, a.embed_sum_width
    q, kv = a.n_heads * d, a.n_kv_heads * d
    bias_qkv, bias_out = a.attention.bias in ("qkv", "all"), a.attention.bias in ("out", "all")
    attention = m * q + 2 * m * kv + q * m + bias_qkv * (q + 2 * kv) + bias_out * m
    has_gain = a.norm.gain != "1"
    own = {"none": 0, "rms": 2 * d, "rms_all": q + kv, "layer": 2 * d, "layer_own": q + kv}
    attention += has_gain * own[a.attention.qk_norm]
    attention += 2 * d * (a.attention.qk_norm == "layer" and a.norm.bias == "all")
    mlp = count_mlp(a, f)
    if a.mlp.experts:
        mlp = a.mlp.experts * (mlp + m) + (count_mlp(a, a.mlp.shared_d_ff) if a.mlp.shared_d_ff else 0)
        mlp += m * (a.mlp.shared_d_ff > 0 and a.mlp.shared_gate == "sigmoid")
    norm = {"none": 0, "layer": has_gain * m + m * (a.norm.bias == "all"), "rms": has_gain * m}[a.norm.kind]
    # the first block alone may have others
    norms_of_blocks = a.n_layers * len(a.norms_of(1)) - (len(a.norms_of(1)) - len(a.norms_of(0))) * (a.n_layers > 0)
    has_b_P = a.embed_projection == "sum"
    cross = attention if a.encoder is not None else 0
    counts = {
        "embed": a.n_vocab * e + (a.n_segments + len(a.ngrams) * a.ngram_rows) * s + a.d_embed * m + has_b_P * m,
        "positions": math.prod(a.position_weights) if a.position_weights else 0,
        "attention": a.n_layers * (attention + cross),
        "mlp": a.n_layers * mlp,
        "norms": norm * (norms_of_blocks + a.n_layers * (a.encoder is not None))
        + (a.embed_norm == "norm") * norm * s // m
        + (a.final_norm == "norm") * norm,
        "unembed": (a.unembed == "untied") * a.n_vocab * e,
    }
    norm_of_rows = norm * e // m
    counts["unembed"] += {
        "linear": a.d_embed * m,
        "affine": a.d_embed * m + a.n_vocab,
        "bert": m * e
        + (a.readout_bias in ("all", "dense")) * e
        + norm_of_rows
        + (a.readout_bias in ("all", "logits")) * a.n_vocab,
    }.get(a.readout, 0)
    if a.encoder is not None:
        counts["encoder"] = (
            sum(count for part, count in count_parameters(a.encoder).items() if part not in ("unembed", "total"))
            - (a.source_embed == "shared") * a.n_vocab * e
        )
    return counts | {"total": sum(counts.values())}


def count_mlp(a: Architecture, d_ff: int) -> int:
    """The number of parameters of one MLP, or of one expert, whose hidden layers are `d_ff` wide."""
    widths = [a.d_model] + [d_ff] * a.mlp.n_hidden + [a.d_model]
    has_bias = a.mlp.bias == "all"
    mlp = sum(n_in * n_out + has_bias * n_out for n_in, n_out in itertools.pairwise(widths))
    return mlp + (a.mlp.form == "gated") * (a.d_model * d_ff + has_bias * d_ff)


def count_active_parameters(a: Architecture) -> int:
    """The number of parameters that one position uses: all of them, without the experts that it does not use."""
    unused = (a.mlp.experts - a.mlp.experts_per_token) * count_mlp(a, a.d_ff) if a.mlp.experts else 0
    of_encoder = 0 if a.encoder is None else count_parameters(a.encoder)["total"] - count_active_parameters(a.encoder)
    return count_parameters(a)["total"] - a.n_layers * unused - of_encoder
