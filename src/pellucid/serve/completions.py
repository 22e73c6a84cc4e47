"""POST /v1/completions: text that continues prompts, whole or streamed."""

import itertools
import secrets
import statistics
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator
from starlette.responses import Response

from pellucid.serve.answer import Answer, FinishedText
from pellucid.serve.generation import Generation, TokenScore
from pellucid.serve.protocol import (
    MAX_ALTERNATIVES,
    MAX_SAMPLES,
    Prompts,
    SamplingBody,
    finish_reason,
    json_log_prob,
)
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import DONE_EVENT, CancellingStream, error_event, server_event
from pellucid.serve.threads import in_thread
from pellucid.text.tokenizers.tokenizer import Stream

#: the tokens of a completion where a request says no number, as with OpenAI
DEFAULT_TOKENS = 16


class CompletionBody(SamplingBody):
    """The body of the request. Prompts are texts or token ids, one or several.

    source   what the encoder of an encoder-decoder reads for each prompt, which then begins the target. Without it the
             prompt is the source, and the target begins empty
    best_of  of so many samples of a prompt, the `n` whose tokens are likeliest on average are given, likeliest first
    """

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingBody.refused,
        "suffix": ("",),
    }
    renamed: ClassVar[dict[str, str]] = {**SamplingBody.renamed, "max_completion_tokens": "max_tokens"}

    prompt: Prompts | None = ""
    source: Prompts | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = 1
    best_of: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    echo: bool | None = False

    @property
    def n_samples(self) -> int:
        """The samples that are generated of each prompt."""
        return self.best_of or self.n or 1

    @model_validator(mode="after")
    def check_numbers_of_texts(self) -> "CompletionBody":
        n = self.n or 1
        if self.n_samples < n:
            raise ValueError(f"best_of = {self.best_of} with n = {n}: expected at least n, of which n are given")
        if self.stream and self.n_samples > n:
            raise ValueError(
                f"best_of = {self.best_of} with stream: the best are known at the end; leave one of them out"
            )
        return self


def read_body(model: ServedModel, body: CompletionBody) -> tuple[list[list[int]], list[list[int]] | None]:
    """The ids of the prompts, and of the sources where an encoder reads any."""
    prompt = "" if body.prompt is None else body.prompt
    if not model.reads_sources:
        if body.source is not None:
            raise ValueError("source: this model has no encoder; send the text as the prompt")
        return model.prompts(prompt), None
    if body.echo and body.source is None:
        raise ValueError(
            "echo: the encoder of this model reads the prompt, and the text does not begin with it; leave echo out, or "
            "send that text as the source and what the answer begins with as the prompt"
        )
    begins = "" if body.source is None else prompt
    sources = model.sources(prompt, "prompt") if body.source is None else model.sources(body.source, "source")
    targets = model.targets(begins)
    if len(targets) == 1:
        targets *= len(sources)
    if len(targets) != len(sources):
        raise ValueError(f"{len(sources)} sources for {len(targets)} prompts: give one for each, or one prompt for all")
    return targets, sources


async def answer_completion(model: ServedModel, body: CompletionBody, request: Request) -> Response:
    """The response, whole or streamed."""
    # a long text takes long to encode, as a large edit to read, and other streams go on meanwhile
    prompts, sources, taps = await in_thread(lambda: (*read_body(model, body), model.taps(body.edits)))
    grammar = await model.grammar(body.form, frozenset(model.tokenizer.ends))
    answer = Answer(
        model,
        body,
        prompts,
        taps=taps,
        max_tokens=min(DEFAULT_TOKENS, model.engine.max_tokens) if body.max_tokens is None else body.max_tokens,
        n=body.n_samples,
        n_top=body.logprobs if body.logprobs is not None else 0 if body.n_samples > (body.n or 1) else -1,
        echo=bool(body.echo) and body.logprobs is not None,
        sources=sources,
        grammar=grammar,
    )
    about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion"}
    about |= {"created": int(answer.created), "model": model.name}
    if body.stream:
        return CancellingStream(answer, stream_completion(answer, body, about))
    return JSONResponse(await whole_completion(answer, body, about, request))


async def stream_completion(answer: Answer, body: CompletionBody, about: dict[str, Any]) -> AsyncIterator[str]:
    """A chunk for each piece of each text, usage where asked for, and [DONE]."""
    logprobs = [CompletionLogprobs(answer.model) for _ in answer.generations]
    none_yet = {"usage": None} if body.include_usage else {}
    echoed: set[int] = set()
    try:
        async for index, token in answer.each():
            if body.echo and index not in echoed:
                echoed.add(index)
                generation = answer.generations[index]
                prompt = EchoedPrompt(answer.model, generation.prompt_ids)
                lists = logprobs[index].of_prompt(prompt, generation.prompt_scores) if generation.echo else None
                yield server_event(about | {"choices": [completion_choice(index, prompt.text, lists, None)]} | none_yet)
            lists = None if token.score is None else logprobs[index].of([token.score])
            if token.text or lists or token.finish_reason:
                choice = completion_choice(index, token.text, lists, token.finish_reason)
                yield server_event(about | {"choices": [choice]} | none_yet)
        if body.include_usage:
            yield server_event(about | {"choices": [], "usage": answer.usage(), "timings": answer.timings()})
    except Exception as error:
        yield error_event(error)
    yield DONE_EVENT


