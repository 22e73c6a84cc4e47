"""Blocks, the stack and whole transformers: S0 section 4, S1 1.1, S2, S3 slides 3 to 8, S4."""

import numpy as np
import pytest
from companions import draw_ids
from hypothesis import given, settings

from drawing import architectures
from pellucid.architecture import Architecture
from pellucid.parameter_counts import count_parameters
from pellucid.reference import attention as A
from pellucid.reference import blocks as B
from pellucid.reference.circuits import direct_logit_attribution, heads_of_layer, logit_lens
from pellucid.reference.embedding import one_hot, sinusoidal_positions, unembed
from pellucid.reference.functions import gelu_tanh, layer_norm, log_softmax, relu, softmax, tanh
from pellucid.reference.learning import next_token_logits, next_token_probabilities
from pellucid.reference.masks import causal_mask
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.tape import gradient
from pellucid.reference.transformer import encode, forward, soft_forward, trace_by_definition
from pellucid.reference.weights import flatten, random_weights, unflatten, weight_shapes
from pellucid.tensor_names import axes, names
from running import any_architectures

#: what is as wide as the sum of the embeddings
OF_SUM = ("embed", "pos_embed", "seg_embed", "ngram_embed", "embed_norm", "embed_norm.normalized")


def seed_0(**changes):
    """S0 as printed and corrected: no norms, positions, biases or scale."""
    a = Architecture(n_vocab=9, n_ctx=7, d_model=8, n_layers=2).with_fields(
        {"n_heads": 2, "attention.bias": "none", "scale": "1", "positions.kind": "none", "norm.kind": "none",
         "final_norm": "none", "unembed": "untied"}
    )  # fmt: skip
    return a.with_fields({name.replace("__", "."): value for name, value in changes.items()})


def logits_of(a, w, tokens, **reading):
    """forward, with an encoder reading the same tokens where there is one."""
    return forward(a, w, tokens, source=encode(a, w, tokens) if a.encoder else None, **reading)


def close(x, y, tolerance=1e-12):
    return np.abs(x - y).max(initial=0) <= tolerance * max(1, np.abs(y).max(initial=0))


@pytest.mark.item("S0-0-a", "S3-1-e", "X-PARAMS")
@settings(max_examples=60)
@given(any_architectures())
def test_a_model_is_a_point_of_r_to_the_n(a):
    shapes = weight_shapes(a)
    w = random_weights(a, np.random.default_rng(0))
    theta = flatten(w)
    assert theta.shape == (count_parameters(a)["total"],)
    back = unflatten(theta, shapes)
    assert all(np.array_equal(back[name], w[name]) for name in shapes)
    with pytest.raises(ValueError, match="expected"):
        unflatten(theta[1:], shapes)


def test_weights_of_another_architecture_are_refused(rng):
    a = seed_0()
    w, tokens = random_weights(a, rng), np.arange(3)
    with pytest.raises(ValueError, match="missing"):
        forward(a, {k: v for k, v in w.items() if k != "unembed.weight"}, tokens)
    with pytest.raises(ValueError, match="no weight"):
        forward(a, w | {"final_norm.gain": np.ones(8)}, tokens)
    with pytest.raises(ValueError, match=r"expected \(9, 8\)"):
        forward(a, w | {"unembed.weight": np.ones((8, 9))}, tokens)
    with pytest.raises(ValueError, match="source"):
        forward(a, w, tokens, source=np.ones((3, 8)))
    with pytest.raises(ValueError, match="neither"):
        forward(a, w)
    with pytest.raises(ValueError, match="queries by keys"):
        forward(a, w, tokens, mask=np.ones((2, 3), bool))


@pytest.mark.item("S0-0-d", "S0-4.2-b")
def test_the_transformer_is_defined_on_all_matrices(rng, same):
    a = seed_0()
    w = random_weights(a, rng)
    ids = rng.integers(0, 9, (2, 7))
    first, second = one_hot(ids[0], 9), one_hot(ids[1], 9)
    same(soft_forward(a, w, first), forward(a, w, ids[0]))
    between = (first + second) / 2
    assert np.all(np.isfinite(soft_forward(a, w, between)))
    direction = rng.normal(size=between.shape)
    _, g = gradient(lambda v: np.sum(np.square(soft_forward(a, w, v["t"]))), {"t": between})

    def f(h):
        return np.sum(soft_forward(a, w, between + h * direction) ** 2)

    slope = (f(1e-5) - f(-1e-5)) / 2e-5
    assert np.sum(g["t"] * direction) == pytest.approx(slope, rel=1e-6)


