"""The interface as clients see it: OpenAI's own package, plain HTTP, and what must be refused."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from pellucid.generate.decode import generate_ids
from pellucid.generate.readers import NO_TAPS
from pellucid.generate.sampling import Sampling
from pellucid.generate.scoring import score_tokens
from pellucid.generate.text import generate
from pellucid.serve.answer import Answer
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.completions import CompletionBody, stream_completion
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import CancellingStream
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

PROMPT = "To be, or not to be"


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server, path="/v1/completions", **body):
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def alone(server, prompt=PROMPT, **options):
    return generate(server.engine, prompt, **options)


def test_a_completion_is_what_generate_gives(server, client):
    for options in ({"temperature": 0}, {"temperature": 0.7, "top_p": 0.9, "seed": 3}):
        served = client.completions.create(model="small", prompt=PROMPT, max_tokens=20, **options)
        expected = alone(server, max_tokens=20, **options)[0]
        assert served.choices[0].text == expected.text
        assert served.choices[0].finish_reason == ("length" if expected.finish_reason == "length" else "stop")
        assert served.usage.prompt_tokens == len(PROMPT)
        assert served.usage.completion_tokens == 20


def test_several_prompts_and_samples_at_once(server, client):
    prompts = [PROMPT, "Whether 'tis", "x"]
    served = client.completions.create(model="small", prompt=prompts, n=2, max_tokens=9, seed=5, temperature=1)
    expected = alone(server, prompts, n=2, max_tokens=9, seed=5, temperature=1)
    assert [choice.index for choice in served.choices] == list(range(6))
    assert [choice.text for choice in served.choices] == [result.text for result in expected]


def test_the_best_of_several_samples_are_the_likeliest(client):
    given = {"model": "small", "prompt": [PROMPT, "x"], "max_tokens": 6, "seed": 5, "temperature": 5}
    drawn = client.completions.create(**given, n=6, logprobs=0).choices
    best = client.completions.create(**given, n=2, best_of=6)
    expected = []
    for samples in (drawn[:6], drawn[6:]):
        ranked = sorted(samples, key=lambda choice: np.mean(choice.logprobs.token_logprobs), reverse=True)
        expected += [choice.text for choice in ranked[:2]]
    assert [choice.text for choice in best.choices] == expected
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == 2 * 6 * 6


def test_token_ids_are_prompts(client):
    text = client.completions.create(model="small", prompt=PROMPT, max_tokens=5, temperature=0).choices[0].text
    ids = client.completions.create(model="small", prompt=list(PROMPT.encode()), max_tokens=5, temperature=0)
    assert ids.choices[0].text == text


def test_a_stream_joined_is_the_whole_text(server, client):
    expected = client.completions.create(model="small", prompt=PROMPT, max_tokens=40, seed=1, temperature=1)
    chunks = list(
        client.completions.create(
            model="small", prompt=PROMPT, max_tokens=40, seed=1, temperature=1, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == expected.choices[0].text
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    raw = post(server, model="small", prompt=PROMPT, max_tokens=3, stream=True).text
    assert raw.endswith("data: [DONE]\n\n")


def test_the_asynchronous_client_and_many_at_once(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            create = client.completions.create
            requests = [
                create(model="small", prompt=f"{n} men", max_tokens=12, seed=n, temperature=1) for n in range(12)
            ]
            return await asyncio.gather(*requests)

    for n, served in enumerate(asyncio.run(ask())):
        assert served.choices[0].text == alone(server, f"{n} men", max_tokens=12, seed=n, temperature=1)[0].text


@pytest.mark.item("S1-1.1-m")
def test_echoed_log_probabilities_are_those_of_score(server, client):
    """What lm-eval asks for: the prompt's tokens scored, one token generated, and its greediness by equality."""
    for max_tokens in (0, 1):
        served = client.completions.create(
            model="small",
            prompt=list(PROMPT.encode()),
            max_tokens=max_tokens,
            temperature=0,
            logprobs=1,
            echo=True,
            seed=1,
        )
        logprobs = served.choices[0].logprobs
        ids = list(PROMPT.encode())
        n = len(ids)
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == n + max_tokens
        assert logprobs.token_logprobs[0] is None
        np.testing.assert_allclose(logprobs.token_logprobs[1:n], score_tokens(server.engine.network, ids), atol=1e-10)
        assert logprobs.text_offset == list(range(n + max_tokens))
        for chosen, alternatives in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True):
            assert chosen in alternatives.values()
        if max_tokens:
            assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())


