"""Words that no source text writes out and that are another word with other weights.

The others are compared with transformers by tests/parity.
"""

import math

import numpy as np
import pytest

from pellucid.architecture import Architecture
from pellucid.reference.transformer import forward
from pellucid.reference.weights import random_weights

N, M, D, HEADS = 5, 8, 4, 2


def draw(rng, **changes):
    a = Architecture(n_vocab=7, n_ctx=N, d_model=M, n_layers=1).with_fields(
        {"n_heads": HEADS, "attention.d_head": D, "positions.kind": "none", "norm.kind": "none", "final_norm": "none"}
        | {name.replace("__", "."): value for name, value in changes.items()}
    )
    return a, random_weights(a, rng), rng.integers(0, 7, N)


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
