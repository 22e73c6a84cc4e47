"""Folders that somebody else made: a name in them cannot lead out of them, and JSON is read within bounds."""

import json
from pathlib import Path
from typing import Any

#: bytes; the largest of each that is in use is a tenth of it or less
LONGEST = {"config.json": 1 << 20, "architecture.json": 1 << 20}
LONGEST_INDEX = 1 << 24


class FolderError(ValueError):
    """A folder of a model that is damaged, incomplete, or made to do harm."""


def inside(folder: Path, name: Any) -> Path:
    """The file `name` of the folder, a plain name whose links do not lead out; FolderError otherwise.

    The download cache keeps its files as links from snapshots/ID to blobs/, which are followed.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise FolderError(f"{folder} names the file {str(name)[:80]!r}: expected a plain name inside the folder")
    path, real = folder / name, folder.resolve()
    allowed = [real, *([real.parent.parent / "blobs"] if real.parent.name == "snapshots" else [])]
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise FolderError(f"{path} is a link that leads nowhere ({error})") from None
    if not any(target.is_relative_to(root) for root in allowed):
        raise FolderError(f"{path} is a link to a file outside the folder: copy the file itself into it")
    return path


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object in the folder; FolderError where it is missing, too long, damaged, or has a name twice."""
    path = inside(folder, name)
    if not path.is_file():
        raise FolderError(f"{folder} has no file {name}")
    longest = LONGEST.get(name, LONGEST_INDEX)
    if path.stat().st_size > longest:
        raise FolderError(f"{path} has {path.stat().st_size:,} bytes: expected {longest:,} at most")
    return parse_object(path.read_bytes(), str(path))


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object that these bytes spell."""
    try:
        values = json.loads(content, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{where} is damaged: {str(error)[:200] or 'nested too deeply'}") from None
    if not isinstance(values, dict):
        raise FolderError(f"{where} holds {type(values).__name__}: expected an object with named entries")
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name stands in it twice")
    return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")
