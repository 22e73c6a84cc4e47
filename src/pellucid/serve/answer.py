"""The texts of one request as they come: events of all its sequences in one queue."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pellucid.generate.grammars import Grammar
from pellucid.generate.readers import TapFactory
from pellucid.serve.generation import Generation, TokenEvent, TokenScore, TooLargeError
from pellucid.serve.protocol import SamplingBody
from pellucid.serve.served import ServedModel

#: known tokens are counted in blocks of so many: exact counts would confirm guesses of other clients' prompts
COUNTED_TOKENS = 64


@dataclass
class FinishedText:
    """What one sequence came to."""

    text: str = ""
    #: each token with the characters that it completes
    tokens: list[tuple[int | None, str]] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    reason: str | None = None


class Answer:
    """The sequences of one request, submitted to the engine when this is made.

    prompts     the ids of each prompt, of which `n` samples are generated
    taps        the request's edits (`ServedModel.taps`, which takes long for a large one)
    max_tokens  of each text
    n_top       how many of the likeliest tokens are named; -1 computes no log-probabilities
    echo        whether the prompt's tokens are scored
    stop_ids    tokens that end a text, besides the tokenizer's own
    sources     what an encoder reads for each prompt
    grammar     what every text follows (`ServedModel.grammar`)
    """

    def __init__(
        self,
        model: ServedModel,
        body: SamplingBody,
        prompts: Sequence[Sequence[int]],
        *,
        taps: TapFactory,
        max_tokens: int,
        n: int = 1,
        n_top: int = -1,
        echo: bool = False,
        stop_ids: frozenset[int] = frozenset(),
        sources: Sequence[Sequence[int]] | None = None,
        grammar: Grammar | None = None,
    ):
        self.model, self.body, self.n = model, body, n
        self.outbox, self.created = model.outbox(asyncio.get_running_loop()), time.time()
        self.events: asyncio.Queue[tuple[Generation, TokenEvent | Exception]] = asyncio.Queue()
        model.check_ids([int(token) for token in body.logit_bias or {}])
        # -1 draws one, as in llama.cpp's server and vLLM's
        seed = secrets.randbits(32) if body.seed is None or body.seed == -1 else body.seed
        sampling = body.sampling()
        inputs = model.shared_sources(sources, taps)
        self.n_source_tokens = sum(map(len, sources or ()))
        self.generations = [
            Generation(
                prompt_ids=ids,
                sampling=sampling,
                max_tokens=max_tokens,
                seed=seed,
                emit=self.receive,
                prompt=number,
                sample=sample,
                stop=body.stops,
                stop_ids=stop_ids,
                n_top=n_top,
                echo=echo,
                taps=taps,
                sources=inputs,
                grammar=None if grammar is None else grammar.start(),
            )
            for number, ids in enumerate(prompts)
            for sample in range(n)
        ]
        self.index = {id(generation): index for index, generation in enumerate(self.generations)}
        try:
            model.engine.submit(self.generations)
        except TooLargeError as error:
            raise error.renamed(body.limit_names) from None

    def receive(self, generation: Generation, event: TokenEvent | Exception) -> None:
        """Called in the engine's thread."""
        self.outbox.put(self.events, (generation, event))

    def cancel(self) -> None:
        """Give every row back before the next step."""
        for generation in self.generations:
            generation.cancel()

    async def each(self) -> AsyncIterator[tuple[int, TokenEvent]]:
        """Events with the index of their sequence, until all are finished; raises what ended a sequence."""
        going = len(self.generations)
        try:
            while going:
                generation, event = await self.events.get()
                if isinstance(event, Exception):
                    raise event
                going -= event.finish_reason is not None
                yield self.index[id(generation)], event
        finally:
            self.cancel()

    async def texts(self, request: Request) -> list[FinishedText]:
        """All texts, when they are finished; a client that leaves frees its rows."""
        finished = [FinishedText() for _ in self.generations]

        async def collect() -> None:
            async for index, event in self.each():
                text = finished[index]
                text.text += event.text
                text.tokens.append((event.token, event.text))
                text.reason = event.finish_reason
                if event.score is not None:
                    text.scores.append(event.score)

        await unless_disconnected(collect(), request)
        return finished

    def counts(self) -> tuple[int, int, int]:
        """How many tokens were given, how many of those were known already, and how many were generated.

        The tokens that an encoder reads are given too.
        """
        each_prompt = self.generations[:: self.n]
        read = self.n_source_tokens + sum(len(g.prompt_ids) for g in each_prompt)
        cached = sum(g.cached_tokens // COUNTED_TOKENS * COUNTED_TOKENS for g in each_prompt)
        return read, cached, sum(len(g.state.generated) for g in self.generations)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        read, cached, written = self.counts()
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def timings(self) -> dict[str, float]:
        """Milliseconds and tokens per second, as llama.cpp's server gives them."""
        read, cached, written = self.counts()
        first = min(g.first_token for g in self.generations)
        prompt = 1000 * (first - min(g.arrived for g in self.generations))
        predicted = 1000 * (max(g.last_token for g in self.generations) - first)
        # the known tokens are not computed, and the first token comes with the prompt
        n_prompt, n_predicted = read - cached, max(0, written)
        return {
            "cache_n": cached,
            "prompt_n": n_prompt,
            "prompt_ms": prompt,
            "prompt_per_token_ms": prompt / max(1, n_prompt),
            "prompt_per_second": 1000 * n_prompt / prompt if prompt else 0.0,
            "predicted_n": n_predicted,
            "predicted_ms": predicted,
            "predicted_per_token_ms": predicted / max(1, n_predicted),
            "predicted_per_second": 1000 * n_predicted / predicted if predicted else 0.0,
        }


async def unless_disconnected(work: Any, request: Request) -> Any:
    """Await the work, or give it up as soon as the client has left."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnection(request))
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client left before the answer was complete")
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def disconnection(request: Request) -> None:
    """Wait until the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
