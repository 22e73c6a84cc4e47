"""What every engine has: one thread that computes for one model, a queue, and rounds.

A round does a little for everybody: it admits waiting sequences, advances one job, and generates one token of every
sequence. The two subclasses say how: `BatchingEngine` decodes the sequences of a transformer together,
`StepwiseEngine` those of other models one after another. An engine by itself takes jobs alone, which is all that a
masked model is asked for.
"""

import threading
import time
import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.generate.errors import GenerationError, LogitsError
from pellucid.generate.readers import evaluation_mode
from pellucid.generate.sampling import choose_tokens, uniform
from pellucid.serve.generation import Generation, QueueFullError, StoppingError, TokenEvent, TooLargeError, token_scores
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: bounds of times in seconds, in the metrics
TIME_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
NONFINITE_LOGITS = "the network's logits hold NaN or infinity for this prompt, so no token can be chosen"
NO_FAILURES: Mapping[int, Exception] = {}
#: clients ask for so many tokens whatever the model; a text that outgrows a shorter context goes on in a moving window
LEAST_LIMIT = 4096


class Histogram:
    """How many observations were at most each bound; written by one thread and read by others."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = tuple(bounds)
        #: of each bound, and of what is above all of them, how many observations fell there
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus' cumulative buckets: each bound, and how many observations were at most that."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        total, cumulative = 0, []
        for name, count in zip(names, list(self.counts), strict=True):
            total += count
            cumulative.append((name, float(total)))
        return cumulative


class Engine:
    """The thread that computes for one model.

    n_ctx       the most tokens of a prompt
    max_rows    sequences that are generated at once, at most
    max_queue   sequences and jobs that may wait
    max_tokens  the most tokens of a generated text; unless given `n_ctx`, and no fewer than LEAST_LIMIT
    """

    #: why this model continues no text; "" where it does
    no_text = "this model fills masked tokens and does not continue a text: send it to /v1/fill"
    #: tokens looked up among earlier prompts, those found there, and the bytes of what is kept of them
    prefix_asked = prefix_reused = prefix_bytes = 0

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Tokenizer,
        *,
        n_ctx: int,
        n_vocab: int,
        max_rows: int = 64,
        max_queue: int = 256,
        max_tokens: int | None = None,
    ):
        self.network: Any = network
        self.tokenizer, self.n_ctx, self.n_vocab = tokenizer, n_ctx, n_vocab
        self.max_rows, self.max_queue = max_rows, max_queue
        self.max_tokens = max(n_ctx, LEAST_LIMIT) if max_tokens is None else max_tokens
        #: the ids below this have a row in the network and are a token of the tokenizer
        self.n_known = min(n_vocab, tokenizer.n_vocab)
        # a special token without a row of the embedding is never chosen
        self.n_allowed = tokenizer.n_vocab - sum(i >= n_vocab for i in tokenizer.special.values())
        self.waiting: deque[Generation] = deque()
        self.reading: deque[Generation] = deque()
        #: the sequences that the current round computes
        self.computed: list[Generation] = []
        self.jobs: deque[tuple[Iterator[None], Future]] = deque()
        self.generated_tokens = self.prompt_tokens = 0
        self.time_to_first_token, self.time_between_tokens = Histogram(TIME_BOUNDS), Histogram(TIME_BOUNDS)
        self.changed = threading.Condition()
        self.draining = self.stopped = False
        self.thread = threading.Thread(target=self.run, name="pellucid engine", daemon=True)

    # What other threads call -------------------------------------------------------------------------------------

    def start(self) -> None:
        # a large vocabulary's table of bytes is made when it is first asked for, which takes longer than a step
        self.tokenizer.token_bytes(0)
        self.thread.start()

    def check(self, generation: Generation) -> None:
        """Raise GenerationError or TooLargeError for a sequence that can never be served."""
        if self.no_text:
            raise GenerationError(self.no_text)
        n = len(generation.prompt_ids)
        if n > self.n_ctx:
            raise TooLargeError(
                f"the prompt has {n} tokens and this model's context is {self.n_ctx}: give at most {self.n_ctx}",
                "prompt",
            )
        if generation.max_tokens > self.max_tokens:
            raise TooLargeError(
                f"max_tokens = {generation.max_tokens}: this server generates at most {self.max_tokens} tokens for a "
                "request; ask for less, or start it with a larger --max-tokens",
                "max_tokens",
            )

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue all sequences, or none: raises QueueFullError, StoppingError, TooLargeError or GenerationError."""
        for generation in generations:
            self.check(generation)
            generation.begin(self.tokenizer)
        with self.changed:
            self.check_room(len(generations))
            self.waiting.extend(generations)
            self.changed.notify()

    def compute(self, steps: Iterator[Any]) -> Future:
        """The last thing that `steps` yields, which the engine's thread advances by one step a round."""
        future: Future = Future()
        with self.changed:
            self.check_room(1)
            self.jobs.append((steps, future))
            self.changed.notify()
        return future

    def check_room(self, n: int) -> None:
        """Raise for `n` more: QueueFullError where they have no room now, TooLargeError where they never have, and
        StoppingError where none are taken any more.
        """
        if n > self.max_queue:
            raise TooLargeError(
                f"the request makes {n} sequences, and this server's queue holds {self.max_queue}: send fewer at once",
                "prompt",
                "too_many_sequences",
            )
        if self.draining:
            raise StoppingError("the server is shutting down: send the request to another one")
        waiting = len(self.waiting) + len(self.jobs)
        if waiting + n > self.max_queue:
            raise QueueFullError(f"{waiting} sequences wait already: try again later")

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
        """Rounds, until the engine is stopped."""
        while True:
            with self.changed:
                while not self.busy and not self.draining and not self.stopped:
                    self.changed.wait()
                if self.stopped or (self.draining and not self.busy):
                    break
            with evaluation_mode(self.network):
                try:
                    self.round()
                except Exception as error:
                    self.round_failed(error)
        stopped = StoppingError("the server stopped before this request was finished")
        for generation in [*self.waiting, *self.running()]:
            generation.emit(generation, stopped)
        for _, future in self.jobs:
            if future.set_running_or_notify_cancel():
                future.set_exception(stopped)

    def running(self) -> list[Generation]:
        """The sequences that have a row."""
        return list(self.reading)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.jobs or self.running())

    def round(self) -> None:
        """Drop what was cancelled, admit what waits, advance a job, and generate."""
        self.drop_cancelled()
        with self.changed:
            while self.waiting and len(self.running()) < self.max_rows and self.has_room(self.waiting[0]):
                self.admit(self.waiting.popleft())
        self.computed = self.running()
        if self.jobs:
            self.advance_job()
        self.generate_round()
        self.computed = []

    def round_failed(self, error: Exception) -> None:
        """A round failed outside of what it does for one sequence: end all that it computed, and serve others.

        Where it computed none, what waits is ended, since the next round would fail in the same way.
        """
        traceback.print_exception(error)
        ended, jobs = list(dict.fromkeys([*self.computed, *self.running()])), []
        self.forget_running()
        if not ended:
            with self.changed:
                ended, jobs = list(self.waiting), list(self.jobs)
                self.waiting.clear()
                self.jobs.clear()
        for generation in ended:
            generation.fail(error)
        for _, future in jobs:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def forget_running(self) -> None:
        """Give all rows back, whatever state a round has left them in."""
        self.computed = []
        self.reading.clear()

    def has_room(self, generation: Generation) -> bool:
        """Whether there is memory for one sequence more."""
        return True

    def admit(self, generation: Generation) -> None:
        """Give a sequence a row."""
        self.reading.append(generation)

    def generate_round(self) -> None:
        """One token more of each sequence; nothing where jobs are all there is."""

    def drop_cancelled(self) -> None:
        """Give back what clients no longer want."""
        with self.changed:
            self.waiting = deque(g for g in self.waiting if not g.cancelled)
            self.jobs = deque(job for job in self.jobs if not job[1].cancelled())
        self.reading = deque(g for g in self.reading if not g.cancelled)

    def advance_job(self) -> None:
        """One step of the first job; the next round advances the next one."""
        with self.changed:
            steps, future = self.jobs.popleft()
        try:
            value = next(steps)
        except Exception as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if value is None:
            with self.changed:
                self.jobs.append((steps, future))
        elif future.set_running_or_notify_cancel():
            future.set_result(value)

    # Tokens ------------------------------------------------------------------------------------------------------

    def advance(
        self, generations: Sequence[Generation], logits: Tensor, failures: Mapping[int, Exception] = NO_FAILURES
    ) -> list[bool]:
        """Choose the next token of each row, and tell each sequence; whether each goes on.

        `failures` has what went wrong in rows that have no logits. What fails for one sequence ends that one alone.
        """
        errors: dict[int, Exception] = dict(failures)
        for row, is_finite in enumerate(torch.isfinite(logits[:, : self.n_allowed].amax(-1)).tolist()):
            if not is_finite:
                errors.setdefault(row, LogitsError(NONFINITE_LOGITS))
        logits = self.mask_by_grammars(generations, logits, errors)
        tokens = [0] * len(generations)
        for sampling in {g.sampling for g in generations}:
            rows = [r for r, g in enumerate(generations) if g.sampling == sampling and r not in errors]
            try:
                chosen = self.choose(generations, logits, rows)
            except Exception:
                chosen = [self.choose_one(generations, logits, row, errors) for row in rows]
            for row, token in zip(rows, chosen, strict=True):
                tokens[row] = token
        goes_on = []
        for row, (generation, token) in enumerate(zip(generations, tokens, strict=True)):
            try:
                if row in errors:
                    raise errors[row]
                goes_on.append(self.add_token(generation, token, logits[row]))
            except Exception as error:
                generation.fail(error)
                goes_on.append(False)
        return goes_on

    def mask_by_grammars(
        self, generations: Sequence[Generation], logits: Tensor, errors: dict[int, Exception]
    ) -> Tensor:
        """The logits, minus infinity for tokens that a row's grammar does not allow; where it allows none, the error is
        noted. Rows without a grammar are unchanged.
        """
        by_row = {row: g.grammar for row, g in enumerate(generations) if g.grammar is not None and row not in errors}
        masked = logits.clone() if by_row else logits
        for row, grammar in by_row.items():
            try:
                allowed = grammar.allowed()[: logits.size(1)].to(logits.device)
                masked[row] = -torch.inf
                masked[row, : len(allowed)] = logits[row, : len(allowed)].where(allowed, -torch.inf)
            except Exception as error:
                errors[row] = error
        return masked

    def choose(self, generations: Sequence[Generation], logits: Tensor, rows: Sequence[int]) -> list[int]:
        """The next tokens of some rows, which are sampled alike."""
        if not rows:
            return []
        some = [generations[row] for row in rows]
        return choose_tokens(
            logits if len(rows) == len(logits) else logits[rows],
            some[0].sampling,
            [uniform(g.seed, g.sample, len(g.state.generated)) for g in some],
            [g.state.given for g in some],
            [g.state.generated for g in some],
            self.n_allowed,
        ).tolist()

    def choose_one(
        self, generations: Sequence[Generation], logits: Tensor, row: int, errors: dict[int, Exception]
    ) -> int:
        """The next token of one row; where none can be chosen, the error is noted."""
        try:
            return self.choose(generations, logits, [row])[0]
        except Exception as error:
            errors[row] = error
            return 0

    def add_token(self, generation: Generation, token: int, logits: Tensor) -> bool:
        """Append a token to its sequence and emit it; whether the sequence goes on."""
        state = generation.state
        state.generated.append(token)
        self.note_time(generation)
        if token in self.tokenizer.ends or token in generation.stop_ids:
            state.finish_reason = "end"
        elif generation.completes_grammar(token):
            state.finish_reason = "stop"
        elif len(state.generated) == generation.max_tokens:
            state.finish_reason = "length"
        text = generation.writer.push(token)
        if generation.writer.stops.stopped:
            state.finish_reason = "stop"
        n_top = generation.n_top
        score = token_scores(logits[None], [token], n_top, self.n_known)[0] if n_top >= 0 else None
        generation.emit(generation, TokenEvent(token, text, score, state.finish_reason))
        return state.finish_reason is None

    def finish_empty(self, generation: Generation) -> None:
        """A request for no tokens: its prompt was scored, and that is all."""
        generation.first_token = generation.last_token = time.monotonic()
        generation.emit(generation, TokenEvent(None, "", None, "length"))

    def note_time(self, generation: Generation) -> None:
        """Count a token, and how long it took."""
        now = time.monotonic()
        self.generated_tokens += 1
        if generation.first_token:
            self.time_between_tokens.observe(now - generation.last_token)
        else:
            generation.first_token = now
            self.time_to_first_token.observe(now - generation.arrived)
        generation.last_token = now
