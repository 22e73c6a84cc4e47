"""The layers of a block: norm, multi-layer perceptron and attention, for every option of an Architecture.

S0 sections 2 and 3, S1 1.1, S3 slides 9 to 13, S4 "Matrix Representation". Inside, every array has a batch axis b
first; letters as in pellucid.tensor_names.
"""

from dataclasses import dataclass

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.embedding import (
    dynamic_base,
    frequencies,
    longrope_factor,
    rotate,
    scaled_frequencies,
    yarn_factor,
    yarn_frequencies,
)
from pellucid.reference.functions import (
    ACTIVATION,
    layer_norm,
    layer_scale,
    rms_norm,
    rms_scale,
    soft_cap,
    softmax,
)
from pellucid.reference.masks import bidirectional_mask, causal_mask, window_mask
from pellucid.reference.positions import SCORE_BIAS
from pellucid.reference.tap import NoRecorder
from pellucid.reference.tape import Array, constant, real
from pellucid.reference.weights import Weights, part


@dataclass(frozen=True)
class LayerInputs:
    """The inputs that all blocks of one call share besides the stream: positions, a mask, an encoder's output and its
    mask, and the table of weights of a positional scheme in the scores."""

    positions: np.ndarray
    mask: np.ndarray | None = None
    source: Array | None = None
    source_mask: np.ndarray | None = None
    relative: Array | None = None


def normalise(a: Architecture, w: Weights, name: str, x: Array, tap: NoRecorder) -> Array:
    """x, layer_norm(x) or rms_norm(x) with the gain and bias called `name`, and its inner tensors   [..., m]

    Without a norm there is no tensor of that name, as in pellucid.tensor_names.

    S1 1.1.1.1, S3 slide 9, S4 "Normalization and Dropout". Errata E-26, E-51.
    """
    if a.norm.kind == "none":
        return x
    called = name.replace(".", "_")
    inner = tap.at(called)
    scale = inner("scale", (layer_scale if a.norm.kind == "layer" else rms_scale)(x, a.norm.eps, a.norm.eps_at))
    centred = x - np.mean(x, axis=-1, keepdims=True) if a.norm.kind == "layer" else x
    y = gain(a, w, name) * inner("normalized", centred / scale)
    return tap(called, y + w[f"{name}.bias"] if f"{name}.bias" in w else y)


def gain(a: Architecture, w: Weights, name: str) -> Array:
    """g, or 1 + g, of the norm called `name`, or the number 1   [..] or []

    S4 "Normalization and Dropout"; 1 + g: Gemma Team et al. 2024; 1: Groeneveld et al. 2024 (OLMo), section 2.1.
    """
    if a.norm.gain == "1":
        return real(1.0)
    g = real(w[f"{name}.gain"])
    return 1.0 + g if a.norm.gain == "1+g" else g


def linear(w: Weights, name: str, x: Array) -> Array:
    """x W^T, plus the bias if the weights have one   [..., in] -> [..., out].   S0 1.2 (Id (x) W) X = X W^T."""
    y = x @ real(w[f"{name}.weight"]).T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def mlp(a: Architecture, w: Weights, x: Array, tap: NoRecorder) -> Array:
    """m(x) of a block: one MLP, or a mixture of experts   [b, n, m]

    S0 (2.5) to (2.7), S1 1.1 step 4, S2 "MLP Layer", S3 slide 10, S4 "MLP layers". Errata E-02, E-52, E-56.
    """
    one = mixture_of_experts if a.mlp.experts else single_mlp
    return one(a, part(w, "mlp"), x, tap.at("mlp"))


def single_mlp(a: Architecture, w: Weights, x: Array, tap: NoRecorder) -> Array:
    """a_l = f(a_{l-1} W_l^T + b_l) for each hidden layer, then W_out; gated: (f(gate) * up) W_out   [b, n, m]

    S0 (2.5) to (2.7); gated: Shazeer 2020, "GLU Variants Improve Transformer". Errata E-02, E-52, E-56.
    """
    f = ACTIVATION[a.mlp.activation]
    for n in range(a.mlp.n_hidden):
        number = f".{n}" if a.mlp.n_hidden > 1 else ""
        gate = tap("gate", linear(w, "gate", x)) if a.mlp.form == "gated" else None
        pre = tap(f"pre{number}", linear(w, f"up.{n}", x))
        x = tap(f"post{number}", f(pre) if gate is None else f(gate) * pre)
    return linear(w, "down", x)


