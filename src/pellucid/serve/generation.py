"""One sequence of a request: its options, how far it is, and what the engine emits about it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pellucid.generate.encoder_inputs import NO_SOURCES, NoSources
from pellucid.generate.errors import GenerationError
from pellucid.generate.grammars import GrammarState
from pellucid.generate.readers import NO_TAPS, SequenceState, TapFactory
from pellucid.generate.sampling import Sampling
from pellucid.generate.text import Writer
from pellucid.model import Cache
from pellucid.text.tokenizers.tokenizer import Tokenizer


class QueueFullError(RuntimeError):
    """More requests wait than the queue holds; try again later."""


class StoppingError(RuntimeError):
    """The server is shutting down: it takes no request, or ends one that is not finished."""


class TooLargeError(GenerationError):
    """A request that can never be served.

    parameter  the field of the request that is too large
    code       a short word for programs
    """

    def __init__(self, message: str, parameter: str, code: str = "context_length_exceeded"):
        super().__init__(message)
        self.parameter, self.code = parameter, code

    def renamed(self, names: Mapping[str, str]) -> "TooLargeError":
        """The same error with the field's name on another route."""
        name = names.get(self.parameter, self.parameter)
        message = str(self)
        if message.startswith(f"{self.parameter} = "):
            message = name + message.removeprefix(self.parameter)
        return TooLargeError(message, name, self.code)


@dataclass(frozen=True)
class TokenScore:
    """One token: log P(token | what came before), nats, and the likeliest tokens there with theirs, likeliest first."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """One token more of a sequence.

    token          its id; None where a sequence of no tokens has had its prompt read
    text           the characters that can be shown now
    score          its log-probability, where the request asks for those
    finish_reason  why it is the last one: end, length or stop
    """

    token: int | None
    text: str
    score: TokenScore | None = None
    finish_reason: str | None = None


class SharedSources:
    """The texts that an encoder reads for the prompts of one request, read together when the first one needs them."""

    def __init__(self, read: Callable[[], NoSources] = lambda: NO_SOURCES):
        self.read, self.inputs = read, None

    def get(self) -> NoSources:
        """The decoder's inputs; called in the engine's thread alone."""
        if self.inputs is None:
            self.inputs = self.read()
        return self.inputs


@dataclass(eq=False)
class Generation:
    """A sequence in the engine: what was asked for, and how far it is.

    emit      called in the engine's thread with a TokenEvent, or with the exception that ended the sequence; it does
              not raise
    prompt    the number of its prompt in the request, from 0
    sample    the number of this sample of the prompt, from 0
    stop_ids  tokens that end it, besides the tokenizer's own
    n_top     how many of the likeliest tokens each event names; -1 computes no log-probabilities at all
    echo      log-probabilities of the prompt's tokens are wanted too: `prompt_scores`, None for the first token
    taps      the edits that are made at every step
    sources   what an encoder reads
    grammar   the text follows it; its log-probabilities are then those of the tokens that the grammar allows
    """

    prompt_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int
    seed: int
    emit: Callable[["Generation", TokenEvent | Exception], None]
    prompt: int = 0
    sample: int = 0
    stop: Sequence[str] = ()
    stop_ids: frozenset[int] = frozenset()
    n_top: int = -1
    echo: bool = False
    taps: TapFactory = NO_TAPS
    sources: SharedSources = field(default_factory=SharedSources)
    grammar: GrammarState | None = None
    prompt_scores: list[TokenScore | None] = field(default_factory=list)
    cached_tokens: int = 0
    cancelled: bool = False
    failed: bool = False
    """an error ended it"""
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    """when the first and the last token came; 0 before"""
    last_token: float = 0.0
    # the engine's own
    state: SequenceState = field(init=False)
    writer: Writer = field(init=False)
    cache: Cache | None = field(init=False, default=None)
    window_start: int = field(init=False, default=0)
    edits_key: str = field(init=False, default="")
    """sequences with the same key are decoded together"""
    reads_alone: bool = field(init=False, default=False)
    """a pass that it shared with others failed, and its prompt is read by itself"""

    def begin(self, tokenizer: Tokenizer) -> None:
        """Make what follows the sequence's tokens and its text."""
        prompt, self.edits_key = tuple(self.prompt_ids), self.taps.edits_key()
        self.state = SequenceState(self.prompt, self.sample, self.seed, prompt)
        self.writer = Writer(self.state, "", list(prompt), tokenizer, self.stop)

    @property
    def newest(self) -> int:
        """The last token of the text so far."""
        return (self.state.generated or self.prompt_ids)[-1]

    def completes_grammar(self, token: int) -> bool:
        """Whether the text of the grammar is complete with this token, and nothing can follow it."""
        if self.grammar is None:
            return False
        self.grammar.push(token)
        return self.grammar.is_complete

    def fail(self, error: Exception) -> None:
        """Tell that this sequence has ended, and why."""
        self.failed = True
        self.emit(self, error)

    def cancel(self) -> None:
        """Give the sequence's row back before the next step."""
        self.cancelled = True


def token_scores(logits: Tensor, tokens: Sequence[int], n_top: int, n_known: int) -> list[TokenScore]:
    """log softmax of each row of logits [pos, n_vocab] at its token and at the `n_top` likeliest below `n_known`.

    Rows of the network that stand for no token have their share of the probability, and are not named; nor are tokens
    of probability 0, which a grammar does not allow.
    """
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    chosen = log_probs[torch.arange(len(tokens)), list(tokens)].tolist()
    if not n_top:
        return [TokenScore(token, log_prob) for token, log_prob in zip(tokens, chosen, strict=True)]
    known = log_probs[:, :n_known]
    top = known.topk(min(n_top, known.size(-1)))
    return [
        TokenScore(token, log_prob, tuple((i, v) for i, v in zip(ids, values, strict=True) if v > -math.inf))
        for token, log_prob, ids, values in zip(tokens, chosen, top.indices.tolist(), top.values.tolist(), strict=True)
    ]
