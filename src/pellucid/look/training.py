"""The page Training: how the run went, and when its heads formed, checkpoint by checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from pellucid.lens.analysis.heads import Heads, detect_heads
from pellucid.lens.core.inputs import InputError
from pellucid.lens.show.answers import numbers
from pellucid.look.known_answer import KNOWN_ANSWER
from pellucid.look.session import Session
from pellucid.predictors.on_text import tokens_of
from pellucid.predictors.predictor import Predictor
from pellucid.report.charts import thinned
from pellucid.report.contents import series_of
from pellucid.runs.checkpoint import best_step, facts_on_step
from pellucid.runs.metrics import read_metrics
from pellucid.text.tokens.store import Tokens
from pellucid.training.data import TokenData
from pellucid.training.load import read_recipe
from pellucid.training.objectives import token_losses

#: the series of metrics.jsonl that are drawn: title, unit, and of each line its name and the columns of its points and
#: of its last number
CURVES = (
    ("Loss", "nats per token", (("training", "loss", "loss"), ("held out", "held_out_part", "held_out_loss"))),
    ("Learning rate", "", (("learning rate", "learning_rate", "learning_rate"),)),
    ("Gradient norm", "", (("gradient norm", "grad_norm", "grad_norm"),)),
)


#: points of the curve of the loss by position
GROUPS = 64


class HeadsBody(BaseModel):
    """Which heads are scored, on repeated random tokens or on a text, at which checkpoints (all unless named)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    text: Annotated[str, Field(max_length=2**19)] | None = None
    steps: Annotated[list[Annotated[int, Field(strict=True, ge=0)]], Field(max_length=1000)] | None = None


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Training."""

    @app.get("/api/run")
    async def run(request: Request) -> dict[str, Any]:
        return await session.compute(request, training_curves, session)

    @app.get("/api/run/positions")
    async def positions(checkpoint: str = "") -> StreamingResponse:
        return session.stream(loss_by_position(session, checkpoint))

    @app.post("/api/run/heads")
    async def heads(body: HeadsBody) -> StreamingResponse:
        return session.stream(heads_forming(session, body))


def training_curves(session: Session) -> dict[str, Any]:
    """The curves of the run, thinned to a few hundred points each, its checkpoints, and the one with the lowest loss.

    A model that is no run, or was counted, has no curves; `why_none` says so.
    """
    folder = Path(str(session.opened.provenance.get("folder") or ""))
    if not (folder / "recipe.json").exists():
        why = "This model was not trained here, so there is no record of its training."
        if str(folder) == KNOWN_ANSWER:
            why = "The weights of this model were written by hand: it was never trained."
        return {"curves": [], "steps": [], "why_none": why}
    rows, best = read_metrics(folder / "metrics.jsonl"), best_step(folder)
    curves = []
    for title, unit, lines in CURVES:
        series = [(name, series_of(rows, column), series_of(rows, at_end)) for name, column, at_end in lines]
        drawn = [
            {"name": name, "points": thinned(points), "last": (end or points)[-1][1]}
            for name, points, end in series
            if points
        ]
        if drawn:
            curves.append({"title": title, "unit": unit, "lines": drawn})
    return {
        "curves": curves,
        "steps": list(session.steps),
        "opened": session.opened.provenance.get("step"),
        "best": None if best is None or "of_shorter_run" in facts_on_step(folder, "best", best) else best,
        "code": (
            "from pathlib import Path\n\nfrom pellucid.runs.metrics import read_metrics\n\n"
            f"rows = read_metrics(Path({str(folder.absolute())!r}) / 'metrics.jsonl')\n"
            "[(row['step'], row['held_out_part']) for row in rows if row.get('held_out_part') is not None]\n"
        ),
    }


def heads_forming(session: Session, body: HeadsBody) -> Iterator[dict[str, Any]]:
    """The scores of all heads at each checkpoint, a line for each, as they are computed.

    start  the steps that follow, and the Python that gives the same scores
    step   scores by kind, [layer][head], and the best head of each; None where no query of the text has such a key
    """
    steps = list(session.steps) if body.steps is None else body.steps
    if unknown := [step for step in steps if step not in session.steps]:
        raise InputError(
            f"step {unknown[0]}: this run has checkpoints of the steps {', '.join(map(str, session.steps))}"
        )
    about, text = session.opened.provenance, "" if body.text is None else f", text={body.text!r}"
    trusted = f", trust={about['trust']!r}" if about.get("trust") else ""
    run = str(Path(str(about.get("folder"))).absolute())
    call = f"pellucid.load({run!r}, checkpoint=str(step){trusted}).heads({text.removeprefix(', ')})"
    code = f"import pellucid\n\nheads = {{step: {call} for step in {steps}}}\n"
    yield {
        "kind": "start",
        "steps": steps or [None],
        "code": code if steps else f"model.heads({text.removeprefix(', ')})\n",
    }
    for step in steps or [None]:
        heads = kept_heads(session, step, body.text)
        scores = {kind: numbers(values) for kind, values in heads.scores.items()}
        best = {kind: None if x.isnan().all() else list(heads.best(kind)) for kind, x in heads.scores.items()}
        yield {"kind": "step", "step": step, "text": heads.text, "scores": scores, "best": best}


def loss_by_position(session: Session, checkpoint: str = "") -> Iterator[dict[str, Any]]:
    """The held-out loss by the position of the target in its window, as more and more windows are read.

    The windows, and what is read across the borders of documents, are those of the run's own evaluation, so the mean
    over all targets is its held-out loss. Each line has `done` of `of` targets, and `points`: [first, last, nats per
    token, targets] for groups of neighbouring positions, counted from 1, the number of tokens that were read before
    the target. Raises InputError for a model that is no run, or is not trained to predict the next token.
    """
    model = session.model(checkpoint)
    folder = Path(str(model.provenance.get("folder") or ""))
    if isinstance(model, Predictor) or not (folder / "recipe.json").exists():
        raise InputError("this model is no transformer's run, so there is no held-out text and no context to fill")
    recipe = read_recipe(folder)
    if recipe.train.objective not in ("next-token", "prefix"):
        raise InputError(f"a model of the objective {recipe.train.objective} does not read its text from left to right")
    yield {"doing": "reading the held-out text"}
    network = model.network
    tokens = tokens_of(folder, recipe, None, trust=model.provenance.get("trust", False))
    assert isinstance(tokens, Tokens)
    data = TokenData(tokens, recipe, network.embed.token.weight.device)
    sums, counts = torch.zeros(recipe.model.n_ctx, dtype=torch.float64), torch.zeros(recipe.model.n_ctx)
    of = data.n_held_out - 1
    code = (
        "from pellucid.look.session import Session\nfrom pellucid.look.training import loss_by_position\n\n"
        "*_, last = loss_by_position(Session(model))\nlast['points']\n"
    )
    for batch in data.held_out():
        with torch.inference_mode():
            losses = token_losses(network, batch).cpu().double()
        scored = torch.ones_like(losses, dtype=torch.bool) if batch.counts is None else batch.counts.cpu()
        steps = torch.arange(losses.size(1)).expand_as(losses) if batch.positions is None else batch.positions.cpu()
        sums.index_add_(0, steps[scored], losses[scored])
        counts.index_add_(0, steps[scored], torch.ones(int(scored.sum())))
        points = grouped_losses(sums, counts)
        yield {
            "done": int(counts.sum()),
            "of": of,
            "points": points,
            "mean": float(sums.sum() / counts.sum()),
            "code": code,
        }


def grouped_losses(sums: torch.Tensor, counts: torch.Tensor) -> list[list[float]]:
    """[first, last, mean, targets] of each group of neighbouring positions, from 1; empty groups are left out."""
    width = -(-len(sums) // GROUPS)
    points = []
    for first in range(0, len(sums), width):
        group = slice(first, min(first + width, len(sums)))
        if n := float(counts[group].sum()):
            points.append([first + 1, group.stop, float(sums[group].sum()) / n, n])
    return points


def kept_heads(session: Session, step: int | None, text: str | None) -> Heads:
    """The scores at one checkpoint, computed once."""
    return session.once(
        ("heads", step, text),
        lambda: detect_heads(session.transformer("" if step is None else str(step)), text or None),
    )
