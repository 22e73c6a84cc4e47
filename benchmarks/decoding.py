"""One token at a time: the ordinary step beside the compiled one, and from how many tokens compiling pays.

    python -m benchmarks.decoding --shapes demo gpt2

`demo` is the shape that `make demo` trains, `gpt2` GPT-2 small's. Weights are random and texts are drawn with seed 0 at
temperature 0.8, so that sampling is part of a token's time. Steps are compiled first, or found on disk where an earlier
run left them (`pellucid.generate.compiled_step`); `--fresh` compiles them anew to time it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.side_by_side import Measured, header, interleave, memory_read, seconds, show, spread
from pellucid.architecture import Architecture
from pellucid.generate import Sampling, generate_ids
from pellucid.generate.choose_step import step_for
from pellucid.generate.compiled_step import CompiledStep
from pellucid.generate.pack_weights import network_for
from pellucid.model import Cache, Transformer
from pellucid.model.weights import initialise
from pellucid.presets import preset, qwen3, with_vocabulary

SHAPES = {
    "demo": with_vocabulary(qwen3(128, 2, 4, n_ctx=128), 2048),
    "gpt2": preset("gpt2"),
}


def network_of(a: Architecture) -> Transformer:
    """A network of this shape with random weights."""
    return initialise(Transformer(a), 0).eval()


def matrix_bytes(network: Transformer) -> int:
    """The bytes of the matrices that a step reads, in float32."""
    return sum(4 * p.numel() for p in (*network.blocks.parameters(), network.unembed.weight) if p.ndim == 2)


def write(network: Transformer, step: CompiledStep | None, n_tokens: int, prompt: int) -> None:
    """Generate a text, token by token."""
    tokens = [i % network.architecture.n_vocab for i in range(prompt)]
    for _ in generate_ids(network, [tokens], max_tokens=n_tokens, sampling=Sampling(temperature=0.8), step=step):
        pass


def alone(network: Transformer, step: CompiledStep, n_tokens: int) -> None:
    """The compiled step by itself: nothing is sampled."""
    cache = Cache(network.architecture, 1, n_tokens + 1)
    cache.advance(1)
    with torch.inference_mode():
        for _ in range(n_tokens):
            step(0, cache)


def measure(network: Transformer, step: CompiledStep, options: argparse.Namespace) -> dict[str, Measured]:
    """Seconds a token: with ordinary steps, with compiled ones, and of the compiled step alone."""
    n_alone = min(options.new, network.architecture.n_ctx - 1)
    turns = {
        "eager": seconds(lambda: write(network, None, options.new, options.prompt)),
        "compiled": seconds(lambda: write(network, step, options.new, options.prompt)),
        "the compiled step alone": seconds(lambda: alone(network, step, n_alone)),
    }
    measured = interleave(turns, options.rounds)
    n_tokens = dict.fromkeys(turns, options.new) | {"the compiled step alone": n_alone}
    return {word: Measured(word, [t / n_tokens[word] for t in m.values]) for word, m in measured.items()}


def seconds_to_load(shape: str) -> float:
    """Seconds that a new process, which has imported PyTorch, needs to load a step that is on disk."""
    code = (
        "import time, torch; from benchmarks.decoding import SHAPES, network_of; "
        "from pellucid.generate.choose_step import step_for; "
        f"torch.set_num_threads({torch.get_num_threads()}); network = network_of(SHAPES[{shape!r}]); "
        "start = time.perf_counter(); step_for(network, 'yes', 1); print(time.perf_counter() - start)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", default=["loaded"], help="loaded, float32, int8")
    parser.add_argument("--new", type=int, default=200, help="tokens of each text")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="compile into an empty cache")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    if options.fresh:
        os.environ["PELLUCID_CACHE"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    bandwidth, rows = memory_read(torch.device("cpu")).median, []
    for shape in options.shapes:
        loaded = network_of(SHAPES[shape])
        for weights in options.weights:
            network, _ = network_for(loaded, weights, options.new)
            start = time.perf_counter()
            step, said = step_for(network, "yes", options.new)
            print(f"{shape} {weights}: {said}, {time.perf_counter() - start:.1f} s", flush=True)
            measured = measure(network, step, options)
            ms = {word: 1e3 * m.median for word, m in measured.items()}
            for word, m in measured.items():
                rows.append([f"{shape} {weights} {word}", f"{1 / m.median:,.0f}", spread(m, 1e3, 3), ""])
            saved = (ms["eager"] - ms["compiled"]) / 1e3
            loading = seconds_to_load(shape) if weights == "loaded" else 0.0
            rows[-2][-1] = f"{loading / saved:.0f}" if loading and saved > 0 else ""
            print(f"saves {1e3 * saved:.2f} ms a token; loading takes {loading:.2f} s", flush=True)
        reading = matrix_bytes(loaded) / bandwidth * 1e3
        rows.append([f"{shape}: reading its matrices in float32", "", f"{reading:.3f}", ""])
    columns = ["", "tokens/s", "ms a token", "loading pays from tokens"]
    show(f"prompt {options.prompt}, {options.new} new tokens, {torch.get_num_threads()} threads", columns, rows)


if __name__ == "__main__":
    main()
