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

from pellucid.architecture import Architecture
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import evaluation_mode
from pellucid.model import Cache, Transformer
from pellucid.model.float64 import in_float64
from pellucid.serve.answer import unless_disconnected
from pellucid.serve.batching import PROMPT_CHUNK
from pellucid.serve.generation import TooLargeError
from pellucid.serve.protocol import Body, Ids, SeveralPrompts
from pellucid.serve.served import ServedModel
from pellucid.serve.threads import in_thread

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
    texts = await in_thread(model.prompts, body.input, "input")
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
    """Reads several short texts or a chunk of a long one at a time, and yields all vectors at the end."""
    vectors: dict[int, list[float]] = {}
    for numbers in batches_by_length(texts, reads_on(network.architecture)):
        totals: list[Tensor] = []
        for parts in stream_chunks(network, [texts[number] for number in numbers]):
            summed = [part[-1] if pooling == "last" else part.sum(0) for part in parts]
            is_first = not totals or pooling == "last"
            totals = summed if is_first else [x + y for x, y in zip(totals, summed, strict=True)]
            yield None
        vectors |= {number: of_length_one(total) for number, total in zip(numbers, totals, strict=True)}
    yield [vectors[number] for number in range(len(texts))]


def reads_on(architecture: Architecture) -> bool:
    """Whether a token's stream is the same alone and before others, so that texts are padded and read in chunks.

    It is not where the frequencies of longrope follow the length of the whole text.
    """
    return architecture.attention.mask == "causal" and not architecture.frequency_border


def batches_by_length(texts: Sequence[Sequence[int]], may_differ: bool) -> Iterator[list[int]]:
    """The numbers of texts that are read together: at most PROMPT_CHUNK tokens, padded to the longest, or one text.

    may_differ  their lengths may differ; else a batch has texts of one length
    """
    batch: list[int] = []
    for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
        n = len(texts[number])
        if batch and ((len(batch) + 1) * n > PROMPT_CHUNK or not (may_differ or n == len(texts[batch[0]]))):
            yield batch
            batch = []
        batch.append(number)
    yield batch


def stream_chunks(network: Transformer, texts: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
    """The final stream of each text's tokens, float64 [pos, d_model], a chunk at a time where `reads_on`.

    Several texts are one chunk; no token reads the padding behind its text then.
    """
    a, weight = network.architecture, network.embed.token.weight
    longest = max(map(len, texts))
    padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts], device=weight.device)
    in_chunks = reads_on(a) and longest > PROMPT_CHUNK
    cache = Cache(a, 1, longest, dtype=weight.dtype, device=weight.device) if in_chunks else None
    size = longest if cache is None else PROMPT_CHUNK
    for begin in range(0, longest, size):
        with evaluation_mode(network):
            stream = in_float64(network.hidden(padded[:, begin : begin + size], cache=cache))
        yield [row[: len(ids) - begin] for row, ids in zip(stream, texts, strict=True)]


def of_length_one(vector: Tensor) -> list[float]:
    """v / |v|; GenerationError for a vector that has no direction."""
    length = float(vector.norm())
    if not np.isfinite(length) or length == 0:
        raise GenerationError(f"the final stream of this text has length {length}, so it has no direction to embed")
    return (vector / length).tolist()


def as_base64(vector: Sequence[float]) -> str:
    """The numbers as little-endian float32 in base64, as OpenAI's client asks for unless told otherwise."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
