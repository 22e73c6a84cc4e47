"""The page Experiment: what happens to the answer when a part is replaced, removed or pushed.

The run of prompt A is changed; prompt B is where other values come from. So a place that a click turns into an edit
changes the run that every page shows.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse
from torch import Tensor

from pellucid.edits import add, to_json
from pellucid.generate.text import stream_generate
from pellucid.lens.analysis import metrics
from pellucid.lens.analysis.ablation import ablate
from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.analysis.patching import PatchingPair, name_of_metric
from pellucid.lens.analysis.steering import direction
from pellucid.lens.core.inputs import InputError, InputOptions
from pellucid.lens.generation_trace import taps_of
from pellucid.lens.show.answers import json_number, numbers
from pellucid.lens.trace import trace
from pellucid.look.page_edits import edits_code, options_code, resolve_edits
from pellucid.look.session import PromptBody, Session, reading_options
from pellucid.serve.protocol import MAX_EDITS, EditBody
from pellucid.text_model import Model

#: factors of a steering vector that are tried
FACTORS = tuple(k / 2 for k in range(-8, 9))
#: the likeliest tokens that are listed for each
TOP = 5
#: characters of a text in a body
LONGEST_TEXT = 2**19

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]


class MetricBody(BaseModel):
    """A metric of `pellucid.lens.analysis.metrics`; a token is its text, or its id."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    kind: Literal["logit_diff", "logit", "probability", "log_probability", "kl", "loss"] = "logit_diff"
    one: Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(max_length=1000)] | None = None
    other: Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(max_length=1000)] | None = None

    def named(self, model: Model) -> "MetricBody":
        """The same with ids as the tokens' texts, where these stand for them."""
        return self.model_copy(update={name: named_token(getattr(self, name), model) for name in ("one", "other")})

    def metric(self) -> Metric:
        """The metric at the last position. Raises InputError where a token is missing."""
        if self.kind == "loss":
            return metrics.loss()
        if self.kind == "kl":
            return metrics.kl()
        if self.one is None or (self.kind == "logit_diff" and self.other is None):
            raise InputError(f"metric {self.kind}: name the token{'s' if self.kind == 'logit_diff' else ''} to compare")
        if self.kind == "logit_diff":
            assert self.other is not None
            return metrics.logit_diff(self.one, self.other)
        return {
            "logit": metrics.logit,
            "probability": metrics.probability,
            "log_probability": metrics.log_probability,
        }[self.kind](self.one)

    def code(self) -> str:
        """The Python call that makes the metric."""
        tokens = [token for token in (self.one, self.other) if token is not None]
        taken = {"loss": 0, "kl": 0, "logit_diff": 2}.get(self.kind, 1)
        return f"{self.kind}({', '.join(map(repr, tokens[:taken]))})"


def named_token(token: int | str | None, model: Model) -> int | str | None:
    """A token's text where it is the text of this one token, else its id."""
    if not isinstance(token, int) or token >= model.tokenizer.n_vocab:
        return token
    text = model.tokenizer.token_str(token)
    return text if model.tokenizer.encode(text) == [token] else token


