"""POST /v1/embeddings: a text as one vector of length 1, from the stream behind the last block and the final norm."""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from fastapi import Request
from pydantic import Field
from torch import Tensor

from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import evaluation_mode
from pellucid.model import Cache, Transformer
from pellucid.serve.answer import unless_disconnected
from pellucid.serve.batching import CHUNK
from pellucid.serve.generation import TooLargeError
from pellucid.serve.protocol import Body, Ids, SeveralPrompts
from pellucid.serve.served import ServedModel

#: texts of one request, at most, as with OpenAI: clients that index documents send a thousand at once
MAX_INPUTS = 2048
#: bytes of the body of a request, at most: so many texts of 8,192 bytes
MAX_BODY = 2**24
Inputs = str | Ids | Annotated[SeveralPrompts, Field(max_length=MAX_INPUTS)]


class EmbeddingBody(Body):
    """The body of the request. `pooling` is how the vectors of a text's tokens become one."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "edits": ([],),
        "truncate_prompt_tokens": (),
        "add_special_tokens": (True,),
    }

    model: str | None = None
    input: Inputs = Field(min_length=1)
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None
    pooling: Literal["mean", "last"] = "mean"


async def answer_embeddings(model: ServedModel, body: EmbeddingBody, request: Request) -> dict[str, Any]:
    """OpenAI's list of embeddings, in the order of the input."""
    network = model.engine.network
    if not isinstance(network, Transformer) or network.encoder is not None:
        raise GenerationError("embeddings: this model has no single stream of vectors for a text; ask a transformer")
    width = network.architecture.d_model
    if body.dimensions not in (None, width):
        raise ValueError(f"dimensions = {body.dimensions}: this model's vectors have {width}; leave it out")
    texts = await asyncio.to_thread(model.prompts, body.input)
    for number, ids in enumerate(texts):
        if len(ids) > model.engine.n_ctx:
            raise TooLargeError(
                f"input {number} has {len(ids)} tokens and this model's context is {model.engine.n_ctx}: shorten it",
                "input",
            )
    future = model.engine.compute(embedding_steps(network, texts, body.pooling))
    vectors = await unless_disconnected(awaited(future), request)
    n_tokens = sum(map(len, texts))
    in_base64 = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": as_base64(vector) if in_base64 else vector}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


async def awaited(future: Future) -> Any:
    """The result of a job; cancelling the wait cancels the job."""
    return await asyncio.wrap_future(future)


def embedding_steps(
    network: Transformer, texts: Sequence[Sequence[int]], pooling: str
) -> Iterator[list[list[float]] | None]:
    """Reads a chunk of a text at a time, and yields all vectors at the end."""
    vectors = []
    for ids in texts:
        total: Tensor | None = None
        for stream in stream_chunks(network, ids):
            summed = stream[-1] if pooling == "last" else stream.sum(0)
            total = summed if total is None or pooling == "last" else total + summed
            yield None
        assert total is not None
        vectors.append(of_length_one(total))
    yield vectors


def stream_chunks(network: Transformer, ids: Sequence[int]) -> Iterator[Tensor]:
    """The final stream of a text's tokens, float64 [pos, d_model], a chunk at a time where masks are causal."""
    a, weight = network.architecture, network.embed.token.weight
    if a.attention.mask != "causal":
        with evaluation_mode(network):
            stream = network.hidden(torch.tensor([list(ids)], device=weight.device))[0].double()
        yield stream
        return
    cache = Cache(a, 1, len(ids), dtype=weight.dtype, device=weight.device)
    for begin in range(0, len(ids), CHUNK):
        chunk = torch.tensor([list(ids[begin : begin + CHUNK])], device=weight.device)
        with evaluation_mode(network):
            stream = network.hidden(chunk, cache=cache)[0].double()
        yield stream


def of_length_one(vector: Tensor) -> list[float]:
    """v / |v|; GenerationError for a vector that has no direction."""
    length = float(vector.norm())
    if not np.isfinite(length) or length == 0:
        raise GenerationError(f"the final stream of this text has length {length}, so it has no direction to embed")
    return (vector / length).tolist()


def as_base64(vector: Sequence[float]) -> str:
    """The numbers as little-endian float32 in base64, as OpenAI's client asks for unless told otherwise."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
