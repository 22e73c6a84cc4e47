"""Keys and values of sequences that are decoded together while others join and leave.

Every row ends at the same column, so that one step writes the next token of all rows to one column; a row of n tokens
fills the last n columns, and a mask hides what stands before them. A row joins behind the last one, and when a row
leaves, the last one takes its place, so that a step always reads the first rows and nothing else.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import NextLogits, last_logits
from pellucid.model import Cache, Transformer


class BatchCache:
    """Room for sequences, each as long as it can become; memory is taken when they join.

    max_rows  sequences at most
    memory    bytes that the rows may take; while they are copied to more room, both live for a moment
    lengths   tokens that each row has read, row by row
    widths    the most that each row will have read
    end       the column behind the last token of every row
    """

    def __init__(self, network: Transformer, max_rows: int, memory: int):
        self.network, self.max_rows, self.memory = network, max_rows, memory
        self.cache = self.make_cache(1, 1)
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
        self.widths.append(width)
        self.make_room()
        row, n = len(self.lengths), sequence.length
        if not self.lengths:
            self.cache.length = n
        elif n > self.end:
            self.move(n)
        self.cache.store[:, :, row, :, self.end - n : self.end] = sequence.store[:, :, 0, :, :n]
        self.cache.tokens[row, self.end - n : self.end] = sequence.tokens[0, :n]
        self.lengths.append(n)

    def make_room(self) -> None:
        """A larger cache where the rows need one: twice the rows that there were, if memory allows."""
        rows, columns = len(self.widths), row_columns(max(self.widths))
        allocated = self.cache.tokens.size(0)
        if rows <= allocated and columns <= self.cache.capacity:
            return
        if rows > allocated:
            affordable = self.memory // (columns * column_bytes(self.network))
            rows = max(rows, min(2 * allocated, affordable, self.max_rows))
        elif allocated * columns * column_bytes(self.network) <= self.memory:
            rows = allocated
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

    def clear(self) -> None:
        """Remove all rows."""
        self.lengths, self.widths = [], []
        self.cache.length = 0

    def move(self, end: int) -> None:
        """Let all rows end at column `end`."""
        rows, longest = len(self.lengths), max(self.lengths, default=0)
        before, after = slice(self.end - longest, self.end), slice(end - longest, end)
        self.cache.store[:, :, :rows, :, after] = self.cache.store[:, :, :rows, :, before].clone()
        self.cache.tokens[:rows, after] = self.cache.tokens[:rows, before].clone()
        self.cache.length = end

    def step(self, tokens: Sequence[int]) -> NextLogits:
        """Read one more token of every row, and return the logits of each row's next one. No row may be full."""
        if self.end == self.cache.capacity:
            self.move(max(self.lengths))
        rows, device = len(self.lengths), self.cache.store.device
        view = self.cache.first_rows(rows)
        mask = None
        if min(self.lengths) < self.end:
            starts = torch.tensor([self.end - n for n in self.lengths], device=device)
            mask = (torch.arange(self.end + 1, device=device) >= starts[:, None])[:, None]
        logits = last_logits(
            self.network,
            torch.tensor([[token] for token in tokens], device=device),
            positions=torch.tensor([[n] for n in self.lengths], device=device),
            mask=mask,
            cache=view,
        )
        self.cache.length = view.length
        self.lengths = [n + 1 for n in self.lengths]
        return logits

    def step_along(self, tokens: Sequence[int]) -> Float[Tensor, "pos n_vocab"]:
        """Read several tokens of the only row at once, and return the logits after each. They must fit into n_ctx."""
        (length,), n, device = self.lengths, len(tokens), self.cache.store.device
        if self.end + n > self.cache.capacity:
            self.move(length)
        view, start = self.cache.first_rows(1), self.end - length
        columns = torch.arange(self.end + n, device=device)
        visible = (columns >= start) & (columns <= columns[self.end :, None])
        stream = self.network.hidden(
            torch.tensor([list(tokens)], device=device),
            positions=torch.arange(length, length + n, device=device),
            mask=visible[None] if start else None,
            cache=view,
        )
        self.cache.length, self.lengths = view.length, [length + n]
        return self.network.unembed(stream)[0]

    def forget_last(self, n: int) -> None:
        """Forget the last n tokens of the only row."""
        self.cache.crop(self.end - n)
        self.lengths = [self.lengths[0] - n]

    def copy_row(self, row: int) -> Cache:
        """A cache of one row that holds what this row has read."""
        return copy_row(self.network, self.cache, row, self.lengths[row])


def copy_row(network: Transformer, cache: Cache, row: int, n: int) -> Cache:
    """A cache of one row that holds the last n columns of this row."""
    columns, store = slice(cache.length - n, cache.length), cache.store
    copy = Cache(network.architecture, 1, n, dtype=store.dtype, device=store.device)
    copy.store[:, :, 0] = store[:, :, row, :, columns]
    copy.tokens[0] = cache.tokens[row, columns]
    copy.length = n
    return copy


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
