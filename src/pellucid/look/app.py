"""The inspector's application: the page's files, and the routes under /api/ that every page of it shares."""

from collections.abc import Collection
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from pellucid.lens.core.recording import TraceError
from pellucid.lens.show.answers import with_arrays
from pellucid.look import (
    attention,
    circuits,
    experiment,
    predictor_reading,
    reading,
    stream,
    tokens,
    training,
)
from pellucid.look.model_card import model_facts
from pellucid.look.session import GONE, PromptBody, Session
from pellucid.look.trace_card import facts_of_prompt
from pellucid.serve.app import LOOPBACK
from pellucid.serve.error_answers import install_errors
from pellucid.serve.json_bodies import StrictRoute
from pellucid.serve.limits import Limits
from pellucid.serve.page_routes import PageFiles, add_page, page_files
from pellucid.serve.protocol import error_body
from pellucid.version import __version__

#: the modules of the pages, each with add_routes(app, session)
PAGES = (reading, tokens, attention, stream, circuits, experiment, training)
#: the pages that apply to a predictor without attention; the card of the model says why the others do not
PREDICTOR_PAGES = (predictor_reading, tokens, training)


def look_files() -> PageFiles:
    """The page's files by name: everything in look/page, and in web, what it shares with saved pages."""
    package = resources.files("pellucid")
    folders = {
        file.name: folder
        for folder in (("look", "page"), ("web",))
        for file in sorted(package.joinpath(*folder).iterdir(), key=lambda file: file.name)
        if file.name.partition(".")[2] in ("html", "css", "js", "svg")
    }
    return page_files(folders)


def make_look_app(
    session: Session, *, key: str | None = None, hosts: Collection[str] = LOOPBACK, framed_by: str = "'none'"
) -> FastAPI:
    """The application that shows one session.

    key        what requests to /api/ must send as `Authorization: Bearer KEY`; None accepts any
    hosts      names that requests may be addressed to
    framed_by  pages that may hold this one in a frame, as the Content-Security-Policy writes them
    """
    app = FastAPI(title="Pellucid", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.route_class = StrictRoute
    files = look_files()
    add_page(app, files, framed_by=framed_by)

    @app.get("/api/model")
    async def model(request: Request, checkpoint: str = "") -> dict[str, Any]:
        card = predictor_reading.predictor_card if session.predictor_kind else model_facts
        return await session.compute(request, card, session, checkpoint)

    @app.post("/api/trace")
    async def trace(body: PromptBody, request: Request) -> dict[str, Any]:
        return await session.compute(request, facts_of_prompt, session, body)

    @app.get("/api/t/{trace_id}/x/{name}")
    async def tensor(
        request: Request, trace_id: str, name: str, head: int | None = None, pos: int | None = None
    ) -> dict[str, Any]:
        return await session.compute(
            request, lambda: with_arrays({"tensor": read_tensor(session, trace_id, name, head, pos)})
        )

    for module in PREDICTOR_PAGES if session.predictor_kind else PAGES:
        module.add_routes(app, session)
    install_errors(app)

    @app.exception_handler(TraceError)
    async def other_weights(_request: Request, error: TraceError) -> JSONResponse:
        return JSONResponse(error_body(str(error), "invalid_request_error", "trace_gone"), GONE)

    @app.exception_handler(KeyError)
    async def no_such_tensor(_request: Request, error: KeyError) -> JSONResponse:
        return JSONResponse(error_body(str(error.args[0]), "invalid_request_error", "not_found"), 404)

    @app.exception_handler(IndexError)
    async def no_such_index(_request: Request, error: IndexError) -> JSONResponse:
        return JSONResponse(error_body(str(error), "invalid_request_error", "out_of_range"), 400)

    app.add_middleware(Limits, hosts=hosts, key=key, open_paths=files.paths)  # type: ignore[arg-type]
    return app


def read_tensor(
    session: Session, trace_id: str, name: str, head: int | None = None, pos: int | None = None
) -> np.ndarray:
    """A tensor of a trace's one row, or the part of one head (of queries or of keys) and of one position.

    Raises KeyError for a name that the architecture lacks, and IndexError for a head or a position that it has not.
    """
    trace = session.kept_trace(trace_id)
    return reading.tensor_part(trace, name, head=head, pos=pos).cpu().float().numpy()
