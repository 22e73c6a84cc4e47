"""Sequences whose steps are not batched: one token of each in a round, each with a reader of its own.

So are generated the texts of predictors (n-grams, neural probabilistic and recurrent ones, mixtures with a transformer)
and of encoder-decoders. The readers are those of `pellucid.generate`, and so are the numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.generate.choose_reader import GenerationRequest, check_weight_format, choose_weights
from pellucid.generate.encoder_inputs import read_sources
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import NO_TAPS, CachedReader
from pellucid.model import Transformer
from pellucid.predictors.predictor import Predictor, Reader
from pellucid.serve.batch_cache import bytes_of_row, rows_in
from pellucid.serve.batching import MANY_TOKENS
from pellucid.serve.engine import Engine
from pellucid.serve.generation import Generation, TooLargeError, token_scores
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: the most tokens of a predictor's prompt, of which it reads the last ones alone
LONGEST_PROMPT = 4096
#: positions of a prompt whose probabilities are computed at once
POSITIONS_AT_ONCE = 128


class StepwiseEngine(Engine):
    """Generates a token of each sequence in turn. `reader_for` makes what reads a sequence: read([state]) -> logits."""

    no_text = ""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.decoding: list[Generation] = []
        self.readers: dict[int, Any] = {}

    def reader_for(self, generation: Generation) -> Any:
        """What gives the logits of a sequence's next token."""
        raise NotImplementedError

    def prompt_logits(self, generation: Generation) -> Iterator[Tensor]:
        """The logits [pos, n_vocab] of the prompt's tokens after the first, a few at a time."""
        raise NotImplementedError

    def admit(self, generation: Generation) -> None:
        self.decoding.append(generation)

    def running(self) -> list[Generation]:
        return [*super().running(), *self.decoding]

    def drop_cancelled(self) -> None:
        super().drop_cancelled()
        self.keep([g for g in self.decoding if not g.cancelled])

    def forget_running(self) -> None:
        super().forget_running()
        self.keep([])

    def keep(self, generations: list[Generation]) -> None:
        """Go on with these sequences."""
        self.decoding = generations
        self.readers = {id(g): self.readers[id(g)] for g in generations if id(g) in self.readers}

    def generate_round(self) -> None:
        going = []
        for generation in self.decoding:
            try:
                if self.step(generation):
                    going.append(generation)
            except Exception as error:
                generation.fail(error)
        self.keep(going)

    def step(self, generation: Generation) -> bool:
        """One token more; whether the sequence goes on."""
        if id(generation) not in self.readers:
            self.prompt_tokens += len(generation.prompt_ids)
            if generation.echo:
                self.score_prompt(generation)
            if generation.max_tokens == 0:
                self.finish_empty(generation)
                return False
            self.readers[id(generation)] = self.reader_for(generation)
        logits = self.readers[id(generation)].read([generation.state])
        return self.advance([generation], logits)[0]

    def score_prompt(self, generation: Generation) -> None:
        """log P of the prompt's tokens; None for the first one, which nothing predicts."""
        scores, ids = [], list(generation.prompt_ids)
        for logits in self.prompt_logits(generation):
            targets = ids[len(scores) + 1 : len(scores) + 1 + len(logits)]
            scores += token_scores(logits[: len(targets)], targets, max(0, generation.n_top), self.n_known)
        generation.prompt_scores = [None, *scores]


class PredictorEngine(StepwiseEngine):
    """The engine of an n-gram, a neural probabilistic or a recurrent predictor, or of a mixture."""

    def __init__(
        self, predictor: Predictor, *, max_tokens: int | None = None, max_rows: int = 64, max_queue: int = 256
    ):
        network: Any = predictor.network
        choices = network.choices
        #: whether a prediction reads a window, which moves, and not a fixed number of tokens
        self.reads_windows = hasattr(choices, "n_ctx")
        super().__init__(
            network,
            predictor.tokenizer,
            n_ctx=LONGEST_PROMPT,
            n_vocab=choices.n_vocab,
            max_rows=max_rows,
            max_queue=max_queue,
            max_tokens=max_tokens,
        )
        self.n_allowed = self.n_known

    def check(self, generation: Generation) -> None:
        super().check(generation)
        if generation.taps is not NO_TAPS:
            raise GenerationError("edits: this model is no transformer, so it has no tensors to edit; leave edits out")
        n = len(generation.prompt_ids)
        if generation.echo and self.reads_windows and n > (longest := self.network.choices.n_ctx):
            raise TooLargeError(
                f"the prompt has {n} tokens, and this model scores at most {longest} in one window: give a shorter one",
                "prompt",
            )

    def reader_for(self, generation: Generation) -> Reader:
        return Reader(self.network)

    def prompt_logits(self, generation: Generation) -> Iterator[Tensor]:
        ids, reach = list(generation.prompt_ids), int(self.network.reach)
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        at_once = len(ids) if self.reads_windows else POSITIONS_AT_ONCE
        for begin in range(0, len(ids) - 1, at_once):
            first = max(0, begin - reach)
            yield self.network(torch.tensor([ids[first : begin + at_once]], device=device))[0, begin - first :]


class EncoderDecoderEngine(StepwiseEngine):
    """The engine of a transformer that reads a source and generates a target; options as for `BatchingEngine`."""

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        *,
        weights: str = "auto",
        memory: int = 2**30,
        max_rows: int = 64,
        max_queue: int = 256,
        max_tokens: int | None = None,
    ):
        a = network.architecture
        assert a.encoder is not None
        # the keys and values of the target, and of the source, which every layer reads
        row_bytes = bytes_of_row(network) * (1 + a.encoder.n_ctx / a.n_ctx)
        rows = rows_in(memory, int(row_bytes), max_rows, a.n_ctx)
        sizes = {"n_ctx": a.n_ctx, "n_vocab": a.n_vocab, "max_rows": rows}
        super().__init__(network, tokenizer, **sizes, max_queue=max_queue, max_tokens=max_tokens)
        self.loaded, self.weights = network, weights
        self.network, self.weights_line = choose_weights(GenerationRequest(network, MANY_TOKENS), weights)

    def check(self, generation: Generation) -> None:
        check_weight_format(self.weights, GenerationRequest(self.loaded, MANY_TOKENS, taps=generation.taps))
        super().check(generation)

    def reader_for(self, generation: Generation) -> Any:
        edited = generation.taps is not NO_TAPS
        network = self.loaded if edited else self.network
        longest = len(generation.prompt_ids) + generation.max_tokens
        return CachedReader(network, longest, generation.sources.get(), generation.taps)

    def prompt_logits(self, generation: Generation) -> Iterator[Tensor]:
        ids, edited = list(generation.prompt_ids), generation.taps is not NO_TAPS
        network: Transformer = self.loaded if edited else self.network
        tokens = torch.tensor([ids], device=network.embed.token.weight.device)
        inputs = generation.sources.get().of([generation.prompt], len(ids))
        tap = generation.taps.of([generation.prompt], [0], [len(ids)], len(ids), len(ids))
        yield network(tokens, tap=tap, **inputs)[0]


def encode_sources_together(
    engine: EncoderDecoderEngine, sources: Sequence[Sequence[int]], taps: Any
) -> Callable[[], Any]:
    """What reads all sources of a request in one pass, on the weights that its edits work on."""
    network = engine.network if taps is NO_TAPS else engine.loaded
    return lambda: read_sources(network, sources, len(sources), taps.of_sources)
