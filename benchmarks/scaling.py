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
        library = "nanogpt" if self.library == "accelerate" else self.library
        return Way(library, self.processes, self.rows * part_of // self.processes, part_of=part_of)


class Groups:
    """The processes of each library in each number, started when they are first asked."""

    def __init__(self, nanogpt: str | None):
        self.nanogpt, self.stack = nanogpt, ExitStack()
        self.workers: dict[tuple[str, int], Worker] = {}

    def worker(self, library: str, n: int) -> Worker:
        """The group of `n` processes, which torchrun starts; one process is started as it is."""
        if (library, n) not in self.workers:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            given = {"shape": SHAPE, "port": port, "nanogpt": self.nanogpt}
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] if n > 1 else []
            command = [sys.executable, *torchrun, str(WORKER), library, json.dumps(given)]
            path = os.pathsep.join(filter(None, (str(WORKER.parent.parent / "src"), os.environ.get("PYTHONPATH"))))
            worker = Worker(command, OMP_NUM_THREADS="1" if n > 1 else "2", PYTHONPATH=path)
            self.workers[library, n] = self.stack.enter_context(worker)
        return self.workers[library, n]

    def turn(self, way: Way, steps: int) -> float:
        """Seconds of a step."""
        return self.worker(way.library, way.processes).ask(json.dumps(asdict(way) | {"steps": steps}))["seconds"]


def main() -> None:
    """Measure both tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", help="path of a clone of nanoGPT; it and accelerate are left out without one")
    parser.add_argument("--tables", nargs="+", choices=("strong", "weak"), default=["strong", "weak"])
    parser.add_argument("--rows", type=int, default=8, help="of a batch, each of 128 tokens")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    o = parser.parse_args()
    print(*header(torch.device("cpu"), ("accelerate",)), sep="\n")
    print(f"layers, heads, width, context, vocabulary = {SHAPE}, float32, AdamW, {o.rows} rows")
    peers = ["nanogpt", "accelerate"] if o.nanogpt else []
    if o.nanogpt:
        print(for_gloo((Path(o.nanogpt) / "train.py").read_text())[1])
    libraries = ["pellucid", *(["nanogpt"] if o.nanogpt else [])]
    groups = Groups(o.nanogpt)
    with groups.stack:
        if "strong" in o.tables:
            strong(groups, o, libraries, peers)
        if "weak" in o.tables:
            weak(groups, o, libraries)


def measured(groups: Groups, ways: list[Way], o: argparse.Namespace) -> dict[Way, Measured]:
    """Every way in turns; those that cannot be run are said and left out."""
    turns: dict[str, Turn] = {}
    for way in ways:
        try:
            groups.turn(way, 1)
        except BenchmarkError as error:
            print(f"left out: {way.name}: {error}")
            continue
        turns[way.name] = partial(groups.turn, way, o.steps)
    figures = interleave(turns, o.rounds, warm_up=0)
    return {way: figures[way.name] for way in ways if way.name in figures}


def strong(groups: Groups, o: argparse.Namespace, libraries: list[str], peers: list[str]) -> None:
    """One batch, whatever the number of processes."""
    pairs = [("pellucid", (2, 1, 1)), ("pellucid", (1, 2, 1)), ("pellucid", (1, 1, 2))]
    pairs += [("nanogpt", (2, 1, 1))] * ("nanogpt" in peers) + [("accelerate", (1, 2, 1))] * ("accelerate" in peers)
    together = [Way(library, 2, o.rows, layout) for library, layout in pairs]
    apart = list(dict.fromkeys(way.apart for way in together))
    single = [Way(library, 1, o.rows, threads=threads) for library in libraries for threads in (1, 2)]
    found = measured(groups, [*single, *together, *apart], o)
    rows = []
    for way, times in found.items():
        library = "nanogpt" if way.library == "accelerate" else way.library
        one, two = (found[Way(library, 1, o.rows, threads=threads)] for threads in (1, 2))
        cells = [way.name, spread(times, 1e3), "", "", ""]
        if way.layout or way.processes == 1:
            cells[2:4] = [spread(times.ratio_to(one), 1, 2), spread(times.ratio_to(two), 1, 2)]
        if way.layout and way.apart in found:
            shares = [1 - 1 / ratio for ratio in found[way.apart].ratio_to(times).values]
            cells[4] = spread(Measured("share", shares), 100, 0) + " %"
        rows.append(cells)
    columns = [f"{o.rows} rows in all", "ms a step", "x 1 thread", "x 2 threads", "communication"]
    show("One batch for all processes", columns, rows)


def weak(groups: Groups, o: argparse.Namespace, libraries: list[str]) -> None:
    """One batch for each process."""
    ways = [
        Way(library, n, n * o.rows, (n, 1, 1) if n > 1 else None) for library in libraries for n in (1, 2, 4)
    ]  # fmt: skip
    found = measured(groups, ways, o)
    cores = os.cpu_count() or 1
    rows = []
    for way, times in found.items():
        one = found[Way(way.library, 1, o.rows)]
        busy = way.processes / min(way.processes, cores)
        share = Measured("share", [busy * ratio for ratio in times.ratio_to(one).values])
        tokens = Measured("tokens/s", [way.rows * SHAPE[3] / t for t in times.values])
        rows.append([way.name, spread(times, 1e3), spread(tokens, 1, 0), f"{spread(share, 100, 0)} %"])
    columns = [f"{o.rows} rows a process", "ms a step", "tokens/s", f"of {cores} cores' ideal"]
    show("One batch for each process", columns, rows)


if __name__ == "__main__":
    main()
