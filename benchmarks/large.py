"""More text than memory: gigabytes are made up, tokenised and trained on by the command line, and memory is looked at.

    python -m benchmarks.large --gigabytes 2 --folder /tmp/large

The text is lines of the bundled one with made-up words among them, in files of 16 MiB. Looked at, ten times a second,
is the anonymous resident memory of the command and of every process below it, each and together; mapped files, which
the system takes back where it needs room, are none of it. Seconds are those of a machine that may do other things.
Interrupted, the same command takes over the shards that were finished.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.side_by_side import BenchmarkError
from pellucid.text.read.documents import bundled

FILE = 1 << 24
#: lines that are drawn from, and the share of them that has a made-up word at its end
POOL, MADE_UP = 200_000, 0.05
NETWORK = ("n_layers=2", "d_model=64", "n_ctx=128", "batch=8", "text.held_out=0.001", "evaluate_every=10")
#: the exit code of a command that was interrupted: what was seen until then is shown
INTERRUPTED = 130
#: for byte-pair encoding: the share of the text that merges are learned from
LEARNED = ("text.sample=0.01",)


@dataclass
class Family:
    """Peaks of anonymous resident memory in bytes: of all processes together, of the command, of one below it."""

    together: int = 0
    command: int = 0
    worker: int = 0
    processes: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def see(self, own: int, below: list[int]) -> None:
        self.together = max(self.together, own + sum(below))
        self.command, self.worker = max(self.command, own), max(self.worker, *below, 0)
        self.processes = max(self.processes, 1 + len(below))
        self.seconds = time.monotonic() - self.began


def make_text(folder: Path, n_bytes: int) -> int:
    """Files of about 16 MiB with `n_bytes` together; the bytes that they have. What is there already is left."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = bundled("shakespeare").read_text(encoding="utf-8").splitlines()
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    pool = []
    for line, tail in zip(generator.choice(lines, POOL), generator.random(POOL) < MADE_UP, strict=True):
        word = "".join(generator.choice(letters, generator.integers(3, 11))) if tail else ""
        pool.append(f"{line} {word}\n".encode())
    lengths = np.array([len(line) for line in pool])
    per_file = round(FILE / lengths.mean())
    for number in range(max(1, n_bytes // FILE)):
        path = folder / f"{number:04}.txt"
        if not path.exists():
            chosen = np.random.default_rng(number).integers(POOL, size=per_file)
            path.write_bytes(b"".join(pool[i] for i in chosen))
    return sum(path.stat().st_size for path in folder.glob("*.txt"))


def family_of(root: int) -> tuple[int, list[int]]:
    """Anonymous resident bytes of a process and of each below it; 0 of one that has ended since."""
    below, left = [], children(root)
    while left:
        process = left.pop()
        below.append(process)
        left += children(process)
    return anonymous_bytes(root), [anonymous_bytes(process) for process in below]


def children(process: int) -> list[int]:
    """The processes that the threads of this one have started."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def anonymous_bytes(process: int) -> int:
    """RssAnon of one process."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("RssAnon:")), "RssAnon: 0")
    return 1024 * int(line.split()[1])


def watch(command: list[str], folder: Path, cache: Path) -> dict[str, Family]:
    """Run a command; the memory of its family by stage, which is told by what lies in its folders."""
    found: dict[str, Family] = defaultdict(Family)
    with (folder / "log").open("w") as log:
        environment = {**os.environ, "PELLUCID_CACHE": str(cache)}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            own, below = family_of(process.pid)
            found[stage(folder, cache, below)].see(own, below)
            time.sleep(0.1)
    if process.returncode not in (0, INTERRUPTED):
        raise BenchmarkError((folder / "log").read_text()[-3000:])
    return dict(found)


def stage(folder: Path, cache: Path, below: list[int]) -> str:
    """What a training command is at: reading, encoding, measuring the baselines or training."""
    metrics = folder / "run" / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:
        return "training"
    if list(cache.glob("**/manifest.json")):
        return "baselines and set-up"
    return "encoding" if below else "reading, counting, merges"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokenizer", default="bpe", choices=("bpe", "byte"))
    parser.add_argument("--folder", type=Path, required=True, help="where text, tokens and the run are written")
    parser.add_argument("--keep", action="store_true", help="leave them there")
    options = parser.parse_args()
    texts = options.folder / "texts"
    size = make_text(texts, round(options.gigabytes * 1e9))
    cache = options.folder / f"cache-{options.tokenizer}"  # of what was interrupted the finished shards are taken over
    shutil.rmtree(options.folder / "run", ignore_errors=True)
    command = [sys.executable, "-m", "pellucid", "train", str(texts), "--out", str(options.folder / "run")]
    command += ["--tokenizer", options.tokenizer, "--steps", str(options.steps)]
    choices = (*NETWORK, *(LEARNED if options.tokenizer == "bpe" else ()))
    command += [*(part for one in choices for part in ("--set", one))]
    found = watch(command, options.folder, cache)
    table = Table(
        "", "seconds", "all together, MB", "the command", "one below it", "processes", title=f"{size:,} bytes"
    )
    for name, seen in found.items():
        cells = (seen.together, seen.command, seen.worker)
        table.add_row(name, f"{seen.seconds:.0f}", *(f"{n / 1e6:,.0f}" for n in cells), str(seen.processes))
    Console(width=120).print(table)
    print((options.folder / "log").read_text()[:1500])
    if not options.keep:
        for old in (texts, options.folder / "run", cache):
            shutil.rmtree(old)


if __name__ == "__main__":
    main()
