"""The transformer: tokens to logits, for every option of an Architecture.

S0 section 4, S1 1.1, S2, S3 slides 3 to 13, S4 "Matrix Representation", with the corrections of the errata.
Inside, every array has a batch axis b first; letters as in pellucid.tensor_names.
"""

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.embedding import check_tokens, ngram_embed
from pellucid.reference.functions import ACTIVATION, log_softmax, soft_cap, softmax
from pellucid.reference.layers import LayerInputs, cross_attention, linear, mlp, normalise, self_attention
from pellucid.reference.positions import POSITION_ROWS
from pellucid.reference.tap import OFF, NoRecorder, TensorRecorder
from pellucid.reference.tape import Array, real
from pellucid.reference.weights import Weights, check_weights, part


def forward(
    architecture: Architecture, weights: Weights, tokens: np.ndarray | None = None, *,
    positions: np.ndarray | None = None, mask: np.ndarray | None = None, segments: np.ndarray | None = None,
    source: Array | None = None, source_mask: np.ndarray | None = None, embeddings: Array | None = None,
    before: np.ndarray | None = None, tap: NoRecorder = OFF,
) -> Array:  # fmt: skip
    """T = unembedding . decoder stack . embedding: logits of the token after each position

    tokens [n] or [b, n] -> logits [n, v] or [b, n, v].   S0 4.2 T, 4.3 l(S) (the last row); S1 1.1 y_bsv; S3
    slide 6; S4 "Next Token Prediction" S. Errata E-16 (any n <= n_ctx), E-31, E-57.

    positions    [n] or [b, n], 0 ... n - 1 unless given
    mask         True = may read, [i, j] or [b, i, j]; replaces the causal, bidirectional or prefix rule (prefix
                 without a mask is causal); windows still narrow it
    segments     [n] or [b, n] for architectures with n_segments, 0 unless given
    source       an encoder's output [j, m] or [b, j, m] for blocks that read one; see `encode`
    source_mask  True = may read, [i, j] or [b, i, j]
    embeddings   [n, e] or [b, n, e] in place of W_E[t], before projection (e is m without d_embed), scaling and
                 positions; tokens may then be left out
    before       [n'] or [b, n'] earlier tokens that a cache holds, which n-grams include
    tap          is called with every named tensor

    Raises ValueError for weights that are not the architecture's, tokens outside the vocabulary, more positions
    than n_ctx, a source that is missing or that no block reads, or an architecture without a readout (`hidden`).
    """
    x = hidden(
        architecture, weights, tokens, positions=positions, mask=mask, segments=segments, source=source,
        source_mask=source_mask, embeddings=embeddings, before=before, tap=tap,
    )  # fmt: skip
    logits = readout(architecture, weights, x if x.ndim == 3 else x[None], tap)
    return logits if x.ndim == 3 else logits[0]


def hidden(
    architecture: Architecture, weights: Weights, tokens: np.ndarray | None = None, *,
    positions: np.ndarray | None = None, mask: np.ndarray | None = None, segments: np.ndarray | None = None,
    source: Array | None = None, source_mask: np.ndarray | None = None, embeddings: Array | None = None,
    before: np.ndarray | None = None, tap: NoRecorder = OFF,
) -> Array:  # fmt: skip
    """decoder stack . embedding: the stream before the readout, which is the result where readout = none   [.., n, m]

    S0 4.2 D and 4.3, S3 slide 6 x_i. Everything else as for `forward`.
    """
    a, w = architecture, weights
    check_weights(a, w)
    if (source is None) != (a.encoder is None):
        raise ValueError("expected a source if, and only if, the architecture has an encoder: see encode")
    x, batched = _first_stream(a, w, tokens, positions, segments, embeddings, tap, before)
    places = _checked_positions(a, positions, x.shape[1])
    source = None if source is None else real(source) if np.ndim(source) == 3 else real(source)[None]
    x = _blocks(a, w, x, LayerInputs(places, mask, source, source_mask, w.get("relative.weight")), tap)
    return x if batched else x[0]


