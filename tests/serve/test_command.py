"""The command itself: a run is served, a client writes with it, and a signal ends it in order."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest

import pellucid
from pellucid.cli import main
from some_cases import one_in

SHAKESPEARE = Path(__file__).parent.parent / "data" / "shakespeare.txt"
SMALL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "n_ctx": 8, "d_ff": 16, "tokenizer": "byte", "sample_every": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a small run of four kinds."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text(SHAKESPEARE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    pellucid.train(text, out=folder / "transformer", steps=1, fields=SMALL)
    masked = {**SMALL, "objective": "masked", "attention.mask": "bidirectional"}
    pellucid.train(text, out=folder / "masked", steps=1, fields=masked)
    pellucid.train_predictor(text, out=folder / "ngram", kind="ngram", fields={"tokenizer": "byte"})
    pairs = folder / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "".join(f"a{n % 7}\tb{n % 7}\n" for n in range(200)))
    small = {"d_model": 8, "n_layers": 1, "n_heads": 1, "batch": 2, "tokenizer": "byte"}
    pellucid.train(pairs, out=folder / "pairs", steps=1, fields={**small, "objective": "source-target"})
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.fixture
def process(runs):
    """The command and its address, once it answers."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pellucid",
        "serve",
        str(runs / "transformer"),
        "--port",
        str(port),
        "--drain",
        "1",
        "--max-tokens",
        "1000000",
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as running:
        url = f"http://127.0.0.1:{port}"
        for _ in range(1000):
            assert running.poll() is None, running.stderr.read()
            with contextlib.suppress(httpx.ConnectError):
                answer = httpx.get(f"{url}/health")
                assert answer.json()["status"] in ("ok", "loading model")
                if answer.status_code == 200:
                    break
                assert answer.status_code == 503
            time.sleep(0.1)
        yield running, url
        running.kill()


@pytest.mark.parametrize("number", one_in(2, [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_lets_requests_finish_and_then_ends_their_streams(process, number):
    running, url = process
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 3}).json()["choices"][0]["text"]
    lines: list[str] = []
    streaming = threading.Event()

    def read() -> None:
        body = {"prompt": "x", "max_tokens": 10**6, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                streaming.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert streaming.wait(60)
    running.send_signal(number)
    reader.join(60)
    assert running.wait(60) == 0
    events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert "stopped before this request was finished" in last["error"]["message"]
    assert last["status"] == 503
    printed = running.stderr.read()
    assert f"page: {url} (open it in a browser)" in printed
    assert f"curl {url}/v1/completions -H 'Content-Type: application/json' -d '{{" in printed
    assert "stopped" in printed


def until_begun(url: str, n: int) -> None:
    """Wait until so many sequences are read or decoded."""
    for _ in range(600):
        begun = re.findall(r"^pellucid_requests_(?:reading|decoding)\S* (\d+)", httpx.get(f"{url}/metrics").text, re.M)
        if sum(map(int, begun)) >= n:
            return
        time.sleep(0.1)
    raise AssertionError(f"{n} sequences never began")


@pytest.mark.slow
def test_a_second_signal_ends_answers_at_once_and_in_our_shape(process):
    """A stream ends with its error event, and a whole answer with 503 as JSON; nothing else is printed."""
    running, url = process
    body = {"prompt": "x", "max_tokens": 10**6, "temperature": 0}
    whole: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: whole.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60)))
    asking.start()
    with httpx.stream("POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        until_begun(url, 2)
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        events = [line for line in lines if line]
    asking.join(60)
    assert running.wait(60) == 0
    assert events[-1] == "data: [DONE]"
    assert whole[0].status_code == 503
    assert whole[0].json()["error"]["code"] == "server_stopping"
    said = running.stderr.read()
    assert "Traceback" not in said
    assert "rror" not in said


@pytest.mark.slow
def test_idle_connections_beyond_the_limit_of_open_files_block_nobody(runs):
    """They had flooded stderr with tracebacks, and nobody else was answered."""
    limit, port = 160, free_port()
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
    code += (
        f"from pellucid.cli import main; sys.exit(main(['serve', {str(runs / 'transformer')!r}, '--port', '{port}']))"
    )
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen([sys.executable, "-c", code], stderr=said) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(1000):
            assert running.poll() is None
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            time.sleep(0.1)
        for _ in range(2 * limit):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200
        running.send_signal(signal.SIGTERM)
        running.wait(60)
        said.seek(0)
        assert b"out of system resource" not in said.read()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["runs/none"], "nothing is there"),
        (["transformer", "--listen", "0.0.0.0"], "give a key by --api-key-file"),
        (["transformer", "--host", "models.example.org:8833"], "give the name alone"),
        (["transformer", "transformer"], "give each model a name of its own"),
        (["transformer", "--port", "0"], "expected a port from 1 to 65535"),
        (["transformer", "--memory", "0.0000001"], "give at least"),
        (["transformer", "--mix-weight", "0.5"], "needs --mix"),
        (["transformer", "--mix", "ngram", "--weights", "int8"], "--weights int8 works on a transformer"),
        (["ngram", "--weights", "int8"], "--weights int8 works on a transformer"),
        (["masked", "--weights", "int8"], "is a masked model"),
        (["ngram", "--memory", "2"], "--memory limits keys and values of running requests, and a predictor of kind"),
        (["ngram", "--prefix-memory", "0.25"], "--prefix-memory limits keys and values of earlier prompts"),
        (["masked", "--memory", "2"], "a model that generates no text keeps none: leave it out"),
        (["pairs", "--prefix-memory", "1"], "an encoder-decoder keeps none: leave it out"),
        (["ngram", "--device", "cuda"], "ngram is an n-gram, which is looked up on the CPU: leave it out"),
        (["ngram", "--mix", "ngram"], "mixes a transformer that generates text"),
        (["transformer", "ngram", "--mix", "ngram"], "it mixes one model with an n-gram"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(runs, arguments, sentence, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    assert main(["serve", "--port", str(free_port()), *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert sentence in said[-1]


def test_a_port_that_is_taken_is_named_before_a_model_is_loaded(runs, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(runs / "transformer"), "--port", str(port)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1 cannot be used" in said
    assert "choose another with --port" in said


def test_a_name_without_an_address_is_named_before_a_model_is_loaded(runs, capsys, monkeypatch):
    monkeypatch.setenv("PELLUCID_API_KEY", "a key")
    # no name may have an empty part, so that nobody is asked for it
    assert main(["serve", str(runs / "transformer"), "--port", str(free_port()), "--listen", "here..invalid"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "--listen here..invalid is a name without an address" in said
    assert "give an address of this machine" in said