def mixture_of_experts(a: Architecture, w: Weights, x: Array, tap: NoRecorder) -> Array:
    """sum_e g_e m_e(x) + s(x) m_shared(x), with g_e = 0 for experts that a position does not use   [b, n, m]

    Shazeer et al. 2017, section 2, equation (1); the shared expert: Dai et al. 2024 (DeepSeekMoE), section 3.2.
    """
    g = tap("expert_weights", expert_weights(a, tap("router", linear(w, "router", x))))
    y = 0.0
    for e in range(a.mlp.experts):
        inner = tap.at(f"expert_{e}")
        y = y + inner("result", g[..., e : e + 1] * single_mlp(a, part(w, f"experts.{e}"), x, inner))
    if a.mlp.shared_d_ff:
        inner = tap.at("shared")
        shared = single_mlp(a, part(w, "shared.mlp"), x, inner)
        scale = 1.0 / (1.0 + np.exp(-linear(w, "shared.scale", x))) if a.mlp.shared_gate == "sigmoid" else 1.0
        y = y + inner("result", scale * shared)
    return y


def expert_weights(a: Architecture, r: Array) -> Array:
    """g: softmax of the k largest of the router's logits, or these entries of the softmax of all   [.., e] -> [.., e]

    Jiang et al. 2024 (Mixtral), section 2.1, TopK; Fedus et al. 2021 (Switch), section 2.1.
    """
    rank = np.argsort(np.argsort(-constant(r), axis=-1, kind="stable"), axis=-1)
    is_chosen = rank < a.mlp.experts_per_token
    if a.mlp.router_softmax == "chosen":
        return softmax(np.where(is_chosen, r, -np.inf))
    return np.where(is_chosen, softmax(r), 0.0)


# Attention ----------------------------------------------------------------------------------------


