"""A lock on an open file, for one process at a time. The operating system releases it however the process ends."""

import errno
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pellucid.json_files import open_for_locking

#: what the system says of a file system that has no locks, as some network drives
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


def lock(file: IO) -> bool:
    """Try to lock this open file until it is closed. Returns False if another process holds the lock.

    Warns, and returns True, where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)  # it locks where the file is at
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"{file.name}: this file system has no locks ({error.strerror}): make sure that no other process "
            "writes in this folder",
            stacklevel=2,
        )
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing, and wait for a process that holds it."""
    with open_for_locking(path) as file:
        while not lock(file):
            time.sleep(0.01)
        yield
