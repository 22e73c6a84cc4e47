"""The engine's law: tokens and log-probabilities are those of `generate` and `score`, whoever else is served."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, make_network
from pellucid.architecture import Architecture, Attention
from pellucid.generate.decode import generate_ids
from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.generate.sampling import Sampling
from pellucid.generate.scoring import score_tokens
from pellucid.model import Transformer
from pellucid.serve.batching import BatchingEngine, sequence_bytes
from pellucid.serve.generation import Generation, QueueFullError, StoppingError, TokenEvent, TooLargeError
from pellucid.text.ids import IdTokenizer


class Client:
    """Keeps what the engine tells."""

    def __init__(self):
        self.events: list[TokenEvent | Exception] = []

    def __call__(self, generation: Generation, event: TokenEvent | Exception) -> None:
        self.events.append(event)

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, TokenEvent)]

    @property
    def finished(self) -> bool:
        last = self.events[-1] if self.events else None
        return isinstance(last, Exception) or (last is not None and last.finish_reason is not None)


def drawn_request(rng: random.Random, a, client: Client) -> Generation:
    prompt = [rng.randrange(a.n_vocab) for _ in range(rng.randint(1, a.n_ctx))]
    sampling = rng.choice(
        [Sampling(temperature=0), Sampling(), Sampling(temperature=0.7, top_k=3, repetition_penalty=1.3)]
    )
    return Generation(prompt, sampling, rng.randint(1, 2 * a.n_ctx), rng.randrange(100), client, n_top=2)


@settings(max_examples=25)
@given(
    a=architectures({"attention.mask": st.sampled_from(["causal", "prefix"])}, max_ctx=8),
    seed=st.integers(0, 2**16),
    chunk=st.integers(1, 5) | st.integers(8, 32),
    prefixes=st.sampled_from([0, 2**20]),
    full_rows=st.integers(1, 3),
)
def test_whoever_else_is_served_the_tokens_are_those_of_generate(a, seed, chunk, prefixes, full_rows):
    rng, network = random.Random(seed), make_network(a)
    memory = full_rows * sequence_bytes(network, a.n_ctx)
    sizes = {"chunk": chunk, "prefixes": prefixes, "memory": memory, "max_rows": 3, "max_tokens": 64}
    engine = BatchingEngine(network, IdTokenizer(a.n_vocab), **sizes)
    clients = [Client() for _ in range(5)]
    requests = [drawn_request(rng, a, client) for client in clients]
    coming = list(requests)
    with torch.inference_mode():
        while coming or engine.busy:
            if coming and rng.random() < 0.4:
                engine.submit([coming.pop(0)])
            engine.round()
            assert engine.batch.cache.nbytes <= memory
    for request, client in zip(requests, clients, strict=True):
        assert client.finished
        alone = generate_ids(
            network,
            [request.prompt_ids],
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            seeds=request.seed,
            stop_ids=engine.tokenizer.ends,
            n_allowed=engine.n_allowed,
        )
        for _ in alone:
            pass
        assert client.tokens == alone.rows[0].generated


SMALL = {"n_vocab": 11, "n_ctx": 16, "d_model": 8, "n_layers": 2}


@pytest.fixture(scope="module")
def network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(Architecture(**SMALL, attention=Attention(n_heads=2))).double().eval()


def serve(engine: BatchingEngine, generations: list[Generation]) -> list[Client]:
    """Submit generations together and run rounds until nothing is left to do."""
    engine.submit(generations)
    with torch.inference_mode():
        while engine.busy:
            engine.round()
    return [generation.emit for generation in generations]


def request(prompt_ids: list[int], **options) -> Generation:
    defaults = {"sampling": Sampling(temperature=0), "max_tokens": 4, "seed": 0, "n_top": 3}
    return Generation(prompt_ids, emit=Client(), **(defaults | options))


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_log_probabilities_are_those_of_score(mask):
    torch.manual_seed(0)
    attention = Attention(n_heads=2, mask=mask)
    network = Transformer(Architecture(**SMALL, attention=attention)).double().eval()
    engine, prompt = BatchingEngine(network, IdTokenizer(11), chunk=3), [1, 2, 3, 4, 5]
    one, other = serve(engine, [request(prompt, echo=True), request([7, 8])])
    generation = request(prompt, echo=True)
    client = serve(engine, [generation])[0]
    ids = [*prompt, *client.tokens]
    # a prompt is scored as a text, from the tokens before each one, and what follows it as its continuation
    expected = [*score_tokens(network, prompt), *score_tokens(network, ids, first=5, n_prefix=5)]
    served = [*generation.prompt_scores[1:], *(event.score for event in client.events)]
    np.testing.assert_allclose([score.log_prob for score in served], expected, atol=1e-10)
    assert generation.prompt_scores[0] is None
    assert client.tokens == one.tokens
    assert other.finished
    for score in served:
        # one number for one token: a client that compares them finds its greedy token greedy
        assert score.top == tuple(sorted(score.top, key=lambda pair: -pair[1]))
        assert dict(score.top).get(score.token, score.log_prob) == score.log_prob
        assert score.log_prob <= score.top[0][1]


def test_a_prompt_of_one_token_has_its_entry_whoever_else_is_served(network):
    engine = BatchingEngine(network, IdTokenizer(11), max_tokens=20)
    other, generation = request([1], max_tokens=20), request([2], echo=True)
    engine.submit([other])
    with torch.inference_mode():
        engine.round()
    serve(engine, [generation])
    assert len(other.emit.tokens) == 20
    assert generation.prompt_scores == [None]
    assert len(generation.emit.tokens) == 4


def test_sequences_are_counted_while_groups_come_and_go(network):
    """`/metrics` counts them in another thread than the one that adds groups with edits, and removes them."""
    engine = BatchingEngine(network, IdTokenizer(11))

    class Growing:
        """A group beside which another one is added while its sequences are listed."""

        @property
        def generations(self) -> list[Generation]:
            engine.groups[str(len(engine.groups))] = engine.unedited
            return []

    engine.groups = {"": Growing()}
    assert engine.decoding == []


def test_short_sequences_share_the_memory_of_one_that_fills_the_context(network):
    """Four requests of 4 tokens are read in one pass and decoded together where two of 16 tokens are not."""
    memory = sequence_bytes(network, 16)
    engine = BatchingEngine(network, IdTokenizer(11), memory=memory, prefixes=0)
    assert engine.full_rows == 1
    short = [request([token], max_tokens=3) for token in range(4)]
    engine.submit(short)
    with torch.inference_mode():
        engine.round()
    assert len(engine.decoding) == engine.prompt_tokens == 4
    long = [request([1], max_tokens=15), request([2], max_tokens=15)]
    serve(engine, [*long, request([3], max_tokens=1)])
    assert all(generation.emit.finished for generation in (*short, *long))
    # they waited for each other
    assert long[0].last_token <= long[1].first_token


def test_a_prompt_that_was_read_is_not_read_again_and_the_numbers_stay(network):
    engine = BatchingEngine(network, IdTokenizer(11), chunk=4)
    first, second = request([1, 2, 3, 4, 5, 6]), request([1, 2, 3, 4, 5, 9])
    serve(engine, [first])
    read = engine.prompt_tokens
    serve(engine, [second])
    assert second.cached_tokens == 5
    assert engine.prompt_tokens - read == 1
    alone = serve(BatchingEngine(network, IdTokenizer(11), prefixes=0), [request([1, 2, 3, 4, 5, 9])])[0]
    np.testing.assert_allclose(
        [event.score.log_prob for event in second.emit.events],
        [event.score.log_prob for event in alone.events],
        atol=1e-12,
    )
    assert second.emit.tokens == alone.tokens


def test_a_cancelled_sequence_gives_its_row_back_within_a_token(network):
    engine = BatchingEngine(network, IdTokenizer(11), max_rows=1, max_tokens=1000)
    endless, waiting = request([1], max_tokens=1000), request([2])
    engine.submit([endless, waiting])
    with torch.inference_mode():
        for _ in range(5):
            engine.round()
        assert not waiting.emit.events
        told = len(endless.emit.events)
        endless.cancel()
        while engine.busy:
            engine.round()
    assert len(endless.emit.events) == told
    assert waiting.emit.finished
    assert engine.batch.lengths == []


def test_logits_that_are_no_numbers_end_one_request_alone(network):
    torch.manual_seed(0)
    broken = Transformer(Architecture(**SMALL, attention=Attention(n_heads=2))).double().eval()
    with torch.no_grad():
        broken.embed.token.weight[9] = torch.nan
        broken.unembed.weight = torch.nn.Parameter(broken.embed.token.weight.nan_to_num())
    bad, good = serve(BatchingEngine(broken, IdTokenizer(11)), [request([9, 1]), request([1, 2])])
    assert isinstance(bad.events[-1], LogitsError)
    assert len(good.tokens) == 4


def test_what_does_not_fit_is_refused_with_its_figure(network):
    engine = BatchingEngine(network, IdTokenizer(11), max_queue=2)
    with pytest.raises(TooLargeError, match="the prompt has 17 tokens and this model's context is 16"):
        engine.submit([request([1] * 17)])
    engine.submit([request([1]), request([2])])
    with pytest.raises(QueueFullError, match="2 sequences wait already"):
        engine.submit([request([3])])
    with pytest.raises(GenerationError, match=r"give at least [\d,]+"):
        BatchingEngine(network, IdTokenizer(11), memory=100)


def test_a_long_prompt_delays_the_others_by_one_chunk(network):
    engine = BatchingEngine(network, IdTokenizer(11), chunk=2, max_tokens=50)
    short, long = request([1], max_tokens=50), request([2] * 16)
    engine.submit([short, long])
    with torch.inference_mode():
        for rounds in range(1, 9):
            read, told = engine.prompt_tokens, len(short.emit.events)
            engine.round()
            # the first round reads the short prompt's only token besides, in the step
            assert engine.prompt_tokens - read <= 2 + (rounds == 1)
            assert len(short.emit.events) > told, rounds


def test_a_prompts_pieces_are_read_in_the_steps_that_others_take(monkeypatch):
    torch.manual_seed(0)
    network = Transformer(Architecture(**SMALL, attention=Attention(n_heads=2))).double().eval()
    alone = serve(BatchingEngine(network, IdTokenizer(11)), [request([3, 1, 4, 1, 5, 9, 2])])[0].tokens
    shapes: list[tuple[int, ...]] = []
    hidden = network.hidden
    monkeypatch.setattr(
        network, "hidden", lambda tokens, **options: shapes.append(tokens.shape) or hidden(tokens, **options)
    )
    engine = BatchingEngine(network, IdTokenizer(11), chunk=4, max_tokens=50)
    other, long = request([1], max_tokens=50), request([3, 1, 4, 1, 5, 9, 2])
    engine.submit([other])
    with torch.inference_mode():
        engine.round()
        shapes.clear()
        engine.submit([long])
        for _ in range(3):
            engine.round()
    # two steps with a piece each, and one step for both sequences
    assert shapes == [(1, 5), (1, 4), (2, 1)]
    assert long.emit.tokens == alone[:2]
    assert engine.prompt_tokens == 1 + 7
    serve(engine, [])
    assert long.emit.tokens == alone


def test_draining_finishes_what_runs_and_takes_nothing_new(network):
    engine = BatchingEngine(network, IdTokenizer(11), max_tokens=20)
    engine.start()
    running = request([1], max_tokens=20)
    engine.submit([running])
    engine.drain(60)
    assert len(running.emit.tokens) == 20
    with pytest.raises(StoppingError, match="shutting down"):
        engine.submit([request([1])])


def test_what_fails_in_one_sequence_ends_that_one_alone(network, monkeypatch):
    engine, bad, good = BatchingEngine(network, IdTokenizer(11)), request([1]), request([2])
    engine.submit([bad, good])
    monkeypatch.setattr(bad.writer, "push", lambda token: 1 / 0)
    with torch.inference_mode():
        while engine.busy:
            engine.round()
    assert isinstance(bad.emit.events[-1], ZeroDivisionError)
    assert len(good.emit.tokens) == 4


def test_samples_of_one_prompt_read_it_together(network):
    """Each reads a piece in turn, and what another one has read it does not read again."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    alone = serve(BatchingEngine(network, IdTokenizer(11), prefixes=0), [request(prompt)])[0].tokens
    engine = BatchingEngine(network, IdTokenizer(11), chunk=2)
    samples = [request(prompt, sample=number) for number in range(3)]
    assert [client.tokens for client in serve(engine, samples)] == [alone] * 3
    assert engine.prompt_tokens < 2 * len(prompt)
    assert engine.prompt_tokens + engine.prefix_reused == 3 * len(prompt)
    assert sum(sample.cached_tokens for sample in samples) == engine.prefix_reused