@pytest.mark.item("S0-3.3-a", "S0-4.1-a", "S0-4.1-b", "S2-1-b", "S2-1-c", "S2-1-d", "S4-res-a")
def test_a_block_is_attention_then_mlp(rng, same):
    a = seed_0(n_layers=1, activation="tanh")
    w, tokens, tap = random_weights(a, rng), rng.integers(0, 9, 7), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    X = w["embed.token.weight"][tokens]
    heads = heads_of_layer(a, w, 0)

    def attend(X):
        return A.multi_head_sum(X, heads, causal_mask(7))

    def m(X):
        inner = tanh(X @ w["blocks.0.mlp.up.0.weight"].T + w["blocks.0.mlp.up.0.bias"])
        return inner @ w["blocks.0.mlp.down.weight"].T + w["blocks.0.mlp.down.bias"]

    composed = B.residual(m)(B.residual(attend)(X))
    same(tap.values["blocks.0.resid_post"][0], composed)
    same(B.block(X, attend, m), composed)
    same(tap.values["blocks.0.resid_mid"][0] - X, attend(X))
    same(tap.values["blocks.0.attn_out"][0], attend(X))
    for h, head in enumerate(heads):
        W_QK = A.qk_circuit(head.W_Q, head.W_K)
        same(tap.values["blocks.0.attn.pattern"][0, h], A.attention_pattern(X, W_QK, causal_mask(7)))
        same(
            tap.values["blocks.0.attn.result"][0, h],
            A.attention_head(X, W_QK, A.ov_circuit(head.W_O, head.W_V), causal_mask(7)),
        )
    # E-04: the printed (4.2) lacks the heads
    same((X + m(X + attend(X))) - composed, -attend(X))


@pytest.mark.item("S0-4.1-c")
def test_the_parallel_block_counts_the_stream_once(rng, same):
    """E-05: with FF and ATTN as defined the printed form has 3X."""
    a = seed_0(n_layers=1, block="parallel", activation="relu")
    w, tokens, tap = random_weights(a, rng), rng.integers(0, 9, 7), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    X, heads = w["embed.token.weight"][tokens], heads_of_layer(a, w, 0)

    def attend(X):
        return A.multi_head_sum(X, heads, causal_mask(7))

    def m(X):
        inner = relu(X @ w["blocks.0.mlp.up.0.weight"].T + w["blocks.0.mlp.up.0.bias"])
        return inner @ w["blocks.0.mlp.down.weight"].T + w["blocks.0.mlp.down.bias"]

    same(tap.values["blocks.0.resid_post"][0], B.parallel_block(X, attend, m))
    same((X + B.residual(m)(X) + B.residual(attend)(X)) - B.parallel_block(X, attend, m), 2 * X)


@pytest.mark.item("S0-4.2-a", "S1-1.1-g", "S4-deep-a", "S2-1-a")
@settings(max_examples=40)
@given(architectures())
def test_the_stream_is_the_embedding_plus_what_was_added(a):
    rng = np.random.default_rng(0)
    w, tokens, tap = random_weights(a, rng), draw_ids(rng, a), TensorRecorder()
    logits = forward(a, w, tokens, tap=tap)
    values = tap.values
    embedded = [values[name] for name in ("embed", "pos_embed", "seg_embed", "ngram_embed") if name in values]
    stream = values["embed_norm"] if "embed_norm" in values else sum(embedded[1:], embedded[0])
    if a.embed_projection == "sum":
        stream = stream @ w["embed.projection.weight"].T + w["embed.projection.bias"]
    for l in range(a.n_layers):
        assert np.array_equal(values[f"blocks.{l}.resid_pre"], stream)
        added = values[f"blocks.{l}.attn_out"] + values[f"blocks.{l}.mlp_out"]
        if a.block != "post":
            assert close(values[f"blocks.{l}.resid_post"], stream + added)
        else:
            assert close(values[f"blocks.{l}.resid_mid"], stream + values[f"blocks.{l}.attn_out"])
        stream = values[f"blocks.{l}.resid_post"]
    assert close(logit_lens(a, w, stream), logits)
    assert B.decoder_stack(1.5, []) == 1.5
    found, added = B.residual_stream(2.0, [lambda x: x * x, lambda x: -x])
    assert [float(x) for x in found] == [2, 6, 0]
    assert sum(added) == -2


