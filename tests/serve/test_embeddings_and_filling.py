"""One vector for a text, and what may stand in a blank: the numbers are those of the network."""

import base64

import httpx
import numpy as np
import openai
import pytest
import torch
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.generate.fill import fill
from pellucid.predictors.mixture import Counted
from pellucid.predictors.ngram import NGram
from pellucid.predictors.predictor import Predictor
from pellucid.serve.app import make_app
from pellucid.serve.embeddings import embedding_steps
from pellucid.serve.opening import EngineOptions, describe_engine, engine_for
from pellucid.serve.served import ServedModel
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text_model import Model
from planted import BASE, TWO_LISTS

TEXTS = ["To be, or not to be", "x", "né" * 20]


class Masked:
    """A masked model, as `pellucid.load` gives it."""

    def __init__(self):
        self.tokenizer = ByteTokenizer().with_special("<|mask|>")
        attention = Attention(n_heads=2, mask="bidirectional")
        self.network = make_network(Architecture(n_vocab=258, n_ctx=32, d_model=16, n_layers=2, attention=attention))


@pytest.fixture(scope="module")
def masked() -> Masked:
    return Masked()


@pytest.fixture(scope="module")
def client(masked):
    ids = np.array(ByteTokenizer().encode(" ".join(TEXTS)))
    models = {"masked": masked, "ngram": Predictor(Counted(NGram.train(ids, 257, 2)), ByteTokenizer(), "ngram", {})}
    served = [ServedModel(name, engine_for(model, EngineOptions())) for name, model in models.items()]
    with TestClient(make_app(served, hosts=("testserver",))) as client:
        yield client


def expected_vectors(network, pooling):
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            stream = network.hidden(torch.tensor([list(text.encode())]))[0]
        vector = stream.mean(0) if pooling == "mean" else stream[-1]
        vectors.append((vector / vector.norm()).tolist())
    return vectors


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_the_final_stream(server, pooling):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    expected = expected_vectors(small_network(), pooling)
    for encoding in ("float", "base64"):
        served = client.embeddings.create(
            model="small", input=TEXTS, encoding_format=encoding, extra_body={"pooling": pooling}
        )
        for vector, other in zip(served.data, expected, strict=True):
            numbers = vector.embedding
            if encoding == "base64":
                numbers = np.frombuffer(base64.b64decode(numbers), dtype="<f4")
            np.testing.assert_allclose(numbers, other, atol=1e-10 if encoding == "float" else 1e-6)
    # unless told otherwise the package asks for base64, and decodes it
    served = client.embeddings.create(model="small", input=list(TEXTS[0].encode()), extra_body={"pooling": pooling})
    np.testing.assert_allclose(served.data[0].embedding, expected[0], atol=1e-6)
    assert served.usage.prompt_tokens == len(TEXTS[0])
    client.close()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_no_length_of_a_text_changes_the_vector_of_another(monkeypatch, pooling):
    monkeypatch.setattr("pellucid.serve.embeddings.PROMPT_CHUNK", 12)
    network = make_network(BASE.with_fields(TWO_LISTS | {"readout": "none"}))
    # longrope has other frequencies beyond 9 tokens: within one batch, and within one text
    texts = [[1, 2, 3], list(range(10)), [4, 5, 6], list(range(16)), [7, 8]]
    *_, vectors = embedding_steps(network, texts, pooling)
    for ids, vector in zip(texts, vectors, strict=True):
        stream = network.hidden(torch.tensor([ids]))[0].detach()
        expected = stream.mean(0) if pooling == "mean" else stream[-1]
        np.testing.assert_allclose(vector, (expected / expected.norm()).tolist(), atol=1e-10)


