"""Answer in a conversation: read its messages through a chat template, and generate until the template's end marker."""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch

from pellucid.generate.decode import Decoding, generate_ids
from pellucid.generate.errors import GenerationError
from pellucid.generate.text import TEMPERATURE, DrawOptions, sampling_of
from pellucid.model.float64 import in_float64
from pellucid.text.chat_template import ChatError, ChatTemplate
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text_model import Model

#: the part of the context that is kept free for an answer, at most
ROOM = 0.25


Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ReplyPiece:
    """One token of an answer.

    text           the characters that it completes, possibly none; joined, they are the answer
    token          its id
    surprisal      -log P(token) in nats, before temperature and penalties
    finish_reason  of the last one: end, or length where max_tokens were generated; "" before
    """

    text: str
    token: int
    surprisal: float
    finish_reason: str = ""


def stream_reply(
    model: Model,
    messages: Messages,
    *,
    max_tokens: int = 400,
    seed: int = 0,
    weights: str = "auto",
    **draw: Unpack[DrawOptions],
) -> Iterator[ReplyPiece]:
    """The assistant's answer to `[{"role": "user", "content": "..."}]`, token by token. Closing the iterator stops it.

    The sampling options are those of `stream_generate`. Raises ChatError for a model without a template and for
    messages that the template refuses, and GenerationError where the messages leave no room for an answer.
    """
    network, tokenizer, template = model.network, model.tokenizer, required(model.chat_template)
    ids = template.encode(messages, tokenizer)
    if len(ids) >= network.architecture.n_ctx:
        raise GenerationError(
            f"the conversation has {len(ids)} tokens, and the context {network.architecture.n_ctx}: leave out earlier "
            "messages"
        )
    decoding = generate_ids(
        network,
        [ids],
        max_tokens=max_tokens,
        sampling=sampling_of(draw, TEMPERATURE),
        stop_ids=template.end_ids(tokenizer),
        seeds=seed,
        n_allowed=min(tokenizer.n_vocab, network.architecture.n_vocab),
        weights=weights,
        compile="auto",
    )
    return reply_pieces(decoding, tokenizer)


def reply_pieces(decoding: Decoding, tokenizer: Tokenizer) -> Iterator[ReplyPiece]:
    """The pieces of the one text that is generated."""
    stream = tokenizer.stream()
    for step in decoding:
        token, reason = step.tokens[0], step.rows[0].finish_reason or ""
        surprisal = -torch.log_softmax(in_float64(step.logits[0]), 0)[token].item()
        # an end may be a token of text too, where a model's files name it
        text = ("" if token in tokenizer.ends else stream.push(token)) + (stream.finish() if reason else "")
        yield ReplyPiece(text, token, surprisal, reason)


def required(template: ChatTemplate | None) -> ChatTemplate:
    """The template. Raises ChatError, which says how a model gets one."""
    if template is None:
        raise ChatError(
            "this model has no chat template, so it cannot tell who says what: train it on conversations (pellucid "
            "train CHATS.jsonl --from MODEL), or put the template of its family beside its weights "
            "(chat_template.jinja)"
        )
    return template


def recent_messages(template: ChatTemplate, tokenizer: Tokenizer, messages: Messages, n_tokens: int) -> Messages:
    """The messages without as many of the earliest turns as do not fit into `n_tokens`; instructions at the beginning
    stay. The last message is never left out.
    """
    n_system = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    opening, rest = list(messages[:n_system]), list(messages[n_system:])
    starts = sorted({0, *(i for i, message in enumerate(rest) if message["role"] == "user"), len(rest) - 1})

    def is_short(start: int) -> bool:
        return len(template.encode([*opening, *rest[start:]], tokenizer)) <= n_tokens

    # the fewer turns, the shorter: a search in halves renders a long conversation a few times
    last = len(starts) - 1
    first = 0 if not last or is_short(0) else bisect.bisect_left(starts, True, 1, last, key=is_short)
    return [*opening, *rest[starts[first] :]]


def room_for_reply(n_ctx: int, max_tokens: int | None) -> int:
    """The tokens of the context that are kept free for an answer where early turns can be left out for it."""
    return min(n_ctx if max_tokens is None else max_tokens, int(ROOM * n_ctx))
