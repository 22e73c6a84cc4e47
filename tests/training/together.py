"""Runs of several processes of this machine, joined by gloo as a launcher would join them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from tiny import FIELDS
from torch._inductor.async_compile import AsyncCompile

import pellucid

STEPS = 20


def work(rank: int, environment: dict[str, str], do: Callable[[int], object]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    # a fork inherits Inductor's pool of compiling threads without the threads, where an earlier test compiled: what it
    # is given then waits for ever. PyTorch clears its other pool after a fork
    AsyncCompile.pool.cache_clear()
    torch.set_num_threads(1)
    do(rank)


def together(n: int, do: Callable[[int], object]) -> None:
    """Do it in `n` processes that a launcher would have started; an error of one of them is raised here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    mp.start_processes(work, (environment, do), nprocs=n, start_method="fork")


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
