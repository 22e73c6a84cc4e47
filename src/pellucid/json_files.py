"""Read the small files that describe runs, models and tokens, which may come from anybody: regular files alone, of a
limited size, as JSON of a limited depth.
"""

import errno
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

#: the most bytes of a file of JSON
MOST_BYTES = 1 << 24
#: ... of one that lists the files of a corpus or the tensors of a checkpoint
MOST_BYTES_OF_LIST = 1 << 28
#: how deeply objects and lists may lie within each other; the deepest in use, tokenizer.json, has about ten levels
DEEPEST = 64


class JSONFileError(ValueError):
    """A file's content is not the JSON that was expected. The message names the file."""


def check_regular(path: Path) -> Path:
    """The path itself. Raises OSError where a pipe, a device, a socket or a folder has this name: reading it could
    wait for ever.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path


def open_for_locking(path: Path) -> IO[bytes]:
    """A file to lock, which is created where it is missing. Raises OSError as `check_regular`."""
    return check_regular(path).open("ab")


def read_regular(path: Path, longest: int | None = None) -> bytes:
    """The content of a regular file of at most `longest` bytes. Raises OSError where it is missing, longer, or no
    regular file.
    """
    with check_regular(path).open("rb") as file:
        if longest is None:
            return file.read()
        # as many bytes are set aside before they are read
        content = file.read(min(longest, os.fstat(file.fileno()).st_size) + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it is longer than {longest:,} bytes", str(path))
    return content


def read_json_file(path: Path, longest: int = MOST_BYTES) -> dict[str, Any]:
    """The object in a JSON file. Raises OSError as `read_regular`, and JSONFileError as `parse_json_object`."""
    return parse_json_object(read_regular(path, longest), str(path))


def parse_json_object(content: bytes | str, where: str) -> dict[str, Any]:
    """The object that the JSON text `content` holds; `where` names its origin in messages.

    Raises JSONFileError unless it is sound JSON: an object, no name twice in one object, no NaN, no infinity, no number
    beyond those of 64 bits with a point, and no more than DEEPEST levels.
    """
    value = parse_json_value(content, where)
    if not isinstance(value, dict):
        raise JSONFileError(f"{where} holds {type(value).__name__}: expected an object with named entries")
    return value


def parse_json_line(line: bytes, where: str) -> dict[str, Any]:
    """The object in one line of a file of JSON lines. Raises JSONFileError as `parse_json_object`, and where the line
    is longer than MOST_BYTES bytes.
    """
    if len(line) > MOST_BYTES:
        raise JSONFileError(f"{where} is longer than {MOST_BYTES:,} bytes")
    return parse_json_object(line, where)


def parse_json_value(content: bytes | str, where: str) -> Any:
    """As `parse_json_object`, of any type."""
    try:
        value = json.loads(
            content,
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse,
            parse_float=_within_floats(float),
            parse_int=_within_floats(int),
        )
    except RecursionError:
        raise JSONFileError(f"{where} is nested too deeply: expected {DEEPEST} levels at most") from None
    except ValueError as error:
        raise JSONFileError(f"{where} is damaged, it is not JSON: {str(error)[:200]}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [part for container in level for part in _children(container) if isinstance(part, dict | list)]
        if not level:
            return value
    raise JSONFileError(f"{where} is nested too deeply: expected {DEEPEST} levels at most")


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has the same name twice")
    return values


def _within_floats(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parses a number as this kind, and refuses one such as 1e400, which no arithmetic goes on from."""

    def parse(text: str) -> Any:
        if not math.isfinite(float(text)):
            raise ValueError(f"a number is larger than {sys.float_info.max:.0e}")
        return kind(text)

    return parse


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
