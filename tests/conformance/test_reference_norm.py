"""Normalisation: S1 1.1.1.1, S3 slide 9, S4 "Normalization and Dropout"."""

import numpy as np
import pytest
import torch
from companions import NORMED, draw_ids
from hypothesis import assume, given, settings

from drawing import architectures
from pellucid.architecture import Architecture
from pellucid.parameter_counts import count_parameters
from pellucid.reference.blocks import block
from pellucid.reference.circuits import dropout_sites, fold_layer_norm, fold_norms
from pellucid.reference.functions import dropout, keep_mask, layer_norm, relu, rms_norm, softmax
from pellucid.reference.learning import adamw_step, loss_and_gradient
from pellucid.reference.masks import causal_mask
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.tape import gradient
from pellucid.reference.transformer import forward
from pellucid.reference.weights import random_weights
from pellucid.tensor_names import names


@pytest.mark.item("S1-1.1.1.1-b", "S3-8-a", "S4-norm-b")
def test_layer_norm_by_hand_and_against_torch(rng, same):
    y = layer_norm(np.array([1.0, 2, 3, 4]), eps=0.0)
    np.testing.assert_allclose(y, [-1.3416407865, -0.4472135955, 0.4472135955, 1.3416407865], atol=1e-10)
    x, gain, bias = rng.normal(size=(5, 6)), rng.normal(size=6), rng.normal(size=6)
    theirs = torch.nn.functional.layer_norm(torch.tensor(x), (6,), torch.tensor(gain), torch.tensor(bias), 1e-5)
    same(layer_norm(x, gain, bias), theirs.numpy())
    same(rms_norm(x, gain), torch.nn.functional.rms_norm(torch.tensor(x), (6,), torch.tensor(gain), 1e-5).numpy())
    # what is left out is gain 1, bias 0 and torch's constant, as seen at a size where the constant matters
    same(layer_norm(x / 300), torch.nn.functional.layer_norm(torch.tensor(x / 300), (6,)).numpy())
    same(rms_norm(x / 300), torch.nn.functional.rms_norm(torch.tensor(x / 300), (6,), eps=1e-5).numpy())
    z = layer_norm(x, eps=0.0)
    same(z.mean(1), np.zeros(5))
    same((z**2).mean(1), np.ones(5))
    same(layer_norm(3.7 * x + 5, eps=0.0), z)


@pytest.mark.item("S3-8-a")
def test_where_the_small_constant_stands():
    """E-51: at unit size nearly the same, at size 1e-3 not; the derivative at constant input exists in both."""
    unit, small = np.array([[1.0, -1, 1, -1]]), 1e-3 * np.array([[1.0, 2, 3, 4]])
    inside, outside = layer_norm(unit), layer_norm(unit, eps_at="outside")
    assert np.abs(inside / outside - 1).max() == pytest.approx(5e-6, rel=0.02)
    assert np.abs(layer_norm(small)).min() == pytest.approx(0.447 * 0.333, rel=0.02)
    assert layer_norm(small, eps_at="outside")[0, 3] == pytest.approx(1.330, abs=1e-3)
    for eps_at, expected in (("inside", 474.3), ("outside", 1.5e5)):
        _, g = gradient(
            lambda v, e=eps_at: np.sum(np.square(layer_norm(v["x"], 1, [0, 1, 0, 0], eps_at=e))), {"x": np.ones((1, 4))}
        )
        assert g["x"][0, 1] == pytest.approx(expected, rel=0.01)
        assert np.all(np.isfinite(g["x"]))
    with pytest.raises(ValueError, match="inside or outside"):
        layer_norm(unit, eps_at="beside")


@pytest.mark.item("S1-1.1.1.1-c")
def test_two_norms_a_block_have_four_d_parameters():
    """E-25: the text says 2D."""
    a = Architecture(n_vocab=5, n_ctx=4, d_model=8, n_layers=3, final_norm="none").with_fields({"n_heads": 2})
    assert count_parameters(a)["norms"] == 3 * 4 * 8
    assert count_parameters(a.with_fields({"final_norm": "norm"}))["norms"] == 3 * 4 * 8 + 2 * 8


@pytest.mark.item("S1-1.1.1.1-d")
def test_gain_and_bias_fold_into_the_next_linear_map(rng, same):
    x, gain, bias, W, b = (rng.normal(size=s) for s in ((5, 4), 4, 4, (3, 4), 3))
    folded, b_folded = fold_layer_norm(gain, bias, W, b)
    same(x @ folded.T + b_folded, (x * gain + bias) @ W.T + b)
    same(folded, W @ np.diag(gain))


