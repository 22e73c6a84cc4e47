"""Reading and tokenising: MB/s and peak memory of the same files and the same BPE, beside `datasets` + `tokenizers`.

    python -m benchmarks.reading FILE.jsonl ... --vocabulary 8192

Every turn is a process of its own that reads the files, encodes every document on all cores and writes the ids to an
empty folder; seconds are without imports, memory is the anonymous resident memory of the process and its children,
looked at every 20 ms. Both have to find the same number of ids.
"""

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.side_by_side import BenchmarkError, Measured, header, interleave, show, spread


def ours(files: list[str], tokenizer: str, out: str) -> int:
    """Counted, hashed, split, encoded, and written as tokens of two parts; separators are not counted."""
    from pellucid.text import load_tokenizer, prepare, read_corpus, split_corpus

    tokens = prepare(split_corpus(read_corpus(files)), load_tokenizer(tokenizer), out)
    return sum(part["tokens"] - part["documents"] for part in tokens.manifest["parts"].values())


def theirs(files: list[str], tokenizer: str, out: str) -> int:
    """`load_dataset` and `map` with as many processes as there are cores, as its documentation shows it."""
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")

    def encode(rows: dict) -> dict:
        return {"ids": [one.ids for one in engine.encode_batch_fast(rows["text"], add_special_tokens=False)]}

    read = datasets.load_dataset("json", data_files=files, split="train", cache_dir=out)
    made = read.map(encode, batched=True, remove_columns=read.column_names, num_proc=os.cpu_count())
    return sum(len(ids) for batch in made.with_format("arrow").iter(1000) for ids in batch["ids"])


WORK: dict[str, Callable[[list[str], str, str], int]] = {"pellucid": ours, "datasets + tokenizers": theirs}


def work(name: str, files: list[str], tokenizer: str) -> None:
    """One turn, in this process: seconds and ids on standard output."""
    for module in {"pellucid": ["pellucid.text"]}.get(name, ["datasets", "tokenizers"]):
        importlib.import_module(module)  # before the clock runs
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        n_ids = WORK[name](files, tokenizer, out)
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": n_ids}))


def anonymous_bytes(root: int) -> int:
    """Anonymous resident memory of a process and all below it."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
            except OSError:
                continue
            parents[int(entry.name)] = int(status["PPid"])
            sizes[int(entry.name)] = 1024 * int(status.get("RssAnon", "0").split()[0])
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(sizes.get(process, 0) for process in family)


def turn(name: str, files: list[str], tokenizer: str, found: dict[str, list[dict]]) -> float:
    """Seconds of one turn; its memory and ids are kept in `found`."""
    command = [sys.executable, "-m", "benchmarks.reading", *files, "--turn", name, "--tokenizer", tokenizer]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.02)
    if process.returncode or process.stdout is None:
        raise BenchmarkError(f"{name} ended with code {process.returncode}")
    said = json.loads(process.stdout.read().splitlines()[-1])
    found.setdefault(name, []).append(said | {"peak": peak})
    return said["seconds"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turn", choices=list(WORK), help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        work(options.turn, options.files, options.tokenizer)
        return
    from pellucid.text import read_corpus, train_tokenizer

    corpus, found = read_corpus(options.files), {}
    with tempfile.TemporaryDirectory() as folder:
        sample = itertools.islice(corpus.texts(), 5000)
        train_tokenizer("bpe", sample, options.vocabulary).save(folder)
        turns = {name: lambda name=name: turn(name, options.files, folder, found) for name in WORK}
        measured = interleave(turns, options.rounds, warm_up=0)
    if len({one["ids"] for each in found.values() for one in each}) != 1:
        raise BenchmarkError(f"they found other ids: {found}")
    size = corpus.n_bytes / 1e6
    print(*header(torch.device("cpu"), ["pellucid", "datasets", "tokenizers"]), sep="\n")
    rows = []
    for name, seconds in measured.items():
        rate = Measured(name, [size / s for s in seconds.values])
        peak = Measured(name, [one["peak"] / 1e6 for one in found[name]])
        rows.append([name, spread(rate), spread(peak)])
    title = f"{size:.1f} MB of text in {len(corpus.documents):,} documents, {found['pellucid'][0]['ids']:,} ids"
    show(title, ["", "MB/s, median (quartiles)", "peak anonymous memory, MB"], rows)
    mine, other = measured.values()
    print(f"{other.name} / pellucid in seconds: {spread(mine.ratio_to(other))}")


if __name__ == "__main__":
    main()
