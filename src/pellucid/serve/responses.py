"""POST /v1/responses: the next message of a conversation as OpenAI's Response object, whole or as its events.

Nothing is stored: a client sends the whole conversation each time.
"""

import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field, field_validator, model_validator
from starlette.responses import Response

from pellucid.serve.answer import Answer
from pellucid.serve.answer_forms import FORM_FIELDS, PLAIN_TEXT, asked_form
from pellucid.serve.conversation import (
    MAX_MESSAGES,
    ChatMessage,
    Tools,
    read_conversation,
    room_for_answer,
    room_to_keep,
    token_log_prob,
)
from pellucid.serve.error_answers import error_answer
from pellucid.serve.protocol import MAX_ALTERNATIVES, Body, SamplingBody
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import DONE_EVENT, CancellingStream, server_event
from pellucid.serve.threads import in_thread

LOGPROBS = "message.output_text.logprobs"

#: what OpenAI's clients ask to include; only the log-probabilities exist here
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "message.input_image.image_url",
]


class AnswerText(Body):
    """What the answer's text is like: its form, and how long or short it may be."""

    harmless: ClassVar[frozenset[str] | None] = frozenset({"verbosity"})
    format: dict[str, Any] | None = None


class InputItem(ChatMessage):
    """One item of the input; only messages are read."""

    type: Literal["message"] = "message"

    @model_validator(mode="before")
    @classmethod
    def refuse_other_items(cls, values: Any) -> Any:
        """Refuse calls of tools, reasoning and other items by their type."""
        kind = values.get("type", "message") if isinstance(values, dict) else "message"
        if kind != "message":
            raise ValueError(f"an item of type {kind!r:.60} is not read here: send items of type message")
        return values


