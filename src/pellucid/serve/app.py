"""The routes: OpenAI's interface over the engines, one handler each."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid import __version__
from pellucid.generate.errors import GenerationError
from pellucid.serve.engine import QueueFullError, TokenScore, TooLargeError
from pellucid.serve.limits import Limits
from pellucid.serve.metrics import metrics_text
from pellucid.serve.protocol import CompletionBody, DetokenizeBody, TokenizeBody, error_body
from pellucid.serve.served import Answer, CompletionLogprobs, ServedModel, completion_chunk

#: names under which this machine knows itself
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def make_app(
    models: Sequence[ServedModel],
    *,
    key: str | None = None,
    hosts: Collection[str] = LOOPBACK,
) -> FastAPI:
    """The application that serves these models; the first one answers where a request names none.

    key     what clients must send as `Authorization: Bearer KEY`; None accepts any
    hosts   names that requests may be addressed to
    """

    @asynccontextmanager
    async def engines(_app: FastAPI) -> AsyncIterator[None]:
        for model in models:
            model.engine.start()
        yield
        await asyncio.gather(*(asyncio.to_thread(model.engine.drain, 0.0) for model in models))

    app = FastAPI(title="Pellucid", version=__version__, lifespan=engines, docs_url=None, redoc_url=None)
    by_name = {model.name: model for model in models}

    def find(name: str | None) -> ServedModel:
        if not name:
            return models[0]
        if name not in by_name:
            raise HTTPException(404, f"there is no model {name!r} here: ask for one of {', '.join(by_name)}")
        return by_name[name]

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(metrics_text(models), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model.describe() for model in models]}

    @app.get("/v1/models/{name:path}")
    async def describe_model(name: str) -> dict[str, Any]:
        return find(name).describe()

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        model = find(body.model)
        tokens = model.tokenizer.encode(body.prompt)
        if body.add_special_tokens:
            tokens = [model.tokenizer.separator, *tokens]
        return {"tokens": tokens, "count": len(tokens), "max_model_len": model.engine.n_ctx}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        model = find(body.model)
        return {"prompt": model.tokenizer.decode(model.encode(body.tokens) if body.tokens else [])}

    @app.get("/tokenizer_info")
    async def tokenizer_info(model: str | None = None) -> dict[str, Any]:
        tokenizer = find(model).tokenizer
        separator = tokenizer.token_str(tokenizer.separator)
        return {
            "tokenizer_class": f"Pellucid {tokenizer.kind}",
            "eos_token": separator,
            "bos_token": separator,
            "pad_token": separator,
            "chat_template": None,
        }

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        model = find(body.model)
        answer = Answer(model, body)
        about = {"id": f"cmpl-{answer.generations[0].seed:08x}{id(answer):x}", "object": "text_completion"}
        about |= {"created": int(answer.created), "model": model.name}
        if body.stream:
            return CancellingStream(answer, about)
        return JSONResponse(await whole_completion(answer, about, request))

    install_errors(app)
    app.add_middleware(Limits, hosts=hosts, key=key)  # type: ignore[arg-type]
    return app


class CancellingStream(StreamingResponse):
    """A streamed answer whose rows are given back however it ends, also where the client leaves before it begins."""

    def __init__(self, answer: Answer, about: dict[str, Any]):
        super().__init__(stream_completion(answer, about), media_type="text/event-stream")
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.cancel()


async def stream_completion(answer: Answer, about: dict[str, Any]) -> AsyncIterator[str]:
    """Server-sent events: a chunk for each piece of each text, usage where asked for, and [DONE]."""
    body, usage = answer.body, answer.body.stream_options is not None and answer.body.stream_options.include_usage
    logprobs = {index: CompletionLogprobs(answer.model) for index in range(len(answer.generations))}
    told: set[int] = set()

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps(about | {'choices': choices} | more, ensure_ascii=False)}\n\n"

    none_yet = {"usage": None} if usage else {}
    try:
        async for index, _, token in answer.each():
            if body.echo and index not in told:
                told.add(index)
                yield event([prompt_chunk(answer, index, logprobs[index])], **none_yet)
            lists = None
            if token.score is not None:
                lists = logprobs[index].of([token.score], [token.score.token])
            if token.text or lists or token.finish_reason:
                yield event([completion_chunk(index, token.text, lists, token.finish_reason)], **none_yet)
        if usage:
            yield event([], usage=answer.usage(), timings=answer.timings())
    except Exception as error:
        status, shape = error_answer(error)
        yield f"data: {json.dumps(shape | {'status': status})}\n\n"
    yield "data: [DONE]\n\n"


def prompt_chunk(answer: Answer, index: int, logprobs: CompletionLogprobs) -> dict[str, Any]:
    """The echo of a prompt, with the log-probabilities of its tokens where they are asked for."""
    generation = answer.generations[index]
    text = answer.model.tokenizer.decode(generation.prompt_ids)
    lists = logprobs.of(generation.prompt_scores, generation.prompt_ids) if generation.echo else None
    return completion_chunk(index, text, lists, None)


async def whole_completion(answer: Answer, about: dict[str, Any], request: Request) -> dict[str, Any]:
    """The answer of a request that does not stream; a client that leaves frees its rows."""
    texts = [""] * len(answer.generations)
    scores: list[list[TokenScore]] = [[] for _ in answer.generations]
    reasons: list[str | None] = [None] * len(answer.generations)

    async def collect() -> None:
        async for index, _, token in answer.each():
            texts[index] += token.text
            reasons[index] = token.finish_reason
            if token.score is not None:
                scores[index].append(token.score)

    await unless_disconnected(collect(), request)
    choices = []
    for index, generation in enumerate(answer.generations):
        chosen = scores[index]
        lists, text = None, texts[index]
        if answer.body.logprobs is not None:
            before = generation.prompt_scores if generation.echo else []
            tokens = [*(generation.prompt_ids if generation.echo else []), *(score.token for score in chosen)]
            lists = CompletionLogprobs(answer.model).of([*before, *chosen], tokens)
        if answer.body.echo:
            text = answer.model.tokenizer.decode(generation.prompt_ids) + text
        choices.append(completion_chunk(index, text, lists, reasons[index]))
    return about | {"choices": choices, "usage": answer.usage(), "timings": answer.timings()}


async def unless_disconnected(work: Any, request: Request) -> None:
    """Await the work, or give it up when the client has left."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=0.25)
        if not task.done() and await request.is_disconnected():
            task.cancel()
            raise HTTPException(499, "the client left before the answer was complete")
    await task


