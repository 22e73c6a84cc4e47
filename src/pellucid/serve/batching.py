"""Continuous batching: all sequences of a transformer are decoded together, and join and leave between steps.

A round decodes one token of every sequence whose prompt has been read, and reads pieces of prompts in the same pass, so
that the weights are read once for both (`pellucid.serve.ragged_cache`). Passes of their own read the prompts of
sequences with edits, prompts whose tokens are scored, and all prompts where nobody waits. A long prompt delays the
others by one piece at most, whose length follows from how long rounds take (`pellucid.serve.reading_pace`). A sequence
that is finished or cancelled leaves before the next round.

Each sequence draws with its own seed (`pellucid.generate.sampling.uniform`), its window moves as in
`pellucid.generate`, and what is computed for one row reads no other row: tokens and log-probabilities are those of
`LanguageModel.generate` and `score`, whoever else is served.

Sequences with the same edits are decoded together too, on the loaded weights, in a cache of their own. Nothing that
other sequences read was computed under their edits, and they read nothing that was computed without them.

Where a pass that several sequences share fails, each is computed by itself, and what fails then ends one alone.
"""

import time
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.generate.choose_step import step_for
from pellucid.generate.pack_weights import network_for
from pellucid.generate.readers import (
    NO_TAPS,
    CachedReader,
    check_readable,
    evaluation_mode,
    prefix_length,
    visible_keys,
)
from pellucid.generate.speculation import look_up
from pellucid.generate.text import looked_at
from pellucid.model import Cache, Tap, Transformer
from pellucid.serve.batch_cache import BatchCache, bytes_of_row, column_bytes, columns_read, copy_row, rows_in
from pellucid.serve.decoding_group import DecodingGroup
from pellucid.serve.engine import Engine
from pellucid.serve.generation import Generation, token_scores
from pellucid.serve.prefix_cache import PrefixCache
from pellucid.serve.reading_pace import ReadingPace
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: prompt tokens that are read at once where nobody waits for a decoding step
CHUNK = 256
#: tokens of a window whose keys and values are copied in the round that reads its last piece, at most
COPIED_AT_ONCE = 64
#: the tokens that packed weights and compiled steps may be used for: a server generates as long as it runs
MANY_TOKENS = 1 << 20


