"""A trained predictor with its tokenizer: it generates and scores text."""

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack, cast, overload

import numpy as np
import torch
from torch import nn

from pellucid.generate.decode import Decoding
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import SequenceState
from pellucid.generate.scoring import CorpusScore, Score, ScoringError, token_pieces, why_not_comparable
from pellucid.generate.text import (
    TEMPERATURE,
    DrawOptions,
    Generated,
    TextPiece,
    Writer,
    check_single,
    sampling_of,
    stream_pieces,
)
from pellucid.predictors.on_text import Progress, ScoreTextOptions, count_on_run, score_given
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import Tokenizer


class PredictorGenerateOptions(DrawOptions, total=False):
    """How a predictor generates text; `Predictor.stream` holds the defaults."""

    max_tokens: int
    stop: str | Sequence[str]
    seed: int | None


@dataclass
class Predictor:
    """An n-gram, a neural probabilistic or a recurrent predictor with its tokenizer, used like a LanguageModel.

    network      forward(tokens [batch, pos]) -> logits [batch, pos, n_vocab]; last(tokens) -> [batch, n_vocab], those
                 of the last position; log_probs(ids) -> float64 [n - 1]
    kind         ngram, neural-probabilistic, recurrent, mixture
    provenance   the folder, and the step of a run; of a mixture also the n-gram's folder and the network's share
    """

    network: nn.Module
    tokenizer: Tokenizer
    kind: str
    provenance: dict[str, Any]

    def generate(self, prompt: str = "", **options: Unpack[PredictorGenerateOptions]) -> Generated:
        """Generate one text from the prompt; the options are those of `stream`."""
        check_single(prompt, options)
        return self.generate_many(prompt, **options)[0]

    def generate_many(
        self, prompts: str | Sequence[str], *, n: int = 1, **options: Unpack[PredictorGenerateOptions]
    ) -> list[Generated]:
        """Generate n texts from every prompt, those of the first prompt first."""
        finished = [piece for piece in self.stream(prompts, n=n, **options) if piece.result]
        finished.sort(key=lambda piece: (piece.prompt, piece.sample))
        return [piece.result for piece in finished if piece.result]

    def stream(
        self,
        prompts: str | Sequence[str],
        *,
        n: int = 1,
        max_tokens: int = 200,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        **draw: Unpack[DrawOptions],
    ) -> Iterator[TextPiece]:
        """Continue all prompts in one batch and yield the text piece by piece (`pellucid.generate.stream_generate`).

        `draw` says how tokens are chosen (`pellucid.generate.text.DrawOptions`). Raises GenerationError, and
        UnseenContextError where a maximum-likelihood predictor meets a context that was not in its training text.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        for name, value, least in (("max_tokens", max_tokens, 0), ("n", n, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise GenerationError(f"{name} = {value!r}: expected a whole number of at least {least}")
        seed = secrets.randbits(32) if seed is None else seed
        encoded = [self.tokenizer.prompt_ids(self.tokenizer.encode(text)) for text in texts]
        rows = [SequenceState(k, sample, seed, tuple(ids)) for k, ids in enumerate(encoded) for sample in range(n)]
        decoding = Decoding(
            self.network,
            Reader(self.network),
            rows,
            max_tokens=max_tokens,
            sampling=sampling_of(draw, TEMPERATURE),
            stop_ids=self.tokenizer.ends,
            # a network may have more rows than the tokenizer has ids, or fewer
            n_allowed=min(cast(Any, self.network).choices.n_vocab, self.tokenizer.n_vocab),
        )
        stops = [stop] if isinstance(stop, str) else list(stop)
        writers = [Writer(r, texts[r.prompt], encoded[r.prompt], self.tokenizer, stops) for r in decoding.rows]
        return stream_pieces(decoding, writers)

    @overload
    def score(self, text: str, **options: Unpack[ScoreTextOptions]) -> Score: ...
    @overload
    def score(self, text: os.PathLike, **options: Unpack[ScoreTextOptions]) -> Score | CorpusScore: ...
    def score(
        self,
        text: str | os.PathLike,
        *,
        prefix: str = "",
        reading: ReadOptions | None = None,
        baselines: bool = False,
        progress: Progress | None = None,
    ) -> Score | CorpusScore:
        """How probable a text is, by itself or as the continuation of `prefix`; `Tokenizer.opening` is read first.

        text       a string; or the pathlib.Path of a file or folder, which is read as training reads it: of several
                   documents, each is scored by itself, and the result is a CorpusScore
        reading    how such a file is read: its field, its format, its encoding
        baselines  also score n-grams that are counted on the training text of the run that this predictor is from
        progress   progress(stage, done, total) is called during long steps

        Raises ScoringError where there is no token to score, or where a maximum-likelihood predictor meets a context
        that was not in its training text.
        """
        count = partial(count_on_run, self.provenance, self.tokenizer, progress) if baselines else None
        return score_given(lambda text: self._score(text, prefix), text, reading, progress, count)

    def _score(self, text: str, prefix: str) -> Score:
        """The score of a text after a prefix.

        The first token of the text is found as in `pellucid.generate.score`. Raises ScoringError where
        there is nothing to score, or maximum likelihood has no prediction for a token.
        """
        full_text = prefix + text
        ids, border = self.tokenizer.encode(full_text), len(self.tokenizer.encode(prefix.rstrip()))
        if len(ids) <= border:
            raise ScoringError("there is no token to score: give more text")
        opening = self.tokenizer.opening
        read_ids, start = np.array([*opening, *ids]), len(opening) + border
        log_probs = self.log_probs(read_ids)[start - 1 :]
        if np.isnan(log_probs).any():
            raise ScoringError(
                f"token {border + int(np.isnan(log_probs).argmax())} of the text has a context that training did not "
                "have, for which maximum likelihood has no prediction: train a smoothed predictor"
            )
        pieces = token_pieces(self.tokenizer, full_text, ids)[border:]
        why = why_not_comparable(self.tokenizer, full_text, ids, border)
        return Score(ids[border:], pieces, log_probs, start, tuple(read_ids[:start].tolist()), why)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first given those before it, nats, float64 [len(ids) - 1]."""
        return cast(Any, self.network).log_probs(ids)


class Reader:
    """The next logits of every text, from the last tokens that the predictor reads."""

    def __init__(self, network: Any):
        self.network, self.reach = network, max(int(network.reach), 1)

    def read(self, rows: Sequence[SequenceState]) -> torch.Tensor:
        """Logits of each row's next token, [rows, n_vocab]; rows of one length are read together."""
        contexts = [[*row.given, *row.generated][-self.reach :] for row in rows]
        if len({len(tokens) for tokens in contexts}) == 1:
            return self.next_logits(contexts)
        return torch.cat([self.next_logits([tokens]) for tokens in contexts])

    def next_logits(self, tokens: list[list[int]]) -> torch.Tensor:
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        return self.network.last(torch.tensor(tokens, device=device))

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows; there is nothing to copy."""
