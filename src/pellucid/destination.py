"""Where results are written: checked before any work is done for them, and written aside, so that a path holds all of
a result or nothing of it.
"""

import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

#: files that `flush_files` waits for together
FLUSHED_AT_ONCE = 8
NAME_EXISTS = "{} exists: something else has taken that name; choose another one"


class DestinationError(ValueError):
    """Nothing can be written at a path."""


def check_destination(path: str | Path) -> None:
    """Raise DestinationError unless a file or folder can be created at `path`, including its missing parents.

    The check creates a temporary folder in the nearest existing folder, with the missing names inside it, and removes
    it again: nothing else reliably shows permissions, read-only disks and names that are too long.
    """
    path, trial = Path(path), ""
    above = next(folder for folder in (*path.parents, path) if os.path.lexists(folder))
    missing = path.parts[len(above.parts) :]
    if not above.is_dir():
        raise DestinationError(f"{path} cannot be written: {above} is not a folder; choose another path")
    try:
        trial = tempfile.mkdtemp(prefix=".pellucid-", dir=above)
        names = [*missing[:-1], temporary_name(missing[-1])] if missing else []  # it is longer
        Path(trial, *names).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DestinationError(f"{path} cannot be written: {_error_text(error, above)}; choose another path") from None
    finally:
        if trial:
            shutil.rmtree(trial, ignore_errors=True)


def _error_text(error: Exception, folder: Path) -> str:
    """The reason, without the system's error number."""
    if isinstance(error, FileNotFoundError):
        return f"{folder} takes no new files"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def temporary_name(name: str) -> str:
    """The name of a file or folder while it is written. The number of the process alone may be that of what was left
    over: in a container it is often 1.
    """
    return f".{name}.writing-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def atomic_output(destination: Path, *, single_file: bool = False) -> Iterator[Path]:
    """A folder that gets the destination's name in one rename if the block succeeds, and is removed otherwise.

    With `single_file`, the file of the destination's name in the folder gets it instead. Raises DestinationError where
    the destination has come into being meanwhile.
    """
    folder = destination.with_name(temporary_name(destination.name))
    folder.mkdir(parents=True)
    try:
        with naming(destination):  # a full disk
            yield folder
        if destination.exists():
            raise DestinationError(NAME_EXISTS.format(destination))
        flush_folder(folder)
        try:
            os.rename(folder / destination.name if single_file else folder, destination)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # since it was looked at
                raise DestinationError(NAME_EXISTS.format(destination)) from None
            raise
        flush_folder(destination.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside and rename it: a reader, and a crash, see the old content or the new one, whole."""
    aside = path.with_name(f"{path.name}.writing")
    try:
        write_durably(aside, content)
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name this path where it names none: writing to an open file does not, nor does
    safetensors, whose error becomes an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise
    except Exception as error:  # a SafetensorError, which this room does not know
        if (number := re.search(r"I/O error: .*\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_durably(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """The bytes are on disk when this returns; they may come piece by piece. An OSError names the file."""
    with naming(path), open(path, "wb") as file:
        for piece in [content] if isinstance(content, bytes) else content:
            file.write(piece)
            del piece  # before the next one is made
        file.flush()
        os.fsync(file.fileno())


def flush_files(folder: Path) -> None:
    """Flush every file of a folder, and the folder's entries, to disk before this returns: all at once, because a disk
    writes them in little more time than one.
    """
    with ThreadPoolExecutor(FLUSHED_AT_ONCE) as threads:
        list(threads.map(_flush_file, [path for path in folder.iterdir() if path.is_file()]))
    flush_folder(folder)


def _flush_file(path: Path) -> None:
    with path.open("r+b") as file:  # Windows flushes what is open for writing
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Flush the folder's entries to disk before this returns."""
    if sys.platform == "win32":
        return  # folders cannot be opened there, and their entries are written through
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