class BatchingEngine(Engine):
    """The engine of a transformer that predicts the next token.

    memory      bytes that keys and values of running sequences may take; decides how many rows there are
    prefixes    bytes of keys and values that are kept of earlier prompts
    chunk       prompt tokens that are read in a round, at most
    weights     the number format of the matrices (`pellucid.generate.pack_weights`)
    speculate   guess up to this many tokens at once while a single sequence is decoded; it changes no token
    """

    no_text = ""

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        *,
        memory: int = 2**30,
        max_rows: int = 64,
        max_queue: int = 256,
        max_tokens: int | None = None,
        prefixes: int = 2**28,
        chunk: int = CHUNK,
        weights: str = "auto",
        speculate: int = 0,
    ):
        check_readable(network)
        a = network.architecture
        self.memory, self.speculate = memory, speculate
        #: how many sequences that fill the context are generated at once
        self.full_rows = rows_in(memory, sequence_bytes(network, a.n_ctx), max_rows, a.n_ctx)
        sizes = {"n_ctx": a.n_ctx, "n_vocab": a.n_vocab, "max_rows": max_rows}
        super().__init__(network, tokenizer, **sizes, max_queue=max_queue, max_tokens=max_tokens)
        #: what edits work on, and what everything else is computed with
        self.loaded, self.weights = network, weights
        self.network, self.said = network_for(network, weights, MANY_TOKENS)
        self.chunk, self.pace = chunk, ReadingPace(chunk)
        self.prefixes = PrefixCache(self.network, prefixes)
        # what prompts are read into takes the rest (`sequence_bytes`)
        compiled, _ = step_for(self.network, "auto", MANY_TOKENS)
        self.unedited = DecodingGroup(self.network, NO_TAPS, max_rows, memory * 3 // 5, compiled)
        #: by their edits, the sequences that are decoded; those without edits first
        self.groups: dict[str, DecodingGroup] = {"": self.unedited}

    @property
    def batch(self) -> BatchCache:
        """The keys and values of the sequences without edits."""
        return self.unedited.batch

    @property
    def decoding(self) -> list[Generation]:
        """The sequences whose prompts have been read."""
        # metrics are read in another thread, while this one adds groups and removes them
        return [generation for group in list(self.groups.values()) for generation in group.generations]

    @property
    def prefix_asked(self) -> int:
        return self.prefixes.asked

    @property
    def prefix_reused(self) -> int:
        return self.prefixes.reused

    @property
    def prefix_bytes(self) -> int:
        return self.prefixes.nbytes

    def start(self) -> None:
        # memory that is written for the first time is slow, and a row's is more than a step takes
        self.batch.cache.store.zero_()
        super().start()

    def check(self, generation: Generation) -> None:
        if generation.taps is not NO_TAPS:
            looked_at(self.weights)
        super().check(generation)

    def running(self) -> list[Generation]:
        return [*super().running(), *self.decoding]

    def width(self, generation: Generation) -> int:
        """The most tokens that a sequence has in its cache."""
        return min(self.n_ctx, len(generation.prompt_ids) + generation.max_tokens + self.speculate)

    @property
    def round_chunk(self) -> int:
        """Prompt tokens that this round reads at most."""
        return self.pace.length if self.decoding else self.chunk

    def has_room(self, generation: Generation) -> bool:
        widths: dict[str, list[int]] = defaultdict(list)
        for g in (*self.running(), generation):
            widths[g.edits_key].append(self.width(g))
        return sum(len(ws) * sequence_bytes(self.network, max(ws)) for ws in widths.values()) <= self.memory

    def generate_round(self) -> None:
        """Read pieces of prompts, and generate one token more of every sequence whose prompt has been read."""
        began, n_before, others_wait = time.monotonic(), self.prompt_tokens, bool(self.decoding)
        stepped = None
        if not (others_wait and self.pace.is_step_due):
            stepped = self.step_beside_pieces()
            if stepped is None:
                self.read_prompts()
        for key, group in list(self.groups.items()):
            if group.generations and group is not stepped:
                self.decode(group)
            if group is not self.unedited and not group.generations:
                del self.groups[key]
        if others_wait:
            self.pace.note_round(self.prompt_tokens - n_before, time.monotonic() - began)

    def drop_cancelled(self) -> None:
        super().drop_cancelled()
        for group in self.groups.values():
            for row in reversed([row for row, g in enumerate(group.generations) if g.cancelled]):
                group.leave(row)

    def forget_running(self) -> None:
        super().forget_running()
        self.groups = {"": self.unedited}
        self.unedited.clear()

    # Prompts -----------------------------------------------------------------------------------------------------

    def step_beside_pieces(self) -> DecodingGroup | None:
        """One token more of the sequences without edits, and pieces of prompts read in the same pass.

        The group that was decoded, or None where no prompt can be read so.
        """
        group, pieces = self.unedited, self.shared_pieces()
        if not pieces:
            return None
        tokens = [generation.newest for generation in group.generations]
        try:
            with evaluation_mode(self.network):
                logits = group.batch.step_beside([(cache, ids) for _, cache, ids in pieces], tokens)
        except Exception:
            for generation, _, _ in pieces:
                generation.reads_alone = True
            return None
        for generation, cache, ids in pieces:
            self.reading.remove(generation)
            self.piece_read(generation, cache, len(ids))
        self.settle(group, self.advance(group.generations, logits))
        for generation, cache, ids in pieces:
            try:
                if not self.joins(generation, cache.length - len(ids)):
                    self.reading.append(generation)
            except Exception as error:
                generation.fail(error)
        return group

    def shared_pieces(self) -> list[tuple[Generation, Cache, list[int]]]:
        """The next pieces that can be read in one pass with the step of the sequences without edits."""
        pieces: list[tuple[Generation, Cache, list[int]]] = []
        n_room = self.pace.length
        # n-grams read the tokens before each one; and guesses of one sequence are a pass of their own
        if not self.unedited.generations or self.network.architecture.ngrams or self.guesses(self.unedited):
            return pieces
        for generation in self.reading:
            alone = generation.echo or generation.edits_key or generation.reads_alone
            if alone or not self.leaves_last(generation):
                break
            cache, tokens = self.opened_cache(generation)
            ids = tokens[cache.length : len(tokens) - 1][:n_room]
            if not ids:
                # it joins the batch in a round that reads nothing, unless others are before it
                break
            pieces.append((generation, cache, ids))
            n_room -= len(ids)
            if not n_room:
                break
        return pieces

    def read_prompts(self) -> None:
        """Read a piece of a prompt, or several short prompts, in a pass of its own."""
        together = self.short_prompts()
        if len(together) > 1:
            self.read_together(together)
        elif self.reading:
            generation = self.reading.popleft()
            try:
                if not self.read_chunk(generation):
                    self.reading.append(generation)
            except Exception as error:
                generation.fail(error)

    def short_prompts(self) -> list[Generation]:
        """The next sequences whose windows, padded to the longest, fit into one chunk."""
        together: list[Generation] = []
        longest = 0
        for generation in self.reading:
            start, tokens = generation.state.window(self.n_ctx)
            longest = max(longest, len(tokens))
            shares_no_pass = (
                generation.cache
                or generation.echo
                or not generation.max_tokens
                or generation.edits_key
                or generation.reads_alone
            )
            if shares_no_pass or (len(together) + 1) * longest > self.round_chunk:
                break
            # what is known of a prompt is worth more than company where it is most of the prompt
            if not start and 2 * self.prefixes.known(tokens) > len(tokens):
                break
            together.append(generation)
        return together

    def read_together(self, generations: Sequence[Generation]) -> None:
        """Read complete windows in one pass, and decode from their ends."""
        for generation in generations:
            self.reading.remove(generation)
        try:
            reader = CachedReader(self.network, max(len(g.state.window(self.n_ctx)[1]) for g in generations))
            with evaluation_mode(self.network):
                logits = reader.read([g.state for g in generations])
            cache = reader.cache
            assert cache is not None
            for row, (generation, start, n) in enumerate(zip(generations, reader.starts, reader.lengths, strict=True)):
                generation.window_start, generation.cache = start, copy_row(self.network, cache, row, n)
        except Exception:
            for generation in reversed(generations):
                generation.cache, generation.reads_alone = None, True
                self.reading.appendleft(generation)
            return
        self.prompt_tokens += sum(reader.lengths)
        goes_on = self.advance(generations, logits)
        for row, generation in enumerate(generations):
            if not generation.window_start:
                self.prefixes.asked += reader.lengths[row]
                if not generation.failed:
                    tokens = (*generation.state.given, *generation.state.generated)
                    self.prefixes.keep(tokens, columns_read(cache, row, reader.lengths[row]))
            try:
                self.go_on(generation, goes_on[row])
            except Exception as error:
                generation.fail(error)

    def leaves_last(self, generation: Generation) -> bool:
        """Whether the last token of a window is left for the next step, which other sequences take in any case.

        Its logits then take no pass of their own, and its keys and values are copied in a round that reads no piece.
        """
        group = self.groups.get(generation.edits_key)
        if group is None or not group.generations or not generation.max_tokens:
            return False
        # a prefix is read from both sides, its last token with it
        start, _ = generation.state.window(self.n_ctx)
        return not prefix_length(group.batch.network, generation.state, start)

    def read_chunk(self, generation: Generation) -> bool:
        """Read the next piece of a window, and decode from its end. True when nothing of it is left to read alone."""
        if generation.echo and not generation.prompt_scores:
            # nothing predicts the first token
            generation.prompt_scores.append(None)
        cache, tokens = self.opened_cache(generation)
        begin, end = cache.length, len(tokens) - self.leaves_last(generation)
        if begin == end:
            return self.joins(generation, 0)
        goes_on = self.read_piece(generation, cache, tokens, end)
        if end < len(tokens):
            return self.joins(generation, begin)
        if cache.length == end:
            self.go_on(generation, goes_on)
        return cache.length == end

    def opened_cache(self, generation: Generation) -> tuple[Cache, list[int]]:
        """The cache that a window is read into, which holds what is known of its beginning, and the window's tokens."""
        start, tokens = generation.state.window(self.n_ctx)
        if generation.cache is None:
            generation.window_start = start
            generation.cache = self.cache_for(generation, tokens)
            generation.cached_tokens = max(generation.cached_tokens, generation.cache.length)
        elif self.reuses(generation):
            # what others have read meanwhile: samples of one prompt read it together, each a piece in turn
            generation.cached_tokens += self.prefixes.extend(generation.cache, tokens)
        return generation.cache, tokens

    def joins(self, generation: Generation, begin: int) -> bool:
        """Let a sequence join the batch if all but the last token of its window has been read; whether it has.

        A piece that began at `begin` has just been read. The last piece of a long window and the copy of its keys and
        values take two rounds.
        """
        cache, tokens = self.opened_cache(generation)
        if cache.length < len(tokens) - 1 or (begin and len(tokens) > COPIED_AT_ONCE):
            return False
        self.prompt_tokens += 1
        self.go_on(generation, True)
        return True

    def read_piece(self, generation: Generation, cache: Cache, tokens: Sequence[int], end: int) -> bool:
        """Read a piece of the first `end` tokens of a window; where it is the window's last one, choose the next token.

        Whether the sequence goes on.
        """
        network, begin = self.network_for(generation), cache.length
        prefix = prefix_length(network, generation.state, generation.window_start)
        # a prefix is read from both sides, so it is read at once
        n = end - begin if prefix else min(self.round_chunk, end - begin)
        chunk = torch.tensor([tokens[begin : begin + n]], device=cache.store.device)
        mask = visible_keys([len(tokens)], [prefix], chunk.device) if prefix else None
        tap = self.tap_of(generation, begin + n, n)
        with evaluation_mode(network):
            stream = network.hidden(chunk, mask=mask, cache=cache, tap=tap)
            self.piece_read(generation, cache, n)
            if generation.echo and not generation.state.generated:
                # a token of a prefix has read those that follow it: a causal pass scores it, as in `score`
                scored = network.hidden(chunk, tap=tap) if prefix else stream
                self.score_prompt(generation, tokens, begin, tap("logits", network.unembed(scored))[0])
            if cache.length < len(tokens):
                return True
            if generation.max_tokens == 0:
                self.finish_empty(generation)
                return False
            logits = tap("logits", network.unembed(stream[:, -1:]))[:, 0]
            return self.advance([generation], logits)[0]

    def piece_read(self, generation: Generation, cache: Cache, n: int) -> None:
        """Count the last `n` tokens that a cache has read, and keep them for later prompts."""
        self.prompt_tokens += n
        if generation.window_start or generation.taps is not NO_TAPS:
            return
        # numbers that are not finite would end later requests too
        if torch.isfinite(columns_read(cache, 0, n)).all():
            self.prefixes.keep(generation.state.window(self.n_ctx)[1], columns_read(cache, 0, cache.length))

    def cache_for(self, generation: Generation, tokens: Sequence[int]) -> Cache:
        """An empty cache for the window, or one that holds what is known of its beginning."""
        if self.reuses(generation):
            return self.prefixes.start(tokens, len(tokens))
        store = self.batch.cache.store
        return Cache(self.loaded.architecture, 1, len(tokens), dtype=store.dtype, device=store.device)

    def reuses(self, generation: Generation) -> bool:
        """Whether what is known of its window's beginning need not be read."""
        return generation.taps is NO_TAPS and not generation.window_start and not generation.echo

    def network_for(self, generation: Generation) -> Transformer:
        """The loaded network for a sequence with edits, and the packed one for the others."""
        return self.network if generation.taps is NO_TAPS else self.loaded

    def tap_of(self, generation: Generation, width: int, n_queries: int) -> Tap:
        """The tap of a call that computes the last `n_queries` of the first `width` tokens of the window."""
        return generation.taps.of([generation.prompt], [generation.window_start], [width], width, n_queries)

    def score_prompt(self, generation: Generation, tokens: Sequence[int], begin: int, logits: Tensor) -> None:
        """log P of the prompt's tokens that this chunk's logits [pos, n_vocab] predict."""
        targets = tokens[begin + 1 : begin + 1 + len(logits)]
        scores = token_scores(logits[: len(targets)], targets, max(0, generation.n_top), self.n_known)
        generation.prompt_scores.extend(scores)

    # Decoding ----------------------------------------------------------------------------------------------------

    def go_on(self, generation: Generation, goes_on: bool) -> None:
        """Where a sequence that is in no batch continues after its newest token: nowhere if that was the last one."""
        cache, generation.cache = generation.cache, None
        assert cache is not None
        if not goes_on:
            return
        if self.window_moves(generation):
            # the older half of the window is dropped and the rest is read afresh, as `generate` does
            self.reading.append(generation)
            return
        key = generation.edits_key
        if key not in self.groups:
            # the memory that a batch may take before it needs it is for sequences without edits
            self.groups[key] = DecodingGroup(self.loaded, generation.taps, self.max_rows, 0)
        self.groups[key].join(generation, cache, self.width(generation))
        if sum(group.batch.cache.nbytes for group in self.groups.values()) > self.memory:
            for group in self.groups.values():
                group.batch.trim()

    def decode(self, group: DecodingGroup) -> None:
        """One token more of every row, or several of a single one whose guessed tokens were right."""
        if guesses := self.guesses(group):
            goes_on = [self.decode_along(group.generations[0], guesses)]
        else:
            goes_on = self.advance(group.generations, *group.step())
        self.settle(group, goes_on)

    def settle(self, group: DecodingGroup, goes_on: Sequence[bool]) -> None:
        """Let the sequences leave that have ended or whose windows move."""
        for row in reversed(range(len(goes_on))):
            generation = group.generations[row]
            if generation.failed:
                group.batch.erase(row)
                group.leave(row)
            elif not goes_on[row]:
                if group is self.unedited and not generation.window_start:
                    read = [*generation.state.given, *generation.state.generated]
                    self.prefixes.keep(read, group.batch.columns(row))
                group.leave(row)
            elif self.window_moves(generation):
                group.leave(row)
                self.reading.append(generation)

    def guesses(self, group: DecodingGroup) -> list[int]:
        """What may follow the newest token of a single sequence (`pellucid.generate.speculation`)."""
        if not self.speculate or len(group.generations) > 1 or group is not self.unedited:
            return []
        room = self.n_ctx - group.batch.lengths[0] - 1
        _, tokens = group.generations[0].state.window(self.n_ctx)
        return look_up(tokens, min(self.speculate, room)) if room > 0 else []

    def decode_along(self, generation: Generation, guesses: list[int]) -> bool:
        """Read guessed tokens together with the newest one, and advance as far as they are right."""
        try:
            logits = self.batch.step_along([generation.newest, *guesses])
        except Exception as error:
            generation.fail(error)
            return False
        n_right, goes_on = 0, self.advance([generation], logits[:1])[0]
        while goes_on and n_right < len(guesses) and generation.state.generated[-1] == guesses[n_right]:
            n_right += 1
            goes_on = self.advance([generation], logits[n_right : n_right + 1])[0]
        self.batch.forget_last(len(guesses) - n_right)
        return goes_on

    def window_moves(self, generation: Generation) -> bool:
        """Whether the next token is read in another window than the one in the cache."""
        return generation.state.window(self.n_ctx)[0] != generation.window_start


def sequence_bytes(network: Transformer, width: int) -> int:
    """Bytes of a sequence: its row in the batch, and a cache of its own while its prompt is read or it is edited."""
    return bytes_of_row(network, width) + width * column_bytes(network)
