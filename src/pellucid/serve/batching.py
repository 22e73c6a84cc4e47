"""Continuous batching: all sequences of a transformer are decoded together, and join and leave between steps.

A round decodes one token of every sequence whose prompt has been read, and reads pieces of prompts in the same pass, so
that the weights are read once for both (`pellucid.serve.ragged_cache`). Those who wait for their next token go first:
pieces have as many tokens together as follows from how long rounds take (`pellucid.serve.reading_pace`). Only the
prompts of sequences with edits and prompts whose tokens are scored have passes of their own, a piece in a round. A
sequence whose window moves is read before those that wait for their first token, and all whose prompts are known join
at once. A sequence that is finished or cancelled leaves before the next round.

Each sequence draws with its own seed (`pellucid.generate.sampling.uniform`), its window moves as in
`pellucid.generate`, and what is computed for one row reads no other row: tokens and log-probabilities are those of
`LanguageModel.generate` and `score`, whoever else is served.

Sequences with the same edits are decoded together too, on the loaded weights, in a cache of their own. Nothing that
other sequences read was computed under their edits, and they read nothing that was computed without them.

Where a pass that several sequences share fails, each is computed by itself, and what fails then ends one alone.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.generate.choose_reader import GenerationRequest, check_weight_format, choose_computation
from pellucid.generate.readers import (
    NO_TAPS,
    check_readable,
    evaluation_mode,
    prefix_length,
    visible_keys,
)
from pellucid.model import Cache, Tap, Transformer
from pellucid.serve.batch_cache import (
    BatchCache,
    DecodingGroup,
    bytes_of_row,
    column_bytes,
    columns_read,
    rows_in,
)
from pellucid.serve.engine import Engine
from pellucid.serve.generation import Generation, token_scores
from pellucid.serve.prefix_cache import PrefixCache
from pellucid.serve.reading_pace import ReadingPace
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: prompt tokens that are read at once where nobody waits for a decoding step
PROMPT_CHUNK = 256
#: tokens of known prompts whose keys and values are copied in a round, unless a single prompt has more
KNOWN_AT_ONCE = 1024
#: the tokens that packed weights and compiled steps may be used for: a server generates as long as it runs
MANY_TOKENS = 1 << 20


class BatchingEngine(Engine):
    """The engine of a transformer that predicts the next token.

    memory      bytes that keys and values of running sequences may take; decides how many rows there are
    prefixes    bytes of keys and values that are kept of earlier prompts
    chunk       prompt tokens that are read in a round, at most
    weights     the number format of the matrices (`pellucid.generate.pack_weights`)
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
        chunk: int = PROMPT_CHUNK,
        weights: str = "auto",
    ):
        check_readable(network)
        a = network.architecture
        self.memory = memory
        #: how many sequences that fill the context are generated at once
        self.full_rows = rows_in(memory, sequence_bytes(network, a.n_ctx), max_rows, a.n_ctx)
        sizes = {"n_ctx": a.n_ctx, "n_vocab": a.n_vocab, "max_rows": max_rows}
        super().__init__(network, tokenizer, **sizes, max_queue=max_queue, max_tokens=max_tokens)
        #: what edits work on, and what everything else is computed with
        self.loaded, self.weights = network, weights
        computation = choose_computation(GenerationRequest(network, MANY_TOKENS), weights=weights)
        self.network, self.weights_line = computation.network, computation.reasons[0]
        self.chunk, self.pace = chunk, ReadingPace(chunk)
        self.prefixes = PrefixCache(self.network, prefixes)
        # what prompts are read into takes the rest (`sequence_bytes`)
        self.unedited = DecodingGroup(self.network, NO_TAPS, max_rows, memory * 3 // 5, computation.step)
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
        check_weight_format(self.weights, GenerationRequest(self.loaded, MANY_TOKENS, taps=generation.taps))
        super().check(generation)

    def running(self) -> list[Generation]:
        return [*super().running(), *self.decoding]

    def width(self, generation: Generation) -> int:
        """The most tokens that a sequence has in its cache."""
        return min(self.n_ctx, len(generation.prompt_ids) + generation.max_tokens)

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
        others_wait = bool(self.decoding)
        # clients read the texts of sequences whose windows moved; the sort is stable
        self.reading = deque(sorted(self.reading, key=lambda generation: not generation.state.generated))
        unread = self.join_known()
        began, n_before = time.monotonic(), self.prompt_tokens
        stepped = None
        if unread and not (others_wait and self.pace.is_step_due):
            stepped = self.read_pieces(unread)
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

    def join_known(self) -> list[Generation]:
        """Let the sequences join their batches of whose windows all but the last token is known; those that are not.

        What is copied for them in a round is bounded, and the others of them join in the next ones.
        """
        n_copied, unread = 0, []
        for generation in list(self.reading):
            if not self.is_known(generation):
                unread.append(generation)
                continue
            n = len(generation.state.window(self.n_ctx)[1]) - 1
            if n_copied and n_copied + n > KNOWN_AT_ONCE:
                continue
            n_copied += n
            self.reading.remove(generation)
            try:
                self.join(generation)
            except Exception as error:
                generation.fail(error)
        return unread

    def is_known(self, generation: Generation) -> bool:
        """Whether all but the last token of a window has been read, by this sequence or by an earlier one."""
        start, tokens = generation.state.window(self.n_ctx)
        n_read = generation.cache.length if generation.cache else 0
        if not generation.state.generated:
            if generation.echo or not generation.max_tokens or prefix_length(self.network, generation.state, start):
                return False
            if generation.taps is NO_TAPS:
                n_read = max(n_read, self.prefixes.known(tokens))
        return n_read >= len(tokens) - 1

    def join(self, generation: Generation) -> None:
        """Add a sequence to the batch of those with the same edits, where the next step reads its newest token."""
        cache, _ = self.opened_cache(generation)
        self.prompt_tokens += not generation.state.generated
        generation.cache, key = None, generation.edits_key
        if key not in self.groups:
            # the memory that a batch may take before it needs it is for sequences without edits
            self.groups[key] = DecodingGroup(self.loaded, generation.taps, self.max_rows, 0)
        self.groups[key].join(generation, cache, self.width(generation))
        if sum(group.batch.cache.nbytes for group in self.groups.values()) > self.memory:
            for group in self.groups.values():
                group.batch.trim()

    def read_pieces(self, unread: Sequence[Generation]) -> DecodingGroup | None:
        """Pieces of prompts, read in one pass with the step of the sequences without edits, or a piece by itself.

        The group that was decoded with them, or None.
        """
        group, pieces = self.unedited, self.next_pieces(unread)
        if not pieces:
            self.read_alone(unread[0])
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
            self.piece_read(generation, cache, len(ids))
        ended = [n for n, (_, cache, _) in enumerate(pieces) if cache.length == cache.capacity]
        goes_on = dict(zip(ended, self.advance([pieces[n][0] for n in ended], logits[ended]), strict=True))
        for n, (generation, _, _) in enumerate(pieces):
            self.go_on(generation, goes_on.get(n, True))
        self.settle(group, self.advance(group.generations, logits[len(pieces) :]))
        return group

    def next_pieces(self, unread: Sequence[Generation]) -> list[tuple[Generation, Cache, list[int]]]:
        """The pieces that one pass reads for the first sequences in turn, of as many tokens as a round reads."""
        pieces: list[tuple[Generation, Cache, list[int]]] = []
        beginnings: list[list[int]] = []
        n_room = self.round_chunk
        for generation in unread:
            if not n_room or not self.shares_passes(generation):
                break
            try:
                cache, tokens = self.opened_cache(generation)
            except Exception:
                break  # it ends when it is the first one, which is then read alone
            ids = tokens[cache.length :][:n_room]
            beginning = tokens[: cache.length + len(ids)]
            # samples of one prompt: what one of them reads now is known to the others in the next round
            if self.reuses(generation) and len(self.prefixes.store):
                if any(other[: len(beginning)] == beginning for other in beginnings):
                    continue
                beginnings.append(beginning)
            pieces.append((generation, cache, ids))
            n_room -= len(ids)
        return pieces

    def shares_passes(self, generation: Generation) -> bool:
        """Whether nothing of a window needs a pass of its own."""
        alone = generation.reads_alone or generation.echo or generation.edits_key or not generation.max_tokens
        # n-grams read the tokens before each one, and a prefix is read from both sides
        if alone or self.network.architecture.ngrams:
            return False
        return not prefix_length(self.network, generation.state, generation.state.window(self.n_ctx)[0])

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

    def read_alone(self, generation: Generation) -> None:
        """Read the next piece of a window; where it is the last one, choose the next token."""
        try:
            self.go_on(generation, self.read_piece(generation))
        except Exception as error:
            self.go_on(generation, False)
            generation.fail(error)

    def read_piece(self, generation: Generation) -> bool:
        """As `read_alone`; whether the sequence goes on."""
        if generation.echo and not generation.prompt_scores:
            # nothing predicts the first token
            generation.prompt_scores.append(None)
        cache, tokens = self.opened_cache(generation)
        network, begin = self.network_for(generation), cache.length
        prefix = prefix_length(network, generation.state, generation.window_start)
        # a prefix is read at once
        n = len(tokens) - begin if prefix else min(self.round_chunk, len(tokens) - begin)
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

    def go_on(self, generation: Generation, goes_on: bool) -> None:
        """Where a sequence continues of which a piece was read: behind the others that read, or nowhere."""
        self.reading.remove(generation)
        if goes_on:
            self.reading.append(generation)
            if self.window_moves(generation):
                # the older half of the window is dropped and the rest is read afresh, as `generate` does
                generation.cache = None
        else:
            generation.cache = None

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

    def decode(self, group: DecodingGroup) -> None:
        """One token more of every row."""
        self.settle(group, self.advance(group.generations, *group.step()))

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

    def window_moves(self, generation: Generation) -> bool:
        """Whether the next token is read in another window than the one in the cache."""
        return generation.state.window(self.n_ctx)[0] != generation.window_start


def sequence_bytes(network: Transformer, width: int) -> int:
    """Bytes of a sequence: its row in the batch, and a cache of its own while its prompt is read or it is edited."""
    return bytes_of_row(network, width) + width * column_bytes(network)
