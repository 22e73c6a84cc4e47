"""Continuous batching: one thread reads prompts in chunks and decodes all sequences that go on, one token each a round.

A round admits waiting sequences, reads at most one chunk of one prompt, and decodes one token of every sequence whose
prompt has been read. A long prompt therefore delays the others by one chunk at most, and a sequence that is finished or
cancelled leaves before the next round. Each sequence draws with its own seed (`pellucid.generate.sampling.uniform`),
its window moves as in `pellucid.generate`, and what is computed for one row reads no other row: tokens and
log-probabilities are those of `LanguageModel.generate` and `score`, whoever else is served.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.generate.readers import SequenceState, check_readable, evaluation_mode, prefix_length, visible_keys
from pellucid.generate.sampling import Sampling, choose_tokens, uniform
from pellucid.generate.text import Writer
from pellucid.model import Cache, Transformer
from pellucid.serve.batch_cache import BatchCache, bytes_of_row
from pellucid.serve.prefix_cache import PrefixCache
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: prompt tokens that are read between two decoding steps
CHUNK = 256


class QueueFullError(RuntimeError):
    """More requests wait than the queue holds; try again later."""


class TooLargeError(GenerationError):
    """A request that can never be served: it does not fit into the context."""


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


@dataclass(eq=False)
class Generation:
    """A sequence in the engine: what was asked for, and how far it is.

    emit      called in the engine's thread with a TokenEvent, or with the exception that ended the sequence; it does
              not raise
    n_top     how many of the likeliest tokens each event names; -1 computes no log-probabilities at all
    echo      log-probabilities of the prompt's tokens are wanted too: `prompt_scores`, None for the first token
    """

    prompt_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int
    seed: int
    emit: Callable[["Generation", TokenEvent | Exception], None]
    sample: int = 0
    stop: Sequence[str] = ()
    n_top: int = -1
    echo: bool = False
    prompt_scores: list[TokenScore | None] = field(default_factory=list)
    cached_tokens: int = 0
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)
    #: when the first and the last token came; 0 before
    first_token: float = 0.0
    last_token: float = 0.0
    # the engine's own
    state: SequenceState = field(init=False)
    writer: Writer = field(init=False)
    cache: Cache | None = field(init=False, default=None)
    window_start: int = field(init=False, default=0)

    def cancel(self) -> None:
        """Give the sequence's row back before the next step."""
        self.cancelled = True


