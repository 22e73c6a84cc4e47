"""A trained predictor with its tokenizer: texts go in, texts and probabilities come out."""

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pellucid.generate.decode import Decoding
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import SequenceState
from pellucid.generate.sampling import Sampling
from pellucid.generate.scoring import Score, ScoringError, token_pieces, why_not_comparable
from pellucid.generate.text import Generated, TextPiece, Writer, pieces
from pellucid.predictors.on_text import Progress, score_given, with_baselines
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import Tokenizer


@dataclass
class Predictor:
    """What `load_predictor` returns, used like a LanguageModel.

    network      forward(tokens [batch, pos]) -> logits [batch, pos, n_vocab]; log_probs(ids) -> float64 [n - 1]
    kind         ngram, neural-probabilistic, recurrent
    provenance   the folder, and the step of a run
    """

    network: nn.Module
    tokenizer: Tokenizer
    kind: str
    provenance: dict[str, Any]

    def generate(self, prompt: str = "", **options: Any) -> Generated:
        """One continuation of the prompt; the options are those of `stream`."""
        return self.generate_many(prompt, **options)[0]

    def generate_many(self, prompts: str | Sequence[str], **options: Any) -> list[Generated]:
        """n continuations of every prompt, those of the first prompt first."""
        ended = [piece for piece in self.stream(prompts, **options) if piece.result]
        ended.sort(key=lambda piece: (piece.prompt, piece.sample))
        return [piece.result for piece in ended if piece.result]

    def stream(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        n: int = 1,
        **sampling: Any,
    ) -> Iterator[TextPiece]:
        """Continue prompts together, as `pellucid.generate.stream_generate` does for a transformer.

        `sampling` are further fields of `Sampling`. Raises GenerationError, and UnseenContextError where
        maximum likelihood comes to a context that it never saw.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        for name, value, least in (("max_tokens", max_tokens, 0), ("n", n, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise GenerationError(f"{name} = {value!r}: expected a whole number of at least {least}")
        seed = secrets.randbits(32) if seed is None else seed
        encoded = [self.tokenizer.encode(text) or [self.tokenizer.separator] for text in texts]
        rows = [SequenceState(k, sample, seed, tuple(ids)) for k, ids in enumerate(encoded) for sample in range(n)]
        chosen = Sampling(temperature=temperature, **sampling)
        decoding = Decoding(self.network, rows, max_tokens, chosen, [self.tokenizer.separator], False, None)  # type: ignore[arg-type]
        decoding.reader = Reader(self.network)  # type: ignore[assignment]
        stops = [stop] if isinstance(stop, str) else list(stop)
        writers = [Writer(r, texts[r.prompt], encoded[r.prompt], self.tokenizer, stops) for r in decoding.rows]
        return pieces(decoding, writers)

    def score(
        self,
        text: str | os.PathLike,
        *,
        prefix: str = "",
        reading: ReadOptions | None = None,
        baselines: bool = False,
        progress: Progress | None = None,
    ) -> Score:
        """How probable a text, or the text of a file, is, by itself or after `prefix`, the separator being read first.

        `reading` says how a file is read, `baselines` adds what n-grams counted on the run's training text make of it
        (`pellucid.predictors.on_text`). Raises ScoringError where there is nothing to score, or maximum likelihood says
        nothing about a token.
        """
        found = score_given(lambda given: self._score(given, prefix), text, reading)
        return with_baselines(found, self.provenance.get("folder"), self.tokenizer, progress) if baselines else found

    def _score(self, text: str, prefix: str) -> Score:
        """The score of a text after a prefix.

        The border between prefix and text is drawn as `pellucid.generate.score_continuation` draws it.
        Raises ScoringError where there is nothing to score, or maximum likelihood says nothing about a token.
        """
        whole = prefix + text
        ids, border = self.tokenizer.encode(whole), len(self.tokenizer.encode(prefix.rstrip()))
        if len(ids) <= border:
            raise ScoringError("there is no token to score: give more text")
        given = np.array([self.tokenizer.separator, *ids])
        log_probs = self.log_probs(given)[border:]
        if np.isnan(log_probs).any():
            raise ScoringError(
                f"token {border + int(np.isnan(log_probs).argmax())} of the text stands in a context that was never "
                "seen, and maximum likelihood says nothing about it: train a smoothed predictor"
            )
        pieces = token_pieces(self.tokenizer, whole, ids)[border:]
        why = why_not_comparable(self.tokenizer, whole, ids, border)
        return Score(ids[border:], pieces, log_probs, 1 + border, tuple(given[: 1 + border].tolist()), why)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first given those before it, nats, float64 [len(ids) - 1]."""
        found: np.ndarray = self.network.log_probs(ids)  # type: ignore[operator]
        return found


class Reader:
    """The next logits of every text, from the last tokens that the predictor reads."""

    def __init__(self, network: Any):
        self.network, self.reach = network, max(int(network.reach), 1)

    def read(self, rows: Sequence[SequenceState]) -> torch.Tensor:
        """Logits of each row's next token, [rows, n_vocab]; rows of one length are read together."""
        kept = [[*row.given, *row.generated][-self.reach :] for row in rows]
        if len({len(tokens) for tokens in kept}) == 1:
            return self.next_logits(kept)
        return torch.cat([self.next_logits([tokens]) for tokens in kept])

    def next_logits(self, tokens: list[list[int]]) -> torch.Tensor:
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        return self.network(torch.tensor(tokens, device=device))[:, -1]

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows; there is nothing to copy."""