@pytest.mark.item("S1-1.1.1.1-d")
@settings(max_examples=40)
@given(architectures({"readout": "linear", "logit_cap": 0.0, "attention.bias": "all", "mlp.bias": "all"}))
def test_the_norms_of_a_whole_transformer_fold_away(a):
    rng = np.random.default_rng(1)
    w, tokens = random_weights(a, rng), draw_ids(rng, a)
    if a.block == "post" or a.norm.kind == "none":
        with pytest.raises(ValueError, match="fold"):
            fold_norms(a, w)
        return
    if a.mlp.experts and a.norm.kind == "layer" and a.norm.bias == "all":
        with pytest.raises(ValueError, match="as routers are"):
            fold_norms(a, w)
        return
    folded_a, folded, b_U = fold_norms(a, w)
    expected = forward(a, w, tokens)
    assert np.abs(forward(folded_a, folded, tokens) + b_U - expected).max() <= 1e-10 * max(1, np.abs(expected).max())
    for name in folded:
        # a norm of what a sublayer adds is read by the stream: it stays
        if (".norm_" in name and "_out." not in name) or name.startswith("final_norm"):
            assert np.all(folded[name] == (1.0 if name.endswith("gain") and a.norm.gain == "g" else 0.0))


@pytest.mark.item("S1-1.1.1.1-e")
def test_the_rest_of_the_norm_is_not_affine(rng):
    x, y = rng.normal(size=(2, 6))
    assert np.abs(layer_norm((x + 3 * y) / 4) - (layer_norm(x) + 3 * layer_norm(y)) / 4).max() > 1e-2


@pytest.mark.item("S1-1.1.1.1-f")
def test_folding_changes_the_training(rng):
    """Equal functions before, different ones after one step of gradient descent."""
    a = Architecture(n_vocab=5, n_ctx=4, d_model=8, n_layers=1, unembed="untied", final_norm="none").with_fields(
        {"n_heads": 2}
    )
    w, tokens = random_weights(a, rng), rng.integers(0, 5, (3, 4))
    folded_a, folded, _ = fold_norms(a, w)
    before = np.abs(forward(folded_a, folded, tokens) - forward(a, w, tokens)).max()
    stepped = []
    for architecture, start in ((a, w), (folded_a, folded)):
        _, g = loss_and_gradient(architecture, start, tokens)
        stepped.append(forward(architecture, {k: start[k] - 0.1 * g[k] for k in g}, tokens))
    assert before < 1e-12
    assert np.abs(stepped[0] - stepped[1]).max() > 1e-3


@pytest.mark.item("S1-1.1.1.1-g")
def test_norms_act_on_each_position_alone(rng):
    x, gain, bias = rng.normal(size=(8, 6)), rng.normal(size=6), rng.normal(size=6)
    shards = [layer_norm(part, gain, bias) for part in np.split(x, 4)]
    assert np.array_equal(np.concatenate(shards), layer_norm(x, gain, bias))


@pytest.mark.item("S1-1.1.1.1-a", "S4-norm-a", "S4-mat-b")
def test_overwriting_the_stream_is_post_norm_in_disguise(rng, same):
    """E-66: E <- LN(E); E^ = E + attn; E^ <- LN(E^); E = E^ + ffn, twice, against post blocks."""
    X, A, W, W_1 = (
        rng.normal(size=(5, 6)),
        softmax(rng.normal(size=(5, 5)), where=causal_mask(5)),
        *rng.normal(size=(2, 6, 6)),
    )

    def heads(Y):
        return A @ Y @ W.T

    def ffn(Y):
        return relu(Y) @ W_1.T

    def literal(E):
        E = layer_norm(E)
        E_hat = layer_norm(E + heads(E))
        return E_hat + ffn(E_hat)

    def post(E):
        return block(E, heads, ffn, "post", layer_norm, layer_norm)

    def pre(E):
        return block(E, heads, ffn, "pre", layer_norm, layer_norm)

    same(layer_norm(literal(literal(X))), post(post(layer_norm(X))))
    assert np.abs(literal(literal(X)) - pre(pre(X))).max() > 0.5
    with pytest.raises(ValueError, match="none, pre or post"):
        block(X, heads, ffn, "before")


