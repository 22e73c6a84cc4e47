"""Calls of tools in an answer: how a family of models writes them, by its chat template, and how they are read.

A chat template tells a model how to call a tool, and the model writes the call as text. Here are the three forms that
most families use; the answer of a model with another form is passed on as the text that it is.
"""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.generate.grammars import json_rule
from pellucid.generate.stopping import StopStrings
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: alphanumeric characters of the name of a call, as Mistral's templates want it
ID_LENGTH = 9


@dataclass(frozen=True)
class CallForm:
    """How calls are written: marker, opening, {"name": ..., "arguments": {...}}, closing.

    marker     what stands before a call; "" where an answer that begins with { is a call
    arguments  the entry of the object that holds the arguments
    """

    marker: str
    opening: str
    closing: str
    arguments: str = "arguments"

    def calls(self, text: str) -> list[dict[str, Any]]:
        """OpenAI's objects for the calls that a text consists of. Raises ValueError for other texts."""
        parts = [part for part in text.split(self.marker) if part.strip()] if self.marker else [text]
        return [self.call(written) for part in parts for written in objects_in(part, self.closing.strip())]

    def call(self, written: Any) -> dict[str, Any]:
        """OpenAI's object for a call. Raises ValueError for an object that is none."""
        arguments = written.get(self.arguments, {}) if isinstance(written, Mapping) else None
        if not isinstance(arguments, Mapping) or not isinstance(written.get("name"), str):
            raise ValueError("a call has a name and an object of arguments")
        function = {"name": written["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": secrets.token_hex(ID_LENGTH)[:ID_LENGTH], "type": "function", "function": function}

    def grammar(self, tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> str:
        """The grammar of one call of one of these tools, with arguments that are valid under its schema."""
        special = tokenizer.special.get(self.marker)
        marker = json.dumps(self.marker) if special is None else f"<[{special}]>"
        rules = [f"start: {marker if self.marker else ''} ({' | '.join(f'call_{n}' for n in range(len(tools)))})"]
        for n, tool in enumerate(tools):
            function = tool["function"]
            begin = f'{self.opening}{{"name": {json.dumps(function["name"])}, "{self.arguments}": '
            schema = json_rule(function.get("parameters") or {"type": "object"})
            rules.append(f"call_{n}: {json.dumps(begin)} {schema} {json.dumps('}' + self.closing)}")
        return "\n".join(rules)


#: of Hermes and Qwen, of Mistral, and of Llama 3
TAGGED_CALLS = CallForm("<tool_call>", "\n", "\n</tool_call>")
LISTED_CALLS = CallForm("[TOOL_CALLS]", "[", "]")
BARE_CALLS = CallForm("", "", "", "parameters")


def call_form(template: ChatTemplate | None) -> CallForm | None:
    """The form in which a template has calls written, None for one that is not known here."""
    if template is None or not template.reads_tools:
        return None
    source = template.source
    if "<tool_call>" in source and not re.search("<function=|<arg_key>|<parameter=", source):
        return TAGGED_CALLS
    if "[TOOL_CALLS]" in source and "[ARGS]" not in source:
        return LISTED_CALLS
    return BARE_CALLS if re.search(r'parameters\\?": dictionary of argument', source) else None


def objects_in(text: str, end: str) -> Iterator[Any]:
    """The values of JSON that a text consists of, those of lists one by one, up to `end`. Raises ValueError."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest and rest != end:
        value, length = decoder.raw_decode(rest)
        yield from value if isinstance(value, list) else [value]
        rest = rest[length:].lstrip(" \n;,")


class AnswerReader:
    """Divides one answer, as it comes, into text and calls; without tools all is text."""

    def push(self, token: int | None, text: str) -> str:
        """What can be shown as the answer's text, after this token and the text that it completes."""
        return text

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest of the text, and the calls; what looked like a call and is none is text."""
        return "", []


class CallReader(AnswerReader):
    """Holds calls back until they are complete.

    most  of so many calls the first ones are given; None gives all
    """

    def __init__(self, form: CallForm, tokenizer: Tokenizer, most: int | None = None):
        self.form, self.most, self.text, self.n_shown = form, most, "", 0
        self.marker = tokenizer.special.get(form.marker)
        self.before_calls = StopStrings([form.marker] if form.marker else [])

    def push(self, token: int | None, text: str) -> str:
        # a special token is no text, but this one says that a call follows
        text += self.form.marker if token is not None and token == self.marker else ""
        self.text += text
        if self.form.marker:
            return self.before_calls.push(text)
        if self.text.lstrip()[:1] in ("", "{"):
            return ""
        shown, self.n_shown = self.text[self.n_shown :], len(self.text)
        return shown

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        start = self.text.find(self.form.marker)
        if self.form.marker and not self.before_calls.stopped:
            return self.before_calls.finish(), []
        if not self.form.marker and self.text.lstrip()[:1] != "{":
            return self.text[self.n_shown :], []
        try:
            return "", self.form.calls(self.text[start:])[: self.most]
        except (ValueError, RecursionError):
            return self.text[start:], []
