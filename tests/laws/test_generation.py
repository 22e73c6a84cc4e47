"""Generation's laws over every word: cached = uncached, a batch = its rows, overflow included; scores add up."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.generate import Sampling, generate_ids, score_losses, score_tokens
from pellucid.model import Cache
from pellucid.model.mask import prefix_mask

READABLE = st.sampled_from(["causal", "prefix"])
SAMPLINGS = st.sampled_from(
    [
        Sampling(temperature=0),
        Sampling(),
        Sampling(temperature=0.7, top_k=4, repetition_penalty=1.2),
        Sampling(top_p=0.9, min_p=0.01, frequency_penalty=0.3),
    ]
)
TOLERANCE = 1e-12


def readable(max_ctx: int = 8, **fixed):
    """Decoder-only architectures with a next token to predict."""
    return architectures({"attention.mask": READABLE} | fixed, max_ctx=max_ctx)


def some_prompts(a, lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(0, a.n_vocab, (n,), generator=generator).tolist() for n in lengths]


def run(network, prompts, **options):
    """Tokens of every row, and the logits each was chosen from."""
    decoding = generate_ids(network, prompts, **options)
    logits = {id(row): [] for row in decoding.rows}
    for step in decoding:
        for row, x in zip(step.rows, step.logits, strict=True):
            logits[id(row)].append(x)
    return [row.generated for row in decoding.rows], [torch.stack(logits[id(row)]) for row in decoding.rows]


def same(given, expected):
    assert given[0] == expected[0]
    assert len(given[1]) == len(expected[1])
    for x, y in zip(given[1], expected[1], strict=True):
        assert difference(x, y) <= TOLERANCE


@settings(max_examples=40)
@given(readable(), st.data())
def test_every_split_of_a_prompt_gives_the_logits_of_one_pass(a, data):
    network, n = make_network(a), a.n_ctx
    tokens = torch.tensor(some_prompts(a, [n, n]))
    prefixed = a.attention.mask == "prefix"
    prefix = data.draw(st.integers(1, n)) if prefixed else 0
    mask = prefix_mask(torch.tensor([prefix, prefix]), n) if prefixed else None
    with torch.no_grad():
        whole = network(tokens, mask=mask)
        for split in range(max(prefix, 1), n):
            cache = Cache(a, 2, dtype=torch.float64)
            begun = network(tokens[:, :split], mask=None if mask is None else mask[:, :split, :split], cache=cache)
            fork = cache.fork()
            ended = network(tokens[:, split:], cache=cache)
            assert difference(torch.cat([begun, ended], 1), whole) <= TOLERANCE
            for i in range(split, n):
                assert difference(network(tokens[:, i : i + 1], cache=fork), whole[:, i : i + 1]) <= TOLERANCE


@pytest.mark.item("S0-4.3-e", "S1-1.1.2-h")
@settings(max_examples=50)
@given(
    readable(), st.lists(st.integers(1, 11), min_size=1, max_size=4), SAMPLINGS, st.integers(0, 99), st.integers(1, 2)
)
def test_cached_is_uncached_in_batches_of_any_lengths_far_beyond_the_context(a, lengths, sampling, seed, n):
    network = make_network(a)
    options = {"max_tokens": 2 * a.n_ctx + 3, "sampling": sampling, "seeds": seed, "samples": range(n)}
    # rows end at different times: with eleven ids one in eleven is the end
    options["stop_ids"] = [3]
    prompts = some_prompts(a, lengths)
    cached = run(network, prompts, **options)
    same(cached, run(network, prompts, **options, cache=False))


@pytest.mark.item("S1-1.1-k", "S4-code-a")
@settings(max_examples=30)
@given(readable(), st.lists(st.integers(1, 11), min_size=2, max_size=4), SAMPLINGS, st.integers(0, 99))
def test_a_batch_is_its_rows_one_by_one_whatever_else_is_in_it(a, lengths, sampling, seed):
    network, prompts = make_network(a), some_prompts(a, lengths)
    seeds = [seed + n for n in range(len(prompts))]
    options = {"max_tokens": a.n_ctx + 2, "sampling": sampling, "stop_ids": [3]}
    texts, logits = run(network, prompts, seeds=seeds, **options)
    for n, prompt in enumerate(prompts):
        same(run(network, [prompt], seeds=seeds[n], **options), ([texts[n]], [logits[n]]))


@settings(max_examples=20)
@given(readable(), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 99))
def test_samples_from_one_reading_of_the_prompt_are_separate_runs(a, lengths, seed):
    network, prompts = make_network(a), some_prompts(a, lengths)
    texts, logits = run(network, prompts, max_tokens=6, seeds=seed, samples=range(3))
    for sample in range(3):
        alone = run(network, prompts, max_tokens=6, seeds=seed, samples=[sample])
        same(alone, (texts[sample::3], logits[sample::3]))


@settings(max_examples=15)
@given(readable(), st.sampled_from([(torch.float32, 1e-4), (torch.bfloat16, 0.3)]))
def test_in_fewer_digits_greedy_texts_part_only_at_near_ties(a, precision):
    """Where cached and uncached first differ, their two choices were all but equal."""
    dtype, tolerance = precision
    network, prompts = make_network(a, dtype=dtype), some_prompts(a, [2, 5, 9])
    options = {"max_tokens": a.n_ctx + 2, "sampling": Sampling(temperature=0)}
    cached, recomputed = run(network, prompts, **options), run(network, prompts, **options, cache=False)
    for x, y, logits in zip(cached[0], recomputed[0], recomputed[1], strict=True):
        if x != y:
            step = next(i for i in range(len(x)) if x[i] != y[i])
            here = logits[step].float()
            assert here[y[step]] - here[x[step]] <= tolerance * max(1, here.abs().max())


@settings(max_examples=40)
@given(architectures({"attention.mask": READABLE, "n_ctx": 9}), st.integers(2, 10))
def test_a_text_that_fits_is_scored_as_one_pass_computes_it(a, n):
    network = make_network(a)
    (ids,) = some_prompts(a, [n])
    with torch.no_grad():
        logits = network(torch.tensor([ids[:-1]]))[0]
    direct = logits.log_softmax(-1)[torch.arange(n - 1), torch.tensor(ids[1:])]
    for stride in (1, 4, 9):
        assert difference(torch.from_numpy(score_tokens(network, ids, stride=stride)), direct) <= TOLERANCE


@settings(max_examples=30)
@given(architectures({"attention.mask": "causal", "n_ctx": 6}), st.integers(2, 30), st.integers(1, 6), st.data())
def test_each_token_of_a_long_text_is_scored_once_with_context_enough(a, n, stride, data):
    """Against a loop that scores every token by itself, after the tokens its window should hold."""
    network, first = make_network(a), data.draw(st.integers(1, n - 1))
    (ids,) = some_prompts(a, [n])
    found = score_tokens(network, ids, stride=stride, first=first, batch=3)
    assert len(found) == n - first
    for t, value in enumerate(found, first):
        readings = []
        least = min(t, a.n_ctx - stride + 1)
        for context in range(least, min(t, a.n_ctx) + 1):
            with torch.no_grad():
                logits = network(torch.tensor([ids[t - context : t]]))[0, -1]
            readings.append(logits.log_softmax(-1)[ids[t]].item())
        assert min(abs(value - reading) for reading in readings) <= TOLERANCE * max(1, abs(value))


@pytest.mark.item("S1-1.1-j")
@settings(max_examples=20)
@given(architectures({"attention.mask": "causal", "n_ctx": 8}), st.integers(1, 4), st.integers(1, 4))
def test_the_probability_of_two_parts_is_the_product(a, n_first, n_second):
    network = make_network(a)
    (ids,) = some_prompts(a, [1 + n_first + n_second])
    first = score_tokens(network, ids[: 1 + n_first]).sum()
    second = score_tokens(network, ids, first=1 + n_first).sum()
    whole = score_tokens(network, ids).sum()
    assert abs(first + second - whole) <= TOLERANCE * max(1, abs(whole))


@pytest.mark.item("S1-1.1-j", "S1-1.1-m")
@settings(max_examples=10)
@given(architectures({"attention.mask": "causal", "n_ctx": 4, "n_vocab": 5}))
def test_probabilities_of_all_continuations_add_to_one(a):
    """S1 1.1, footnote 4: the product over a continuation, summed over all of two tokens."""
    network = make_network(a)
    every = [[1, 2, i, j] for i in range(5) for j in range(5)]
    total = sum(np.exp(score_tokens(network, ids, first=2).sum()) for ids in every)
    assert abs(total - 1) <= TOLERANCE


@settings(max_examples=20)
@given(architectures({"attention.mask": "causal"}), st.integers(1, 60))
def test_losses_in_chunks_are_the_losses(a, chunk):
    network = make_network(a)
    inputs, targets = torch.tensor(some_prompts(a, [4, 4])), torch.tensor(some_prompts(a, [3, 4, 4][1:]))
    targets[0, 1] = -100
    losses = score_losses(network, inputs, targets, chunk=chunk)
    plain = torch.nn.functional.cross_entropy(network(inputs).transpose(1, 2), targets, reduction="none")
    assert difference(losses.detach(), plain.detach()) <= TOLERANCE
    ours = torch.autograd.grad(losses.sum(), list(network.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(plain.sum(), list(network.parameters()), allow_unused=True)
    for x, y in zip(ours, theirs, strict=True):
        assert (x is None) == (y is None)
        assert x is None or difference(x, y) <= 1e-10
