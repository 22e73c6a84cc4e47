"""A lock on an open file, for one process at a time. The operating system releases it however the process ends."""

import errno
import sys
import warnings
from typing import IO

#: what the system says of a file system that has no locks, as some network drives
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


def lock(file: IO) -> bool:
    """Try to lock this open file until it is closed. Returns False if another process holds the lock.

    Warns, and returns True, where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

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
