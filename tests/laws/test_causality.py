"""Changing a later token changes no earlier row, bitwise; a mixture of experts to rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from running import call, draw_tokens, with_encoder

CAUSAL = {"attention.mask": st.sampled_from(["causal", "prefix"])}


def is_same(one, other, a):
    """Bitwise; to rounding where experts are chosen, as the rows of an expert's product are those that choose it."""
    tolerance = 1e-12 if one.dtype == torch.float64 else 1e-5
    return difference(one, other) <= tolerance if a.mlp.experts else torch.equal(one, other)


def later_changed(a, tokens, place):
    """The same tokens up to `place`, others from there on."""
    changed = tokens.clone()
    changed[:, place:] = (tokens[:, place:] + 1) % a.n_vocab
    return changed


@pytest.mark.item("S0-4.3-f", "S1-1.1.2-f", "S4-ntp-c")
@settings(max_examples=30)
@given(architectures(CAUSAL), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_later_tokens_change_no_earlier_row(a, dtype, data):
    place = data.draw(st.integers(1, a.n_ctx - 1))
    network, tokens = make_network(a, dtype=dtype), draw_tokens(a, 2, a.n_ctx)
    before, after = (network(t).detach() for t in (tokens, later_changed(a, tokens, place)))
    assert is_same(before[:, :place], after[:, :place], a)
    assert not torch.equal(before[:, place:], after[:, place:])


@pytest.mark.item("S4-encdec-a")
@settings(max_examples=10)
@given(architectures(CAUSAL | {"n_vocab": 11}, max_ctx=6), st.sampled_from([torch.float32, torch.float64]))
def test_nor_where_an_encoder_is_read(a, dtype):
    a = with_encoder(a)
    network, tokens = make_network(a, dtype=dtype), draw_tokens(a, 2, 4)
    before, after = (call(network, t).detach() for t in (tokens, later_changed(a, tokens, 2)))
    assert is_same(before[:, :2], after[:, :2], a)


@pytest.mark.item("S0-3-a")
@settings(max_examples=20)
@given(architectures(CAUSAL), st.data())
def test_no_gradient_reaches_a_later_token(a, data):
    place = data.draw(st.integers(0, a.n_ctx - 2))
    embeddings = torch.randn(1, a.n_ctx, a.embed_width, dtype=torch.float64).requires_grad_()
    network = make_network(a)
    network(draw_tokens(a, 1, a.n_ctx), embeddings=embeddings)[:, : place + 1].square().sum().backward()
    assert embeddings.grad is not None
    assert (embeddings.grad[:, place + 1 :] == 0).all()


@settings(max_examples=20)
@given(architectures(CAUSAL | {"attention.windows": (3,), "n_layers": 1, "ngrams": ()}), st.data())
def test_what_lies_outside_the_window_changes_nothing(a, data):
    """One layer with window w: row i reads i - w + 1 ... i."""
    network, tokens = make_network(a), draw_tokens(a, 2, a.n_ctx)
    changed = tokens.clone()
    changed[:, 0] = (tokens[:, 0] + 1) % a.n_vocab
    before, after = network(tokens).detach(), network(changed).detach()
    assert is_same(before[:, 3:], after[:, 3:], a)
    assert not torch.equal(before[:, :3], after[:, :3])


@settings(max_examples=10)
@given(architectures({"attention.mask": "bidirectional", "n_layers": 2, "attention.windows": (0,)}, max_ctx=6))
def test_a_bidirectional_mask_is_not_causal(a):
    """The law above can fail: without a causal mask a later token is seen."""
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    before, after = network(tokens), network(later_changed(a, tokens, 3))
    assert not torch.equal(before[:, :3], after[:, :3])
