"""Ten ratios in a few minutes, beside the last ones logged for this kind of machine: has a commit made us slower?

    python -m benchmarks.quick          (or: make benchmark-quick)
    python -m benchmarks.quick --log    write them into benchmarks/quick.json, to compare later ones with

A ratio is the time of another library, or of PyTorch's own operation, over our time for the same work; the two take
turns in one process, so that the speed of the machine on that day divides out. 1.2 means that ours takes 1 / 1.2 of
their time. Ratios are logged by kind of machine: the widest instructions that its processor has for these products,
and the number of threads. A ratio is slower where its median is more than a tenth below the logged one and its upper
quartile is below the logged lower one; the command then says so and ends with status 1.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.side_by_side import Measured, header, interleave, seconds, show, spread

LOG_FILE = Path(__file__).with_name("quick.json")
#: kinds of machine, the widest instructions first, with the processor's flag in /proc/cpuinfo
FLAGS = {"amx": "amx_tile", "avx512_bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "avx2"}
#: the share of a logged ratio by which a median has to be lower
MARGIN = 0.1
PACKAGES = ("pellucid", "transformers", "tokenizers")
#: n_layers, n_heads, d_model, n_ctx, batch, n_vocab of the network that takes training steps
TRAINED = [4, 4, 128, 128, 8, 2048]

#: the other way and ours
Pair = tuple[Callable[[], object], Callable[[], object]]


# What is compared ---------------------------------------------------------------------------


def training_step() -> Iterator[Pair]:
    """A step of float32 AdamW beside transformers' GPT-2 in a plain loop."""
    from benchmarks.training_worker import pellucid, transformers

    ids = np.random.default_rng(0).integers(0, TRAINED[-1], 100_000)
    options = {"shape": TRAINED, "device": "cpu", "precision": "float32", "compile": False}
    yield transformers(options, ids)[1], pellucid(options, ids)[1]


def passes() -> Iterator[Pair]:
    """256 tokens of GPT-2 small's shape, without and with every tensor kept, beside transformers' plain pass."""
    from benchmarks.looking import pellucid, transformers

    tokens = torch.randint(0, 50257, (1, 256), generator=torch.Generator().manual_seed(0))
    theirs, plain, everything = transformers("nothing"), pellucid("nothing"), pellucid("everything")
    yield lambda: theirs(tokens), lambda: plain(tokens)
    yield lambda: theirs(tokens), lambda: everything(tokens)


def decoding() -> Iterator[Pair]:
    """16 tokens of GPT-2 small's shape beside transformers'."""
    from benchmarks.generation_workers import pellucid, transformers

    prompt = torch.arange(16)[None]
    theirs, ours = transformers("float32"), pellucid("loaded")
    yield lambda: theirs(prompt, 16), lambda: ours(prompt, 16)


def compiled_decoding() -> Iterator[Pair]:
    """100 tokens of the demo's shape by the compiled step, beside transformers' GPT-2 of the same sizes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from benchmarks.decoding import SHAPES, network_of, write
    from pellucid.generate.choose_reader import GenerationRequest, choose_compiled_step

    network, prompt = network_of(SHAPES["demo"]), torch.arange(16)[None]
    a, mask = network.architecture, torch.ones_like(prompt)
    sizes = {"vocab_size": a.n_vocab, "n_positions": a.n_ctx, "n_embd": a.d_model, "n_layer": a.n_layers}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, n_head=a.n_heads, bos_token_id=0, eos_token_id=None, pad_token_id=0))
    options = {"attention_mask": mask, "max_new_tokens": 100, "min_new_tokens": 100}
    start = time.perf_counter()
    step, choice = choose_compiled_step(GenerationRequest(network, 100), "yes")
    print(f"{choice}, {time.perf_counter() - start:.0f} s in all", file=sys.stderr, flush=True)
    yield lambda: theirs.eval().generate(prompt, do_sample=True, **options), lambda: write(network, step, 100, 16)


def products() -> Iterator[Pair]:
    """One row times a matrix of 3072 x 768 in float32 and in int8, beside F.linear in float32, 100 times."""
    from benchmarks.products import make

    weight, x = torch.randn(3072, 768) * 0.02, torch.randn(1, 768)
    for kind in ("float32", "int8"):
        (product,), _ = make(kind, [weight])
        yield (
            lambda: [F.linear(x, weight) for _ in range(100)],
            lambda product=product: [product(x) for _ in range(100)],
        )


def tokenizing() -> Iterator[Pair]:
    """Learning 2,048 tokens from 1 MB of tiny Shakespeare, then encoding it, beside tokenizers."""
    from tokenizers import ByteLevelBPETokenizer

    from pellucid.text import learn_tokenizer
    from pellucid.text.read.documents import bundled

    text = bundled("shakespeare").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)

    def their_tokenizer() -> ByteLevelBPETokenizer:
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(lines, 2047, show_progress=False)
        return tokenizer

    yield their_tokenizer, lambda: learn_tokenizer("bpe", [text], 2048)
    ours, theirs, documents = learn_tokenizer("bpe", [text], 2048), their_tokenizer(), cut_in_documents(lines)
    yield lambda: theirs.encode_batch(documents), lambda: ours.encode_batch(documents)


def cut_in_documents(lines: list[str], n_lines: int = 100) -> list[str]:
    """A text in documents of this many lines."""
    return ["".join(lines[i : i + n_lines]) for i in range(0, len(lines), n_lines)]


def first_token() -> Iterator[Pair]:
    """`pellucid generate` of one token with a small model, beside `import torch`, in new processes."""
    from benchmarks.start_up import save_own

    def started(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    with tempfile.TemporaryDirectory() as folder:
        own = str(save_own(Path(folder)))
        yield started("-c", "import torch"), started("-m", "pellucid", "generate", own, "text", "--max-tokens", "1")


#: what yields the pairs, and what is printed of each
GROUPS: dict[Callable[[], Iterator[Pair]], tuple[str, ...]] = {
    training_step: ("a training step / transformers",),
    passes: ("256 tokens at once / transformers", "256 tokens, every tensor kept / transformers, none kept"),
    decoding: ("16 tokens with a cache / transformers",),
    compiled_decoding: ("100 tokens by the compiled step / transformers",),
    products: ("one row in float32 / F.linear", "one row in int8 / F.linear in float32"),
    tokenizing: ("learning a vocabulary / tokenizers", "encoding / tokenizers"),
    first_token: ("a first token / import torch",),
}


# How it compares with what was logged -------------------------------------------------------


def kind_of_machine(cpuinfo: str, threads: int) -> str:
    """The widest instructions among the processor's flags, and the number of threads, as in `avx2, 2 threads`."""
    flags = set(cpuinfo.split())
    widest = next((kind for kind, flag in FLAGS.items() if flag in flags), "other")
    return f"{widest}, {threads} threads" if threads != 1 else f"{widest}, 1 thread"