def test_text_offsets_count_characters_where_tokens_are_bytes(client):
    served = client.completions.create(model="small", prompt="nét", max_tokens=0, logprobs=0, echo=True)
    # the two bytes of é begin at one place
    assert served.choices[0].logprobs.text_offset == [0, 1, 1, 2]
    assert served.choices[0].text == "nét"


@pytest.mark.parametrize(
    ("data", "offsets"),
    [(b"\xc3A", [0, 1]), (b"\xf0\x9fA", [0, 0, 1]), (b"\xc3\xc3\xa9", [0, 1, 1]), (b"\xe2\xffA", [0, 1, 2])],
)
def test_text_offsets_count_the_mark_of_an_unfinished_character(client, data, offsets):
    options = {"max_tokens": 0, "logprobs": 0, "echo": True}
    (choice,) = client.completions.create(model="small", prompt=list(data), **options).choices
    assert choice.text == data.decode(errors="replace")
    assert choice.logprobs.text_offset == offsets


def test_text_offsets_count_the_text_where_a_prompt_ends_inside_a_character(client):
    """What is generated is text by itself, so that the halves of é are two characters that cannot be read."""
    first, second = "é".encode()
    options = {"max_tokens": 1, "temperature": 0, "logit_bias": {str(second): 100}}
    served = client.completions.create(model="small", prompt=[65, first], logprobs=0, echo=True, **options)
    assert served.choices[0].text == "A" + 2 * "\N{REPLACEMENT CHARACTER}"
    assert served.choices[0].logprobs.text_offset == [0, 1, 2]


def test_a_stream_whose_client_leaves_before_it_begins_gives_its_row_back(server):
    async def leave() -> None:
        body = CompletionBody(prompt="x", max_tokens=10**6, temperature=0, stream=True)
        answer = Answer(ServedModel("small", server.engine), body, [[120]], taps=NO_TAPS, max_tokens=10**6)

        async def gone():
            return {"type": "http.disconnect"}

        async def send(message):
            raise OSError("nobody is there")

        with contextlib.suppress(Exception):
            await CancellingStream(answer, stream_completion(answer, body, {}))(
                {"type": "http", "asgi": {"spec_version": "2.4"}}, gone, send
            )
        assert all(generation.cancelled for generation in answer.generations)

    asyncio.run(leave())


def test_stop_strings_end_a_text_and_are_not_shown(server, client):
    whole = (
        client.completions.create(model="small", prompt=PROMPT, max_tokens=40, seed=2, temperature=1).choices[0].text
    )
    stop = whole[10:12]
    served = client.completions.create(model="small", prompt=PROMPT, max_tokens=40, seed=2, temperature=1, stop=stop)
    assert served.choices[0].text == whole[: whole.index(stop)]
    assert served.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("body", "sampling"),
    [
        ({"logit_bias": {"65": 90.5, "101": -100}}, {"logit_bias": ((65, 90.5), (101, -100.0))}),
        ({"presence_penalty": 50}, {"presence_penalty": 50.0}),
        ({"frequency_penalty": 20}, {"frequency_penalty": 20.0}),
    ],
)
def test_biases_and_penalties_are_those_of_sampling(server, client, body, sampling):
    options = {"model": "small", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    decoding = generate_ids(
        server.engine.network, [PROMPT.encode()], max_tokens=12, sampling=Sampling(temperature=0, **sampling)
    )
    list(decoding)
    served = client.completions.create(**options, **body).choices[0].text
    assert served == server.engine.tokenizer.decode(decoding.rows[0].generated)
    assert served != client.completions.create(**options).choices[0].text


def test_a_stream_that_nobody_reads_ends_without_a_traceback_where_the_server_stops():
    """uvicorn cancels it, and prints every exception that reaches it."""

    async def wait(*_message):
        await asyncio.Event().wait()

    async def cancelled(stopping: bool) -> None:
        engine, body = BatchingEngine(small_network(), ByteTokenizer()), CompletionBody(prompt="x", stream=True)
        answer = Answer(ServedModel("small", engine), body, [[120]], taps=NO_TAPS, max_tokens=5)
        engine.draining = stopping
        stream = CancellingStream(answer, stream_completion(answer, body, {}))
        task = asyncio.create_task(stream({"type": "http", "asgi": {"spec_version": "2.4"}}, wait, wait))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    asyncio.run(cancelled(stopping=True))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(stopping=False))


