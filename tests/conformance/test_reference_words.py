"""The words that no source text writes out, against loops over positions, heads and coordinates."""

import math

import numpy as np
import pytest

from pellucid.architecture import Architecture
from pellucid.reference.transformer import forward, hidden
from pellucid.reference.weights import random_weights

N, M, D, HEADS = 5, 8, 4, 2


def draw(rng, **changes):
    a = Architecture(n_vocab=7, n_ctx=N, d_model=M, n_layers=1).with_fields(
        {"n_heads": HEADS, "attention.d_head": D, "positions.kind": "none", "norm.kind": "none", "final_norm": "none"}
        | {name.replace("__", "."): value for name, value in changes.items()}
    )
    return a, random_weights(a, rng), rng.integers(0, 7, N)


def silu(x):
    return x / (1 + np.exp(-x))


def by_loops(a, w, tokens, score, change=lambda x: x, mlp=None):
    """One pre block with scores score(h, q, k, i, j), None where i may not read j, and an MLP of one position."""
    x = [change(w["embed.token.weight"][t]) for t in tokens]
    group = HEADS // a.n_kv_heads
    project = {
        name: [w[f"blocks.0.attn.{name}.weight"] @ v + w[f"blocks.0.attn.{name}.bias"] for v in x]
        for name in ("query", "key", "value")
    }
    out = []
    for i in range(N):
        z = []
        for h in range(HEADS):
            own, shared = slice(h * D, (h + 1) * D), slice(h // group * D, (h // group + 1) * D)
            scores = {j: score(h, project["query"][i][own], project["key"][j][shared], i, j) for j in range(N)}
            weight = {j: math.exp(s) for j, s in scores.items() if s is not None}
            mixed = sum(e * project["value"][j][shared] for j, e in weight.items()) / sum(weight.values())
            z.append(mixed)
        y = x[i] + w["blocks.0.attn.out.weight"] @ np.concatenate(z) + w["blocks.0.attn.out.bias"]
        post = silu(w["blocks.0.mlp.up.0.weight"] @ y + w["blocks.0.mlp.up.0.bias"]) if mlp is None else mlp(y)
        out.append(y + w["blocks.0.mlp.down.weight"] @ post + w["blocks.0.mlp.down.bias"])
    return np.array(out) @ w["embed.token.weight"].T


def plain(h, q, k, i, j):
    return q @ k / math.sqrt(D) if j <= i else None


def test_windows_and_grouped_heads(rng, same):
    a, w, tokens = draw(rng, attention__windows=(2,), n_kv_heads=1, activation="silu")
    same(
        forward(a, w, tokens), by_loops(a, w, tokens, lambda h, q, k, i, j: plain(h, q, k, i, j) if i - j < 2 else None)
    )


def test_windows_cycle_over_the_layers(rng):
    a, _, tokens = draw(rng, attention__windows=(1, 0), n_layers=3)
    w = random_weights(a, rng)
    changed = tokens.copy()
    changed[0] = (changed[0] + 1) % 7
    alone = a.with_fields({"attention.windows": (1,)})
    assert np.array_equal(forward(alone, w, tokens)[1:], forward(alone, w, changed)[1:])
    assert np.abs(forward(a, w, tokens)[4] - forward(a, w, changed)[4]).max() > 1e-6


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_alibi(mask, rng, same):
    a, w, tokens = draw(rng, positions__kind="alibi", activation="silu", mask=mask)

    def score(h, q, k, i, j):
        slope = 2 ** (-8 * (h + 1) / HEADS)
        return q @ k / math.sqrt(D) - slope * abs(i - j) if j <= i or mask == "bidirectional" else None

    same(forward(a, w, tokens), by_loops(a, w, tokens, score))


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_relative(mask, rng, same):
    """Four buckets: 0, 1, 2 and all from 3 on; of both sides 0 and farther back, and farther ahead."""
    a, w, tokens = draw(
        rng, positions__kind="relative", positions__n_buckets=4, positions__max_distance=3, activation="silu", mask=mask
    )
    b = w["relative.weight"]

    def score(h, q, k, i, j):
        if mask == "bidirectional":
            return q @ k / math.sqrt(D) + b[0 if i == j else 1 if j < i else 3, h]
        return q @ k / math.sqrt(D) + b[min(i - j, 3), h] if j <= i else None

    same(forward(a, w, tokens), by_loops(a, w, tokens, score))


@pytest.mark.parametrize("readout", ["linear", "affine"])
def test_a_scaled_readout(readout, rng, same):
    a, w, tokens = draw(rng, logit_scale="1/sqrt(d_model)", readout=readout)
    plain, bias = forward(a.with_fields({"logit_scale": "1"}), w, tokens), w.get("unembed.bias", 0.0)
    same(forward(a, w, tokens), (plain - bias) / math.sqrt(M) + bias)


@pytest.mark.parametrize("unembed", ["tied", "untied"])
def test_rows_of_another_width_are_tables_that_are_products(unembed, rng, same):
    """W_E P^T in the place of W_E, and W_U Q in that of W_U, which are two matrices where one is tied."""
    a, w, tokens = draw(rng, d_embed=3, unembed=unembed, embed_scale="sqrt(d_model)", activation="silu")
    P, Q = w.pop("embed.projection.weight"), w.pop("unembed.projection.weight")
    W_E, W_U = w["embed.token.weight"], w["embed.token.weight" if unembed == "tied" else "unembed.weight"]
    assert (P.shape, Q.shape, W_E.shape) == ((M, 3), (3, M), (7, 3))
    plain = a.with_fields({"d_embed": 0, "unembed": "untied"})
    whole = {**w, "embed.token.weight": W_E @ P.T, "unembed.weight": W_U @ Q}
    projected = {**w, "embed.projection.weight": P, "unembed.projection.weight": Q}
    same(forward(a, projected, tokens), forward(plain, whole, tokens))


def test_a_projected_sum_is_a_sum_of_projections(rng, same):
    """Without a norm (y_1 + y_2 + y_3) P^T + b is a sum of products, so that the tables may be products too."""
    fields = {"d_embed": 3, "positions__kind": "learned", "n_segments": 2, "embed_scale": "sqrt(d_model)"}
    a, w, tokens = draw(rng, **fields, embed_projection="sum", unembed="untied", embed_norm="none", ngrams=())
    P, b, Q = (
        w.pop(f"{name}") for name in ("embed.projection.weight", "embed.projection.bias", "unembed.projection.weight")
    )
    tables = ("embed.token.weight", "embed.position.weight", "embed.segment.weight")
    assert {w[name].shape[1] for name in tables} == {3}
    whole = w | {name: w[name] @ P.T for name in tables} | {"unembed.weight": w["unembed.weight"] @ Q}
    whole["embed.segment.weight"] = whole["embed.segment.weight"] + b
    plain = a.with_fields({"d_embed": 0, "embed_projection": "tokens"})
    projected = {**w, "embed.projection.weight": P, "embed.projection.bias": b, "unembed.projection.weight": Q}
    same(forward(a, projected, tokens), forward(plain, whole, tokens))


@pytest.mark.parametrize("block", ["pre", "parallel", "shared", "sandwich"])
def test_the_first_block_without_its_norm_reads_the_stream(block, rng, same):
    """Where the stream is normalised already, the norm of block 0 with a gain of 1 and no bias is no norm."""
    fields = {"norm__kind": "layer", "norm__eps": 0.0, "norm__bias": "none", "embed_norm": "norm", "block": block}
    a, w, tokens = draw(rng, **fields, first_norm="none", n_layers=2, positions__kind="learned")
    w["embed.norm.gain"] = np.ones(M)
    same(
        forward(a, w, tokens),
        forward(a.with_fields({"first_norm": "norm"}), w | {"blocks.0.norm_1.gain": np.ones(M)}, tokens),
    )
    assert "blocks.1.norm_1.gain" in w
    assert "blocks.0.norm_1.gain" not in w


@pytest.mark.parametrize("biases", ["all", "dense", "logits", "none"])
def test_the_biases_of_the_bert_readout(biases, rng, same):
    """A bias that is not there is 0."""
    a, w, tokens = draw(rng, readout="bert", readout_bias=biases, norm__kind="layer")
    named = {"unembed.dense.bias": ("all", "dense"), "unembed.bias": ("all", "logits")}
    assert {name for name in named if name in w} == {name for name, words in named.items() if biases in words}
    whole = {"unembed.dense.bias": np.zeros(M), "unembed.bias": np.zeros(7)} | w
    same(forward(a, w, tokens), forward(a.with_fields({"readout_bias": "all"}), whole, tokens))


@pytest.mark.parametrize("width", [3, 9])
def test_the_norm_of_the_sum_is_what_is_projected(width, rng, same):
    """Written out, with no block behind it: norm(W_E[t] + W_P[i]) P^T + b."""
    fields = {"d_embed": width, "positions__kind": "learned", "n_segments": 0, "norm__kind": "layer", "norm__eps": 0.1}
    fields |= {"norm__eps_at": "inside", "norm__gain": "g", "norm__bias": "all", "embed_scale": "1", "ngrams": ()}
    a, w, tokens = draw(rng, n_layers=0, **fields, embed_projection="sum", embed_norm="norm", final_norm="none")
    y = w["embed.token.weight"][tokens] + w["embed.position.weight"][: tokens.shape[-1]]
    centred = y - y.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) * w["embed.norm.gain"] + w["embed.norm.bias"]
    same(hidden(a, w, tokens), y @ w["embed.projection.weight"].T + w["embed.projection.bias"])