@pytest.mark.parametrize("prefixes", [0, 2**20])
def test_no_pass_reads_the_same_tokens_twice_where_they_are_kept(network, prefixes):
    prompt = [3, 1, 4, 1, 5, 9, 2]
    engine = BatchingEngine(network, IdTokenizer(11), chunk=10, prefixes=prefixes)
    samples = [request(prompt, sample=number) for number in range(3)]
    serve(engine, [*samples, request([3, 1, 4])])
    # once whole, and for two samples the last token; the short prompt's last token is known to be the third
    assert engine.prompt_tokens == (len(prompt) + 3 if prefixes else 3 * len(prompt) + 3)


@pytest.mark.parametrize("n_newcomers", [0, 6])
def test_a_sequence_whose_window_moves_goes_before_newcomers(network, n_newcomers):
    """A stream that somebody reads waits for its own window, whoever waits for a first token."""
    engine = BatchingEngine(network, IdTokenizer(11), chunk=2, prefixes=0, max_tokens=50)
    other, moving = request([1], max_tokens=50), request([2] * 15, max_tokens=4)
    engine.submit([other, moving])
    with torch.inference_mode():
        while len(moving.emit.tokens) < 2:
            engine.round()
        newcomers = [request([number] * 9, max_tokens=1) for number in range(n_newcomers)]
        engine.submit(newcomers)
        rounds = 0
        while len(moving.emit.tokens) < 3:
            engine.round()
            rounds += 1
    # eight tokens, two in a round, and at most one round in which nothing is read
    assert rounds <= 6
    # the last piece leaves room for one token
    assert sum(generation.cache.length for generation in newcomers if generation.cache) <= 2
    assert moving.emit.tokens == serve(BatchingEngine(network, IdTokenizer(11)), [request([2] * 15)])[0].tokens[:3]


