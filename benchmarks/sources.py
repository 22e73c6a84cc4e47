"""What sorting a text takes, beside pydivsufsort's own call on its ids, and what a question takes.

    python -m benchmarks.sources [--tokens 1000000 10000000] [--rounds 5]

Tokens are drawn from Zipf's law, 16,384 kinds. Each build runs in a fresh process, which says how much its memory grew;
both ways take turns. A question looks up 1,000 tokens, half of them copied from the text, warm. Seconds are of the
processor, which other work on the machine changes little.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.side_by_side import Measured, Turn, header, interleave, show, spread
from pellucid.sources.suffix_array import sorted_positions
from pellucid.sources.text_index import TextIndex
from pellucid.text.tokens.store import TokenSequence

KINDS = 16_384
WAYS = ("pellucid", "pydivsufsort's call")


def zipf_tokens(n: int) -> np.ndarray:
    """Ids by Zipf's law, uint16; drawn in stretches, so that drawing needs little memory."""
    random, ids = np.random.default_rng(0), np.empty(n, "<u2")
    for start in range(0, n, 1 << 16):
        stretch = ids[start : start + (1 << 16)]
        stretch[:] = random.zipf(1.3, len(stretch)) % (KINDS - 1)
    return ids


def build(way: str, n: int) -> None:
    """Sort n tokens, and print the seconds and the bytes of memory a token beside the tokens."""
    import pydivsufsort  # not a part of what is measured

    ids = zipf_tokens(n)
    sorted_positions(ids[:1000])
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if way == WAYS[0]:
        sorted_positions(ids)
    else:
        pydivsufsort.divsufsort(ids)
    took = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": took, "bytes": 1024 * (after - before) / n}))


def build_apart(way: str, n: int, memory: dict[str, list[float]]) -> float:
    """The seconds of a build in a process of its own; its memory is added to the list of its way."""
    command = [sys.executable, "-m", "benchmarks.sources", "--build", way, "--tokens", str(n)]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    memory.setdefault(way, []).append(answer["bytes"])
    return answer["seconds"]


def processor_seconds(work: Callable[[], object]) -> Turn:
    """A turn that times one call by the processor's clock."""

    def turn() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return turn


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        return build(options.build, options.tokens[0])
    print("\n".join(header(torch.device("cpu"), ["numpy", "pydivsufsort"])))
    for n in options.tokens:
        memory: dict[str, list[float]] = {}
        builds = interleave({way: partial(build_apart, way, n, memory) for way in WAYS}, options.rounds, warm_up=0)
        rows = [(way, spread(times, digits=2), spread(Measured(way, memory[way]))) for way, times in builds.items()]
        show(f"sorting {n:,} tokens", ("way", "seconds", "bytes a token, beside the tokens"), rows)
        ids = zipf_tokens(n)
        index = TextIndex.of_ids(TokenSequence([ids], np.array([0]), KINDS), [KINDS - 1])
        copied, drawn = ids[n // 2 : n // 2 + 500], np.random.default_rng(1).choice(ids, 500)
        query = np.concatenate([copied, drawn]).tolist()
        questions = interleave(
            {
                "spans of 1,000 tokens": processor_seconds(partial(index.spans, query, 12)),
                "count of 5 tokens": processor_seconds(partial(index.count, query[:5])),
                "continuation of 500 tokens": processor_seconds(partial(index.continuation, query[:500])),
            },
            options.rounds,
        )
        rows = [(name, spread(times, 1000, 2)) for name, times in questions.items()]
        show(f"asking {n:,} tokens", ("question", "milliseconds"), rows)
    return None


if __name__ == "__main__":
    main()
