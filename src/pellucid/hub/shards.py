"""Read weights from one file or many. Each header is checked first, and a tensor is read when it is looked up.

A safetensors file is a length (8 bytes), a JSON header, and the bytes of the tensors end to end. Files are mapped into
memory: reading a tensor copies nothing, and `released` lets go of what was read.
"""

import math
import mmap
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.hub.files import LONGEST_INDEX, parse_object
from pellucid.model_names import FolderError

#: the type of each format of numbers
FORMATS = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16}
FORMATS |= {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
FORMATS |= {"I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64}
#: bytes read from mapped files before `released` lets them go
RELEASED_AFTER = 1 << 25
LARGEST_SIZE = 1 << 31


class Shards(Mapping[str, Tensor]):
    """The tensors of weight files by name. `n_numbers` is how many numbers the files hold.

    paths  the files by name, each .safetensors or .bin
    index  the file that an index names for each tensor, None without an index
    """

    def __init__(self, paths: Mapping[str, Path], index: Mapping[str, str] | None = None):
        self.paths = paths
        self._where: dict[str, str] = {}
        self._files: dict[str, dict[str, Tensor]] = {}
        self._spans: dict[str, StoredTensor] = {}
        self._mapped: dict[str, mmap.mmap] = {}
        self.n_numbers = 0
        for name, path in paths.items():
            if path.suffix == ".bin":
                self._files[name] = _read_pickle(path)
                sizes = {tensor: t.numel() for tensor, t in self._files[name].items()}
            else:
                self._spans |= (spans := check_header(path))
                sizes = {tensor: math.prod(span.shape) for tensor, span in spans.items()}
            if twice := self._where.keys() & sizes.keys():
                raise FolderError(f"{path.parent}: the tensor {min(twice)} is in {name} and in another file too")
            self._where |= dict.fromkeys(sizes, name)
            self.n_numbers += sum(sizes.values())
        if index is not None and (wrong := {n for n in index if self._where.get(n) != index[n]}):
            folder = paths[index[min(wrong)]].parent
            raise FolderError(f"{folder}: the tensor {min(wrong)} is not in the file that the index names")

    def __getitem__(self, name: str) -> Tensor:
        file = self._where[name]
        if file in self._files:
            return self._files[file][name]
        span = self._spans[name]
        if not math.prod(span.shape):
            return torch.empty(span.shape, dtype=span.dtype)
        if file not in self._mapped:
            try:
                with self.paths[file].open("rb") as opened:
                    self._mapped[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise FolderError(f"{self.paths[file]} cannot be read: {error}") from None
        mapped, start = self._mapped[file], span.start
        if len(mapped) < span.end:
            raise FolderError(f"{self.paths[file]} became shorter while it was read: {name[:80]} is not all there")
        if start % span.dtype.itemsize:  # numbers of torch lie at multiples of their size
            mapped, start = bytearray(mapped[start : span.end]), 0
        numbers = torch.frombuffer(mapped, dtype=span.dtype, count=math.prod(span.shape), offset=start)
        return numbers.view(span.shape)

    def released(self, each: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same pairs. What was read of the mapped files leaves memory after every few of them.

        A tensor that is looked at again is read again; nobody may write into a tensor of these files.
        """
        n_bytes = 0
        for name, tensor in each:
            yield name, tensor
            n_bytes += tensor.nbytes
            if n_bytes >= RELEASED_AFTER:
                n_bytes = 0
                self.release()

    def release(self) -> None:
        """Let go of what was read of the mapped files; a tensor that is looked at again is read again."""
        for mapped in self._mapped.values():
            if hasattr(mmap, "MADV_DONTNEED"):  # Windows has none, and takes pages back by itself
                mapped.madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its type, its shape, its first byte and the byte after its last."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def check_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file and where each lies. Raises FolderError if the header does not fit the file."""
    if not path.is_file():
        raise FolderError(f"{path} is not a file")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_INDEX):
            raise FolderError(f"{path} is damaged: its header would have {length:,} bytes, the file has {size:,}")
        entries = parse_object(file.read(length), f"the header of {path}")
    entries.pop("__metadata__", None)
    spans = sorted((*_span(path, tensor, entry), tensor) for tensor, entry in entries.items())
    at = 0
    for start, end, tensor in spans:
        if start != at:
            raise FolderError(f"{path} is damaged: {tensor[:80]} begins at byte {start}, the one before ends at {at}")
        at = end
    if at != size - 8 - length:
        raise FolderError(f"{path} is damaged: its tensors have {at:,} bytes, the file has {size - 8 - length:,}")
    stored = {}
    for start, end, tensor in spans:
        dtype, shape = FORMATS[entries[tensor]["dtype"]], tuple(entries[tensor]["shape"])
        stored[tensor] = StoredTensor(dtype, shape, 8 + length + start, 8 + length + end)
    return stored


def _span(path: Path, tensor: str, entry: Any) -> tuple[int, int]:
    """The first byte of a tensor, and the byte after its last, checked against its shape; counted from the header."""
    if not isinstance(entry, dict) or entry.get("dtype") not in FORMATS:
        dtype = entry.get("dtype") if isinstance(entry, dict) else entry
        raise FolderError(f"{path}: {tensor[:80]} is of type {str(dtype)[:40]!r}: expected one of {', '.join(FORMATS)}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if (
        not isinstance(shape, list)
        or len(shape) > 8
        or not all(type(n) is int and 0 <= n < LARGEST_SIZE for n in shape)
    ):
        raise FolderError(f"{path}: {tensor[:80]} has the shape {str(shape)[:80]}: expected at most 8 sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        raise FolderError(f"{path}: {tensor[:80]} lies at {str(offsets)[:80]}: expected its first and last byte")
    if offsets[1] - offsets[0] != math.prod(shape) * FORMATS[entry["dtype"]].itemsize:
        raise FolderError(f"{path}: {tensor[:80]} of shape {shape} cannot have {offsets[1] - offsets[0]:,} bytes")
    return offsets[0], offsets[1]


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file. Everything in it but tensors is refused, so that nothing runs."""
    try:
        # the format of torch before 1.6 is no zip file, and cannot be mapped
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle raises errors of every kind
        why = (str(error) or repr(error)).splitlines()[0]
        raise FolderError(f"{path} cannot be read as tensors alone: {why}") from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise FolderError(f"{path} must hold only tensors by name")
    return dict(tensors)