@pytest.mark.item("S0-4.2-b")
def test_without_blocks_it_is_a_table_of_bigrams(rng, same):
    a = seed_0(n_layers=0)
    w = random_weights(a, rng)
    table = w["embed.token.weight"] @ w["unembed.weight"].T
    tokens = rng.integers(0, 9, 7)
    same(forward(a, w, tokens), table[tokens])


@pytest.mark.item("S0-4.3-b", "S0-4.3-c", "S0-4.3-d", "S1-1.1-i", "S3-6-a", "S3-6-b", "S2-1-e", "S4-ntp-a", "S4-ntp-b")
def test_logits_are_relative_log_probabilities(rng, same):
    a = seed_0()
    w, tokens, tap = random_weights(a, rng), rng.integers(0, 9, 7), TensorRecorder()
    logits = forward(a, w, tokens, tap=tap)
    stream = tap.values[f"blocks.{a.n_layers - 1}.resid_post"][0]
    same(logits, unembed(stream, w["unembed.weight"]))
    same(logits.T, w["unembed.weight"] @ stream.T)  # S4 writes columns
    p = next_token_probabilities(logits)
    same(p.sum(1), np.ones(7))
    same(np.log(p[3, 2] / p[3, 5]), logits[3, 2] - logits[3, 5])
    e = np.exp(w["unembed.weight"] @ stream[-1])
    same(next_token_probabilities(next_token_logits(logits)), e / e.sum())
    assert p[-1].argmax() == next_token_logits(logits).argmax()


@pytest.mark.item("S3-2-b", "S4-att-l")
def test_a_bidirectional_model_reads_to_the_right(rng):
    a = seed_0(mask="bidirectional", n_layers=1)
    w, tokens = random_weights(a, rng), rng.integers(0, 9, 7)
    changed = tokens.copy()
    changed[5] = (changed[5] + 1) % 9
    assert np.abs(forward(a, w, changed)[2] - forward(a, w, tokens)[2]).max() > 1e-3


@pytest.mark.item("S1-1.1-a")
@settings(max_examples=60)
@given(any_architectures())
def test_every_tensor_of_the_table_that_the_architecture_has_is_named(a):
    rng = np.random.default_rng(0)
    w, tokens = random_weights(a, rng), draw_ids(rng, a)
    values = trace_by_definition(a, w, tokens, source=encode(a, w, tokens) if a.encoder else None)
    sizes = dict(b=2, i=a.n_ctx, j=a.n_ctx, h=a.n_heads, g=a.n_kv_heads, d=a.d_head, f=a.d_ff, v=a.n_vocab)
    sizes |= {"e": a.mlp.experts, "s": a.mlp.shared_d_ff, "1": 1}
    encoded = {name for name in names(a) if name.startswith("encoder.")}
    for name in [name for name in names(a) if name not in encoded] + ["probs"]:
        width = {"m": a.embed_sum_width if name in OF_SUM else a.d_model}
        assert values[name].shape == tuple((sizes | width)[letter] for letter in axes(name)), name
    assert set(values) - {"probs", "loss"} == set(names(a)) - encoded, "a tensor has a name that is in no table"
    assert values["loss"].shape == (2, a.n_ctx - 1)


def test_a_probability_too_small_for_a_float_has_its_loss(rng, same):
    """e^-2000 is 0 in float64 and its logarithm is not a number; the loss is read off the logits."""
    a = seed_0(n_layers=0)
    w = random_weights(a, rng)
    w["embed.token.weight"] = np.eye(9, 8)
    w["unembed.weight"] = 2000.0 * np.eye(9, 8)
    values = trace_by_definition(a, w, np.array([0, 1, 1]))
    assert values["probs"][0, 0, 1] == 0
    same(values["loss"], np.array([[2000.0, 0.0]]))


