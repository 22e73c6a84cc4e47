"""Tensors in several files: each process writes the parts that it holds, and any number of processes read them.

A tensor is whole in one file, or lies in parts, the cells of a grid over its indices. The manifest of a checkpoint
lists the tensors with their global shapes and, where there are several, their parts.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pellucid.model.weights import StoredWeights, shapes_of

#: bytes of a float32 number
FLOAT32_BYTES = 4


class ShardError(ValueError):
    """The parts of a tensor do not make it up."""


@dataclass(frozen=True)
class TensorPart:
    """A box of a tensor with this global shape, whose first entry has the indices `start`; the numbers are `values`."""

    values: Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]


def part_to_write(tensor: Tensor) -> TensorPart | None:
    """The part of a tensor that this process writes, or None where another process writes the same numbers.

    A tensor that is no DTensor is written whole. Of the copies of a replicated part, the process that is first along
    every mesh axis of copies writes.
    """
    if not hasattr(tensor, "device_mesh"):
        return TensorPart(tensor, (0,) * tensor.dim(), tuple(tensor.shape))

    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(
        isinstance(placement, Replicate) and at for placement, at in zip(placements, coordinate, strict=True)
    ):
        return None
    shape, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if 0 in shape and tensor.numel():
        return None  # there are more processes than rows
    return TensorPart(tensor.to_local(), tuple(start), tuple(tensor.shape))


def parts_to_write(tensors: Mapping[str, Tensor], is_first: bool) -> dict[str, TensorPart]:
    """What this process writes of these tensors; the first process alone writes those that every one has whole."""
    wanted = {name: x for name, x in tensors.items() if is_first or hasattr(x, "device_mesh")}
    return {name: part for name, x in wanted.items() if (part := part_to_write(x)) is not None}


def described(parts: Mapping[str, TensorPart], file: str) -> dict[str, dict[str, Any]]:
    """The manifest's entries for the parts that one process has written into `file`."""
    return {
        name: {
            "shape": list(part.shape),
            "dtype": str(part.values.dtype).removeprefix("torch."),
            "parts": [{"file": file, "start": list(part.start), "shape": list(part.values.shape)}],
        }
        for name, part in parts.items()
    }


def joined_entries(entries: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The entries of all processes as one; a tensor that lies in one part is listed without parts.

    Raises ShardError where shapes differ, and where the parts do not make up the tensor.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for name, entry in itertools.chain.from_iterable(own.items() for own in entries):
        known = tensors.setdefault(name, {**entry, "parts": []})
        if (known["shape"], known["dtype"]) != (entry["shape"], entry["dtype"]):
            raise ShardError(f"{name} has shape {known['shape']} in one process and {entry['shape']} in another")
        known["parts"] += entry["parts"]
    for name, entry in tensors.items():
        check_parts(name, entry)
        if len(entry["parts"]) == 1:
            del entry["parts"]
    return tensors


def check_parts(name: str, entry: Mapping[str, Any]) -> None:
    """Raise ShardError unless the parts are the cells of a grid over the tensor, each of them once."""
    shape, boxes = entry["shape"], [(tuple(part["start"]), part["shape"]) for part in entry["parts"]]
    if not _is_grid(shape, boxes):
        raise ShardError(f"the parts of {name} do not make up its shape {tuple(shape)}: {boxes}")


def _is_grid(shape: Sequence[int], boxes: Sequence[tuple[tuple[int, ...], Sequence[int]]]) -> bool:
    """Whether boxes, each its start and its sizes, are all cells of a grid over an array of this shape."""
    if not math.prod(shape):
        return True
    if any(not len(start) == len(sizes) == len(shape) for start, sizes in boxes):
        return False
    edges = [sorted({start[axis] for start, _ in boxes} | {n}) for axis, n in enumerate(shape)]
    if any(cuts[0] != 0 or cuts[-1] != n for cuts, n in zip(edges, shape, strict=True)):
        return False
    ends = [dict(itertools.pairwise(cuts)) for cuts in edges]
    n_cells = math.prod(len(cuts) - 1 for cuts in edges)
    return len({start for start, _ in boxes}) == len(boxes) == n_cells and all(
        end[a] == a + n for start, sizes in boxes for end, a, n in zip(ends, start, sizes, strict=True)
    )


class StreamedTensors:
    """The bytes of a safetensors file of stored weights in float32, one tensor after another in order of their names.

    Each pass over them reads the weights again.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        self.weights, self.shapes = weights, dict(sorted(shapes_of(weights).items()))

    def __iter__(self) -> Iterator[bytes | memoryview]:
        header, end = {}, 0
        for name, shape in self.shapes.items():
            start, end = end, end + FLOAT32_BYTES * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for name in self.shapes:
            yield self.weights[name].detach().float().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    def described(self, file: str) -> dict[str, dict[str, Any]]:
        """The manifest's entries for a file that holds them."""
        return {
            name: {
                "shape": list(shape),
                "dtype": "float32",
                "parts": [{"file": file, "start": [0] * len(shape), "shape": list(shape)}],
            }
            for name, shape in self.shapes.items()
        }


class TensorFiles(StoredWeights):
    """The tensors in these files, whole, each of them read whenever it is asked for; nothing is read before.

    folder   with the files, which stay open as long as this is used
    tensors  the manifest's entries
    files    names of safetensors files

    Raises ShardError where the parts in the files do not make up a tensor.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Mapping[str, Any]], files: Iterable[str]):
        self.entries = tensors
        self.opened = {file: safe_open(folder / file, framework="pt") for file in files}
        #: the files that hold each tensor
        self.files_of: dict[str, list[str]] = {}
        for file, content in self.opened.items():
            for name in content.keys():  # noqa: SIM118, it is no dict
                self.files_of.setdefault(name, []).append(file)
        for name, names in self.files_of.items():
            self.check(name, names)
        self.shapes = {name: self.shape(name) for name in self.files_of}

    def parts(self, name: str) -> dict[str, Mapping[str, Any]]:
        """The manifest's entries for the parts of a tensor, by file; none for a tensor that is whole in one file."""
        return {part["file"]: part for part in self.entries.get(name, {}).get("parts", ())}

    def check(self, name: str, files: Sequence[str]) -> None:
        """Raise ShardError unless the files hold the parts that the manifest says, and these make up the tensor."""
        parts = self.parts(name)
        for file in files:
            if file in parts and self.opened[file].get_slice(name).get_shape() != parts[file]["shape"]:
                raise ShardError(f"{file} holds another part of {name} than the manifest says")
        if sorted(files) != sorted(parts or files[:1]):
            raise ShardError(f"{name} lies in {', '.join(files)}, and the manifest names other files")
        if parts:
            check_parts(name, self.entries[name])

    def __getitem__(self, name: str) -> Tensor:
        files, parts = self.files_of[name], self.parts(name)
        values = self.opened[files[0]].get_tensor(name)
        if not parts:
            return values
        tensor = torch.empty(self.entries[name]["shape"], dtype=values.dtype)
        for file in files:
            box = zip(parts[file]["start"], parts[file]["shape"], strict=True)
            tensor[tuple(slice(a, a + n) for a, n in box)] = self.opened[file].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The global shape of a tensor."""
        entry = self.entries[name] if self.parts(name) else None
        return tuple(entry["shape"] if entry else self.opened[self.files_of[name][0]].get_slice(name).get_shape())
