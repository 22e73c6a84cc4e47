"""Edits and packed weights while serving: the numbers are those of `generate` with the same options."""

import json
import random

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.test_engine import Client, drawn_request, request, serve

from drawing import architectures, make_network
from pellucid.architecture import Architecture, Attention
from pellucid.edits import Edit, add, clamp, scale, to_json, zero
from pellucid.generate.decode import generate_ids
from pellucid.generate.errors import GenerationError
from pellucid.generate.pack_weights import pack_network
from pellucid.generate.readers import NO_TAPS
from pellucid.generate.sampling import Sampling
from pellucid.generate.text import generate
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.lens.trace import trace
from pellucid.model import Transformer
from pellucid.serve.batching import BatchingEngine, sequence_bytes
from pellucid.text.ids import IdTokenizer
from pellucid.text_model import Model

#: a steering vector, a silenced head, and a part of the positions
EDITS = (
    [add("blocks.0.resid_post", torch.linspace(-2, 2, 8).double())],
    [zero("blocks.*.attn.z", head=0), scale("final_norm.normalized", 0.7, pos=slice(2, None))],
    [add("logits", torch.linspace(-3, 3, 11).double(), pos=slice(1, 6))],
)


def alone(engine, generation):
    """The tokens that `generate_ids` gives for what a sequence asks."""
    decoding = generate_ids(
        engine.loaded,
        [generation.prompt_ids],
        max_tokens=generation.max_tokens,
        sampling=generation.sampling,
        seeds=generation.seed,
        stop_ids=engine.tokenizer.ends,
        n_allowed=engine.n_allowed,
        taps=generation.taps,
    )
    list(decoding)
    return decoding.rows[0].generated


@settings(max_examples=6)
@given(
    a=architectures(
        {"attention.mask": st.sampled_from(["causal", "prefix"]), "norm.kind": "layer", "final_norm": "norm"}, max_ctx=8
    ),
    seed=st.integers(0, 2**16),
    chunk=st.integers(1, 5),
)
def test_edited_sequences_beside_others_get_the_tokens_of_generate(a, seed, chunk):
    """Prompts are the same with and without edits, so that a prefix computed under other edits would be reused."""
    rng, network = random.Random(seed), make_network(a)
    engine = BatchingEngine(network, IdTokenizer(a.n_vocab), chunk=chunk, max_rows=3, max_tokens=64)
    prompt, requests = [rng.randrange(a.n_vocab) for _ in range(a.n_ctx)], []
    for edits in (None, *EDITS, None, EDITS[0]):
        generation = drawn_request(rng, a, Client())
        generation.prompt_ids = prompt[: rng.randint(1, a.n_ctx)]
        generation.taps = GenerationTrace(network, edits) if edits else NO_TAPS
        requests.append(generation)
    for generation, client in zip(requests, serve(engine, requests), strict=True):
        assert client.finished
        assert client.tokens == alone(engine, generation)


SMALL = Architecture(n_vocab=11, n_ctx=16, d_model=8, n_layers=2, attention=Attention(n_heads=2))


@pytest.fixture(scope="module")
def network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SMALL).double().eval()


def test_log_probabilities_under_edits_are_those_of_a_trace_with_them(network):
    prompt, edits = [1, 2, 3, 4, 5], EDITS[1]
    generation = request(prompt, echo=True, taps=GenerationTrace(network, edits))
    client = serve(BatchingEngine(network, IdTokenizer(11), chunk=2), [generation])[0]
    ids = [*prompt, *client.tokens]
    traced = trace(Model(network, IdTokenizer(11)), [ids], edits=edits)
    expected = traced["logits"][0].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
    served = [*generation.prompt_scores[1:], *(event.score for event in client.events)]
    np.testing.assert_allclose([score.log_prob for score in served], expected.numpy(), atol=1e-10)