def encode(
    architecture: Architecture,
    weights: Weights,
    tokens: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    tap: NoRecorder = OFF,
) -> Array:
    """The encoder's stream after its last block and its final norm, for cross-attention   [n] or [b, n] -> [.., n, m]

    S4 "Illustration from Vaswani et al. (2017)". `weights` are those of the whole encoder-decoder.
    """
    a = architecture.encoder
    if a is None:
        raise ValueError("this architecture has no encoder")
    tap, w = tap.at("encoder"), part(weights, "encoder")
    if architecture.source_embed == "shared":
        w["embed.token.weight"] = weights["embed.token.weight"]
    x, batched = _first_stream(a, w, tokens, None, None, None, tap)
    x = _blocks(
        a, w, x, LayerInputs(_checked_positions(a, None, x.shape[1]), mask, relative=w.get("relative.weight")), tap
    )
    return x if batched else x[0]


def encoder_decoder(
    architecture: Architecture, weights: Weights, source: np.ndarray, tokens: np.ndarray, tap: NoRecorder = OFF
) -> Array:
    """Logits of the target tokens given the source tokens   [n'] , [n] -> [n, v].   S4 figure (Vaswani et al. 2017)."""
    return forward(architecture, weights, tokens, source=encode(architecture, weights, source, tap=tap), tap=tap)


def soft_forward(architecture: Architecture, weights: Weights, t: Array) -> Array:
    """T applied to any matrix t, whose rows need not be one-hot   [.., n, v] -> [.., n, v].

    S0 4.2, 0 "euclidean space".
    """
    return forward(architecture, weights, embeddings=real(t) @ real(weights["embed.token.weight"]))


def trace_by_definition(
    architecture: Architecture, weights: Weights, tokens: np.ndarray, **reading
) -> dict[str, np.ndarray]:
    """Every named tensor of one pass, by name, with probs and (from the second token on) loss   pellucid.tensor_names

    probs = softmax(logits) [b, i, v]; loss [b, i] = -log P(t_{i+1} | t_0 ... t_i) for i < n - 1. S0 4.3, S4.
    """
    tap = TensorRecorder()
    forward(architecture, weights, tokens, tap=tap, **reading)
    logits = tap.values["logits"]
    tap("probs", softmax(logits))
    targets = np.atleast_2d(tokens)[:, 1:, None]
    # log_softmax, because a probability that is too small for float64 still has a finite logarithm
    tap("loss", -np.take_along_axis(log_softmax(logits)[:, :-1], targets, axis=-1)[..., 0])
    return tap.values


# Embedding and readout ----------------------------------------------------------------------------


def _first_stream(a, w, tokens, positions, segments, embeddings, tap, before=None) -> tuple[Array, bool]:
    """The embedded stream [b, n, m] and whether the caller gave a batch axis."""
    if tokens is None and embeddings is None:
        raise ValueError("neither tokens nor embeddings were given: give one of them")
    if embeddings is None:
        tokens = check_tokens(tokens, a.n_vocab)  # type: ignore[arg-type]
        batched = tokens.ndim == 2
        e = real(w["embed.token.weight"])[tokens if batched else tokens[None]]
    else:
        embeddings = real(embeddings)
        batched = embeddings.ndim == 3
        e = embeddings if batched else embeddings[None]
    history = None if tokens is None else np.atleast_2d(check_tokens(tokens, a.n_vocab))
    if before is not None and history is not None:
        history = np.concatenate([np.atleast_2d(check_tokens(before, a.n_vocab)), history], axis=1)
    return embed(a, w, e, _checked_positions(a, positions, e.shape[1]), segments, tap, history), batched


def _checked_positions(a: Architecture, positions: np.ndarray | None, n: int) -> np.ndarray:
    """The positions, 0 ... n - 1 unless given. Raises ValueError for positions beyond n_ctx."""
    places = np.arange(n) if positions is None else np.asarray(positions)
    if n > a.n_ctx or (places.size and not 0 <= places.min() <= places.max() < a.n_ctx):
        raise ValueError(f"{n} positions up to {places.max()} were given: the context is n_ctx = {a.n_ctx}")
    return places


