"""Reading and tokenising: MB/s and peak memory of the same files and the same BPE, beside `datasets` + `tokenizers`.

    python -m benchmarks.reading FILE.jsonl ... --vocabulary 8192

Every turn is a process of its own (`benchmarks.reading_worker`) that reads the files, encodes every document on all
cores and writes the ids to an empty folder; seconds are without imports. Memory is what the process and its children
have for themselves, Linux's Pss_Anon: a page that several share counts once. It is looked at every 20 ms. Both have to
find the same number of ids, but for a few where a long document is divided between training and held-out text.
"""

import argparse
import contextlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.reading_worker import WORK
from benchmarks.side_by_side import BenchmarkError, Measured, header, interleave, show, spread

#: a divided document has at most so many ids more or less than the whole one, at its cut
AT_CUTS = 8


def anonymous_bytes(root: int) -> int:
    """Anonymous memory of a process and all below it, a page that several share counted once."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    kibibytes = 0
    for process in family:
        with contextlib.suppress(OSError):
            found = re.search(r"Pss_Anon: *(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text())
            kibibytes += int(found[1]) if found else 0
    return 1024 * kibibytes


def turn(name: str, files: list[str], tokenizer: str, found: dict[str, list[dict]]) -> float:
    """Seconds of one turn; its memory and ids are kept in `found`."""
    command = [sys.executable, "-m", "benchmarks.reading_worker", name, tokenizer, *files]
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
    options = parser.parse_args()
    from pellucid.text import learn_tokenizer, read_corpus

    corpus, found = read_corpus(options.files), {}
    with tempfile.TemporaryDirectory() as folder:
        sample = itertools.islice(corpus.texts(), 5000)
        learn_tokenizer("bpe", sample, options.vocabulary).save(folder)
        turns = {name: lambda name=name: turn(name, options.files, folder, found) for name in WORK}
        measured = interleave(turns, options.rounds, warm_up=0)
    n_ids = {one["ids"] for each in found.values() for one in each}
    if max(n_ids) - min(n_ids) > AT_CUTS:
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
