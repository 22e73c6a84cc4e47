"""What a network writes while it is trained, for people to look at."""

from pellucid.generate.errors import LogitsError
from pellucid.generate.text import generate
from pellucid.model import Transformer
from pellucid.text.interface import Tokenizer

#: what a sample has at most
SAMPLE_TOKENS = 100


def write_sample(network: Transformer, tokenizer: Tokenizer, prompt: str, seed: int) -> str | None:
    """What the network writes after `prompt`, at temperature 0.8; None where its logits are not finite.

    The network's training mode is put back.
    """
    network.eval()
    try:
        made = generate(
            network, tokenizer, prompt, max_tokens=SAMPLE_TOKENS, temperature=0.8, seed=seed, weights="loaded"
        )
        return prompt + made[0].text
    except LogitsError:
        return None
    finally:
        network.train()


def write_target(network: Transformer, tokenizer: Tokenizer, source: str, seed: int) -> str | None:
    """The source and the likeliest target token by token; None where the network's logits are not finite.

    The network's training mode is put back.
    """
    try:
        (target,) = generate(network, tokenizer, source=source, max_tokens=SAMPLE_TOKENS, seed=seed, weights="loaded")
    except LogitsError:
        return None
    return f"{source} -> {target.text}"
