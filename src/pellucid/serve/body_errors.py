"""What is wrong with the body or the parameters of a request.

Of all errors that pydantic lists, one that helps, and where it is.
"""

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

#: how pydantic's names of errors end where a value has another type than expected
OF_TYPE = ("_type", "_parsing")


def wrong_value(error: RequestValidationError) -> tuple[dict[str, Any], str | None]:
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
