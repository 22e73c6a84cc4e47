"""Read model folders from outside safely: file names cannot lead out of the folder, and JSON has size limits."""

import json
from pathlib import Path
from typing import Any

#: limits in bytes; the largest files in use have a tenth of this or less
LONGEST = {"config.json": 1 << 20, "architecture.json": 1 << 20}
LONGEST_INDEX = 1 << 24


class FolderError(ValueError):
    """A model folder is damaged, incomplete or malicious."""


def inside(folder: Path, name: Any) -> Path:
    """The path of file `name` in the folder. Raises FolderError unless it is a plain name whose links stay inside.

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
    """Read a JSON object from the folder. Raises FolderError if it is missing, too long, damaged, or repeats a name."""
    path = inside(folder, name)
    if not path.is_file():
        raise FolderError(f"{folder} has no file {name}")
    longest = LONGEST.get(name, LONGEST_INDEX)
    if path.stat().st_size > longest:
        raise FolderError(f"{path} has {path.stat().st_size:,} bytes: expected {longest:,} at most")
    return parse_object(path.read_bytes(), str(path))


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse the bytes of a JSON object."""
    try:
        values = json.loads(content, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{where} is damaged: {str(error)[:200] or 'nested too deeply'}") from None
    if not isinstance(values, dict):
        raise FolderError(f"{where} holds {type(values).__name__}: expected an object with named entries")
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it contains a name twice")
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")
