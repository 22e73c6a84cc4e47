"""What scanning the files of a folder gave, kept between runs: files that have not changed are not read again.

A file is taken for unchanged while its size, its times, its number and its device are those of the time before it was
read, and it was not written within SETTLED seconds before that: a later change then gives it another time.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from pellucid.destination import replace_file
from pellucid.json_files import JSONFileError, parse_json_object, read_regular
from pellucid.text.read.decompress import Origin
from pellucid.text.read.find import STANDARD_INPUT, ReadOptions
from pellucid.text.read.scan import ROW, Documents, FileToScan, ScannedFile, Source

#: whether every file is read and hashed, whatever is known of it (--check-text)
CHECK_TEXT: ContextVar[bool] = ContextVar("CHECK_TEXT", default=False)
#: seconds after which a change gives a file another time on every file system in use
SETTLED_SECONDS = 2.0
#: seconds after which a record that no run has used is removed
UNUSED_SECONDS = 90 * 24 * 3600

Stamp = list[int]


@contextmanager
def checking_text(check_text: bool) -> Iterator[None]:
    """A context in which CHECK_TEXT has this value."""
    token = CHECK_TEXT.set(check_text)
    try:
        yield
    finally:
        CHECK_TEXT.reset(token)


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does: its size, times of change, number and device."""
    s = path.stat()
    return [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev]


def is_stamp_settled(stamp: Stamp) -> bool:
    """Whether a change from now on would give the file another stamp."""
    return time.time_ns() - max(stamp[1:3]) > SETTLED_SECONDS * 1e9


class KnownScans:
    """The results of earlier scans below the folder of these files with these options, in a file of the folder `store`;
    none where it is damaged or missing, or where other code wrote it.
    """

    def __init__(self, store: Path, files: Sequence[FileToScan], reading: ReadOptions):
        paths = {_absolute_path(file): file for file in files if file.relative != STANDARD_INPUT}
        folders = sorted({path.removesuffix(file.relative) for path, file in paths.items()})
        key = hashlib.sha256(json.dumps([folders, reading.to_dict()]).encode()).hexdigest()
        self.path = store / f"scanned-{key[:16]}"
        self._before = {path: stamp_of(file.origin.path) for path, file in paths.items() if file.origin.path.exists()}
        self._settled = {path for path, stamp in self._before.items() if is_stamp_settled(stamp)}
        self._entries: dict[str, tuple[Stamp, bytes]] = {}
        self._changed = False
        with suppress(OSError, JSONFileError, ValueError, LookupError, TypeError):
            self._entries = self._read()
            os.utime(self.path)  # it is in use

    def _read(self) -> dict[str, tuple[Stamp, bytes]]:
        digest, _, content = read_regular(self.path).partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return {}
        line, _, body = content.partition(b"\n")
        about, entries, at = parse_json_object(line, str(self.path)), {}, 0
        for name, stamp, length in about["files"] if about["code"] == _code() else ():
            entries[name] = (stamp, body[at : at + length])
            at += length
        return entries

    def get(self, file: FileToScan) -> ScannedFile | None:
        """What an earlier scan of this file gave, if it has not changed since and CHECK_TEXT is not set."""
        stamp, content = self._entries.get(_absolute_path(file), ([], b""))
        is_known = bool(content) and stamp == self._before.get(_absolute_path(file)) and not CHECK_TEXT.get()
        return unpack_scanned(content, file.origin) if is_known else None

    def add(self, file: FileToScan, scanned: ScannedFile) -> None:
        """Keep what scanning a file gave, unless it failed, or the file changes."""
        name, self._changed = _absolute_path(file), True
        stamp = self._before.get(name)
        self._entries.pop(name, None)
        # one that was written just before it was read may have been written again meanwhile, with the same stamp
        if stamp and not scanned.error and name in self._settled and stamp == stamp_of(file.origin.path):
            self._entries[name] = (stamp, pack_scanned(scanned))

    def write(self) -> None:
        """Write what `add` has changed, without files that are gone, and remove records that no run has used for long.
        Where nothing can be written, the files are read again the next time.
        """
        if not self._changed or not self._entries:
            return
        entries = {name: entry for name, entry in self._entries.items() if os.path.exists(name)}
        about = {"code": _code(), "files": [[name, stamp, len(one)] for name, (stamp, one) in entries.items()]}
        content = json.dumps(about).encode() + b"\n" + b"".join(one for _, one in entries.values())
        with suppress(OSError):
            for record in self.path.parent.glob("scanned-*"):
                if record.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    record.unlink()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def pack_scanned(scanned: ScannedFile) -> bytes:
    """What scanning a file without an error gave as bytes: a line of JSON, then the rows of its documents."""
    documents = scanned.documents
    about = {
        "source": scanned.source and vars(scanned.source),
        "reason": scanned.reason,
        "scripts": documents.scripts,
        "encoding": documents.origins[0].encoding if documents.origins else "",
    }
    return json.dumps(about).encode() + b"\n" + documents.rows.tobytes()


def unpack_scanned(content: bytes, origin: Origin) -> ScannedFile:
    """The inverse of `pack_scanned`, for the file of `origin`."""
    line, _, rows = content.partition(b"\n")
    about = parse_json_object(line, origin.name)
    origins = [replace(origin, encoding=about["encoding"])] if about["source"] else []
    documents = Documents(origins, np.frombuffer(rows, ROW), about["scripts"])
    return ScannedFile(Source(**about["source"]) if about["source"] else None, documents, about["reason"])


def _absolute_path(file: FileToScan) -> str:
    """The file's absolute path, with the same separators as `relative`."""
    return Path(os.path.abspath(file.origin.path)).as_posix()


@cache
def _code() -> str:
    """What decides how files are read: this package's code for it, and the libraries that read formats."""
    folder = Path(__file__).parent
    libraries = ("lxml", "pyarrow", "zstandard", "chardet", "charset-normalizer")
    return hash_of_code((*folder.glob("*.py"), *folder.parent.glob("*.py")), libraries)


def hash_of_code(paths: Iterable[Path], libraries: Iterable[str]) -> str:
    """A hash of these files of code, of Python's version, and of the versions of the libraries that are installed."""
    digest = hashlib.sha256(sys.version.encode())
    for library in libraries:
        with suppress(PackageNotFoundError):
            digest.update(f" {library} {version(library)}".encode())
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()
