"""What the two routes for conversations share: messages, how a model reads them, and log-probabilities of tokens."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from pellucid.generate.readers import TapFactory
from pellucid.serve.generation import TokenScore
from pellucid.serve.protocol import Body, EditBody, json_log_prob
from pellucid.serve.served import ServedModel
from pellucid.text.chat_template import ChatError, text_of_parts

#: messages of a conversation, at most
MAX_MESSAGES = 4096
#: what other servers call a part of text
TEXT_PARTS = ("text", "input_text", "output_text")
NO_TEMPLATE = (
    "this model has no chat template, so it was not trained on conversations: send the text to /v1/completions, or "
    "serve a model trained with --objective chat"
)


class ChatMessage(Body):
    """One message; its content is a text, or parts of text."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tool_calls": ([],),
        "function_call": (),
        "tool_call_id": (),
        "audio": (),
    }

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None

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


def prompt_of(model: ServedModel, messages: Sequence[ChatMessage], answer_begun: bool = False) -> list[int]:
    """The ids that the model's template makes of a conversation, up to where the answer begins.

    With `answer_begun` the last message is the beginning of the answer, and the ids of its text follow.
    """
    if model.chat_template is None:
        raise ChatError(NO_TEMPLATE)
    if answer_begun:
        begun = messages[-1].content or ""
        text = begun if isinstance(begun, str) else text_of_parts(begun)
        return [*prompt_of(model, messages[:-1]), *model.tokenizer.encode(text)]
    plain = [message.model_dump(include={"role", "content", "name"}, exclude_none=True) for message in messages]
    return model.chat_template.encode(plain, model.tokenizer)


def read_conversation(
    model: ServedModel, messages: Sequence[ChatMessage], edits: Sequence[EditBody] | None, answer_begun: bool = False
) -> tuple[list[int], frozenset[int], TapFactory]:
    """The prompt, the tokens that end the answer, and what makes the edits.

    A template and a large edit take long, so that this is called in a thread of its own.
    """
    return prompt_of(model, messages, answer_begun), model.answer_ends, model.taps(edits)


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
