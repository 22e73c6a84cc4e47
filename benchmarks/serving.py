"""Serving: tokens per second, time to the first token and between tokens, by the number of clients, beside the peers.

    python -m benchmarks.serving --tokenizer FOLDER [--transformers] [--llama-server PATH] [--clients 1 4 16 64]

Servers run side by side, each in a process, and are asked in turns; whoever is not asked computes nothing. Weights are
random, texts greedy, streams of `--new` tokens through /v1/completions. The clients are one process that reads lines
from sockets, so that they take little of the machine from the server. `small` has 4 layers of width 256 and 4,096 ids;
`gpt2` has GPT-2 small's shape. FOLDER has the vocab.json and merges.txt of GPT-2, whose ids both shapes use.

Then, of ours alone: what a token costs beyond `generate` in this process, by how much a long prompt delays others, and
what a prompt saves that was read before.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

import pellucid
from benchmarks.side_by_side import BenchmarkError, Measured, header, show, spread
from pellucid.generate import Sampling, generate_ids
from pellucid.generate.choose_reader import GenerationRequest, choose_weights
from pellucid.language_model import LanguageModel
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.presets import preset, with_vocabulary
from pellucid.text.tokenizers.tokenizer import Tokenizer

CONTEXT = 1024
WORDS = ("the of and to in a is that for it was on are as with his they at be this from have or by one had not").split()  # noqa: SIM905


@dataclass
class Stream:
    """What a client saw: when it asked, when each piece of text came, and the tokens that the server counted."""

    asked: float
    pieces: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_prompt: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.asked

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]


@dataclass
class Server:
    """A server that runs: its name, its port, and the name of its model."""

    name: str
    port: int
    model: str

    async def stream(self, prompt: str, n_new: int) -> Stream:
        """Ask for a text and read it to its end. Raises BenchmarkError where the server refuses."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": n_new, "temperature": 0, "stream": True}
        if self.name != "transformers":
            body["stream_options"] = {"include_usage": True}
        content = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        seen = Stream(time.perf_counter())
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 200 " not in status:
            raise BenchmarkError(f"{self.name}: {status!r} {(await reader.read(2000))!r}")
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            if event.get("choices") and event["choices"][0].get("text"):
                seen.pieces.append(now)
            if usage := event.get("usage"):
                seen.n_tokens, seen.n_prompt = usage["completion_tokens"], usage["prompt_tokens"]
        writer.close()
        if not seen.pieces or not seen.n_tokens:
            raise BenchmarkError(f"{self.name}: the stream ended without text, or without its number of tokens")
        return seen


def prompt_of(tokenizer: Tokenizer, n: int, seed: int) -> str:
    """A text of about `n` tokens that no other seed begins."""
    words = random.Random(seed).choices(WORDS, k=n)
    return tokenizer.decode(tokenizer.encode(" ".join(words))[:n])


