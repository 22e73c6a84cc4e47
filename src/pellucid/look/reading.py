"""The page Read: the computation as one column of steps, each with its equation, its numbers and its source."""

import random
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.generate.sampling import Sampling, draw_tokens, probabilities, uniform
from pellucid.lens.analysis.order import reorder
from pellucid.lens.core.inputs import InputError
from pellucid.lens.show.answers import numbers, spell, with_arrays
from pellucid.lens.trace import Trace
from pellucid.look.caching import cached_step
from pellucid.look.definition import place_of, source_text
from pellucid.look.predictor_trace import PredictorTrace
from pellucid.look.session import Session
from pellucid.look.step import mathml
from pellucid.look.steps import model_steps
from pellucid.model.float64 import in_float64
from pellucid.tensor_names import axes, names, stack_of

#: tokens that are listed beside the sliders
LISTED_TOKENS = 20


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Read."""

    @app.get("/api/read/steps")
    async def steps(request: Request, checkpoint: str = "") -> dict[str, Any]:
        return await session.compute(request, lambda: column(session.transformer(checkpoint).architecture))

    @app.get("/api/t/{trace_id}/read/numbers/{part}")
    async def part_numbers(request: Request, trace_id: str, part: str, pos: int = -1) -> dict[str, Any]:
        return await session.compute(
            request, lambda: with_arrays(numbers_of_part(session.kept_trace(trace_id), part, pos))
        )

    @app.get("/api/t/{trace_id}/read/product")
    async def product(
        request: Request, trace_id: str, name: str, pos: int = -1, head: int = 0, key: int = 0, entry: int = 0
    ) -> dict[str, Any]:
        return await session.compute(
            request, lambda: dot_product(session.kept_trace(trace_id), name, pos, head, key, entry)
        )

    add_sampling_route(app, session)

    @app.get("/api/t/{trace_id}/read/cache")
    async def cache(request: Request, trace_id: str, pos: int = -1) -> dict[str, Any]:
        return await session.compute(request, lambda: cached_step(session.kept_trace(trace_id), pos))

    @app.get("/api/t/{trace_id}/read/order")
    async def order(
        request: Request, trace_id: str, seed: int = 0, positions: bool = True, mask: bool = True
    ) -> dict[str, Any]:
        return await session.compute(
            request, lambda: shuffled_order(session.kept_trace(trace_id), seed, positions=positions, mask=mask)
        )


def add_sampling_route(app: FastAPI, session: Session) -> None:
    """The route of the sampling sliders, for a predictor of any kind."""

    @app.get("/api/t/{trace_id}/read/sample")
    async def sample(
        request: Request,
        trace_id: str,
        pos: int = -1,
        temperature: Annotated[float, Query(ge=0, le=100)] = 1.0,
        top_k: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        top_p: Annotated[float, Query(ge=0, le=1)] = 1.0,
        min_p: Annotated[float, Query(ge=0, le=1)] = 0.0,
        draw: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    ) -> dict[str, Any]:
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        return await session.compute(request, lambda: sampled(session.kept_reading(trace_id), pos, sampling, draw))


# The column -----------------------------------------------------------------------------------------


def column(a: Architecture) -> dict[str, Any]:
    """Every step of a model, by parts, with the functions of the definition that they point into.

    The parts are embed, blocks.0, ..., output, the encoder's before the others. A step has its name, group, title,
    equation (MathML), axes (letters), the key of its function in `definitions`, and the number of its line there.
    """
    parts: dict[str, list[dict[str, Any]]] = {}
    definitions: dict[str, dict[str, Any]] = {}
    for step in model_steps(a):
        source = place_of(step.name, stack_of(step.name, a).block)
        key = f"{source.file}:{source.function}"
        definitions.setdefault(key, source_text(source.file, source.function))
        parts.setdefault(step.part, []).append(
            {
                "name": step.name,
                "group": step.group,
                "title": step.title,
                "math": mathml(step.equation),
                "axes": axes(step.name)[1:],
                "definition": key,
                "line": source.line,
            }
        )
    return {"parts": [{"name": name, "steps": steps} for name, steps in parts.items()], "definitions": definitions}


def tensor_part(trace: Trace, name: str, *, head: int | None = None, pos: int | None = None) -> Tensor:
    """A tensor of the trace's first row: all of it, or the part of one head and of one query position.

    Raises KeyError for a name that the architecture lacks, IndexError for a head or a position that it has not.
    """
    full = trace.full_name(name)
    x, letters = trace[full][0], axes(full)[1:]
    for letter, index in (("h" if "h" in letters else "g", head), ("i" if "i" in letters else "j", pos)):
        if index is None:
            continue
        if letter not in letters:
            raise IndexError(f"{full} has no axis of {'heads' if letter in 'hg' else 'positions'}")
        axis = letters.index(letter)
        size = x.size(axis)
        if not -size <= index < size:
            raise IndexError(f"{full} has {size} entries along this axis, numbered from 0: {index} is none of them")
        x = x.select(axis, index)
        letters = letters[:axis] + letters[axis + 1 :]
    return x


def numbers_of_part(trace: Trace, part: str, pos: int) -> dict[str, Any]:
    """Every tensor of a part at one position, by name; an encoder's at the same position, or at its last one."""
    in_part = [step.name for step in model_steps(trace.architecture) if step.part == part]
    if not in_part:
        raise KeyError(f"this model has no part {part!r}")
    tensors = trace.tensors(in_part)
    values = {}
    for name in in_part:
        letters = axes(name)[1:]
        axis = letters.index("i" if "i" in letters else "j")
        x = tensors[name][0]
        values[name] = x.select(axis, position_in(x.size(axis), pos, name)).cpu().float().numpy()
    return values


