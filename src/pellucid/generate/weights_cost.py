"""What rounded weights cost: the bits per byte of a fixed text with them and with the network's own."""

from pellucid.generate.errors import GenerationError
from pellucid.generate.pack_weights import packed_network
from pellucid.generate.scoring import score
from pellucid.model import Transformer
from pellucid.text.ids import IdTokenizer
from pellucid.text.read.documents import bundled
from pellucid.text.tokenizers.base import Tokenizer, TokenizerError

#: the kinds that round, and how many characters of the bundled Shakespeare are scored
ROUNDED, MEASURED = ("float16", "bfloat16", "int8", "int4"), 2000


def cost_of_weights(network: Transformer, tokenizer: Tokenizer, weights: str) -> str:
    """A line with the loss that weights of this kind add, in bits per byte where these can be counted, and else in nats
    per token.

    It is "" for kinds that round nothing, for encoder-decoders, and for models that cannot read the text: those without
    a tokenizer, and those whose tokenizer refuses it.
    """
    if weights not in ROUNDED or network.architecture.encoder is not None or isinstance(tokenizer, IdTokenizer):
        return ""
    try:
        return _measured(network, tokenizer, weights)
    except (TokenizerError, GenerationError):
        return ""


def _measured(network: Transformer, tokenizer: Tokenizer, weights: str) -> str:
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
