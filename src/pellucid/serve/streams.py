"""Server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pellucid.serve.answer import Answer
from pellucid.serve.error_answers import error_answer

NO_HEADERS: Mapping[str, str] = {}
DONE_EVENT = "data: [DONE]\n\n"


def server_event(data: dict[str, Any], name: str | None = None) -> str:
    """One event, with its name where it has one."""
    event = f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
    return event if name is None else f"event: {name}\n{event}"


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


def error_event(error: Exception) -> str:
    """The last event but [DONE] of a stream that an error ends."""
    status, shape = error_answer(error)
    return server_event(shape | {"status": status})
