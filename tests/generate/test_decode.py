"""The loop: windows, costs, endings and refusals. That it computes the right numbers is in tests/laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import scripted

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.generate import GenerationError, Sampling, generate_ids, window_start
from pellucid.generate.readers import CachedReader, SequenceState
from pellucid.model import Cache, Transformer

SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)
GREEDY = Sampling(temperature=0)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 20))
def test_the_window_is_what_the_loop_of_its_definition_gives(n_prompt, more, n_ctx):
    start = max(0, n_prompt - n_ctx)
    for n_tokens in range(n_prompt, n_prompt + more + 1):
        if n_tokens - start > n_ctx:
            start += max(1, n_ctx // 2)
        assert window_start(n_prompt, n_tokens, n_ctx) == start
        assert 1 <= n_tokens - start <= n_ctx


def count_positions(monkeypatch) -> list[tuple[int, int]]:
    """[rows, positions] of every pass through the network from now on."""
    seen = []
    hidden = Transformer.hidden

    def counting(self, tokens, **options):
        seen.append(tuple(tokens.shape))
        return hidden(self, tokens, **options)

    monkeypatch.setattr(Transformer, "hidden", counting)
    return seen


@pytest.mark.item("S4-adv-b")
def test_a_prompt_is_read_once_for_all_its_samples_and_each_step_reads_one_token(monkeypatch):
    network = make_network(SMALL)
    passes = count_positions(monkeypatch)
    steps = list(generate_ids(network, [[1, 2, 3], [4]], max_tokens=4, samples=range(3)))
    assert passes == [(2, 3), (6, 1), (6, 1), (6, 1)]
    assert [len(step.rows) for step in steps] == [6] * 4


def test_finished_rows_cost_nothing(monkeypatch):
    network = scripted([9, 9, 9, 7, 9, 9, 9, 9])
    passes = count_positions(monkeypatch)
    # the end, 7, comes after position 3: the prompt of three tokens ends at its second step
    decoding = generate_ids(network, [[1, 2, 3], [1]], max_tokens=6, stop_ids=[7], sampling=GREEDY)
    assert [len(step.rows) for step in decoding] == [2, 2, 1, 1]
    assert passes == [(2, 3), (2, 1), (1, 1), (1, 1)]
    assert [row.generated for row in decoding.rows] == [[9, 7], [9, 9, 9, 7]]
    assert [row.finish_reason for row in decoding.rows] == ["end", "end"]


def test_only_rows_that_outgrow_the_context_are_read_again(monkeypatch):
    network = make_network(SMALL)
    passes = count_positions(monkeypatch)
    list(generate_ids(network, [[1] * 8, [2]], max_tokens=3))
    # the first row's window moves at once: 8 + 1 - 4 tokens are read afresh, alone
    assert passes == [(2, 8), (2, 1), (1, 5), (2, 1)]


def test_the_columns_of_a_long_row_that_is_gone_are_given_back():
    network = make_network(SMALL)
    reader = CachedReader(network, 12)
    rows = [SequenceState(0, 0, 0, (1,) * 7), SequenceState(1, 0, 0, (2, 3))]
    with torch.no_grad():
        reader.read(rows)
    assert reader.cache is not None
    assert reader.cache.length == 7
    reader.select([1])
    assert reader.cache.length == 2
    assert reader.lengths == [2]


@pytest.mark.parametrize("n_ctx", [1, 2, 3])
def test_the_smallest_contexts_work_cached_and_not(n_ctx):
    network = make_network(SMALL.with_fields({"n_ctx": n_ctx}))
    cached, recomputed = finished(network, True), finished(network, False)
    assert [row.generated for row in cached] == [row.generated for row in recomputed]


def finished(network, cache):
    decoding = generate_ids(network, [[1, 2, 3], [4]], max_tokens=9, cache=cache)
    assert len(list(decoding)) == 9
    return decoding.rows


def test_memory_is_taken_for_what_is_needed():
    network = make_network(SMALL)
    assert CachedReader(network, 5).capacity == 5
    assert CachedReader(network, 10_000).capacity == 12
    cache = CachedReader(network, 5).make_cache(2, 5)
    assert isinstance(cache, Cache)
    ids = 2 * 5 * 8
    assert cache.nbytes == 2 * 2 * 2 * 4 * 5 * 2 * 8 + ids


def test_no_tokens_are_allowed_and_a_caller_can_stop_a_row():
    network = make_network(SMALL)
    none = generate_ids(network, [[1], [2]], max_tokens=0)
    assert list(none) == []
    assert [row.finish_reason for row in none.rows] == ["length", "length"]
    decoding = generate_ids(network, [[1], [2]], max_tokens=3)
    for step in decoding:
        if len(step.rows) == 2:
            decoding.stop(step.rows[0])
    assert [len(row.generated) for row in decoding.rows] == [1, 3]
    assert [row.finish_reason for row in decoding.rows] == ["stop", "length"]


def test_forbidden_ids_are_never_generated():
    network = make_network(SMALL)
    with torch.no_grad():
        network.embed.token.weight[5:] *= 20
    decoding = generate_ids(network, [[1], [2, 3]], max_tokens=20, n_allowed=5, samples=range(4))
    list(decoding)
    assert all(token < 5 for row in decoding.rows for token in row.generated)
    free = generate_ids(network, [[1], [2, 3]], max_tokens=20, samples=range(4))
    list(free)
    assert any(token >= 5 for row in free.rows for token in row.generated)


def test_a_network_in_training_is_read_without_dropout_and_left_in_training():
    network = make_network(SMALL)
    expected = [row.generated for row in finished(network, True)]
    dropping = make_network(SMALL.with_fields({"dropout": 0.5}))
    dropping.train()
    state = torch.get_rng_state()
    assert [row.generated for row in finished(dropping, True)] == expected
    assert dropping.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[]], {}, "prompt 0 is empty"),
        ([[1], [11]], {}, "prompt 1 holds id 11; expected 0 to 10"),
        ([[-1]], {}, "holds id -1"),
        ([[1]], {"max_tokens": -1}, "max_tokens = -1"),
        ([[1]], {"max_tokens": 1.5}, "max_tokens = 1.5"),
        ([[1]], {"n_allowed": 12}, "the tokenizer has 12 ids"),
        ([[1]], {"seeds": [1, 2]}, "2 seeds for 1 prompts"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_starts(prompts, options, message):
    with pytest.raises(GenerationError, match=message):
        generate_ids(make_network(SMALL), prompts, **{"max_tokens": 3} | options)


def test_networks_without_a_next_token_are_refused():
    bidirectional = make_network(SMALL.with_fields({"attention.mask": "bidirectional"}))
    with pytest.raises(GenerationError, match=r"bidirectional: .*no next token"):
        generate_ids(bidirectional, [[1]], max_tokens=1)
    encoder = SMALL.with_fields({"attention.mask": "bidirectional"}).to_dict()
    reading = Transformer(Architecture.from_dict(SMALL.to_dict() | {"encoder": encoder}))
    with pytest.raises(GenerationError, match="encoder"):
        generate_ids(reading, [[1]], max_tokens=1)


def test_a_prefix_network_reads_its_prompt_as_the_prefix():
    """The last prompt token's logits depend on the first one's having read the last: with j <= i they would not."""
    a = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2, attention=Attention(mask="prefix"))
    network = make_network(a)
    causal = make_network(a.with_fields({"attention.mask": "causal"}))
    step = next(generate_ids(network, [[1, 2, 3]], max_tokens=1))
    everything = torch.ones(3, 3, dtype=torch.bool)
    with torch.no_grad():
        expected = causal(torch.tensor([[1, 2, 3]]), mask=everything)[:, -1]
        plain = causal(torch.tensor([[1, 2, 3]]))[:, -1]
    assert torch.allclose(step.logits, expected, atol=1e-12)
    assert not torch.allclose(step.logits, plain, atol=1e-3)


def test_of_a_prompt_longer_than_the_context_the_end_is_read():
    network, prompt = make_network(SMALL), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]
    for cache in (True, False):
        step = next(generate_ids(network, [prompt], max_tokens=1, cache=cache))
        with torch.no_grad():
            expected = network(torch.tensor([prompt[-8:]]))[:, -1]
        assert torch.allclose(step.logits, expected, atol=1e-12)