def test_sequences_with_the_same_edits_share_their_steps(network):
    """Requests make their edits anew each; equal ones are recognised, and different ones are kept apart."""
    rng, sequences = random.Random(0), []
    for number in range(6):
        taps = GenerationTrace(network, EDITS[number % 2]) if number < 5 else NO_TAPS
        prompt = [rng.randrange(11) for _ in range(rng.randint(1, 4))]
        sequences.append(request(prompt, prompt=number, taps=taps, max_tokens=8, seed=number, sampling=Sampling()))
    memory = 6 * sequence_bytes(network, 12)
    engine = BatchingEngine(network, IdTokenizer(11), memory=memory)
    engine.submit(sequences)
    most: dict[str, int] = {}
    with torch.inference_mode():
        while engine.busy:
            engine.round()
            assert sum(group.batch.cache.nbytes for group in engine.groups.values()) <= memory
            for key, group in engine.groups.items():
                most[key] = max(most.get(key, 0), len(group.generations))
    assert sorted(most.values()) == [1, 2, 3]
    assert list(engine.groups) == [""]
    for generation in sequences:
        assert generation.emit.tokens == alone(engine, generation)


def test_a_large_edit_is_read_once_for_all_sequences_and_kept_as_a_short_key(network, monkeypatch):
    value = torch.linspace(-2, 2, 16 * 8).double().reshape(1, 16, 8)
    written = []
    monkeypatch.setattr(Edit, "to_dict", counted(Edit.to_dict, written))
    taps = GenerationTrace(network, [add("blocks.0.resid_post", value)])
    requests = [request([1], sample=sample, taps=taps) for sample in range(6)]
    serve(BatchingEngine(network, IdTokenizer(11)), requests)
    assert len(written) == 1
    assert {len(generation.edits_key) for generation in requests} == {64}


def test_edits_have_the_same_key_where_they_are_the_same(network):
    value = torch.linspace(-2, 2, 8).double()
    alike = [[add("blocks.0.resid_post", value.clone())] for _ in range(2)]
    values = (value + 1e-12, value.float(), value.reshape(1, 1, 8))
    others = [[add("blocks.0.resid_post", changed)] for changed in values]
    others += [[add("blocks.1.resid_post", value)], [add("blocks.0.resid_post", value, factor=2.0)]]
    others += [[add("blocks.0.resid_post", value, pos=1)], [add("blocks.0.resid_post", value)] * 2, []]
    keys = [GenerationTrace(network, edits).edits_key() for edits in (*alike, *others)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 1 + len(others)


def test_the_row_of_an_edit_is_the_number_of_the_prompt(network):
    edits = [add("blocks.0.resid_post", torch.linspace(-20, 20, 8).double(), row=1)]
    taps = GenerationTrace(network, edits)
    first, second = (request([1, 2, 3], prompt=row, taps=taps, max_tokens=6) for row in (0, 1))
    serve(BatchingEngine(network, IdTokenizer(11)), [first, second])
    plain = request([1, 2, 3], max_tokens=6)
    serve(BatchingEngine(network, IdTokenizer(11)), [plain])
    assert first.emit.tokens == plain.emit.tokens
    assert second.emit.tokens != plain.emit.tokens


def test_an_edited_sequence_that_fails_or_is_cancelled_leaves_the_others_alone(network):
    engine = BatchingEngine(network, IdTokenizer(11), max_tokens=1000)
    endless = request([1], max_tokens=1000, taps=GenerationTrace(network, EDITS[0]))
    nothing = request([1], taps=GenerationTrace(network, [add("logits", float("nan"))]))
    good = request([2])
    engine.submit([endless, nothing, good])
    with torch.inference_mode():
        for _ in range(12):
            engine.round()
    assert isinstance(nothing.emit.events[-1], GenerationError)
    assert good.emit.finished
    endless.cancel()
    with torch.inference_mode():
        engine.round()
    assert not engine.busy


def counted(function, calls):
    def call(tokens):
        calls.append(tokens)
        return function(tokens)

    return call


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_packed_weights_are_those_of_generate(weights):
    torch.manual_seed(0)
    network = Transformer(SMALL).eval()
    engine = BatchingEngine(network, IdTokenizer(11), weights=weights)
    client = serve(engine, [request([1, 2, 3], max_tokens=12)])[0]
    packed = generate_ids(
        pack_network(network, weights).network, [[1, 2, 3]], max_tokens=12, sampling=Sampling(temperature=0)
    )
    list(packed)
    assert client.tokens == packed.rows[0].generated
    with pytest.raises(GenerationError, match=f"weights = {weights}: taps and edits work on the loaded weights"):
        engine.submit([request([1], taps=GenerationTrace(network, EDITS[0]))])


def test_edits_in_a_request(server):
    """Steering through the interface: the text of `generate` with the same edits."""
    engine = server.engine
    edits = [add("blocks.1.resid_post", torch.linspace(-9, 9, 16).tolist()), zero("blocks.*.attn.z", head=1)]
    taps = GenerationTrace(engine.network, edits)
    expected = generate(engine, "To be", taps=taps, max_tokens=15, seed=4)[0]
    body = {"prompt": "To be", "max_tokens": 15, "seed": 4, "temperature": 0.8}
    for _ in range(2):  # the second time a prefix is known, which was computed without edits
        answer = httpx.post(f"{server.url}/v1/completions", json=body | {"edits": json.loads(to_json(edits))})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected.text
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        plain = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]["text"]
        assert plain != expected.text
        assert plain == generate(engine, "To be", max_tokens=15, seed=4)[0].text