@pytest.mark.item("S4-norm-c")
def test_without_norms_the_scale_explodes():
    """The size of the stream after 1, 12 and 24 random blocks of width 64."""
    sizes = {}
    for norm, kind in (("none", "pre"), ("pre", "pre"), ("post", "post")):
        rng = np.random.default_rng(0)
        x, grown = rng.normal(size=(16, 64)), []
        pattern = softmax(rng.normal(size=(16, 16)), where=causal_mask(16))
        for _ in range(24):
            V, W_1, W_2 = rng.normal(size=(64, 64)) / 8, rng.normal(size=(256, 64)) / 8, rng.normal(size=(64, 256)) / 16
            x = block(
                x, lambda y, A=pattern, V=V: A @ y @ V.T, lambda y, a=W_1, b=W_2: relu(y @ a.T) @ b.T,
                "none" if norm == "none" else kind, layer_norm, layer_norm,
            )  # fmt: skip
            grown.append(float(np.sqrt(np.mean(x**2))))
        sizes[norm] = grown
    assert sizes["none"][23] > 1e3 > 20 > sizes["pre"][23] > sizes["pre"][0]
    assert sizes["post"][23] == pytest.approx(1, abs=1e-3)


@pytest.mark.item("S1-1.1.1.1-a")
def test_at_the_start_gradients_of_the_last_layer_are_smaller_before_the_norm():
    """Xiong et al. 2020: only for pre blocks does the last layer's gradient shrink with the depth."""

    def size(kind, n_layers):
        a = Architecture(n_vocab=20, n_ctx=8, d_model=32, n_layers=n_layers, block=kind, unembed="untied").with_fields(
            {
                "final_norm": "norm" if kind == "pre" else "none",
                "mlp.activation": "relu",
                "positions.kind": "sinusoidal",
            }
        )
        found = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            w = random_weights(a, rng)
            for name, x in w.items():
                if name.endswith(("gain", "bias")):
                    w[name] = np.full(x.shape, 1.0 if name.endswith("gain") else 0.0)
                else:
                    w[name] = x / x.std() * np.sqrt(2 / sum(x.shape))
            _, g = loss_and_gradient(a, w, rng.integers(0, 20, (4, 8)))
            found.append(np.linalg.norm(g[f"blocks.{n_layers - 1}.mlp.down.weight"]))
        return np.mean(found)

    pre, post = [size("pre", n) for n in (2, 8)], [size("post", n) for n in (2, 8)]
    assert pre[1] < 0.8 * pre[0]
    assert post[1] > 0.9 * post[0]
    assert pre[0] < post[0]


@pytest.mark.item("S1-fig1", "S1-1.1.2-k", "S4-drop-a")
@settings(max_examples=25)
@given(architectures(NORMED))
def test_dropout_has_one_site_and_three_for_each_layer(a):
    rng = np.random.default_rng(0)
    w, tokens = random_weights(a, rng), draw_ids(rng, a)
    if (a.embed_projection == "sum" or not a.n_layers) and "embed_norm" not in names(a):
        with pytest.raises(ValueError, match="the embedded stream is no tensor"):
            dropout_sites(a)
        return
    sites = dropout_sites(a)
    assert len(sites) == 1 + 3 * a.n_layers
    logits = forward(a, w, tokens)
    with_rate = {
        p: TensorRecorder({s: lambda x, p=p: dropout(x, p, keep_mask(np.shape(x), p, rng)) for s in sites})
        for p in (0.0, 0.5)
    }
    assert np.array_equal(forward(a, w, tokens, tap=with_rate[0.0]), logits)
    assert set(sites) <= set(with_rate[0.0].values)
    changed = forward(a, w, tokens, tap=with_rate[0.5])
    assume(a.readout != "bert")
    assert not np.array_equal(changed, logits)


@pytest.mark.parametrize("changes", [{"betas": (0.8, 0.9), "eps": 1e-6, "decay": 0.1}, {}], ids=["given", "left out"])
def test_one_step_of_adamw_is_torchs(changes, rng, same):
    w = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}
    theirs = [torch.tensor(x, requires_grad=True) for x in w.values()]
    names = {"decay": "weight_decay"}
    optimiser = torch.optim.AdamW(theirs, lr=0.01, **{names.get(name, name): x for name, x in changes.items()})
    state = None
    for step in (1, 2, 3):
        # some so small that the constant counts
        grads = {name: 1e-8 ** rng.integers(0, 2, x.shape) * rng.normal(size=x.shape) for name, x in w.items()}
        for p, g in zip(theirs, grads.values(), strict=True):
            p.grad = torch.tensor(g)
        optimiser.step()
        w, state = adamw_step(w, grads, state, step, lr=0.01, **changes)
        for p, mine in zip(theirs, w.values(), strict=True):
            same(mine, p.detach().numpy())
