"""Read weights from one file or many. Each header is checked first, and a tensor is read when it is looked up.

A safetensors file is a length (8 bytes), a JSON header, and the bytes of the tensors end to end. Files are
memory-mapped:
a tensor that is no longer used takes no memory.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pellucid.hub.files import LONGEST_INDEX, FolderError, parse_object

#: bytes per number
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
WIDTHS |= {"F64": 8, "I64": 8, "U64": 8}
LARGEST_SIZE = 1 << 31


class Shards(Mapping[str, Tensor]):
    """The tensors of weight files by name. `n_numbers` is how many numbers the files hold.

    paths  the files by name, each .safetensors or .bin
    index  the file that an index names for each tensor, None without an index
    """

    def __init__(self, paths: Mapping[str, Path], index: Mapping[str, str] | None = None):
        self.paths = paths
        self._where: dict[str, str] = {}
        self._files: dict[str, Any] = {}
        self.n_numbers = 0
        for name, path in paths.items():
            if path.suffix == ".bin":
                self._files[name] = _read_pickle(path)
                sizes = {tensor: t.numel() for tensor, t in self._files[name].items()}
            else:
                sizes = check_header(path)
            if twice := self._where.keys() & sizes.keys():
                raise FolderError(f"{path.parent}: the tensor {min(twice)} is in {name} and in another file too")
            self._where |= dict.fromkeys(sizes, name)
            self.n_numbers += sum(sizes.values())
        if index is not None and (wrong := {n for n in index if self._where.get(n) != index[n]}):
            folder = paths[index[min(wrong)]].parent
            raise FolderError(f"{folder}: the tensor {min(wrong)} is not in the file that the index names")

    def __getitem__(self, name: str) -> Tensor:
        file = self._where[name]
        if file not in self._files:
            try:
                self._files[file] = safe_open(self.paths[file], "pt")
            except (SafetensorError, OSError) as error:
                raise FolderError(f"{self.paths[file]} cannot be read: {error}") from None
        opened = self._files[file]
        return opened[name] if isinstance(opened, dict) else opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where


def check_header(path: Path) -> dict[str, int]:
    """The tensors of a safetensors file and their sizes. Raises FolderError if the header does not fit the file."""
    if not path.is_file():
        raise FolderError(f"{path} is not a file")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_INDEX):
            raise FolderError(f"{path} is damaged: its header would have {length:,} bytes, the file has {size:,}")
        entries = parse_object(file.read(length), f"the header of {path}")
    entries.pop("__metadata__", None)
    spans = sorted((_span(path, tensor, entry), tensor) for tensor, entry in entries.items())
    at = 0
    for (start, end, _), tensor in spans:
        if start != at:
            raise FolderError(f"{path} is damaged: {tensor[:80]} begins at byte {start}, the one before ends at {at}")
        at = end
    if at != size - 8 - length:
        raise FolderError(f"{path} is damaged: its tensors have {at:,} bytes, the file has {size - 8 - length:,}")
    return {tensor: count for (_, _, count), tensor in spans}


def _span(path: Path, tensor: str, entry: Any) -> tuple[int, int, int]:
    """The first byte, the byte after the last, and the number count of a tensor, checked against its shape."""
    if not isinstance(entry, dict) or entry.get("dtype") not in WIDTHS:
        dtype = entry.get("dtype") if isinstance(entry, dict) else entry
        raise FolderError(f"{path}: {tensor[:80]} is of type {str(dtype)[:40]!r}: expected one of {', '.join(WIDTHS)}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if (
        not isinstance(shape, list)
        or len(shape) > 8
        or not all(type(n) is int and 0 <= n < LARGEST_SIZE for n in shape)
    ):
        raise FolderError(f"{path}: {tensor[:80]} has the shape {str(shape)[:80]}: expected at most 8 sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        raise FolderError(f"{path}: {tensor[:80]} lies at {str(offsets)[:80]}: expected its first and last byte")
    if offsets[1] - offsets[0] != math.prod(shape) * WIDTHS[entry["dtype"]]:
        raise FolderError(f"{path}: {tensor[:80]} of shape {shape} cannot have {offsets[1] - offsets[0]:,} bytes")
    return offsets[0], offsets[1], math.prod(shape)


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file. Everything in it but tensors is refused, so that nothing runs."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise FolderError(f"{path} cannot be read as tensors alone: {str(error).splitlines()[0]}") from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise FolderError(f"{path} must hold only tensors by name")
    return dict(tensors)