class Engine:
    """The thread that computes for one model.

    memory      bytes that keys and values of running sequences may take; decides how many rows there are
    max_rows    sequences that are decoded together at most
    max_queue   sequences that may wait
    prefixes    bytes of keys and values that are kept of earlier prompts
    """

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        *,
        memory: int = 2**30,
        max_rows: int = 64,
        max_queue: int = 256,
        prefixes: int = 2**28,
        chunk: int = CHUNK,
    ):
        check_readable(network)
        rows = min(max_rows, memory // bytes_of_row(network))
        if rows < 1:
            raise GenerationError(
                f"{memory:,} bytes hold the keys and values of no sequence of {network.architecture.n_ctx} tokens: "
                f"give at least {bytes_of_row(network):,}"
            )
        self.network, self.tokenizer, self.chunk, self.max_queue = network, tokenizer, chunk, max_queue
        self.n_ctx = network.architecture.n_ctx
        self.n_allowed = tokenizer.n_vocab - sum(i >= network.architecture.n_vocab for i in tokenizer.special.values())
        self.batch, self.prefixes = BatchCache(network, rows), PrefixCache(network, prefixes)
        self.waiting: deque[Generation] = deque()
        self.reading: deque[Generation] = deque()
        #: the sequences of the batch's rows
        self.decoding: list[Generation] = []
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.changed = threading.Condition()
        self.draining = self.stopped = False
        self.thread = threading.Thread(target=self.run, name="pellucid engine", daemon=True)

    # What other threads call -------------------------------------------------------------------------------------

    def start(self) -> None:
        self.thread.start()

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue sequences; raises QueueFullError, TooLargeError or GenerationError and queues none of them."""
        for generation in generations:
            n = len(generation.prompt_ids)
            if n > self.n_ctx:
                raise TooLargeError(
                    f"the prompt has {n} tokens and this model's context is {self.n_ctx}: give at most {self.n_ctx}"
                )
            prompt = tuple(generation.prompt_ids)
            generation.state = SequenceState(0, generation.sample, generation.seed, prompt)
            generation.writer = Writer(generation.state, "", list(prompt), self.tokenizer, generation.stop)
        with self.changed:
            if self.draining:
                raise QueueFullError("the server is shutting down: send the request to another one")
            if len(self.waiting) + len(generations) > self.max_queue:
                raise QueueFullError(f"{len(self.waiting)} sequences wait already: try again later")
            self.waiting.extend(generations)
            self.changed.notify()

    def drain(self, seconds: float) -> None:
        """Take no more requests, let what is running finish for so many seconds, then end it."""
        with self.changed:
            self.draining = True
            self.changed.notify()
        self.thread.join(seconds)
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join()

    # The engine's thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Rounds, until told to stop."""
        while True:
            with self.changed:
                while not self.busy and not self.draining and not self.stopped:
                    self.changed.wait()
                if self.stopped or (self.draining and not self.busy):
                    break
            with evaluation_mode(self.network):
                self.round()
        for generation in [*self.waiting, *self.reading, *self.decoding]:
            generation.emit(generation, QueueFullError("the server stopped before this request was finished"))

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.reading or self.decoding)

    def round(self) -> None:
        """Admit, read a chunk, decode a token of every row."""
        self.drop_cancelled()
        with self.changed:
            while self.waiting and len(self.reading) + len(self.decoding) < self.batch.max_rows:
                self.reading.append(self.waiting.popleft())
        if self.reading:
            generation = self.reading.popleft()
            try:
                if not self.read_chunk(generation):
                    self.reading.append(generation)
            except Exception as error:
                generation.emit(generation, error)
        if self.decoding:
            try:
                self.decode()
            except Exception as error:
                # a step that all rows share: none of them can go on, and the next requests start with an empty batch
                for generation in self.decoding:
                    generation.emit(generation, error)
                self.decoding = []
                self.batch.clear()

    def drop_cancelled(self) -> None:
        with self.changed:
            self.waiting = deque(g for g in self.waiting if not g.cancelled)
        self.reading = deque(g for g in self.reading if not g.cancelled)
        for row in reversed([row for row, g in enumerate(self.decoding) if g.cancelled]):
            self.leave(row)

    def leave(self, row: int) -> None:
        """Take a sequence out of the batch; the last row takes its place."""
        self.batch.leave(row)
        self.decoding[row] = self.decoding[-1]
        self.decoding.pop()

    def read_chunk(self, generation: Generation) -> bool:
        """Read the next chunk of a window, and join the batch at its end. True when the whole window has been read."""
        start, tokens = generation.state.window(self.n_ctx)
        cache = generation.cache
        if cache is None:
            generation.window_start = start
            fresh = Cache(
                self.network.architecture,
                1,
                len(tokens),
                dtype=self.batch.cache.store.dtype,
                device=self.batch.cache.store.device,
            )
            reuse = not start and not generation.echo
            cache = generation.cache = self.prefixes.start(tokens, len(tokens)) if reuse else fresh
            generation.cached_tokens = max(generation.cached_tokens, cache.length)
        prefix = prefix_length(self.network, generation.state, start)
        # a prefix is read from both sides, so it is read at once
        n = len(tokens) - cache.length if prefix else min(self.chunk, len(tokens) - cache.length)
        chunk = torch.tensor([tokens[cache.length : cache.length + n]], device=cache.store.device)
        mask = visible_keys([len(tokens)], [prefix], chunk.device) if prefix else None
        begin = cache.length
        stream = self.network.hidden(chunk, mask=mask, cache=cache)
        self.prompt_tokens += n
        if generation.echo and not generation.state.generated:
            self.score_prompt(generation, tokens, begin, self.network.unembed(stream)[0])
        if cache.length < len(tokens):
            return False
        generation.cache = None
        if not start:
            self.prefixes.keep(tokens, cache)
        if generation.max_tokens == 0:
            self.finish_empty(generation)
            return True
        logits = self.network.unembed(stream[:, -1:])[:, 0]
        if self.advance([generation], logits)[0]:
            if self.window_moves(generation):
                self.reading.append(generation)
            else:
                self.batch.join(cache)
                self.decoding.append(generation)
        return True

    def finish_empty(self, generation: Generation) -> None:
        """A request for no tokens: its prompt was scored, and that is all."""
        generation.first_token = generation.last_token = time.monotonic()
        generation.emit(generation, TokenEvent(None, "", None, "length"))

    def score_prompt(self, generation: Generation, tokens: Sequence[int], begin: int, logits: Tensor) -> None:
        """log P of the prompt's tokens that this chunk's logits [pos, n_vocab] predict."""
        if not generation.prompt_scores:
            generation.prompt_scores.append(None)
        targets = tokens[begin + 1 : begin + 1 + len(logits)]
        scores = token_scores(logits[: len(targets)], targets, max(0, generation.n_top))
        generation.prompt_scores.extend(scores)

    def decode(self) -> None:
        """One token more of every row."""
        logits = self.batch.step([g.state.generated[-1] for g in self.decoding])
        goes_on = self.advance(self.decoding, logits)
        for row in reversed(range(len(self.decoding))):
            generation = self.decoding[row]
            if not goes_on[row]:
                if self.prefixes.budget and not generation.window_start:
                    read = [*generation.state.given, *generation.state.generated]
                    self.prefixes.keep(read, self.batch.copy_row(row))
                self.leave(row)
            elif self.window_moves(generation):
                # the older half of the window is dropped and the rest is read afresh, as `generate` does
                self.leave(row)
                self.reading.append(generation)

    def window_moves(self, generation: Generation) -> bool:
        """Whether the next token is read in another window than the one in the cache."""
        return generation.state.window(self.n_ctx)[0] != generation.window_start

    def advance(self, generations: Sequence[Generation], logits: Tensor) -> list[bool]:
        """Choose the next token of each row, and tell each sequence; whether each goes on."""
        finite = torch.isfinite(logits[:, : self.n_allowed].amax(-1)).tolist()
        tokens = [0] * len(generations)
        for sampling in {g.sampling for g in generations}:
            rows = [r for r, g in enumerate(generations) if g.sampling == sampling and finite[r]]
            if rows:
                chosen = choose_tokens(
                    logits[rows] if len(rows) < len(generations) else logits,
                    sampling,
                    [
                        uniform(generations[r].seed, generations[r].sample, len(generations[r].state.generated))
                        for r in rows
                    ],
                    [generations[r].state.given for r in rows],
                    [generations[r].state.generated for r in rows],
                    self.n_allowed,
                )
                for r, token in zip(rows, chosen.tolist(), strict=True):
                    tokens[r] = token
        no_numbers = LogitsError("the network's logits hold NaN or infinity for this prompt, so no token can be chosen")
        goes_on = []
        for r, (generation, token) in enumerate(zip(generations, tokens, strict=True)):
            try:
                if not finite[r]:
                    raise no_numbers
                goes_on.append(self.tell(generation, token, logits[r]))
            except Exception as error:
                # what fails in one sequence ends that one alone
                generation.emit(generation, error)
                goes_on.append(False)
        return goes_on

    def tell(self, generation: Generation, token: int, logits: Tensor) -> bool:
        """Append a token to its sequence and emit it; whether the sequence goes on."""
        state = generation.state
        state.generated.append(token)
        self.generated_tokens += 1
        generation.last_token = time.monotonic()
        generation.first_token = generation.first_token or generation.last_token
        if token in self.tokenizer.ends:
            state.finish_reason = "end"
        elif len(state.generated) == generation.max_tokens:
            state.finish_reason = "length"
        text = generation.writer.push(token)
        if generation.writer.stops.stopped:
            state.finish_reason = "stop"
        score = token_scores(logits[None], [token], generation.n_top)[0] if generation.n_top >= 0 else None
        generation.emit(generation, TokenEvent(token, text, score, state.finish_reason))
        return state.finish_reason is None


def token_scores(logits: Tensor, tokens: Sequence[int], n_top: int) -> list[TokenScore]:
    """log softmax of each row of logits [pos, n_vocab] at its token and at the `n_top` likeliest ones."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    chosen = log_probs[torch.arange(len(tokens)), list(tokens)].tolist()
    if not n_top:
        return [TokenScore(token, log_prob) for token, log_prob in zip(tokens, chosen, strict=True)]
    top = log_probs.topk(min(n_top, log_probs.size(-1)))
    return [
        TokenScore(token, log_prob, tuple(zip(ids, values, strict=True)))
        for token, log_prob, ids, values in zip(tokens, chosen, top.indices.tolist(), top.values.tolist(), strict=True)
    ]
