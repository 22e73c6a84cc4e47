"""JSON bodies, read strictly: no NaN, no number beyond float64, no half characters, no nesting without end."""

import json
import math
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from pellucid.serve.threads import SHORT_BODY, in_thread


def parse_json(body: bytes) -> Any:
    """The value of a body. Raises json.JSONDecodeError, which says what is wrong, for anything that is not sound."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=refuse_constant, parse_float=finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"the body is not UTF-8: {error.reason}", "", error.start) from None
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(error.object[error.start]):04X}"
        raise json.JSONDecodeError(
            f"a text holds the lone surrogate {surrogate}, which is half a character: send whole characters", "", 0
        ) from None
    except RecursionError:
        raise json.JSONDecodeError("the body is nested too deeply: send plain objects and lists", "", 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None


def refuse_constant(name: str) -> float:
    """NaN and the infinities are no JSON."""
    raise ValueError(f"{name} is not a number of JSON: send a finite number")


def finite(digits: str) -> float:
    """A number; ValueError where float64 cannot hold it."""
    if math.isinf(number := float(digits)):
        raise ValueError(f"the number {digits:.40} is too large: send one that float64 can hold")
    return number


class StrictRequest(Request):
    """A request whose body is read strictly."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await in_thread(parse_json, body) if len(body) > SHORT_BODY else parse_json(body)
        return self._json


class StrictRoute(APIRoute):
    """A route whose bodies are read strictly."""

    def get_route_handler(self) -> Callable[..., Any]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly
