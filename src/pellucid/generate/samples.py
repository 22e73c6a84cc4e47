"""Samples of text that a network generates during training."""

from collections.abc import Callable, Iterable

from pellucid.generate.errors import LogitsError
from pellucid.generate.replies import ReplyPiece, required, stream_reply
from pellucid.generate.text import TextPiece, stream_generate
from pellucid.model.modes import in_evaluation_mode
from pellucid.text_model import Model

#: the largest number of tokens of a sample
SAMPLE_TOKENS = 100
#: called with the number of generated tokens and their limit; may raise
Poll = Callable[[int, int], object]


def sample_text(model: Model, prompt: str, seed: int, poll: Poll) -> str | None:
    """Text that the network generates after `prompt`, at temperature 0.8; None if its logits are not finite.

    The network's training mode is restored.
    """
    options = {"max_tokens": SAMPLE_TOKENS, "temperature": 0.8, "seed": seed, "weights": "loaded"}
    with in_evaluation_mode(model.network):
        text = join_pieces(stream_generate(model, prompt, **options), poll)
    return None if text is None else prompt + text


def sample_target(model: Model, source: str, seed: int, poll: Poll) -> str | None:
    """The source and the greedy target; None if the network's logits are not finite.

    The network's training mode is restored.
    """
    text = join_pieces(
        stream_generate(model, source=source, max_tokens=SAMPLE_TOKENS, seed=seed, weights="loaded"), poll
    )
    return None if text is None else f"{source} -> {text}"


def sample_reply(model: Model, question: str, seed: int, poll: Poll) -> str | None:
    """The question of a user and the assistant's answer, at temperature 0.8; None if the network's logits are not
    finite.

    The network's training mode is restored.
    """
    messages = [{"role": "user", "content": question}]
    room = model.architecture.n_ctx - len(required(model.chat_template).encode(messages, model.tokenizer))
    if room < 1:
        return f"user: {question}\nassistant: (no room for an answer in the context)"
    options = {"max_tokens": min(SAMPLE_TOKENS, room), "seed": seed, "weights": "loaded"}
    with in_evaluation_mode(model.network):
        text = join_pieces(stream_reply(model, messages, **options), poll)
    return None if text is None else f"user: {question}\nassistant: {text}"


#: what writes the samples of a run, by its objective; a masked model writes none
SAMPLERS: dict[str, Callable[[Model, str, int, Poll], str | None] | None] = {
    "masked": None,
    "source-target": sample_target,
    "chat": sample_reply,
}


def sampler_for(objective: str) -> Callable[[Model, str, int, Poll], str | None] | None:
    """What writes samples during training with this objective."""
    return SAMPLERS.get(objective, sample_text)


def join_pieces(pieces: Iterable[TextPiece | ReplyPiece], poll: Poll) -> str | None:
    """The joined text of pieces as they are generated; None if the network's logits are not finite."""
    shown = []
    try:
        for n, piece in enumerate(pieces):
            shown.append(piece.text)
            poll(n, SAMPLE_TOKENS)
    except LogitsError:
        return None
    return "".join(shown)