class ExperimentBody(BaseModel):
    """Two prompts at a checkpoint, and what is measured.

    a, b     the prompt whose run is changed, and the prompt that other values come from
    source   the input of the encoder, where there is one
    bos      put the separator before both, unless the model's own tokenizer puts something there
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    a: Text
    b: Text = ""
    source: Text | None = None
    bos: bool = False
    checkpoint: Annotated[str, Field(max_length=20, pattern=r"^\d*$")] = ""
    metric: MetricBody = MetricBody()

    def options(self) -> InputOptions:
        """How texts are read."""
        return reading_options(self.source, self.bos)


class PatchBody(ExperimentBody):
    """Which tensor is patched, whether exact values follow, and the source of prompt B where it has its own."""

    source_b: Text | None = None
    site: Literal["resid_pre", "attn_out", "mlp_out", "attn.z", "attn.q", "attn.k", "attn.v"] = "resid_pre"
    exact: bool = True


class AblateBody(ExperimentBody):
    """What each part is replaced by."""

    kind: Literal["zero", "mean", "resample"] = "mean"


class SteerBody(ExperimentBody):
    """The point of the stream to which a multiple of the difference of two prompts is added."""

    at: Annotated[str, Field(max_length=200)]
    towards: Text
    away: Text
    pos: Annotated[int, Field(ge=-(2**17), lt=2**17)] | Literal["mean"] = -1


class GenerateBody(BaseModel):
    """One prompt continued twice: without edits and with them, with the same seed."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    a: Text
    source: Text | None = None
    bos: bool = False
    checkpoint: Annotated[str, Field(max_length=20, pattern=r"^\d*$")] = ""
    edits: Annotated[list[EditBody], Field(max_length=MAX_EDITS)] = []
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 60
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.8
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Experiment."""

    @app.post("/api/experiment/patch")
    async def patch(body: PatchBody) -> StreamingResponse:
        return session.stream(with_model(session, body.checkpoint, lambda model: patch_lines(model, body)))

    @app.post("/api/experiment/ablate")
    async def ablate(body: AblateBody) -> StreamingResponse:
        return session.stream(with_model(session, body.checkpoint, lambda model: ablation_lines(model, body)))

    @app.post("/api/experiment/steer")
    async def steer(body: SteerBody) -> StreamingResponse:
        return session.stream(with_model(session, body.checkpoint, lambda model: steering_lines(model, body)))

    @app.post("/api/experiment/generate")
    async def generate(body: GenerateBody) -> StreamingResponse:
        return session.stream(with_model(session, body.checkpoint, lambda model: side_by_side(model, body)))

    @app.post("/api/experiment/edits")
    async def export(body: PromptBody, request: Request) -> dict[str, str]:
        return await session.compute(request, lambda: export_edits(session.transformer(body.checkpoint), body))


def with_model(session: Session, checkpoint: str, lines: Any) -> Iterator[dict[str, Any]]:
    """The lines about the model at a checkpoint, which is loaded where the first line is computed."""
    yield from lines(session.transformer(checkpoint))


def patch_lines(model: Model, body: PatchBody) -> Iterator[dict[str, Any]]:
    """Patch B's activations into the run of A, place by place: estimates first, then exact values as they come.

    start  the two metrics, the estimate of every place [layer][pos] or [layer][pos][head], and the tokens
    exact  the exact metrics of some places of one layer: cells of [pos, head, value]
    end    how far the estimates were right

    A loss is of A's tokens in all runs. KL from the run of A is smallest at this run: its slope there is 0, and so
    would be every estimate. It has none.
    """
    body = body.model_copy(update={"metric": body.metric.named(model)})
    estimated = body.metric.kind != "kl"
    pair = PatchingPair(
        model,
        body.b,
        body.a,
        body.metric.metric(),
        site=body.site,
        gradients=estimated,
        corrupt_source=body.source if body.source_b is not None else None,
        **(body.options() if body.source_b is None else {**body.options(), "source": body.source_b}),
    )
    estimate = pair.estimate() if estimated else None
    other, own = (float(end) for end in pair.ends)
    yield {
        "kind": "start",
        "site": body.site,
        "metric": name_of_metric(pair.metric.metric, "prompt A"),
        "own": json_number(own),
        "other": json_number(other),
        "layers": pair.layers,
        "heads": pair.n_heads,
        "tokens": pair.bad.spelled(),
        "tokens_b": pair.good.spelled(),
        "estimate": None if estimate is None else numbers(estimate),
        "code": patch_code(body),
    }
    if not body.exact:
        return
    row_of = {position: k for k, position in enumerate(pair.positions)}
    rows = {layer: k for k, layer in enumerate(pair.layers)}
    exact = pair.ends[1].new_zeros([len(pair.layers), len(pair.positions), *([pair.n_heads] if pair.n_heads else [])])
    total, done = exact.numel(), 0
    for part in pair.exact_parts():
        cells = []
        for (position, head), value in zip(part.cells, part.values.tolist(), strict=True):
            where = (rows[part.layer], row_of[position]) + ((head,) if pair.n_heads else ())
            exact[where] = value
            cells.append([row_of[position], head, json_number(value)])
        done += len(cells)
        yield {"kind": "exact", "layer": part.layer, "cells": cells, "done": done, "total": total}
    agreement = {} if estimate is None else pair.result(exact, estimate).agreement
    yield {"kind": "end"} | {name: json_number(agreement.get(name, math.nan)) for name in ("correlation", "largest")}


def patch_code(body: PatchBody) -> str:
    """Python that computes the same map from `model`."""
    sources = "" if body.source_b is None else f", source={body.source_b!r}, corrupt_source={body.source!r}"
    read = body.options() if body.source_b is None else reading_options(None, body.bos)
    mode, shown = ("exact", "") if body.metric.kind == "kl" else ("both", "patching.estimate, ")
    return (
        f"from pellucid.lens.analysis.metrics import {body.metric.kind}\n\n"
        f"patching = model.patch(\n    {body.b!r}, {body.a!r}, {body.metric.code()},\n"
        f'    site="{body.site}", mode="{mode}"{options_code(read)}{sources},\n)\n'
        f"{shown}patching.exact, patching.recovered\n"
    )


def ablation_lines(model: Model, body: AblateBody) -> Iterator[dict[str, Any]]:
    """The metric of A without each head, and without each block's attention and MLP, a line for each kind of part."""
    body = body.model_copy(update={"metric": body.metric.named(model)})
    reference = body.b if body.kind == "resample" or (body.kind == "mean" and body.b) else None
    if body.kind == "resample" and not reference:
        raise InputError("resample takes the values of another text: write a prompt B of as many tokens")
    read = body.options()
    for site in ("attn.z", "attn_out", "mlp_out"):
        ablation = ablate(model, body.a, body.metric.metric(), site=site, kind=body.kind, reference=reference, **read)
        yield {
            "kind": "ablation",
            "site": site,
            "metric": ablation.metric,
            "baseline": json_number(ablation.baseline),
            "effect": numbers(ablation.effect),
            "code": (
                f"from pellucid.lens.analysis.metrics import {body.metric.kind}\n\n"
                f"model.ablate(\n    {body.a!r}, {body.metric.code()},\n"
                f'    site="{site}", kind="{body.kind}", reference={reference!r}{options_code(read)},\n).effect\n'
            ),
        }