def write_models(folder: Path, name: str, tokenizer_files: Path) -> Path:
    """A model of the shape with random weights in the layout of Hugging Face, which all servers start from."""
    tokenizer = pellucid.load_tokenizer(tokenizer_files)
    a = replace(with_vocabulary(preset("gpt2"), tokenizer.n_vocab), n_ctx=CONTEXT)
    if name == "small":
        a = replace(a, d_model=256, n_layers=4, attention=replace(a.attention, n_heads=4))
    network = initialise(Transformer(a), 0).eval()
    LanguageModel(network, tokenizer, "random weights").save(folder / f"{name}-saved")
    pellucid.convert(folder / f"{name}-saved", folder / name, to="huggingface", compare=False)
    return folder / name


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(name: str, command: Sequence[str], port: int, model: str) -> Iterator[Server]:
    """The server, from when it answers; BenchmarkError with what it printed where it does not."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                if process.poll() is not None:
                    break
                time.sleep(0.2)
            else:
                raise BenchmarkError(f"{name} does not answer")
            if process.poll() is not None:
                log.seek(0)
                raise BenchmarkError(f"{name} ended: {log.read()[-2000:]}")
            yield Server(name, port, model)
        finally:
            process.terminate()
            process.wait(30)


def commands(path: Path, options: argparse.Namespace) -> dict[str, tuple[list[str], int, str]]:
    """Each server's command, port, and name of the model."""
    ports = [free_port() for _ in range(len(options.weights) + 2)]
    servers = {}
    for weights in options.weights:
        port = ports.pop()
        own = [sys.executable, "-m", "pellucid", "serve", str(path), "--port", str(port), "--prefix-memory", "0"]
        servers[f"pellucid {weights}"] = ([*own, "--weights", weights], port, path.name)
    if options.transformers:
        port = ports.pop()
        theirs = ["serve", str(path), "--device", "cpu", "--port", str(port), "--continuous-batching"]
        script = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
        servers["transformers"] = ([sys.executable, "-c", script, *theirs], port, str(path))
    if options.llama_server:
        port = ports.pop()
        gguf = path.with_suffix(".gguf")
        pellucid.convert(path, gguf, to="gguf", compare=False)
        slots = max(options.clients)
        sizes = ["--parallel", str(slots), "--ctx-size", str(slots * CONTEXT), "--threads", str(os.cpu_count())]
        servers["llama.cpp"] = ([options.llama_server, "-m", str(gguf), "--port", str(port), *sizes], port, path.name)
    return servers


async def ask_all(server: Server, prompts: Sequence[str], n_new: int) -> tuple[float, list[Stream]]:
    """Seconds until all clients, who ask at once, have their texts, and what each of them saw."""
    began = time.perf_counter()
    streams = await asyncio.gather(*(server.stream(prompt, n_new) for prompt in prompts))
    return time.perf_counter() - began, list(streams)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(servers: list[Server], options: argparse.Namespace, tokenizer: Tokenizer, shape: str) -> None:
    """The table of every server, number of clients and length of prompts."""
    seed = 0
    for n_prompt in options.prompts:
        rows = []
        for n_clients in options.clients:
            rates = {server.name: Measured(server.name) for server in servers}
            seen: dict[str, list[Stream]] = {server.name: [] for server in servers}
            for number in range(options.rounds + 1):
                for server in servers if number % 2 == 0 else servers[::-1]:
                    seed += n_clients
                    prompts = [prompt_of(tokenizer, n_prompt, seed + k) for k in range(n_clients)]
                    n_new = options.new if number else 8
                    seconds, streams = asyncio.run(ask_all(server, prompts, n_new))
                    if number:
                        rates[server.name].values.append(sum(s.n_tokens for s in streams) / seconds)
                        seen[server.name] += streams
                    print(f"{shape} {n_prompt} {n_clients} {server.name} {seconds:.2f} s", file=sys.stderr, flush=True)
            own = rates[servers[0].name]
            for server in servers:
                firsts = [1e3 * s.first for s in seen[server.name]]
                gaps = [1e3 * gap for s in seen[server.name] for gap in s.gaps] or [float("nan")]
                ratio = rates[server.name].ratio_to(own).median  # own / theirs
                rows.append([
                    f"{n_clients} clients, {server.name}",
                    spread(rates[server.name]),
                    "" if server is servers[0] else f"{ratio:.2f}",
                    f"{statistics.median(firsts):,.0f} / {percentile(firsts, 0.99):,.0f}",
                    f"{statistics.median(gaps):,.1f} / {percentile(gaps, 0.99):,.1f}",
                ])  # fmt: skip
        columns = [
            "",
            "tokens/s",
            f"{servers[0].name} / this",
            "ms to the first: median / 99th",
            "ms between: median / 99th",
        ]
        show(f"{shape}: prompts of {n_prompt} tokens, {options.new} new", columns, rows)


