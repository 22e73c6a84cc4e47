"""The engine's gradients are the reference's, for every parameter, and both are slopes of the reference's loss."""

import numpy as np
import pytest
import torch
from companions import BASE, COMPANIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from drawing import WORDS_WITH_LOGITS, architectures, bodies, make_network
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.weights import state_of
from pellucid.reference.learning import loss_and_gradient
from pellucid.reference.tape import gradient, real
from pellucid.reference.transformer import hidden
from running import any_architectures, call, draw_tokens, source_tokens, with_encoder

TOLERANCE = 1e-10


def engine_gradient(network, tokens):
    """The mean next-token loss of the engine and its gradient, by parameter."""
    logits = call(network, tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    network.zero_grad()
    loss.backward()
    # a parameter that decides nothing (a segment that no token has) may have no gradient at all
    return loss.item(), {n: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for n, p in parameters(network)}


def parameters(network):
    return list(network.named_parameters())


def reference_arguments(network, tokens):
    a = network.architecture
    source = None if a.encoder is None else source_tokens(a, tokens.size(0)).numpy()
    return {name: p.numpy() for name, p in state_of(network).items()}, tokens.numpy(), source


def check_gradient(network, tokens):
    weights, ids, source = reference_arguments(network, tokens)
    loss, ours = engine_gradient(network, tokens)
    expected_loss, theirs = loss_and_gradient(network.architecture, weights, ids, source=source)
    assert abs(loss - expected_loss) <= TOLERANCE * max(1.0, abs(expected_loss))
    assert ours.keys() == theirs.keys()
    # the gradient is one vector: its entries are measured by its largest
    scale = max(1.0, *(float(np.abs(g).max(initial=0)) for g in theirs.values()))
    for name, expected in theirs.items():
        assert np.abs(ours[name] - expected).max(initial=0) <= TOLERANCE * scale, name


@pytest.mark.item("S0-0-b")
@settings(max_examples=30)
@given(any_architectures(), st.integers(0, 3))
def test_every_gradient_is_the_reference_s(a, seed):
    check_gradient(make_network(a, seed), draw_tokens(a, 2, 4, seed))


@settings(max_examples=20)
@given(architectures(max_ctx=6))
def test_explicit_attention_has_the_same_gradient(a):
    network = make_network(a)
    choose_attention_kernel(network, "explicit")
    check_gradient(network, draw_tokens(a, 2, 4))


@settings(max_examples=15)
@given(bodies())
def test_the_gradient_of_a_body_without_readout(a):
    """Of the sum of the stream's squares weighted by rank, which a final norm leaves a function of the weights."""
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    factors = np.linspace(-1, 2, a.d_model)
    network.zero_grad()
    (network.hidden(tokens).square() * torch.from_numpy(factors)).sum().backward()
    weights, ids, _ = reference_arguments(network, tokens)
    trainable = {name: real(w) for name, w in weights.items()}
    _, theirs = gradient(lambda w: np.sum(np.square(hidden(a, w, ids)) * factors), trainable)
    scale = max(1.0, *(float(np.abs(g).max(initial=0)) for g in theirs.values()))
    for name, p in parameters(network):
        ours = np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        assert np.abs(ours - theirs[name]).max(initial=0) <= TOLERANCE * scale, name


@pytest.mark.item("S0-0-b")
@pytest.mark.parametrize(("field", "word"), [(field, word) for field, options in WORDS_WITH_LOGITS for word in options])
def test_every_word_has_a_reference_gradient(field, word):
    a = BASE.with_fields(COMPANIONS.get(field, {}) | {"n_layers": 1, field: word})
    if field == "source_embed":
        a = with_encoder(a)
    # positions are scaled in contexts longer than n_trained alone
    check_gradient(make_network(a), draw_tokens(a, 2, 36 if a.n_ctx == 40 else 5))
