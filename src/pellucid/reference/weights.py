"""The parameters theta in R^N of an architecture: their names, their shapes, and theta as one vector.

Weights are a dictionary from name to array, with the names the engine gives its parameters, so that
`{name: w.detach().double().numpy() for name, w in model.named_parameters()}` is one. Every matrix is stored out x in;
head h owns the rows h d ... (h + 1) d - 1 of query and the same columns of out.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.tape import constant

Weights = Mapping[str, Any]


def weight_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The name and shape of every trainable tensor of an architecture: the coordinates of Theta = R^N

    S0 Introduction "Trainable Parameters"; the tensors that S0, S1, S3 and S4 declare trainable.
    """
    shapes = _stream_shapes(a)
    if a.readout == "bert":
        shapes |= _linear_shapes("unembed.dense", a.embed_width, a.d_model, a.readout_bias in ("all", "dense"))
        shapes |= _norm_shapes(a, "unembed.norm", a.embed_width)
    elif a.d_embed and a.readout != "none":
        shapes |= _linear_shapes("unembed.projection", a.d_embed, a.d_model, False)
    if a.readout in ("affine", "bert") and a.readout_bias in ("all", "logits"):
        shapes["unembed.bias"] = (a.n_vocab,)
    if a.unembed == "untied":
        shapes["unembed.weight"] = (a.n_vocab, a.embed_width)
    if a.encoder is not None:
        own = _stream_shapes(a.encoder)
        if a.source_embed == "shared":
            del own["embed.token.weight"]
        shapes |= {f"encoder.{name}": shape for name, shape in own.items()}
    return shapes


def _stream_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """All shapes up to the stream after the last block."""
    shapes: dict[str, tuple[int, ...]] = {"embed.token.weight": (a.n_vocab, a.embed_width)}
    if a.d_embed:
        shapes |= _linear_shapes("embed.projection", a.d_model, a.d_embed, a.embed_projection == "sum")
    if a.adds_positions and a.position_weights:
        shapes["embed.position.weight"] = a.position_weights
    if a.n_segments:
        shapes["embed.segment.weight"] = (a.n_segments, a.embed_sum_width)
    shapes |= {f"embed.ngrams.tables.{n}.weight": (a.ngram_rows, a.embed_sum_width) for n in a.ngrams}
    if a.embed_norm == "norm":
        shapes |= _norm_shapes(a, "embed.norm", a.embed_sum_width)
    if a.biases_scores and a.position_weights:
        shapes["relative.weight"] = a.position_weights
    for l in range(a.n_layers):
        shapes |= _block_shapes(a, l)
    return shapes | (_norm_shapes(a, "final_norm") if a.final_norm == "norm" else {})


def _block_shapes(a: Architecture, layer: int) -> dict[str, tuple[int, ...]]:
    """In the order of the computation; the norm of a sublayer's output comes after that sublayer."""
    at = f"blocks.{layer}"

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return _norm_shapes(a, f"{at}.{name}") if name in a.norms_of(layer) else {}

    shapes = norm("norm_1") | _attention_shapes(a, f"{at}.attn") | norm("norm_1_out")
    if a.encoder is not None:
        shapes |= _norm_shapes(a, f"{at}.norm_cross") | _attention_shapes(a, f"{at}.cross")
    return shapes | norm("norm_2") | _mlp_shapes(a, f"{at}.mlp") | norm("norm_2_out")


def _mlp_shapes(a: Architecture, at: str) -> dict[str, tuple[int, ...]]:
    if not a.mlp.experts:
        return _single_mlp_shapes(a, at, a.d_ff)
    shapes = _linear_shapes(f"{at}.router", a.mlp.experts, a.d_model, False)
    for e in range(a.mlp.experts):
        shapes |= _single_mlp_shapes(a, f"{at}.experts.{e}", a.d_ff)
    if a.mlp.shared_d_ff:
        shapes |= _single_mlp_shapes(a, f"{at}.shared.mlp", a.mlp.shared_d_ff)
        if a.mlp.shared_gate == "sigmoid":
            shapes |= _linear_shapes(f"{at}.shared.scale", 1, a.d_model, False)
    return shapes


def _single_mlp_shapes(a: Architecture, at: str, d_ff: int) -> dict[str, tuple[int, ...]]:
    shapes, bias = {}, a.mlp.bias == "all"
    widths = [a.d_model] + [d_ff] * a.mlp.n_hidden
    for n, (n_in, n_out) in enumerate(pairwise(widths)):
        shapes |= _linear_shapes(f"{at}.up.{n}", n_out, n_in, bias)
    if a.mlp.form == "gated":
        shapes |= _linear_shapes(f"{at}.gate", d_ff, a.d_model, bias)
    return shapes | _linear_shapes(f"{at}.down", a.d_model, widths[-1], bias)


