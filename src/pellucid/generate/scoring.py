"""How probable a text is: log-probabilities in nats, token by token, and quantities derived from them.

Every token is scored exactly once. A text that fits into the context is scored in one pass; a longer text in
overlapping windows, each adding `stride` tokens, so that once the context is full every token has at least n_ctx -
stride tokens before it (Press et al. 2021, section 2; Hugging Face's guide to perplexity). Bytes are those of the
original text, never those of decoded tokens.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from pellucid.generate.encoder_inputs import NoSources, encode_source, read_sources
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import check_readable, evaluation_mode
from pellucid.model import Transformer
from pellucid.model.mask import prefix_mask
from pellucid.model.shapes import Encoded, SourceVisible, Tokens, Visible
from pellucid.text.ids import IdTokenizer
from pellucid.text.read.documents import Document, Documents
from pellucid.text.tokenizers.tokenizer import Tokenizer, TokenizerError
from pellucid.text.tokens.batches import lay_windows
from pellucid.text_model import Model

#: the default limit of logits in memory: 64 MiB in float32
LOGITS_IN_MEMORY = 2**24


class ScoringError(GenerationError):
    """A text has no token to score, or the windows do not fit it."""


class Likelihood(ABC):
    """What follows from the log-probability of what was scored, and from the number of its tokens, bytes and words."""

    log_probs: np.ndarray

    @property
    def log_prob(self) -> float:
        """log P of all scored tokens, nats, summed without intermediate rounding."""
        return math.fsum(self.log_probs)

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """The number of scored tokens."""

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """The bytes of the scored tokens; bytes of a file that are not UTF-8 count as they stand in the file."""

    @property
    @abstractmethod
    def n_words(self) -> int:
        """The number of words of the scored text, separated by white space."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return -self.log_prob / self.n_tokens

    @property
    def perplexity(self) -> float:
        """exp of the nats per token; inf on overflow."""
        return _exp(self.loss)

    @property
    def perplexity_per_word(self) -> float:
        """exp of the nats per word, independent of the tokenizer; inf for a text without words."""
        return _exp(-self.log_prob / self.n_words) if self.n_words else math.inf

    @property
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Bits of all scored tokens per byte: comparable between tokenizers, except for `why_not_comparable`."""
        return -self.log_prob / math.log(2) / self.n_bytes


@dataclass(frozen=True)
class Score(Likelihood):
    """Log-probabilities of the tokens of a text.

    ids          the scored tokens
    pieces       the bytes of each token in the text
    log_probs    float64 [len(ids)], nats: log P(token | everything before it in its window)
    n_context    tokens that were read but not scored: the separator or what stands in its place, a prefix, or a first
                 token without context
    context      these tokens
    why_not_comparable   why bits per byte do not compare with those of another tokenizer; "" if they do
    counted      a phrase that says which bytes were counted: those of the text, or of a file
    n_replaced_bytes     how many bytes the file has less than the text, in which U+FFFD stands for bytes that are not
    UTF-8
    notes        sentences about how the file was read
    baselines    n-gram models by name, if requested, with their nats per token and bits per byte on the same tokens
    document     the document of the file that the text is from, if a file was scored
    """

    ids: list[int]
    pieces: list[bytes]
    log_probs: np.ndarray
    n_context: int
    context: tuple[int, ...] = ()
    why_not_comparable: str = ""
    counted: str = "the bytes of the text in UTF-8"
    n_replaced_bytes: int = 0
    notes: tuple[str, ...] = ()
    baselines: tuple[tuple[str, float, float], ...] = ()
    document: Document | None = None

    @property
    def surprisal(self) -> np.ndarray:
        """-log P of each token, nats."""
        return -self.log_probs

    @property
    def surprisal_bits(self) -> np.ndarray:
        """-log2 P of each token, bits."""
        return -self.log_probs / math.log(2)

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_bytes(self) -> int:
        return sum(map(len, self.pieces)) - self.n_replaced_bytes

    @property
    def n_words(self) -> int:
        return len(b"".join(self.pieces).decode("utf-8", "replace").split())


@dataclass(frozen=True)
class CorpusScore(Likelihood):
    """Log-probabilities of several documents, each scored by itself as a `Score` is; its quantities are of all of them.

    documents    what was scored, in the order of their paths: documents[k].path, documents[k].text
    log_probs    float64 [documents], nats: log P of each document
    token_counts, byte_counts, word_counts   int64 [documents]: of the scored tokens of each document
    counted      a phrase that says which bytes were counted
    why_not_comparable, notes, baselines   as of `Score`, for all documents together
    """

    documents: Documents
    log_probs: np.ndarray
    token_counts: np.ndarray
    byte_counts: np.ndarray
    word_counts: np.ndarray
    counted: str
    why_not_comparable: str = ""
    notes: tuple[str, ...] = ()
    baselines: tuple[tuple[str, float, float], ...] = ()

    @property
    def n_tokens(self) -> int:
        return int(self.token_counts.sum())

    @property
    def n_bytes(self) -> int:
        return int(self.byte_counts.sum())

    @property
    def n_words(self) -> int:
        return int(self.word_counts.sum())


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 709 else math.inf


class ScoringOptions(TypedDict, total=False):
    """How a transformer scores a text; `score` describes each option and holds the defaults."""

    prefix: str
    source: str | None
    start: Literal["separator", "none"]
    stride: int | None
    batch: int


def score(
    model: Model,
    text: str,
    *,
    prefix: str = "",
    source: str | None = None,
    start: Literal["separator", "none"] = "separator",
    stride: int | None = None,
    batch: int = 8,
) -> Score:
    """How probable `text` is, after `prefix` if one is given.

    start    separator: the separator is read first, as in training, so that the first token has a probability
             too, P(t_1 | <|endoftext|>); in its place what the model's own tokenizer puts before a text
             (`Tokenizer.before`, such as <bos>), where it puts something there. none: the first token of the text (or
             of the prefix) is read without context and not scored
    stride   how many tokens each further window adds, n_ctx // 2 by default
    batch    how many windows are read at once
    source   the text for the encoder of an encoder-decoder; `text` is then a target

    The border between prefix and text is that of lm-eval: white space at the end of the prefix is moved to the text;
    both are encoded as one text, and what follows its first len(encode(prefix)) tokens is scored. encode(prefix) +
    encode(text) would be another sequence, which training never saw. If a token crosses the border, the border moves
    with it: `pieces` are the scored bytes. lm-eval reads no separator first: its numbers for a non-empty prefix are
    those of start = "none". A network with attention.mask = prefix reads separator and prefix as its prefix.

    Raises ScoringError if there is nothing to score, as in an empty text.
    """
    network, tokenizer, continuation, text = model.network, model.tokenizer, text, prefix + text
    ids, border = tokenizer.encode(text), len(tokenizer.encode(prefix.rstrip())) if prefix else 0
    if prefix and border >= len(ids):
        raise ScoringError(
            f"the continuation {continuation!r} has no token of its own after this prefix: give a longer continuation, "
            "or score the two as one text"
        )
    if start not in ("separator", "none"):
        raise ScoringError(f"start = {start!r}: choose separator or none")
    lead: list[int] = []
    if start == "separator":
        lead = tokenizer.opening if source is None else [tokenizer.start]
    first = max(len(lead) + border, 1)
    read_ids = [*lead, *ids]
    if len(read_ids) <= first:
        what = "an empty text" if not ids else "a text of one token read after nothing (start = none)"
        raise ScoringError(f"{what} has no token to score: give more text")
    n_prefix = len(lead) + border if border else 0
    read = None if source is None else encode_source(tokenizer, source)
    log_probs = score_tokens(network, read_ids, first=first, n_prefix=n_prefix, source=read, stride=stride, batch=batch)
    border = first - len(lead)
    pieces, why = token_pieces(tokenizer, text, ids)[border:], why_not_comparable(tokenizer, text, ids, border)
    return Score(list(read_ids[first:]), pieces, log_probs, first, tuple(read_ids[:first]), why)


def score_tokens(
    network: Transformer,
    ids: Sequence[int] | np.ndarray,
    *,
    first: int = 1,
    n_prefix: int = 0,
    source: Sequence[int] | None = None,
    stride: int | None = None,
    batch: int = 8,
) -> np.ndarray:
    """log P(ids[t] | ids before it) for t = first, first + 1, ...; float64 [len(ids) - first], nats.

    n_prefix   how many of the ids are the prefix, at most `first`, for networks with attention.mask = prefix;
               tokens of the prefix see their successors. Other networks ignore it
    source     the ids for the encoder, if there is one

    Raises ScoringError if no windows fit, GenerationError for networks that do not predict a next token.
    """
    check_readable(network)
    a = network.architecture
    stride = a.n_ctx // 2 or 1 if stride is None else stride
    if not 1 <= stride <= a.n_ctx:
        raise ScoringError(f"stride = {stride}: expected 1 to n_ctx = {a.n_ctx} tokens")
    if not 1 <= first < len(ids) or n_prefix > first or batch < 1:
        raise ScoringError(
            f"first = {first}, n_prefix = {n_prefix}, batch = {batch} for {len(ids)} ids: expected "
            "1 <= first < len(ids), n_prefix <= first and batch >= 1"
        )
    tokens = torch.as_tensor(np.asarray(ids, dtype=np.int64))
    if tokens.min() < 0 or tokens.max() >= a.n_vocab:
        raise ScoringError(f"ids from {tokens.min()} to {tokens.max()}: expected 0 to {a.n_vocab - 1}")
    with evaluation_mode(network):
        encoded = read_sources(network, None if source is None else [source], 1)
    log_probs = np.full(len(ids), np.nan)
    windows = list(lay_windows(len(ids) - 1, a.n_ctx, stride, first))
    for at in range(0, len(windows), batch):
        some = windows[at : at + batch]
        losses = _window_losses(network, tokens, some, n_prefix, encoded)
        for (_, end, scored), row in zip(some, losses, strict=True):
            log_probs[scored : end + 1] = -row[scored - end - 1 :]
    return log_probs[first:]


def _window_losses(
    network: Transformer, tokens: Tensor, windows: list[tuple[int, int, int]], n_prefix: int, sources: NoSources
) -> np.ndarray:
    """The losses of each window's targets, float64 [window, min(n, n_ctx)]."""
    device = network.embed.token.weight.device
    inputs = torch.stack([tokens[begin:end] for begin, end, _ in windows]).to(device)
    targets = torch.stack([tokens[begin + 1 : end + 1] for begin, end, _ in windows]).to(device)
    mask = None
    if n_prefix and network.architecture.attention.mask == "prefix":
        lengths = torch.tensor([max(0, n_prefix - begin) for begin, _, _ in windows], device=device)
        mask = prefix_mask(lengths, inputs.size(1))
    with evaluation_mode(network):
        source = sources.of([0] * len(windows), inputs.size(1))
        return score_losses(network, inputs, targets, mask=mask, **source).cpu().double().numpy()


