"""The routes: OpenAI's interface over the engines, one handler each."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from pellucid.serve.body_errors import wrong_value
from pellucid.serve.chat import ChatBody, answer_chat
from pellucid.serve.completions import CompletionBody, answer_completion
from pellucid.serve.embeddings import MAX_BODY, EmbeddingBody, answer_embeddings
from pellucid.serve.filling import FillBody, answer_fill
from pellucid.serve.generation import QueueFullError, StoppingError
from pellucid.serve.json_bodies import StrictRoute
from pellucid.serve.limits import Limits
from pellucid.serve.metrics import RequestCounter, metrics_text
from pellucid.serve.page_routes import PAGE_PATHS, add_page
from pellucid.serve.protocol import ErrorBody, error_body
from pellucid.serve.responses import ResponsesBody, answer_response
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import error_answer
from pellucid.serve.threads import in_thread
from pellucid.serve.tokenizing import DetokenizeBody, TokenizeBody, about_tokenizer, detokenized, tokenized
from pellucid.version import __version__

LOADING = "the models are being loaded: try again in a while"
#: names of this machine that only its own programs can reach it by
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def make_app(
    models: Sequence[ServedModel],
    *,
    key: str | None = None,
    hosts: Collection[str] = LOOPBACK,
    origins: Collection[str] = (),
) -> FastAPI:
    """The application that serves these models; the first one answers where a request names none.

    models  may be empty at first: until there are some, requests are answered with 503
    key     what clients must send as `Authorization: Bearer KEY`; None accepts any
    hosts   names that requests may be addressed to
    origins of other pages that may ask and read answers, as in the header Origin
    """

    @asynccontextmanager
    async def engines(_app: FastAPI) -> AsyncIterator[None]:
        for model in models:
            model.engine.start()
        yield
        await asyncio.gather(*(asyncio.to_thread(model.engine.drain, 0.0) for model in models))

    app = FastAPI(
        title="Pellucid",
        version=__version__,
        lifespan=engines,
        docs_url=None,
        redoc_url=None,
        # FastAPI would list its own shape of errors, which is never sent
        responses={"default": {"model": ErrorBody, "description": "What was wrong"}},
    )
    app.router.route_class = StrictRoute
    app.state.models = models
    counter = RequestCounter()

    def find(name: str | None) -> ServedModel:
        if not models:
            raise HTTPException(503, LOADING, {"Retry-After": "5"})
        by_name = {model.name: model for model in models}
        if name and name not in by_name:
            raise HTTPException(404, f"there is no model {name!r:.200} here: ask for one of {', '.join(by_name)}")
        return by_name[name] if name else models[0]

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(response: Response) -> dict[str, str]:
        response.status_code = 200 if models else 503
        return {"status": "ok" if models else "loading model"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(metrics_text(models, counter), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        find(None)  # 503 while the models are being loaded, since there are none to list yet
        return {"object": "list", "data": [model.describe() for model in models]}

    @app.get("/v1/models/{name:path}")
    async def describe_model(name: str) -> dict[str, Any]:
        if not name:
            raise HTTPException(404)
        return find(name).describe()

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        return await in_thread(tokenized, find(body.model), body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        return await in_thread(detokenized, find(body.model), body)

    @app.get("/tokenizer_info")
    async def tokenizer_info(model: str | None = None) -> dict[str, Any]:
        return about_tokenizer(find(model))

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        return await answer_completion(find(body.model), body, request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await answer_chat(find(body.model), body, request)

    @app.post("/v1/responses")
    async def respond(body: ResponsesBody, request: Request) -> Response:
        return await answer_response(find(body.model), body, request)

    @app.post("/v1/embeddings")
    async def embed_texts(body: EmbeddingBody, request: Request) -> Response:
        return await in_thread(JSONResponse, await answer_embeddings(find(body.model), body, request))

    @app.post("/v1/fill")
    async def fill_blanks(body: FillBody, request: Request) -> dict[str, Any]:
        return await answer_fill(find(body.model), body, request)

    add_page(app)
    install_errors(app)
    bounds: dict[str, Any] = {"open_paths": ("/health", *PAGE_PATHS), "max_bodies": {"/v1/embeddings": MAX_BODY}}
    app.add_middleware(Limits, hosts=hosts, key=key, origins=origins, **bounds)  # type: ignore[arg-type]
    app.add_middleware(RequestCounter.Middleware, counter=counter)
    if origins:
        # outside of Limits: a browser asks first without the key, and refusals are to be read too
        app.add_middleware(
            CORSMiddleware,  # type: ignore[arg-type]
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Pellucid-Ignored", "Pellucid-Messages-Left-Out", "Retry-After"],
        )
    return app


def install_errors(app: FastAPI) -> None:
    """Every error in OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def wrong_body(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            said = f"the body cannot be read: {first['ctx']['error']}"
            return JSONResponse(error_body(said, "invalid_request_error", first["type"]), 400)
        wrong, where = wrong_value(error)
        said, sent = str(wrong["msg"]).removeprefix("Value error, "), wrong.get("input")
        if wrong["type"] == "wrong_field":  # the sentence names the field
            within, _, _ = (where or "").rpartition(".")
            said = f"{within}: {said}" if within else said
        elif where:
            said = f"{where}: {said}" if isinstance(sent, dict) else f"{where}: {said}, got {sent!r:.80}"
        return JSONResponse(error_body(said, "invalid_request_error", wrong["type"], where), 400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.detail == "Not Found":  # Starlette's word for a path that no route has
            said = f"nothing is at {request.scope['path']!r:.200}: see /openapi.json"
            return JSONResponse(error_body(said, "invalid_request_error", "not_found"), 404)
        code = {404: "model_not_found", 503: "model_loading"}.get(error.status_code)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return JSONResponse(error_body(str(error.detail), kind, code), error.status_code, headers=error.headers)

    async def others(_request: Request, error: Exception) -> JSONResponse:
        status, body = error_answer(error)
        return JSONResponse(body, status, headers={"Retry-After": "1"} if status == 429 else None)

    for kind in (QueueFullError, StoppingError, ValueError):
        app.add_exception_handler(kind, others)
    app.add_exception_handler(Exception, others)
