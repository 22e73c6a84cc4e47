"""Blocks of earlier prompts: what is found is what was kept, what prompts share is held once, and memory is bounded."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.serve.prefix_cache import BLOCK_TOKENS, PrefixCache, common_length

NETWORK = Transformer(Architecture(n_vocab=5, n_ctx=128, d_model=4, n_layers=2, attention=Attention(n_heads=2))).eval()
BLOCK_BYTES = PrefixCache(NETWORK, 0).block_bytes


def columns(tokens) -> torch.Tensor:
    """Keys and values that depend on the tokens up to each position, as a causal network's do."""
    sums = torch.tensor([hash(tuple(tokens[: n + 1])) % 10_007 for n in range(len(tokens))], dtype=torch.float32)
    return sums[:, None].expand(2, 2, 2, len(tokens), 2) + torch.arange(2)


def used(cache: PrefixCache) -> int:
    return cache.nbytes // BLOCK_BYTES


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), n_blocks=st.sampled_from([0, 1, 3, 8, 1000]), n_vocab=st.integers(1, 3))
def test_what_is_found_is_what_was_kept(seed, n_blocks, n_vocab):
    rng, cache = random.Random(seed), PrefixCache(NETWORK, n_blocks * BLOCK_BYTES)
    known: list[tuple[int, ...]] = [()]
    for _ in range(30):
        beginning = rng.choice(known)
        tokens = (
            *beginning[: rng.randint(0, len(beginning))],
            *(rng.randrange(n_vocab) for _ in range(rng.randint(1, 40))),
        )
        tokens = tokens[:120]
        expected = max(common_length(one, tokens) for one in known)
        n_known = cache.known(tokens)
        assert n_known == expected if n_blocks == 1000 else n_known <= expected
        started = cache.start(tokens, len(tokens))
        assert started.length == min(n_known, len(tokens) - 1)
        assert torch.equal(started.store[:, :, 0, :, : started.length], columns(tokens)[..., : started.length, :])
        assert tuple(started.tokens[0, : started.length].tolist()) == tokens[: started.length]
        cache.keep(tokens, columns(tokens))
        known.append(tokens)
        assert used(cache) <= n_blocks
        slots = [block.slot for block in cache.blocks]
        assert sorted([*slots, *cache.free_slots]) == list(range(n_blocks))
        position = {block: number for number, block in enumerate(cache.blocks)}
        for block in cache.blocks:
            # what a block follows is kept as long as it is, and is full
            assert block.before is None or position[block.before] > position[block]
            assert block.before is None or len(block.before.tokens) == BLOCK_TOKENS
        if n_blocks:
            assert cache.known(tokens) == min(len(tokens), n_blocks * BLOCK_TOKENS)


def test_conversations_over_one_system_prompt_hold_it_once():
    system = [1, 2, 3, 4] * (2 * BLOCK_TOKENS // 4)
    cache = PrefixCache(NETWORK, 100 * BLOCK_BYTES)
    for number in range(5):
        conversation = [*system, number, *[0] * (BLOCK_TOKENS - 1)]
        cache.keep(conversation, columns(conversation))
    assert used(cache) == 2 + 5


def test_a_sequence_that_goes_on_fills_its_last_block():
    cache, tokens = PrefixCache(NETWORK, 100 * BLOCK_BYTES), [1, 2, 3] * BLOCK_TOKENS
    for n in range(1, 2 * BLOCK_TOKENS + 1):
        cache.keep(tokens[:n], columns(tokens[:n]))
        assert used(cache) == -(-n // BLOCK_TOKENS)
        assert cache.known(tokens) == n


def test_the_least_recently_used_go_first_and_ends_before_beginnings():
    cache = PrefixCache(NETWORK, 4 * BLOCK_BYTES)
    first, second, third = ([token] * 2 * BLOCK_TOKENS for token in range(3))
    cache.keep(first, columns(first))
    cache.keep(second, columns(second))
    cache.start(first, len(first))
    cache.keep(third[:BLOCK_TOKENS], columns(third[:BLOCK_TOKENS]))
    assert [cache.known(tokens) for tokens in (first, second, third)] == [2 * BLOCK_TOKENS, BLOCK_TOKENS, BLOCK_TOKENS]


@pytest.mark.parametrize("mask", ["prefix"])
def test_nothing_is_kept_where_earlier_positions_read_later_ones(mask):
    a = Architecture(n_vocab=5, n_ctx=16, d_model=4, n_layers=1, attention=Attention(n_heads=2, mask=mask))
    cache = PrefixCache(Transformer(a), 2**20)
    cache.keep([1, 2, 3], torch.ones(2, 1, 2, 3, 2))
    assert cache.nbytes == cache.known([1, 2, 3]) == 0
