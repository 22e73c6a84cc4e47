"""The routes: OpenAI's interface over the engines, one handler each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from pellucid.serve.chat import ChatBody, answer_chat
from pellucid.serve.completions import CompletionBody, answer_completion
from pellucid.serve.embeddings import MAX_BODY, EmbeddingBody, answer_embeddings
from pellucid.serve.error_answers import install_errors
from pellucid.serve.filling import FillBody, answer_fill
from pellucid.serve.json_bodies import StrictRoute
from pellucid.serve.limits import Limits
from pellucid.serve.metrics import RequestCounter, metrics_text
from pellucid.serve.page_routes import PAGE_PATHS, add_page
from pellucid.serve.protocol import ErrorBody
from pellucid.serve.responses import ResponsesBody, answer_response
from pellucid.serve.served import ServedModel
from pellucid.serve.threads import in_thread
from pellucid.serve.tokenizing import DetokenizeBody, TokenizeBody, about_tokenizer, detokenized, tokenized
from pellucid.version import __version__

LOADING = "the models are being loaded: try again in a while"
#: names of this machine that only its own programs can reach it by
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
#: headers of an answer that pages of other origins may read
EXPOSED_HEADERS = ["Pellucid-Ignored", "Pellucid-Messages-Left-Out", "Retry-After"]
#: the model of this name; the first one for None
FindModel = Callable[[str | None], ServedModel]


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

    def find(name: str | None) -> ServedModel:
        return find_model(models, name)

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
    add_status(app, models, counter, find)
    add_tokenizer(app, find)
    add_answers(app, find)
    add_page(app)
    install_errors(app)
    bounds: dict[str, Any] = {"open_paths": ("/health", *PAGE_PATHS), "max_bodies": {"/v1/embeddings": MAX_BODY}}
    app.add_middleware(Limits, hosts=hosts, key=key, origins=origins, **bounds)  # type: ignore[arg-type]
    app.add_middleware(RequestCounter.Middleware, counter=counter)
    if origins:
        # outside of Limits: a browser asks first without the key, and refusals are to be read too
        methods, exposed = ["GET", "POST"], {"allow_headers": ["*"], "expose_headers": EXPOSED_HEADERS}
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, **exposed)  # type: ignore[arg-type]
    return app


def find_model(models: Sequence[ServedModel], name: str | None) -> ServedModel:
    """The model of this name, the first one for None. Raises HTTPException where there is none."""
    if not models:
        raise HTTPException(503, LOADING, {"Retry-After": "5"})
    by_name = {model.name: model for model in models}
    if name and name not in by_name:
        raise HTTPException(404, f"there is no model {name!r:.200} here: ask for one of {', '.join(by_name)}")
    return by_name[name] if name else models[0]


def add_status(app: FastAPI, models: Sequence[ServedModel], counter: RequestCounter, find: FindModel) -> None:
    """The routes that tell which models are served, and how busy the server is."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(response: Response) -> dict[str, str]:
        response.status_code = 200 if models else 503
        return {"status": "ok" if models else "loading model"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(metrics_text(models, counter), media_type="text/plain; version=0.0.4")

    @app.get("/v1")
    async def interface() -> dict[str, str]:
        return {
            "about": "the base address of the OpenAI interface: clients add the paths of its routes",
            "page": "/",
            "models": "/v1/models",
            "completions": "/v1/completions",
            "chat": "/v1/chat/completions",
        }

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        find(None)  # 503 while the models are being loaded, since there are none to list yet
        return {"object": "list", "data": [model.describe() for model in models]}

    @app.get("/v1/models/{name:path}")
    async def describe_model(name: str) -> dict[str, Any]:
        if not name:
            raise HTTPException(404)
        return find(name).describe()


def add_tokenizer(app: FastAPI, find: FindModel) -> None:
    """The routes that evaluation programs ask instead of a tokenizer of their own."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        return await in_thread(tokenized, find(body.model), body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        return await in_thread(detokenized, find(body.model), body)

    @app.get("/tokenizer_info")
    async def tokenizer_info(model: str | None = None) -> dict[str, Any]:
        return about_tokenizer(find(model))


def add_answers(app: FastAPI, find: FindModel) -> None:
    """The routes that a model computes the answers of."""

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
