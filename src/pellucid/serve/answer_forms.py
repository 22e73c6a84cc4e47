"""The form that a request asks of its answer: a JSON Schema, an expression, a choice or a grammar.

The fields are those of OpenAI (`response_format`), of vLLM (`structured_outputs`, before that `guided_json` and others)
and of llama.cpp's server (`json_schema`, `grammar`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from pellucid.generate.grammars import choice_grammar, json_grammar, regex_grammar, written_grammar
from pellucid.json_files import parse_json_object

PLAIN_TEXT = {"type": "text"}
ANY_OBJECT = {"type": "object"}
#: by the names of vLLM's `structured_outputs`, the type of each value and the grammar that it stands for
KIND_GRAMMARS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], str]]] = {
    "json": ((dict, str), lambda schema: json_grammar(schema_object(schema))),
    "json_object": (bool, lambda _: json_grammar(ANY_OBJECT)),
    "regex": (str, regex_grammar),
    "choice": (list, choice_grammar),
    "grammar": (str, written_grammar),
}
#: fields of a request that stand for one of these kinds
FIELDS_OF_KINDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}
FORM_FIELDS = ("response_format", "structured_outputs", *FIELDS_OF_KINDS)
#: by these values llama.cpp's clients say that they want no form
NO_FORM = ("", {})
#: entries of vLLM's `structured_outputs` beside the kinds
LAYOUT_ENTRIES = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties", "structural_tag")


class FormError(ValueError):
    """A form that cannot be had, and the field that asks for it."""

    def __init__(self, field: str, message: object):
        super().__init__(f"{field}: {message}")
        self.field = field


def asked_form(fields: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The field that asks for a form, and its value; None where none does. Raises ValueError for several."""
    asked = {
        name: value
        for name, value in fields.items()
        if value is not None and value != PLAIN_TEXT and not (name in ("grammar", "json_schema") and value in NO_FORM)
    }
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)} each ask for a form of the answer: give one of them")
    return next(iter(asked.items()), None)


def form_grammar(field: str, value: Any) -> str:
    """The grammar that a field asks for. Raises ValueError; a large one takes long."""
    if field == "structured_outputs":
        return structured_grammar(value)
    if field == "tool_choice":  # a call is written in the form of the model's family
        return value
    if field in FIELDS_OF_KINDS:
        return KIND_GRAMMARS[FIELDS_OF_KINDS[field]][1](value)
    match value:
        case {"type": "json_object", "schema": dict() as schema}:  # as llama.cpp's server takes it
            return json_grammar(schema)
        case {"type": "json_object"}:
            return json_grammar(ANY_OBJECT)
        # OpenAI's two routes differ
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return json_grammar(schema)
        case {"type": "json_schema", "schema": dict() as schema}:
            return json_grammar(schema)
    raise ValueError("expected type text, json_object, or json_schema with a schema, which is an object")


def structured_grammar(entries: Mapping[str, Any]) -> str:
    """The grammar of vLLM's `structured_outputs`, which has one entry."""
    asked = {name: value for name, value in entries.items() if value not in (None, False)}
    kinds = [name for name in asked if name in KIND_GRAMMARS]
    if refused := [name for name in asked if name in LAYOUT_ENTRIES]:
        raise ValueError(f"{refused[0]} is not done here: leave it out")
    if len(kinds) != 1 or len(asked) > 1:
        raise ValueError(f"expected one of {', '.join(KIND_GRAMMARS)}, got {', '.join(asked) or 'none'}")
    types, grammar = KIND_GRAMMARS[kinds[0]]
    value = asked[kinds[0]]
    if not isinstance(value, types) or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
        raise ValueError(f"{kinds[0]} has a value of the wrong type: {str(value)[:80]}")
    return grammar(value)


def schema_object(schema: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """A JSON Schema, which may be written as a text."""
    return parse_json_object(schema, "the schema") if isinstance(schema, str) else schema