@pytest.mark.parametrize("n_decoding", [0, 1])
@pytest.mark.parametrize("prompt", [[1], [1, 2, 3, 4, 5, 9]])
def test_all_whose_prompts_are_known_join_in_one_round(network, n_decoding, prompt):
    engine = BatchingEngine(network, IdTokenizer(11), chunk=4, max_tokens=50)
    (alone,) = serve(engine, [request(prompt)])
    engine.submit([request([7], max_tokens=50) for _ in range(n_decoding)])
    with torch.inference_mode():
        if n_decoding:
            engine.round()
        known = [request(prompt, sample=sample) for sample in range(8)]
        engine.submit(known)
        engine.round()
    assert [len(generation.emit.tokens) for generation in known] == [1] * 8
    serve(engine, [])
    assert [generation.emit.tokens for generation in known] == [alone.tokens] * 8


def test_known_prompts_that_are_long_together_join_in_several_rounds(network, monkeypatch):
    """Their keys and values are copied, of two at once here, which others wait for."""
    monkeypatch.setattr("pellucid.serve.batching.KNOWN_AT_ONCE", 10)
    engine, prompt = BatchingEngine(network, IdTokenizer(11)), [1, 2, 3, 4, 5, 9]
    serve(engine, [request(prompt)])
    known = [request(prompt, sample=sample) for sample in range(5)]
    engine.submit(known)
    joined = []
    with torch.inference_mode():
        while engine.reading or engine.waiting:
            engine.round()
            joined.append(sum(bool(generation.emit.tokens) for generation in known))
    assert joined == [2, 4, 5]
