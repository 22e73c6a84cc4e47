"""Readers compute the next logits from the tokens so far: with a cache, or by a full pass at every step.

Both readers read the same window of a text, so by definition they compute the same; the law `cached = uncached`
tests the arithmetic. Rows of different lengths are padded on the left in one cache: row r fills the columns
[width - length_r, width), its positions count from its own start, and no query reads the columns before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.generate.encoder_inputs import NO_SOURCES, NoSources
from pellucid.generate.errors import GenerationError
from pellucid.model import OFF, Cache, Tap, Transformer
from pellucid.model.embed import NoReadout
from pellucid.model.modes import kept_in_evaluation_mode
from pellucid.model.transfer import on_device

NextLogits = Float[Tensor, "rows n_vocab"]


def window_start(n_prompt: int, n_tokens: int, n_ctx: int) -> int:
    """The first token of the window of a text of `n_tokens`, including the `n_prompt` of its prompt.

    A prompt keeps its last n_ctx tokens. Whenever one token more than the context would be read, the
    older half of it (n_ctx // 2 tokens, at least one) is dropped and the rest takes positions 0, 1, ...
    """
    start, hop = max(0, n_prompt - n_ctx), max(1, n_ctx // 2)
    excess = max(0, n_tokens - start - n_ctx)
    return start + hop * -(-excess // hop)


@dataclass(eq=False)
class SequenceState:
    """One text that is being generated: sample `sample` of prompt `prompt`, both counted from 0."""

    prompt: int
    sample: int
    seed: int
    given: tuple[int, ...]
    generated: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """None while it is unfinished; then length (max_tokens reached), end (a stop id), or stop (`Decoding.stop`)"""

    def window(self, n_ctx: int) -> tuple[int, list[int]]:
        """The index of the window's first token, and the tokens in the window."""
        start = window_start(len(self.given), len(self.given) + len(self.generated), n_ctx)
        return start, [*self.given, *self.generated][start:]


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Run without gradients and without dropout, and restore the training mode."""
    with kept_in_evaluation_mode(network), torch.inference_mode():
        yield


def last_logits(network: Transformer, tokens: Tensor, **given) -> NextLogits:
    """Logits at the last position only; those of a prompt's other positions are not computed."""
    tap = given.get("tap", OFF)
    return tap("logits", network.unembed(network.hidden(tokens, **given)[:, -1:]))[:, 0]


class TapFactory:
    """Makes the taps that receive the named tensors of a generation; those of this default do nothing."""

    def of(
        self, prompts: Sequence[int], starts: Sequence[int], lengths: Sequence[int], width: int, n_queries: int
    ) -> Tap:
        """The tap of a call that computes the last `n_queries` of `width` columns of rows that are padded on the left.

        Row r belongs to prompt `prompts[r]`; its last `lengths[r]` columns hold the tokens of its text from
        `starts[r]` on, counted from the first token that was ever read.
        """
        return OFF

    def of_sources(self, lengths: Sequence[int]) -> Tap:
        """The tap of the encoder's pass over sources of these lengths, padded on the right."""
        return OFF

    def edits_key(self) -> str:
        """The edits as a short text: sequences whose factories have the same key may be computed in one call."""
        return ""


NO_TAPS = TapFactory()


class RecomputingReader:
    """Reads every window from its beginning at every step, one row at a time. This is the definition."""

    def __init__(self, network: Transformer, sources: NoSources = NO_SOURCES, taps: TapFactory = NO_TAPS):
        self.network, self.sources, self.taps = network, sources, taps

    def read(self, rows: Sequence[SequenceState]) -> NextLogits:
        """The logits of each row's next token."""
        return torch.cat([self.read_one(row) for row in rows])

    def read_one(self, row: SequenceState) -> NextLogits:
        start, tokens = row.window(self.network.architecture.n_ctx)
        device = self.network.embed.token.weight.device
        mask = visible_keys([len(tokens)], [prefix_length(self.network, row, start)], device)
        options = self.sources.of([row.prompt], len(tokens))
        options["tap"] = self.taps.of([row.prompt], [start], [len(tokens)], len(tokens), len(tokens))
        return last_logits(self.network, on_device([tokens], device), mask=mask, **options)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows; there is nothing to copy."""


class CachedReader:
    """Keeps all windows in one preallocated cache; a row whose window moves is read again by itself, and so is one
    that outgrows the texts of its frequencies (`Architecture.frequency_border`).

    capacity   columns of the cache: n_ctx // 2 more than the context where texts outgrow it, so that
               rows that outgrow it at different times seldom require moving all columns to the left
    """

    def __init__(self, network: Transformer, longest: int, sources: NoSources = NO_SOURCES, taps: TapFactory = NO_TAPS):
        """`longest`: the largest number of tokens that a text may have."""
        self.network, self.n_ctx, self.sources, self.taps = network, network.architecture.n_ctx, sources, taps
        self.capacity = min(longest, self.n_ctx + self.n_ctx // 2)
        self.cache: Cache | None = None
        #: of each row: the index of its window's first token, and the number of columns that it fills
        self.starts: list[int] = []
        self.lengths: list[int] = []

    def read(self, rows: Sequence[SequenceState]) -> NextLogits:
        """The logits of each row's next token; since the last call every row has grown by one token."""
        windows = [row.window(self.n_ctx) for row in rows]
        prefixes = [prefix_length(self.network, row, start) for row, (start, _) in zip(rows, windows, strict=True)]
        border = self.network.architecture.frequency_border
        moved = [
            r
            for r, (start, tokens) in enumerate(windows)
            if self.cache is None or start != self.starts[r] or (border and self.lengths[r] <= border < len(tokens))
        ]
        self.starts = [start for start, _ in windows]
        new, prompts = [tokens for _, tokens in windows], [row.prompt for row in rows]
        if len(moved) == len(rows):
            self.cache = self.make_cache(len(rows), self.capacity)
            self.lengths = [len(tokens) for tokens in new]
            return self.fill(self.cache, windows, prefixes, prompts)
        self.make_room([len(new[r]) - 1 if r in moved else length for r, length in enumerate(self.lengths)])
        # a row that is about to be read again takes position 0 here, and its result is discarded
        positions = [0 if r in moved else n for r, n in enumerate(self.lengths)]
        logits = self.step([tokens[-1] for tokens in new], positions, prompts)
        self.lengths = [len(tokens) for tokens in new]
        if moved:
            of_moved = [windows[r] for r in moved], [prefixes[r] for r in moved], [prompts[r] for r in moved]
            logits[moved] = self.reread(moved, *of_moved)
        return logits

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, repeated where asked.

        Finished rows are dropped at once: copying the others costs about as much as one step, and makes every
        later step cheaper.
        """
        assert self.cache is not None
        self.cache = self.cache.fork(on_device(np.array(rows, np.int64), self.cache.store.device))
        self.starts, self.lengths = [self.starts[r] for r in rows], [self.lengths[r] for r in rows]
        self.cache.keep_last(max(self.lengths, default=0))

    def make_cache(self, batch: int, capacity: int) -> Cache:
        weight = self.network.embed.token.weight
        return Cache(self.network.architecture, batch, capacity, dtype=weight.dtype, device=weight.device)

    def fill(
        self, cache: Cache, windows: Sequence[tuple[int, list[int]]], prefixes: Sequence[int], prompts: Sequence[int]
    ) -> NextLogits:
        """Read complete windows into an empty cache, padded on the left with token 0, which no query reads."""
        lengths, device = [len(tokens) for _, tokens in windows], cache.store.device
        width = max(lengths)
        tokens = on_device([[0] * (width - len(w)) + w for _, w in windows], device)
        positions = on_device([[*[0] * (width - n), *range(n)] for n in lengths], device)
        mask = visible_keys(lengths, prefixes, device)
        options = self.sources.of(prompts, width)
        options["tap"] = self.taps.of(prompts, [start for start, _ in windows], lengths, width, width)
        return last_logits(self.network, tokens, positions=positions, mask=mask, cache=cache, **options)

    def step(self, tokens: Sequence[int], new_positions: Sequence[int], prompts: Sequence[int]) -> NextLogits:
        """Read one more token of every row, at these positions."""
        assert self.cache is not None
        device, width = self.cache.store.device, self.cache.length
        positions = on_device([[position] for position in new_positions], device)
        mask = None
        if any(n < width for n in self.lengths):
            starts = on_device([width - n for n in self.lengths], device)
            mask = (torch.arange(width + 1, device=device) >= starts[:, None])[:, None]
        new = on_device([[token] for token in tokens], device)
        options = self.sources.of(prompts, 1)
        options["tap"] = self.taps.of(prompts, self.starts, [n + 1 for n in self.lengths], width + 1, 1)
        return last_logits(self.network, new, positions=positions, mask=mask, cache=self.cache, **options)

    def reread(
        self,
        rows: list[int],
        windows: Sequence[tuple[int, list[int]]],
        prefixes: Sequence[int],
        prompts: Sequence[int],
    ) -> NextLogits:
        """Read these rows' windows again, and write them into the cache."""
        assert self.cache is not None
        width = max(len(tokens) for _, tokens in windows)
        fresh = self.make_cache(len(rows), width)
        logits = self.fill(fresh, windows, prefixes, prompts)
        self.cache.replace(rows, fresh)
        return logits

    def make_room(self, needed: Sequence[int]) -> None:
        """Make one column free, if necessary by moving all rows to the left; the last `needed` columns of a row are
        kept.
        """
        assert self.cache is not None
        if self.cache.length == self.cache.capacity:
            self.cache.keep_last(max(needed))


def prefix_length(network: Transformer, row: SequenceState, start: int) -> int:
    """How many tokens of the window are read in both directions: those of its prompt where attention.mask = prefix."""
    return max(0, len(row.given) - start) if network.architecture.attention.mask == "prefix" else 0


def visible_keys(lengths: Sequence[int], prefixes: Sequence[int], device: torch.device) -> Tensor | None:
    """The keys that queries of windows padded on the left may read, bool [rows, width, width]; None for the causal
    mask.

    Each column of padding reads itself, because the softmax of a row without keys is not a number.
    """
    width = max(lengths)
    if min(lengths) == width and not any(prefixes):
        return None
    j = torch.arange(width, device=device)
    i = j[:, None]
    starts = on_device([width - n for n in lengths], device)[:, None, None]
    ends = starts + on_device(list(prefixes), device)[:, None, None]
    return ((j >= starts) & ((j <= i) | (j < ends))) | (i == j)


def check_readable(network: Transformer) -> None:
    """Raise GenerationError for networks that do not predict a next token."""
    a = network.architecture
    if a.readout == "none":
        raise GenerationError(NoReadout.why)
    if a.attention.mask == "bidirectional":
        raise GenerationError(
            "attention.mask = bidirectional: every position has read the tokens after it, so there is no next token to "
            "predict; use a network with a causal or prefix mask, or fill masked tokens instead"
        )
