"""Predictors, mixtures, encoder-decoders and masked models behind the same interface, with the numbers of their own."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Engine

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
from pellucid.text.tokenizers.external import ExternalTokenizer
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from pellucid.text_model import Model
from planted import BASE, TWO_LISTS
from some_cases import one_in

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 3


class Opened:
    """A network with its tokenizer, as `pellucid.load` gives it."""

    def __init__(self, network: Transformer, tokenizer: Tokenizer | None = None):
        self.network, self.tokenizer = network, tokenizer or ByteTokenizer()


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
    mixture = mixed_with(Model(small_network(), tokenizer), counted, 0.3)
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
    expected = generate(Model(network, tokenizer), "be", source=sources, n=2, max_tokens=50, seed=7, temperature=0.8)
    served = complete(client, "translator", prompt="be", source=sources, n=2, max_tokens=50)
    assert [choice["text"] for choice in served["choices"]] == [result.text for result in expected]
    # clients that know of no source send it as the prompt
    expected = generate(Model(network, tokenizer), source=sources[0], max_tokens=12, seed=7, temperature=0.8)[0].text
    assert complete(client, "translator", prompt=sources[0], max_tokens=12)["choices"][0]["text"] == expected


def test_edits_reach_the_encoder_too(client):
    network = encoder_decoder()
    edits = [add("encoder.blocks.0.resid_post", torch.linspace(-8, 8, 16).tolist())]
    taps = GenerationTrace(network, edits)
    sources = ["a source", "another one"]
    expected = generate(
        Model(network, ByteTokenizer()), source=sources, taps=taps, max_tokens=20, seed=7, temperature=0.8
    )
    served = complete(client, "translator", prompt=sources, max_tokens=20, edits=[edits[0].to_dict()])
    assert [choice["text"] for choice in served["choices"]] == [result.text for result in expected]
    assert complete(client, "translator", prompt=sources[0], max_tokens=20)["choices"][0]["text"] != expected[0].text


@pytest.mark.parametrize("field", ["prompt", "source"])
def test_a_source_that_the_encoder_cannot_hold_is_refused_before_it_is_encoded(client, monkeypatch, field):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *given: pytest.fail("it was encoded"))
    answer = client.post("/v1/completions", json={"model": "translator", field: ["a", "y" * 10**5]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert "the text has 100,000 bytes, and the 32 tokens" in error["message"]


def test_a_source_is_refused_where_nothing_reads_it(client):
    answer = client.post("/v1/completions", json={"model": "ngram", "prompt": "x", "source": "y"})
    assert "this model has no encoder" in answer.json()["error"]["message"]
    answer = client.post("/v1/completions", json={"model": "translator", "prompt": ["a", "b"], "source": "y"})
    assert "1 sources for 2 prompts" in answer.json()["error"]["message"]


def test_the_tokens_of_a_source_are_counted(client):
    """Those are its bytes and the separator behind them, and a target begins with its start token."""
    sources = ["a source", "another one"]
    source_tokens = sum(len(source) + 1 for source in sources)
    served = complete(client, "translator", prompt=sources, n=2, max_tokens=3, logit_bias={"256": -100})
    assert served["usage"]["prompt_tokens"] == source_tokens + 2
    assert served["usage"]["total_tokens"] == source_tokens + 2 + 4 * 3
    assert served["timings"]["prompt_n"] == source_tokens + 2
    body = {"model": "translator", "prompt": sources[0], "add_special_tokens": True}
    assert client.post("/tokenize", json=body).json()["tokens"] == [*sources[0].encode(), 256]
    served = complete(client, "translator", prompt="be", source=sources, max_tokens=3)
    assert served["usage"]["prompt_tokens"] == source_tokens + 2 * (1 + len("be"))


def test_a_source_is_no_beginning_of_the_text_and_cannot_be_echoed(client):
    body = {"model": "translator", "max_tokens": 2, "echo": True, "logit_bias": {"256": -100}}
    answer = client.post("/v1/completions", json=body | {"prompt": "a source"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("echo: the encoder of this model reads the prompt")
    echoed = complete(client, prompt="be", source="a source", **body)["choices"][0]["text"]
    assert echoed.startswith("be")


@pytest.fixture(scope="module")
def padded() -> Transformer:
    """A network with more rows than its tokenizer has ids; a row of no token is often the likeliest."""
    torch.manual_seed(0)
    network = Transformer(Architecture(n_vocab=320, n_ctx=32, d_model=16, n_layers=1, attention=Attention(n_heads=2)))
    with torch.no_grad():
        network.embed.token.weight[257:].mul_(5)
    return network.double().eval()


def test_texts_end_where_longrope_has_other_frequencies_and_this_is_said():
    network = make_network(BASE.with_fields(TWO_LISTS))
    engine = engine_for(Opened(network), EngineOptions(max_rows=2))
    assert (engine.n_ctx, network.architecture.n_ctx) == (9, 16)
    assert "texts end at 9 tokens here (positions.n_trained)" in describe_engine(engine)
    assert "`score` read up to 16" in describe_engine(engine)
    assert "texts end" not in describe_engine(engine_for(Opened(make_network(BASE)), EngineOptions(max_rows=2)))


def test_rows_of_no_token_are_counted_and_not_named(padded):
    prompt = b"To be, or not"
    with torch.inference_mode():
        log_probs = padded(torch.tensor([list(prompt)]))[0].log_softmax(-1)
    assert (log_probs.argmax(-1) >= 257).any()
    served = ServedModel("padded", engine_for(Opened(padded), EngineOptions(max_rows=2, max_tokens=100)))
    with TestClient(make_app([served], hosts=("testserver",))) as client:
        lists = complete(client, "padded", prompt=list(prompt), max_tokens=2, echo=True, logprobs=20)
        lists = lists["choices"][0]["logprobs"]
        expected = log_probs[torch.arange(len(prompt) - 1), list(prompt[1:])]
        np.testing.assert_allclose(lists["token_logprobs"][1 : len(prompt)], expected, atol=1e-10)
        for place, named in enumerate(lists["top_logprobs"][1 : len(prompt) + 1]):
            likeliest = log_probs[place, :257].topk(20).values
            np.testing.assert_allclose(sorted(named.values(), reverse=True)[:20], likeliest, atol=1e-10)
        for body in ({"prompt": [65, 257]}, {"prompt": "x", "logit_bias": {"300": 1}}):
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 400
            assert "this model knows ids from 0 to 256" in answer.json()["error"]["message"]


def test_a_mixture_of_a_network_with_rows_of_no_token_is_served_with_its_own_numbers(padded, predictors):
    mixture = mixed_with(Model(padded, ByteTokenizer()), predictors["ngram"], 0.7)
    engine = engine_for(mixture, EngineOptions(max_rows=2, max_tokens=100))
    with TestClient(make_app([ServedModel("mixture", engine)], hosts=("testserver",))) as client:
        served = complete(client, "mixture", prompt="To be", max_tokens=20, echo=True, logprobs=1)["choices"][0]
    assert served["text"] == "To be" + mixture.generate("To be", max_tokens=20, seed=7).text
    expected = mixture.log_probs(np.array(list(b"To be")))
    np.testing.assert_allclose(served["logprobs"]["token_logprobs"][1:5], expected, atol=1e-9)


def test_a_prompt_that_fills_more_than_the_networks_context_is_not_scored_in_one_window(predictors):
    """An n-gram may read further back than a network; `score` moves the network's window."""
    network = make_network(Architecture(n_vocab=257, n_ctx=2, d_model=8, n_layers=1))
    mixture = mixed_with(Model(network, ByteTokenizer()), predictors["ngram"], 0.5)
    engine = engine_for(mixture, EngineOptions(max_tokens=100))
    with TestClient(make_app([ServedModel("mixture", engine)], hosts=("testserver",))) as client:
        body = {"prompt": "be,", "max_tokens": 2, "seed": 7}
        assert client.post("/v1/completions", json=body).status_code == 200
        answer = client.post("/v1/completions", json=body | {"echo": True, "logprobs": 1})
        assert "this model scores at most 2 in one window" in answer.json()["error"]["message"]


