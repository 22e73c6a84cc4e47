"""Training by several processes of one machine beside one process, beside nanoGPT under torchrun and accelerate's FSDP.

    python -m benchmarks.scaling --nanogpt PATH

The first table has one batch: a process of one thread, one of two, and two of one thread each. The second has one batch
for each process (weak scaling): 1, 2 and 4 processes, of which two cores compute two at a time. All take turns.

What communication takes of a step is found by comparing with as many processes that train apart from each other at the
same time, each on its own rows, or, for tensor parallelism, its part of the layers: they share the machine's memory as
those that train together do, and send nothing. They update whole weights, which `shard` divides.
"""

import argparse
import json
import os
import socket
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.scaling_worker import for_gloo
from benchmarks.side_by_side import BenchmarkError, Measured, Turn, Worker, header, interleave, show, spread

#: n_layers, n_heads, d_model, n_ctx, n_vocab
SHAPE = [4, 4, 256, 128, 512]
WORKER = Path(__file__).with_name("scaling_worker.py")


@dataclass(frozen=True)
class Way:
    """One way to train: `rows` in a step, by `processes` in a layout, or apart from each other without one."""

    library: str
    processes: int
    rows: int
    layout: tuple[int, int, int] | None = None
    threads: int = 1
    #: layers are one part of so many
    part_of: int = 1

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.processes == 1:
            return f"{self.library}: 1 process, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.library}: {self.processes} processes, {self.words}"

    @property
    def words(self) -> str:
        """The layout, by the name of its kind."""
        if self.layout is None:
            return "apart" if self.part_of == 1 else "apart, half of each layer"
        own = {"pellucid": ("replicate", "shard", "tensor"), "nanogpt": ("DDP",), "accelerate": ("", "FSDP")}
        return next(word for word, n in zip(own[self.library], self.layout, strict=False) if n > 1)

    @property
    def apart(self) -> "Way":
        """The same work without sending anything."""
        assert self.layout is not None
        part_of = self.layout[2]
        return Way(compared(self), self.processes, self.rows * part_of // self.processes, part_of=part_of)


def compared(way: Way) -> str:
    """The library whose network this way trains: accelerate divides nanoGPT's."""
    return "nanogpt" if way.library == "accelerate" else way.library


class Groups:
    """The processes of each library in each number."""

    def __init__(self, nanogpt: str | None):
        self.nanogpt, self.stack = nanogpt, ExitStack()
        self.workers: dict[tuple[str, int], Future[Worker]] = {}

    def start(self, ways: list[Way]) -> None:
        """Start all groups at once: importing takes longer than anything else here."""
        with ThreadPoolExecutor() as pool:
            for library, n in dict.fromkeys((way.library, way.processes) for way in ways):
                self.workers[library, n] = pool.submit(self.worker, library, n)

    def worker(self, library: str, n: int) -> Worker:
        """A group of `n` processes, which torchrun starts; one process is started as it is."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = {"shape": SHAPE, "port": port, "nanogpt": self.nanogpt}
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] if n > 1 else []
        command = [sys.executable, *torchrun, str(WORKER), library, json.dumps(given)]
        path = os.pathsep.join(filter(None, (str(WORKER.parent.parent / "src"), os.environ.get("PYTHONPATH"))))
        return self.stack.enter_context(Worker(command, OMP_NUM_THREADS="1" if n > 1 else "2", PYTHONPATH=path))

    def turn(self, way: Way, steps: int) -> float:
        """Seconds of a step. Raises BenchmarkError where the group could not be started."""
        worker = self.workers[way.library, way.processes].result()
        return worker.ask(json.dumps(asdict(way) | {"steps": steps}))["seconds"]


def main() -> None:
    """Measure everything in turns and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", help="path of a clone of nanoGPT; it and accelerate are left out without one")
    parser.add_argument("--rows", type=int, default=8, help="of a batch, each of 128 tokens")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    o = parser.parse_args()
    print(*header(torch.device("cpu"), ("accelerate",)), sep="\n")
    print(f"layers, heads, width, context, vocabulary = {SHAPE}, float32, AdamW, {o.rows} rows")
    if o.nanogpt:
        print(for_gloo((Path(o.nanogpt) / "train.py").read_text())[1])
    libraries = ["pellucid", *(["nanogpt"] if o.nanogpt else [])]
    groups = Groups(o.nanogpt)
    with groups.stack:
        found = measured(groups, [*strong_ways(o.rows, libraries), *weak_ways(o.rows, libraries)], o)
    show("One batch for all processes", *strong_table(found, o.rows, libraries))
    show("One batch for each process", *weak_table(found, o.rows, libraries))


def measured(groups: Groups, ways: list[Way], o: argparse.Namespace) -> dict[Way, Measured]:
    """Every way in turns; those that cannot be run are said and left out."""
    groups.start(ways)
    turns: dict[Way, Turn] = {}
    for way in ways:
        try:
            groups.turn(way, 1)
        except BenchmarkError as error:
            print(f"left out: {way.name}: {error}")
            continue
        turns[way] = partial(groups.turn, way, o.steps)
    print("every way has taken a step", file=sys.stderr, flush=True)
    named = {str(number): turn for number, turn in enumerate(turns.values())}
    return dict(zip(turns, interleave(named, o.rounds, warm_up=1).values(), strict=True))


def strong_ways(rows: int, libraries: list[str]) -> list[Way]:
    """One batch, whatever the number of processes."""
    layouts = {"pellucid": [(2, 1, 1), (1, 2, 1), (1, 1, 2)], "nanogpt": [(2, 1, 1)]}
    together = [Way(library, 2, rows, layout) for library in libraries for layout in layouts[library]]
    together += [Way("accelerate", 2, rows, (1, 2, 1))] * ("nanogpt" in libraries)
    single = [Way(library, 1, rows, threads=threads) for library in libraries for threads in (1, 2)]
    return [*single, *together, *dict.fromkeys(way.apart for way in together)]


def strong_table(found: dict[Way, Measured], n: int, libraries: list[str]) -> tuple[list[str], list[list[str]]]:
    """How many times faster than one process, and what communication takes."""
    rows = []
    for way in (way for way in strong_ways(n, libraries) if way in found):
        times = found[way]
        one, two = (found[Way(compared(way), 1, n, threads=threads)] for threads in (1, 2))
        cells = [way.name, spread(times, 1e3), "", "", ""]
        if way.layout or way.processes == 1:
            cells[2:4] = [spread(times.ratio_to(one), 1, 2), spread(times.ratio_to(two), 1, 2)]
        if way.layout and way.apart in found:
            shares = [1 - 1 / ratio for ratio in found[way.apart].ratio_to(times).values]
            cells[4] = spread(Measured("share", shares), 100, 0) + " %"
        rows.append(cells)
    return [f"{n} rows in all", "ms a step", "x 1 thread", "x 2 threads", "communication"], rows


def weak_ways(rows: int, libraries: list[str]) -> list[Way]:
    """One batch for each process."""
    return [Way(library, n, n * rows, (n, 1, 1) if n > 1 else None) for library in libraries for n in (1, 2, 4)]


def weak_table(found: dict[Way, Measured], n: int, libraries: list[str]) -> tuple[list[str], list[list[str]]]:
    """Tokens a second, and their share of what one process reads times the cores that compute."""
    cores = os.cpu_count() or 1
    rows = []
    for way in (way for way in weak_ways(n, libraries) if way in found):
        times = found[way]
        waits = way.processes / min(way.processes, cores)  # more processes than cores compute one after another
        shares = [waits * ratio for ratio in times.ratio_to(found[Way(way.library, 1, n)]).values]
        tokens = Measured("tokens/s", [way.rows * SHAPE[3] / t for t in times.values])
        rows.append([way.name, spread(times, 1e3), spread(tokens, 1, 0), spread(Measured("", shares), 100, 0) + " %"])
    return [f"{n} rows a process", "ms a step", "tokens/s", f"of the ideal, {cores} cores"], rows


if __name__ == "__main__":
    main()
