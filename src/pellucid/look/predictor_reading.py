"""The page Read for predictors that are no transformers: the levels of an n-gram's counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request

from pellucid.lens.show.answers import token_object
from pellucid.look.definition import source_text
from pellucid.look.model_card import examples, loading_code
from pellucid.look.predictor_trace import PredictorTrace
from pellucid.look.reading import add_sampling_route
from pellucid.look.session import Session
from pellucid.look.step import mathml
from pellucid.model.float64 import in_float64
from pellucid.predictors.mixture import Counted, NGramMixture
from pellucid.predictors.ngram import ContextLevel, NGram
from pellucid.predictors.predictor import Predictor
from pellucid.text.read.chunks import counted

#: tokens that are listed for each level
LISTED_TOKENS = 6
#: where a level and a mixture are computed
LEVELS = ("predictors/ngram.py", "NGram.context_levels")
MIXED = ("predictors/mixture.py", "mixed")
#: names of the predictors on the page
CALLED = {
    "ngram": "an n-gram predictor",
    "neural-probabilistic": "Bengio's network",
    "recurrent": "a recurrent network",
}


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Read for predictors."""

    @app.get("/api/t/{trace_id}/read/levels")
    async def levels(request: Request, trace_id: str, pos: int = -1) -> dict[str, Any]:
        return await session.compute(request, lambda: prediction_levels(session.kept_predictor(trace_id), pos))

    add_sampling_route(app, session)


# What the page says of a predictor ------------------------------------------------------------------


def predictor_card(session: Session, checkpoint: str = "") -> dict[str, Any]:
    """The model card of a predictor: its sizes, and for each page that does not apply to it the reason."""
    model = session.model(checkpoint)
    assert isinstance(model, Predictor)
    network: Any = model.network
    n_vocab, reach = network.choices.n_vocab, int(network.reach)
    return {
        "name": session.name,
        "loading": loading_code(model),
        "folder": model.provenance.get("folder"),
        "step": model.provenance.get("step"),
        "steps": list(session.steps),
        "kind": model.kind,
        "said": sizes_said(model),
        "mixed": isinstance(network, NGramMixture),
        "closed": closed_pages(model),
        "n_layers": 0,
        "n_heads": 0,
        "n_ctx": reach,
        "n_vocab": n_vocab,
        "encoder_layers": 0,
        "reads_source": False,
        "masked": False,
        "tokenizer": model.tokenizer.kind,
        "special": dict(model.tokenizer.special),
        "tensors": [],
        **examples(session),
    }


def sizes_said(model: Predictor) -> str:
    """One line of a predictor's sizes."""
    network: Any = model.network
    parts, reach = [], int(network.reach)
    if isinstance(network, NGramMixture):
        parts.append(f"mixed with an n-gram of {counted(network.counted.choices.order, 'token')}")
        network = network.network
    if isinstance(network, Counted):
        smoothing = network.choices.smoothing.replace("-", " ").replace("kneser ney", "Kneser-Ney")
        parts.insert(
            0,
            f"n-gram of {counted(network.choices.order, 'token')}, {smoothing}, {network.ngram.n_parameters:,} counts",
        )
    else:
        count = sum(p.numel() for p in network.parameters())
        parts.insert(0, f"{model.kind.replace('-', ' ')} predictor, {count:,} parameters")
    return ", ".join([*parts, f"{network.choices.n_vocab:,} tokens known, reads the last {reach:,}"])


def closed_pages(model: Predictor) -> dict[str, str]:
    """Why a page does not apply, by the page's name."""
    name = CALLED[model.kind]
    closed = {
        "attention": f"{name} has no attention: nothing in it looks from one position at another.",
        "stream": f"{name} has no residual stream: there are no blocks after which it could say something else.",
        "circuits": f"{name} has no heads and no blocks.",
        "experiment": f"{name} has no stream that one part writes and another reads, so there is nothing to patch: "
        "change the text, and the page Read shows what follows.",
    }
    if model.kind == "ngram":
        closed["training"] = "An n-gram is counted once: there are no steps over which it could learn."
    return closed


# Levels of counts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LevelEquation:
    """The equation of one level, and the terms of it that are one number for the whole context."""

    tex: str
    facts: tuple[tuple[str, str, float], ...]


def prediction_levels(trace: PredictorTrace, pos: int) -> dict[str, Any]:
    """How the prediction after a position follows from counts, a level for each length of the context.

    `levels` is empty for a network. Each level has its context, equation, facts [{name, label, value}], the names of
    its columns, and a row for each of the likeliest tokens and for the one that follows. `reason` says why there is no
    prediction. The last level of a mixture is the mixture itself.
    """
    ngram, at = trace.ngram, trace.position(pos)
    if ngram is None:
        return {"levels": [], "definitions": {}}
    ids = trace.ids[0, : at + 1].numpy()
    following = int(trace.ids[0, at + 1]) if at + 1 < trace.ids.size(1) else None
    known = ngram.context_levels(ids)
    shown = list(range(len(known))) if ngram.is_interpolated else [len(known) - 1]
    levels = [level_facts(trace, ngram, known, k, at, following) for k in shown]
    if isinstance(trace.predictor.network, NGramMixture):
        levels.append(mixture_facts(trace, known[-1], at, following))
    return {"levels": levels, "definitions": {"levels": source_text(*LEVELS), "mixture": source_text(*MIXED)}}


