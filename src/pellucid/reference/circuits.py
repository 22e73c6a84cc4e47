"""Reading a transformer: its heads as matrices, its norms folded away, its logits as sums of parts."""

from collections.abc import Mapping

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.attention import HeadMatrices
from pellucid.reference.layers import gain, normalise
from pellucid.reference.tap import OFF, TensorRecorder
from pellucid.reference.tape import Array, real
from pellucid.reference.transformer import forward, readout
from pellucid.reference.weights import Weights, part


def heads_of_layer(a: Architecture, weights: Weights, layer: int) -> list[HeadMatrices]:
    """The four matrices of each head of a block, W_Q, W_K, W_V [d, m] and W_O [m, d].   S0 3.2; S1 1.1.2 Q_dea"""
    w = part(weights, f"blocks.{layer}.attn")
    q, k, v = (real(w[f"{name}.weight"]).reshape(-1, a.d_head, a.d_model) for name in ("query", "key", "value"))
    out = real(w["out.weight"]).reshape(a.d_model, a.n_heads, a.d_head)
    shared = np.arange(a.n_heads) * a.n_kv_heads // a.n_heads
    return [HeadMatrices(q[h], k[g], v[g], out[:, h]) for h, g in enumerate(shared)]


def fold_layer_norm(gain: Array, bias: Array, W: Array, b: Array) -> tuple[Array, Array]:
    """W' = W diag(gain), b' = b + W bias, so that (x gain + bias) W^T + b = x W'^T + b'   W [out, m], b [out]

    S1 1.1.1.1. The part that depends on the data cannot be folded (S1 footnote 7). Erratum E-34.
    """
    return real(W) * gain, b + real(W) @ bias


def fold_norms(a: Architecture, weights: Weights) -> tuple[Architecture, dict[str, np.ndarray], np.ndarray]:
    """An untied architecture, weights and a vector b_U with the same logits once b_U is added; all gains 1, biases 0.
    Where readout = none the architecture is the same, and so is the final norm, whose output is the result.

    S1 1.1.1.1. Raises ValueError for post blocks, whose norm's output is also the stream, for the bert readout, and
    where a linear map that would have to absorb a bias has none. Erratum E-34.
    """
    if a.block == "post" or a.readout == "bert" or a.norm.kind == "none" or a.encoder is not None:
        raise ValueError(
            "norms can be folded only into the linear maps that read them: expected no post "
            "blocks, a linear readout, and a norm"
        )
    biased = a.norm.kind == "layer" and a.norm.bias == "all"
    if biased and (a.mlp.experts or not (a.attention.bias in ("qkv", "all") and a.mlp.bias == "all")):
        raise ValueError("the norms have biases, and linear maps without a bias, as routers are, cannot absorb them")
    if biased and a.final_norm == "norm" and a.logit_cap:
        raise ValueError("the final norm has a bias, which cannot be added to capped logits: expected logit_cap = 0")
    folded = {name: real(w).copy() for name, w in weights.items()}
    if a.readout != "none":
        folded["unembed.weight"] = folded.get("unembed.weight", folded["embed.token.weight"]).copy()
    # what reads the stream in an MLP, in every expert, and beside the experts
    reading = ("gate", "up.0", "router", "shared.scale") if a.mlp.n_hidden else ("down",)
    ends = tuple(f".{name}.weight" for name in reading)
    for l in range(a.n_layers):
        block = f"blocks.{l}."
        in_mlp = [name for name in folded if name.startswith(f"{block}mlp.") and name.endswith(ends)]
        first = [name.removeprefix(block).removesuffix(".weight") for name in in_mlp]
        readers = {"norm_1": ["attn.query", "attn.key", "attn.value"], "norm_2": first}
        if a.block == "shared":
            readers["norm_1"] += first
        for norm in readers.keys() & {*a.norms_of(l)}:
            _fold(a, folded, f"blocks.{l}.{norm}", [f"blocks.{l}.{reader}" for reader in readers[norm]])
    b_U = np.zeros(a.n_vocab)
    if a.readout == "none":
        return a, folded, b_U
    if a.final_norm == "norm":
        bias = folded.get("final_norm.bias", np.zeros(a.d_model))
        reader = "unembed.projection" if a.d_embed else "unembed"
        read = folded["unembed.projection.weight"] @ bias if a.d_embed else bias
        b_U = a.unembed_scale * folded["unembed.weight"] @ read
        folded["final_norm.bias"] = np.zeros(a.d_model)
        _fold(a, folded, "final_norm", [reader])
        if not biased:
            del folded["final_norm.bias"]
    return a.with_fields({"unembed": "untied"}), folded, b_U


def _fold(a: Architecture, weights: dict[str, np.ndarray], norm: str, readers: list[str]) -> None:
    """Move a norm's gain and bias into the linear maps that read it."""
    g, bias = gain(a, weights, norm), weights.get(f"{norm}.bias")
    for reader in readers:
        b = weights.get(f"{reader}.bias", 0.0)
        W, b = fold_layer_norm(g, np.zeros(a.d_model) if bias is None else bias, weights[f"{reader}.weight"], b)
        weights[f"{reader}.weight"] = W
        if f"{reader}.bias" in weights:
            weights[f"{reader}.bias"] = b
    if a.norm.gain != "1":
        weights[f"{norm}.gain"] = np.zeros_like(g) if a.norm.gain == "1+g" else np.ones_like(g)
    if bias is not None:
        weights[f"{norm}.bias"] = np.zeros_like(bias)


