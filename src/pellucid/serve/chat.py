"""POST /v1/chat/completions: the next message of a conversation, whole or streamed."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from pellucid.serve.answer import Answer
from pellucid.serve.answer_forms import FormError
from pellucid.serve.conversation import (
    MAX_MESSAGES,
    ChatMessage,
    Tools,
    ends_with_begun_answer,
    read_conversation,
    room_for_answer,
    room_to_keep,
    token_log_prob,
)
from pellucid.serve.protocol import MAX_ALTERNATIVES, MAX_SAMPLES, SamplingBody, finish_reason, wrong_field
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import DONE_EVENT, CancellingStream, error_event, server_event
from pellucid.serve.threads import in_thread
from pellucid.serve.tool_calls import AnswerReader, CallForm, CallReader, call_form


class NamedFunction(BaseModel):
    """The name of a function that is to be called."""

    name: str


class NamedTool(BaseModel):
    """The tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingBody):
    """The body of the request."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingBody.refused,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "echo": (False,),
        "best_of": (1,),
        "source": (),
        "add_special_tokens": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = 1
    continue_final_message: bool | None = False
    add_generation_prompt: bool | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    #: auto leaves out the earliest turns of a conversation that is too long, as on /v1/responses
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def limit_names(self) -> dict[str, str]:
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit}

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """The tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced_tools(self) -> list[dict[str, Any]]:
        """The tools of which the answer must call one; none where it need not."""
        if not isinstance(self.tool_choice, NamedTool):
            return self.callable_tools if self.tool_choice == "required" else []
        name = self.tool_choice.function.name
        return [tool for tool in self.callable_tools if tool["function"]["name"] == name]

    @model_validator(mode="after")
    def check_tools(self) -> "ChatBody":
        for tool in self.tools or ():
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise wrong_field("tools", "tools: expected type function, and a function with a name")
        if self.tool_choice not in (None, "none", "auto"):
            if not self.forced_tools:
                raise wrong_field(
                    "tool_choice", "tool_choice asks for a call of a tool that is not among tools: add it"
                )
            if self.form is not None:
                raise wrong_field(
                    "tool_choice", f"tool_choice and {self.form[0]} each ask for a form: give one of them"
                )
        return self

    @model_validator(mode="after")
    def check_pairs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs applies to logprobs = true: set it, or leave top_logprobs out")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError(
                f"max_tokens = {self.max_tokens} and max_completion_tokens = {self.max_completion_tokens} mean the "
                "same: give one of them"
            )
        if self.continue_final_message and (self.add_generation_prompt or not ends_with_begun_answer(self.messages)):
            raise ValueError(
                "continue_final_message writes on from the last message: expected it to be of role assistant, after "
                "another message, and add_generation_prompt to be left out or false"
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise ValueError("add_generation_prompt = false applies to continue_final_message = true: leave it out")
        return self


async def answer_chat(model: ServedModel, body: ChatBody, request: Request) -> Response:
    """The response, whole or streamed."""
    begun = bool(body.continue_final_message)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    prompt = await in_thread(
        read_conversation,
        model,
        body.messages,
        body.edits,
        answer_begun=begun,
        tools=body.callable_tools,
        room=room_to_keep(model, body.truncation, max_tokens),
    )
    calls = call_form(model.chat_template) if body.callable_tools else None
    grammar = await model.grammar(forced_call(model, body, calls) or body.form, prompt.ends)
    headers = prompt.headers(ignored_fields(model, body))
    answer = Answer(
        model,
        body,
        [prompt.ids],
        taps=prompt.taps,
        max_tokens=room_for_answer(model, prompt.ids, max_tokens),
        n=body.n or 1,
        n_top=(body.top_logprobs or 0) if body.logprobs else -1,
        stop_ids=prompt.ends,
        grammar=grammar,
    )
    readers = [answer_reader(model, body, calls) for _ in answer.generations]
    about = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(answer.created), "model": model.name}
    if body.stream:
        about |= {"object": "chat.completion.chunk"}
        return CancellingStream(answer, stream_chat(answer, readers, body, about), headers)
    about |= {"object": "chat.completion"}
    return JSONResponse(await whole_chat(answer, readers, about, request), headers=headers)


def forced_call(model: ServedModel, body: ChatBody, calls: CallForm | None) -> tuple[str, str] | None:
    """The field that asks for a call, and its grammar; FormError where a model writes calls in no form known here."""
    if not body.forced_tools:
        return None
    if calls is None:
        raise FormError(
            "tool_choice",
            "this model's chat template has no tools, or calls in a form that is not known here: send auto or none",
        )
    return "tool_choice", calls.grammar(body.forced_tools, model.tokenizer)


def ignored_fields(model: ServedModel, body: ChatBody) -> list[str]:
    """The fields of a request that have no effect on the answer of this model."""
    if not model.reads_tools:
        return ["tools"] if body.callable_tools else []
    is_strict = any(tool["function"].get("strict") for tool in body.callable_tools)
    return ["tools.function.strict"] if is_strict and not body.forced_tools else []


def answer_reader(model: ServedModel, body: ChatBody, calls: CallForm | None) -> AnswerReader:
    """What divides an answer into text and calls."""
    if calls is None:
        return AnswerReader()
    return CallReader(calls, model.tokenizer, 1 if body.parallel_tool_calls is False else None)


async def stream_chat(
    answer: Answer, readers: Sequence[AnswerReader], body: ChatBody, about: dict[str, Any]
) -> AsyncIterator[str]:
    """For each answer a chunk with the role, its pieces, one with whole calls, and an empty one with the reason; usage
    where asked for.
    """
    none_yet = {"usage": None} if body.include_usage else {}
    begun: set[int] = set()

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return server_event(about | {"choices": [choice]} | none_yet)

    try:
        async for index, token in answer.each():
            if index not in begun:
                begun.add(index)
                yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
            logprobs = None
            if token.score is not None:
                logprobs = {"content": [token_log_prob(answer.model, token.score)], "refusal": None}
            shown = readers[index].push(token.token, token.text)
            if shown or logprobs:
                yield chunk(index, {"content": shown}, logprobs=logprobs)
            if token.finish_reason:
                rest, calls = readers[index].finish()
                if rest:
                    yield chunk(index, {"content": rest})
                if calls:
                    yield chunk(index, {"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]})
                yield chunk(index, {}, finish_reason(token.finish_reason, bool(calls)))
        if body.include_usage:
            yield server_event(about | {"choices": [], "usage": answer.usage(), "timings": answer.timings()})
    except Exception as error:
        yield error_event(error)
    yield DONE_EVENT


async def whole_chat(
    answer: Answer, readers: Sequence[AnswerReader], about: dict[str, Any], request: Request
) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choices = []
    for index, finished in enumerate(await answer.texts(request)):
        logprobs = None
        if answer.generations[index].n_top >= 0:
            entries = [token_log_prob(answer.model, score) for score in finished.scores]
            logprobs = {"content": entries, "refusal": None}
        shown = "".join(readers[index].push(*token) for token in finished.tokens)
        rest, calls = readers[index].finish()
        message = {"role": "assistant", "content": shown + rest, "refusal": None}
        if calls:
            message |= {"content": shown.strip() or None, "tool_calls": calls}
        reason = finish_reason(finished.reason, bool(calls))
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    return about | {"choices": choices, "usage": answer.usage(), "timings": answer.timings()}
