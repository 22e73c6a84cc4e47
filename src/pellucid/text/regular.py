"""Files that end: a pipe or a device under a file's name is refused, where reading it would wait for ever."""

import errno
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The content of a regular file; OSError where there is none, and for pipes, devices, sockets and folders."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_bytes()