def position_in(n: int, pos: int, name: str) -> int:
    """A position, counted from the end where it is negative; in what an encoder reads, at most the last one."""
    if name.startswith("encoder.") or ".cross." in name:
        return max(-n, min(pos, n - 1))
    if not -n <= pos < n:
        raise IndexError(f"position {pos}: there are {n}, numbered from 0")
    return pos


# One dot product ------------------------------------------------------------------------------------


def dot_product(trace: Trace, name: str, pos: int, head: int, key: int, entry: int) -> dict[str, Any]:
    """One number of a tensor as a sum of products, term by term.

    For scores, the query at `pos` times the key at `key`; for z, the shares of attention times entry `entry` of the
    values; for logits and for the linear maps, the vector at `pos` times the weights of entry `entry`. `value` is the
    number in the trace: factor * sum + added, where `added` is a bias, or what a cap and the distance do to a score.
    """
    full = trace.full_name(name)
    if full not in {step.name for step in model_steps(trace.architecture)}:
        raise KeyError(f"{full} is no step of this model")
    kind = full.split(".")[-1]
    left, right, names, factor = product_terms(trace, full, kind, pos, head, key, entry)
    a, b = left.detach().cpu().double(), right.detach().cpu().double()
    x = tensor_part(trace, full, head=head if kind in ("scores", "z", "q", "k", "v") else None, pos=pos)
    value = float(x[key] if kind == "scores" else x[entry])
    total = float((a * b).sum())
    return {
        "name": full,
        "names": names,
        "left": numbers(a),
        "right": numbers(b),
        "products": numbers(a * b),
        "sum": total,
        "factor": factor,
        "added": value - factor * total if value != float("-inf") else None,
        "value": None if value == float("-inf") else value,
        "masked": value == float("-inf"),
    }


