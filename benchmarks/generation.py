"""Generation: tokens per second and time to the first token, GPT-2 small's shape, beside the peers.

    python -m benchmarks.generation --litgpt /path/to/its/python --nanogpt /path/to/clone --llama /path/to/its/python

Every candidate is a process of its own, and they write in turns. Weights are random, texts greedy. llama.cpp reads GGUF
files written for it here (extra `pellucid[gguf]`), with biases, which it wants for this shape.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.generation_workers import SHAPE
from benchmarks.side_by_side import BenchmarkError, Measured, Worker, header, memory_read, show, spread

WORKERS = str(Path(__file__).with_name("generation_workers.py"))
#: bytes of matrices that a step reads: 12 blocks and the unembedding
N_MATRIX = 12 * 12 * 768**2 + 50257 * 768
BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "int4": 4.5 / 8, "q8_0": 34 / 32, "q4_0": 18 / 32}
OWN = ("loaded", "auto", "int8", "int4")


#: what llama.cpp's own quantisation writes: its file is made of one in float32
QUANTISE = """
import ctypes, sys, llama_cpp
options = llama_cpp.llama_model_quantize_default_params()
options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(options)))
"""


def gguf_of_the_shape(folder: Path, weights: str, llama: str) -> str:
    """The path of a GGUF file of GPT-2 small's shape with random weights; its few tokens are not what is measured."""
    if weights == "q4_0":
        whole, path = gguf_of_the_shape(folder, "float32", llama), folder / "q4_0.gguf"
        subprocess.run([llama, "-c", QUANTISE, whole, str(path)], check=True, capture_output=True)
        return str(path)
    from pellucid.demo import bundled
    from pellucid.hub.gguf import write_gguf
    from pellucid.model import Transformer
    from pellucid.model.weights import initialise
    from pellucid.presets import preset, with_vocabulary
    from pellucid.text.tokenizers.tokenizer import learn_tokenizer

    path = folder / f"{weights}.gguf"
    a = replace(with_vocabulary(preset("gpt2"), SHAPE["n_vocab"]), n_ctx=SHAPE["n_ctx"])
    tokenizer = learn_tokenizer("bpe", [bundled("shakespeare").read_text(encoding="utf-8")[:10_000]], 300)
    write_gguf(path, initialise(Transformer(a), 0).state_dict(), a, tokenizer, weights)
    return str(path)


def commands(options: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """Each candidate's process."""
    own = {f"pellucid {o}": [sys.executable, WORKERS, "pellucid", o] for o in options.own}
    peers = options.peers + ([f"{peer}+static" for peer in options.peers] if options.compiled else [])
    theirs = {f"transformers {o}": [sys.executable, WORKERS, "transformers", o] for o in peers if options.transformers}
    if options.litgpt and options.batch == 1:
        peers = options.peers + ([f"{peer}+compiled" for peer in options.peers] if options.compiled else [])
        theirs |= {f"litgpt {o}": [options.litgpt, WORKERS, "litgpt", o] for o in peers}
    if options.nanogpt:
        theirs |= {"nanogpt float32": [sys.executable, WORKERS, "nanogpt", options.nanogpt]}
    if options.llama and options.batch == 1:
        files = {o: gguf_of_the_shape(folder, o, options.llama) for o in options.llama_weights}
        theirs |= {f"llama.cpp {o}": [options.llama, WORKERS, "llama_cpp_python", file] for o, file in files.items()}
    return own | theirs


def measure(workers: dict[str, Worker], line: str, rounds: int) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """Seconds for all tokens and to the first, every candidate once a round after a round that is not kept."""
    whole, first = ({name: Measured(name) for name in workers} for _ in range(2))
    for number in range(rounds + 1):
        for name in list(workers) if number % 2 == 0 else list(workers)[::-1]:
            answer = workers[name].ask(line)
            print(f"round {number}: {name} {answer['seconds']:.2f} s", file=sys.stderr, flush=True)
            if number:
                whole[name].values.append(answer["seconds"])
                first[name].values.append(answer["first"])
    return whole, first


def report(whole: dict[str, Measured], first: dict[str, Measured], options: argparse.Namespace) -> None:
    """Tokens per second, the share of the read bandwidth, ratios to every setting of every peer."""
    peers = [name for name in whole if not name.startswith("pellucid")]
    bandwidth = memory_read(torch.device("cpu")).median
    rows = []
    for name, m in whole.items():
        rate = Measured(name, [options.batch * options.new / t for t in m.values])
        weights = name.split()[1].partition("+")[0]
        limit = bandwidth / (N_MATRIX * BYTES.get(weights, 4)) * options.batch
        ratios = [f"{m.ratio_to(whole[peer]).median:.2f}" for peer in peers]
        rows.append([name, spread(rate), spread(first[name], 1e3), f"{rate.median / limit:.0%}", *ratios])
    title = f"batch {options.batch}, prompt {options.prompt}, {options.new} new tokens; read {bandwidth / 1e9:.1f} GB/s"
    columns = ["", "tokens/s", "first token ms", "of bandwidth", *(f"x {peer}" for peer in peers)]
    show(title, columns, rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-transformers", dest="transformers", action="store_false", help="leave this peer out")
    parser.add_argument("--litgpt", help="the Python of an environment that has litgpt")
    parser.add_argument("--nanogpt", help="a clone of nanoGPT")
    parser.add_argument("--llama", help="the Python of an environment that has llama-cpp-python")
    parser.add_argument(
        "--llama-weights", nargs="+", default=["float32", "float16", "q8_0"], help="what it reads them in"
    )
    parser.add_argument("--compiled", action="store_true", help="measure the peers' compiled settings too (minutes)")
    parser.add_argument("--own", nargs="+", default=OWN, help="which of our settings")
    parser.add_argument("--peers", nargs="*", default=["float32", "bfloat16"], help="the peers' precisions")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        workers = {}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, command in commands(options, folder).items():
            try:
                workers[name] = stack.enter_context(Worker(command))
            except BenchmarkError as error:
                print(f"{name} is left out: {str(error).splitlines()[-1]}", file=sys.stderr)
        print(*header(torch.device("cpu"), ["pellucid", "transformers"]), sep="\n")
        print(*(f"{name}: {worker.about['version']}" for name, worker in workers.items()), sep="; ", end="\n\n")
        report(*measure(workers, f"{options.batch} {options.prompt} {options.new}", options.rounds), options)


if __name__ == "__main__":
    main()
