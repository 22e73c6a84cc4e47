"""While steps are taken, memory that tensors have freed stays with the process, and the next step finds it again.

glibc gives a freed block of more than 32 MiB, and what is free at the end of the heap, back to the system. A step frees
nearly everything that it has made, so the next one asks for the same memory again, and the kernel clears each page when
it is touched. This took 15 to 40 % of a step in bfloat16 on a machine with AMX (docs/experiments/step-speed.md).
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pellucid.runs.device import memory_bytes

#: mallopt's name (malloc.h) for the free bytes at the end of the heap above which they are given back
TRIM_THRESHOLD = -1
#: ... and for the bytes from which on a block is mapped by itself and given back when it is freed
MMAP_THRESHOLD = -3
#: the thresholds while steps are taken
TRAINING_THRESHOLDS = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: 2**30}
#: those that glibc's own grow to, at most, where a process frees large blocks
DEFAULT_THRESHOLDS = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25}
#: the share of the machine's memory above which a process keeps nothing more
MOST_OF_MEMORY = 0.5


def glibc() -> ctypes.CDLL | None:
    """The C library where it is glibc and the environment leaves its thresholds alone."""
    is_set = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if is_set or not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


class KeptMemory:
    """Whether freed memory is kept now; one for each process, as the thresholds are the process's."""

    def __init__(self) -> None:
        self.users, self.is_on = 0, False

    def _set(self, thresholds: dict[int, int], gives_back: bool) -> None:
        if library := glibc():
            for name, value in thresholds.items():
                library.mallopt(name, value)
            self.is_on = thresholds is TRAINING_THRESHOLDS
            if gives_back:
                library.malloc_trim(0)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """A context in which freed memory is kept; behind it, what is free is given back. Contexts may be nested."""
        if not self.users:
            self._set(TRAINING_THRESHOLDS, gives_back=False)
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self._set(DEFAULT_THRESHOLDS, gives_back=True)

    def bound(self, n_processes: int) -> None:
        """Give back what is free, and keep nothing more, where the process fills more than MOST_OF_MEMORY, a share, of
        the memory that each of `n_processes` of this machine has.
        """
        if self.is_on and resident_bytes() > MOST_OF_MEMORY * memory_bytes(torch.device("cpu")) / n_processes:
            self._set(DEFAULT_THRESHOLDS, gives_back=True)


def resident_bytes() -> int:
    """How much memory this process fills now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


#: of this process: `with kept_memory(): ...`, or `@kept_memory()` before a function
kept_memory = KeptMemory()
