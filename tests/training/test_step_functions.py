"""The compiled functions of a training step are the network's own, to a rounding, and so are their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.model.kernels import ExplicitAttention
from pellucid.model.mask import ScoreMask
from pellucid.model.mlp import GatedMLP
from pellucid.model.norm import RMSNorm
from pellucid.model.positions import Rotary
from pellucid.training import step_functions as module
from pellucid.training.step_functions import SOURCE, STEPPED, SteppedRMSNorm, choose_step_functions

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SEEDS = st.integers(0, 10**6)
#: what a number is off by in its last digit, and the root of it for sums of a few hundred
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


def architecture(**fields) -> Architecture:
    return Architecture(n_vocab=50, n_ctx=40, d_model=24, n_layers=2).with_fields({"attention.n_heads": 3} | fields)


def drawn(seed: int, *shape: int, dtype: torch.dtype, spread: float = 1.0) -> torch.Tensor:
    x = spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).requires_grad_()


def agree(function, exact, inputs, dtype, seed=0) -> None:
    """A function of tensors and of their float64 copies: values and gradients, to the rounding of their type."""
    y = function(*inputs)
    by = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + 1)).to(y.dtype)
    gradients = torch.autograd.grad(y, inputs, by)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = exact(*wide)
    pairs = [(y, expected), *zip(gradients, torch.autograd.grad(expected, wide, by.double()), strict=True)]
    assert y.dtype == dtype
    for found, right in pairs:
        scale = right.abs().max().clamp(min=1.0)
        assert (found.double() - right).abs().max() <= ROUNDING[dtype] * scale


def test_there_is_a_compiler_here():
    """The other tests say nothing without one."""
    assert SOURCE.load()[1] == ""


@DTYPES
@settings(max_examples=20)
@given(SEEDS, st.integers(1, 5), st.integers(1, 70), st.sampled_from([0.01, 1.0, 30.0]), st.booleans())
def test_the_norm(dtype, seed, n_rows, n, spread, has_gain):
    def exact(x, *gain):
        return torch.nn.functional.rms_norm(x, (n,), gain[0] if gain else None, 1e-5)

    def own(x, *gain):
        return module.RMSNormFunction.apply(x, gain[0] if gain else None, 1e-5, dtype)

    gain = [drawn(seed + 2, n, dtype=torch.float32)] if has_gain else []
    x = drawn(seed, 2, n_rows, n, dtype=dtype, spread=spread)
    agree(own, exact, [x, *gain], dtype)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_norm_under_autocast_is_narrow_where_only_products_read_it(narrow):
    x, norm = drawn(0, 4, 24, dtype=torch.float32), RMSNorm(architecture(), 24).train()
    norm.__class__ = SteppedRMSNorm
    norm.is_read_by_products = narrow
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    y.sum().backward()
    assert y.dtype == (torch.bfloat16 if narrow else torch.float32)
    assert x.grad is not None
    assert x.grad.dtype == norm.gain.grad.dtype == torch.float32
    expected = RMSNorm(architecture(), 24)(x.detach())
    assert torch.equal(y, expected.bfloat16()) if narrow else torch.allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "narrow"),
    [
        ({}, ["final_norm", "norm_1", "norm_2"]),
        ({"block": "parallel"}, ["final_norm", "norm_1", "norm_2"]),
        ({"block": "post"}, ["final_norm"]),
        ({"block": "sandwich"}, ["final_norm", "norm_1", "norm_2"]),
        ({"embed_norm": "norm"}, ["final_norm", "norm_1", "norm_2"]),
    ],
    ids=str,
)
def test_a_norm_that_goes_into_the_stream_keeps_its_digits(fields, narrow):
    network = small(**fields)
    found = [(name, m) for name, m in network.named_modules() if isinstance(m, SteppedRMSNorm)]
    assert sorted({name.rpartition(".")[2] for name, m in found if m.is_read_by_products}) == narrow
    assert found


@DTYPES
@settings(max_examples=20)
@given(SEEDS, st.integers(1, 70), st.sampled_from([0.1, 3.0, 50.0]))
def test_the_causal_pattern(dtype, seed, n, spread):
    def exact(scores):
        return ScoreMask(None, True, False).applied_to(scores).softmax(-1)

    agree(module.CausalPattern.apply, exact, [drawn(seed, 2, 3, n, n, dtype=dtype, spread=spread)], dtype)


@DTYPES
def test_a_pattern_is_causal_whatever_the_scores_ahead_are(dtype):
    scores = drawn(0, 1, 1, 33, 33, dtype=dtype)
    ahead = torch.triu(torch.ones(33, 33, dtype=torch.bool), 1)
    pattern = module.CausalPattern.apply(scores)
    assert torch.equal(pattern[..., ahead], torch.zeros_like(pattern[..., ahead]))
    for bad in (float("nan"), float("inf")):
        assert torch.equal(module.CausalPattern.apply(scores.detach().masked_fill(ahead, bad)), pattern)


@DTYPES
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_numbers_that_are_not_finite_stay_so(dtype, bad):
    scores, x, gate = (drawn(1, 1, 1, 20, 20, dtype=dtype).detach() for _ in range(3))
    scores[0, 0, 7, 3] = x[0, 0, 7, 3] = gate[0, 0, 7, 3] = bad
    expected = ScoreMask(None, True, False).applied_to(scores.float()).softmax(-1)
    assert torch.equal(module.CausalPattern.apply(scores).isnan().tril(), expected.isnan().tril())
    normed = module.RMSNormFunction.apply(x, None, 1e-5, dtype)
    assert torch.equal(normed.isnan(), torch.nn.functional.rms_norm(x.float(), (20,), None, 1e-5).isnan())
    up = torch.ones_like(gate)
    gated, right = module.SiLUGate.apply(gate, up), torch.nn.functional.silu(gate.float())
    assert torch.equal(gated.isfinite(), right.isfinite())


@DTYPES
@settings(max_examples=20)
@given(SEEDS, st.sampled_from([1, 15, 16, 4096, 4097, 9000]), st.sampled_from([1.0, 40.0]))
def test_the_gate(dtype, seed, n, spread):
    inputs = [drawn(seed + k, n, dtype=dtype, spread=spread) for k in (0, 5)]
    agree(module.SiLUGate.apply, lambda g, u: torch.nn.functional.silu(g) * u, inputs, dtype)


@DTYPES
@settings(max_examples=20)
@given(SEEDS, st.integers(1, 3), st.integers(1, 9), st.integers(1, 20), st.booleans())
def test_the_rotation(dtype, seed, n_heads, n, planes, transposed):
    """In either order of heads and positions in memory."""
    a = architecture(d_model=2 * planes * n_heads, **{"attention.n_heads": n_heads, "positions.kind": "rotary"})
    rotary, angle = Rotary(a, 0), torch.rand(n, planes, generator=torch.Generator().manual_seed(seed))
    cos, sin = angle.cos(), angle.sin()
    shape = (2, n, n_heads, 2 * planes) if transposed else (2, n_heads, n, 2 * planes)
    x = drawn(seed, *shape, dtype=dtype)

    def view(x):
        return x.transpose(1, 2) if transposed else x

    agree(
        lambda x: module.RotationFunction.apply(view(x), cos, sin),
        lambda x: rotary.rotate(view(x), (cos.double()[None], sin.double()[None])),
        [x],
        dtype,
    )


# In a network -------------------------------------------------------------------------------


def gradients(network: nn.Module, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    network.zero_grad()
    network(tokens).logsumexp(-1).sum().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters()}


def stepped(network: nn.Module) -> list[type]:
    return sorted({type(m) for m in network.modules()} & set(STEPPED.values()), key=str)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention.n_kv_heads": 1, "attention.qk_norm": "rms"},
        {"positions.layout": "pairs"},
        {"positions.fraction": 0.5},
        {"attention.windows": (3,)},
        {"attention.mask": "bidirectional"},
        {"attention.score_cap": 5.0},
        {"mlp.activation": "gelu"},
        {"norm.gain": "1+g"},
        {"norm.gain": "1"},
        {"norm.kind": "layer"},
    ],
    ids=str,
)
def test_a_network_has_the_same_gradients(fields):
    """Whatever the functions leave to the network's own operations."""
    from pellucid.model.attention import choose_attention_kernel

    modern = {"mlp.form": "gated", "mlp.activation": "silu", "norm.kind": "rms", "positions.kind": "rotary"}
    network = make_network(architecture(**modern | fields)).float().train()
    choose_attention_kernel(network, "explicit")
    tokens = torch.randint(0, 50, (3, 21), generator=torch.Generator().manual_seed(0))
    plain = gradients(network, tokens)
    assert stepped(network) == []
    choose_step_functions(network, True)
    assert len(stepped(network)) >= 2
    for name, gradient in gradients(network, tokens).items():
        assert torch.allclose(gradient, plain[name], rtol=1e-4, atol=1e-5 * plain[name].abs().max().item() + 1e-7), name
    choose_step_functions(network, False)
    assert stepped(network) == []
    again = gradients(network, tokens)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def small(**fields) -> nn.Module:
    modern = {"mlp.form": "gated", "mlp.activation": "silu", "norm.kind": "rms", "positions.kind": "rotary"}
    network = make_network(architecture(**modern | fields)).float()
    network.requires_grad_()
    choose_step_functions(network, True)
    return network


