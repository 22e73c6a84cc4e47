"""The heads of one attention as panels show them: the pattern of each, and its scores."""

from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.lens.analysis.heads import HeadScore, scores_by_layer
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import numbers, with_arrays
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.tensor_names import AttentionPart, attention_scope

#: the scores by which heads can be sorted, from a text
TEXT_SCORES: tuple[HeadScore, ...] = ("previous", "first", "duplicate", "induction", "entropy")
#: the side of a thumbnail, in cells: longer patterns are pooled
THUMBNAIL_SIDE = 48
#: bytes that the patterns of one saved page may take before they are compressed
PATTERN_BYTES = 6_000_000

TITLES = {
    "attn": "Attention inside the text",
    "encoder": "Attention inside the source",
    "cross": "Attention from the target to the source",
}


def attention_parts(t: Recording) -> list[dict[str, Any]]:
    """The attentions of a network: its own, and those of an encoder and to it, where it has one."""
    a = t.architecture
    inside = TITLES["attn"] if a.encoder is None else "Attention inside the target"
    parts = [{"part": "attn", "title": inside, "layers": a.n_layers, "heads": a.n_heads}]
    if a.encoder is not None:
        encoder = a.encoder
        parts += [
            {"part": "encoder", "title": TITLES["encoder"], "layers": encoder.n_layers, "heads": encoder.n_heads},
            {"part": "cross", "title": TITLES["cross"], "layers": a.n_layers, "heads": a.n_heads},
        ]
    return [part for part in parts if part["layers"]]


def check_part(t: Recording, part: str) -> AttentionPart:
    """The attention called `part`. Raises InputError where the network has none of this name."""
    available = [known["part"] for known in attention_parts(t)]
    if part not in available:
        raise InputError(f"part = {part!r}: this model has {', '.join(available) or 'no attention'}")
    return next(known for known in get_args(AttentionPart) if known == part)


def attention_overview(
    t: Recording, part: str = "attn", side: int = THUMBNAIL_SIDE, row: int = 0
) -> Iterator[dict[str, Any]]:
    """The heads of one attention in one text of the trace, layer by layer.

    First a panel: how many heads, over which tokens, and `shape`, that of all tiles [layer, head, rows, columns]; a row
    or column of a tile stands for `cell` positions. Then for each layer its `tiles`, patterns as bytes (`companded`)
    pooled to at most `side` cells, and its `scores` on this text by kind. Last the copying scores of the weights alone,
    or the reason that there are none. Raises InputError.
    """
    chosen = check_part(t, part)
    kinds: tuple[HeadScore, ...] = ("entropy",) if chosen == "cross" else TEXT_SCORES
    queries = t.spelled(row) if chosen != "encoder" else t.source_tokens[row]
    keys = t.spelled(row) if chosen == "attn" else t.source_tokens[row]
    shape = next(known for known in attention_parts(t) if known["part"] == chosen)
    cell = cell_of(max(len(queries), len(keys)), side)
    argument = "" if chosen == "attn" else f', part="{chosen}"'
    yield shape | {
        "parts": attention_parts(t),
        "queries": queries,
        "keys": keys,
        "kinds": kinds,
        "cell": cell,
        "shape": [shape["layers"], shape["heads"], -(-len(queries) // cell), -(-len(keys) // cell)],
        "code": "from pellucid.lens.analysis.heads import head_scores\n"
        f"scores = head_scores(trace, kinds={kinds!r}{argument}).scores",
        "not_shown": "Averages over the queries of this text; a head may do something else on another text.",
    }
    for layer, (pattern, scores) in enumerate(scores_by_layer(t, kinds, chosen, row)):
        tiles = companded(pattern[0, :, : len(queries), : len(keys)], cell)
        yield {"layer": layer, "tiles": tiles, "scores": {kind: numbers(values) for kind, values in scores.items()}}
    if chosen == "attn":
        try:
            t.module("")
            yield {"copying": numbers(Circuits(t.model).copying())}
        except CircuitError as error:
            yield {"copying_reason": str(error)}


def pattern_name(part: AttentionPart, layer: int) -> str:
    """The name of the pattern of one layer."""
    return f"{attention_scope(part, layer)}.pattern"


def whole_attention(t: Recording, part: str, side: int, row: int = 0) -> dict[str, Any]:
    """What `attention_overview` answers, in one: `scores` by kind [layer, head], and the tiles of all layers."""
    overview, *lines = attention_overview(t, part, side, row)
    layers = [line for line in lines if "tiles" in line]
    scores = {kind: [line["scores"][kind] for line in layers] for kind in overview["kinds"]}
    copying = next((line for line in lines if "tiles" not in line), {})
    if "copying" in copying:
        scores["copying"] = copying["copying"]
    tiles = torch.stack([line["tiles"] for line in layers])
    return with_arrays({"tiles": tiles}, **(overview | copying | {"scores": scores}))


def cell_of(n: int, side: int) -> int:
    """How many positions of n share a row or a column of a tile with at most `side` of them."""
    return max(1, -(-n // side))


def companded(pattern: Tensor, cell: int) -> Tensor:
    """Patterns [head, i, j] as bytes round(255 sqrt(A)), of which the smallest above 0 stands for 1.5e-5.

    Each byte [head, row, column] is that of the largest entry of `cell` x `cell` positions.
    """
    if cell > 1:
        pattern = F.max_pool2d(pattern[None].float(), cell, ceil_mode=True)[0]
    return (255 * pattern.float().sqrt()).round().to(torch.uint8)


def side_of(n_heads: int, n: int) -> int:
    """The largest side of a pattern, in cells, with which all heads fit into PATTERN_BYTES."""
    return min(n, int((PATTERN_BYTES / max(n_heads, 1)) ** 0.5))
