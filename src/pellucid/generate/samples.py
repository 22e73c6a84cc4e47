"""Samples of text that a network generates during training."""

from collections.abc import Callable, Iterable

from pellucid.generate.errors import LogitsError
from pellucid.generate.text import TextPiece, stream_generate
from pellucid.model import Transformer
from pellucid.model.modes import in_evaluation_mode
from pellucid.text.tokenizers.base import Tokenizer

#: the largest number of tokens of a sample
SAMPLE_TOKENS = 100
#: called with the number of generated tokens and their limit; may raise
Poll = Callable[[int, int], object]


def sample_text(network: Transformer, tokenizer: Tokenizer, prompt: str, seed: int, poll: Poll) -> str | None:
    """Text that the network generates after `prompt`, at temperature 0.8; None if its logits are not finite.

    The network's training mode is restored.
    """
    options = {"max_tokens": SAMPLE_TOKENS, "temperature": 0.8, "seed": seed, "weights": "loaded"}
    with in_evaluation_mode(network):
        text = join_pieces(stream_generate(network, tokenizer, prompt, **options), poll)
    return None if text is None else prompt + text


def sample_target(network: Transformer, tokenizer: Tokenizer, source: str, seed: int, poll: Poll) -> str | None:
    """The source and the greedy target; None if the network's logits are not finite.

    The network's training mode is restored.
    """
    text = join_pieces(
        stream_generate(network, tokenizer, source=source, max_tokens=SAMPLE_TOKENS, seed=seed, weights="loaded"), poll
    )
    return None if text is None else f"{source} -> {text}"


def join_pieces(pieces: Iterable[TextPiece], poll: Poll) -> str | None:
    """The joined text of pieces as they are generated; None if the network's logits are not finite."""
    shown = []
    try:
        for n, piece in enumerate(pieces):
            shown.append(piece.text)
            poll(n, SAMPLE_TOKENS)
    except LogitsError:
        return None
    return "".join(shown)