def test_what_is_read_is_computed_by_the_networks_own_operations(monkeypatch):
    """Without gradients, in evaluation, in float64, and on another device."""
    network, tokens = small(), torch.arange(9)[None]
    for name in ("RMSNormFunction", "CausalPattern", "SiLUGate", "RotationFunction"):
        monkeypatch.setattr(module, name, None)
    network.eval()(tokens).sum().backward()
    with torch.no_grad():
        network.train()(tokens)
    network.double()(tokens).sum().backward()
    network.float().to("meta")(tokens.to("meta")).sum().backward()


@DTYPES
def test_numbers_are_the_same_with_one_thread_and_with_two(dtype):
    n_threads, found = torch.get_num_threads(), []
    x, angles = drawn(0, 4, 2, 33, 24, dtype=dtype).detach(), torch.ones(33, 12)
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            results = [
                module.RotationFunction.apply(x, angles, angles),
                module.RMSNormFunction.apply(x, None, 1e-5, dtype),
                module.CausalPattern.apply(drawn(1, 4, 2, 33, 33, dtype=dtype)),
                module.SiLUGate.apply(x, x),
            ]
            y = drawn(2, 300, 24, dtype=dtype)
            gain = drawn(3, 24, dtype=torch.float32)
            results += torch.autograd.grad(module.RMSNormFunction.apply(y, gain, 1e-5, dtype).sum(), [y, gain])
            found.append(results)
    finally:
        torch.set_num_threads(n_threads)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_without_a_compiler_the_network_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(SOURCE, "is_loaded", False)
    network = small()
    assert stepped(network) == []


def test_a_gradient_of_a_gradient_is_refused():
    x = drawn(0, 3, 8, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="was to be differentiated"):
        torch.autograd.grad(module.SiLUGate.apply(x, x).sum(), x, create_graph=True)


def test_what_takes_the_place_of_a_class_is_one_of_it():
    """So that its tensors keep their names, and what asks for the class finds it."""
    assert all(issubclass(stepped, plain) for plain, stepped in STEPPED.items())
    assert set(STEPPED) == {RMSNorm, Rotary, ExplicitAttention, GatedMLP}


def test_a_rotation_of_another_number_of_positions_is_left_to_pytorch():
    """The file reads an angle for each position; PyTorch repeats a single one."""
    network = make_network(architecture(**{"positions.kind": "rotary"})).float().train()
    tokens = torch.arange(8)[None]
    expected = network(tokens, positions=torch.zeros(1, dtype=torch.int64))
    choose_step_functions(network, True)
    found = network(tokens, positions=torch.zeros(1, dtype=torch.int64))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
