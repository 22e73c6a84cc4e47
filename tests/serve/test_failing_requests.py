"""What fails for one request ends that one alone: the others go on with the numbers that they have by themselves."""

import time

import numpy as np
import pytest
import torch
from tests.serve.test_engine import SMALL, request, serve

from pellucid.architecture import Architecture, Attention
from pellucid.edits import add
from pellucid.generate.errors import LogitsError
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.model import Transformer
from pellucid.serve.batching import BatchingEngine, sequence_bytes
from pellucid.text.ids import IdTokenizer

#: a token id that the network below cannot read
POISON = 9


def network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(Architecture(**SMALL, attention=Attention(n_heads=2))).double().eval()


def generated(engine, requests):
    """The tokens and log-probabilities of each request, None for those that an error ended."""
    serve(engine, requests)
    return [
        None if r.failed else ([e.token for e in r.emit.events], [e.score.log_prob for e in r.emit.events])
        for r in requests
    ]


def alone(model: Transformer, **options):
    engine = BatchingEngine(model, IdTokenizer(11), prefixes=0)
    return generated(engine, [request(**options)])[0]


def assert_same(one, other):
    assert one[0] == other[0]
    np.testing.assert_allclose(one[1], other[1], atol=1e-12)


class FailingNetwork:
    """Raises for calls that read POISON; `calls` counts all of them."""

    def __init__(self, model: Transformer, monkeypatch):
        self.calls, hidden = 0, model.hidden

        def failing(tokens, **options):
            self.calls += 1
            if (tokens == POISON).any():
                raise RuntimeError("cannot read this")
            return hidden(tokens, **options)

        monkeypatch.setattr(model, "hidden", failing)


GOOD = [{"prompt_ids": [token, token + 1, 3], "max_tokens": 10, "seed": token} for token in range(3)]


@pytest.mark.parametrize("edits", [None, [add("logits", torch.linspace(-1, 1, 11).double())]])
def test_a_shared_step_that_fails_for_one_row_ends_that_row_alone(edits, monkeypatch):
    model = network()
    taps = {"taps": GenerationTrace(model, edits)} if edits else {}
    expected = [alone(network(), **options, **taps) for options in GOOD]
    FailingNetwork(model, monkeypatch)
    engine = BatchingEngine(model, IdTokenizer(11))
    requests = [request(**options, **taps) for options in GOOD]
    bad = request([1, 2, 3], max_tokens=10, **taps)
    engine.submit([requests[0], bad, *requests[1:]])
    with torch.inference_mode():
        while len(bad.state.generated) < 3:
            engine.round()
        # the next step reads a token that it cannot read
        bad.state.generated[-1] = POISON
    results = generated(engine, [])
    assert results == []
    assert isinstance(bad.emit.events[-1], RuntimeError)
    assert len(bad.emit.events) == 4
    for one, other in zip(requests, expected, strict=True):
        assert_same(([e.token for e in one.emit.events], [e.score.log_prob for e in one.emit.events]), other)


def test_a_shared_pass_over_prompts_that_fails_for_one_ends_that_one_alone(monkeypatch):
    expected = [alone(network(), **options) for options in GOOD]
    model = network()
    FailingNetwork(model, monkeypatch)
    engine = BatchingEngine(model, IdTokenizer(11))
    requests = [request(**options) for options in GOOD]
    bad = request([1, POISON])
    results = generated(engine, [requests[0], bad, *requests[1:]])
    assert results.pop(1) is None
    assert isinstance(bad.emit.events[-1], RuntimeError)
    for one, other in zip(results, expected, strict=True):
        assert_same(one, other)


def test_numbers_that_are_not_finite_spoil_no_row_that_comes_after():
    """A row's keys are NaN. Another sequence takes its place, and masks what it did not write itself."""
    model = network()
    with torch.no_grad():
        model.embed.token.weight[POISON] = torch.nan
        model.unembed.weight = torch.nn.Parameter(model.embed.token.weight.nan_to_num())
    short = [{"prompt_ids": [token], "max_tokens": 3} for token in range(3)]
    expected = [alone(model, **options) for options in short]
    engine = BatchingEngine(model, IdTokenizer(11), max_rows=2)
    long, bad = request([1, 2], max_tokens=14), request([2, 2], max_tokens=14)
    engine.submit([long, bad])
    with torch.inference_mode():
        while len(bad.state.generated) < 2:
            engine.round()
        bad.state.generated[-1] = POISON
        engine.round()
        assert isinstance(bad.emit.events[-1], LogitsError)
        # what joins now ends in a later column than the one with the numbers
        engine.round()
    for one, other in zip(generated(engine, [request(**options) for options in short]), expected, strict=True):
        assert_same(one, other)
    assert not long.failed
    # and no later prompt finds them
    assert engine.prefixes.known([2, 2, *bad.state.generated]) <= 2
    assert all(
        torch.isfinite(engine.prefixes.store[block.slot][..., : len(block.tokens), :]).all()
        for block in engine.prefixes.blocks
    )


def test_no_later_prompt_finds_the_numbers_of_a_piece_that_are_not_finite():
    model = network()
    with torch.no_grad():
        model.embed.token.weight[POISON] = torch.nan
    engine = BatchingEngine(model, IdTokenizer(11), chunk=4)
    bad = request([1, 2, 3, 4, 5, POISON, 6, 7, 8, 1])
    serve(engine, [bad])
    assert isinstance(bad.emit.events[-1], LogitsError)
    assert engine.prefixes.known([1, 2, 3, 4, 5, POISON, 6]) == 4


