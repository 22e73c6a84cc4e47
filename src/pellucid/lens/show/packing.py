"""Tensors as text inside a page: compressed bytes in base64."""

import base64
import gzip
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: bytes that the patterns of one figure may take before they are compressed
PATTERN_BYTES = 6_000_000


def pack_tensor(x: Tensor) -> dict[str, Any]:
    """A tensor of any shape as float32 or int32."""
    integers = not x.is_floating_point()
    return _packed(x.to(torch.int32 if integers else torch.float32), "int32" if integers else "float32")


def pack_pattern(pattern: Tensor, side: int) -> dict[str, Any]:
    """Patterns [head, i, j] as bytes (`companded`)."""
    values, cell = companded(pattern, side)
    return _packed(values, "uint8") | {"cell": cell}


def companded(pattern: Tensor, side: int) -> tuple[Tensor, int]:
    """Patterns [head, i, j] as bytes round(255 sqrt(A)); the smallest value above 0 is 1.5e-5.

    Patterns longer than `side` are pooled: a cell is the largest entry of `cell` x `cell` positions. Returns the bytes
    [head, rows, columns] and `cell`.
    """
    cell = max(1, -(-max(pattern.shape[-2:]) // side))
    if cell > 1:
        pattern = F.max_pool2d(pattern[None].float(), cell, ceil_mode=True)[0]
    return (255 * pattern.float().sqrt()).round().to(torch.uint8), cell


def side_of(n_heads: int, n: int) -> int:
    """The largest side of a pattern, in cells, with which all heads fit into PATTERN_BYTES."""
    return min(n, int((PATTERN_BYTES / max(n_heads, 1)) ** 0.5))


def _packed(x: Tensor, kind: str) -> dict[str, Any]:
    raw = (
        x.detach().cpu().contiguous().numpy().astype({"uint8": "u1", "int32": "<i4", "float32": "<f4"}[kind]).tobytes()
    )
    # without a time in the gzip header, the same figure gives the same bytes
    return {"shape": list(x.shape), "type": kind, "gzip": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()}


def plain(x: Tensor) -> list[float | None]:
    """Numbers for JSON, with 5 digits; None in place of nan and infinity."""
    return [
        float(f"{v:.5g}") if v == v and abs(v) != float("inf") else None for v in x.detach().cpu().double().tolist()
    ]
