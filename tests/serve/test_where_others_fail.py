"""What clients of other servers reported, one test for each complaint that no other file holds; and the metrics."""

import json
import re

import httpx
import pytest
import torch
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from pellucid.generate.sampling import Sampling
from pellucid.generate.text import generate
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.generation import Generation
from pellucid.serve.served import ServedModel
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text_model import Model

URL = "/v1/completions"


@pytest.fixture(scope="module")
def client():
    """A model whose token 7 makes logits that are no numbers, with a queue of three."""
    network = small_network()
    network.unembed.weight = torch.nn.Parameter(network.embed.token.weight.clone())
    with torch.no_grad():
        network.embed.token.weight[7] = torch.nan
    engine = BatchingEngine(network, ByteTokenizer(), max_queue=3)
    with TestClient(make_app([ServedModel("small", engine)], hosts=("testserver",))) as client:
        yield client


def complete(client, **body):
    answer = client.post(URL, json={"prompt": "To be", "temperature": 0.8, "seed": 1, "max_tokens": 20} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(client, **body):
    """The choices of a stream's chunks."""
    body = {"prompt": "To be", "temperature": 0.8, "seed": 1, "max_tokens": 20, "stream": True} | body
    lines = client.post(URL, json=body).text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]


def test_a_generated_end_of_text_has_its_entry(client):
    """Left out, it shifts every score that a client reads by one."""
    served = complete(client, logprobs=1, logit_bias={"256": 100}, temperature=0)
    choice = served["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][-1] == "<|endoftext|>"
    assert len(choice["logprobs"]["tokens"]) == served["usage"]["completion_tokens"]
    assert choice["text"] == "".join(choice["logprobs"]["tokens"][:-1])


def test_the_lists_of_a_stream_joined_are_those_of_the_whole(client):
    """Offsets go on from chunk to chunk, also where the prompt is echoed and tokens are parts of characters."""
    options = {"prompt": "né", "logprobs": 3, "echo": True}
    whole = complete(client, **options)["choices"][0]
    pieces = chunks(client, **options)
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    for name, expected in whole["logprobs"].items():
        joined = [value for piece in pieces if piece["logprobs"] for value in piece["logprobs"][name]]
        assert joined == expected, name


def test_no_piece_of_a_text_breaks_a_character(client):
    for seed in range(3):
        whole = complete(client, seed=seed, max_tokens=50, temperature=1.2)["choices"][0]["text"]
        texts = [piece["text"] for piece in chunks(client, seed=seed, max_tokens=50, temperature=1.2)]
        assert "".join(texts) == whole
        lost = "\N{REPLACEMENT CHARACTER}"
        assert sum(text.count(lost) for text in texts) == whole.count(lost)


@pytest.mark.parametrize("penalty", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_each_penalty_is_its_own(client, penalty):
    network = client.app.state.models[0].engine.network
    expected = generate(
        Model(network, ByteTokenizer()), "To be", max_tokens=20, seed=1, temperature=0.8, **{penalty: 1.7}
    )[0]
    assert complete(client, **{penalty: 1.7})["choices"][0]["text"] == expected.text


def test_nobodys_stop_is_ignored_in_a_stream(client):
    whole = complete(client)["choices"][0]["text"]
    pieces = chunks(client, stop=[whole[4:6], "never"])
    assert "".join(piece["text"] for piece in pieces) == whole[: whole.index(whole[4:6])]
    assert pieces[-1]["finish_reason"] == "stop"


def test_logits_that_are_no_numbers_answer_500_to_one_request_alone(client):
    answer = client.post(URL, json={"prompt": [7, 1]})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "logits_not_finite"
    assert complete(client)["choices"][0]["text"]
    stream = client.post(URL, json={"prompt": [7, 1], "stream": True}).text.strip().split("\n\n")
    assert json.loads(stream[0].removeprefix("data: "))["status"] == 500
    assert stream[-1] == "data: [DONE]"


def test_a_full_queue_says_when_to_come_back(client, monkeypatch):
    answer = client.post(URL, json={"prompt": ["x"] * 4})
    assert answer.status_code == 400
    assert "4 sequences, and this server's queue holds 3" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "too_many_sequences"
    engine = client.app.state.models[0].engine
    monkeypatch.setattr(engine, "waiting", [Generation([1], Sampling(), 1, 0, emit=print)] * 3)
    # the engine's thread is idle, and hears of nothing that was not submitted
    answer = client.post(URL, json={"prompt": "x"})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"


def test_a_server_that_stops_is_no_limit_of_the_clients_rate(client, monkeypatch):
    monkeypatch.setattr(client.app.state.models[0].engine, "draining", True)
    answer = client.post(URL, json={"prompt": "x"})
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.json()["error"]["code"] == "server_stopping"
    assert "shutting down" in answer.json()["error"]["message"]


def test_timings_are_those_of_llama_cpps_server(client):
    timings = complete(client, prompt="Timed alone", max_tokens=5)["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == len("Timed alone")
    assert timings["predicted_n"] == 5
    assert timings["predicted_per_second"] > 0
    assert {"prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_ms"} <= timings.keys()


def figure(client, name, **labels):
    """One figure of /metrics."""
    said = ",".join(f'{label}="{value}"' for label, value in labels.items())
    found = re.search(rf"^{name}{{{said}}} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_the_metrics_count_requests_tokens_times_and_prefixes(client):
    names = [
        ("pellucid_generated_tokens_total", {"model": "small"}),
        ("pellucid_prompt_tokens_total", {"model": "small"}),
        ("pellucid_prefix_tokens_asked_total", {"model": "small"}),
        ("pellucid_prefix_tokens_reused_total", {"model": "small"}),
        ("pellucid_time_to_first_token_seconds_count", {"model": "small"}),
        ("pellucid_time_between_tokens_seconds_count", {"model": "small"}),
        ("pellucid_requests_total", {"route": URL, "status": "200"}),
        ("pellucid_requests_total", {"route": URL, "status": "400"}),
        ("pellucid_requests_total", {"route": "other", "status": "404"}),
    ]
    before = [figure(client, name, **labels) for name, labels in names]
    for _ in range(2):
        complete(client, prompt="A prompt of its own", max_tokens=5)
    assert client.post(URL, json={"n": 99}).status_code == 400
    assert client.get("/nowhere").status_code == 404
    n = len("A prompt of its own")
    grown = [figure(client, name, **labels) - old for (name, labels), old in zip(names, before, strict=True)]
    assert grown == [10, n + 1, 2 * n, n - 1, 2, 8, 2, 1, 1]
    assert figure(client, "pellucid_requests_waiting", model="small") == 0
    assert figure(client, "pellucid_rows", model="small") >= 1


def test_the_figures_are_of_the_format_that_prometheus_reads(server):
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family.type for family in text_string_to_metric_families(answer.text)}
    assert families["pellucid_time_to_first_token_seconds"] == "histogram"
    assert families["pellucid_requests_waiting"] == "gauge"