@pytest.mark.parametrize("mask", ["causal", "prefix", "bidirectional"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_texts_are_embedded_in_batches_by_length(monkeypatch, mask, pooling):
    monkeypatch.setattr("pellucid.serve.embeddings.PROMPT_CHUNK", 12)
    attention = Attention(n_heads=2, mask=mask)
    network = make_network(Architecture(n_vocab=20, n_ctx=32, d_model=16, n_layers=2, attention=attention))
    texts = [[1, 2], *([n] for n in range(10)), [3, 4, 5], list(range(20)), [6, 7], [9, 9, 9]]
    *rounds, vectors = embedding_steps(network, texts, pooling)
    # causal: ten texts of one token, two of two with two of three, and two chunks of the long one
    assert len(rounds) == 4
    for ids, vector in zip(texts, vectors, strict=True):
        with torch.inference_mode():
            stream = network.hidden(torch.tensor([ids]))[0]
        expected = stream.mean(0) if pooling == "mean" else stream[-1]
        np.testing.assert_allclose(vector, (expected / expected.norm()).tolist(), atol=1e-10)


def test_as_many_texts_are_embedded_at_once_as_with_openai(server):
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": ["x"] * 300})
    assert len(answer.json()["data"]) == 300


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"input": ["x"] * 2049}, "at most 2048 items"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "x", "dimensions": 5}, "this model's vectors have 16"),
        ({"input": ["x", "x" * 65]}, "input 1 has 65 tokens"),
        ({"input": [[999]]}, "token id 999"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "edits": [{"op": "zero", "name": "logits"}]}, "edits is not done here"),
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens is not done here"),
        ({"input": "x", "add_special_tokens": False}, "add_special_tokens is not done here"),
    ],
)
def test_a_text_that_cannot_be_embedded_is_refused(server, body, sentence):
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]


def test_blanks_are_filled_as_fill_does(client, masked):
    texts = ["To be, or [MASK] to be", "[MASK][MASK]"]
    answer = client.post("/v1/fill", json={"model": "masked", "text": texts, "top": 3})
    assert answer.status_code == 200, answer.text
    for filled, text in zip(answer.json()["data"], texts, strict=True):
        expected = fill(Model(masked.network, masked.tokenizer), text, top=3)
        assert [blank["texts"] for blank in filled["blanks"]] == [filling.texts for filling in expected]
        for blank, filling in zip(filled["blanks"], expected, strict=True):
            np.testing.assert_allclose(blank["probabilities"], filling.probabilities, atol=1e-12)
    one = client.post("/v1/fill", json={"model": "masked", "text": texts[0]}).json()
    assert len(one["data"][0]["blanks"][0]["texts"]) == 5


def test_a_masked_model_embeds(client, masked):
    served = client.post("/v1/embeddings", json={"model": "masked", "input": "To be"}).json()
    with torch.inference_mode():
        vector = masked.network.hidden(torch.tensor([list(b"To be")]))[0].mean(0)
    np.testing.assert_allclose(served["data"][0]["embedding"], (vector / vector.norm()).tolist(), atol=1e-10)


def test_a_model_without_a_readout_embeds_and_says_that_it_does_nothing_else(masked):
    bare = Masked()
    bare.network = make_network(masked.network.architecture.with_fields({"readout": "none"}))
    engine = engine_for(bare, EngineOptions())
    assert describe_engine(engine) == "it generates no text, but embeds texts"
    assert "fills masked tokens" in describe_engine(engine_for(masked, EngineOptions()))
    with TestClient(make_app([ServedModel("bare", engine)], hosts=("testserver",))) as client:
        assert client.post("/v1/embeddings", json={"input": "To be"}).status_code == 200
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/fill", {"text": "[MASK]"})):
            answer = client.post(path, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith("readout = none")


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/completions", {"model": "masked", "prompt": "x"}, "send it to /v1/fill"),
        ("/v1/fill", {"model": "masked", "text": "no blank"}, "there is no blank"),
        ("/v1/fill", {"model": "masked", "text": "[MASK]" * 33}, "text 0 has 33 tokens"),
        ("/v1/fill", {"model": "masked", "text": "[MASK]", "top": 0}, "top"),
        ("/v1/fill", {"model": "ngram", "text": "[MASK]"}, "this model cannot fill blanks"),
        ("/v1/embeddings", {"model": "ngram", "input": "x"}, "no single stream of vectors"),
    ],
)
def test_what_a_kind_of_model_cannot_do_is_refused(client, path, body, sentence):
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]
