"""The first token: seconds from the end of `import torch` to one generated token, each time in a new process.

    python -m benchmarks.first_token
    python -m benchmarks.first_token runs/my_texts

The model has 4 layers of width 128 and random weights, in the package's own format, unless a run or another model is
named. Files are warm in memory and modules are compiled, as pip leaves them: a process before the first that counts
sees to both. CPU-seconds are those of the process, on all its cores, which another program on the machine changes
little.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.side_by_side import Measured, header, show, spread
from benchmarks.start_up import save_own

#: target of the project, CPU-seconds from the end of `import torch`
TARGET = 0.6
PARTS = ("import pellucid's language model", "load", "generate one token", "in all")
ONE_TOKEN = """
import json, sys, torch
from time import perf_counter, process_time
times = [(process_time(), perf_counter())]
import pellucid
pellucid.LanguageModel
times.append((process_time(), perf_counter()))
model = pellucid.load(sys.argv[1], device="cpu")
times.append((process_time(), perf_counter()))
next(iter(model.stream("text", max_tokens=1, seed=1)))
times.append((process_time(), perf_counter()))
print(json.dumps(times))
"""


def seconds_of(model: str, environment: dict[str, str]) -> list[tuple[float, float]]:
    """CPU and wall seconds of each part in a new process, and of all of them."""
    command = [sys.executable, "-c", ONE_TOKEN, model]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    times = json.loads(done.stdout.splitlines()[-1])
    ends = [*zip(times[1:], times[:-1], strict=True), (times[-1], times[0])]
    return [(cpu - cpu_before, wall - wall_before) for (cpu, wall), (cpu_before, wall_before) in ends]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a run, a saved model or a Hugging Face folder")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    cpu, wall = ([Measured(part) for part in PARTS] for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or str(save_own(Path(folder) / "own"))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        for number in range(1 + options.rounds):
            measured = seconds_of(model, environment)
            for part, (of_cores, of_clock) in enumerate(measured if number else []):
                cpu[part].values.append(of_cores)
                wall[part].values.append(of_clock)
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    rows = [[c.name, spread(c, 1, 3), spread(w, 1, 3), ""] for c, w in zip(cpu, wall, strict=True)]
    rows[-1][-1] = f"<= {TARGET}"
    columns = ["", "CPU-seconds (quartiles)", "wall seconds (quartiles)", "target"]
    show("from the end of `import torch`", columns, rows)


if __name__ == "__main__":
    main()