def level_facts(
    trace: PredictorTrace, ngram: NGram, known: Sequence[ContextLevel], k: int, at: int, following: int | None
) -> dict[str, Any]:
    """One level as the page shows it: see `prediction_levels`."""
    level, choices = known[k], ngram.choices
    shorter = known[k - 1].probs if k and ngram.is_interpolated else np.full(choices.n_vocab, 1 / choices.n_vocab)
    equation = level_equation(ngram, level, k)
    longest = k == choices.order - 1 or not ngram.is_interpolated
    passed = level.below * shorter if ngram.is_interpolated or choices.smoothing == "add-alpha" else None
    columns = ["times" if longest else "tokens before it", "from these counts"]
    columns += (
        [] if passed is None else ["from the shorter context" if k and ngram.is_interpolated else "for any token"]
    )
    rows = []
    for token in listed_tokens(level.probs, following):
        values = [float(level.counts[token]), float(level.own[token])]
        values += [] if passed is None else [float(passed[token])]
        rows.append(row_of(trace, token, [*values, float(level.probs[token])], following))
    reason = ""
    if not level.counts.any():
        reason = "Training did not have this context followed by anything, so "
        reason += (
            "the prediction of the shorter context stands."
            if ngram.is_interpolated
            else "maximum likelihood says nothing."
            if choices.smoothing == "maximum-likelihood"
            else "each token is equally likely."
        )
    return {
        "name": f"levels.{k}",
        "context": [token_object(trace.tokenizer, i) for i in level.context],
        "math": mathml(equation.tex),
        "facts": [
            {"name": f"levels.{k}.{name}", "label": label, "value": value} for name, label, value in equation.facts
        ],
        "columns": [*columns, "probability"],
        "rows": [] if np.isnan(level.probs[0]) else rows,
        "reason": reason,
        "definition": "levels",
        "code": (
            f"level = trace.ngram.context_levels(trace.ids[0, : {at + 1}].numpy())[{k}]\n"
            "level.counts, level.own, level.below, level.probs"
        ),
    }


def level_equation(ngram: NGram, level: ContextLevel, k: int) -> LevelEquation:
    """The equation of the level of contexts of k tokens, with c(h), N(h) and the discounts at this context."""
    smoothing, total = ngram.choices.smoothing, float(level.counts.sum())
    facts: list[tuple[str, str, float]] = [("total", "c(h)", total)]
    if smoothing == "maximum-likelihood":
        return LevelEquation("P(w) = \\frac{c(h w)}{c(h)}", tuple(facts))
    if smoothing == "add-alpha":
        facts += [("alpha", "\u03b1", ngram.choices.alpha), ("below", "\u03bb", level.below)]
        return LevelEquation(
            "P(w) = \\frac{c(h w) + \\alpha}{c(h) + \\alpha V}, \\; \\lambda = \\frac{\\alpha V}{c(h) + \\alpha V}",
            tuple(facts),
        )
    d = ngram.discounts[k]
    shorter = f"P_{{{k - 1}}}(w)" if k else "\\frac{1}{V}"
    own = f"P_{{{k}}}(w) = \\frac{{\\max(c(h w) - D, 0)}}{{c(h)}} + \\lambda {shorter}"
    if smoothing == "kneser-ney":
        facts += [("types", "N(h)", float((level.counts > 0).sum())), ("D", "D", d[0])]
        weight = "\\lambda = \\frac{D N(h)}{c(h)}"
    else:
        for count in (1, 2, 3):
            these = level.counts == count if count < 3 else level.counts >= 3
            name = f"{count}" if count < 3 else "3+"
            facts += [(f"N{count}", f"N{name}(h)", float(these.sum())), (f"D{count}", f"D{name}", d[count - 1])]
        weight = "\\lambda = \\frac{D_1 N_1 + D_2 N_2 + D_3 N_3}{c(h)}"
    return LevelEquation(f"{own}, \\; {weight}", (*facts, ("below", "\u03bb", level.below)))


def mixture_facts(trace: PredictorTrace, counted: ContextLevel, at: int, following: int | None) -> dict[str, Any]:
    """The mixture of a network and an n-gram as a last level."""
    mixture: Any = trace.predictor.network
    mixed = trace.logits(at, at + 1)[0].exp().numpy()
    own = in_float64(trace.network_logits(at))[0].softmax(-1).numpy()
    rows = [
        row_of(trace, token, [float(own[token]), float(counted.probs[token]), float(mixed[token])], following)
        for token in listed_tokens(mixed, following)
    ]
    return {
        "name": "mixture",
        "context": [],
        "math": mathml("P(w) = \\lambda P_{\\text{network}}(w) + (1 - \\lambda) P_{\\text{counted}}(w)"),
        "facts": [{"name": "mixture.weight", "label": "\u03bb", "value": mixture.weight}],
        "columns": ["network", "n-gram", "probability"],
        "rows": rows,
        "reason": "",
        "definition": "mixture",
        "code": f"trace.logits({at}, {at + 1}).exp()",
    }


def listed_tokens(probs: np.ndarray, following: int | None) -> list[int]:
    """The likeliest tokens, and the one that follows in the text."""
    best = np.argsort(-probs, kind="stable")[:LISTED_TOKENS].tolist()
    return best if following is None or following in best else [*best, following]


def row_of(trace: PredictorTrace, token: int, values: list[float], following: int | None) -> dict[str, Any]:
    """One token of a level's table."""
    return {"token": token_object(trace.tokenizer, token), "values": values, "follows": token == following}
