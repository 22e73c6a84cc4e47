"""Predictors, mixtures, encoder-decoders and masked models behind the same interface, with the numbers of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.edits import add
from pellucid.generate.errors import GenerationError
from pellucid.generate.text import generate
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.model import Transformer
from pellucid.predictors.mixture import Counted
from pellucid.predictors.ngram import NGram
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recurrent import Recurrent, RecurrentOptions
from pellucid.predictors.transformer_mixture import mixed_with
from pellucid.serve.app import make_app
from pellucid.serve.opening import EngineOptions, describe_engine, engine_for
from pellucid.serve.served import ServedModel
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from some_cases import one_in

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 3


class Opened:
    """A network with its tokenizer, as `pellucid.load` gives it."""

    def __init__(self, network: Transformer):
        self.network, self.tokenizer = network, ByteTokenizer()


def encoder_decoder() -> Transformer:
    attention = Attention(n_heads=2)
    decoder = Architecture(n_vocab=257, n_ctx=32, d_model=16, n_layers=2, attention=attention, unembed="untied")
    encoder = decoder.with_fields({"attention.mask": "bidirectional", "unembed": "tied"})
    return make_network(replace(decoder, encoder=encoder))


@pytest.fixture(scope="module")
def predictors() -> dict[str, Predictor]:
    tokenizer, ids = ByteTokenizer(), np.array(ByteTokenizer().encode(TEXT))
    counted = Predictor(Counted(NGram.train(ids, 257, 4)), tokenizer, "ngram", {})
    torch.manual_seed(2)
    options = RecurrentOptions(n_vocab=257, separator=256, d_embed=8, d_hidden=8, n_ctx=24)
    recurrent = Predictor(Recurrent(options).double().eval(), tokenizer, "recurrent", {})
    mixture = mixed_with(small_network(), tokenizer, counted, 0.3)
    return {"ngram": counted, "recurrent": recurrent, "mixture": mixture}


@pytest.fixture(scope="module")
def client(predictors):
    models = {**predictors, "translator": Opened(encoder_decoder())}
    options = EngineOptions(max_rows=2, max_tokens=100)
    served = [ServedModel(name, engine_for(model, options)) for name, model in models.items()]
    with TestClient(make_app(served, hosts=("testserver",))) as client:
        yield client


def complete(client, model, **body):
    answer = client.post("/v1/completions", json={"model": model, "temperature": 0.8, "seed": 7} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", one_in(3, ["ngram", "recurrent", "mixture"]))
def test_a_predictor_generates_what_it_generates_alone(client, predictors, name):
    prompts = ["To be", "or", "that is the question: whether 'tis nobler"]
    expected = predictors[name].generate_many(prompts, n=2, max_tokens=40, seed=7)
    served = complete(client, name, prompt=prompts, n=2, max_tokens=40)
    assert [choice["text"] for choice in served["choices"]] == [result.text for result in expected]


@pytest.mark.parametrize("name", ["ngram", "recurrent", "mixture"])
def test_a_predictors_log_probabilities_are_those_of_score(client, predictors, name):
    prompt = TEXT[:24] if name == "recurrent" else TEXT[:60]
    served = complete(client, name, prompt=prompt, max_tokens=1, echo=True, logprobs=2)["choices"][0]["logprobs"]
    expected = predictors[name].log_probs(np.array(list(prompt.encode())))
    np.testing.assert_allclose(served["token_logprobs"][1 : len(prompt)], expected, atol=1e-9)
    assert len(served["tokens"]) == len(prompt) + 1
    for chosen, alternatives in zip(served["token_logprobs"][1:], served["top_logprobs"][1:], strict=True):
        assert chosen in alternatives.values()


def test_an_impossible_token_has_a_number_that_json_holds(client):
    served = complete(client, "ngram", prompt="x", max_tokens=1, echo=True, logprobs=1, logit_bias={"65": -100})
    assert all(-9999 <= number <= 0 for number in served["choices"][0]["logprobs"]["token_logprobs"][1:])


def test_what_a_predictor_cannot_do_is_refused(client):
    edits = [{"op": "zero", "name": "logits"}]
    answer = client.post("/v1/completions", json={"model": "ngram", "prompt": "x", "edits": edits})
    assert answer.status_code == 400
    assert "this model is no transformer" in answer.json()["error"]["message"]
    answer = client.post(
        "/v1/completions", json={"model": "recurrent", "prompt": TEXT[:25], "echo": True, "logprobs": 1}
    )
    assert "this model scores at most 24 in one window" in answer.json()["error"]["message"]


def test_a_target_is_that_of_generate(client):
    network, tokenizer = encoder_decoder(), ByteTokenizer()
    sources = ["a source", "another one"]
    expected = generate(network, tokenizer, "be", source=sources, n=2, max_tokens=50, seed=7, temperature=0.8)
    served = complete(client, "translator", prompt="be", source=sources, n=2, max_tokens=50)
    assert [choice["text"] for choice in served["choices"]] == [result.text for result in expected]
    # clients that know of no source send it as the prompt
    expected = generate(network, tokenizer, source=sources[0], max_tokens=12, seed=7, temperature=0.8)[0].text
    assert complete(client, "translator", prompt=sources[0], max_tokens=12)["choices"][0]["text"] == expected


def test_edits_reach_the_encoder_too(client):
    network = encoder_decoder()
    edits = [add("encoder.blocks.0.resid_post", torch.linspace(-8, 8, 16).tolist())]
    taps = GenerationTrace(network, edits)
    sources = ["a source", "another one"]
    expected = generate(network, ByteTokenizer(), source=sources, taps=taps, max_tokens=20, seed=7, temperature=0.8)
    served = complete(client, "translator", prompt=sources, max_tokens=20, edits=[edits[0].to_dict()])
    assert [choice["text"] for choice in served["choices"]] == [result.text for result in expected]
    assert complete(client, "translator", prompt=sources[0], max_tokens=20)["choices"][0]["text"] != expected[0].text


def test_a_source_is_refused_where_nothing_reads_it(client):
    answer = client.post("/v1/completions", json={"model": "ngram", "prompt": "x", "source": "y"})
    assert "this model has no encoder" in answer.json()["error"]["message"]
    answer = client.post("/v1/completions", json={"model": "translator", "prompt": ["a", "b"], "source": "y"})
    assert "1 sources for 2 prompts" in answer.json()["error"]["message"]


def test_models_say_what_they_are(client, predictors):
    described = {model["id"]: model["meta"] for model in client.get("/v1/models").json()["data"]}
    assert described["ngram"]["n_vocab"] == 257
    assert described["translator"]["n_ctx_train"] == 32
    assert "one after another" in describe_engine(engine_for(predictors["ngram"], EngineOptions()))
    assert "keys and values" in describe_engine(engine_for(Opened(small_network()), EngineOptions()))


def test_guessing_changes_no_target():
    network = encoder_decoder()
    texts = []
    for speculate in (0, 4):
        engine = engine_for(Opened(network), EngineOptions(speculate=speculate, max_tokens=100))
        with TestClient(make_app([ServedModel("translator", engine)], hosts=("testserver",))) as client:
            texts.append(complete(client, "translator", prompt="aaaaaa", max_tokens=60, temperature=0))
    assert texts[0]["choices"] == texts[1]["choices"]


@pytest.mark.parametrize("options", [{"speculate": 4}, {"weights": "int8"}])
def test_options_that_would_be_ignored_are_refused(predictors, options):
    with pytest.raises(GenerationError, match="leave it out"):
        engine_for(predictors["ngram"], EngineOptions(**options))