def test_every_edit_that_is_written_is_taken(server):
    """JSON has no number for infinity, which is written as text."""
    for high, kept in ((np.inf, True), (0.0, False)):
        edits = [clamp("blocks.0.resid_post", low=-np.inf, high=high)]
        bodies = [{"prompt": "x", "temperature": 0, "max_tokens": 8, "logprobs": 1} for _ in range(2)]
        bodies[1]["edits"] = json.loads(to_json(edits))
        answers = [httpx.post(f"{server.url}/v1/completions", json=body) for body in bodies]
        assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
        plain, edited = (answer.json()["choices"][0]["logprobs"]["token_logprobs"] for answer in answers)
        assert (plain == edited) == kept


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        ({"op": "zero", "name": "blocks.9.attn.z"}, "blocks.9.attn.z"),
        ({"op": "zero", "name": "blocks.0.attn.z", "head": 7}, "there are 2, counted from 0"),
        ({"op": "mean", "name": "blocks.0.attn.z", "over": "pos"}, "not all there yet"),
        ({"op": "explode", "name": "logits"}, "op"),
        ({"op": "zero", "name": "logits", "head": -1}, "head"),
        ({"op": "zero", "name": "logits", "colour": 1}, "colour"),
        ({"op": "add", "name": "logits", "value": [1, 2]}, "a value of shape [2] was given for logits"),
        ({"op": "add", "name": "logits", "value": "x"}, "is no array of numbers"),
        ({"op": "add", "name": "logits", "value": ["nan"]}, "holds NaN"),
        ({"op": "scale", "name": "logits", "factor": "nan"}, "factor of the edit of logits is NaN"),
        ({"op": "clamp", "name": "logits", "low": "nan"}, "low of the edit of logits is NaN"),
        ({"op": "add", "name": "logits", "value": 10**400}, "value"),
        ({"op": "add", "name": "logits", "value": {"a": 1}}, "value"),
    ],
)
def test_an_edit_that_cannot_be_made_is_refused_by_name(server, edit, sentence):
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "edits": [edit]})
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]


def test_edits_are_bounded_by_the_tensors_that_they_change(server):
    """Sixty-four edits of * would cost every step of every sequence thousands of operations."""
    body = {"prompt": "x", "max_tokens": 1, "edits": [{"op": "scale", "name": "*"}] * 64}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 400
    assert "the edits change more than 1,024 tensors" in answer.json()["error"]["message"]
    body["edits"] = [{"op": "scale", "name": "blocks.*.attn.z"}] * 64
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
