"""One process at a time: a lock on an open file, which the system takes back however the process ends."""

import sys
from typing import IO


def lock(file: IO) -> bool:
    """Whether nobody else has the lock of this open file, which this process then has until the file is closed."""
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
