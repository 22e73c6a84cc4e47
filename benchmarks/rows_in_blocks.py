"""What attention takes in a step of a server where keys and values lie in blocks (docs/decisions.md).

    python -m benchmarks.rows_in_blocks

Milliseconds for all layers together, float32 on a CPU, for rows of different lengths: each row in one piece of memory;
blocks that are copied into such rows at every step, all at once or row by row; and scores computed block by block.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK, D_HEAD, ROUNDS = 16, 64, 30
#: layers and heads
SHAPES = {"4 x 256": (4, 4), "gpt2": (12, 12)}


def milliseconds(compute: Callable[[], Tensor]) -> float:
    """The median time of a call."""
    compute()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def ways(rows: int, columns: int, heads: int) -> dict[str, Callable[[], Tensor]]:
    """The same attention [rows, heads, 1, D_HEAD] from the same numbers in four ways."""
    n_blocks = columns // BLOCK
    q = torch.randn(rows, heads, 1, D_HEAD)
    pool = torch.randn(2, 2 * rows * n_blocks, heads, BLOCK, D_HEAD)
    table = torch.randperm(2 * rows * n_blocks)[: rows * n_blocks].view(rows, n_blocks)
    lengths = torch.randint(columns // 2, columns + 1, (rows,))
    visible = (torch.arange(columns) >= columns - lengths[:, None])[:, None, None]
    # room for as many columns again, as in a batch
    store = torch.zeros(2, rows, heads, 2 * columns, D_HEAD)
    store[:, :, :, :columns] = pool[:, table].transpose(2, 3).flatten(3, 4)

    def contiguous() -> Tensor:
        return scaled_dot_product_attention(q, *store[:, :, :, :columns], attn_mask=visible)

    def copied() -> Tensor:
        return scaled_dot_product_attention(q, *pool[:, table].transpose(2, 3).flatten(3, 4), attn_mask=visible)

    def copied_by_row() -> Tensor:
        results = []
        for row in range(rows):
            k, v = pool[:, table[row]].transpose(1, 2).flatten(2, 3)[:, None]
            results.append(scaled_dot_product_attention(q[row : row + 1], k, v, attn_mask=visible[row : row + 1]))
        return torch.cat(results)

    def block_by_block() -> Tensor:
        k, v = pool[:, table.flatten()]
        scores = q.repeat_interleave(n_blocks, 0) @ k.transpose(-1, -2) / D_HEAD**0.5
        scores = scores.view(rows, n_blocks, heads, BLOCK).transpose(1, 2).flatten(2)[:, :, None]
        pattern = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        by_block = pattern.view(rows, heads, n_blocks, BLOCK).transpose(1, 2).flatten(0, 1)[:, :, None]
        return (by_block @ v).view(rows, n_blocks, heads, 1, D_HEAD).sum(1)

    return {
        "contiguous": contiguous,
        "blocks, copied": copied,
        "blocks, copied row by row": copied_by_row,
        "block by block": block_by_block,
    }


def main() -> None:
    """A line for each shape."""
    for name, (layers, heads) in SHAPES.items():
        for rows, columns in ((16, 144), (16, 640), (64, 144)):
            computations = ways(rows, columns, heads)
            expected = computations["contiguous"]()
            times = []
            for way, compute in computations.items():
                torch.testing.assert_close(compute(), expected)
                times.append(f"{way} {layers * milliseconds(compute):.1f}")
            print(f"{name}, {rows} rows of {columns} columns: {', '.join(times)}", flush=True)


if __name__ == "__main__":
    main()
