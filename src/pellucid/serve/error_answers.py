"""Every error in OpenAI's shape: what went wrong, in which field, and by which status."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pellucid.generate.errors import LogitsError
from pellucid.serve.answer_forms import FormError
from pellucid.serve.generation import QueueFullError, StoppingError, TooLargeError
from pellucid.serve.protocol import error_body

#: how pydantic's names of errors end where a value has another type than expected
OF_TYPE = ("_type", "_parsing")


def install_errors(app: FastAPI) -> None:
    """Answer every error of an application in OpenAI's shape."""
    app.add_exception_handler(RequestValidationError, answer_wrong_body)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, answer_http_error)  # type: ignore[arg-type]
    for kind in (QueueFullError, StoppingError, ValueError, Exception):
        app.add_exception_handler(kind, answer_error)


async def answer_error(_request: Request, error: Exception) -> JSONResponse:
    """What the work on a request ended with."""
    status, body = error_answer(error)
    return JSONResponse(body, status, headers={"Retry-After": "1"} if status == 429 else None)


async def answer_http_error(request: Request, error: HTTPException) -> JSONResponse:
    """A path that no route has, or a refusal of a route."""
    if error.detail == "Not Found":  # Starlette's word for a path that no route has
        message = f"nothing is at {request.scope['path']!r:.200}: see /openapi.json"
        return JSONResponse(error_body(message, "invalid_request_error", "not_found"), 404)
    code = {404: "model_not_found", 503: "model_loading"}.get(error.status_code)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return JSONResponse(error_body(str(error.detail), kind, code), error.status_code, headers=error.headers)


async def answer_wrong_body(_request: Request, error: RequestValidationError) -> JSONResponse:
    """A body that is no JSON, or a field of it, or a parameter, with a wrong value."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"the body cannot be read: {first['ctx']['error']}"
        return JSONResponse(error_body(message, "invalid_request_error", first["type"]), 400)
    wrong, field = validation_error(error)
    message, value = str(wrong["msg"]).removeprefix("Value error, "), wrong.get("input")
    if wrong["type"] == "wrong_field":  # the sentence names the field
        parent, _, _ = (field or "").rpartition(".")
        message = f"{parent}: {message}" if parent else message
    elif field:
        message = f"{field}: {message}" if isinstance(value, dict) else f"{field}: {message}, got {value!r:.80}"
    return JSONResponse(error_body(message, "invalid_request_error", wrong["type"], field), 400)


def error_answer(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for what a request ended with."""
    if isinstance(error, QueueFullError):
        return 429, error_body(str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, StoppingError):
        return 503, error_body(str(error), "server_error", "server_stopping")
    if isinstance(error, TooLargeError):
        return 400, error_body(str(error), "invalid_request_error", error.code, error.parameter)
    if isinstance(error, FormError):
        return 400, error_body(str(error), "invalid_request_error", "invalid_form", error.field)
    if isinstance(error, LogitsError):
        return 500, error_body(str(error), "server_error", "logits_not_finite")
    if isinstance(error, ValueError):
        return 400, error_body(str(error), "invalid_request_error", "invalid_value")
    return 500, error_body(f"{type(error).__name__}: {error}", "server_error", "internal_error")


def validation_error(error: RequestValidationError) -> tuple[dict[str, Any], str | None]:
    """The error to tell of the first wrong field, and where it is, such as `messages.0.role`; None for the whole body.

    Of a field with alternatives, such as a text or a list of texts, pydantic lists the errors of each. The one meant is
    the one whose types fit what was sent longest: its first error of type lies deepest, or it has none.
    """
    errors = [
        one | {"loc": (*one["loc"], one["ctx"]["field"])} if one["type"] == "wrong_field" else one
        for one in error.errors()
    ]
    if errors[0]["loc"][0] != "body":  # a parameter of the address
        return errors[0], ".".join(map(str, errors[0]["loc"][1:]))
    first_field = errors[0]["loc"][1:2]
    alternatives: dict[tuple[str, ...], list[tuple[dict[str, Any], tuple[str | int, ...]]]] = {}
    for one in errors:
        if one["loc"][1:2] == first_field:
            fields, alternative = divided_location(one, error.body)
            alternatives.setdefault(alternative, []).append((one, fields))
    best, fields = max(alternatives.values(), key=first_misfit)[0]
    return best, ".".join(map(str, fields)) or None


def divided_location(error: dict[str, Any], body: Any) -> tuple[tuple[str | int, ...], tuple[str, ...]]:
    """The fields and indices that lead to an error, and apart from them pydantic's names of alternatives on the way."""
    fields: list[str | int] = []
    alternative: list[str] = []
    missing = error["loc"][-1] if error["type"] == "missing" else None
    for part in error["loc"][1:]:
        is_field = isinstance(body, dict) and (part in body or part == missing)
        if is_field or (isinstance(body, list) and isinstance(part, int)):
            fields.append(part)
            body = body.get(part) if isinstance(body, dict) else body[part]
        else:
            alternative.append(str(part))
    return tuple(fields), tuple(alternative)


def first_misfit(errors: Sequence[tuple[dict[str, Any], tuple[str | int, ...]]]) -> tuple[float, tuple[str | int, ...]]:
    """How deep the first error of type of one alternative lies, and where; infinitely deep if it has none."""
    of_type = [(len(fields), fields) for error, fields in errors if error["type"].endswith(OF_TYPE)]
    return min(of_type, default=(float("inf"), ()))
