"""A text as an n-gram, a neural probabilistic or a recurrent predictor reads it: the counterpart of a trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.lens.core.inputs import InputError, Inputs
from pellucid.predictors.mixture import Counted, NGramMixture
from pellucid.predictors.ngram import NGram, UnseenContextError
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recurrent import RecurrentOptions
from pellucid.text.tokenizers.base import Tokenizer

#: tokens of one text that are read at most
MOST_TOKENS = 1024
#: positions whose predictions are computed together
POSITIONS_AT_ONCE = 64


@dataclass(frozen=True)
class PredictorTrace:
    """One text in a predictor. Predictions are computed when they are asked for, and are the predictor's own.

    ids  what it read, int64 [1, n]
    """

    predictor: Predictor
    ids: Tensor

    @property
    def tokenizer(self) -> Tokenizer:
        """The predictor's tokenizer."""
        return self.predictor.tokenizer

    @property
    def inputs(self) -> Inputs:
        """The one row that was read, as `Trace.inputs`."""
        return Inputs(self.ids, (self.ids.size(1),))

    @property
    def nbytes(self) -> int:
        """Bytes that this keeps."""
        return self.ids.nbytes

    @property
    def ngram(self) -> NGram | None:
        """The counts, where the predictor is an n-gram or is mixed with one."""
        network: Any = self.predictor.network
        counted = network.counted if isinstance(network, NGramMixture) else network
        return counted.ngram if isinstance(counted, Counted) else None

    def position(self, pos: int) -> int:
        """A position counted from the front. Raises IndexError where there is none."""
        n = self.ids.size(1)
        if not -n <= pos < n:
            raise IndexError(f"position {pos}: there are {n}, numbered from 0")
        return pos % n

    def surprisal(self) -> Tensor:
        """-log2 P of each token after the first, given those before it, in bits: float64 [1, n - 1].

        NaN where maximum likelihood says nothing.
        """
        return torch.from_numpy(-self.predictor.log_probs(self.ids[0].numpy()) / math.log(2))[None]

    def logits(self, first: int, last: int) -> Tensor:
        """Logits of the token after each of the positions first ... last - 1, [last - first, n_vocab].

        Those of counts are log-probabilities; a row is NaN where maximum likelihood says nothing.
        """
        network: Any = self.predictor.network
        try:
            return self._read(network, first, last)
        except UnseenContextError:
            if last - first == 1:
                return torch.full((1, network.choices.n_vocab), math.nan, dtype=torch.float64)
            return torch.cat([self.logits(pos, pos + 1) for pos in range(first, last)])

    def network_logits(self, pos: int) -> Tensor:
        """Logits of the network in a mixture, without the counts, of the token after a position, [1, n_vocab]."""
        return self._read(self.predictor.network.network, pos, pos + 1)

    def _read(self, network: Any, first: int, last: int) -> Tensor:
        begin = max(0, first - max(int(network.reach), 1) + 1)
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        with torch.inference_mode():
            return network(self.ids[:, begin:last].to(device))[0, first - begin :].cpu()

    def top(self, pos: int = -1, k: int = 10) -> list[tuple[str, float]]:
        """The k likeliest tokens after a position, with their probabilities."""
        at = self.position(pos)
        p = self.logits(at, at + 1)[0].softmax(-1)
        best = p.topk(min(k, p.numel()))
        return [
            (self.tokenizer.token_str(i), x)
            for i, x in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            if not math.isnan(x)
        ]


def predictor_trace(predictor: Predictor, text: str | Sequence[int], *, bos: bool = False) -> PredictorTrace:
    """What a predictor reads in a text, or in ids; `bos` puts the separator first.

    Raises InputError for a text without tokens, for one that is longer than can be shown, and for ids that the
    predictor does not know.
    """
    tokenizer = predictor.tokenizer
    ids = tokenizer.encode(text) if isinstance(text, str) else list(text)
    ids = [tokenizer.separator, *ids] if bos and isinstance(text, str) else ids
    if not ids:
        raise InputError("there is no token to read: give more text, or put the separator first")
    choices: Any = predictor.network.choices
    longest = choices.n_ctx if isinstance(choices, RecurrentOptions) else MOST_TOKENS
    if len(ids) > longest:
        raise InputError(f"the text has {len(ids):,} tokens and at most {longest:,} are shown: give a shorter one")
    if not all(0 <= i < choices.n_vocab for i in ids):
        raise InputError(f"an id is outside the vocabulary: expected 0 to {choices.n_vocab - 1}")
    return PredictorTrace(predictor, torch.from_numpy(np.array([ids], dtype=np.int64)))
