"""The wheel in environments of its own, without a compiler and without git: what is there works, and what is missing is
named with the command that installs it. `make test-slow` and `make test-floor` make the environments.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.wheel_environments import ENVIRONMENTS, lowest_versions

pytestmark = pytest.mark.slow
SIZES = ["d_model=16", "n_layers=1", "n_ctx=32", "attention.n_heads=2", "attention.d_head=8", "batch=4"]
TRAIN = ["train", "text.txt", "--vocabulary", "270", *(word for s in SIZES for word in ("--set", s))]


class Installed:
    """The command `pellucid` of an environment, in a folder of its own."""

    def __init__(self, name: str, folder: Path):
        self.bin, self.folder = ENVIRONMENTS / name / ("Scripts" if sys.platform == "win32" else "bin"), folder
        (folder / "text.txt").write_text("To be, or not to be, that is the question.\n" * 200, encoding="utf-8")
        (folder / "empty").mkdir()
        kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP") if name in os.environ}
        # no compiler and no git; caches of its own
        self.environment = kept | {
            "PATH": str(folder / "empty"),
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [str(self.bin / "pellucid"), *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str, code: int = 0) -> str:
        """What a command prints on both streams; it must end with this code."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=200)
        assert process.returncode == code, err
        return out + err

    def python(self, code: str) -> str:
        command = [str(self.bin / "python"), "-I", "-c", code]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def core(tmp_path, needs_installed) -> Installed:
    return Installed("locked", tmp_path)


@pytest.fixture
def lowest(tmp_path, needs_installed) -> Installed:
    return Installed("lowest", tmp_path)


def check_core(installed: Installed) -> None:
    """Train, go on with a run, generate, score, look at a page, convert, verify."""
    installed.run(*TRAIN, "--out", "run", "--steps", "20")
    installed.run("train", "--resume", "--out", "run", "--steps", "30")
    first = installed.run("generate", "run", "To be", "--seed", "1", "--max-tokens", "20")
    assert first == installed.run("generate", "run", "To be", "--seed", "1", "--max-tokens", "20")
    assert "bits per byte" in installed.run("score", "run", "text.txt")
    installed.run("inspect", "run", "To be, or not to be")
    assert (installed.folder / "page.html").stat().st_size > 10_000
    installed.run("convert", "run", "exported")
    assert (installed.folder / "exported" / "model.safetensors").exists()
    installed.run("verify", "run")


def test_the_core_trains_generates_and_names_the_extras_that_it_lacks(core):
    check_core(core)
    assert "pip install 'pellucid[serve]'" in core.run("serve", "run", code=2)
    assert "pip install 'pellucid[look]'" in core.run("look", "run", code=2)
    assert "pip install 'pellucid[gguf]'" in core.run("convert", "run", "run.gguf", code=2)
    assert "pip install 'pellucid[track]'" in core.run(*TRAIN, "--out", "tracked", "--set", "track=wandb", code=2)
    (core.folder / "table.parquet").write_bytes(b"PAR1")
    assert "pip install 'pellucid[data]'" in core.run("read", "table.parquet", code=2)
    said = core.run("doctor")
    assert re.search(r"missing: .*uvicorn.*, for pellucid serve: pip install 'pellucid\[serve\]'", said)
    assert "no C++ compiler" in said


def test_the_lowest_versions_train_serve_look_and_convert(lowest):
    names = [line.partition("==") for line in lowest_versions()]
    wanted = {name: version for name, _, version in names}
    code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {list(wanted)}}}))"
    installed = json.loads(lowest.python(code))
    assert all(padded(installed[name]) == padded(version) for name, version in wanted.items()), installed
    check_core(lowest)
    lowest.run("convert", "run", "run.gguf")
    assert lowest.run("generate", "run.gguf", "To be", "--seed", "1", "--max-tokens", "5")
    lowest.python("import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({'text': ['To be']}), 't.parquet')")
    assert "t.parquet" in lowest.run("read", "t.parquet")
    body = {"model": "run", "prompt": "To be", "max_tokens": 5, "seed": 1}
    with answering(lowest, "serve", "run", when="/health") as url:
        answer = ask(f"{url}/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == 5
    with answering(lowest, "look", "run", "--no-browser") as url, urllib.request.urlopen(url, timeout=60) as page:
        assert b"<html" in page.read()


def padded(version: str) -> list[int]:
    """The numbers of a version, as three."""
    return [*map(int, version.split(".")), 0, 0][:3]


@contextmanager
def answering(installed: Installed, *words: str, when: str = "") -> Iterator[str]:
    """The address of a command that answers requests, until the block ends; it begins when this path is answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, ends = f"http://127.0.0.1:{port}", time.monotonic() + 100
    with installed.start(*words, "--port", str(port)) as process:
        try:
            while True:
                assert process.poll() is None, process.communicate()
                try:
                    urllib.request.urlopen(url + when, timeout=20).close()
                    break
                except urllib.error.URLError:  # nobody listens, or models are loaded
                    assert time.monotonic() < ends
                    time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def ask(url: str, body: dict) -> dict:
    """The answer to a request with a body of JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