@pytest.mark.item("S3-4-b", "S3-7-a", "S3-3-a")
@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_all_positions_at_once_are_each_position_by_itself(mask, rng, same):
    """S3's T^(l)(i, X): a post block of the transformer against explicit sums for one position."""
    a = seed_0(
        n_layers=1, block="post", norm__kind="layer", norm__eps_at="outside", mask=mask, activation="relu",
        scale="1/sqrt(d_head)",
    )  # fmt: skip
    w, tokens, tap = random_weights(a, rng), rng.integers(0, 9, 7), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    X, heads = w["embed.token.weight"][tokens], heads_of_layer(a, w, 0)

    def attend_at(i, X):
        z = [
            A.attention_head_at(
                i, X, h.W_Q, h.W_K, h.W_V, lambda i, j: mask == "bidirectional" or j <= i, a.score_scale
            )
            for h in heads
        ]
        return w["blocks.0.attn.out.weight"] @ np.concatenate(z)

    def m(x):
        inner = relu(w["blocks.0.mlp.up.0.weight"] @ x + w["blocks.0.mlp.up.0.bias"])
        return w["blocks.0.mlp.down.weight"] @ inner + w["blocks.0.mlp.down.bias"]

    def norm(k):
        gain, bias = w[f"blocks.0.norm_{k}.gain"], w[f"blocks.0.norm_{k}.bias"]
        return lambda x: layer_norm(x, gain, bias, a.norm.eps, "outside")

    for i in range(7):
        same(tap.values["blocks.0.resid_post"][0, i], B.block_at(i, X, attend_at, m, norm(1), norm(2)))


@pytest.mark.item("S3-7-b", "S4-res-b")
def test_a_block_that_adds_nothing_is_the_identity(rng):
    a = seed_0()
    zeros = {name: np.zeros(shape) for name, shape in weight_shapes(a).items() if name.startswith("blocks.")}
    w, tokens, tap = random_weights(a, rng) | zeros, rng.integers(0, 9, 7), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    assert np.array_equal(tap.values["blocks.1.resid_post"], tap.values["embed"])
    x = rng.normal(size=(2, 8))
    _, g = gradient(lambda v: np.sum(B.residual(lambda x: 0.0 * x)(v["x"])[0, :1]), {"x": x})
    assert np.array_equal(g["x"], np.eye(1, 16).reshape(2, 8))


@pytest.mark.item("S4-draw-c")
def test_a_pass_can_be_changed_from_within(rng, same):
    a = seed_0()
    w = random_weights(a, rng)
    ours, theirs = rng.integers(0, 9, (2, 7))
    kept = TensorRecorder()
    logits, other = forward(a, w, ours), forward(a, w, theirs, tap=kept)
    assert np.array_equal(forward(a, w, ours, tap=TensorRecorder({"blocks.0.attn.pattern": lambda x: x})), logits)
    transplanted = TensorRecorder({"blocks.0.resid_post": lambda x: kept.values["blocks.0.resid_post"]})
    assert np.array_equal(forward(a, w, ours, tap=transplanted), other)
    silent = TensorRecorder({f"blocks.{l}.attn.result": np.zeros_like for l in range(2)})
    without = w | {f"blocks.{l}.attn.out.weight": np.zeros((8, 8)) for l in range(2)}
    same(forward(a, w, ours, tap=silent), forward(a, without, ours))


@pytest.mark.item("S4-fig-a")
@settings(max_examples=40)
@given(architectures({"embed_norm": "none", "logit_cap": 0.0}))
def test_logits_are_a_sum_over_the_parts(a):
    rng = np.random.default_rng(0)
    w, tokens = random_weights(a, rng), draw_ids(rng, a)
    if a.block == "post" or a.readout == "bert":
        with pytest.raises(ValueError, match="sum of parts"):
            direct_logit_attribution(a, w, tokens)
        return
    parts = direct_logit_attribution(a, w, tokens)
    assert close(sum(parts.values()), forward(a, w, tokens), 1e-11)
    heads = [name for name in parts if ".head." in name]
    assert len(heads) == a.n_layers * a.n_heads