def error_answer(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for what a request ended with."""
    if isinstance(error, QueueFullError):
        return 429, error_body(str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, TooLargeError):
        return 400, error_body(str(error), "invalid_request_error", "context_length_exceeded", "prompt")
    if isinstance(error, GenerationError) and type(error).__name__ == "LogitsError":
        return 500, error_body(str(error), "server_error", "logits_not_finite")
    if isinstance(error, ValueError):
        return 400, error_body(str(error), "invalid_request_error", "invalid_value")
    return 500, error_body(f"{type(error).__name__}: {error}", "server_error", "internal_error")


def install_errors(app: FastAPI) -> None:
    """Every error in OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def wrong_body(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if part not in ("str", "int")) or None
        message = str(first["msg"]).removeprefix("Value error, ")
        sent = first.get("input")
        shown = f", got {sent!r:.80}" if where and not isinstance(sent, dict) else ""
        return JSONResponse(
            error_body(
                f"{where}: {message}{shown}" if where else message, "invalid_request_error", first["type"], where
            ),
            400,
        )

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> JSONResponse:
        code = "model_not_found" if error.status_code == 404 else None
        return JSONResponse(
            error_body(str(error.detail), "invalid_request_error", code), error.status_code, headers=error.headers
        )

    async def others(_request: Request, error: Exception) -> JSONResponse:
        status, body = error_answer(error)
        return JSONResponse(body, status, headers={"Retry-After": "1"} if status == 429 else None)

    for kind in (QueueFullError, ValueError):
        app.add_exception_handler(kind, others)
    app.add_exception_handler(Exception, others)
