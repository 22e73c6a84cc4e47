"""A model that is served: its engine, and what clients ask about it."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pellucid.architecture import count_parameters
from pellucid.generate.sampling import Sampling
from pellucid.serve.engine import Engine, Generation, TokenEvent, TokenScore
from pellucid.serve.protocol import CompletionBody, finish_reason
from pellucid.text.tokenizers.tokenizer import Tokenizer


@dataclass
class ServedModel:
    """A model under the name that clients ask for."""

    name: str
    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def describe(self) -> dict[str, Any]:
        """OpenAI's model object; `meta` as llama.cpp's server gives it."""
        a = self.engine.network.architecture
        meta = {
            "n_vocab": a.n_vocab,
            "n_ctx_train": a.n_ctx,
            "n_embd": a.d_model,
            "n_params": count_parameters(a)["total"],
        }
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "pellucid", "meta": meta}

    def prompts(self, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        """Ids of each prompt; an empty text begins with the separator, as training texts do."""
        many = prompt if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int) else [prompt]
        return [self.encode(one) for one in many]  # type: ignore[arg-type]

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Ids of one prompt; ValueError for ids that this model does not know."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt) or [self.tokenizer.separator]
        n = self.engine.network.architecture.n_vocab
        if wrong := [token for token in prompt if not 0 <= token < n]:
            raise ValueError(f"token id {wrong[0]}: this model knows ids from 0 to {n - 1}")
        return list(prompt) or [self.tokenizer.separator]

    def token_text(self, token: int) -> str:
        """A token as clients are shown it; one that is a part of a character as its bytes."""
        data = self.tokenizer.token_bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def sampling_of(body: CompletionBody) -> Sampling:
    """How tokens are chosen; GenerationError where the numbers do not go together."""
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=tuple(sorted((int(token), bias) for token, bias in (body.logit_bias or {}).items())),
    )


class Answer:
    """The texts of one request as they come: events of all its sequences in one queue."""

    def __init__(self, model: ServedModel, body: CompletionBody):
        self.model, self.body = model, body
        self.loop, self.created = asyncio.get_running_loop(), time.time()
        self.events: asyncio.Queue[tuple[Generation, TokenEvent | Exception]] = asyncio.Queue()
        stops = body.stop or ()
        seed = secrets.randbits(32) if body.seed is None else body.seed
        self.generations = [
            Generation(
                prompt_ids=ids,
                sampling=sampling_of(body),
                max_tokens=16 if body.max_tokens is None else body.max_tokens,
                seed=seed,
                emit=self.hear,
                sample=sample,
                stop=[stops] if isinstance(stops, str) else list(stops),
                n_top=-1 if body.logprobs is None else body.logprobs,
                echo=bool(body.echo) and body.logprobs is not None,
            )
            for ids in model.prompts(body.prompt)
            for sample in range(body.n or 1)
        ]
        self.index = {id(generation): index for index, generation in enumerate(self.generations)}
        model.engine.submit(self.generations)

    def hear(self, generation: Generation, event: TokenEvent | Exception) -> None:
        """Called in the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the answer any more
            self.loop.call_soon_threadsafe(self.events.put_nowait, (generation, event))

    def cancel(self) -> None:
        """Give every row back before the next step."""
        for generation in self.generations:
            generation.cancel()

    async def each(self) -> AsyncIterator[tuple[int, Generation, TokenEvent]]:
        """Events with the index of their sequence, until all are finished; raises what ended a sequence."""
        going = len(self.generations)
        try:
            while going:
                generation, event = await self.events.get()
                if isinstance(event, Exception):
                    raise event
                going -= event.finish_reason is not None
                yield self.index[id(generation)], generation, event
        finally:
            self.cancel()

    def usage(self) -> dict[str, Any]:
        """How many tokens were read and written, and how many of the prompts' were known already."""
        read = sum(len(g.prompt_ids) for g in self.generations[:: self.body.n or 1])
        written = sum(len(g.state.generated) for g in self.generations)
        cached = sum(g.cached_tokens for g in self.generations[:: self.body.n or 1])
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def timings(self) -> dict[str, float]:
        """Milliseconds and tokens per second, as llama.cpp's server gives them."""
        first = min(g.first_token for g in self.generations)
        prompt = 1000 * (first - min(g.arrived for g in self.generations))
        predicted = 1000 * (max(g.last_token for g in self.generations) - first)
        usage = self.usage()
        n_prompt, n_predicted = usage["prompt_tokens"], usage["completion_tokens"]
        return {
            "prompt_n": n_prompt,
            "prompt_ms": prompt,
            "prompt_per_second": 1000 * n_prompt / prompt if prompt else 0.0,
            "predicted_n": n_predicted,
            "predicted_ms": predicted,
            "predicted_per_second": 1000 * n_predicted / predicted if predicted else 0.0,
        }


class CompletionLogprobs:
    """OpenAI's four lists about the tokens of a text completion, and how many characters came before the next token."""

    def __init__(self, model: ServedModel):
        self.model, self.offset, self.characters = model, 0, model.tokenizer.stream()

    def of(self, scores: Sequence[TokenScore | None], tokens: Sequence[int]) -> dict[str, list[Any]]:
        """The lists for these tokens; None for the first one of a prompt, which nothing predicts."""
        texts = [self.model.token_text(token) for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(self.offset)
            # a token inside a character ends no character: the next one stands at the same place
            self.offset += len(self.characters.push(token))
        return {
            "tokens": texts,
            "token_logprobs": [score and score.log_prob for score in scores],
            "top_logprobs": [self.alternatives(score) for score in scores],
            "text_offset": offsets,
        }

    def alternatives(self, score: TokenScore | None) -> dict[str, float] | None:
        """The likeliest tokens with their log-probabilities, and the token itself with the same number as above."""
        if score is None:
            return None
        names: dict[str, float] = {}
        for token, log_prob in (*score.top, (score.token, score.log_prob)):
            # two tokens may be written alike; the likelier one is named
            name = self.model.token_text(token)
            names[name] = max(names.get(name, log_prob), log_prob)
        return names


def completion_chunk(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """One choice of a text completion, whole or in part."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason(reason)}
