"""Check that something can be written at a path before any work is done for it, and flush what was written."""

import os
import shutil
import sys
import tempfile
from pathlib import Path


class DestinationError(ValueError):
    """Nothing can be written at a path."""


def check_destination(path: str | Path) -> None:
    """Raise DestinationError unless a file or folder can be created at `path`, including its missing parents.

    The check creates a temporary folder in the nearest existing folder, with the missing names inside it, and removes
    it
    again: nothing else reliably shows permissions, read-only disks and names that are too long.
    """
    path, trial = Path(path), ""
    above = next(folder for folder in (*path.parents, path) if os.path.lexists(folder))
    missing = path.parts[len(above.parts) :]
    if not above.is_dir():
        raise DestinationError(f"{path} cannot be written: {above} is not a folder; choose another path")
    try:
        trial = tempfile.mkdtemp(prefix=".pellucid-", dir=above)
        # while it is written, the file has a longer name: .NAME.writing-PID
        names = [*missing[:-1], f".{missing[-1]}.writing-{os.getpid()}"] if missing else []
        Path(trial, *names).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DestinationError(f"{path} cannot be written: {_reason(error, above)}; choose another path") from None
    finally:
        if trial:
            shutil.rmtree(trial, ignore_errors=True)


def _reason(error: Exception, folder: Path) -> str:
    """The reason, without the system's error number."""
    if isinstance(error, FileNotFoundError):
        return f"{folder} takes no new files"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def flush_folder(path: Path) -> None:
    """Flush the folder's entries to disk before this returns."""
    if sys.platform == "win32":
        return  # folders cannot be opened there, and their entries are written through
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
