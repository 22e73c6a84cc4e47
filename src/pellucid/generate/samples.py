"""What a network writes while it is trained, for people to look at."""

from pellucid.generate.text import generate
from pellucid.model import Transformer
from pellucid.text.interface import Tokenizer


def write_sample(network: Transformer, tokenizer: Tokenizer, prompt: str, seed: int) -> str:
    """What the network writes after `prompt`, at temperature 0.8; its training mode is put back."""
    network.eval()
    try:
        return (
            prompt
            + generate(network, tokenizer, prompt, max_tokens=100, temperature=0.8, seed=seed, weights="loaded")[0].text
        )
    finally:
        network.train()


def write_target(network: Transformer, tokenizer: Tokenizer, source: str, seed: int) -> str:
    """The source and the likeliest target token by token; the network's training mode is put back."""
    (target,) = generate(network, tokenizer, source=source, max_tokens=100, seed=seed, weights="loaded")
    return f"{source} -> {target.text}"