def embed(
    a: Architecture, w: Weights, e: Array, positions: np.ndarray, segments: np.ndarray | None, tap: NoRecorder,
    history: np.ndarray | None = None,
) -> Array:  # fmt: skip
    """x_i = norm(c e_i P^T + position_i + W_S[s_i] + n-grams_i),  e_i = W_E[t_i]   [b, n, e] -> [b, n, m]

    embed_projection = sum: x_i = norm(c e_i + position_i + W_S[s_i] + n-grams_i) P^T + b_P.

    S0 (1.3) and Remark 1.2, S1 1.1.1, S3 slide 5, S4 "Positional encoding"; segments and the norm as in BERT; P, which
    there is with d_embed alone, as in Lan et al. 2019, section 3.1; of the sum as in Clark et al. 2020 (ELECTRA).
    `history` [b, n' + n]: all tokens up to the last position.
    """
    of_sum = a.embed_projection == "sum"
    e = linear(w, "embed.projection", real(e)) if a.d_embed and not of_sum else real(e)
    x = tap("embed", a.embed_factor * e)
    if a.adds_positions:
        rows = POSITION_ROWS[a.positions.kind](a, w.get("embed.position.weight"), positions)
        x = x + tap("pos_embed", np.broadcast_to(rows, x.shape))
    if a.n_segments:
        kinds = np.zeros(x.shape[:2], int) if segments is None else check_tokens(segments, a.n_segments)
        x = x + tap("seg_embed", np.broadcast_to(real(w["embed.segment.weight"])[kinds], x.shape))
    if a.ngrams:
        if history is None:
            raise ValueError(
                f"the n-gram tables of ngrams = {a.ngrams} are indexed by tokens: give the "
                "tokens too, not embeddings alone"
            )
        tables = {n: w[f"embed.ngrams.tables.{n}.weight"] for n in a.ngrams}
        x = x + tap("ngram_embed", ngram_embed(tables, history, np.broadcast_to(positions, x.shape[:2])))
    x = normalise(a, w, "embed.norm", x, tap) if a.embed_norm == "norm" else x
    return tap("embed_projected", linear(w, "embed.projection", x)) if of_sum else x


def readout(a: Architecture, w: Weights, x: Array, tap: NoRecorder = OFF) -> Array:
    """x W_U^T (linear), x W_U^T + b_U (affine), norm(f(x W^T + b)) W_U^T + b_U (bert), capped   [b, n, m] -> [b, n, v]

    S0 (1.5), S3 slide 6, S4 "Next Token Prediction"; tied: W_U is W_E, erratum E-32. logit_scale multiplies W_U, and
    readout_bias names which of the bert readout's b and b_U there are. With d_embed x Q^T stands for x where the
    readout is linear or affine (Zhang et al. 2022, OPT).
    """
    if a.readout == "none":
        raise ValueError("readout = none: this architecture has no logits, so call `hidden`")
    W_U = a.unembed_scale * real(w["embed.token.weight" if a.unembed == "tied" else "unembed.weight"])
    if a.readout == "bert":
        x = normalise(a, w, "unembed.norm", ACTIVATION[a.mlp.activation](linear(w, "unembed.dense", x)), OFF)
    elif a.d_embed:
        x = linear(w, "unembed.projection", x)
    has_b_U = a.readout in ("affine", "bert") and a.readout_bias in ("all", "logits")
    logits = x @ W_U.T + w["unembed.bias"] if has_b_U else x @ W_U.T
    return tap("logits", soft_cap(logits, a.logit_cap))


# Blocks -------------------------------------------------------------------------------------------