#: special tokens of the tokenizer below, and how it writes a blank
BEGIN, END, SPACE = "<s>", "</s>", "\u2581"


def llama_like() -> ExternalTokenizer:
    """As Llama 2 has it: a blank before every text, which `decode` strips, and bytes to fall back on."""
    names = ["<unk>", BEGIN, END, *(f"<0x{i:02X}>" for i in range(256))]
    names += [SPACE, "a", "b", f"{SPACE}a", f"{SPACE}b"]
    merges = [(SPACE, "a"), (SPACE, "b")]
    model = models.BPE({name: i for i, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True)
    engine = Engine(model)
    engine.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    blank = decoders.Replace(SPACE, " ")
    engine.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", BEGIN, END)])
    return ExternalTokenizer(engine.to_str())


@pytest.fixture(scope="module")
def llama():
    tokenizer = llama_like()
    torch.manual_seed(0)
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=32, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    engine = engine_for(Opened(Transformer(a).double().eval(), tokenizer), EngineOptions(max_rows=2, max_tokens=100))
    with TestClient(make_app([ServedModel("llama", engine)], hosts=("testserver",))) as client:
        yield client


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("text", ["a b", " a", "  b", "", "é a"])
def test_an_echoed_text_is_its_tokens_where_a_tokenizer_puts_a_blank_before_it(llama, text, begin):
    tokenizer = llama.app.state.models[0].tokenizer
    prompt = [tokenizer.special[BEGIN]] * begin + tokenizer.encode(text) if text or begin else ""
    word = tokenizer.encode("b")[0]
    options = {"prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 0, "logit_bias": {str(word): 100}}
    choice = complete(llama, "llama", **options)["choices"][0]
    assert choice["text"] == f"{text} b b"
    lists = choice["logprobs"]
    ends = [*lists["text_offset"], len(choice["text"])]
    for name, (start, end) in zip(lists["tokens"], pairwise(ends), strict=True):
        if name not in (BEGIN, END) and not name.startswith("bytes:"):
            assert choice["text"][start:end] == name
    body = {"model": "llama", "temperature": 0.8, "seed": 7, "stream": True} | options
    *events, last = llama.post("/v1/completions", json=body).text.strip().split("\n\n")
    assert last == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    for name, joined in lists.items():
        assert [value for piece in pieces if piece["logprobs"] for value in piece["logprobs"][name]] == joined
    without = complete(llama, "llama", **{**options, "logprobs": None})["choices"][0]
    assert without["text"] == choice["text"]


def test_models_say_what_they_are(client, predictors):
    described = {model["id"]: model["meta"] for model in client.get("/v1/models").json()["data"]}
    assert described["ngram"]["n_vocab"] == 257
    assert described["translator"]["n_ctx_train"] == 32
    assert [described[name]["reads_source"] for name in ("ngram", "translator")] == [False, True]
    assert "one after another" in describe_engine(engine_for(predictors["ngram"], EngineOptions()))
    assert "keys and values" in describe_engine(engine_for(Opened(small_network()), EngineOptions()))


def test_weights_that_would_be_ignored_are_refused(predictors):
    with pytest.raises(GenerationError, match="leave it out"):
        engine_for(predictors["ngram"], EngineOptions(weights="int8"))