def logit_lens(a: Architecture, weights: Weights, stream: Array) -> Array:
    """The logits that the stream gives at any depth: final norm, then unembedding   [b, n, m] -> [b, n, v]

    S4 "Deep Architecture"; S3 slide 6 applied to x^(l) in the place of x^(n_L).
    """
    return readout(a, weights, normalise(a, weights, "final_norm", stream, OFF) if a.final_norm == "norm" else stream)


def direct_logit_attribution(a: Architecture, weights: Weights, tokens: np.ndarray, **reading) -> dict[str, np.ndarray]:
    """What each part of the network adds to the logits, the final norm's scale frozen   name -> [b, n, v]

    S4 figure (Ferrando et al. 2024); S1 footnote 3 (the residual stream). Parts: embed, pos_embed, seg_embed,
    ngram_embed, embed_projected.bias, blocks.l.attn.head.h, blocks.l.attn.out.bias, blocks.l.mlp_out, a norm's bias,
    unembed.bias; their sum is the logits. Raises ValueError where the stream is not a sum of parts: post blocks,
    embed_norm, the bert readout, capped logits.
    """
    if a.block == "post" or a.embed_norm == "norm" or a.readout == "bert" or a.logit_cap or a.encoder is not None:
        raise ValueError(
            "the stream is a sum of parts only where no norm acts on it: expected no post "
            "blocks, embed_norm = none, a linear readout"
        )
    tap = TensorRecorder()
    forward(a, weights, np.atleast_2d(tokens), tap=tap, **reading)
    parts = _stream_summands(a, weights, tap.values)
    if a.final_norm == "norm":
        parts = _normalised(a, weights, tap.values, "final_norm", parts)
    W_U = a.unembed_scale * real(weights["embed.token.weight" if a.unembed == "tied" else "unembed.weight"])
    W_U = W_U @ weights["unembed.projection.weight"] if a.d_embed else W_U
    logits = {name: p @ W_U.T for name, p in parts.items()}
    if a.readout == "affine":
        logits["unembed.bias"] = np.broadcast_to(weights["unembed.bias"], tap.values["logits"].shape)
    return logits


def _stream_summands(a: Architecture, weights: Weights, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The summands of the stream after the last block, each [b, n, m]."""
    parts = {name: values[name] for name in ("embed", "pos_embed", "seg_embed", "ngram_embed") if name in values}
    if a.embed_projection == "sum":
        parts = {name: part @ weights["embed.projection.weight"].T for name, part in parts.items()}
        bias = weights["embed.projection.bias"]
        parts["embed_projected.bias"] = np.broadcast_to(bias, values["embed_projected"].shape)
    for l in range(a.n_layers):
        result = values[f"blocks.{l}.attn.result"]
        read = {f"blocks.{l}.attn.head.{h}": result[:, h] for h in range(a.n_heads)}
        bias = f"blocks.{l}.attn.out.bias"
        if bias in weights:
            read[bias] = np.broadcast_to(weights[bias], result[:, 0].shape)
        if "norm_1_out" in a.block_norms:
            read = _normalised(a, weights, values, f"blocks.{l}.norm_1_out", read)
        read = {name: a.residual_scale * part for name, part in read.items()}
        parts |= read | {f"blocks.{l}.mlp_out": values[f"blocks.{l}.mlp_out"]}
    return parts


def _normalised(
    a: Architecture, weights: Weights, values: Mapping[str, np.ndarray], norm: str, parts: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The parts of a norm's input as parts of its output, at the scale that it had; its bias is one more part."""
    if a.norm.kind == "none":
        return dict(parts)
    centre, g = a.norm.kind == "layer", gain(a, weights, norm)
    made = {n: g * (p - centre * p.mean(-1, keepdims=True)) / values[f"{norm}.scale"] for n, p in parts.items()}
    if f"{norm}.bias" in weights:
        made[f"{norm}.bias"] = np.broadcast_to(weights[f"{norm}.bias"], values[norm].shape)
    return made


def dropout_sites(a: Architecture) -> list[str]:
    """The tensors to which dropout is applied in training: 1 + 3 n_layers of them.   S1 Fig. 1, 1.1.2 Dr. Erratum E-28

    In a forward pass with dropout the tap edits these tensors by `functions.dropout`. The first is the embedded stream.
    Raises ValueError where no block reads the embedded stream and no norm writes it, for then no tensor has its name;
    so does the sum that embed_projection = sum projects.
    """
    within = ("attn.pattern", "attn_out", "mlp_out")
    normed = a.embed_norm == "norm" and a.norm.kind != "none"
    of_sum = a.embed_projection == "sum"
    if (of_sum or not a.n_layers) and not normed:
        why = "embed_projection = sum" if of_sum else "n_layers = 0"
        raise ValueError(f"{why} and no norm of it: the embedded stream is no tensor of pellucid.tensor_names")
    return [
        "embed_norm" if normed else "blocks.0.resid_pre",
        *(f"blocks.{l}.{site}" for l in range(a.n_layers) for site in within),
    ]
