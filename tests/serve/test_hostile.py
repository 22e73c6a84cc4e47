"""Hostile requests between good ones, and streams that nobody reads to the end: nobody else notices, nothing leaks."""

import asyncio
import contextlib
import ctypes
import gc
import json
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from pellucid.serve import app as app_module
from pellucid.serve import json_bodies
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.generation import Generation
from pellucid.serve.served import ServedModel
from pellucid.serve.threads import LONG_REQUESTS
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

COMPLETIONS = "/v1/completions"
GOOD = {"prompt": "To be", "max_tokens": 4, "temperature": 0}
#: (path, body as text, expected status); every row of the table of what other servers accept
HOSTILE = [
    (COMPLETIONS, '{"prompt": "x", "temperature": NaN}', 400),
    (COMPLETIONS, '{"prompt": "x", "top_p": Infinity}', 400),
    (COMPLETIONS, '{"prompt": "x", "presence_penalty": 1e999}', 400),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": ' + "9" * 5000 + "}", 400),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": 1000000000000}', 400),
    (COMPLETIONS, '{"prompt": "x", "seed": ' + "9" * 400 + "}", 400),
    (COMPLETIONS, '{"prompt": "x", "n": 1000000000}', 400),
    (COMPLETIONS, '{"prompt": "x", "logprobs": -1}', 400),
    (COMPLETIONS, '{"prompt": "x", "logprobs": 100000}', 400),
    (COMPLETIONS, '{"prompt": "x", "top_k": 1e300}', 400),
    (COMPLETIONS, '{"prompt": [1000000000]}', 400),
    (COMPLETIONS, '{"prompt": [-1]}', 400),
    (COMPLETIONS, '{"prompt": [[1], [9999]]}', 400),
    (COMPLETIONS, '{"prompt": [1.5]}', 400),
    (COMPLETIONS, '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}", 400),
    (COMPLETIONS, '{"metadata": ' + '{"a":' * 5000 + "1" + "}" * 5001, 400),
    (COMPLETIONS, '{"prompt": "\\ud800"}', 400),
    (COMPLETIONS, '{"prompt": "x", "stop": ["\\udfff"]}', 400),
    (COMPLETIONS, '{"prompt": "x", "user": "\\ud800"}', 400),
    (COMPLETIONS, '{"prompt": "x", "model": "\\ud800"}', 400),
    (COMPLETIONS, '{"prompt": "' + "x" * 10_000 + '"}', 400),
    (COMPLETIONS, '{"prompt": {"a": 1}}', 400),
    (COMPLETIONS, '{"prompt": "x", "temperature": "hot"}', 400),
    (COMPLETIONS, '{"prompt": "x", "stop": ["' + "y" * 2000 + '"]}', 400),
    (COMPLETIONS, '{"prompt": "x", "logit_bias": {"999": 1}}', 400),
    (COMPLETIONS, '{"prompt": "x", "logit_bias": {"\u0663": 1}}', 400),
    (COMPLETIONS, '{"prompt": "x", "edits": [{"op": "add", "name": "logits", "value": "nan"}]}', 400),
    (COMPLETIONS, '{"prompt": "x", "edits": [{"op": "zero", "name": "' + "*" * 150 + 'x"}]}', 400),
    (COMPLETIONS, '{"edits": [{"op": "set", "name": "logits", "value": ' + "[" * 90 + "]" * 90 + "}]}", 400),
    (COMPLETIONS, "[]", 400),
    (COMPLETIONS, "", 400),
    (COMPLETIONS, "\x00\x01", 400),
    (COMPLETIONS, '{"prompt": "x"', 400),
    (COMPLETIONS, "x" * (2**20 + 1), 413),
    (COMPLETIONS, json.dumps({"prompt": ["x"] * 257}), 400),
    (COMPLETIONS, json.dumps({"prompt": ["x"] * 256, "n": 8}), 400),
    ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "x"}]}', 400),
    ("/v1/chat/completions", '{"messages": "x"}', 400),
    ("/v1/responses", '{"input": "x", "tool_choice": "required"}', 400),
    ("/v1/embeddings", '{"input": [[1e9]]}', 400),
    ("/v1/embeddings", '{"input": ["' + "x" * 500 + '"]}', 400),
    ("/v1/fill", '{"text": "[MASK]"}', 400),
    ("/tokenize", '{"prompt": "\\ud800"}', 400),
    ("/detokenize", '{"tokens": [99999999999999999999]}', 400),
    ("/v1/models", "{}", 405),
    ("/nowhere", "{}", 404),
]  # fmt: skip


