"""What the server refuses before it reads a request: each line of the table of faults that other servers have."""

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.serve.conftest import small_network

from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.connection import GuardedConnection
from pellucid.serve.limits import Limits
from pellucid.serve.served import ServedModel
from pellucid.serve.server import (
    DrainingServer,
    ServeError,
    check_address,
    check_host_name,
    check_origin,
    listen_on,
    listen_on_each,
    model_names_of,
    read_key,
    server_config,
)
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


def test_pages_of_an_allowed_origin_ask_and_read_answers():
    """A browser asks first without the key; refusals are read too, and pages of other origins read nothing."""
    origin, right = "https://app.example.org", {"Authorization": f"Bearer {KEY}"}
    with TestClient(make_app([], key=KEY, hosts=("testserver",), origins=(origin,))) as client:
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        first = client.options("/v1/completions", headers={"Origin": origin} | asked)
        assert first.status_code == 200
        assert "x-stainless-os" in first.headers["access-control-allow-headers"]
        # there is no model yet, which only a request that is let through hears
        for headers, status in (({}, 401), (right, 503)):
            answer = client.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": origin} | headers)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == origin
        for other in ("https://app.example.org.evil.example", "http://app.example.org", "null"):
            assert client.options("/v1/completions", headers={"Origin": other} | asked).status_code == 400
            answer = client.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": other} | right)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
            advice = f"not answered; start the server with --allow-origin {other} to answer them"
            assert (advice in answer.json()["error"]["message"]) == (other != "null")


def test_an_origin_that_no_browser_sends_is_refused():
    for origin in ("https://app.example.org", "http://localhost:3000", "http://[::1]:3000", "app://obsidian.md"):
        check_origin(origin)
    for origin in (
        "*",
        "null",
        "",
        "app.example.org",
        "https://app.example.org/",
        "https://App.example.org",
        "http://a:80",
    ):
        with pytest.raises(ServeError, match=r"--allow-origin .* is no origin that a browser sends: give scheme"):
            check_origin(origin)


@pytest.mark.parametrize("host", ["fd00::5", "[fd00::5]", "FD00::5", "Models.Example.org", "models.example.org"])
def test_addresses_of_ipv6_and_names_in_capital_letters_are_answered(host):
    name = "[fd00::5]" if ":" in host else "models.example.org"
    with TestClient(make_app([], hosts=(host,))) as client:
        for sent in (name, name.upper(), f"{name}:8000"):
            headers = {"Host": sent, "Origin": f"http://{sent}"}
            # there is no model yet, which only a request that is let through hears
            assert client.post("/v1/completions", json={"prompt": "x"}, headers=headers).status_code == 503


@pytest.mark.parametrize("host", ["[fd00::6]", "[fd00::5", "fd00::5", "[fd00::5].example.org", "example.org"])
def test_other_names_are_refused_beside_an_address_of_ipv6(host):
    with TestClient(make_app([], hosts=("fd00::5", "models.example.org"))) as client:
        answer = client.post("/v1/completions", json={"prompt": "x"}, headers={"Host": host})
        assert answer.status_code == 421
        headers = {"Host": "models.example.org", "Origin": f"http://{host}"}
        answer = client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
        assert answer.status_code == 403


def test_a_name_that_no_header_can_match_is_refused():
    for name in ("models.example.org", "Localhost", "192.168.1.5", "fd00::5", "[fd00::5]", "my_machine-2"):
        check_host_name(name)
    for name in ("models.example.org:8833", "https://b.example", "b.example/", "[fd00::5]:80", "*.example.org", ""):
        with pytest.raises(ServeError, match=r"--host .* give the name alone, without a scheme and without a port"):
            check_host_name(name)


def test_a_body_that_is_too_long_is_refused_whether_or_not_it_says_so(server):
    url = f"{server.url}/v1/completions"
    headers = {"Content-Type": "application/json"}
    assert httpx.post(url, content=b"x" * (2**20 + 1), headers=headers).status_code == 413
    chunks = (b"x" * 2**16 for _ in range(32))
    assert httpx.post(url, content=chunks, headers=headers).status_code == 413


