"""The page Stream: what the stream predicts at every point, who wrote a logit, and how long the vectors are.

Each function takes a trace and returns what a panel shows, with `code`, the code that gives the same numbers from
the trace `trace`, and `not_shown`, what the panel leaves out.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.lens.analysis.attribution import Attribution, attribute, points_of_stream
from pellucid.lens.analysis.logit_lens import follow_tokens
from pellucid.lens.core.input_view import VocabularyView
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import json_number, numbers, with_arrays
from pellucid.lens.show.lens import lens_grid
from pellucid.look.session import Session
from pellucid.tensor_names import writers

#: tokens that are followed at once
MAX_PINS = 12


def token_trajectories(t: Recording, tokens: Sequence[str | int], position: int, *, mid: bool = True) -> dict[str, Any]:
    """The rank and the probability of pinned tokens at one position, at every point of the stream."""
    followed = follow_tokens(t, tokens, pos=position, mid=mid)
    return {
        "points": followed.points,
        "tokens": [{"id": i, "text": t.spell(i)} for i in followed.ids],
        "rank": followed.rank.tolist(),
        "probability": numbers(followed.probability),
        "code": "from pellucid.lens.analysis.logit_lens import follow_tokens\n"
        f"followed = follow_tokens(trace, {list(followed.ids)!r}, pos={position}, mid={mid})",
        "not_shown": "A rank is among the whole vocabulary; a token may rise because others fall.",
    }


def logit_waterfall(t: Recording, token: str | int, vs: str | int | None, position: int) -> dict[str, Any]:
    """A logit, or the difference of two, as the sum of what each component wrote, in order of computation."""
    parts = attribute(t, *_pair(t, token, vs), pos=position)
    code = f"parts = trace.attribute({_arguments(t, token, vs, parts.position)})"
    return _sum_panel(parts, code) | {
        "token": t.spell(t.token_id(token)),
        "vs": None if vs is None else t.spell(t.token_id(vs)),
        "parts": [
            {"label": label, "value": json_number(float(value)), "split": split_of(t, label)}
            for label, value in zip(parts.labels, parts.values, strict=True)
        ],
        "not_shown": "The direct path alone: what a part changes in later blocks is counted there, not here.",
    }


def split_waterfall(
    t: Recording, token: str | int, vs: str | int | None, position: int, label: str, k: int = 16
) -> dict[str, Any]:
    """One part of the waterfall as a sum: attention by head, a head by source token, an MLP by neuron.

    The k parts of largest magnitude, those of heads and tokens in order, and the sum of the others.
    Raises InputError for parts that have no split.
    """
    by = split_of(t, label)
    if by is None:
        raise InputError(f"{label} has no parts: expected attn_out, cross_out, mlp_out or a head")
    parts = attribute(t, *_pair(t, token, vs), pos=position, by=by)
    prefixes = (f"{label} <- ",) if by == "source" else (f"{label.removesuffix('_out')}.", label)
    inside = [i for i, part in enumerate(parts.labels) if part.startswith(prefixes)]
    values = parts.values[inside]
    order = values.abs().argsort(descending=True, stable=True)[:k].tolist()
    if by != "neuron":
        order = sorted(order)
    rows = [
        {
            "label": parts.labels[inside[i]],
            "value": json_number(float(values[i])),
            "split": split_of(t, parts.labels[inside[i]]),
        }
        for i in order
    ]
    if len(order) < len(inside):
        rest = values.sum() - values[order].sum()
        rows.append({"label": f"{len(inside) - len(order)} others", "value": json_number(float(rest)), "split": None})
    code = (
        f"parts = trace.attribute({_arguments(t, token, vs, parts.position)}, by={by!r})\n"
        f"inside = [label for label in parts.labels if label.startswith({prefixes!r})]\n"
        "values = {label: parts[label] for label in inside}"
    )
    return _sum_panel(parts, code) | {"by": by, "of": label, "parts": rows, "sum": json_number(float(values.sum()))}


def split_of(t: Recording, label: str) -> Literal["head", "source", "neuron", "expert"] | None:
    """How one part of a waterfall can be split further, None where it cannot."""
    last = label.rpartition(".")[2]
    if last in ("attn_out", "cross_out"):
        return "head"
    if last == "mlp_out":
        by_neuron = "neuron" if t.architecture.mlp.n_hidden else None
        return "expert" if t.architecture.mlp.experts else by_neuron
    return "source" if label.rpartition(".head.")[1] and last.isdigit() else None


def _pair(t: Recording, token: str | int, vs: str | int | None) -> tuple[int, int | None]:
    return known_token(t, token), None if vs is None else known_token(t, vs)


def _arguments(t: Recording, token: str | int, vs: str | int | None, position: int) -> str:
    against = "" if vs is None else f", vs={t.token_id(vs)}"
    return f"{t.token_id(token)}{against}, pos={position}"


def _sum_panel(parts: Attribution, code: str) -> dict[str, Any]:
    return {
        "target": parts.target,
        "position": parts.position,
        "tokens": parts.tokens,
        "logit": json_number(parts.logit),
        "total": json_number(parts.total),
        "after_cap": None if parts.after_cap is None else json_number(parts.after_cap),
        "note": parts.note,
        "code": code,
    }


def stream_norms(t: Recording) -> dict[str, Any]:
    """The length of the stream [point, i] and of what was written to it [write, i], in `arrays`."""
    n, points, added = t.inputs.lengths[0], points_of_stream(t, mid=True), writers("", t.architecture)
    code = f"norms = {{name: trace[name][0].norm(dim=-1) for name in {points + added!r}}}"
    arrays = {
        "stream": torch.stack([t[name][0, :n].norm(dim=-1) for name in points]) if points else torch.zeros(0, n),
        "lengths": torch.stack([t[name][0, :n].norm(dim=-1) for name in added]),
    }
    not_shown = "A length says nothing of a direction: a long write may be orthogonal to all that is read later."
    return {
        "points": points,
        "writes": added,
        "tokens": t.spelled(0),
        "code": code,
        "not_shown": not_shown,
        "arrays": arrays,
    }


# Routes -------------------------------------------------------------------------------------


def token_of(text: str) -> str | int:
    """A token as the page writes it: `#12` is the token of id 12, anything else is its text."""
    return int(text[1:]) if text[:1] == "#" and text[1:].isdecimal() else text


def known_token(vocabulary: VocabularyView, token: str | int) -> int:
    """The id of a token of a table, also where a part of a character is written as the pages show it.

    A row of the table of positions is read by its number. Raises InputError, or TokenizerError, for others.
    """
    try:
        return vocabulary.token_id(token)
    except InputError:
        # a token that does not encode back to itself, such as half a character, is shown by its spelling
        shown = [i for i in range(vocabulary.n_ids) if vocabulary.spell(i) == token]
        if not shown:
            raise
        return shown[0]


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Stream."""

    @app.get("/api/t/{trace_id}/stream/lens")
    async def lens(request: Request, trace_id: str, mid: bool = True, target: str = "", k: int = 5) -> Response:
        if not 1 <= k <= 50:
            raise InputError(f"k = {k}: expected 1 to 50 tokens")

        t = await session.compute(request, session.kept_trace, trace_id)

        def lines() -> Iterator[dict[str, Any]]:
            for step in lens_grid(t, mid=mid, target=token_of(target) if target else None, k=k):
                yield step if "done" in step else with_arrays(**step)

        return session.stream(session.kept_lines(("lens", trace_id, mid, target, k), lines()))

    @app.get("/api/t/{trace_id}/stream/follow")
    async def follow(request: Request, trace_id: str, tokens: str, pos: int = -1, mid: bool = True) -> dict[str, Any]:
        listed = json.loads(tokens)
        if (
            not isinstance(listed, list)
            or not 1 <= len(listed) <= MAX_PINS
            or not all(isinstance(x, str) for x in listed)
        ):
            raise InputError(f'tokens = {tokens:.80}: expected 1 to {MAX_PINS} texts as JSON, such as ["#12", " Mary"]')
        wanted = [token_of(token) for token in listed]
        return await session.compute(
            request, lambda: token_trajectories(session.kept_trace(trace_id), wanted, pos, mid=mid)
        )

    @app.get("/api/t/{trace_id}/stream/logit")
    async def logit(request: Request, trace_id: str, token: str, vs: str = "", pos: int = -1) -> dict[str, Any]:
        against = token_of(vs) if vs else None
        return await session.compute(
            request, lambda: logit_waterfall(session.kept_trace(trace_id), token_of(token), against, pos)
        )

    @app.get("/api/t/{trace_id}/stream/logit/part")
    async def logit_part(
        request: Request, trace_id: str, token: str, label: str, vs: str = "", pos: int = -1
    ) -> dict[str, Any]:
        against = token_of(vs) if vs else None
        return await session.compute(
            request, lambda: split_waterfall(session.kept_trace(trace_id), token_of(token), against, pos, label)
        )

    @app.get("/api/t/{trace_id}/stream/norms")
    async def norms(request: Request, trace_id: str) -> dict[str, Any]:
        return await session.compute(request, lambda: with_arrays(**stream_norms(session.kept_trace(trace_id))))