def resident() -> int:
    """Bytes of memory that this process holds, the server's among them, but for what the allocator keeps for later."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def between_good_ones(server, hostile: list[tuple[str, str, int]]) -> None:
    """Each hostile request is answered by its status, and the good one after it by its text."""
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        expected = client.post(COMPLETIONS, json=GOOD).json()["choices"][0]["text"]
        for path, body, status in hostile:
            answer = client.post(path, content=body.encode(), headers=headers)
            assert answer.status_code == status, (path, body[:200], answer.text[:500])
            assert answer.json()["error"]["message"]
            assert client.post(COMPLETIONS, json=GOOD).json()["choices"][0]["text"] == expected


def test_hostile_requests_do_not_change_the_answers_of_good_ones(server):
    between_good_ones(server, HOSTILE)


@pytest.mark.slow
def test_a_thousand_hostile_requests_leave_the_memory_flat(server):
    rng = random.Random(0)
    between_good_ones(server, rng.choices(HOSTILE, k=500))
    before = resident()
    between_good_ones(server, rng.choices(HOSTILE, k=1000))
    assert resident() - before < 20 << 20


def abort(server, n: int, rng: random.Random) -> None:
    """Streams that are left at a random moment: before the head is complete, before an answer, and amid one."""
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(n):
        options = {"prompt": "x" * rng.randint(1, 60), "max_tokens": 10**6, "n": rng.randint(1, 2), "stream": True}
        if rng.random() < 0.2:
            options["edits"] = [{"op": "scale", "name": "blocks.0.mlp_out", "factor": 0.5}]
        if rng.random() < 0.2:
            options["stream"] = False
        body = json.dumps(options).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        request = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(request[: rng.choice([len(request), len(request), rng.randrange(len(request))])])
            if rng.random() < 0.7:
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    connection.recv(rng.randint(1, 4000))


def settle(server) -> None:
    """Wait until nothing is computed and nobody is connected."""
    for _ in range(1500):
        gone = not server.instance.server_state.connections and not server.instance.server_state.tasks
        if gone and not server.engine.busy:
            return
        time.sleep(0.02)
    raise AssertionError((server.instance.server_state, server.engine.running()))


def check_nothing_is_left(server) -> None:
    """No row, no task, no sequence."""
    settle(server)
    engine = server.engine
    assert engine.batch.lengths == []
    assert not [*engine.waiting, *engine.reading, *engine.decoding]
    gc.collect()
    assert sum(type(thing) is Generation for thing in gc.get_objects()) < 10


@pytest.mark.slow
def test_aborted_streams_leave_nothing_behind(server):
    abort(server, 25, random.Random(0))
    check_nothing_is_left(server)


@pytest.mark.slow
def test_a_thousand_aborted_streams_leave_nothing_behind(server):
    abort(server, 200, random.Random(1))
    check_nothing_is_left(server)
    before = resident()
    abort(server, 1000, random.Random(2))
    check_nothing_is_left(server)
    assert resident() - before < 20 << 20


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/completions", "prompt", {"prompt": ["x", "y" * 10**5]}),
        ("/v1/embeddings", "input", {"input": "y" * 10**5}),
        ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "y" * 10**5}]}),
        ("/v1/responses", "input", {"input": "y" * 10**5, "truncation": "auto"}),
        (
            "/v1/responses",
            "input",
            {"input": "y", "instructions": "y" * 10**5, "truncation": "auto"},
        ),
        (
            "/v1/chat/completions",
            "messages",
            {
                "messages": [{"role": "user", "content": "y" * 10**5}, {"role": "assistant", "content": "y"}],
                "truncation": "auto",
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
    ],
)
def test_a_text_that_the_context_cannot_hold_is_refused_before_it_is_encoded(monkeypatch, path, field, body):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *given: pytest.fail("it was encoded"))
    monkeypatch.setattr(ChatTemplate, "encode", lambda *given, **options: pytest.fail("it was encoded"))
    model = ServedModel("small", BatchingEngine(small_network(), ByteTokenizer()), ChatTemplate("{{ messages }}"))
    with TestClient(make_app([model], hosts=("testserver",))) as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert "the text has 100,000 bytes" in error["message"]


def test_long_requests_leave_threads_for_short_ones(server, monkeypatch):
    go_on, real = threading.Event(), app_module.detokenized

    def held(model, body):
        go_on.wait(60)
        return real(model, body)

    monkeypatch.setattr(app_module, "detokenized", held)
    long = {"tokens": [120] * 20_000}
    with ThreadPoolExecutor(50) as clients:
        waiting = [clients.submit(httpx.post, f"{server.url}/detokenize", json=long, timeout=60) for _ in range(50)]
        try:
            while LONG_REQUESTS._work_queue.qsize() < 48:
                time.sleep(0.01)
            short = httpx.post(f"{server.url}/tokenize", json={"prompt": "x"}, timeout=10)
            assert short.json()["tokens"] == [120]
            assert not any(future.done() for future in waiting)
        finally:
            go_on.set()
        assert {future.result().json()["prompt"] for future in waiting} == {"x" * 20_000}


def test_the_name_of_an_unknown_field_may_be_long():
    """It is compared with known names, and quoted, by its beginning."""
    model = ServedModel("small", BatchingEngine(small_network(), ByteTokenizer()))
    with TestClient(make_app([model], hosts=("testserver",))) as client:
        answer = client.post("/v1/completions", json={"prompt": "x", "temperatur" + "e" * 10**6: 2})
    assert answer.status_code == 400
    assert len(answer.content) < 1000
    assert "there is no field 'temperatureeee" in answer.json()["error"]["message"]


def test_what_takes_long_is_computed_beside_the_event_loop(server, monkeypatch):
    """Streams of others go on while a large body is read and while ids are decoded."""
    loops = []

    def in_thread(function):
        def noted(*given):
            loops.append(asyncio._get_running_loop())
            return function(*given)

        return noted

    monkeypatch.setattr(json_bodies, "parse_json", in_thread(json_bodies.parse_json))
    monkeypatch.setattr(app_module, "detokenized", in_thread(app_module.detokenized))
    answer = httpx.post(f"{server.url}/detokenize", json={"tokens": [120] * 10**5})
    assert answer.json() == {"prompt": "x" * 10**5}
    assert loops == [None, None]
