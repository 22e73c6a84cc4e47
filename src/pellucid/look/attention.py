"""The page Attention: the patterns of all heads, one head's matrix, and why it looks where it looks.

Each function takes a trace and returns what a panel shows, with `code`, the code that gives the same numbers from
the trace `trace` (and `other`, the trace of the second prompt), and `not_shown`, what the panel leaves out.
"""

from collections.abc import Iterator
from typing import Any, Literal

from fastapi import FastAPI, Request
from starlette.responses import Response
from torch import Tensor

from pellucid.lens.analysis.attribution import value_weighted, why
from pellucid.lens.analysis.heads import Heads, HeadScore, detect_heads
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import json_number, with_arrays
from pellucid.lens.show.attention import attention_overview, attention_parts, check_part, pattern_name
from pellucid.look.session import Session
from pellucid.tensor_names import AttentionPart

View = Literal["pattern", "scores", "value", "difference", "virtual"]

#: the scores that name a head, from random tokens repeated once
LABEL_KINDS: tuple[HeadScore, ...] = ("induction", "previous", "first")
LABEL_NAMES = {"induction": "induction", "previous": "previous token", "first": "first position"}
#: a head is named where at least this share of its attention does what the name says
LABEL_THRESHOLD = 0.4

NOT_SHOWN = {
    "pattern": "Where a head looks, not what it brings from there nor whether later blocks use it.",
    "scores": "What the softmax compares. Only differences inside one row count, so rows cannot be compared.",
    "value": "The length of what is moved, not its direction: two heads may write opposite vectors of the same length.",
    "difference": "Positions are compared one by one, whatever the tokens at them are.",
    "virtual": "The product of two patterns as they are; what the second head reads also depends on both OV circuits.",
}


def head_labels(heads: Heads) -> list[dict[str, Any]]:
    """The heads whose score on random repeated tokens is at least LABEL_THRESHOLD, each with its best name."""
    labels = []
    for row in heads.table():
        kind = max(LABEL_KINDS, key=lambda kind: row[kind] if row[kind] == row[kind] else -1.0)
        if row[kind] >= LABEL_THRESHOLD:
            labels.append({"layer": row["layer"], "head": row["head"], "kind": kind, "name": LABEL_NAMES[kind]})
            labels[-1]["score"] = row[kind]
    return labels


def labels_panel(heads: Heads) -> dict[str, Any]:
    """The names of heads, with the threshold and the code."""
    return {
        "labels": head_labels(heads),
        "threshold": LABEL_THRESHOLD,
        "code": f"scores = model.heads(kinds={LABEL_KINDS!r}).scores",
        "not_shown": f"Attention on {heads.text}: a name says where a head looks there, not that it matters elsewhere.",
    }


def attention_matrix(
    t: Recording,
    part: str,
    layer: int,
    head: int,
    view: View = "pattern",
    other: Recording | None = None,
    first: tuple[int, int] | None = None,
) -> Tensor:
    """One head's matrix [i, j].

    view   pattern; scores, -inf where a query may not read a key; value: A_ij |v_j W_O^T|; difference: the pattern less
           that of `other`, a trace of as many tokens; virtual: A A_1 for the head `first` (layer, head) of an earlier
           block, the pattern of the virtual head that reads through it (Elhage et al. 2021)

    Raises InputError.
    """
    chosen = check_head(t, part, layer, head)
    name = pattern_name(chosen, layer)
    if view == "scores":
        return t[name.replace(".pattern", ".scores")][0, head]
    if view == "value":
        return value_weighted(t, layer, chosen)[0, head]
    if view == "difference":
        return _difference(t, other, name, head)
    if view == "virtual":
        earlier = _earlier_head(t, chosen, layer, first)
        return t[name][0, head] @ t[pattern_name(chosen, earlier[0])][0, earlier[1]]
    return t[name][0, head]


