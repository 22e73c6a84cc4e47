"""What a network writes while it is trained, for people to look at."""

from collections.abc import Callable, Iterable

from pellucid.generate.errors import LogitsError
from pellucid.generate.text import TextPiece, stream_generate
from pellucid.model import Transformer
from pellucid.text.tokenizers.base import Tokenizer

#: what a sample has at most
SAMPLE_TOKENS = 100
#: is called with how many tokens are written, of how many; it may raise
Poll = Callable[[int, int], object]


def sample_text(network: Transformer, tokenizer: Tokenizer, prompt: str, seed: int, poll: Poll) -> str | None:
    """What the network writes after `prompt`, at temperature 0.8; None where its logits are not finite.

    The network's training mode is put back.
    """
    network.eval()
    try:
        options = {"max_tokens": SAMPLE_TOKENS, "temperature": 0.8, "seed": seed, "weights": "loaded"}
        text = join_pieces(stream_generate(network, tokenizer, prompt, **options), poll)
    finally:
        network.train()
    return None if text is None else prompt + text


def sample_target(network: Transformer, tokenizer: Tokenizer, source: str, seed: int, poll: Poll) -> str | None:
    """The source and the likeliest target token by token; None where the network's logits are not finite.

    The network's training mode is put back.
    """
    text = join_pieces(
        stream_generate(network, tokenizer, source=source, max_tokens=SAMPLE_TOKENS, seed=seed, weights="loaded"), poll
    )
    return None if text is None else f"{source} -> {text}"


def join_pieces(pieces: Iterable[TextPiece], poll: Poll) -> str | None:
    """The text of pieces that are still to be written; None where the network's logits are not finite."""
    shown = []
    try:
        for n, piece in enumerate(pieces):
            shown.append(piece.text)
            poll(n, SAMPLE_TOKENS)
    except LogitsError:
        return None
    return "".join(shown)