@dataclass(frozen=True)
class LoggedRatio:
    """A ratio that an earlier commit reached: its median and quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, ratio: Measured) -> Self:
        low, high = ratio.quartiles
        return cls(*(float(f"{x:.3g}") for x in (low, ratio.median, high)))


def is_slower(ratio: Measured, logged: LoggedRatio) -> bool:
    """Whether a ratio is lower than the logged one by more than the margin and by more than the spread of both."""
    return ratio.median < (1 - MARGIN) * logged.median and ratio.quartiles[1] < logged.low


def compare(ratios: Mapping[str, Measured], logged: Mapping[str, LoggedRatio]) -> tuple[list[list[str]], list[str]]:
    """The rows of the table, and the names of the ratios that are slower than logged.

    A ratio that was not logged, or that was logged and not measured, has a row that says so.
    """
    rows, slower = [], []
    for name, ratio in ratios.items():
        if name not in logged:
            rows.append([name, spread(ratio, digits=2), "not logged", ""])
            continue
        earlier = logged[name]
        change = f"{ratio.median / earlier.median - 1:+.0%}"
        if is_slower(ratio, earlier):
            slower.append(name)
            change += "  SLOWER"
        was = f"{earlier.median:.2f} ({earlier.low:.2f} ... {earlier.high:.2f})"
        rows.append([name, spread(ratio, digits=2), was, change])
    rows += [
        [name, "not measured", f"{earlier.median:.2f}", ""] for name, earlier in logged.items() if name not in ratios
    ]
    return rows, slower


def verdict(slower: list[str], entry: Mapping[str, Any] | None, kind: str) -> str:
    """The last line: what is slower, or that nothing is."""
    if entry is None:
        return f"Nothing is logged for this kind of machine ({kind}): --log writes these ratios into {LOG_FILE.name}."
    origin = f"commit {entry['commit']} of {entry['date']}"
    if slower:
        return (
            f"SLOWER than {origin}: {'; '.join(slower)}. Measure again on a quiet machine, then look at what changed."
        )
    return f"No ratio is slower than that of {origin} by more than {MARGIN:.0%} and the spread."


def read_log(path: Path) -> dict[str, Any]:
    """What is logged, by kind of machine: commit, date, versions, and [low, median, high] by name."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_log(path: Path, kind: str, ratios: Mapping[str, Measured], **about: str) -> None:
    """Log these ratios for this kind of machine; other kinds keep theirs."""
    logged = {name: LoggedRatio.of(ratio) for name, ratio in ratios.items()}
    rounded = {name: [ratio.low, ratio.median, ratio.high] for name, ratio in logged.items()}
    content = {**read_log(path), kind: {**about, "ratios": rounded}}
    lines = json.dumps(content, indent=2, sort_keys=True)
    path.write_text(lines + "\n", encoding="utf-8")


def commit() -> str:
    """The commit that is checked out, with `-dirty` where files have changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, cwd=LOG_FILE.parent).stdout.strip() or "unknown"


def measure(rounds: int) -> dict[str, Measured]:
    """All ratios, one after the other."""
    ratios = {}
    for group, names in GROUPS.items():
        for name, (theirs, ours) in zip(names, group(), strict=True):
            start = time.perf_counter()
            measured = interleave({"theirs": seconds(theirs), "ours": seconds(ours)}, rounds)
            ratios[name] = measured["ours"].ratio_to(measured["theirs"])
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        gc.collect()
    return ratios


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--log", action="store_true", help="write the ratios into benchmarks/quick.json")
    options = parser.parse_args()
    cpuinfo = Path("/proc/cpuinfo")
    kind = kind_of_machine(cpuinfo.read_text() if cpuinfo.exists() else "", torch.get_num_threads())
    versions = header(torch.device("cpu"), PACKAGES)
    print(*versions, sep="\n")
    entry = read_log(LOG_FILE).get(kind)
    logged = {name: LoggedRatio(*figures) for name, figures in entry["ratios"].items()} if entry else {}
    if entry and entry["versions"] != versions[1]:
        print(f"logged with other versions, which change ratios too: {entry['versions']}")
    ratios = measure(options.rounds)
    rows, slower = compare(ratios, logged)
    show(f"ratios on {kind}; higher is faster", ["", "now, median (quartiles)", "logged", "change"], rows)
    print(verdict(slower, entry, kind))
    if options.log:
        write_log(LOG_FILE, kind, ratios, commit=commit(), date=date.today().isoformat(), versions=versions[1])
    sys.exit(1 if slower and not options.log else 0)


if __name__ == "__main__":
    main()
