"""Tensors that many processes write in parts are read whole, and parts that do not fit together are refused."""

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from pellucid.runs.shards import (
    ShardError,
    TensorFiles,
    TensorPart,
    check_parts,
    described,
    joined_entries,
    part_to_write,
)


def cut(tensor: torch.Tensor, cuts: list[list[int]]) -> list[TensorPart]:
    """The tensor in boxes: along axis d it is cut before each index of cuts[d]."""
    edges = [[0, *sorted(set(at)), n] for at, n in zip(cuts, tensor.shape, strict=True)]
    parts = []
    for corner in itertools.product(*(itertools.pairwise(axis) for axis in edges)):
        box = tensor[tuple(slice(a, b) for a, b in corner)].contiguous()
        parts.append(TensorPart(box, tuple(a for a, _ in corner), tuple(tensor.shape)))
    return parts


@given(st.data())
def test_parts_in_any_files_are_the_tensor(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    tensor = torch.randn(shape)
    cuts = [data.draw(st.lists(st.integers(1, n - 1), max_size=3)) if n > 1 else [] for n in shape]
    parts = data.draw(st.permutations(cut(tensor, cuts)))
    folder, entries = tmp_path_factory.mktemp("parts"), []
    for number, part in enumerate(parts):
        own = {"w": part, f"own.{number}": TensorPart(torch.tensor(number), (), ())}
        save_file({name: each.values for name, each in own.items()}, folder / f"m-{number}.safetensors")
        entries.append(described(own, f"m-{number}.safetensors"))
    tensors = joined_entries(entries)
    read = dict(TensorFiles(folder, tensors, [f"m-{number}.safetensors" for number in range(len(parts))]))
    assert torch.equal(read.pop("w"), tensor)
    assert {name: int(x) for name, x in read.items()} == {f"own.{n}": n for n in range(len(parts))}


def entry(shape, *boxes):
    parts = [{"file": f"{i}", "start": list(a), "shape": list(n)} for i, (a, n) in enumerate(boxes)]
    return {"shape": list(shape), "dtype": "float32", "parts": parts}


@pytest.mark.parametrize(
    "wrong",
    [
        entry((4, 2), ((0, 0), (2, 2))),
        entry((4, 2), ((0, 0), (2, 2)), ((1, 0), (2, 2))),
        entry((4, 2), ((0, 0), (2, 2)), ((3, 0), (2, 2))),
        entry((4, 2), ((0, 0), (2, 2)), ((0, 0), (2, 2))),
        entry((4, 2), ((0,), (4,)), ((0, 0), (4, 1))),
        entry((4,), ((-1,), (2,)), ((2,), (2,))),
    ],
    ids=["a part is missing", "overlap", "outside", "twice", "other axes", "negative"],
)
def test_parts_that_do_not_make_up_the_tensor_are_refused(wrong):
    with pytest.raises(ShardError, match="the parts of w do not make up its shape"):
        check_parts("w", wrong)


def test_processes_that_disagree_are_refused():
    with pytest.raises(ShardError, match=r"w has shape \[2\] in one process and \[3\] in another"):
        joined_entries([{"w": entry((2,), ((0,), (2,)))}, {"w": entry((3,), ((0,), (3,)))}])


LAYOUTS = {
    "copies": ((4,), "R"),
    "rows": ((4,), "S0"),
    "columns": ((4,), "S1"),
    "copies of rows": ((2, 2), "R S0"),
    "rows of columns": ((2, 2), "S0 S1"),
    "rows, copied": ((2, 2), "S0 R"),
}


@pytest.mark.parametrize("rows", [8, 6, 3, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_parts_of_all_processes_make_up_a_distributed_tensor(layout, rows, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes, words = LAYOUTS[layout]
    placements = [Replicate() if word == "R" else Shard(int(word[1])) for word in words.split()]
    tensor, entries, files = torch.randn(rows, 8), [], []
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", sizes)
            part = part_to_write(distribute_tensor(tensor, mesh, placements, src_data_rank=None))
        finally:
            dist.destroy_process_group()
        if part is not None:
            files.append(f"m-{rank}.safetensors")
            save_file({"w": part.values.contiguous()}, tmp_path / files[-1])
            entries.append(described({"w": part}, files[-1]))
    assert torch.equal(TensorFiles(tmp_path, joined_entries(entries), files)["w"], tensor)


def test_an_ordinary_tensor_is_one_part():
    part = part_to_write(torch.ones(2, 3))
    assert part is not None
    assert tuple(part.values.shape) == part.shape == (2, 3)
    assert part.start == (0, 0)
