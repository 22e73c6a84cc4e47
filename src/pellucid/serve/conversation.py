"""What the two routes for conversations share: messages, how a model reads them, and log-probabilities of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from pellucid.generate.readers import TapFactory
from pellucid.generate.replies import Messages, recent_messages, room_for_reply
from pellucid.json_files import parse_json_object
from pellucid.serve.generation import TokenScore
from pellucid.serve.protocol import Body, EditBody, json_log_prob
from pellucid.serve.served import ServedModel
from pellucid.text.chat_template import ChatError, text_of_parts

#: messages of a conversation, at most
MAX_MESSAGES = 4096
#: JSON descriptions of functions that an answer may call
Tools = Annotated[list[dict[str, Any]], Field(max_length=128, fail_fast=True)]
#: what other servers call a part of text
TEXT_PARTS = ("text", "input_text", "output_text")
NO_TEMPLATE = (
    "this model has no chat template, so it was not trained on conversations: send the text to /v1/completions, or "
    "serve a model trained with --objective chat"
)


class CalledFunction(BaseModel):
    """The function of a call: `arguments` are JSON, as a text."""

    name: Annotated[str, Field(max_length=200)]
    arguments: str = "{}"


class MessageCall(BaseModel):
    """A call of a tool in an earlier answer."""

    id: Annotated[str, Field(max_length=200)] | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as templates read it. Raises JSONFileError for arguments that are no object of JSON."""
        arguments = parse_json_object(self.function.arguments or "{}", f"arguments of a call of {self.function.name}")
        return self.model_dump(exclude_none=True) | {"function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(Body):
    """One message; its content is a text, or parts of text. What else clients keep in messages is not read."""

    harmless: ClassVar[frozenset[str] | None] = None
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"function_call": (), "audio": ()}

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None
    tool_calls: Annotated[list[MessageCall], Field(max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as templates read it: a call's arguments are an object."""
        entries = self.model_dump(include={"role", "content", "name", "tool_call_id"}, exclude_none=True)
        if self.tool_calls:
            calls = [call.for_template() for call in self.tool_calls]
            entries = {"content": ""} | entries | {"tool_calls": calls}
        return entries

    @field_validator("content")
    @classmethod
    def join_parts(cls, content: Any) -> Any:
        """Parts of text as text; other parts are refused by their names."""
        if not isinstance(content, list):
            return content
        for part in content:
            kind = part.get("type")
            if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
                raise ValueError(f"a part of type {kind!r:.60} is not read here: send parts of type text, with a text")
        return [{"type": "text", "text": part["text"]} for part in content]


def ends_with_begun_answer(messages: Sequence[ChatMessage]) -> bool:
    """Whether the last message can be the beginning of the answer to those before it."""
    return len(messages) > 1 and messages[-1].role == "assistant" and messages[-1].content is not None


@dataclass(frozen=True)
class ConversationPrompt:
    """What a model reads of a conversation.

    ends        the tokens that end the answer
    n_left_out  how many of the earliest messages were left out
    """

    ids: list[int]
    ends: frozenset[int]
    taps: TapFactory
    n_left_out: int = 0

    def headers(self, ignored: Sequence[str]) -> dict[str, str]:
        """The headers that say which fields of the request had no effect, and how many messages were left out."""
        headers = {"Pellucid-Ignored": ", ".join(ignored)} if ignored else {}
        return headers | ({"Pellucid-Messages-Left-Out": str(self.n_left_out)} if self.n_left_out else {})


def read_conversation(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    edits: Sequence[EditBody] | None,
    *,
    answer_begun: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    room: int | None = None,
    field: str = "messages",
) -> ConversationPrompt:
    """The prompt of a conversation, up to where the answer begins.

    answer_begun  the last message is the beginning of the answer, and the ids of its text follow
    tools         written by templates that read them (`ChatTemplate.reads_tools`)
    room          the tokens of the context that stay free: early turns are left out for them; None leaves nothing out
    field         what the route calls the messages

    A template and a large edit take long, so that this is called in a thread of its own.
    """
    if model.chat_template is None:
        raise ChatError(NO_TEMPLATE)
    # with room, early turns are left out before they are encoded; what stands before the first of them stays
    n_opening = next((i for i, message in enumerate(messages) if message.role == "user"), 0)
    for message in messages if room is None else [*messages[:n_opening], *messages[-1 - answer_begun :]]:
        content = message.content or ""
        model.check_bytes(content if isinstance(content, str) else text_of_parts(content), field)
    begun: list[int] = []
    if answer_begun:
        content = messages[-1].content or ""
        begun = model.tokenizer.encode(content if isinstance(content, str) else text_of_parts(content))
        messages = messages[:-1]
    template = model.chat_template.with_tools(tools)
    if "tool_calls" not in template.source and any(message.tool_calls for message in messages):
        raise ChatError("this model's chat template writes no calls of tools: leave the messages with tool_calls out")
    plain = [message.for_template() for message in messages]
    if "developer" not in template.source and "system" in template.source:
        # OpenAI's newer name of the same role, which such a template would leave out or refuse
        plain = [one | {"role": "system"} if one["role"] == "developer" else one for one in plain]
    recent: Messages = plain
    if room is not None:
        recent = recent_messages(template, model.tokenizer, plain, model.engine.n_ctx - room - len(begun))
    ids = [*template.encode(recent, model.tokenizer), *begun]
    return ConversationPrompt(ids, model.answer_ends, model.taps(edits), len(plain) - len(recent))


def room_to_keep(model: ServedModel, truncation: str | None, max_tokens: int | None) -> int | None:
    """The room that early turns are left out for, if `truncation` is auto."""
    return room_for_reply(model.engine.n_ctx, max_tokens) if truncation == "auto" else None


def room_for_answer(model: ServedModel, prompt: Sequence[int], max_tokens: int | None) -> int:
    """How many tokens an answer may have: as many as asked for, or as the context has room for."""
    if max_tokens is not None:
        return max_tokens
    return max(1, min(model.engine.max_tokens, model.engine.n_ctx - len(prompt)))


def token_log_prob(model: ServedModel, score: TokenScore) -> dict[str, Any]:
    """OpenAI's entry for one token of an answer.

    The bytes of all entries, joined, begin with those of the text; where a stop string ended it, they go on.
    """
    return {
        **describe_token(model, score.token, score.log_prob),
        "top_logprobs": [describe_token(model, token, log_prob) for token, log_prob in score.top],
    }


def describe_token(model: ServedModel, token: int, log_prob: float) -> dict[str, Any]:
    """A token's text, its log-probability and its bytes; a special token has none."""
    data = model.tokenizer.token_bytes(token)
    return {"token": model.token_text(token), "logprob": json_log_prob(log_prob), "bytes": list(data)}