def test_a_completion_without_a_number_of_tokens_has_as_many_as_the_server_allows():
    for allowed, expected in ((5, 5), (30, 16)):
        engine = BatchingEngine(small_network(), ByteTokenizer(), max_tokens=allowed)
        with TestClient(make_app([ServedModel("small", engine)], hosts=("testserver",))) as client:
            for body in ({}, {"max_tokens": None}):
                answer = client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0} | body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["usage"]["completion_tokens"] == expected


def test_no_prompt_is_an_empty_one(server):
    options = {"max_tokens": 5, "temperature": 0}
    assert (
        post(server, prompt=None, **options).json()["choices"] == post(server, prompt="", **options).json()["choices"]
    )


@pytest.mark.parametrize(
    ("body", "param", "sentence"),
    [
        ({"prompt": ["a"] * 257}, "prompt", "at most 256 items"),
        ({"prompt": [-1]}, "prompt.0", "greater than or equal to 0, got -1"),
        ({"prompt": ["a", None]}, "prompt.1", "a valid string, got None"),
        ({"prompt": [1, "a"]}, "prompt.1", "a valid integer, got 'a'"),
        ({"prompt": [[1], ["a"]]}, "prompt.1.0", "a valid integer, got 'a'"),
        ({"stop": [""]}, "stop.0", "at least 1 character"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 items"),
        ({"edits": [{"op": "zero"}]}, "edits.0.name", "required"),
        ({"edits": [{"op": "zero", "name": "logits", "head": {"frm": 1}}]}, "edits.0.head.frm", "not permitted"),
    ],
)
def test_of_a_field_with_alternatives_what_is_wrong_is_named(server, body, param, sentence):
    error = post(server, **{"prompt": "x"} | body).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert sentence in error["message"]


def test_tokenize_and_back(server):
    tokens = post(server, "/tokenize", prompt="né").json()["tokens"]
    assert tokens == list("né".encode())
    assert post(server, "/detokenize", tokens=tokens).json()["prompt"] == "né"
    # special tokens are those that a completion reads beside the text
    for text, ids in (("né", tokens), ("", [256])):
        assert post(server, "/tokenize", prompt=text, add_special_tokens=True).json()["tokens"] == ids
        assert post(server, prompt=text, max_tokens=0).json()["usage"]["prompt_tokens"] == len(ids)
    about = httpx.get(f"{server.url}/tokenizer_info").json()
    assert about["eos_token"] == "<|endoftext|>"
    # lm-eval asks for the id of that name, and begins texts of rolling tasks with it; within a text it is plain text
    assert post(server, "/tokenize", prompt=about["eos_token"]).json()["tokens"] == [256]
    assert 256 not in post(server, "/tokenize", prompt=f"a{about['eos_token']}").json()["tokens"]
    assert about["additional_special_tokens"] == ["<|endoftext|>"]


def test_models_health_and_metrics(server, client):
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here"):
        client.completions.create(model="gpt-9", prompt="x")
    assert httpx.get(f"{server.url}/v1/models/").json()["error"]["code"] == "not_found"
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    figures = httpx.get(f"{server.url}/metrics").text
    assert 'pellucid_generated_tokens_total{model="small"}' in figures


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 100}, "n"),
        ({"logprobs": 1000}, "logprobs"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens is called max_tokens on this route"),
        ({"max_output_tokens": 5}, "max_output_tokens is called max_tokens"),
        ({"n_predict": 5}, "n_predict is called max_tokens"),
        ({"repeat_penalty": 1.1}, "repeat_penalty is not done here"),
        ({"xtc_probability": 0.5}, "xtc_probability is not done here"),
        ({"dry_multiplier": 0.8}, "dry_multiplier is not done here"),
        ({"dynatemp_range": 0.5}, "dynatemp_range is not done here"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output is not done here"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens is not done here"),
        ({"top_n_sigma": 1.5}, "top_n_sigma is not done here"),
        ({"samplers": ["top_k"]}, "samplers is not done here"),
        ({"min_keep": 3}, "min_keep is not done here"),
        ({"skip_special_tokens": False}, "skip_special_tokens is not done here"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids is not done here"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is not done here"),
        ({"penalty_alpha": 0.6}, "penalty_alpha is not done here"),
        ({"epsilon_cutoff": 3.0}, "epsilon_cutoff is not done here"),
        ({"eta_cutoff": 3.0}, "eta_cutoff is not done here"),
        ({"add_special_tokens": False}, "add_special_tokens is not done here"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 5, "stream": True}, "best_of = 5 with stream"),
        ({"best_of": 2, "n": 3}, "expected at least n"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"five": 1}}, "logit_bias of 'five'"),
        ({"logit_bias": {"5": 1000}}, "a number from -100 to 100"),
        ({"prompt": [999]}, "token id 999: this model knows ids from 0 to 256"),
        ({"prompt": "x" * 65}, "the prompt has 65 tokens and this model's context is 64"),
        ({"prompt": "\ud800"}, "surrogate"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(server, body, sentence):
    content = json.dumps({"model": "small", "prompt": "x"} | body)
    answer = httpx.post(
        f"{server.url}/v1/completions", content=content, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(server, number):
    answer = httpx.post(
        f"{server.url}/v1/completions",
        content=f'{{"prompt": "x", "temperature": {number}}}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400


def test_unknown_fields_that_change_no_number_are_accepted(server):
    assert post(server, prompt="x", max_tokens=1, user="me", metadata={"a": 1}, store=True).status_code == 200


def test_options_of_other_servers_are_accepted_where_they_change_nothing(server):
    harmless = {"repeat_penalty": 1.0, "xtc_probability": 0.0, "dry_multiplier": 0, "dynatemp_range": 0.0}
    harmless |= {"include_stop_str_in_output": False, "truncate_prompt_tokens": None, "n_predict": None}
    harmless |= {"top_n_sigma": -1.0, "samplers": [], "min_keep": 0, "skip_special_tokens": True, "eta_cutoff": 0.0}
    harmless |= {"return_tokens_as_token_ids": False, "no_repeat_ngram_size": 0, "penalty_alpha": 0}
    options = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}
    answer = post(server, **options, **harmless)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == post(server, **options).json()["choices"]


def test_a_seed_of_minus_one_is_drawn(server, monkeypatch):
    monkeypatch.setattr("pellucid.serve.answer.secrets.randbits", lambda bits: 7)
    options = {"prompt": PROMPT, "max_tokens": 12, "temperature": 5}
    drawn, seven, eight = (post(server, **options, seed=seed).json()["choices"] for seed in (-1, 7, 8))
    assert drawn == seven
    assert drawn != eight


def test_an_aborted_stream_frees_its_row(server):
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 100000, "stream": True}
    ) as s:
        next(s.iter_lines())
    for _ in range(200):
        if not server.engine.busy:
            break
        asyncio.run(asyncio.sleep(0.02))
    assert not server.engine.busy


def test_an_address_of_the_interface_says_what_it_is_and_the_page_and_requests_share_a_temperature(server):
    from importlib import resources

    from pellucid.generate.text import TEMPERATURE

    with httpx.Client(base_url=server.url) as client:
        about = client.get("/v1").json()
        assert client.get(about["page"]).status_code == 200
        assert client.get(about["models"]).status_code == 200
    assert CompletionBody(prompt="x").sampling().temperature == TEMPERATURE
    assert CompletionBody(prompt="x", temperature=None).sampling().temperature == TEMPERATURE
    page = resources.files("pellucid").joinpath("serve", "page", "index.html").read_text(encoding="utf-8")
    assert f'id="temperature" type="number" required min="0" max="100" step="any" value="{TEMPERATURE}"' in page
