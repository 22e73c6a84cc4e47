"""A lock on an open file, for one process at a time. The operating system releases it however the process ends."""

import sys
from typing import IO


def lock(file: IO) -> bool:
    """Try to lock this open file until it is closed. Returns False if another process holds the lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
