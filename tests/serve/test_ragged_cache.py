"""One pass over pieces of prompts and the rows of a batch computes what a pass for each of them does."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, make_network
from pellucid.model import Cache
from pellucid.serve.batch_cache import BatchCache


def read(network, tokens):
    """A cache of one row that has read these tokens."""
    cache = Cache(network.architecture, 1, network.architecture.n_ctx, dtype=network.embed.token.weight.dtype)
    if tokens:
        network.hidden(torch.tensor([tokens]), cache=cache)
    return cache


def ids(rng, network, n):
    return [rng.randrange(network.architecture.n_vocab) for _ in range(n)]


@settings(max_examples=15)
@given(
    a=architectures({"attention.mask": st.just("causal"), "ngrams": st.just(())}, max_ctx=8), seed=st.integers(0, 99)
)
def test_one_pass_computes_what_a_pass_for_each_does(a, seed):
    rng, network = random.Random(seed), make_network(a)
    with torch.inference_mode():
        prompts = [ids(rng, network, rng.randint(0, a.n_ctx - 1)) for _ in range(rng.randint(0, 3))]
        batches = [BatchCache(network, 4, 0) for _ in range(2)]
        for batch in batches:
            for prompt in prompts:
                batch.join(read(network, prompt), a.n_ctx)
        pieces = []
        for _ in range(rng.randint(1, 2)):
            n_new = rng.randint(1, a.n_ctx)
            pieces.append((ids(rng, network, rng.randint(0, a.n_ctx - n_new)), ids(rng, network, n_new)))
        newest = ids(rng, network, len(prompts))
        caches = [read(network, before) for before, _ in pieces]
        logits = batches[0].step_beside([(cache, new) for cache, (_, new) in zip(caches, pieces, strict=True)], newest)
        if prompts:
            torch.testing.assert_close(logits[len(pieces) :], batches[1].step(newest))
        assert batches[0].lengths == batches[1].lengths == [len(prompt) + 1 for prompt in prompts]
        for row in range(len(prompts)):
            torch.testing.assert_close(batches[0].columns(row), batches[1].columns(row))
        expected = []
        for cache, (before, new) in zip(caches, pieces, strict=True):
            alone = read(network, before + new)
            expected.append(network(torch.tensor([before + new]))[0, -1])
            assert cache.length == alone.length
            torch.testing.assert_close(cache.store[..., : cache.length, :], alone.store[..., : alone.length, :])
            assert torch.equal(cache.tokens[:, : cache.length], alone.tokens[:, : alone.length])
        torch.testing.assert_close(logits[: len(pieces)], torch.stack(expected))
