"""Scan many files, in this process or by several: each of these reads one file after another."""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pellucid.text.read.chunks import ChangedError, DocumentError
from pellucid.text.read.decompress import Origin
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.scan import Documents, Source, scan, why_not
from pellucid.text.workers import WorkerPool

#: files for each worker that are asked for before the results of earlier ones are taken
AHEAD = 64


class FileToScan(NamedTuple):
    """A file, and its path relative to the folder that was named."""

    relative: str
    origin: Origin


@dataclass(frozen=True)
class ScannedFile:
    """What scanning one file gave: its entry and its documents, or the reason why it is not text, or an error."""

    source: Source | None = None
    documents: Documents = field(default_factory=Documents)
    reason: str = ""
    error: DocumentError | None = None


def scan_file(file: FileToScan, reading: ReadOptions, report: Callable[[int], None]) -> ScannedFile:
    """Count and hash the documents of one file; `report` is called with the bytes read."""
    documents = Documents()
    try:
        if reason := why_not(file.origin, reading):
            return ScannedFile(reason=reason)
        return ScannedFile(scan(file.origin, file.relative, documents, reading, report), documents)
    except DocumentError as error:
        return ScannedFile(error=error)


def scan_files(
    files: Sequence[FileToScan], reading: ReadOptions, workers: int, report: Callable[[int], None]
) -> Generator[tuple[FileToScan, ScannedFile], None, None]:
    """Every file with what scanning it gave, in order and the same for any number of workers; 0 or 1: this process.

    `report` is called with the bytes read, while a file is read by this process, after it where others read.
    """
    before, n = 0, min(workers, len(files))
    if n < 2:
        for file in files:
            scanned = scan_file(file, reading, partial(report_after, report, before))
            yield file, scanned
            before += scanned.source.n_bytes if scanned.source else 0
        return
    with WorkerPool(n, "pellucid.text.read.worker", (), "reads text") as pool:
        for file, answer in pool.answers(files, partial(pack_file, reading), AHEAD):
            scanned = unpack_scanned(answer, file.origin)
            before += scanned.source.n_bytes if scanned.source else 0
            report(before)
            yield file, scanned


def report_after(report: Callable[[int], None], before: int, here: int) -> None:
    """Report the bytes of this file after those of the files before."""
    report(before + here)


# Messages through the pipe -----------------------------------------------------------------------


def pack_file(reading: ReadOptions, file: FileToScan) -> bytes:
    """A file to scan as bytes."""
    origin = vars(file.origin) | {"path": str(file.origin.path)}
    options = {f.name: getattr(reading, f.name) for f in fields(reading)}
    return json.dumps({"relative": file.relative, "origin": origin, "reading": options}).encode()


def unpack_file(content: bytes) -> tuple[ReadOptions, FileToScan]:
    """The inverse of `pack_file`."""
    values = json.loads(content)
    origin = Origin(**values["origin"] | {"path": Path(values["origin"]["path"])})
    return ReadOptions(**values["reading"]), FileToScan(values["relative"], origin)


def pack_scanned(scanned: ScannedFile) -> bytes:
    """What scanning a file gave as bytes: a line of JSON, then the columns of its documents."""
    documents, error = scanned.documents, scanned.error
    about = {
        "source": scanned.source and vars(scanned.source),
        "reason": scanned.reason,
        "error": error and [isinstance(error, ChangedError), str(error)],
        "documents": len(documents),
        "scripts": documents.scripts,
        "encoding": documents.origins[0].encoding if documents.origins else "",
    }
    return json.dumps(about).encode() + b"\n" + documents.column_bytes()


def unpack_scanned(content: bytes, origin: Origin) -> ScannedFile:
    """The inverse of `pack_scanned`, for the file of `origin`."""
    line, _, columns = content.partition(b"\n")
    about = json.loads(line)
    error = None
    if about["error"]:
        has_changed, message = about["error"]
        error = ChangedError(message) if has_changed else DocumentError(message)
    origins = [replace(origin, encoding=about["encoding"])] if about["source"] else []
    documents = Documents.of_columns(origins, about["scripts"], about["documents"], columns)
    source = Source(**about["source"]) if about["source"] else None
    return ScannedFile(source, documents, about["reason"], error)
