"""Without a mask and without positions, permuted tokens give permuted rows (S2)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from running import call, draw_tokens, with_encoder

UNORDERED = {"attention.mask": "bidirectional", "positions.kind": "none", "attention.windows": (0,), "ngrams": ()}


def permutation(n, data):
    return torch.tensor(data.draw(st.permutations(range(n))))


@pytest.mark.item("S2-4-a", "S2-4-c")
@settings(max_examples=20)
@given(architectures(UNORDERED), st.data())
def test_permuted_tokens_give_permuted_rows(a, data):
    network, tokens, order = make_network(a), draw_tokens(a, 2, a.n_ctx), permutation(a.n_ctx, data)
    assert difference(network(tokens[:, order]), network(tokens)[:, order].detach()) <= 1e-12


@settings(max_examples=20)
@given(architectures(max_ctx=6), st.data())
def test_positions_and_mask_permuted_along_give_permuted_rows(a, data):
    """Order enters through positions and the mask alone: where both are given and permuted, so are the rows."""
    a = a.with_fields(
        {
            "attention.windows": "0",
            "ngrams": (),
            "positions.kind": "learned" if a.positions.kind in ("alibi", "relative") else a.positions.kind,
        }
    )
    network, tokens, order = make_network(a), draw_tokens(a, 2, a.n_ctx), permutation(a.n_ctx, data)
    mask, places = torch.ones(a.n_ctx, a.n_ctx, dtype=torch.bool).tril(), torch.arange(a.n_ctx)
    permuted = network(tokens[:, order], positions=places[order], mask=mask[order][:, order])
    assert difference(permuted, network(tokens, positions=places, mask=mask)[:, order].detach()) <= 1e-12


@pytest.mark.item("S4-encdec-a")
@settings(max_examples=10)
@given(architectures(UNORDERED, max_ctx=6), st.data())
def test_the_order_of_an_encoder_s_output_is_not_seen(a, data):
    a, order = with_encoder(a), permutation(4, data)
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    source = torch.randn(2, 4, a.d_model, dtype=torch.float64)
    assert (
        difference(call(network, tokens, source=source[:, order]), call(network, tokens, source=source).detach())
        <= 1e-12
    )


@pytest.mark.item("S2-4-e")
@settings(max_examples=10)
@given(architectures(UNORDERED | {"positions.kind": st.sampled_from(["learned", "sinusoidal"])}, max_ctx=6))
def test_with_positions_the_law_fails(a):
    network, tokens = make_network(a), torch.tensor([[0, 1, 2, 3]])
    flipped = network(tokens.flip(1)).detach()
    assert difference(network(tokens).flip(1), flipped) > 1e-6
