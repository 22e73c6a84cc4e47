"""POST /v1/chat/completions: the next message of a conversation, whole or streamed."""

import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator
from starlette.responses import Response

from pellucid.serve.answer import Answer
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
from pellucid.serve.protocol import MAX_ALTERNATIVES, MAX_SAMPLES, SamplingBody, finish_reason
from pellucid.serve.served import ServedModel
from pellucid.serve.streams import DONE_EVENT, CancellingStream, error_event, server_event
from pellucid.serve.threads import in_thread


class ChatBody(SamplingBody):
    """The body of the request."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingBody.refused,
        "tool_choice": ("none", "auto"),
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
    #: auto leaves out the earliest turns of a conversation that is too long, as on /v1/responses
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def limit_names(self) -> dict[str, str]:
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit}

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
        tools=body.tools or (),
        room=room_to_keep(model, body.truncation, max_tokens),
    )
    grammar = await model.grammar(body.form, prompt.ends)
    headers = prompt.headers(["tools"] if body.tools and not model.reads_tools else [])
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
    about = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(answer.created), "model": model.name}
    if body.stream:
        return CancellingStream(answer, stream_chat(answer, body, about | {"object": "chat.completion.chunk"}), headers)
    return JSONResponse(await whole_chat(answer, about | {"object": "chat.completion"}, request), headers=headers)


async def stream_chat(answer: Answer, body: ChatBody, about: dict[str, Any]) -> AsyncIterator[str]:
    """For each answer a chunk with the role, its pieces, and an empty chunk with the reason; usage where asked for."""
    none_yet = {"usage": None} if body.include_usage else {}
    begun: set[int] = set()

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason(reason)}
        return server_event(about | {"choices": [choice]} | none_yet)

    try:
        async for index, token in answer.each():
            if index not in begun:
                begun.add(index)
                yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
            logprobs = None
            if token.score is not None:
                logprobs = {"content": [token_log_prob(answer.model, token.score)], "refusal": None}
            if token.text or logprobs:
                yield chunk(index, {"content": token.text}, logprobs=logprobs)
            if token.finish_reason:
                yield chunk(index, {}, token.finish_reason)
        if body.include_usage:
            yield server_event(about | {"choices": [], "usage": answer.usage(), "timings": answer.timings()})
    except Exception as error:
        yield error_event(error)
    yield DONE_EVENT


async def whole_chat(answer: Answer, about: dict[str, Any], request: Request) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choices = []
    for index, finished in enumerate(await answer.texts(request)):
        logprobs = None
        if answer.generations[index].n_top >= 0:
            entries = [token_log_prob(answer.model, score) for score in finished.scores]
            logprobs = {"content": entries, "refusal": None}
        message = {"role": "assistant", "content": finished.text, "refusal": None}
        reason = finish_reason(finished.reason)
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    return about | {"choices": choices, "usage": answer.usage(), "timings": answer.timings()}