def matrix_panel_of(
    t: Recording, part: str, layer: int, head: int, view: View = "pattern", first: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What to say of `attention_matrix`: its code, and what it does not show. Raises InputError."""
    chosen = check_head(t, part, layer, head)
    name = pattern_name(chosen, layer)
    codes = {
        "pattern": lambda: f'trace["{name}"][0, {head}]',
        "scores": lambda: f'trace["{name.replace(".pattern", ".scores")}"][0, {head}]',
        "value": lambda: f'trace.value_weighted({layer}, "{chosen}")[0, {head}]',
        "difference": lambda: f'trace["{name}"][0, {head}] - other["{name}"][0, {head}]',
        "virtual": lambda: f'trace["{name}"][0, {head}] @ {_earlier_code(t, chosen, layer, first)}',
    }
    return {"code": f"matrix = {codes[view]()}", "not_shown": NOT_SHOWN[view], "name": name}


def _earlier_code(t: Recording, part: AttentionPart, layer: int, first: tuple[int, int] | None) -> str:
    earlier = _earlier_head(t, part, layer, first)
    return f'trace["{pattern_name(part, earlier[0])}"][0, {earlier[1]}]'


def check_head(t: Recording, part: str, layer: int, head: int) -> AttentionPart:
    """The attention called `part`, where it has this head. Raises InputError."""
    chosen = check_part(t, part)
    shape = next(known for known in attention_parts(t) if known["part"] == chosen)
    if not (0 <= layer < shape["layers"] and 0 <= head < shape["heads"]):
        raise InputError(f"layer {layer}, head {head}: there are {shape['layers']} of {shape['heads']}")
    return chosen


def _difference(t: Recording, other: Recording | None, name: str, head: int) -> Tensor:
    if other is None:
        raise InputError("the difference needs a second prompt: give prompt B")
    pattern, second = t[name][0, head], other[name][0, head]
    if pattern.shape != second.shape:
        raise InputError(
            f"prompt A has {' x '.join(map(str, pattern.shape))} queries and keys, prompt B "
            f"{' x '.join(map(str, second.shape))}: give two prompts of as many tokens"
        )
    return pattern - second


def _earlier_head(t: Recording, part: AttentionPart, layer: int, first: tuple[int, int] | None) -> tuple[int, int]:
    if part == "cross":
        raise InputError("a virtual head needs two heads of one sequence: cross-attention reads another one")
    if first is None or first[0] >= layer:
        raise InputError(f"first = {first}: give (layer, head) of a layer before {layer}")
    check_head(t, part, *first)
    return first


def attention_reasons(
    t: Recording,
    part: str,
    layer: int,
    head: int,
    query: int,
    key: int,
    *,
    side: Literal["key", "query", "pair"] = "key",
    by: Literal["component", "head"] = "component",
    k: int = 12,
) -> dict[str, Any]:
    """Why a query attends to a key: the k largest parts of the score, and the sum of the others.

    `compared` is each part's value less its mean over the other keys that the query may read: what it does for this
    key alone, since a softmax ignores what all keys share. Raises InputError.
    """
    chosen = check_part(t, part)
    parts = why(t, layer, head, query, side=side, by=by, part=chosen)
    if key not in parts.keys:
        raise InputError(f"query {parts.query} may not read key {key}")
    column = parts.keys.index(key)
    attention = t[pattern_name(chosen, layer)][0, head, parts.query, parts.keys]
    values, others = parts.values[:, column], max(1, len(parts.keys) - 1)
    compared = values - (parts.values.sum(1) - values) / others
    order = compared.abs().argsort(descending=True, stable=True)[:k].tolist()
    rest = sorted({*range(len(parts.labels))} - {*order})
    rows = [
        {"label": parts.labels[i], "value": json_number(float(values[i])), "compared": json_number(float(compared[i]))}
        for i in order
    ]
    if rest:
        sums = {"value": json_number(float(values[rest].sum())), "compared": json_number(float(compared[rest].sum()))}
        rows.append({"label": f"{len(rest)} other parts", **sums})
    options = f'layer={layer}, head={head}, query={query}, side="{side}", by="{by}", part="{chosen}"'
    return {
        "query": parts.query,
        "key": key,
        "parts": rows,
        "score": json_number(float(parts.scores[column])),
        "after_cap": None if parts.after_cap is None else json_number(float(parts.after_cap[column])),
        "attention": json_number(float(attention[column])),
        "keys": parts.keys,
        "code": f"parts = trace.why({options})\nvalues = parts.values[:, parts.keys.index({key})]",
        "not_shown": "The norms' scales are frozen at their values in this pass: a part's effect on them is left out.",
    }


# Routes -------------------------------------------------------------------------------------


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Attention."""

    @app.get("/api/t/{trace_id}/attention/{part}")
    async def overview(request: Request, trace_id: str, part: str) -> Response:
        t = await session.compute(request, session.kept_trace, trace_id)
        await session.compute(request, check_part, t, part)

        def lines() -> Iterator[dict[str, Any]]:
            for line in attention_overview(t, part):
                tiles = line.pop("tiles", None)
                yield line if tiles is None else with_arrays({"tiles": tiles}, **line)

        return session.stream(session.kept_lines(("attention", trace_id, part), lines()))

    @app.get("/api/t/{trace_id}/attention/{part}/{layer}/{head}/matrix")
    async def matrix(
        request: Request,
        trace_id: str,
        part: str,
        layer: int,
        head: int,
        view: View = "pattern",
        other: str | None = None,
        first_layer: int | None = None,
        first_head: int = 0,
    ) -> dict[str, Any]:
        def compute() -> dict[str, Any]:
            second = None if other is None else session.kept_trace(other)
            first = None if first_layer is None else (first_layer, first_head)
            shown = attention_matrix(session.kept_trace(trace_id), part, layer, head, view, second, first)
            return with_arrays({"matrix": shown})

        return await session.compute(request, compute)

    @app.get("/api/t/{trace_id}/attention/{part}/{layer}/{head}")
    async def about_matrix(
        request: Request,
        trace_id: str,
        part: str,
        layer: int,
        head: int,
        view: View = "pattern",
        first_layer: int | None = None,
        first_head: int = 0,
    ) -> dict[str, Any]:
        first = None if first_layer is None else (first_layer, first_head)
        return await session.compute(
            request, lambda: matrix_panel_of(session.kept_trace(trace_id), part, layer, head, view, first)
        )

    @app.get("/api/t/{trace_id}/attention/{part}/{layer}/{head}/why")
    async def reasons(
        request: Request,
        trace_id: str,
        part: str,
        layer: int,
        head: int,
        query: int,
        key: int,
        side: Literal["key", "query", "pair"] = "key",
        by: Literal["component", "head"] = "component",
    ) -> dict[str, Any]:
        return await session.compute(
            request,
            lambda: attention_reasons(session.kept_trace(trace_id), part, layer, head, query, key, side=side, by=by),
        )

    @app.get("/api/heads/labels")
    async def labels(request: Request, checkpoint: str = "") -> dict[str, Any]:
        return await session.compute(request, kept_labels, session, checkpoint)


def kept_labels(session: Session, checkpoint: str) -> dict[str, Any]:
    """The names of a model's heads, once for each checkpoint; `reason` where random tokens cannot give them."""

    def labels() -> dict[str, Any]:
        try:
            return labels_panel(detect_heads(session.transformer(checkpoint), kinds=LABEL_KINDS))
        except InputError as error:
            return {"labels": [], "threshold": LABEL_THRESHOLD, "reason": f"Heads have no names: {error}."}

    return session.once(("head labels", checkpoint), labels)
