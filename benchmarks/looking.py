"""What looking costs: memory and time of a pass over 4 x 256 tokens, GPT-2 small's shape, float32.

    python -m benchmarks.looking

Each row is a process of its own, whose peak of resident memory is compared with what it was before the pass.
"""

import argparse
import resource
import sys
import time
from typing import Any

import torch

from benchmarks.side_by_side import Measured, Worker, header, serve, show, spread

BATCH, LENGTH = 4, 256
ROWS = {
    "nothing": "nothing",
    "an attention pattern": "pattern",
    "everything available": "available",
    "everything kept": "everything",
}


def looking(what: str) -> Any:
    """A pass of ours that looks at `what`."""
    from pellucid.lens.trace import trace
    from pellucid.model import Transformer
    from pellucid.model.weights import initialise
    from pellucid.presets import preset

    network = initialise(Transformer(preset("gpt2")), 0).eval()
    keep = {"pattern": "blocks.5.attn.pattern", "everything": "*"}.get(what, ())

    def work(tokens: torch.Tensor) -> Any:
        if what == "nothing":
            with torch.inference_mode():
                return network(tokens)
        return trace(network, None, tokens, keep=keep)

    return work


def peak() -> float:
    """Bytes of resident memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def worker(what: str) -> None:
    """One row's process: memory of the first pass after a token's, then seconds."""
    work = looking(what)
    work(torch.zeros(1, 2, dtype=torch.int64))
    tokens = torch.randint(0, 50257, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))

    def measure(_: str) -> dict[str, Any]:
        before, start = peak(), time.perf_counter()
        made = work(tokens)
        return {"seconds": time.perf_counter() - start, "bytes": peak() - before, "kept": type(made).__name__}

    serve({}, measure)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    rows = []
    for name, given in ROWS.items():
        with Worker([sys.executable, "-m", "benchmarks.looking", "--worker", given]) as process:
            answers = [process.ask() for _ in range(options.rounds)]
        times = Measured(name, [answer["seconds"] for answer in answers])
        rows.append([name, f"{answers[0]['bytes'] / 1e6:,.0f}", spread(times, 1e3)])
    show(f"{BATCH} x {LENGTH} tokens", ["", "MB more", "ms"], rows)
    return None


if __name__ == "__main__":
    main()
