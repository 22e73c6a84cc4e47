"""Keys and values of sequences that are decoded together while others join and leave.

Every row ends at the same column, so that one step writes the next token of all rows to one column; a row of n tokens
fills the last n columns, and a mask hides what stands before them. A row joins behind the last one, and when a row
leaves, the last one takes its place, so that a step always reads the first rows and nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.generate.compiled_step import CompiledStep
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import NextLogits, TapFactory, last_logits
from pellucid.model import OFF, Cache, Tap, Transformer
from pellucid.serve.generation import Generation
from pellucid.serve.ragged_cache import RaggedCache, RaggedPart

#: the tap of a step of some rows, in which they have so many columns
TapOf = Callable[[range, int], Tap]


def no_tap(rows: range, width: int) -> Tap:
    """Nothing is edited."""
    return OFF


class BatchCache:
    """Room for sequences, each as long as it can become.

    Rows are as wide as memory allows, and there are as many as fill the context. Where more of them are wanted, all are
    copied to narrower ones, and where a longer sequence joins those, back to fewer wide ones.

    max_rows  sequences at most
    memory    bytes that are asked for at once; 0 asks for what is needed when it is needed. While rows are copied, both
              copies live for a moment
    lengths   tokens that each row has read, row by row
    widths    the most that each row will have read
    compiled  the step of a single row that nothing edits, where there is one
    end       the column behind the last token of every row
    """

    def __init__(self, network: Transformer, max_rows: int, memory: int, compiled: CompiledStep | None = None):
        self.network, self.max_rows, self.memory, self.compiled = network, max_rows, memory, compiled
        columns = row_columns(network.architecture.n_ctx)
        rows = min(max_rows, memory // (columns * column_bytes(network)))
        self.cache = self.make_cache(rows, columns) if rows else self.make_cache(1, 1)
        self.lengths: list[int] = []
        self.widths: list[int] = []

    def make_cache(self, rows: int, columns: int) -> Cache:
        """An empty cache of the network's numbers."""
        weight = self.network.embed.token.weight
        return Cache(self.network.architecture, rows, columns, dtype=weight.dtype, device=weight.device)

    @property
    def end(self) -> int:
        return self.cache.length

    def join(self, sequence: Cache, width: int) -> None:
        """Add a row that holds what `sequence`, a cache of one row, has read, and that grows to `width` tokens."""
        self.make_room([*self.widths, width])
        row, n = len(self.lengths), sequence.length
        if not self.lengths:
            self.cache.length = n
        elif n > self.end:
            self.move(n)
        self.cache.store[:, :, row, :, self.end - n : self.end] = sequence.store[:, :, 0, :, :n]
        self.cache.tokens[row, self.end - n : self.end] = sequence.tokens[0, :n]
        self.lengths.append(n)
        self.widths.append(width)

    def make_room(self, widths: Sequence[int]) -> None:
        """Another cache where rows of these widths need one: for twice the rows that there were, if memory allows."""
        rows, columns = len(widths), row_columns(max(widths))
        allocated, affordable = self.cache.tokens.size(0), self.memory // column_bytes(self.network)
        if rows <= allocated and columns <= self.cache.capacity:
            return
        if rows > allocated:
            rows = max(rows, min(2 * allocated, affordable // columns, self.max_rows))
        elif allocated * columns <= affordable:
            rows = allocated
        self.reallocate(rows, max(columns, min(row_columns(self.network.architecture.n_ctx), affordable // rows)))

    def trim(self) -> None:
        """Give back the memory of rows and columns that are not in use."""
        rows, columns = max(1, len(self.widths)), row_columns(max(self.widths, default=0))
        if rows * columns < self.cache.tokens.numel():
            self.reallocate(rows, columns)

    def reallocate(self, rows: int, columns: int) -> None:
        """Move all rows into a cache of this size."""
        before, filled, longest = self.cache, len(self.lengths), max(self.lengths, default=0)
        self.cache = self.make_cache(rows, columns)
        read = slice(before.length - longest, before.length)
        self.cache.store[:, :, :filled, :, :longest] = before.store[:, :, :filled, :, read]
        self.cache.tokens[:filled, :longest] = before.tokens[:filled, read]
        self.cache.length = longest

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
        self.widths[row] = self.widths[-1]
        self.widths.pop()
        last = len(self.lengths) - 1
        if row != last:
            columns = slice(self.end - self.lengths[last], self.end)
            self.cache.store[:, :, row, :, columns] = self.cache.store[:, :, last, :, columns]
            self.cache.tokens[row, columns] = self.cache.tokens[last, columns]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        longest = max(self.lengths, default=0)
        # columns that no row fills cost every step; moving the rows costs about as much as one step reads
        if self.end - longest > max(64, longest):
            self.move(longest)

    def erase(self, row: int) -> None:
        """Overwrite what a row holds: numbers that are not finite would spoil the next row, which masks them."""
        self.cache.store[:, :, row] = 0

    def clear(self) -> None:
        """Remove all rows and what they hold."""
        self.lengths.clear()
        self.widths.clear()
        self.cache.store.zero_()

    def move(self, end: int) -> None:
        """Let all rows end at column `end`."""
        rows, longest = len(self.lengths), max(self.lengths, default=0)
        before, after = slice(self.end - longest, self.end), slice(end - longest, end)
        self.cache.store[:, :, :rows, :, after] = self.cache.store[:, :, :rows, :, before].clone()
        self.cache.tokens[:rows, after] = self.cache.tokens[:rows, before].clone()
        self.cache.length = end

    def step(self, tokens: Sequence[int], tap_of: TapOf = no_tap) -> NextLogits:
        """Read one more token of every row, and return the logits of each row's next one. No row may be full."""
        self.make_column()
        logits = self.read(range(len(tokens)), tokens, tap_of)
        self.add_column()
        return logits

    def step_beside(self, pieces: Sequence[tuple[Cache, Sequence[int]]], tokens: Sequence[int]) -> NextLogits:
        """As `step`, with pieces of other sequences in the same pass, each read into a cache of its own.

        The logits of what follows each piece, and then those of the rows, of which there may be none. The
        architecture's embeddings may read no earlier tokens (`ngrams`).
        """
        rows, device = range(len(tokens)), self.cache.store.device
        parts = [RaggedPart(cache, 1, len(ids)) for cache, ids in pieces]
        if rows:
            self.make_column()
            view = self.cache.some_rows(rows.start, rows.stop)
            parts.append(RaggedPart(view, len(rows), 1, self.visible_columns(rows)))
        ids = [*(token for _, piece in pieces for token in piece), *tokens]
        positions = [*(cache.length + n for cache, piece in pieces for n in range(len(piece))), *self.lengths]
        stream = self.network.hidden(
            torch.tensor([ids], device=device),
            positions=torch.tensor(positions, device=device),
            cache=RaggedCache(parts),
        )
        if rows:
            self.add_column()
        n_read = list(accumulate(len(piece) for _, piece in pieces))
        newest = [*(n - 1 for n in n_read), *range(n_read[-1], len(ids))]
        return self.network.unembed(stream[:, newest])[0]

    def step_each(self, tokens: Sequence[int], tap_of: TapOf = no_tap) -> tuple[NextLogits, dict[int, Exception]]:
        """As `step`, but a row at a time; and what went wrong in some of the rows, whose logits are zero.

        Such rows have no usable keys and values of the newest token and must leave.
        """
        self.make_column()
        weight = self.network.embed.token.weight
        logits = weight.new_zeros((len(tokens), self.network.architecture.n_vocab))
        failures: dict[int, Exception] = {}
        for row, token in enumerate(tokens):
            try:
                logits[row] = self.read(range(row, row + 1), [token], tap_of)[0]
            except Exception as error:
                failures[row] = error
        self.add_column()
        return logits, failures

    def make_column(self) -> None:
        """Move the rows to the left where there is no column for a new token."""
        if self.end == self.cache.capacity:
            self.move(max(self.lengths))

    def add_column(self) -> None:
        """Every row has read one token more."""
        self.cache.length += 1
        self.lengths = [n + 1 for n in self.lengths]

    def read(self, rows: range, tokens: Sequence[int], tap_of: TapOf) -> NextLogits:
        """Write a token of each of these rows into the column behind the last one, and return their logits."""
        lengths, device = self.lengths[rows.start : rows.stop], self.cache.store.device
        view, tap = self.cache.some_rows(rows.start, rows.stop), tap_of(rows, self.end + 1)
        if self.compiled is not None and len(tokens) == 1 and tap is OFF:
            return self.compiled(tokens[0], view, lengths[0])
        return last_logits(
            self.network,
            torch.tensor([[token] for token in tokens], device=device),
            positions=torch.tensor([[n] for n in lengths], device=device),
            mask=self.visible_columns(rows),
            cache=view,
            tap=tap,
        )

    def visible_columns(self, rows: range) -> Bool[Tensor, "rows 1 columns"] | None:
        """Which columns the next token of each row may read; None where all rows fill them."""
        lengths, device = self.lengths[rows.start : rows.stop], self.cache.store.device
        if min(lengths) == self.end:
            return None
        starts = torch.tensor([self.end - n for n in lengths], device=device)
        return (torch.arange(self.end + 1, device=device) >= starts[:, None])[:, None]

    def columns(self, row: int) -> Tensor:
        """Keys and values [2, n_layers, n_kv_heads, n, d_head] that a row has read, in the cache's own memory."""
        return columns_read(self.cache, row, self.lengths[row])


class DecodingGroup:
    """Sequences that have no edits, or the same ones, and the batch of their keys and values, row by row.

    taps      the edits of all of them
    memory    bytes that the batch may take in order to grow less often (`BatchCache`)
    compiled  the step of a single sequence that nothing edits, where there is one
    """

    def __init__(
        self,
        network: Transformer,
        taps: TapFactory,
        max_rows: int,
        memory: int,
        compiled: CompiledStep | None = None,
    ):
        self.taps = taps
        self.batch = BatchCache(network, max_rows, memory, compiled)
        self.generations: list[Generation] = []

    def join(self, generation: Generation, cache: Cache, width: int) -> None:
        """Add a sequence that `cache` holds and that grows to `width` tokens."""
        self.batch.join(cache, width)
        self.generations.append(generation)

    def leave(self, row: int) -> None:
        """Take a sequence out of the batch; the last row takes its place."""
        self.batch.leave(row)
        self.generations[row] = self.generations[-1]
        self.generations.pop()

    def clear(self) -> None:
        """Take all sequences out of the batch."""
        self.batch.clear()
        self.generations.clear()

    def step(self) -> tuple[NextLogits, dict[int, Exception]]:
        """The logits of each row's next token, and what went wrong in the rows that have none.

        Where the step that all rows share fails, each row is computed by itself.
        """
        tokens = [generation.newest for generation in self.generations]
        try:
            return self.batch.step(tokens, self.tap_of), {}
        except Exception:
            return self.batch.step_each(tokens, self.tap_of)

    def tap_of(self, rows: range, width: int) -> Tap:
        """What edits one more token of these rows, which have `width` columns with it."""
        generations: Sequence[Generation] = self.generations[rows.start : rows.stop]
        return self.taps.of(
            [g.prompt for g in generations],
            [g.window_start for g in generations],
            [self.batch.lengths[row] + 1 for row in rows],
            width,
            1,
        )


def columns_read(cache: Cache, row: int, n: int) -> Tensor:
    """The last n columns of a row [2, n_layers, n_kv_heads, n, d_head], in the cache's own memory."""
    return cache.store[:, :, row, :, cache.length - n : cache.length]


def row_columns(width: int) -> int:
    """The columns for rows of so many tokens: half as many more, so that rows are seldom moved to the left."""
    return width + max(1, width // 2)


def column_bytes(network: Transformer) -> int:
    """Bytes of keys, values and token id of one column of one row."""
    a, weight = network.architecture, network.embed.token.weight
    return 2 * a.n_layers * a.n_kv_heads * a.d_head * weight.element_size() + 8


def bytes_of_row(network: Transformer, width: int | None = None) -> int:
    """Bytes that one row of a BatchCache takes; its width is n_ctx unless given."""
    return row_columns(network.architecture.n_ctx if width is None else width) * column_bytes(network)


def rows_in(memory: int, row_bytes: int, max_rows: int, n_ctx: int) -> int:
    """How many rows of so many bytes there may be; GenerationError where there is memory for none."""
    rows = min(max_rows, memory // row_bytes)
    if rows < 1:
        raise GenerationError(
            f"{memory:,} bytes hold the keys and values of no sequence of {n_ctx} tokens: give at least {row_bytes:,}"
        )
    return rows
