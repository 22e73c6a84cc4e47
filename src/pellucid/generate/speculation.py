"""Prompt-lookup speculation: guess what followed the same words before, and check the guess in one pass.

A step of a large network takes as long as reading its weights, for one token or for several. If a text repeats itself,
or its prompt, the tokens after the last few are guessed from their last occurrence (Saxena 2023, "Prompt Lookup
Decoding") and read together. Each logit is the same as without guessing, and so is the text, sampled texts included:
their random numbers belong to steps, not to passes.
"""

from collections.abc import Sequence

import torch

from pellucid.generate.encoder_inputs import NO_SOURCES, NoSources
from pellucid.generate.readers import CachedReader, NextLogits, SequenceState
from pellucid.model import Transformer

#: how many of the last tokens must occur before in the same order; the longest match is tried first
GRAMS = (4, 3, 2)


def look_up(tokens: Sequence[int], n: int) -> list[int]:
    """Up to `n` tokens that followed the last earlier occurrence of the sequence's end; none if it is new."""
    for size in GRAMS:
        end = list(tokens[-size:])
        for i in range(len(tokens) - size - 1, -1, -1):
            if tokens[i + size - 1] == end[-1] and list(tokens[i : i + size]) == end:
                return list(tokens[i + size : i + size + n])
    return []


class SpeculatingReader(CachedReader):
    """A cached reader that also reads guessed tokens while a single text continues; the logits are the same.

    n_guesses   the most tokens that one pass guesses
    passes      how many passes there have been since the prompt was read
    """

    def __init__(self, network: Transformer, longest: int, sources: NoSources = NO_SOURCES, n_guesses: int = 8):
        super().__init__(network, longest, sources)
        self.n_guesses, self.passes = n_guesses, 0
        #: guessed tokens that are in the cache but not yet in the text, and the logits after each
        self.guesses: list[int] = []
        self.logits: list[NextLogits] = []

    def read(self, rows: Sequence[SequenceState]) -> NextLogits:
        """The logits of each row's next token; without a pass where the newest token was guessed."""
        if self.guesses and rows[0].generated[-1] == self.guesses[0]:
            self.lengths[0] += 1
            self.guesses = self.guesses[1:]
            return self.logits.pop(0)
        self.forget()
        start, tokens = rows[0].window(self.n_ctx)
        self.passes += 1
        if len(rows) > 1 or self.cache is None or start != self.starts[0]:
            return super().read(rows)
        room = min(self.cache.capacity - self.cache.length, self.n_ctx - self.lengths[0]) - 1
        self.guesses = look_up(tokens, min(self.n_guesses, room)) if room > 0 else []
        return self.read_along(tokens, rows[0].prompt) if self.guesses else super().read(rows)

    def read_along(self, tokens: list[int], prompt: int) -> NextLogits:
        """Read the newest token and the guesses after it in one pass."""
        assert self.cache is not None
        device, start = self.cache.store.device, self.lengths[0]
        tokens_read = torch.tensor([[tokens[-1], *self.guesses]], device=device)
        positions = torch.arange(start, start + tokens_read.size(1), device=device)
        source = self.sources.of([prompt], tokens_read.size(1))
        stream = self.network.hidden(tokens_read, positions=positions, cache=self.cache, **source)
        first, *self.logits = self.network.unembed(stream)[0].split(1)
        self.lengths = [len(tokens)]
        return first

    def select(self, rows: Sequence[int]) -> None:
        """Continue with these rows."""
        self.forget()
        super().select(rows)

    def forget(self) -> None:
        """Remove wrong guesses from the cache."""
        if self.guesses:
            assert self.cache is not None
            self.cache.crop(self.cache.length - len(self.guesses))
        self.guesses, self.logits = [], []
