"""What the server refuses before it reads a request: each line of the table of faults that other servers have."""

import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.limits import Limits
from pellucid.serve.served import ServedModel
from pellucid.serve.server import ServeError, check_address, model_names_of, read_key
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

KEY = "a key of its own"


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestClient]:
    """An application with a key, without a socket."""
    app = make_app(
        [ServedModel("small", BatchingEngine(small_network(), ByteTokenizer()))], key=KEY, hosts=("testserver",)
    )
    with TestClient(app) as client:
        yield client


def test_every_route_but_health_and_the_page_asks_for_the_key(guarded):
    wrong = {"Authorization": "Bearer another"}
    paths = [route.path for route in guarded.app.routes]
    assert "/v1/completions" in paths
    for route in guarded.app.routes:
        for method in route.methods - {"HEAD"}:
            path = route.path.replace("{name:path}", "small").replace("{name}", "another.js")
            for headers in ({}, wrong):
                status = guarded.request(
                    method, path, headers=headers, json={} if method == "POST" else None
                ).status_code
                assert (status == 401) == (path not in ("/health", "/")), (method, path)
    right = {"Authorization": f"Bearer {KEY}"}
    assert guarded.get("/v1/models", headers=right).status_code == 200


def test_errors_have_the_shape_that_clients_read(guarded):
    error = guarded.get("/v1/models").json()["error"]
    assert error == {
        "message": "the key is missing or wrong: send Authorization: Bearer KEY",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"X-Long": "x" * 20_000}, 431),
    ],
)
def test_a_request_from_elsewhere_is_refused(guarded, headers, status):
    right = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    answer = guarded.post("/v1/completions", content=b'{"prompt": "x"}', headers=right | headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_body_that_is_too_long_is_refused_whether_or_not_it_says_so(server):
    url = f"{server.url}/v1/completions"
    headers = {"Content-Type": "application/json"}
    assert httpx.post(url, content=b"x" * (2**20 + 1), headers=headers).status_code == 413
    chunks = (b"x" * 2**16 for _ in range(32))
    assert httpx.post(url, content=chunks, headers=headers).status_code == 413


def test_a_body_that_does_not_arrive_is_not_waited_for():
    waited = []

    async def application(scope, receive, send):
        waited.append(await receive())

    async def slow():
        import asyncio

        await asyncio.sleep(60)

    async def answer():
        sent = []

        async def send(message):
            sent.append(message)

        limits = Limits(application, hosts=("here",), key=None, seconds=0.05)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"host", b"here"), (b"content-type", b"application/json"), (b"content-length", b"100")],
        }
        await limits(scope, slow, send)
        return sent

    import asyncio

    began = time.monotonic()
    sent = asyncio.run(answer())
    assert sent[0]["status"] == 408
    assert not waited
    assert time.monotonic() - began < 30


def test_deeply_nested_json_is_refused(server):
    content = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = httpx.post(
        f"{server.url}/v1/completions", content=content, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400


def test_hostile_requests_do_not_change_the_answers_of_good_ones(server):
    body = {"prompt": "To be", "max_tokens": 4, "temperature": 0}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        expected = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        hostile = [
            {"prompt": [10**9]},
            {"prompt": "x", "n": 10**9},
            {"prompt": "x" * 10_000},
            {"prompt": {"a": 1}},
            {"prompt": "x", "temperature": "hot"},
            [],
            {"prompt": "x", "max_tokens": -1},
        ]
        for wrong in hostile * 3:
            assert client.post("/v1/completions", json=wrong).status_code == 400
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected


def test_a_connection_that_says_nothing_harms_nobody(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_other_machines_need_a_key():
    check_address("127.0.0.1", None)
    check_address("::1", None)
    check_address("0.0.0.0", KEY)
    for address in ("0.0.0.0", "192.168.1.5", "::"):
        with pytest.raises(ServeError, match="give a key by --api-key-file"):
            check_address(address, None)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key(file) == KEY
    monkeypatch.setenv("PELLUCID_API_KEY", "from the environment")
    assert read_key(None) == "from the environment"
    file.write_text("\n")
    with pytest.raises(ServeError, match="is empty"):
        read_key(file)


def test_models_have_names_of_their_own():
    assert model_names_of(["runs/a", "runs/b"], None) == ["a", "b"]
    assert model_names_of(["runs/a", "other/a"], "one, two") == ["one", "two"]
    with pytest.raises(ServeError, match="give each model a name of its own"):
        model_names_of(["runs/a", "other/a"], None)
