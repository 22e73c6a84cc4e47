"""What patching costs: GPT-2 small's shape with random weights, two texts of 16 tokens, 12 blocks x 16 positions.

    python -m benchmarks.patching
    python -m benchmarks.patching --rounds 2 --ways naive attribution

Naive: a run of the whole network for each of the 192 positions. Exact: `pellucid.lens.analysis.patching` (one batch
a block, from that block and from the patched position on). Attribution: one backward pass. Rounds alternate; medians.
"""

import argparse
import statistics
import time

import torch

from benchmarks.side_by_side import header
from pellucid import edits
from pellucid.lens.analysis.metrics import PreparedMetric, logit_diff
from pellucid.lens.analysis.patching import patch
from pellucid.lens.trace import trace
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.presets import preset
from pellucid.text_model import of_ids

LENGTH, ROUNDS = 16, 3
WAYS = ("naive", "exact", "attribution")


def naive(network: Transformer, clean: list[int], corrupt: list[int]) -> torch.Tensor:
    """The metric of a whole run for each place [layer, pos]."""
    good, metric = trace(of_ids(network), clean), logit_diff(7, 8)
    prepared, found = PreparedMetric(metric, trace(of_ids(network), corrupt)), torch.zeros(12, LENGTH)
    for layer in range(12):
        for place in range(LENGTH):
            name = f"blocks.{layer}.resid_pre"
            edit = edits.resample(name, good[name], pos=place)
            found[layer, place] = prepared(trace(of_ids(network), corrupt, edits=[edit]).logits)[0]
    return found


def main() -> None:
    """Print seconds, shares of the naive time, and how far the exact values are from the naive ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="some of them; naive is always run")
    options = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    network = initialise(Transformer(preset("gpt2")), 0).eval()
    generator = torch.Generator().manual_seed(0)
    clean, corrupt = torch.randint(0, 50257, (2, LENGTH), generator=generator).tolist()
    ways = {
        "naive": lambda: naive(network, clean, corrupt),
        "exact": lambda: patch(of_ids(network), clean, corrupt, logit_diff(7, 8)).values,
        "attribution": lambda: patch(of_ids(network), clean, corrupt, logit_diff(7, 8), mode="attribution").values,
    }
    chosen = [name for name in WAYS if name == "naive" or name in options.ways]
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    values = {}
    for _ in range(options.rounds):
        for name in chosen:
            start = time.perf_counter()
            values[name] = ways[name]()
            seconds[name].append(time.perf_counter() - start)
    whole = statistics.median(seconds["naive"])
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        share = 100 * middle / whole
        print(f"{name:12} {middle:8.3f} s {share:7.2f} % of naive ({min(taken):.3f} to {max(taken):.3f} s)")
    if "exact" in values:
        print(f"largest difference, exact from naive: {(values['exact'] - values['naive']).abs().max():.1e}")


if __name__ == "__main__":
    main()