class ResponsesBody(SamplingBody):
    """The body of the request. `include` may name the log-probabilities of the answer's tokens."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingBody.refused,
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "n": (1,),
        "best_of": (1,),
        "echo": (False,),
        "source": (),
        "add_special_tokens": (False,),
    }
    renamed: ClassVar[dict[str, str]] = {
        "response_format": "text.format",
        "n_predict": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
    }

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    include: list[Includable] | None = None
    text: AnswerText | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto"] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("input", mode="before")
    @classmethod
    def without_reasoning(cls, items: Any) -> Any:
        """Reasoning items hold nothing that this model reads."""
        if not isinstance(items, list):
            return items
        return [item for item in items if not (isinstance(item, dict) and item.get("type") == "reasoning")]

    @property
    def form(self) -> tuple[str, Any] | None:
        text_format = None if self.text is None else self.text.format
        others = {name: getattr(self, name) for name in FORM_FIELDS if name != "response_format"}
        return asked_form(others | {"text.format": text_format})

    @property
    def limit_names(self) -> dict[str, str]:
        return {"prompt": "input", "max_tokens": "max_output_tokens"}

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """The tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Those of them that are functions, in the shape of chat completions, which templates read."""
        return [
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in self.callable_tools
            if tool.get("type") == "function"
        ]

    @model_validator(mode="after")
    def check_logprobs(self) -> "ResponsesBody":
        if self.top_logprobs and LOGPROBS not in (self.include or ()):
            raise ValueError(f"top_logprobs applies to include = [{LOGPROBS!r}]: add it, or leave top_logprobs out")
        return self

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation, instructions first."""
        messages = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*messages, ChatMessage(role="user", content=self.input)]
        return [*messages, *self.input]

    @property
    def n_top(self) -> int:
        """How many of the likeliest tokens are named; -1 for no log-probabilities."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else -1


async def answer_response(model: ServedModel, body: ResponsesBody, request: Request) -> Response:
    """The response, whole or as events."""
    room = room_to_keep(model, body.truncation, body.max_output_tokens)
    prompt = await in_thread(
        read_conversation, model, body.messages, body.edits, tools=body.functions, room=room, field="input"
    )
    are_read = model.reads_tools and len(body.functions) == len(body.callable_tools)
    headers = prompt.headers(["tools"] if body.callable_tools and not are_read else [])
    max_tokens = room_for_answer(model, prompt.ids, body.max_output_tokens)
    grammar = await model.grammar(body.form, prompt.ends)
    answer = Answer(
        model,
        body,
        [prompt.ids],
        taps=prompt.taps,
        max_tokens=max_tokens,
        n_top=body.n_top,
        stop_ids=prompt.ends,
        grammar=grammar,
    )
    growing = GrowingResponse(answer, body)
    if body.stream:
        return CancellingStream(answer, stream_response(growing), headers)
    (finished,) = await answer.texts(request)
    entries = [token_log_prob(model, score) for score in finished.scores]
    return JSONResponse(growing.finished(finished.text, entries, finished.reason), headers=headers)


class GrowingResponse:
    """The Response object of one answer, at its beginning and at its end, and its events, numbered."""

    def __init__(self, answer: Answer, body: ResponsesBody):
        self.answer, self.body = answer, body
        self.id, self.item_id = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self.number = -1

    def resource(self, status: str, **changes: Any) -> dict[str, Any]:
        """The object with every field that clients may read."""
        sampling, body = self.answer.generations[0].sampling, self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self.answer.created),
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": self.answer.model.name,
            "previous_response_id": None,
            "instructions": body.instructions,
            "output": [],
            "error": None,
            "tools": [],
            "tool_choice": "auto",
            "truncation": body.truncation or "disabled",
            "parallel_tool_calls": True,
            "text": {"format": (body.text and body.text.format) or PLAIN_TEXT},
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": max(0, body.n_top),
            "temperature": sampling.temperature,
            "reasoning": None,
            "user": body.user,
            "usage": None,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "store": False,
            "background": False,
            "service_tier": "default",
            "metadata": body.metadata or {},
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            **changes,
        }

    def content(self, text: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The only part of the only message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": entries}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The only item of the output."""
        return {"type": "message", "id": self.item_id, "status": status, "role": "assistant", "content": content}

    def finished(self, text: str, entries: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        """The object at the end; incomplete where max_output_tokens or the context ended the text."""
        status = status_of(reason)
        return self.resource(
            status,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            output=[self.item(status, [self.content(text, entries)])],
            usage=self.usage(),
            timings=self.answer.timings(),
        )

    def usage(self) -> dict[str, Any]:
        """How many tokens were read and written."""
        read, cached, written = self.answer.counts()
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }

    def event(self, kind: str, **fields: Any) -> str:
        """The next event."""
        self.number += 1
        return server_event({"type": kind, "sequence_number": self.number, **fields}, kind)


def status_of(reason: str | None) -> str:
    """The status of a response whose text ended for this reason."""
    return "incomplete" if reason == "length" else "completed"


async def stream_response(growing: GrowingResponse) -> AsyncIterator[str]:
    """The events of one response, and [DONE]."""
    event, text = growing.event, ""
    entries: list[dict[str, Any]] = []
    item = {"item_id": growing.item_id, "output_index": 0, "content_index": 0}
    yield event("response.created", response=growing.resource("in_progress"))
    yield event("response.in_progress", response=growing.resource("in_progress"))
    try:
        yield event("response.output_item.added", output_index=0, item=growing.item("in_progress", []))
        yield event("response.content_part.added", **item, part=growing.content("", []))
        reason = None
        async for _, token in growing.answer.each():
            new = [] if token.score is None else [token_log_prob(growing.answer.model, token.score)]
            text, reason = text + token.text, token.finish_reason
            entries += new
            if token.text or new:
                yield event("response.output_text.delta", **item, delta=token.text, logprobs=new)
        part = growing.content(text, entries)
        yield event("response.output_text.done", **item, text=text, logprobs=entries)
        yield event("response.content_part.done", **item, part=part)
        yield event("response.output_item.done", output_index=0, item=growing.item(status_of(reason), [part]))
        response = growing.finished(text, entries, reason)
        yield event(f"response.{response['status']}", response=response)
    except Exception as error:
        _, shape = error_answer(error)
        failure = {"code": shape["error"]["code"], "message": shape["error"]["message"]}
        yield event("response.failed", response=growing.resource("failed", error=failure))
    yield DONE_EVENT