def _attention_shapes(a: Architecture, at: str) -> dict[str, tuple[int, ...]]:
    n_q, n_kv, bias = a.n_heads * a.d_head, a.n_kv_heads * a.d_head, a.attention.bias
    shapes = _linear_shapes(f"{at}.query", n_q, a.d_model, bias in ("qkv", "all"))
    shapes |= _linear_shapes(f"{at}.key", n_kv, a.d_model, bias in ("qkv", "all"))
    shapes |= _linear_shapes(f"{at}.value", n_kv, a.d_model, bias in ("qkv", "all"))
    shapes |= _linear_shapes(f"{at}.out", a.d_model, n_q, bias in ("out", "all"))
    if a.attention.qk_norm in ("rms", "layer"):
        n_q = n_kv = a.d_head
    if a.attention.qk_norm != "none" and a.norm.gain != "1":
        shapes |= {f"{at}.query_norm.gain": (n_q,), f"{at}.key_norm.gain": (n_kv,)}
    if a.attention.qk_norm == "layer" and a.norm.bias == "all":
        shapes |= {f"{at}.query_norm.bias": (n_q,), f"{at}.key_norm.bias": (n_kv,)}
    return shapes


def _linear_shapes(at: str, n_out: int, n_in: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{at}.weight": (n_out, n_in)} | ({f"{at}.bias": (n_out,)} if bias else {})


def _norm_shapes(a: Architecture, at: str, width: int = 0) -> dict[str, tuple[int, ...]]:
    if a.norm.kind == "none":
        return {}
    parts = ["gain"] * (a.norm.gain != "1") + ["bias"] * (a.norm.kind == "layer" and a.norm.bias == "all")
    return {f"{at}.{part}": (width or a.d_model,) for part in parts}


def random_weights(a: Architecture, rng: np.random.Generator, scale: float = 0.5) -> dict[str, np.ndarray]:
    """Gaussian matrices of standard deviation scale / sqrt(inputs); gains around 1, biases around 0

    A point of Theta (S0 Introduction) for examples and tests; no entry is exactly 0 or 1, so that every term has an
    effect.
    """
    weights = {}
    for name, shape in weight_shapes(a).items():
        lookup = name.startswith(("embed.", "encoder.embed.")) or name == "unembed.weight"
        spread = 1.0 if lookup else scale / shape[-1] ** 0.5 if len(shape) == 2 else 0.2
        weights[name] = rng.normal(size=shape) * spread + (1.0 if name.endswith("gain") else 0.0)
    return weights


def check_weights(a: Architecture, weights: Weights) -> None:
    """Raise ValueError, which names what is missing, unknown or of another shape, for weights of another architecture

    S0 Introduction: a model is a point of Theta, so every coordinate is given exactly once. With a tied
    readout `unembed.weight` may be given if it equals `embed.token.weight`.
    """
    shapes = weight_shapes(a)
    unknown = set(weights) - set(shapes)
    if a.unembed == "tied" and "unembed.weight" in unknown:
        if not np.array_equal(constant(weights["unembed.weight"]), constant(weights["embed.token.weight"])):
            raise ValueError("unembed.weight differs from embed.token.weight, but the readout is tied: untie it")
        unknown.remove("unembed.weight")
    if unknown:
        raise ValueError(f"the architecture has no weight {sorted(unknown)[0]!r}: give exactly those of weight_shapes")
    for name, shape in shapes.items():
        if name not in weights:
            raise ValueError(f"the weight {name!r} of shape {shape} is missing")
        if tuple(np.shape(weights[name])) != shape:
            raise ValueError(f"{name} has shape {tuple(np.shape(weights[name]))}: expected {shape}")


def part(weights: Weights, scope: str) -> dict[str, Any]:
    """The weights below a scope, without it in their names: part(w, "blocks.0")["norm_1.gain"].   S0 4.2 H_i, m_i."""
    return {name[len(scope) + 1 :]: w for name, w in weights.items() if name.startswith(scope + ".")}


def flatten(weights: Weights) -> np.ndarray:
    """theta in R^N: all entries, name after name in the given order   -> [N].   S0 Introduction."""
    return np.concatenate([np.ravel(w) for w in weights.values()] or [np.zeros(0)])


def unflatten(theta: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The weights of these shapes whose `flatten` is theta   [N] -> name -> array.   S0 Introduction.

    Raises ValueError when theta does not have exactly N entries.
    """
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    if np.shape(theta) != (sum(sizes),):
        raise ValueError(f"theta has shape {np.shape(theta)}: expected ({sum(sizes)},)")
    parts = np.split(np.asarray(theta, np.float64), np.cumsum(sizes)[:-1])
    return {name: p.reshape(shape).copy() for (name, shape), p in zip(shapes.items(), parts, strict=True)}