def product_terms(
    trace: Trace, name: str, kind: str, pos: int, head: int, key: int, entry: int
) -> tuple[Tensor, Tensor, list[str], float]:
    """Two vectors whose product is summed, what they are called, and the factor before the sum."""
    a, at = trace.architecture, name.rpartition(".")[0] + "."
    part = stack_of(name, a)
    group = max(1, part.n_heads // part.n_kv_heads)
    if kind == "scores":
        turned = at + "rot_q" in names(a)
        if part.attention.qk_norm != "none" and not turned:
            raise InputError(
                "the queries and keys are divided by their size before this product, and have no name then"
            )
        q, k = at + ("rot_q" if turned else "q"), at + ("rot_k" if turned else "k")
        return (
            tensor_part(trace, q, head=head, pos=pos),
            tensor_part(trace, k, head=head // group)[key],
            [f"{q}, head {head}", f"{k}, position {key}"],
            part.score_scale,
        )
    if kind == "z":
        pattern, values = (
            tensor_part(trace, at + "pattern", head=head, pos=pos),
            tensor_part(trace, at + "v", head=head // group),
        )
        return pattern, values[:, entry], [f"{at}pattern, head {head}", f"{at}v, entry {entry}"], 1.0
    if kind == "logits" and a.readout in ("linear", "affine"):
        x = trace.read_out[0, pos]
        return (
            x,
            trace.network.unembed.matrix[entry],
            ["the last stream", f"row {entry} of W_U{' Q' if a.d_embed else ''}"],
            a.unembed_scale,
        )
    raise InputError(f"{name} is not taken apart into products here: choose scores, z or logits")


# Choosing a token, and the order of tokens -------------------------------------------------------------


def sampled(trace: Trace | PredictorTrace, pos: int, sampling: Sampling, draw: int) -> dict[str, Any]:
    """The likeliest tokens at a position, with the model's probabilities and with those that are drawn from.

    `drawn` is what the number `draw` draws; temperature 0 takes the likeliest.
    """
    if isinstance(trace, PredictorTrace):
        at = trace.position(pos)
        logits, logits_code = trace.logits(at, at + 1), f"trace.logits({at}, {at + 1})"
    else:
        logits, logits_code = tensor_part(trace, "logits", pos=pos)[None].cpu(), f"trace.logits[:, {pos}]"
    if logits.isnan().any():
        raise InputError("maximum likelihood says nothing after this context: no token can be drawn")
    plain = in_float64(logits).softmax(-1)[0]
    if sampling.greedy:
        chosen = torch.zeros_like(plain)
        chosen[int(logits[0].argmax())] = 1
    else:
        chosen = probabilities(logits, sampling)[0]
    token = int(draw_tokens(chosen[None], torch.tensor([uniform(draw, 0, 0)], dtype=torch.float64))[0])
    best = plain.topk(min(LISTED_TOKENS, plain.numel())).indices.tolist()
    rows = [
        {"id": i, "text": spell(trace.tokenizer, i), "p": float(plain[i]), "drawn_from": float(chosen[i])} for i in best
    ]
    options = ", ".join(f"{name}={getattr(sampling, name)!r}" for name in ("temperature", "top_k", "top_p", "min_p"))
    code = f"from pellucid.generate.sampling import Sampling, probabilities\nlogits = {logits_code}\n" + (
        "result = logits.argmax(-1)" if sampling.greedy else f"result = probabilities(logits, Sampling({options}))"
    )
    return {
        "rows": rows,
        "kept": int((chosen > 0).sum()),
        "drawn": {"id": token, "text": spell(trace.tokenizer, token), "plain": plain_text(trace, token)},
        "code": code,
    }


def plain_text(trace: Trace | PredictorTrace, token: int) -> str:
    """The text of a token that can be written behind a prompt; "" for a special one and for a part of a character."""
    if token >= trace.tokenizer.n_vocab:
        return ""
    try:
        return trace.tokenizer.token_bytes(token).decode("utf-8")
    except UnicodeDecodeError:
        return ""


def shuffled_order(trace: Trace, seed: int, *, positions: bool, mask: bool) -> dict[str, Any]:
    """How far the last vector of each token moves when the tokens are shuffled, with or without positions and mask."""
    n = trace.inputs.lengths[0]
    order = list(range(n))
    random.Random(seed).shuffle(order)
    result = reorder(trace, order, positions=positions, mask=mask)
    difference = result.difference
    return {
        "order": order,
        "difference": numbers(difference),
        "largest": float(difference.max()),
        "code": (
            "from pellucid.lens.analysis.order import reorder\n"
            f"result = reorder(trace, {order}, positions={positions}, mask={mask}).difference"
        ),
    }
