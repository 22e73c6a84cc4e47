"""The compiled loss and its gradient are those of PyTorch, to a rounding, and say of bad numbers what PyTorch says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pellucid.training import cross_entropy as module
from pellucid.training.cross_entropy import LEAST_VOCABULARY, SOURCE, UNSCORED, cross_entropy, is_likeliest

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def test_there_is_a_compiler_here():
    """The other tests say nothing without one."""
    assert SOURCE.load()[1] == ""
    assert module.is_compiled_for(torch.zeros(1, LEAST_VOCABULARY))
    assert not module.is_compiled_for(torch.zeros(1, LEAST_VOCABULARY - 1))
    assert not module.is_compiled_for(torch.zeros(1, LEAST_VOCABULARY, dtype=torch.float64))


def rows(seed, n, n_vocab, dtype, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(n, n_vocab, generator=generator)).to(dtype)
    targets = torch.randint(0, n_vocab, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < 0.2] = UNSCORED
    return logits.requires_grad_(), targets


@BOTH
@settings(max_examples=30)
@given(
    st.integers(0, 10**6), st.integers(1, 9), st.integers(LEAST_VOCABULARY, 600), st.sampled_from([0.0, 1.0, 9.0, 60.0])
)
def test_losses_and_gradients_are_those_of_float64(dtype, seed, n, n_vocab, spread):
    logits, targets = rows(seed, n, n_vocab, dtype, spread)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed)) + 0.5
    nats = cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(nats @ weights, logits)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, targets, ignore_index=UNSCORED, reduction="none")
    (by_exact,) = torch.autograd.grad(expected @ weights.double(), exact)
    assert nats.dtype == torch.float32
    assert torch.allclose(nats.double(), expected, rtol=2e-6, atol=2e-6)
    assert gradient.dtype == dtype
    rounding = 2**-8 if dtype == torch.bfloat16 else 2e-5  # e^(x - sum) has the rounding of x - sum, up to 100
    assert torch.allclose(gradient.double(), by_exact, rtol=rounding, atol=1e-6)


@BOTH
def test_a_row_has_the_same_numbers_alone_and_among_others_with_one_thread_and_with_two(dtype):
    logits, targets = rows(1, 37, 301, dtype)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = cross_entropy(logits, targets)
        (gradient,) = torch.autograd.grad(together.sum(), logits)
    finally:
        torch.set_num_threads(n_threads)
    for row, target, nats, by_row in zip(logits.detach(), targets, together, gradient, strict=True):
        alone = row[None].clone().requires_grad_()
        loss = cross_entropy(alone, target[None])
        assert torch.equal(loss, nats[None])
        assert torch.equal(torch.autograd.grad(loss.sum(), alone)[0], by_row[None])


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("at", [0, 17, 300])
def test_numbers_that_are_not_finite_give_what_they_give_in_pytorch(dtype, bad, at):
    logits, targets = rows(2, 3, 301, dtype)
    targets = torch.tensor([at, 5, 6])
    with torch.no_grad():
        logits[0, at] = logits[1, at] = bad
    nats = cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(nats.sum(), logits)
    plain = logits.detach().float().requires_grad_()
    expected = F.cross_entropy(plain, targets, reduction="none")
    (by_plain,) = torch.autograd.grad(expected.sum(), plain)
    assert torch.equal(nats.isnan(), expected.isnan())
    assert torch.equal(nats.isinf(), expected.isinf())
    assert torch.equal(gradient.isfinite().all(-1), by_plain.isfinite().all(-1))
    assert not torch.equal(nats.isfinite(), torch.ones(3, dtype=torch.bool)) or bad == float("-inf")


@BOTH
def test_rows_may_lie_anywhere_in_memory(dtype):
    logits, targets = rows(3, 300, 300, dtype)
    assert torch.equal(cross_entropy(logits.T, targets), cross_entropy(logits.T.contiguous(), targets))


@BOTH
@pytest.mark.parametrize("n_vocab", [LEAST_VOCABULARY, 300, 333])
def test_the_likeliest_is_the_first_among_equals(dtype, n_vocab):
    logits = torch.randint(0, 5, (200, n_vocab), generator=torch.Generator().manual_seed(4)).to(dtype)
    first = logits.argmax(-1)
    targets = torch.where(torch.arange(200) % 3 == 0, first, torch.arange(200) % n_vocab)
    assert torch.equal(is_likeliest(logits, targets), first == targets)
    assert is_likeliest(logits, first).all()
    same = torch.zeros(3, n_vocab, dtype=dtype)
    assert is_likeliest(same, torch.tensor([0, 1, n_vocab - 1])).tolist() == [True, False, False]


def test_without_a_compiler_pytorch_computes_the_same(monkeypatch):
    logits, targets = rows(5, 20, 300, torch.float32)
    compiled, right = cross_entropy(logits, targets), is_likeliest(logits.detach(), targets)
    monkeypatch.setattr(SOURCE, "is_loaded", False)
    monkeypatch.setattr(module, "call", lambda *_: pytest.fail("the compiled loss was called"))
    assert torch.allclose(cross_entropy(logits, targets), compiled, rtol=1e-6, atol=1e-6)
    assert torch.equal(is_likeliest(logits.detach(), targets), right)


@pytest.mark.parametrize("target", [300, 10**6, -1])
def test_a_target_outside_of_the_vocabulary_is_refused(target):
    """Reading and writing there would be elsewhere in memory."""
    logits, targets = rows(7, 4, 300, torch.float32)
    targets[2] = target
    for function in (cross_entropy, is_likeliest):
        with pytest.raises(IndexError, match="expected 0 to 299, or -100 for none"):
            function(logits, targets)


def test_a_gradient_of_a_gradient_is_refused():
    logits, targets = rows(6, 4, 300, torch.float32)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, targets).sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match=r"take torch\.nn\.functional\.cross_entropy"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_what_pytorch_makes_by_default_decides_nothing(default):
    """The file writes float32, whatever type a program has made PyTorch's default."""
    logits, targets = rows(5, 7, 301, torch.float32)
    expected = cross_entropy(logits, targets)
    torch.set_default_dtype(default)
    try:
        nats = cross_entropy(logits, targets)
        (gradient,) = torch.autograd.grad(nats.sum(), logits)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(nats, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected.sum(), logits)[0])


@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        (torch.zeros(4, 300), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(4, 300), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 2, 300), torch.zeros(2, 2, dtype=torch.int64)),
    ],
)
def test_targets_of_another_type_or_shape_are_refused(logits, targets):
    """The file reads one int64 for each row, whatever is there."""
    for function in (cross_entropy, is_likeliest):
        with pytest.raises(ValueError, match=r"expected logits \[pos, n_vocab\] and targets \[pos\] of torch.int64"):
            function(logits, targets)