@pytest.mark.parametrize("block", ["pre", "post", "parallel", "sandwich"])
def test_scaled_sublayers_embeddings_and_logits(block, rng, same):
    """A factor of a sublayer's output is a factor of its last matrix and bias, unless a norm stands between them."""
    c = {"residual_scale": 0.3, "embed_scale": "embed_scale_value", "embed_scale_value": 2.0}
    c |= {"logit_scale": "logit_scale_value", "logit_scale_value": 0.25}
    a, w, tokens = draw(rng, block=block, norm__kind="layer", activation="silu", unembed="untied", **c)
    plain = a.with_fields({"residual_scale": 1.0, "embed_scale": "1", "logit_scale": "1"})
    ends = ("norm_1_out.", "norm_2_out.") if block == "sandwich" else ("attn.out.", "mlp.down.")
    factor = {name: 0.3 for name in w if any(end in name for end in ends)}
    factor |= {"embed.token.weight": 2.0, "unembed.weight": 0.25}
    same(forward(a, w, tokens), forward(plain, {name: factor.get(name, 1.0) * x for name, x in w.items()}, tokens))


@pytest.mark.parametrize(
    ("fraction", "layout", "planes"),
    [(1.0, "halves", [(0, 2), (1, 3)]), (1.0, "pairs", [(0, 1), (2, 3)]), (0.5, "halves", [(0, 1)])],
)
def test_rotation_of_normalised_queries(fraction, layout, planes, rng, same):
    """Plane k is turned by i base^(-2k/d) after the division by the root mean square, the rest is left."""
    a, w, tokens = draw(
        rng, positions__kind="rotary", positions__fraction=fraction, positions__base=10.0,
        positions__layout=layout, qk_norm="rms", activation="silu", scale="1/d_head", norm__eps=1e-2,
    )  # fmt: skip

    def turned(x, gain, i):
        x = gain * x / math.sqrt(np.mean(x**2) + 1e-2)
        for n, (p, q) in enumerate(planes):
            cos, sin = math.cos(i * 10 ** (-n / len(planes))), math.sin(i * 10 ** (-n / len(planes)))
            x[[p, q]] = x[p] * cos - x[q] * sin, x[p] * sin + x[q] * cos
        return x

    def score(h, q, k, i, j):
        gains = w["blocks.0.attn.query_norm.gain"], w["blocks.0.attn.key_norm.gain"]
        return turned(q, gains[0], i) @ turned(k, gains[1], j) / D if j <= i else None

    same(forward(a, w, tokens), by_loops(a, w, tokens, score))


