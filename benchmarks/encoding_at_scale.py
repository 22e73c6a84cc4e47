"""Encoding gigabytes: throughput, memory, and what a kill costs. `pellucid tokenizer encode-corpus` is killed once.

    python -m benchmarks.encoding_at_scale TEXTS --gigabytes 5

The text is a folder of copies of TEXTS, a file for each document, in which one word in a hundred is replaced by
letters drawn at random, other ones in each copy: new words keep coming, as they do in a corpus of this size. A process
of its own encodes it, is killed (SIGKILL) once a third of the shards are written, and starts again. Finished shards
have to be the same files afterwards, and documents drawn at random have to decode to their text. Memory is what the
process and its children have for themselves (Pss_Anon), looked at every half second.
"""

import argparse
import contextlib
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.reading import anonymous_bytes
from benchmarks.side_by_side import BenchmarkError, header, show

COMMAND = [sys.executable, "-m", "pellucid", "tokenizer"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: one word in this many is replaced
RARE = 100
#: documents that are decoded and compared
COMPARED = 50
HELD_OUT = 0.001


def write_texts(sources: Path, folder: Path, n_bytes: int) -> int:
    """Write changed copies of the .txt files below `sources` until they hold `n_bytes`; the bytes written."""
    texts = [path.read_text(encoding="utf-8", errors="replace").split(" ") for path in sorted(sources.rglob("*.txt"))]
    written = 0
    for copy in range(n_bytes):
        here = folder / f"{copy:05d}"
        here.mkdir()
        for number, words in enumerate(texts):
            rng = random.Random(f"{copy}/{number}")
            changed = words.copy()
            for index in rng.sample(range(len(words)), len(words) // RARE):
                changed[index] = "".join(rng.choices(LETTERS, k=rng.randint(3, 9)))
            content = " ".join(changed).encode()
            (here / f"{number:03d}.txt").write_bytes(content)
            written += len(content)
            if written >= n_bytes:
                return written
    raise BenchmarkError(f"{sources} has no text")


def encode(arguments: list[str], environment: dict[str, str], stop: Callable[[], bool]) -> tuple[float, int, str]:
    """Encode until the end, or until `stop()`: then the process is killed, and its children end by themselves.

    Seconds, peak memory in bytes, and what was printed; nothing is printed by a process that was killed.
    """
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        [*COMMAND, "encode-corpus", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        if stop():
            process.kill()
        time.sleep(0.5)
    seconds = time.perf_counter() - start
    said = process.stdout.read() if process.stdout else ""
    if process.returncode not in (0, -9):
        raise BenchmarkError(f"encode-corpus ended with code {process.returncode}")
    return seconds, peak, said


def cpu_seconds() -> float:
    """CPU seconds of the processes that have ended, with those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def identity(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written again: its number in the file system, its size, when it was changed."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def finished(cache: Path) -> dict[str, tuple[int, int, int]]:
    """The identity of every shard whose record is written."""
    found = {}
    for record in cache.rglob("*-*.json"):
        with contextlib.suppress(OSError):  # the folder got its name meanwhile
            found[record.stem] = identity(record.with_suffix(".bin"))
    return found


def compare(texts: Path, folder: Path) -> int:
    """Decode documents drawn at random and compare them with the files they come from; how many were compared."""
    from pellucid.text.read.documents import read_corpus
    from pellucid.text.split import split_corpus
    from pellucid.text.tokenizers.tokenizer import load_tokenizer
    from pellucid.text.tokens.store import Tokens

    tokenizer = load_tokenizer(folder)
    part = Tokens.open(folder, tokenizer).part("train")
    split = split_corpus(read_corpus([texts]), HELD_OUT, 1337)
    numbers = np.flatnonzero(np.array(split.cuts))
    if len(numbers) != len(part.starts):
        raise BenchmarkError(f"{len(part.starts)} documents were encoded, {len(numbers)} were to be")
    ends = np.append(part.starts[1:], len(part))
    chosen = random.Random(0).sample(range(len(numbers)), min(COMPARED, len(numbers)))
    for k in chosen:
        number = int(numbers[k])
        (text,) = ("".join(p.text for p in pieces) for pieces in split.documents("train", range(number, number + 1)))
        if tokenizer.decode(part.read(int(part.starts[k]), int(ends[k]) - 1).tolist()) != text:
            raise BenchmarkError(f"document {number} decodes to another text")
    return len(chosen)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        texts, cache, tokenizer = (Path(temporary) / name for name in ("texts", "cache", "tokenizer"))
        texts.mkdir()
        cache.mkdir()
        environment = {**os.environ, "PELLUCID_CACHE": str(cache)}
        n_bytes = write_texts(options.texts, texts, int(options.gigabytes * 1e9))
        start = time.perf_counter()
        size = ["--vocabulary", str(options.vocabulary), "--sample", "0.01"]
        subprocess.run([*COMMAND, "train", str(texts), *size, "--out", str(tokenizer)], check=True, capture_output=True)
        learned = time.perf_counter() - start

        arguments = [str(texts), "--tokenizer", str(tokenizer), "--held-out", str(HELD_OUT)]
        a_third = n_bytes / 4 / 3 / 2**24  # about four bytes a token, 2**24 tokens a shard
        first = encode(arguments, environment, lambda: len(finished(cache)) >= a_third)
        before = finished(cache)
        unfinished = sum(path.stat().st_size for path in cache.rglob("*-*.bin") if path.stem not in before)
        used = cpu_seconds()
        second = encode(arguments, environment, lambda: False)
        used = cpu_seconds() - used
        found = re.search(r"in (\S+)$", second[2].strip())
        if found is None:
            raise BenchmarkError(f"encode-corpus said {second[2]!r}")
        folder = Path(found[1])
        if rewritten := [name for name, file in before.items() if identity(folder / f"{name}.bin") != file]:
            raise BenchmarkError(f"finished shards were written again: {', '.join(rewritten)}")
        n_tokens = sum(path.stat().st_size for path in folder.glob("*-*.bin")) // np.dtype(np.uint16).itemsize
        of_second = 1 - sum(size for _, size, _ in before.values()) / np.dtype(np.uint16).itemsize / n_tokens
        compared = compare(texts, folder)

    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    rows = [
        ["learning the tokenizer from 1 % of it", f"{learned:.0f} s"],
        ["encoding until it was killed", f"{first[0]:.0f} s, {len(before)} shards finished"],
        ["lost by the kill", f"{unfinished / 1e6:.1f} MB of one shard of 33.6 MB"],
        ["encoding the rest, with reading again", f"{second[0]:.0f} s"],
        ["of which CPU time", f"{used:.0f} s: {n_bytes / 1e6 * of_second / used:.2f} MB of text a CPU second"],
        ["both", f"{n_bytes / 1e6 / (first[0] + second[0]):.1f} MB/s"],
        ["peak anonymous memory", f"{first[1] / 1e6:.0f} and {second[1] / 1e6:.0f} MB"],
        ["tokens", f"{n_tokens:,}, {n_bytes / n_tokens:.2f} bytes each"],
        ["documents decoded and compared", f"{compared}"],
    ]
    show(f"{n_bytes / 1e9:.2f} GB of text", ["", ""], rows)


if __name__ == "__main__":
    main()
