"""POST /v1/fill: the likeliest tokens for each [MASK] of a text, from a masked model."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from fastapi import Request
from pydantic import Field

from pellucid.generate.fill import fill
from pellucid.model import Transformer
from pellucid.serve.answer import unless_disconnected
from pellucid.serve.embeddings import awaited
from pellucid.serve.generation import TooLargeError
from pellucid.serve.protocol import MAX_PROMPTS, Body
from pellucid.serve.served import ServedModel
from pellucid.serve.threads import in_thread
from pellucid.text_model import Model

MAX_TOP = 1000


class FillBody(Body):
    """The body of the request: a text or several, with [MASK] in the places to fill."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"edits": ([],)}

    model: str | None = None
    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 5


async def answer_fill(model: ServedModel, body: FillBody, request: Request) -> dict[str, Any]:
    """For each text its blanks, and for each blank the likeliest tokens with their probabilities."""
    texts = [body.text] if isinstance(body.text, str) else body.text
    await in_thread(check_lengths, model, texts)
    future = model.engine.compute(fill_steps(model, texts, body.top))
    filled = await unless_disconnected(awaited(future), request)
    return {"object": "list", "model": model.name, "data": filled}


def check_lengths(model: ServedModel, texts: Sequence[str]) -> None:
    """Raise for texts that are too long, before the engine's thread is asked to read them."""
    for number, text in enumerate(texts):
        model.check_bytes(text, "text")
        n = len(model.tokenizer.masked_ids(model.tokenizer.blanked_ids(text)))
        if n > model.engine.n_ctx:
            raise TooLargeError(
                f"text {number} has {n} tokens and this model's context is {model.engine.n_ctx}: shorten it", "text"
            )


def fill_steps(model: ServedModel, texts: Sequence[str], top: int) -> Iterator[list[dict[str, Any]] | None]:
    """Fills a text at a time, and yields all at the end. Raises GenerationError for a model that fills none."""
    network = model.engine.network
    if not isinstance(network, Transformer):
        raise ValueError("this model cannot fill blanks: serve one that was trained with --objective masked")
    reader, filled = Model(network, model.tokenizer), []
    for index, text in enumerate(texts):
        blanks = [asdict(blank) for blank in fill(reader, text, top=top)]
        filled.append({"index": index, "blanks": blanks})
        yield None
    yield filled