def score_losses(
    network: Transformer,
    inputs: Tokens,
    targets: Tokens,
    *,
    mask: Visible | None = None,
    source: Encoded | None = None,
    source_mask: SourceVisible | None = None,
    chunk: int = LOGITS_IN_MEMORY,
) -> Float[Tensor, "batch pos"]:
    """-log P(target) at every position, nats, in float32 or better; 0 where a target is -100.

    At most `chunk` logits are in memory: for 16 windows of 1024 tokens and 50257 ids, 64 MiB instead of 3.1 GiB. With
    gradients on, autograd stores each chunk all the same.
    """
    stream = network.hidden(inputs, mask=mask, source=source, source_mask=source_mask).flatten(0, 1)
    rows = max(1, chunk // network.architecture.n_vocab)
    losses = [
        F.cross_entropy(_at_least_float32(network.unembed(x)), y, reduction="none")
        for x, y in zip(stream.split(rows), targets.flatten().split(rows), strict=True)
    ]
    return torch.cat(losses).unflatten(0, tuple(inputs.shape))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def token_pieces(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[bytes]:
    """The bytes of `text` that each token stands for; joined, they are the text (`Tokenizer.pieces_of`)."""
    try:
        return tokenizer.pieces_of(text, ids)
    except TokenizerError as error:
        raise ScoringError(str(error)) from None


def why_not_comparable(tokenizer: Tokenizer, text: str, ids: Sequence[int], border: int = 0) -> str:
    """Why bits per byte of `ids[border:]` do not compare with those of another tokenizer, "" if they do."""
    if isinstance(tokenizer, IdTokenizer):
        return "the text is token ids in digits, so its bytes are not those of the text they stand for"
    unknown = sum(token == tokenizer.unknown for token in ids[border:])
    if unknown:
        one = unknown == 1
        are, what, their = (
            ("is an", tokenizer.units.removesuffix("s"), "its") if one else ("are", tokenizer.units, "their")
        )
        return (
            f"{unknown:,} of {len(ids) - border:,} tokens {are} unknown {what}: {their} spelling is not "
            f"predicted, but {their} bytes count"
        )
    if not tokenizer.lossless and tokenizer.spelled_by(text, ids) is None:
        return (
            "the tokenizer normalizes the text before it encodes it, so the model does not predict the "
            "original characters"
        )
    return ""