async def whole_completion(
    answer: Answer, body: CompletionBody, about: dict[str, Any], request: Request
) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choices = []
    texts = list(zip(answer.generations, await answer.texts(request), strict=True))
    for index, (generation, finished) in enumerate(best_texts(texts, body.n or 1, body.n_samples)):
        prompt = EchoedPrompt(answer.model, generation.prompt_ids) if body.echo else None
        text, lists = finished.text if prompt is None else prompt.text + finished.text, None
        if body.logprobs is not None:
            logprobs = CompletionLogprobs(answer.model)
            lists = None if prompt is None else logprobs.of_prompt(prompt, generation.prompt_scores)
            generated = logprobs.of(finished.scores)
            lists = generated if lists is None else {name: lists[name] + more for name, more in generated.items()}
        choices.append(completion_choice(index, text, lists, finished.reason))
    return about | {"choices": choices, "usage": answer.usage(), "timings": answer.timings()}


def best_texts(
    texts: Sequence[tuple[Generation, FinishedText]], n: int, n_samples: int
) -> list[tuple[Generation, FinishedText]]:
    """Of the samples of each prompt the `n` with the highest mean log-probability of a token, highest first."""
    if n == n_samples:
        return list(texts)

    def mean_log_prob(sample: tuple[Generation, FinishedText]) -> float:
        return statistics.fmean([score.log_prob for score in sample[1].scores] or [0.0])

    by_prompt = [texts[begin : begin + n_samples] for begin in range(0, len(texts), n_samples)]
    return [sample for samples in by_prompt for sample in sorted(samples, key=mean_log_prob, reverse=True)[:n]]


def completion_choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """One choice of a text completion, whole or in part."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason(reason)}


class EchoedPrompt:
    """A prompt as it is given back: the characters that each of its tokens completes, their names, and the text.

    A tokenizer of another project may put a space before every text, which its `decode` leaves out: neither the text
    nor the tokens have it then.
    """

    def __init__(self, model: ServedModel, ids: Sequence[int]):
        characters = model.tokenizer.stream()
        pieces, self.broken = completed_characters(characters, ids)
        # what is generated begins with a character of its own
        pieces[-1] += characters.finish()
        n = max(0, n_spaces("".join(pieces)) - n_spaces(model.tokenizer.decode(ids)))
        self.pieces = without_spaces(pieces, n)
        self.names = without_spaces([model.token_text(token) for token in ids], n)
        self.text = "".join(self.pieces)


def completed_characters(characters: Stream, ids: Sequence[int]) -> tuple[list[str], list[bool]]:
    """The characters that each token completes, and whether one that it does not complete ends in front of it."""
    pairs = [(characters.breaks_off(token), characters.push(token)) for token in ids]
    return [piece for _, piece in pairs], [broken for broken, _ in pairs]


def n_spaces(text: str) -> int:
    """The number of spaces that a text begins with."""
    return len(text) - len(text.lstrip(" "))


def without_spaces(pieces: Sequence[str], n: int) -> list[str]:
    """The pieces of a text without the `n` spaces that it begins with."""
    shorter = []
    for piece in pieces:
        here = min(n, n_spaces(piece))
        shorter.append(piece[here:])
        n -= here
    return shorter


class CompletionLogprobs:
    """OpenAI's four lists about the tokens of a text completion, and how many characters came before the next token."""

    def __init__(self, model: ServedModel):
        self.model, self.offset, self.characters = model, 0, model.tokenizer.stream()

    def of_prompt(self, prompt: EchoedPrompt, scores: Sequence[TokenScore | None]) -> dict[str, list[Any]]:
        """The lists for the tokens of a prompt; None for the first one, which nothing predicts."""
        return self.lists(scores, prompt.names, prompt.pieces, prompt.broken)

    def of(self, scores: Sequence[TokenScore]) -> dict[str, list[Any]]:
        """The lists for generated tokens."""
        names = [self.model.token_text(score.token) for score in scores]
        return self.lists(scores, names, *completed_characters(self.characters, [score.token for score in scores]))

    def lists(
        self,
        scores: Sequence[TokenScore | None],
        names: Sequence[str],
        pieces: Sequence[str],
        broken: Sequence[bool],
    ) -> dict[str, list[Any]]:
        """The lists for tokens with these names, which complete these characters."""
        # a token inside a character completes none: the next one stands at the same place
        offsets = list(itertools.accumulate(map(len, pieces), initial=self.offset))
        self.offset = offsets.pop()
        # a token behind an unfinished character stands behind the mark for that one
        offsets = [offset + mark for offset, mark in zip(offsets, broken, strict=True)]
        return {
            "tokens": list(names),
            "token_logprobs": [score and json_log_prob(score.log_prob) for score in scores],
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
            name, number = self.model.token_text(token), json_log_prob(log_prob)
            names[name] = max(names.get(name, number), number)
        return names