def _blocks(a: Architecture, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """The decoder stack, then the final norm.   S0 4.2 D, S3 slide 3. The final norm is in no text: erratum E-57."""
    for layer in range(a.n_layers):
        x = BLOCK[a.block](a, layer, part(w, f"blocks.{layer}"), x, reading, tap.at(f"blocks.{layer}"))
    return normalise(a, w, "final_norm", x, tap) if a.final_norm == "norm" else x


def norm_before_attention(a: Architecture, layer: int, w: Weights, x: Array, tap: NoRecorder) -> Array:
    """norm_1(x), or x in block 0 where first_norm = none   [b, n, m]

    S4 "Normalization and Dropout"; Warner et al. 2024 (ModernBERT).
    """
    return x if layer == 0 and a.first_norm == "none" else normalise(a, w, "norm_1", x, tap)


def pre_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x += c attn(norm_1(x));  [x += c cross(norm_cross(x), source);]  x += c mlp(norm_2(x)),  c = residual_scale

    Every block here multiplies what its sublayers add by this c (IBM 2024, Granite 3.0 Language Models).
    S1 1.1.1.1, S4 "Normalization and Dropout"; S0 (4.1), (4.2) where norm is none. Errata E-04, E-57, E-66.
    """
    x = tap("resid_pre", x)
    normed = norm_before_attention(a, layer, w, x, tap)
    x = tap("resid_mid", x + tap("attn_out", a.residual_scale * self_attention(a, layer, w, normed, reading, tap)))
    if reading.source is not None:
        normed = normalise(a, w, "norm_cross", x, tap)
        x = tap("resid_cross", x + tap("cross_out", a.residual_scale * cross_attention(a, w, normed, reading, tap)))
    normed = normalise(a, w, "norm_2", x, tap)
    return tap("resid_post", x + tap("mlp_out", a.residual_scale * mlp(a, w, normed, tap)))


def post_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x = norm_1(x + attn(x));  [x = norm_cross(x + cross(x, source));]  x = norm_2(x + mlp(x))

    S3 slide 8; S4 figure (Vaswani et al. 2017). Errata E-57, E-58.
    """
    x = tap("resid_pre", x)
    x = tap("resid_mid", x + tap("attn_out", a.residual_scale * self_attention(a, layer, w, x, reading, tap)))
    x = normalise(a, w, "norm_1", x, tap)
    if reading.source is not None:
        x = tap("resid_cross", x + tap("cross_out", a.residual_scale * cross_attention(a, w, x, reading, tap)))
        x = normalise(a, w, "norm_cross", x, tap)
    x = x + tap("mlp_out", a.residual_scale * mlp(a, w, x, tap))
    return tap("resid_post", normalise(a, w, "norm_2", x, tap))


def parallel_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x += attn(norm_1(x)) + mlp(norm_2(x)).   S0 Remark 4.1, counting X once: erratum E-05."""
    x = tap("resid_pre", x)
    normed = norm_before_attention(a, layer, w, x, tap)
    read = tap("attn_out", a.residual_scale * self_attention(a, layer, w, normed, reading, tap))
    normed = normalise(a, w, "norm_2", x, tap)
    return tap("resid_post", x + read + tap("mlp_out", a.residual_scale * mlp(a, w, normed, tap)))


def shared_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x += attn(norm_1(x)) + mlp(norm_1(x)).   S0 Remark 4.1 with one norm; Wang and Komatsuzaki 2021 (GPT-J)."""
    x = tap("resid_pre", x)
    normed = norm_before_attention(a, layer, w, x, tap)
    read = tap("attn_out", a.residual_scale * self_attention(a, layer, w, normed, reading, tap))
    return tap("resid_post", x + read + tap("mlp_out", a.residual_scale * mlp(a, w, normed, tap)))


def inner_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x += norm_1_out(attn(x));  x += norm_2_out(mlp(x)).   Liu et al. 2021 (Swin v2), section 3.2."""
    x = tap("resid_pre", x)
    read = normalise(a, w, "norm_1_out", self_attention(a, layer, w, x, reading, tap), tap)
    x = tap("resid_mid", x + tap("attn_out", a.residual_scale * read))
    written = normalise(a, w, "norm_2_out", mlp(a, w, x, tap), tap)
    return tap("resid_post", x + tap("mlp_out", a.residual_scale * written))


def sandwich_block(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """x += norm_1_out(attn(norm_1(x)));  x += norm_2_out(mlp(norm_2(x))).   Ding et al. 2021, section 3.3."""
    x = tap("resid_pre", x)
    read = self_attention(a, layer, w, norm_before_attention(a, layer, w, x, tap), reading, tap)
    x = tap("resid_mid", x + tap("attn_out", a.residual_scale * normalise(a, w, "norm_1_out", read, tap)))
    made = mlp(a, w, normalise(a, w, "norm_2", x, tap), tap)
    return tap("resid_post", x + tap("mlp_out", a.residual_scale * normalise(a, w, "norm_2_out", made, tap)))


BLOCK = {"pre": pre_block, "post": post_block, "parallel": parallel_block, "shared": shared_block}
BLOCK |= {"inner": inner_block, "sandwich": sandwich_block}
