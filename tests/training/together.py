"""Runs of several processes of this machine, joined by gloo as a launcher would join them."""

import faulthandler
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.multiprocessing as mp
from tiny import FIELDS
from torch._inductor.async_compile import AsyncCompile

import pellucid

STEPS = 20


#: seconds that processes have to end, before a test says which of them hang
DEADLINE = 400.0


def work(rank: int, environment: dict[str, str], stacks: str, do: Callable[[int], object]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    # what it waits for, where together() asks; the file stays open as long as the process lives
    faulthandler.register(signal.SIGUSR1, file=open(f"{stacks}/{rank}", "w"))  # noqa: SIM115
    # a fork inherits Inductor's pool of compiling threads without the threads, where an earlier test compiled: what it
    # is given then waits for ever. PyTorch clears its other pool after a fork
    AsyncCompile.pool.cache_clear()
    gc.freeze()  # what the test's process has imported is never garbage here, and takes half a second to walk over
    torch.set_num_threads(1)
    do(rank)


def together(n: int, do: Callable[[int], object], deadline: float = DEADLINE) -> None:
    """Do it in `n` processes that a launcher would have started; an error of one of them is raised here.

    Raises TimeoutError where some have not ended after `deadline` seconds, with the line that each of them has reached.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with TemporaryDirectory() as stacks:
        arguments = (environment, stacks, do)
        started = mp.start_processes(work, arguments, nprocs=n, join=False, start_method="fork")
        assert started is not None
        until = time.monotonic() + deadline
        while not started.join(timeout=max(0.0, until - time.monotonic())):
            if time.monotonic() >= until:
                raise TimeoutError(end_hanging(started.processes, Path(stacks), deadline))


def end_hanging(processes: Sequence[BaseProcess], stacks: Path, deadline: float) -> str:
    """Kill the processes that still run, and say what each of them was doing."""
    hanging = {rank: process for rank, process in enumerate(processes) if process.is_alive()}
    for process in hanging.values():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
    time.sleep(1)  # each writes its stack
    for process in hanging.values():
        process.kill()
        process.join()
    each = [f"process {rank} was here:\n{(stacks / str(rank)).read_text()}" for rank in hanging]
    return f"not ended after {deadline:.0f} seconds:\n" + "\n".join(each)


def do_in(n: int, do: Callable[[int], object]) -> None:
    """Do it here, or in `n` processes."""
    do(0) if n == 1 else together(n, do)


def train(text: Path, out: Path, n: int = 1, resume: bool = False, options: Any = None, **fields: Any) -> Path:
    """A run of `n` processes; `options` are those of `pellucid.train`, the preset small unless given."""
    given = {**FIELDS, "batch": 4, "steps": STEPS, "evaluate_every": 10, **fields} if not resume else fields

    def do(rank: int) -> None:
        inputs, others = ([], {}) if resume else ([text], options or {"preset": "small"})
        pellucid.train(*inputs, out=out, fields=given, resume=resume, **others)

    do_in(n, do)
    return out


def laid_out(layout: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("parallel.replicate", "parallel.shard", "parallel.tensor"), layout, strict=True))