def test_a_token_that_cannot_be_chosen_for_one_row_ends_that_row_alone(monkeypatch):
    expected = [alone(network(), **options) for options in GOOD]
    engine = BatchingEngine(network(), IdTokenizer(11))
    requests, bad = [request(**options) for options in GOOD], request([1], max_tokens=10)
    choose = engine.choose

    def failing(generations, logits, rows):
        if any(generations[row] is bad for row in rows):
            raise ZeroDivisionError
        return choose(generations, logits, rows)

    monkeypatch.setattr(engine, "choose", failing)
    results = generated(engine, [bad, *requests])
    assert results.pop(0) is None
    for one, other in zip(results, expected, strict=True):
        assert_same(one, other)


def test_a_step_that_fails_for_all_ends_them_and_the_engine_goes_on(monkeypatch):
    model = network()
    engine = BatchingEngine(model, IdTokenizer(11))
    with monkeypatch.context() as patch:
        engine.submit([request([1]), request([2])])
        with torch.inference_mode():
            engine.round()
        running = engine.decoding
        patch.setattr(model, "hidden", lambda *tokens, **options: 1 / 0)
        serve(engine, [])
        assert all(isinstance(g.emit.events[-1], ZeroDivisionError) for g in running)
    assert len(running) == 2
    assert len(serve(engine, [request([1])])[0].tokens) == 4


def test_a_sequence_for_which_there_is_no_memory_leaves_the_batch_as_it_was(monkeypatch):
    model = network()
    engine = BatchingEngine(model, IdTokenizer(11), memory=sequence_bytes(model, 16))
    running, too_much = request([1], max_tokens=5), request([2], max_tokens=5)
    engine.submit([running])
    with torch.inference_mode():
        engine.round()
        with monkeypatch.context() as patch:
            patch.setattr(engine.batch, "make_cache", lambda rows, columns: bytearray(2**80))
            engine.submit([too_much])
            engine.round()
    assert too_much.failed
    serve(engine, [])
    assert_same(
        ([e.token for e in running.emit.events], [e.score.log_prob for e in running.emit.events]),
        alone(network(), prompt_ids=[1], max_tokens=5),
    )


@pytest.mark.parametrize("before", [0, 1])
def test_a_prompt_for_which_there_is_no_memory_ends_alone(before, monkeypatch):
    """Also where it is the first one that is read, or the only one."""
    expected = [alone(network(), **options) for options in GOOD[: 1 + before]]
    engine = BatchingEngine(network(), IdTokenizer(11), prefixes=0)
    requests, bad = [request(**options) for options in GOOD[: 1 + before]], request([5, 5, 5])
    cache_for = engine.cache_for

    def too_large(generation, tokens):
        return bytearray(2**80) if generation is bad else cache_for(generation, tokens)

    monkeypatch.setattr(engine, "cache_for", too_large)
    with torch.inference_mode():
        engine.submit([requests[0]])
        while not requests[0].state.generated:
            engine.round()
        engine.submit([*requests[1:], bad])
    serve(engine, [])
    assert [type(event) for event in bad.emit.events] == [OverflowError]
    for one, other in zip(requests, expected, strict=True):
        assert_same(([e.token for e in one.emit.events], [e.score.log_prob for e in one.emit.events]), other)


def test_a_round_that_fails_as_a_whole_ends_what_it_computed_and_the_engine_goes_on(monkeypatch, capsys):
    """A prompt whose piece was being read ends too."""
    model = network()
    expected = alone(model, prompt_ids=[1])
    engine = BatchingEngine(model, IdTokenizer(11), chunk=2, max_tokens=50)
    decoded, read, waiting = request([1], max_tokens=50), request([2] * 8), request([3])
    engine.submit([decoded])
    with torch.inference_mode():
        engine.round()
        engine.submit([read])
        with monkeypatch.context() as patch:
            patch.setattr(engine, "settle", lambda group, goes_on: 1 / 0)
            with pytest.raises(ZeroDivisionError) as raised:
                engine.round()
        engine.submit([waiting])
        engine.round_failed(raised.value)
    assert "ZeroDivisionError" in capsys.readouterr().err
    for ended in (decoded, read):
        assert ended.failed
        assert isinstance(ended.emit.events[-1], ZeroDivisionError)
    assert engine.running() == []
    again = request([1])
    serve(engine, [again])
    assert len(waiting.emit.tokens) == 4
    assert_same(([e.token for e in again.emit.events], [e.score.log_prob for e in again.emit.events]), expected)


def until(condition) -> None:
    """Wait for the engine's thread."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the engine did not get there in ten seconds")


def test_a_round_that_fails_before_it_computes_anything_ends_what_waits(monkeypatch, capsys):
    """The thread of the engine goes on: it neither ends nor fails for ever."""
    engine = BatchingEngine(network(), IdTokenizer(11))
    engine.start()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "has_room", lambda generation: 1 / 0)
        waiting = request([1])
        engine.submit([waiting])
        until(lambda: waiting.failed)
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1
    good = request([1])
    engine.submit([good])
    until(lambda: good.emit.finished)
    assert len(good.emit.tokens) == 4
    engine.drain(60)
