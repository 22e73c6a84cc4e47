"""Whether something can be written at a path, found out before any work is done for it."""

import os
import shutil
import tempfile
from pathlib import Path


class DestinationError(ValueError):
    """A path at which nothing can be written."""


def check_destination(path: str | Path) -> None:
    """Raise DestinationError unless a file or folder can be made at `path`, its missing parents included.

    The check makes a temporary folder in the nearest folder that exists, with the missing names inside it, and removes
    it again: permissions, read-only disks and names that are too long show themselves in no other reliable way.
    """
    path, trial = Path(path), ""
    above = next(folder for folder in (*path.parents, path) if os.path.lexists(folder))
    missing = path.parts[len(above.parts) :]
    if not above.is_dir():
        raise DestinationError(f"{path} cannot be written: {above} is not a folder; choose another path")
    try:
        trial = tempfile.mkdtemp(prefix=".pellucid-", dir=above)
        # what is written has a longer name until it is complete: .NAME.writing-PID
        names = [*missing[:-1], f".{missing[-1]}.writing-{os.getpid()}"] if missing else []
        Path(trial, *names).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DestinationError(f"{path} cannot be written: {_reason(error, above)}; choose another path") from None
    finally:
        if trial:
            shutil.rmtree(trial, ignore_errors=True)


def _reason(error: Exception, folder: Path) -> str:
    """What is wrong, without the system's number for it."""
    if isinstance(error, FileNotFoundError):
        return f"{folder} takes no new files"
    return (isinstance(error, OSError) and error.strerror) or str(error)
