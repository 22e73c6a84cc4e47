"""One token at a time: the ordinary step beside the compiled one, and from how many tokens listing its operations pays.

    python -m benchmarks.decoding --shapes demo gpt2 --weights auto int8 int4

`demo` is the shape that `make demo` trains, `gpt2` GPT-2 small's. Weights are random and texts are drawn with seed 0 at
temperature 0.8, so that sampling is part of a token's time. `--fresh` compiles the file of operations and products anew
to time it (`pellucid.generate.row_products`).
"""

import argparse
import ctypes
import os
import tempfile
import time

import torch

from benchmarks.side_by_side import Measured, header, interleave, memory_read, seconds, show, spread
from pellucid.architecture import Architecture
from pellucid.generate import Decoding, Sampling, row_products
from pellucid.generate.choose_reader import GenerationRequest, choose_weights
from pellucid.generate.compiled_step import CompiledReader, CompiledStep, Product, list_operations
from pellucid.generate.readers import CachedReader, SequenceState
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
    row = SequenceState(0, 0, 0, tuple(i % network.architecture.n_vocab for i in range(prompt)))
    longest = prompt + n_tokens
    reader = CachedReader(network, longest) if step is None else CompiledReader(network, longest, step)
    for _ in Decoding(network, reader, [row], max_tokens=n_tokens, sampling=Sampling(temperature=0.8), stop_ids=()):
        pass


def alone(network: Transformer, step: CompiledStep, n_tokens: int) -> None:
    """The compiled step by itself: nothing is sampled."""
    cache = Cache(network.architecture, 1, n_tokens + 1)
    cache.advance(1)
    with torch.inference_mode():
        for _ in range(n_tokens):
            step(0, cache)


def products(step: CompiledStep, n_tokens: int) -> None:
    """The products of a step, one after another, and nothing else."""
    operations = [o for o in step.program.operations if isinstance(o, Product)]
    listed = list_operations(operations, [True] * len(operations))
    logits, number = torch.empty(step.architecture.n_vocab), ctypes.c_size_t
    step.program.operations[-1].y = logits.data_ptr()
    sizes = [number(n) for n in (0, 1, 0, torch.get_num_threads())]
    for _ in range(n_tokens):
        step.run(listed, number(len(listed)), None, None, *sizes)


def measure(network: Transformer, step: CompiledStep, options: argparse.Namespace) -> dict[str, Measured]:
    """Seconds a token: with ordinary steps, with compiled ones, of the compiled step alone, and of its products."""
    n_alone = min(options.new, network.architecture.n_ctx - 1)
    turns = {
        "eager": seconds(lambda: write(network, None, options.new, options.prompt)),
        "compiled": seconds(lambda: write(network, step, options.new, options.prompt)),
        "the compiled step alone": seconds(lambda: alone(network, step, n_alone)),
        "its products alone": seconds(lambda: products(step, n_alone)),
    }
    measured = interleave(turns, options.rounds)
    n_tokens = {word: options.new if word in ("eager", "compiled") else n_alone for word in turns}
    return {word: Measured(word, [t / n_tokens[word] for t in m.values]) for word, m in measured.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", default=["loaded"], help="auto, loaded, int8, int4")
    parser.add_argument("--new", type=int, default=200, help="tokens of each text")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="compile into an empty folder")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    if options.fresh:
        os.environ["XDG_CACHE_HOME"] = folder.name
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    start = time.perf_counter()
    row_products.load_library()
    print(f"the library: {time.perf_counter() - start:.2f} s", flush=True)
    bandwidth, rows = memory_read(torch.device("cpu")).median, []
    for shape in options.shapes:
        loaded = network_of(SHAPES[shape])
        for weights in options.weights:
            network, _ = choose_weights(GenerationRequest(loaded, options.new), weights)
            start = time.perf_counter()
            step = CompiledStep(network)
            listing = time.perf_counter() - start
            measured = measure(network, step, options)
            saved = measured["eager"].median - measured["compiled"].median
            print(
                f"{shape} {weights}: saves {1e3 * saved:.2f} ms a token; listing takes {1e3 * listing:.1f} ms",
                flush=True,
            )
            pays = {"compiled": f"{listing / saved:.0f}" if saved > 0 else "never"}
            for word, m in measured.items():
                rate = f"{1 / m.median:,.1f}"
                rows.append([f"{shape} {weights} {word}", rate, spread(m, 1e3, 3), pays.get(word, "")])
        reading = matrix_bytes(loaded) / bandwidth * 1e3
        rows.append([f"{shape}: reading its matrices in float32", "", f"{reading:.3f}", ""])
    columns = ["", "tokens/s", "ms a token", "listing pays from tokens"]
    show(f"prompt {options.prompt}, {options.new} new tokens, {torch.get_num_threads()} threads", columns, rows)


if __name__ == "__main__":
    main()
