"""Server-sent events, and the errors that end a stream or answer a request."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pellucid.generate.errors import LogitsError
from pellucid.serve.answer import Answer
from pellucid.serve.generation import QueueFullError, StoppingError, TooLargeError
from pellucid.serve.protocol import error_body

NO_HEADERS: Mapping[str, str] = {}
DONE = "data: [DONE]\n\n"


def server_event(data: dict[str, Any], name: str | None = None) -> str:
    """One event, with its name where it has one."""
    said = f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
    return said if name is None else f"event: {name}\n{said}"


class CancellingStream(StreamingResponse):
    """A streamed answer whose rows are given back however it ends, also where the client leaves before it begins."""

    def __init__(self, answer: Answer, events: AsyncIterator[str], headers: Mapping[str, str] = NO_HEADERS):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"} | dict(headers))
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            # a server that stops cancels the streams whose clients do not read, and would print where each one waited
            if not self.answer.model.engine.draining:
                raise
        finally:
            self.answer.cancel()


def error_answer(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for what a request ended with."""
    if isinstance(error, QueueFullError):
        return 429, error_body(str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, StoppingError):
        return 503, error_body(str(error), "server_error", "server_stopping")
    if isinstance(error, TooLargeError):
        return 400, error_body(str(error), "invalid_request_error", error.code, error.parameter)
    if isinstance(error, LogitsError):
        return 500, error_body(str(error), "server_error", "logits_not_finite")
    if isinstance(error, ValueError):
        return 400, error_body(str(error), "invalid_request_error", "invalid_value")
    return 500, error_body(f"{type(error).__name__}: {error}", "server_error", "internal_error")


def error_event(error: Exception) -> str:
    """The last event but [DONE] of a stream that an error ends."""
    status, shape = error_answer(error)
    return server_event(shape | {"status": status})
