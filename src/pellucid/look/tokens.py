"""The page Tokens: how the text was cut, how well each token was expected, and what n-grams expected of it."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.generate.sampling import draw_tokens, uniform
from pellucid.generate.text import generate
from pellucid.lens.core.inputs import InputError
from pellucid.lens.generation_trace import taps_of
from pellucid.lens.show.answers import nested, spell
from pellucid.lens.trace import Trace
from pellucid.look.merges import MergeTrees
from pellucid.look.predictor_trace import PredictorTrace
from pellucid.look.session import AnyModel, Session
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import COUNTED, spread
from pellucid.predictors.on_text import ids_to_count, recipe_of, tokens_of
from pellucid.predictors.predictor import Predictor
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.training.recipe import Recipe

#: the n-grams that are shown, by the number of tokens in them
ORDERS = {1: "unigram", 2: "bigram", 3: "trigram"}
#: the likeliest tokens that are listed for each n-gram
TOP = 8
#: tokens of a text that an n-gram writes
WRITTEN = 24


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Tokens."""

    @app.get("/api/t/{trace_id}/tokens/pieces")
    async def pieces(request: Request, trace_id: str) -> dict[str, Any]:
        return await session.compute(
            request, lambda: text_pieces(session.kept_reading(trace_id), session.prompt_of(trace_id).text)
        )

    @app.get("/api/t/{trace_id}/tokens/ngrams")
    async def ngrams(request: Request, trace_id: str, pos: int = -1) -> Response:
        await session.compute(request, session.kept_reading, trace_id)  # 410 before the stream begins
        return session.stream(ngram_lines(session, trace_id, pos))

    @app.get("/api/t/{trace_id}/tokens/written")
    async def written(request: Request, trace_id: str, seed: int = 0) -> Response:
        await session.compute(request, session.kept_reading, trace_id)
        return session.stream(written_lines(session, trace_id, seed))


# Pieces of text -------------------------------------------------------------------------------------


def text_pieces(trace: Trace | PredictorTrace, text: str) -> dict[str, Any]:
    """The bytes that each token of the text stands for, the characters that they share, and the merges.

    `bytes` has one entry for each token, in hexadecimal; tokens that stand for no text (a separator) have none.
    `characters` are runs [first, last] of tokens that hold one character together. `words` are the merges
    (`MergeTrees.of_text`), or `reason` says why there are none.
    """
    tokenizer = trace.tokenizer
    ids = trace.ids[0, : trace.inputs.lengths[0]].tolist()
    special = set(tokenizer.special.values())
    plain = [i for i in ids if i not in special]
    try:
        spelled = tokenizer.pieces_of(text, plain) if tokenizer.encode(text) == plain else None
    except TokenizerError:
        spelled = None
    known = iter(spelled or [tokenizer.token_bytes(i) for i in plain])
    pieces = [b"" if i in special else next(known) for i in ids]
    trees = MergeTrees(tokenizer)
    return {
        "bytes": [piece.hex() for piece in pieces],
        "characters": shared_characters(pieces),
        "words": trees.of_text(text),
        "reason": trees.reason,
    }


def shared_characters(pieces: list[bytes]) -> list[list[int]]:
    """Runs [first, last] of tokens, each of which holds a part of one character of UTF-8."""
    runs: list[list[int]] = []
    missing, first = 0, 0
    for k, piece in enumerate(pieces):
        for byte in piece:
            if 0x80 <= byte < 0xC0 and missing:
                missing -= 1
                if not missing and k > first:
                    runs.append([first, k])
            else:
                # the first byte says how many follow; any other byte in their place is no character
                missing = 1 if 0xC2 <= byte < 0xE0 else 2 if 0xE0 <= byte < 0xF0 else 3 if 0xF0 <= byte < 0xF5 else 0
                first = k
    return runs


# N-grams of the training text -----------------------------------------------------------------------


def training_tokens(model: AnyModel) -> tuple[Any, Recipe]:
    """The tokens of the text that a model was trained on, and the recipe of its run.

    Raises InputError for a model that is not from a run, and RecipeError or DocumentError where the run's text has
    changed or is missing.
    """
    folder = model.provenance.get("folder")
    if not folder or not (Path(folder) / "recipe.json").exists():
        raise InputError(
            "this model was not trained by Pellucid on this machine, so there is no training text to count n-grams on"
        )
    recipe = recipe_of(Path(folder))
    return tokens_of(Path(folder), recipe, None, trust=model.provenance.get("trust", False)), recipe


def tokens_in_text(model: AnyModel) -> torch.Tensor:
    """The ids that occur in the text that a model was trained on, in order; of a long text, in what n-grams count."""
    tokens, _ = training_tokens(model)
    return torch.from_numpy(np.unique(spread(tokens.targets("train"), COUNTED)).astype(np.int64))


