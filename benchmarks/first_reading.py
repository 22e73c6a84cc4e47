"""The first reading of a corpus, which counts and hashes every document, by one process and by several.

    python -m benchmarks.first_reading TEXTS --gigabytes 0.1 --workers 2

The text is a folder of changed copies of the .txt files below TEXTS (`benchmarks.encoding_at_scale`). Both readings are
taken in turn, and have to give the same corpus. The seconds on the clock depend on what else the machine does; the CPU
seconds of this process are the part that no other process takes over.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.encoding_at_scale import write_texts
from benchmarks.side_by_side import BenchmarkError, Measured, header, show, spread
from pellucid.text.read.documents import Corpus, read_corpus


def read(folder: Path, workers: int) -> tuple[Corpus, float, float, float]:
    """The corpus; seconds on the clock, CPU seconds of this process, and of those that it started."""
    wall, own, others = time.perf_counter(), time.process_time(), of_children()
    corpus = read_corpus(folder, workers=workers)
    return corpus, time.perf_counter() - wall, time.process_time() - own, of_children() - others


def of_children() -> float:
    """CPU seconds of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--gigabytes", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    taken: dict[int, list[tuple[float, float, float]]] = {0: [], options.workers: []}
    with tempfile.TemporaryDirectory() as temporary:
        n_bytes = write_texts(options.texts, Path(temporary), int(options.gigabytes * 1e9))
        first = read_corpus(temporary)
        for _ in range(options.rounds):
            for workers, each in taken.items():
                corpus, *seconds = read(Path(temporary), workers)
                if (corpus.documents, corpus.sources) != (first.documents, first.sources):
                    raise BenchmarkError(f"{workers} processes read another corpus than one")
                each.append((seconds[0], seconds[1], seconds[2]))
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    rows = [
        [f"{workers} others" if workers else "this process alone"]
        + [spread(Measured("", list(column)), digits=2) for column in zip(*each, strict=True)]
        for workers, each in taken.items()
    ]
    columns = ["who reads", "seconds", "CPU seconds of this process", "of the others"]
    show(f"{n_bytes / 1e9:.2f} GB in {len(first.sources):,} files", columns, rows)


if __name__ == "__main__":
    main()