def test_a_body_of_many_texts_to_embed_may_be_longer(server):
    url, headers = f"{server.url}/v1/embeddings", {"Content-Type": "application/json"}
    answer = httpx.post(url, content=b'{"input": "x"}' + b" " * 2**21, headers=headers)
    assert answer.status_code == 200, answer.text
    refused = httpx.post(url, content=b"x" * (2**24 + 1), headers=headers)
    assert refused.status_code == 413
    assert "the body is longer than 16,777,216 bytes" in refused.text


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


def resolved(monkeypatch, *addresses: str) -> None:
    """Let every name have these IPv4 addresses."""
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *name, **options: entries)


def test_every_address_of_a_name_that_this_machine_has_is_listened_at(monkeypatch):
    # the second is one of those that are reserved for documentation
    resolved(monkeypatch, "127.0.0.1", "192.0.2.1", "127.0.0.1")
    (listening,) = listen_on_each("here", 0)
    with listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    resolved(monkeypatch, "192.0.2.1")
    with pytest.raises(ServeError, match="--listen there is no address of this machine: give one that it has"):
        listen_on_each("there", 0)


def test_a_name_or_a_port_that_cannot_be_used_is_refused(monkeypatch):
    with listen_on("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for listen in (listen_on, listen_on_each):
            with pytest.raises(ServeError, match=f"port {port} of 127.0.0.1 cannot be used"):
                listen("127.0.0.1", port)

    def unknown(*name, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ServeError, match=r"--listen nowhere is a name without an address \(Name or service not known"):
        listen_on_each("nowhere", 0)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key(file) == KEY
    monkeypatch.setenv("PELLUCID_API_KEY", "from the environment")
    assert read_key(None) == "from the environment"
    file.write_text("\n")
    with pytest.raises(ServeError, match="is empty"):
        read_key(file)
    file.write_bytes(b"\xef\xbb\xbfsecret\r\n")
    assert read_key(file) == "secret"


@pytest.mark.parametrize("key", [b"first\nsecond", "Schl\xfcssel".encode(), b"\xfc", "secret".encode("utf-16")])
def test_a_key_that_no_client_can_send_is_refused_with_its_source(key, tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_bytes(key)
    with pytest.raises(ServeError, match=f"--api-key-file {file} holds more than one line, or other characters"):
        read_key(file)
    monkeypatch.setenv("PELLUCID_API_KEY", "first\nsecond")
    with pytest.raises(ServeError, match="PELLUCID_API_KEY holds more than one line"):
        read_key(None)


def test_models_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_names_of(["."], None) == [tmp_path.name]
    assert model_names_of(["runs/a", "runs/b"], None) == ["a", "b"]
    assert model_names_of(["runs/a", "other/a"], "one, two") == ["one", "two"]
    with pytest.raises(ServeError, match="give each model a name of its own"):
        model_names_of(["runs/a", "other/a"], None)


def test_while_models_are_loaded_requests_are_told_to_wait():
    models: list[ServedModel] = []
    with TestClient(make_app(models, hosts=("testserver",))) as client:
        assert client.get("/health").status_code == 503
        # a page that asked for the list and got an empty one would not ask again
        for answer in (client.post("/v1/completions", json={"prompt": "x"}), client.get("/v1/models")):
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
            assert answer.json()["error"]["code"] == "model_loading"
        engine = BatchingEngine(small_network(), ByteTokenizer())
        engine.start()
        models.append(ServedModel("small", engine))
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["small"]


def test_the_address_is_announced_when_requests_are_answered():
    models: list[ServedModel] = []
    announced: list[int] = []

    def load():
        yield ServedModel("small", BatchingEngine(small_network(), ByteTokenizer()))

    config = server_config(make_app(models))
    DrainingServer(config, models, load, lambda: announced.append(len(models)), 1.0).load_models()
    models[0].engine.drain(0)
    assert announced == [1]


def test_whether_the_server_is_there_can_be_asked_without_a_body(guarded):
    for path in ("/health", "/", "/page/main.js"):
        answer = guarded.head(path)
        assert answer.status_code == 200
        assert answer.content == b""


def test_the_list_of_routes_has_the_shape_of_errors_that_is_sent(guarded):
    paths = guarded.get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()["paths"]
    for methods in paths.values():
        for route in methods.values():
            assert "422" not in route["responses"]
            shape = route["responses"]["default"]["content"]["application/json"]["schema"]
            assert shape == {"$ref": "#/components/schemas/ErrorBody"}


@pytest.fixture
def quick(monkeypatch):
    """Connections that are closed soon after they were refused."""
    monkeypatch.setattr(GuardedConnection, "linger_seconds", 0.05)


def exchanged(server, *pieces: bytes) -> bytes:
    """What the server answers to these bytes, up to where it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while received := connection.recv(2**16):
            answer += received
        return answer


def test_headers_that_do_not_end_are_refused_by_their_status(server, quick):
    """h11's own bound answers before the head is complete; uvicorn alone would answer 400."""
    answer = exchanged(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x" * 2**20)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in answer


def test_what_is_no_http_is_refused_in_our_shape(server, quick):
    answer = exchanged(server, b"\x16\x03\x01 nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in answer


def test_a_head_that_does_not_arrive_is_not_waited_for(server, quick, monkeypatch):
    monkeypatch.setattr(GuardedConnection, "head_seconds", 0.1)
    answer = exchanged(server, b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert exchanged(server) == b""
    # a connection that is used again begins anew
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    answer = exchanged(server, request + b"\r\n", request)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer
    with httpx.Client(base_url=server.url) as client:
        assert [client.get("/health").status_code for _ in range(3)] == [200] * 3
        time.sleep(0.2)
        assert client.get("/health").status_code == 200


def test_connections_that_ask_for_nothing_make_room_for_others(server, monkeypatch):
    """The one that has waited for the longest is closed, and one that was answered has waited since its answer."""
    monkeypatch.setattr(server.instance.config.http_protocol_class, "most_connections", 8)
    host, port = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(httpx.Client(base_url=server.url))
        idle = []
        for n in range(40):
            idle.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=30)))
            if n % 4 == 0:
                assert used.get("/health").status_code == 200
        assert len(server.instance.server_state.connections) <= 8
        assert idle[0].recv(1) == b""
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_connection_is_refused_where_all_others_are_being_answered(server, quick, monkeypatch):
    monkeypatch.setattr(server.instance.config.http_protocol_class, "most_connections", 1)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    connections = server.instance.server_state.connections
    # one that another test left would make room for the one that is to be refused
    while connections:
        time.sleep(0.01)
    with socket.create_connection((host, int(port)), timeout=30) as answered:
        answered.sendall(head)
        while not any(connection.cycle for connection in list(connections)):
            time.sleep(0.01)
        answer = exchanged(server)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in answer
        answered.sendall(b'{"prompt": "x"}')
        assert answered.recv(2**16).startswith(b"HTTP/1.1 200 ")


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)


@pytest.mark.parametrize("size", [1, 2**16, 2**20 + 1])
@pytest.mark.parametrize("wait", [0, 0.1])
def test_a_chunked_body_that_breaks_has_one_answer(server, quick, size, wait, caplog):
    """Whether it is too long already or not, and whether it breaks at once or later."""
    host, port = server.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(CHUNKED + b"\r\n%x\r\n" % size + b"x" * size + (b"" if wait else b"\r\nno size\r\n"))
        if wait:
            time.sleep(wait)
            connection.sendall(b"\r\nno size\r\n")
        while received := connection.recv(2**16):
            answer += received
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    assert answer[9:12] in (b"400", b"413", b""), answer
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(server):
    answer = exchanged(server, CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"two_lengths" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_an_offer_to_change_the_protocol_is_not_taken_up_and_prints_nothing(server, caplog):
    offer = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "eA==",
    }
    assert httpx.get(f"{server.url}/health", headers=offer).status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
