"""The page Training: how the run went, and when its heads formed, checkpoint by checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from pellucid.lens.analysis.heads import Heads
from pellucid.lens.core.inputs import InputError
from pellucid.look.answers import numbers
from pellucid.look.known_answer import KNOWN_ANSWER
from pellucid.look.session import Model, Session
from pellucid.report.charts import thinned
from pellucid.report.contents import Contents

#: the series of metrics.jsonl that are drawn: title, unit, and the names of the lines with their columns
CURVES = (
    ("Loss", "nats per token", (("training", "loss"), ("held out", "held_out_part"))),
    ("Learning rate", "", (("learning rate", "learning_rate"),)),
    ("Gradient norm", "", (("gradient norm", "grad_norm"),)),
)


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

    @app.post("/api/run/heads")
    async def heads(body: HeadsBody) -> StreamingResponse:
        return session.stream(heads_forming(session, body))


def training_curves(session: Session) -> dict[str, Any]:
    """The curves of the run, thinned to a few hundred points each, its checkpoints, and the one with the lowest loss.

    A model that is no run of a transformer has no curves; `why_none` says so.
    """
    folder = Path(str(session.opened.provenance.get("folder") or ""))
    if not (folder / "recipe.json").exists():
        why = "This model was not trained here, so there is no record of its training."
        if str(folder) == KNOWN_ANSWER:
            why = "The weights of this model were written by hand: it was never trained."
        return {"curves": [], "steps": [], "why_none": why}
    contents = Contents.of(folder)
    curves = []
    for title, unit, lines in CURVES:
        drawn = [{"name": name, "points": thinned(contents.series(column))} for name, column in lines]
        if any(line["points"] for line in drawn):
            curves.append({"title": title, "unit": unit, "lines": [line for line in drawn if line["points"]]})
    best = dict(contents.series("held_out_part"))
    return {
        "curves": curves,
        "steps": list(session.steps),
        "opened": session.opened.provenance.get("step"),
        "best": int(min(best, key=lambda step: best[step])) if best else None,
        "code": (
            "from pathlib import Path\n\nfrom pellucid.runs.metrics import read_metrics\n\n"
            f"rows = read_metrics(Path({str(folder)!r}) / 'metrics.jsonl')\n"
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
    folder, text = session.opened.provenance.get("folder"), "" if body.text is None else f", text={body.text!r}"
    code = f"from pellucid.language_model import heads_over\n\nheads_over({folder!r}{text})  # by step\n"
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


def kept_heads(session: Session, step: int | None, text: str | None) -> Heads:
    """The scores at one checkpoint, computed once."""
    key = ("heads", step, text)
    if key not in session.results:
        model: Model = session.model("" if step is None else str(step))
        session.results[key] = model.heads(text or None)
    return session.results[key]