def own_costs(path: Path, options: argparse.Namespace) -> None:
    """What serving costs beyond computing, what a long prompt delays, and what a known prompt saves."""
    model = pellucid.load(path)
    network, _ = choose_weights(GenerationRequest(model.network, 1 << 20), options.weights[0])
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pellucid",
        "serve",
        str(path),
        "--port",
        str(port),
        "--weights",
        options.weights[0],
    ]
    with running("pellucid", command, port, path.name) as server:
        asyncio.run(server.stream(prompt_of(model.tokenizer, 16, 1), 8))
        served, alone = Measured("served"), Measured("generate")
        for number in range(2 * options.rounds):
            prompt = prompt_of(model.tokenizer, 16, 10_000 + number)
            stream = asyncio.run(server.stream(prompt, options.new))
            served.values.append((stream.pieces[-1] - stream.pieces[0]) / (stream.n_tokens - 1))
            ids = [model.tokenizer.encode(prompt)]
            times = [
                time.perf_counter()
                for _ in generate_ids(network, ids, max_tokens=options.new, sampling=Sampling(temperature=0))
            ]
            alone.values.append((times[-1] - times[0]) / (len(times) - 1))
        beyond = [a - b for a, b in zip(served.values, alone.values, strict=True)]
        print(
            f"{path.name}: a token takes {1e3 * served.median:.2f} ms, and {1e3 * alone.median:.2f} ms in `generate`: "
            f"{1e6 * statistics.median(beyond):.0f} microseconds more, {statistics.median(beyond) / alone.median:.1%}"
        )

        async def with_long_prompt(seed: int) -> tuple[float, float]:
            """Median seconds between tokens of four clients, and the longest while a prompt of 512 tokens arrives."""
            tasks = [
                asyncio.create_task(server.stream(prompt_of(model.tokenizer, 16, seed + k), 4 * options.new))
                for k in range(4)
            ]
            await asyncio.sleep(1.0)
            long = await server.stream(prompt_of(model.tokenizer, 512, seed + 9), 4)
            streams = await asyncio.gather(*tasks)
            during = [
                after - before
                for s in streams
                for before, after in zip(s.pieces, s.pieces[1:], strict=False)
                if after > long.asked and before < long.pieces[0]
            ]
            return statistics.median([gap for s in streams for gap in s.gaps]), max(during)

        delays = [asyncio.run(with_long_prompt(20_000 + 100 * number)) for number in range(options.rounds)]
        print(
            f"{path.name}: four clients have a token every {1e3 * statistics.median(d[0] for d in delays):.1f} ms; "
            f"while 512 tokens arrive, the longest wait is {1e3 * statistics.median(d[1] for d in delays):.1f} ms, "
            f"{statistics.median(d[1] / d[0] for d in delays):.1f} times that"
        )
        fresh, again = Measured("new prompt"), Measured("known prompt")
        for number in range(2 * options.rounds):
            prompt = prompt_of(model.tokenizer, 512, 30_000 + number)
            for times in (fresh, again):
                times.values.append(asyncio.run(server.stream(prompt, 4)).first)
        saved = statistics.median(1 - b / a for a, b in zip(fresh.values, again.values, strict=True))
        print(
            f"{path.name}: the first token after 512 takes {spread(fresh, 1e3)} ms, and {spread(again, 1e3)} ms "
            f"where the prompt is known: {saved:.1%} saved\n"
        )


def main() -> None:
    """The tables of each shape, and what serving costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with GPT-2's tokenizer")
    parser.add_argument("--models", nargs="+", choices=("small", "gpt2"), default=["small", "gpt2"])
    parser.add_argument("--weights", nargs="+", default=["auto"], help="of ours; the first is what others stand beside")
    parser.add_argument("--transformers", action="store_true", help="beside `transformers serve`")
    parser.add_argument("--llama-server", help="beside this program of llama.cpp")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--prompts", nargs="+", type=int, default=[16, 512])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-costs", action="store_true", help="leave out what is measured of ours alone")
    options = parser.parse_args()
    for line in header(torch.device("cpu"), ("transformers", "uvicorn", "fastapi")):
        print(line)
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.models:
            path = write_models(Path(folder), shape, options.tokenizer)
            with contextlib.ExitStack() as stack:
                servers = [stack.enter_context(running(name, *rest)) for name, rest in commands(path, options).items()]
                compare(servers, options, pellucid.load_tokenizer(path), shape)
            if not options.no_costs:
                own_costs(path, options)


if __name__ == "__main__":
    main()