def steering_lines(model: Model, body: SteerBody) -> Iterator[dict[str, Any]]:
    """What A's next token becomes as multiples of a direction are added at every position, a line for each factor.

    start  the length of the direction, and those of the two that a page offers; 0 where both texts have the same there
    """
    offered: dict[str, int | Literal["mean"]] = {"mean": "mean", "last": -1}

    def vector_at(pos: int | Literal["mean"]) -> Tensor:
        return direction(model, [body.towards], [body.away], at=body.at, pos=pos, **body.options())

    vector, lengths = (
        vector_at(body.pos),
        {name: json_number(float(vector_at(pos).norm())) for name, pos in offered.items()},
    )
    # a metric that compares, such as KL, compares with the run that is not steered
    metric = PreparedMetric(body.metric.named(model).metric(), trace(model, body.a, **body.options()))
    name = metric.metric.name
    start = {"kind": "start", "length": json_number(float(vector.norm())), "lengths": lengths}
    yield start | {"factors": FACTORS, "metric": name}
    for factor in FACTORS:
        steered = trace(model, body.a, edits=[add(body.at, vector, factor)] if factor else [], **body.options())
        top = [{"text": text, "p": p} for text, p in steered.top(k=TOP)]
        value, code = json_number(float(metric(steered.logits)[0])), steering_code(body, factor)
        yield {"kind": "factor", "factor": factor, "value": value, "top": top, "code": code}


def steering_code(body: SteerBody, factor: float) -> str:
    """Python that gives the next tokens at one factor from `model`."""
    read = options_code(body.options())
    return (
        "from pellucid import edits\n\n"
        f"vector = model.direction([{body.towards!r}], [{body.away!r}], at={body.at!r}, pos={body.pos!r}{read})\n"
        f"change = [edits.add({body.at!r}, vector, factor={factor!r})]\n"
        f"model.trace({body.a!r}, edits=change{read}).top()\n"
    )


def side_by_side(model: Model, body: GenerateBody) -> Iterator[dict[str, Any]]:
    """Both texts, piece by piece in turn; the last line of each says why it ended."""
    if body.bos and not (model.tokenizer.before and body.source is None):
        raise InputError(
            "generation reads the prompt without a separator in front, where edits of positions would change other "
            'tokens: take "separator first" away'
        )
    read = reading_options(body.source, bos=False)
    options: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "seed": body.seed,
        **read,
    }
    edits_of_side = {"without": [], "with": resolve_edits(body.edits, model, **read)}
    yield {"kind": "start", "code": generate_code(body)}
    sides = {
        side: stream_generate(model, body.a, taps=taps_of(model.network, edits), **options)
        for side, edits in edits_of_side.items()
    }
    try:
        while sides:
            for side, pieces in list(sides.items()):
                piece = next(pieces, None)
                if piece is None:
                    del sides[side]
                    continue
                ended = {} if piece.result is None else {"ended": piece.result.finish_reason}
                yield {"kind": "piece", "side": side, "text": piece.text} | ended
    finally:
        for pieces in sides.values():
            getattr(pieces, "close", lambda: None)()


def generate_code(body: GenerateBody) -> str:
    """Python that generates the text with the edits from `model`."""
    read = reading_options(body.source, bos=False)
    return (
        f"from pellucid import edits\n\nchange = {edits_code(body.edits, **read)}\n"
        f"model.generate({body.a!r}, edits=change, max_tokens={body.max_tokens}, "
        f"temperature={body.temperature!r}, seed={body.seed}{options_code(read)}).text\n"
    )


def export_edits(model: Model, body: PromptBody) -> dict[str, str]:
    """The edits of a prompt: as JSON for `pellucid.edits.from_json`, with every value written out; and as Python."""
    code = f"from pellucid import edits\n\nchange = {edits_code(body.edits, **body.options())}\n"
    return {"json": to_json(resolve_edits(body.edits, model, **body.options())), "code": code}
