"""A network that remembers keys and values computes what it computes without remembering."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.model import Cache, Recorder
from pellucid.model.mask import prefix_mask
from pellucid.tensor_names import names
from running import call, draw_tokens, with_encoder

pytestmark = pytest.mark.usefixtures("no_gradients")
CAUSAL = {"attention.mask": st.sampled_from(["causal", "prefix"])}


@pytest.fixture(scope="module")
def no_gradients():
    with torch.no_grad():
        yield


def cache_for(a, batch=2):
    return Cache(a, batch, dtype=torch.float64)


def in_pieces(network, tokens, lengths, cache, **reading):
    """The logits of the tokens given piece after piece."""
    return torch.cat([call(network, piece, cache=cache, **reading) for piece in tokens.split(lengths, 1)], 1)


@st.composite
def splits(draw, n):
    """Lengths of 1 or more that add up to n."""
    ends = [*sorted(draw(st.sets(st.integers(1, n - 1)))), n]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.item("S4-pos-a", "S1-1.1.2-h", "S4-ntp-d")
@settings(max_examples=30)
@given(architectures(CAUSAL, max_ctx=8), st.booleans(), st.data())
def test_every_split_is_the_whole(a, encoder, data):
    a = with_encoder(a) if encoder else a
    network, tokens, cache = make_network(a), draw_tokens(a, 2, a.n_ctx), cache_for(a)
    lengths = data.draw(splits(a.n_ctx))
    assert difference(in_pieces(network, tokens, lengths, cache), call(network, tokens)) <= 1e-12
    assert cache.length == a.n_ctx


@settings(max_examples=20)
@given(architectures(CAUSAL, max_ctx=8), st.data())
def test_every_tensor_of_a_later_piece_is_the_whole_s(a, data):
    """Not the logits alone: a trace with a cache shows what a trace without one shows."""
    network, tokens, cache = make_network(a), draw_tokens(a, 2, a.n_ctx), cache_for(a)
    first = data.draw(st.integers(1, a.n_ctx - 1))
    whole, piece = Recorder(names(a)), Recorder(names(a))
    network(tokens, tap=whole)
    network(tokens[:, :first], cache=cache)
    network(tokens[:, first:], cache=cache, tap=piece)
    for name, value in piece.values.items():
        expected = whole.values[name]
        rows = expected[:, :, first:] if value.ndim == 4 else expected[:, first:]
        if name.endswith("scores"):
            value, rows = (x.masked_fill(x == -torch.inf, 0) for x in (value, rows))
        assert difference(value, rows) <= 1e-12, name


@settings(max_examples=20)
@given(architectures({"attention.mask": "prefix", "attention.windows": (0,)}, max_ctx=8), st.data())
def test_after_a_prefix_that_reads_itself(a, data):
    """From the end of the prefix on: the prefix is one piece, which no later token changes."""
    network, tokens, cache = make_network(a), draw_tokens(a, 2, a.n_ctx), cache_for(a)
    prefix = data.draw(st.integers(1, a.n_ctx - 1))
    mask = prefix_mask(torch.tensor([prefix, prefix]), a.n_ctx)
    expected = network(tokens, mask=mask)
    start = network(tokens[:, :prefix], mask=mask[:, :prefix, :prefix], cache=cache)
    rest = in_pieces(network, tokens[:, prefix:], [1] * (a.n_ctx - prefix), cache)
    assert difference(torch.cat([start, rest], 1), expected) <= 1e-12


@pytest.mark.item("S4-adv-c")
@settings(max_examples=20)
@given(architectures(CAUSAL, max_ctx=8), st.data())
def test_crop_forgets_and_a_fork_goes_its_own_way(a, data):
    network, tokens, cache = make_network(a), draw_tokens(a, 2, a.n_ctx), cache_for(a)
    others, expected = (tokens + 1) % a.n_vocab, network(tokens)
    kept = data.draw(st.integers(1, a.n_ctx - 1))
    network(torch.cat([tokens[:, :kept], others[:, kept:]], 1), cache=cache)
    cache.crop(kept)
    fork = cache.fork()
    network(others[:, kept:], cache=fork)
    assert (cache.length, fork.length) == (kept, a.n_ctx)
    assert difference(network(tokens[:, kept:], cache=cache), expected[:, kept:]) <= 1e-12


@settings(max_examples=20)
@given(architectures(CAUSAL, max_ctx=8), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_forked_rows_go_on_as_their_originals(a, rows):
    network, tokens, cache = make_network(a), draw_tokens(a, 3, a.n_ctx), cache_for(a, 3)
    network(tokens[:, :2], cache=cache)
    chosen = torch.tensor(rows)
    fork = cache.fork(chosen)
    assert difference(network(tokens[chosen, 2:], cache=fork), network(tokens)[chosen, 2:]) <= 1e-12


@pytest.mark.item("S1-1.1-k", "S1-1.1.2-h")
@settings(max_examples=30)
@given(architectures(CAUSAL, max_ctx=8), st.data())
def test_padded_rows_are_the_rows_alone(a, data):
    """Left padding: positions and a mask make each row of a mixed batch what it is by itself."""
    lengths = data.draw(st.lists(st.integers(1, a.n_ctx), min_size=2, max_size=3))
    n = max(lengths)
    network, tokens = make_network(a), draw_tokens(a, len(lengths), n)
    place = torch.arange(n) - (n - torch.tensor(lengths))[:, None]
    mask = (place[:, None, :] >= 0) & torch.ones(n, n, dtype=torch.bool).tril()
    together = network(tokens, positions=place.clamp(min=0), mask=mask)
    assert together.isfinite().all()
    for row, length in enumerate(lengths):
        alone = network(tokens[row : row + 1, n - length :])
        assert difference(together[row : row + 1, n - length :], alone) <= 1e-12