@pytest.mark.item("S4-fig-a")
@settings(max_examples=40)
@given(architectures({"block": "pre", "embed_norm": "none", "logit_cap": 0.0, "readout": "linear"}))
def test_every_part_of_the_logits_has_its_own_name(a):
    """What a part is called, found without it: by silencing weights, and by differences of the stream."""
    rng = np.random.default_rng(0)
    w, tokens, tap = random_weights(a, rng), draw_ids(rng, a), TensorRecorder()
    forward(a, w, tokens, tap=tap)
    seen, expected = tap.values, {}
    for l in range(a.n_layers):
        at = f"blocks.{l}."
        out = f"{at}attn.out.weight"
        for h in range(a.n_heads):
            silenced = np.array(w[out])
            silenced[:, h * a.d_head : (h + 1) * a.d_head] = 0
            without = TensorRecorder()
            forward(a, w | {out: silenced}, tokens, tap=without)
            expected[f"{at}attn.head.{h}"] = seen[f"{at}attn_out"] - without.values[f"{at}attn_out"]
        if f"{at}attn.out.bias" in w:
            expected[f"{at}attn.out.bias"] = a.residual_scale * w[f"{at}attn.out.bias"] + 0 * seen[f"{at}attn_out"]
        expected[f"{at}mlp_out"] = seen[f"{at}resid_post"] - seen[f"{at}resid_mid"]
    parts = direct_logit_attribution(a, w, tokens)
    W_U = a.unembed_scale * w["embed.token.weight" if a.unembed == "tied" else "unembed.weight"]
    W_U = W_U @ w["unembed.projection.weight"] if a.d_embed else W_U
    for name, x in expected.items():
        if a.final_norm == "norm" and a.norm.kind != "none":
            centred = x - x.mean(-1, keepdims=True) if a.norm.kind == "layer" else x
            gain = 1.0 if a.norm.gain == "1" else w["final_norm.gain"] + (a.norm.gain == "1+g")
            x = gain * centred / seen["final_norm.scale"]
        assert close(parts[name], x @ W_U.T, 1e-11), name
    others = parts.keys() - expected.keys()
    assert others <= {"embed", "pos_embed", "seg_embed", "ngram_embed", "embed_projected.bias", "final_norm.bias"}
    entering = {name for name in others if name.endswith("embed")}
    assert entering == {"embed"} | ({"pos_embed", "seg_embed", "ngram_embed"} & seen.keys())


@pytest.mark.item("S4-ntp-e")
def test_the_softmax_bottleneck(rng, same):
    """Log-probabilities over many contexts have rank at most d + 1; phi and lambda are unique up to a linear map."""
    phi, lam, R = rng.normal(size=(40, 3)), rng.normal(size=(20, 3)), rng.normal(size=(3, 3))
    logp = log_softmax(unembed(phi, lam))
    assert np.linalg.matrix_rank(logp) == 4
    same(log_softmax(unembed(phi @ R.T, lam @ np.linalg.inv(R))), logp, 1e-10)


@pytest.mark.item("S4-mat-a")
def test_the_whole_transformer_on_one_page(rng, same):
    a = seed_0(n_heads=1, n_layers=1, norm__kind="layer", norm__bias="none", mlp__bias="none",
               scale="1/sqrt(d_head)", positions__kind="sinusoidal", activation="gelu_tanh")  # fmt: skip
    w, tokens = random_weights(a, rng), rng.integers(0, 9, 7)
    w |= {f"blocks.0.norm_{k}.gain": np.ones(8) for k in (1, 2)}
    (head,) = heads_of_layer(a, w, 0)
    E = w["embed.token.weight"][tokens] + sinusoidal_positions(7, 8)
    page = B.one_head_transformer(
        E, *head, w["blocks.0.mlp.up.0.weight"], w["blocks.0.mlp.down.weight"], w["unembed.weight"],
        gelu_tanh, lambda Z: softmax(Z, where=causal_mask(7)), layer_norm,
    )  # fmt: skip
    same(page, forward(a, w, tokens))


GPT = {"mlp.activation": "gelu_tanh"}


@pytest.mark.item("S0-ref")
def test_the_algorithms_of_phuong_and_hutter_have_one_function_each():
    from pellucid.reference import embedding, functions, generation, learning, transformer

    algorithms = {
        1: embedding.embed, 2: embedding.sinusoidal_positions, 3: A.attention_head_at, 4: A.attention_head,
        5: A.multi_head_concat, 6: functions.layer_norm, 7: embedding.unembed, 8: transformer.encoder_decoder,
        9: transformer.encode, 10: transformer.forward, 11: learning.loss_and_gradient, 12: learning.masked_lm_loss,
        13: learning.next_token_loss, 14: generation.generate_by_definition,
    }  # fmt: skip
    assert sorted(algorithms) == list(range(1, 15))
    assert all(f.__doc__ for f in algorithms.values())
