"""The inspector's server: who it answers, what it keeps, and the tensors that it sends."""

import base64
import io
import json
import re
import socket
import threading

import httpx
import numpy as np
import pytest
import torch
from fastapi.routing import APIRoute
from starlette.testclient import TestClient
from tests.look.conftest import TEXT, looking, small_model

from pellucid.cli import main
from pellucid.look.app import look_files, make_look_app
from pellucid.look.session import MAX_RESULTS, PromptBody, Session

KEY = "a key of its own"


def api_routes(app):
    """Every route under /api/ as (method, path), with its parameters filled in."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path.startswith("/api/"):
            path = route.path
            for name in route.param_convertors:
                path = path.replace(f"{{{name}}}", "1").replace(f"{{{name}:path}}", "1")
            yield from ((method, path) for method in route.methods)


def test_every_route_refuses_foreign_hosts_missing_keys_and_other_pages(model):
    app = make_look_app(Session(model), key=KEY)
    held = {"Authorization": f"Bearer {KEY}"}
    routes = list(api_routes(app))
    assert len(routes) >= 3
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for method, path in routes:
            body = {"json": {}} if method == "POST" else {}
            rebound = client.request(method, path, headers=held | {"Host": "evil.example"}, **body)
            assert rebound.status_code == 421, path
            assert client.request(method, path, **body).status_code == 401, path
            wrong = client.request(method, path, headers={"Authorization": "Bearer other"}, **body)
            assert wrong.status_code == 401, path
            if method == "POST":
                foreign = client.post(path, json={}, headers=held | {"Origin": "http://evil.example"})
                assert foreign.status_code == 403, path
                plain = client.post(path, content="{}", headers=held | {"Content-Type": "text/plain"})
                assert plain.status_code == 415, path


def imported(files, script):
    """A script and the ones that it imports at once, and so on."""
    names = {script}
    for name in re.findall(r'^(?:import|}) .*from "./(\w+\.js)";', files.contents[script].decode(), re.MULTILINE):
        names |= imported(files, name)
    return names


def test_the_files_need_no_key_and_fit_their_budget(model):
    files = look_files()
    with TestClient(make_look_app(Session(model), key=KEY), base_url="http://127.0.0.1") as client:
        for path in files.paths:
            answer = client.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            name = path.removeprefix("/page/") if path != "/" else "index.html"
            assert int(answer.headers["content-length"]) == len(files.compressed[name])
            plain = client.get(path, headers={"Accept-Encoding": "identity"})
            assert plain.content == answer.content == files.contents[name]
            assert "content-encoding" not in plain.headers
        assert client.get("/page/another").status_code == 401
    # what a browser is sent by all pages together, and their source; docs/look.md says both
    assert sum(map(len, files.compressed.values())) <= 90_000
    assert sum(map(len, files.contents.values())) <= 245_000
    # what it is sent for one page, and its source
    for page in re.findall(r'import\("./(\w+\.js)"\)', files.contents["shell.js"].decode()):
        loaded = (
            imported(files, "shell.js")
            | imported(files, page)
            | {"index.html", "look.css", "common.css", "common_print.css"}
        )
        assert sum(len(files.contents[name]) for name in loaded) <= 150_000, page
        assert sum(len(files.compressed[name]) for name in loaded) <= 50_000, page
    for name, content in files.contents.items():
        text = content.decode("utf-8").replace("http://www.w3.org/", "")
        for way in ("http:", "https:", "@import", "eval(", "document.write"):
            assert way not in text, (name, way)
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML"):
            assert name == "preact.js" or way not in text, (name, way)


@pytest.fixture(scope="module")
def client(model):
    with TestClient(make_look_app(Session(model, name="small")), base_url="http://127.0.0.1") as client:
        yield client


def traced(client, text=TEXT, **options):
    answer = client.post("/api/trace", json={"text": text, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def tensor(client, trace, name, **query):
    answer = client.get(f"/api/t/{trace['id']}/x/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(base64.b64decode(answer.json()["arrays"]["tensor"])))


def test_tensors_are_those_of_the_trace(client, model):
    sent, trace = traced(client), model.trace(TEXT)
    assert [token["text"] for token in sent["tokens"]] == trace.tokens
    assert sent["surprisal"][0] is None
    np.testing.assert_allclose(sent["surprisal"][1:], trace.surprisal()[0], rtol=1e-6)
    for name in ("embed", "blocks.1.attn.pattern", "blocks.0.mlp.post", "logits", "final_norm.scale"):
        np.testing.assert_array_equal(tensor(client, sent, name), trace[name][0].numpy())
    np.testing.assert_array_equal(
        tensor(client, sent, "blocks.1.attn.q", head=1, pos=-2), trace["blocks.1.attn.q"][0, 1, -2].numpy()
    )
    top = sent["top"][-1]
    assert [(one["text"], pytest.approx(one["p"], rel=1e-5)) for one in top] == trace.top(k=10)


def test_of_a_long_prompt_the_last_tokens_are_shown_and_an_empty_one_is_answered_in_a_sentence(client, model):
    n_ctx, text = model.architecture.n_ctx, TEXT * 50
    sent, ids = traced(client, text), model.tokenizer.encode(text)
    assert (
        sent["note"] == f"This text has {len(ids):,} tokens; this model reads {n_ctx:,}: the last {n_ctx:,} are shown."
    )
    assert [token["id"] for token in sent["tokens"]] == ids[-n_ctx:]
    namespace = {"model": model}
    exec(sent["code"], namespace)
    assert namespace["trace"].ids[0].tolist() == ids[-n_ctx:]
    assert client.get(f"/api/t/{sent['id']}/tokens/pieces").status_code == 200
    assert "note" not in traced(client)
    empty = client.post("/api/trace", json={"text": ""})
    assert empty.json()["error"]["message"].startswith("text 0 has no token: give some text")


def test_what_does_not_exist_is_refused_with_the_reason(client):
    sent = traced(client)
    path = f"/api/t/{sent['id']}/x"
    absent = client.get(f"{path}/blocks.0.attn.rot_q")
    assert absent.status_code == 404
    assert "rotates nothing" in absent.json()["error"]["message"]
    assert client.get(f"{path}/embed", params={"head": 0}).status_code == 400
    assert client.get(f"{path}/embed", params={"pos": 999}).status_code == 400
    assert client.get("/api/t/0123/x/embed").status_code == 410
    assert client.post("/api/trace", json={"text": "a", "chekpoint": "3"}).status_code == 400
    assert client.post("/api/trace", json={"text": ""}).status_code == 400
    unknown = client.post("/api/trace", json={"text": "a", "checkpoint": "3"})
    assert "has checkpoints of the steps none" in unknown.json()["error"]["message"]


def test_edits_are_part_of_a_trace(client, model):
    from pellucid.edits import zero

    edit = {"op": "zero", "name": "blocks.0.attn.z", "head": [1]}
    plain, edited = traced(client), traced(client, edits=[edit])
    assert plain["id"] != edited["id"]
    want = model.trace(TEXT, edits=[zero("blocks.0.attn.z", head=1)])
    np.testing.assert_array_equal(tensor(client, edited, "logits"), want.logits[0].numpy())
    assert edited["edits"] == [edit]


def test_the_copied_code_makes_the_same_trace(client, model):
    sent = traced(client, bos=True)
    names = {"model": model}
    exec(sent["code"], names)
    assert names["trace"].tokens == [token["text"] for token in sent["tokens"]]


def test_traces_are_kept_within_a_budget(model):
    session = Session(model, budget=12_000)
    keys = []
    for k in range(6):
        prompt = PromptBody(text=TEXT + "x" * k)
        session.trace(prompt)
        keys.append(prompt.key())
    assert keys[-1] in session.traces
    assert keys[0] not in session.traces
    assert sum(trace.nbytes for _, trace in session.traces.values()) <= 12_000
    again = session.trace(PromptBody(text=TEXT))
    assert torch.equal(again.logits, model.trace(TEXT).logits)


def test_results_by_visitors_texts_are_bounded_and_the_latest_stay(model):
    session, computed = Session(model), []

    def scores(text):
        return session.once(("heads", None, text), lambda: computed.append(text) or text)

    for k in range(3 * MAX_RESULTS):
        assert scores(f"text {k}") == f"text {k}"
        scores("text 0")
    assert len(session.of_weights) <= MAX_RESULTS
    assert computed.count("text 0") == 1


def test_a_program_that_changes_the_weights_is_shown_the_new_ones():
    own = small_model()
    client = TestClient(make_look_app(Session(own)), base_url="http://127.0.0.1")
    sent, heads = traced(client), client.get("/api/w/heads").json()
    own.network.blocks[1].attn.out.weight.data.mul_(0.5)
    gone = client.get(f"/api/t/{sent['id']}/x/blocks.1.attn.z")
    assert gone.status_code == 410
    assert "has changed since this trace was made" in gone.json()["error"]["message"]
    assert client.get("/api/w/heads").json() != heads
    again = traced(client)
    np.testing.assert_array_equal(tensor(client, again, "logits"), own.trace(TEXT).logits[0].numpy())


def test_checkpoints_are_opened_when_they_are_asked_for():
    opened = small_model()
    opened.provenance["step"] = 20
    session = Session(opened, load=lambda step: small_model(seed=step), steps=(10, 20))
    assert session.model("20") is opened
    assert session.model() is opened
    other = session.model("10")
    assert session.model("10") is other
    assert not torch.equal(session.trace(PromptBody(text=TEXT, checkpoint="10")).logits, opened.trace(TEXT).logits)


def test_streams_are_lines_and_end_with_the_error(model):
    session = Session(model)
    app = make_look_app(session)
    closed = []

    def objects(fail):
        try:
            yield {"cell": 1}
            if fail:
                raise ValueError("no such cell")
            yield {"cell": 2}
        finally:
            closed.append(fail)

    @app.get("/api/lines")
    async def lines(fail: bool):
        return session.stream(objects(fail))

    with TestClient(app, base_url="http://127.0.0.1") as client:
        good = [json.loads(line) for line in client.get("/api/lines", params={"fail": False}).text.splitlines()]
        bad = [json.loads(line) for line in client.get("/api/lines", params={"fail": True}).text.splitlines()]
    assert good == [{"cell": 1}, {"cell": 2}]
    assert bad == [{"cell": 1}, {"error": "no such cell", "status": 400}]
    session.thread.submit(lambda: None).result()
    assert closed == [False, True]


@pytest.mark.parametrize("path", ["stream/lens", "tokens/ngrams", "tokens/written", "attention/attn"])
def test_a_stream_finds_its_trace_in_the_thread_before_it_begins(model, monkeypatch, path):
    """So a trace that is no longer kept is refused with 410, which has the page ask for it again."""
    session, threads = Session(model), []
    kept = session.kept_reading

    def noted(trace_id):
        threads.append(threading.current_thread().name)
        return kept(trace_id)

    monkeypatch.setattr(session, "kept_reading", noted)
    with TestClient(make_look_app(session), base_url="http://127.0.0.1") as client:
        assert client.get(f"/api/t/{traced(client)['id']}/{path}").status_code == 200
        assert client.get(f"/api/t/{'0' * 24}/{path}").status_code == 410
    assert threads
    assert all(name.startswith("pellucid look") for name in threads)


def test_a_long_answer_that_came_to_its_end_is_kept(model):
    session = Session(model)
    begun = []

    def lines():
        begun.append(1)
        yield {"layer": 0}
        yield {"layer": 1}

    early = session.kept_lines("key", lines())
    next(early)
    early.close()
    for _ in range(2):
        assert list(session.kept_lines("key", lines())) == [{"layer": 0}, {"layer": 1}]
    assert len(begun) == 2
    for other in range(8):
        list(session.kept_lines(other, iter([])))
    assert "key" not in session.answers


def test_a_model_looks_at_itself(model):
    inspector = model.look(TEXT)
    try:
        assert httpx.get(inspector.url.partition("#")[0] + "api/model").json()["n_layers"] == 2
        frame = httpx.get(inspector.url.partition("#")[0]).headers["content-security-policy"]
        assert "frame-ancestors http://127.0.0.1:* http://localhost:*" in frame
        assert "<iframe" in inspector._repr_html_()
    finally:
        inspector.close()


def test_with_a_key_the_page_asks_for_it(model, browser):
    with looking(Session(model), key=KEY) as guarded:
        page = browser.new_page()
        page.goto(guarded.url)
        page.fill("input[type=password]", KEY)
        page.click("button:has-text('Use the key')")
        page.wait_for_selector("html[data-ready]:not([data-ready=''])")
        page.close()


def test_the_command_opens_a_model_or_says_why_not(model, tmp_path, monkeypatch, capsys):
    opened = []

    def keep(session, listening, **options):
        opened.append((session, options))
        listening.close()

    monkeypatch.setattr("pellucid.look.server.run_look", keep)
    model.save(tmp_path / "model")
    assert main(["look", str(tmp_path / "model"), "--port", "0", "--no-browser", "--device", "cpu"]) == 0
    assert main(["look", "--port", "0"]) == 0
    (saved, quiet), (known, shown) = opened
    assert torch.equal(saved.opened.trace(TEXT).logits, model.trace(TEXT).logits)
    assert (quiet["browser"], shown["browser"]) == (False, True)
    assert quiet["hosts"] == ("127.0.0.1", "localhost", "[::1]")
    assert known.opened.tokenizer is not None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["look", str(tmp_path / "model"), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err
    assert main(["look", str(tmp_path / "nothing" / "there")]) == 2
    assert len(opened) == 2
