"""Timing one thing beside another: A B A B ... in one run, medians with quartiles, ratios pair by pair.

The same work varies by a quarter between processes and hours on a shared machine, so a number by itself says little:
what is compared is measured in turns, and a ratio is taken within each turn before the median is.
"""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console
from rich.table import Table

#: what a turn gives: seconds, or whatever else is compared
Turn = Callable[[], float]


class BenchmarkError(RuntimeError):
    """A peer that could not be measured."""


@dataclass
class Measured:
    """The figures of one candidate, one for each round."""

    name: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile; of fewer than four figures, the smallest and the largest."""
        if len(self.values) < 4:
            return min(self.values), max(self.values)
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def ratio_to(self, other: "Measured") -> "Measured":
        """other / self, round by round: how many times faster this is, where the figures are seconds."""
        pairs = zip(other.values, self.values, strict=True)
        return Measured(f"{other.name} / {self.name}", [theirs / own for theirs, own in pairs])


def seconds(work: Callable[[], object]) -> Turn:
    """A turn that times one call of `work`, which has to wait for its device itself."""

    def turn() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return turn


def interleave(turns: Mapping[str, Turn], rounds: int, warm_up: int = 1) -> dict[str, Measured]:
    """Every candidate once a round, in an order that is reversed every other round; warm-up rounds are not kept."""
    found = {name: Measured(name) for name in turns}
    for number in range(warm_up + rounds):
        names = list(turns) if number % 2 == 0 else list(turns)[::-1]
        for name in names:
            value = turns[name]()
            if number >= warm_up:
                found[name].values.append(value)
    return found


class Worker:
    """A process that prepares something and then measures once whenever it is asked, so that processes can alternate.

    It prints one line of JSON when it is ready (versions, or {"error": ...}), and one, {"seconds": ...} and whatever
    else, for each line it is sent. Everything else that it prints goes to a file and is shown when it fails.
    """

    def __init__(self, command: Sequence[str], **environment: str):
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.about = self.read()

    def ask(self, line: str = "go") -> dict[str, Any]:
        """What it answers."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def turn(self) -> float:
        """The seconds that it measured."""
        return self.ask()["seconds"]

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise BenchmarkError(answer["error"])
                return answer
        self.process.wait()
        self.log.seek(0)
        raise BenchmarkError(f"it ended with {self.process.returncode}: {self.log.read()[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def serve(about: dict[str, Any], measure: Callable[[str], dict[str, Any]]) -> None:
    """A worker's side: say that all is ready, then measure once for each line that comes."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), flush=True)


# Machine and ceilings -----------------------------------------------------------------------


def cpu_name() -> str:
    """What the system calls the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def header(device: torch.device, packages: Iterable[str] = ()) -> list[str]:
    """Machine and versions, a line each."""
    lines = [
        f"machine: {cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}, {platform.system()}",
        f"versions: Python {platform.python_version()}, torch {torch.__version__}" + "".join(map(version, packages)),
    ]
    if device.type == "cuda":
        lines.append(f"device: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
    return lines


def version(package: str) -> str:
    """`, NAME VERSION`, or that it is not there."""
    try:
        return f", {package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f", {package} not installed"


def wait_for(device: torch.device) -> None:
    """Return when all that was started on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def cube_of(device: torch.device) -> int:
    """Rows and columns of the matrices whose product measures the device; on a GPU small ones take no time at all."""
    return 1024 if device.type == "cpu" else 8192


def matrix_product(device: torch.device, dtype: torch.dtype, rounds: int = 7) -> Measured:
    """FLOP/s of n-cube matrix products (`cube_of`), 2 n^3 each; off the CPU ten are computed between two waits."""
    n, at_once = cube_of(device), 1 if device.type == "cpu" else 10
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))

    def work() -> None:
        for _ in range(at_once):
            torch.mm(a, b)
        wait_for(device)

    times = interleave({str(dtype): seconds(work)}, rounds)[str(dtype)]
    return Measured(times.name, [at_once * 2 * n**3 / t for t in times.values])


def memory_read(device: torch.device, n_bytes: int = 1 << 29, rounds: int = 7) -> Measured:
    """Bytes read per second by a sum over float32 numbers, too many of them for any cache."""
    x = torch.ones(n_bytes // 4, device=device)

    def work() -> None:
        x.sum()
        wait_for(device)

    times = interleave({"read": seconds(work)}, rounds)["read"]
    return Measured("read", [n_bytes / t for t in times.values])


# Tables -------------------------------------------------------------------------------------


def spread(m: Measured, scale: float = 1.0, digits: int = 1) -> str:
    """`median (lower quartile ... upper quartile)`, times `scale`."""
    low, high = (scale * q for q in m.quartiles)
    return f"{scale * m.median:,.{digits}f} ({low:,.{digits}f} ... {high:,.{digits}f})"


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as it needs to be, plain where the output is no terminal."""
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=True)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()
