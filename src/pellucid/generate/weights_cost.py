"""What rounded weights cost: the bits per byte of a fixed text with them and with the network's own."""

from pellucid.generate.pack_weights import packed_network
from pellucid.generate.scoring import score
from pellucid.model import Transformer
from pellucid.text.read.documents import bundled
from pellucid.text.tokenizers.base import Tokenizer

#: the kinds that round, and how many characters of the bundled Shakespeare are scored
ROUNDED, MEASURED = ("float16", "bfloat16", "int8", "int4"), 2000


def cost_of_weights(network: Transformer, tokenizer: Tokenizer, weights: str) -> str:
    """A line with the loss that weights of this kind add, "" for kinds that round nothing and for encoder-decoders.

    It is in bits per byte where these can be counted, and else in nats per token.
    """
    if weights not in ROUNDED or network.architecture.encoder is not None:
        return ""
    text = bundled("shakespeare").read_text(encoding="utf-8")[:MEASURED]
    own, rounded = (score(n, tokenizer, text) for n in (network, packed_network(network, weights).network))
    if own.why_not_comparable:
        before, after, unit = own.loss, rounded.loss, "nats per token"
    else:
        before, after, unit = own.bits_per_byte, rounded.bits_per_byte, "bits per byte"
    return (
        f"weights: {weights} costs {after - before:+.5f} {unit} ({after:.4f} for {before:.4f}, on the first "
        f"{own.n_tokens:,} tokens of the bundled Shakespeare)"
    )