def self_attention(a: Architecture, layer: int, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """concat_h(sum_j A^h_ij v_j) W_O^T + b_O, where the stream attends to itself   [b, i, m] -> [b, i, m]

    S0 3.4, S1 1.1.2, S2 H(x), S3 slides 11 to 13, S4 "Value -> Embedding & Multi-Head".
    """
    w, tap = part(w, "attn"), tap.at("attn")
    q, k, v = _queries_keys_values(a, w, x, x, tap)
    if a.rotates(layer):
        # a batch of positions needs an axis for the heads
        places = reading.positions if reading.positions.ndim == 1 else reading.positions[:, None]
        turn = {"d_rotary": a.d_rotary, "layout": a.positions.layout, "w": rotary_frequencies(a, layer, places)}
        turn["c"] = rotary_factor(a, layer)
        q, k = tap("rot_q", rotate(q, places, **turn)), tap("rot_k", rotate(k, places, **turn))
    visible = visible_keys(a, layer, q.shape[2], k.shape[2], reading.mask)
    return _mix(a, w, q, k, v, visible, distances(a, q.shape[2], k.shape[2], reading.relative), tap)


def distances(a: Architecture, n: int, n_keys: int, table: Array | None) -> Array:
    """The bias of the scores of the last n of n_keys positions by their distance   [h, i, j], or 0

    Press et al. 2021; Raffel et al. 2020, section 2.1.
    """
    return SCORE_BIAS[a.positions.kind](a, n, n_keys, table) if a.biases_scores else 0.0


def rotary_frequencies(a: Architecture, layer: int, positions: np.ndarray) -> np.ndarray:
    """w_k of a layer's rotary planes, scaled as positions.scaling says   [d_rotary / 2]

    Su et al. 2021; another base, unscaled, in layers with a window: Gemma Team et al. 2025 (Gemma 3), section 2; a
    factor for each plane (longrope): Ding et al. 2024, section 3; of the list that the largest position of a row [n] or
    of each row [b, 1, n] calls for, so that the result then is [1, d_rotary / 2] or [b, 1, 1, d_rotary / 2].
    """
    p = a.positions
    n = a.d_rotary
    if p.local_base and a.window(layer):
        return frequencies(n // 2, p.local_base)
    if p.scaling == "yarn":
        return yarn_frequencies(n, p.base, p.factor, p.low, p.high, p.n_trained)
    if p.scaling == "dynamic":
        return frequencies(n // 2, dynamic_base(p.base, p.factor, a.n_ctx, p.n_trained, n))
    w = frequencies(n // 2, p.base)
    if p.scaling == "longrope":
        short, long = (np.asarray(factors or 1.0) for factors in (p.short_factors, p.long_factors))
        is_long = positions.max(axis=-1, keepdims=True, initial=0)[..., None] >= p.n_trained
        return w / np.where(is_long, long, short)
    return scaled_frequencies(w, p.scaling, p.factor, p.low, p.high, p.n_trained)


def rotary_factor(a: Architecture, layer: int) -> float:
    """The factor of a layer's rotated coordinates: 1 but for yarn and longrope

    Peng et al. 2023, equation (22); Ding et al. 2024.
    """
    p = a.positions
    if p.local_base and a.window(layer):
        return 1.0
    if p.scaling == "longrope":
        return longrope_factor(p.factor, p.n_trained, p.attention_factor)
    return yarn_factor(p.factor, p.attention_factor) if p.scaling == "yarn" else 1.0


def cross_attention(a: Architecture, w: Weights, x: Array, reading: LayerInputs, tap: NoRecorder) -> Array:
    """Attention with keys and values from an encoder's output, without rotation, distance bias or window

    S4 figure (Vaswani et al. 2017)   [b, i, m] reads [b, j, m] -> [b, i, m].
    """
    w, tap = part(w, "cross"), tap.at("cross")
    q, k, v = _queries_keys_values(a, w, x, reading.source, tap)
    mask = bidirectional_mask(q.shape[2], k.shape[2]) if reading.source_mask is None else reading.source_mask
    return _mix(a, w, q, k, v, _with_heads(mask), 0.0, tap)


def visible_keys(a: Architecture, layer: int, n: int, n_keys: int, mask: np.ndarray | None) -> np.ndarray:
    """The keys that layer `layer` lets the last n of n_keys positions read   [b or 1, 1, i, j]

    S0 3.1, S1 1.1.2 m_ss', S3 slide 13 "masked for i", S4 "Causal and Bidirectional Attention". Erratum E-21.
    """
    unlimited = a.attention.mask == "bidirectional"
    rule = (bidirectional_mask if unlimited else causal_mask)(n, n_keys) if mask is None else np.asarray(mask, bool)
    if rule.shape[-2:] != (n, n_keys):
        raise ValueError(f"mask has shape {rule.shape}: expected [..., {n}, {n_keys}], queries by keys")
    window = a.window(layer)
    return _with_heads(rule & window_mask(n, window, n_keys) if window else rule)


def _with_heads(mask: np.ndarray) -> np.ndarray:
    """[i, j] or [b, i, j] as [b or 1, 1, i, j]."""
    mask = np.asarray(mask, bool)
    return mask[None, None] if mask.ndim == 2 else mask[:, None]


def _queries_keys_values(
    a: Architecture, w: Weights, x: Array, y: Array, tap: NoRecorder
) -> tuple[Array, Array, Array]:
    """q from x, k and v from y, split into heads [b, h, i, d]; q and k normalised as attention.qk_norm says."""

    def heads(name: str, z: Array) -> Array:
        z = linear(w, name, z)
        return np.swapaxes(np.reshape(z, (*z.shape[:2], -1, a.d_head)), 1, 2)

    q, k, v = tap("q", heads("query", x)), tap("k", heads("key", y)), tap("v", heads("value", y))
    return _normalised_heads(a, w, "query_norm", q), _normalised_heads(a, w, "key_norm", k), v


def _normalised_heads(a: Architecture, w: Weights, name: str, q: Array) -> Array:
    """Queries or keys [b, h, i, d], each head normalised (rms, layer, layer_own), or all heads at once (rms_all)

    layer: Dehghani et al. 2023, section 2; a gain for each head: Bellagente et al. 2024 (StableLM 2).
    """
    if a.attention.qk_norm == "none":
        return q
    g, (b, h, n, d) = gain(a, w, name), q.shape
    if a.attention.qk_norm == "rms":
        return rms_norm(q, g, a.norm.eps)
    if a.attention.qk_norm == "layer":
        return layer_norm(q, g, w.get(f"{name}.bias", 0.0), a.norm.eps)
    if a.attention.qk_norm == "layer_own":
        return layer_norm(q, g if a.norm.gain == "1" else np.reshape(g, (h, 1, d)), 0.0, a.norm.eps)
    whole = np.reshape(np.swapaxes(q, 1, 2), (b, n, h * d))
    return np.swapaxes(np.reshape(rms_norm(whole, g, a.norm.eps), (b, n, h, d)), 1, 2)


def _mix(
    a: Architecture, w: Weights, q: Array, k: Array, v: Array, visible: np.ndarray, distance, tap: NoRecorder
) -> Array:
    """sum_h (sum_j softmax_j(scale q_i . k_j + distance) v_j) W_O^h^T + b_O."""
    shared = np.arange(a.n_heads) * a.n_kv_heads // a.n_heads
    scores = soft_cap(a.score_scale * np.einsum("bhid,bhjd->bhij", q, k[:, shared]), a.attention.score_cap) + distance
    scores = tap("scores", np.where(visible, scores, -np.inf))
    pattern = tap("pattern", softmax(scores))
    z = tap("z", np.einsum("bhij,bhjd->bhid", pattern, v[:, shared]))
    W_O = np.reshape(real(w["out.weight"]), (a.d_model, a.n_heads, a.d_head))
    out = np.sum(tap("result", np.einsum("bhid,mhd->bhim", z, W_O)), axis=1)
    return out + w["out.bias"] if "out.bias" in w else out
