"""The command itself: a run is served, a client writes with it, and a signal ends it in order."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from pellucid.cli import main
from some_cases import one_in

RUN = Path(__file__).parent.parent / "data" / "runs_of_the_first_edition" / "runs" / "transformer"

NGRAM, MASKED = RUN.parent / "ngram", RUN.parent / "masked"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.fixture
def process():
    """The command and its address, once it answers."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pellucid",
        "serve",
        str(RUN),
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
    assert "stopped" in running.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["runs/none"], "nothing is there"),
        ([str(RUN), "--listen", "0.0.0.0"], "give a key by --api-key-file"),
        ([str(RUN), "--host", "models.example.org:8833"], "give the name alone"),
        ([str(RUN), str(RUN)], "give each model a name of its own"),
        ([str(RUN), "--port", "0"], "expected a port from 1 to 65535"),
        ([str(RUN), "--memory", "0.0000001"], "give at least"),
        ([str(RUN), "--mix-weight", "0.5"], "needs --mix"),
        ([str(RUN), "--mix", str(NGRAM), "--speculate", "4"], "--speculate 4 works on a transformer"),
        ([str(NGRAM), "--weights", "int8"], "--weights int8 works on a transformer"),
        ([str(MASKED), "--speculate", "2"], "is a masked model"),
        ([str(NGRAM), "--mix", str(NGRAM)], "mixes a transformer that generates text"),
        ([str(RUN), str(NGRAM), "--mix", str(NGRAM)], "it mixes one model with an n-gram"),
        ([str(RUN.parent / "image-classifier")], "classifies images"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(arguments, sentence, capsys):
    assert main(["serve", "--port", str(free_port()), *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert sentence in said[-1]


def test_a_port_that_is_taken_is_named_before_a_model_is_loaded(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(RUN), "--port", str(port)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1 cannot be used" in said
    assert "choose another with --port" in said


def test_a_name_without_an_address_is_named_before_a_model_is_loaded(capsys, monkeypatch):
    monkeypatch.setenv("PELLUCID_API_KEY", "a key")
    # no name may have an empty part, so that nobody is asked for it
    assert main(["serve", str(RUN), "--port", str(free_port()), "--listen", "here..invalid"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "--listen here..invalid is a name without an address" in said
    assert "give an address of this machine" in said
