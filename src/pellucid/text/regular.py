"""Read regular files only. A pipe or a device under a file's name is refused, because reading it could wait
for ever.
"""

import errno
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The content of a regular file. Raises OSError for a missing file, a pipe, a device, a socket or a folder."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()