def test_gated_mlp(rng, same):
    a, w, tokens = draw(rng, form="gated", activation="silu")

    def mlp(y):
        gate = w["blocks.0.mlp.gate.weight"] @ y + w["blocks.0.mlp.gate.bias"]
        return silu(gate) * (w["blocks.0.mlp.up.0.weight"] @ y + w["blocks.0.mlp.up.0.bias"])

    same(forward(a, w, tokens), by_loops(a, w, tokens, plain, mlp=mlp))


def test_the_embedding_is_scaled_and_replaced_before_it_is_scaled(rng, same):
    a, w, tokens = draw(rng, embed_scale="sqrt(d_model)", activation="silu")
    same(forward(a, w, tokens), by_loops(a, w, tokens, plain, change=lambda x: math.sqrt(M) * x))
    same(forward(a, w, embeddings=w["embed.token.weight"][tokens]), forward(a, w, tokens))


def test_segments_embed_norm_and_the_bert_readout(rng, same):
    a, w, tokens = draw(
        rng, n_layers=0, n_segments=2, embed_norm="norm", norm__kind="rms", norm__eps=0.1, norm__eps_at="outside",
        readout="bert", activation="relu", positions__kind="learned",
    )  # fmt: skip
    segments = np.array([0, 0, 1, 1, 1])

    def rms(x, gain):
        return gain * x / (math.sqrt(np.mean(x**2)) + 0.1)

    expected = []
    for i, (t, s) in enumerate(zip(tokens, segments, strict=True)):
        x = w["embed.token.weight"][t] + w["embed.position.weight"][i] + w["embed.segment.weight"][s]
        x = rms(x, w["embed.norm.gain"])
        x = np.maximum(w["unembed.dense.weight"] @ x + w["unembed.dense.bias"], 0)
        expected.append(w["embed.token.weight"] @ rms(x, w["unembed.norm.gain"]) + w["unembed.bias"])
    same(forward(a, w, tokens, segments=segments), np.array(expected))
    same(forward(a, w, tokens), forward(a, w, tokens, segments=np.zeros(N, int)))


def test_a_mask_replaces_the_rule_and_windows_still_narrow_it(rng, same):
    a, w, tokens = draw(rng, attention__windows=(3,), activation="silu")
    mask = rng.random((N, N)) < 0.7
    np.fill_diagonal(mask, True)

    def score(h, q, k, i, j):
        return q @ k / math.sqrt(D) if mask[i, j] and abs(i - j) < 3 else None

    same(forward(a, w, tokens, mask=mask), by_loops(a, w, tokens, score))
    prefix = a.with_fields({"mask": "prefix"})
    same(forward(prefix, w, tokens), forward(a, w, tokens))