def counted_ngrams(session: Session, model: AnyModel) -> Iterator[dict[str, Any]]:
    """Count n-grams on the run's training text, once for a session; yields what is being done.

    Afterwards `session.results["ngrams"]` has them by order. Raises the errors of `training_tokens`.
    """
    if "ngrams" in session.results:
        return
    yield {"doing": "reading the training text", "done": 0, "of": len(ORDERS) + 1}
    tokens, recipe = training_tokens(model)
    ids, separator = ids_to_count(Path(model.provenance["folder"]), recipe, tokens)
    counted: dict[int, NGram] = {}
    for done, (order, name) in enumerate(ORDERS.items(), 1):
        yield {"doing": f"counting {name}s in {len(ids):,} tokens", "done": done, "of": len(ORDERS) + 1}
        if len(ids) >= order:
            counted[order] = NGram.train(ids, tokens.n_vocab, order, separator=separator)
    session.results["ngrams"] = counted


def ngram_lines(session: Session, trace_id: str, pos: int) -> Iterator[dict[str, Any]]:
    """What is being counted; then one line with the bits of each token, and what each order expected at a position.

    `bits` has one list for each name, None for the first token. `top` is what each expected AFTER position `pos`.
    """
    trace, prompt = session.kept_reading(trace_id), session.prompt_of(trace_id)
    yield from counted_ngrams(session, session.model(prompt.checkpoint))
    yield ngram_facts(trace, session.results["ngrams"], pos)


def ngram_facts(trace: Trace | PredictorTrace, counted: dict[int, NGram], pos: int) -> dict[str, Any]:
    """The bits that n-grams take for each token of the trace, and what they expect after position `pos`."""
    n = trace.inputs.lengths[0]
    ids = trace.ids[0, :n].cpu().numpy()
    at = trace.position(pos)
    bits, top = {}, {}
    for order, ngram in counted.items():
        name = ORDERS[order]
        bits[name] = [None, *nested((-ngram.log_probs(ids) / math.log(2)).tolist())]
        p = ngram.next_probs(ids[: at + 1])
        best = np.argsort(-p, kind="stable")[:TOP].tolist()
        top[name] = [{"id": i, "text": spell(trace.tokenizer, i), "p": float(p[i])} for i in best]
    return {
        "bits": bits,
        "top": top,
        "code": (
            "import math\nfrom pellucid.look.tokens import ngrams_of\n"
            "ids, ngrams = trace.ids[0].cpu().numpy(), ngrams_of(model)\n"
            "bits = {name: -ngram.log_probs(ids) / math.log(2) for name, ngram in ngrams.items()}"
        ),
    }


def ngrams_of(model: AnyModel) -> dict[str, NGram]:
    """The n-grams of a model's training text, by name, as the page shows them."""
    session = Session(model)
    for _ in counted_ngrams(session, model):
        pass
    return {ORDERS[order]: ngram for order, ngram in session.results["ngrams"].items()}


def written_lines(session: Session, trace_id: str, seed: int) -> Iterator[dict[str, Any]]:
    """A text that each n-gram writes behind the prompt, and one of the model with its edits, from the same draws."""
    trace, prompt = session.kept_reading(trace_id), session.prompt_of(trace_id)
    model = session.model(prompt.checkpoint)
    ids = trace.ids[0, : trace.inputs.lengths[0]].tolist()
    try:
        yield from counted_ngrams(session, model)
        for order, ngram in session.results["ngrams"].items():
            name = ORDERS[order]
            code = (
                "from pellucid.look.tokens import ngrams_of, trace_text, written_by\n\n"
                f"text = trace_text(trace, written_by(ngrams_of(model)[{name!r}], trace.ids[0].tolist(), {seed}))"
            )
            yield {"name": name, "text": trace_text(trace, written_by(ngram, ids, seed)), "code": code}
    except ValueError as error:
        yield {"reason": str(error)}
    room = WRITTEN
    if isinstance(trace, Trace):
        if trace.architecture.attention.mask != "causal" or trace.inputs.source is not None:
            yield {"reason": "this model does not continue a text"}
            return
        room = trace.architecture.n_ctx - len(ids)
        if room < 1:
            yield {"reason": f"the prompt fills the context of {trace.architecture.n_ctx} tokens"}
            return
    if prompt.edits and prompt.bos and not model.tokenizer.before:
        yield {
            "reason": "this model under the edits: it writes without a separator in front, where edits of positions "
            'would change other tokens; take "separator first" away'
        }
        return
    options: dict[str, Any] = {"max_tokens": min(WRITTEN, room), "temperature": 1.0, "seed": seed}
    said = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if isinstance(model, Predictor):
        text = model.generate(prompt.text, **options).text
    else:
        said = f"edits=change, {said}" if prompt.edits else said
        text = generate(model, prompt.text, taps=taps_of(model.network, session.edits(prompt)), **options)[0].text
    yield {"name": "this model", "text": text, "code": f"text = model.generate({prompt.text!r}, {said}).text"}


def written_by(ngram: NGram, ids: list[int], seed: int) -> list[int]:
    """The tokens that an n-gram writes behind others, drawn with the numbers of a seed."""
    written: list[int] = []
    for step in range(WRITTEN):
        p = torch.from_numpy(ngram.next_probs(np.array(ids + written)))[None]
        written.append(int(draw_tokens(p, torch.tensor([uniform(seed, 0, step)], dtype=torch.float64))[0]))
    return written


def trace_text(trace: Trace | PredictorTrace, ids: list[int]) -> str:
    """Ids as text, without special ones."""
    return trace.tokenizer.decode(ids)
