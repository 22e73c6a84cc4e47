"""Writing: S0 4.3, S1 1.1.2 (the cache), S4 "Advantages and Disadvantages of the Approach"."""

from itertools import pairwise

import numpy as np
import pytest
from companions import draw_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures
from pellucid.architecture import Architecture
from pellucid.reference import generation as G
from pellucid.reference.functions import softmax
from pellucid.reference.transformer import encode, forward
from pellucid.reference.weights import random_weights
from running import any_architectures


def small(**changes):
    a = Architecture(n_vocab=9, n_ctx=12, d_model=8, n_layers=2).with_fields({"n_heads": 2})
    return a.with_fields({name.replace("__", "."): value for name, value in changes.items()})


@pytest.mark.item("S0-4.3-d", "S0-4.3-e")
def test_greedy_text_with_and_without_a_cache(rng):
    for kind in ("learned", "rotary", "alibi", "relative"):
        a = small(positions__kind=kind)
        w = random_weights(a, rng)
        plain = G.generate_by_definition(lambda tokens, a=a, w=w: forward(a, w, np.array(tokens))[-1], [3, 1], 10)
        assert len(plain) == 12
        assert plain == G.generate_with_cache(a, w, [3, 1], 10)
        assert plain[2] == forward(a, w, np.array([3, 1]))[-1].argmax()


@pytest.mark.item("S1-1.1.2-h", "S4-ntp-d", "S4-adv-c")
@settings(max_examples=60)
@given(any_architectures(), st.integers(0, 2**32 - 1))
def test_the_cache_in_any_chunks(a, seed):
    rng = np.random.default_rng(seed)
    w, tokens = random_weights(a, rng), draw_ids(rng, a, batch=1)[0]
    source = encode(a, w, tokens) if a.encoder else None
    if a.attention.mask == "bidirectional":
        with pytest.raises(ValueError, match="no cache"):
            G.transformer_step(a, w, tokens, G.ReferenceCache(), source=source)
        return
    whole = forward(a, w, tokens, source=source)
    borders = sorted({0, *rng.integers(0, a.n_ctx, 2).tolist(), a.n_ctx})
    cache, rows = G.ReferenceCache(), []
    for start, end in pairwise(borders):
        logits, cache = G.transformer_step(a, w, tokens[start:end], cache, source=source)
        rows.append(logits)
    size = max(1, np.abs(whole).max())
    assert np.abs(np.concatenate(rows) - whole).max() <= 1e-12 * size
    # going back: crop to k and continue as if the rest had never been
    k = int(rng.integers(1, a.n_ctx))
    other = (tokens[k:] + 1) % a.n_vocab
    again, _ = G.transformer_step(a, w, other, cache.crop(k), source=source)
    expected = forward(a, w, np.concatenate([tokens[:k], other]), source=source)[k:]
    assert np.abs(again - expected).max() <= 1e-12 * max(1, np.abs(expected).max())


@pytest.mark.item("S1-1.1.2-h", "S1-1.1.2-d")
@settings(max_examples=40)
@given(architectures({"attention.mask": "causal"}), st.integers(1, 5))
def test_the_size_of_the_cache_for_every_word(a, n):
    """Heads of any width, grouped keys and values, any number of layers: what the formula says is what is kept."""
    rng = np.random.default_rng(0)
    _, cache = G.transformer_step(a, random_weights(a, rng), draw_ids(rng, a, batch=1, n=n)[0], G.ReferenceCache())
    assert sum(x.size for x in cache.kept.values()) * 4 == G.cache_size(a, n)
    assert G.cache_size(a, n, 2) * 2 == G.cache_size(a, n)


@pytest.mark.item("S4-adv-b")
def test_writing_is_sequential_and_reading_is_not(rng):
    """E-72: n losses cost one pass, n new tokens cost n."""
    a = small()
    w, calls = random_weights(a, rng), []

    def next_logits(tokens):
        calls.append(len(tokens))
        return forward(a, w, np.array(tokens))[-1]

    G.generate_by_definition(next_logits, [1], 5)
    assert calls == [1, 2, 3, 4, 5]


@pytest.mark.item("S3-1-d")
def test_an_end_token_ends_the_text():
    out = G.generate_by_definition(lambda tokens: np.eye(5)[min(len(tokens), 4)], [0], 10, eos=3)
    assert out == [0, 1, 2, 3]


@pytest.mark.item("S3-1-d", "S1-1.1.2-h")
def test_an_end_token_ends_the_text_of_a_cache_too(rng):
    """Only the last token ends a text: the prompt may begin with the end token, as every document does."""
    a = small()
    w = random_weights(a, rng)
    free = G.generate_with_cache(a, w, [3, 1], 10)
    for eos in {*free[2:], 3}:
        ended = G.generate_with_cache(a, w, [3, 1], 10, eos=eos)
        n = free[2:].index(eos) + 3 if eos in free[2:] else 12
        assert ended == free[:n]
        assert ended == G.generate_by_definition(
            lambda tokens: forward(a, w, np.array(tokens))[-1], [3, 1], 10, eos=eos
        )


@pytest.mark.item("S0-4.3-e")
def test_samples_have_the_frequencies_of_the_distribution():
    """Chi squared with four degrees of freedom: 18.47 is exceeded once in a thousand times."""
    logits, n = np.array([0.5, -1.0, 2.0, 0.0, 1.0]), 100_000
    choose = G.sample(np.random.default_rng(0), temperature=0.8)
    counts = np.bincount([choose(logits) for _ in range(n)], minlength=5)
    expected = n * softmax(logits / 0.8)
    assert np.sum((counts - expected) ** 2 / expected) < 18.47


@pytest.mark.item("S0-4.3-e")
def test_truncated_distributions_by_hand():
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    np.testing.assert_allclose(G.truncated(logits, top_k=2), [0, 4 / 7, 0, 3 / 7], atol=1e-15)
    np.testing.assert_allclose(G.truncated(logits, top_p=0.69), [0, 4 / 7, 0, 3 / 7], atol=1e-15)
    np.testing.assert_allclose(G.truncated(logits, top_p=0.71), [0, 4 / 9, 2 / 9, 3 / 9], atol=1e-15)
    assert G.truncated(np.log([0.5, 0.25, 0.25]), top_p=0.5).tolist() == [1, 0, 0]
    np.testing.assert_allclose(G.truncated(logits, top_p=0.01), [0, 1, 0, 0], atol=1e-15)
    np.testing.assert_allclose(G.truncated(logits, 0.5), np.array([1, 16, 4, 9]) / 30, atol=1e-15)
    np.testing.assert_allclose(G.truncated(np.zeros(4), top_k=2), [0.5, 0.5, 0, 0], atol=1e-15)
    np.testing.assert_allclose(G.truncated(logits, top_k=3, top_p=0.5), [0, 4 / 7, 0, 3 / 7], atol=1e-15)
    for wrong in ({"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}):
        with pytest.raises(ValueError, match="expected"):
            G.truncated(logits, **wrong)
