"""Whether runs of minutes end in time with their learning rate at the floor, alone and beside other work.

    python -m benchmarks.deadline TEXT [TEXT ...] --minutes 0.3 1 3 --runs 3 --beside 0 2

Each run is a process of its own; its time is that of `pellucid.train`, the reading of the text and the report included,
the start of Python and the import of its libraries not. `--beside N` keeps N processes busy with matrix products
meanwhile: for all of the run, and, where the number is negative, in bursts of four seconds. A run ends in time where it
takes from 95 % to 105 % of what was asked for.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

WORKER = """
import json, sys, time
from pellucid.training_run import train
began = time.monotonic()
run = train(sys.argv[1], out=sys.argv[2], minutes=float(sys.argv[3]))
seconds = time.monotonic() - began
rows = [json.loads(line) for line in open(run.path / "metrics.jsonl")]
rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
print(json.dumps({
    "seconds": seconds, "steps": run.step, "planned": run.recipe.record.planned,
    "decay": run.recipe.record.decay[0] if run.recipe.record.decay else 0,
    "last": rates[-1] / run.recipe.train.learning_rate, "floor": run.recipe.train.floor,
    "before": rows[0]["seconds"] if rows else 0.0, "bits": run.bits_per_byte,
    "capped": bool(run.recipe.train.epochs),
}))
"""

BUSY = """
import sys, time
import torch
torch.set_num_threads(1)
a, burst = torch.randn(512, 512), int(sys.argv[1]) < 0
while True:
    until = time.monotonic() + 4
    while time.monotonic() < until:
        a @ a
    time.sleep(4 if burst else 0)
"""


@contextmanager
def beside(n: int):
    """As many busy processes as |n|; in bursts where it is negative."""
    with ExitStack() as stack:
        for _ in range(abs(n)):
            process = subprocess.Popen([sys.executable, "-c", BUSY, str(n)])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def one(text: Path, minutes: float, n: int) -> dict:
    """A run, and how it ended."""
    with tempfile.TemporaryDirectory() as folder, beside(n):
        command = [sys.executable, "-c", WORKER, str(text), str(Path(folder) / "run"), str(minutes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """One line a run, and how many ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--minutes", nargs="+", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--beside", nargs="+", type=int, default=[0, 2])
    options = parser.parse_args()
    print(
        f"{'text':<20} {'minutes':>7} {'beside':>6} {'time':>7} {'first plan':>10} {'steps':>6} {'decay':>6} "
        f"{'last rate':>9}  {'bits/byte':>9}",
        flush=True,
    )
    good = total = 0
    for text in options.texts:
        for minutes in options.minutes:
            for n in options.beside:
                for _ in range(options.runs):
                    found = one(text, minutes, n)
                    share, at_floor = found["seconds"] / (60 * minutes), found["last"] <= found["floor"] * 1.001
                    in_time = share <= 1.05 and (share >= 0.95 or found["capped"])
                    good, total = good + (in_time and at_floor), total + 1
                    print(
                        f"{text.name:<20} {minutes:>7g} {n:>6} {share:>7.1%} {found['planned']:>10,} "
                        f"{found['steps']:>6,} {found['decay']:>6} {found['last']:>8.1%}  {found['bits']:>9.4f}"
                        + ("" if in_time else "  not in time")
                        + ("" if at_floor else "  above the floor"),
                        flush=True,
                    )
    print(f"{good} of {total} ended in time, within 5 %, at the floor of their schedule")


if __name__ == "__main__":
    main()
