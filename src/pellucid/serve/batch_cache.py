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
    """Room for `max_rows` sequences of up to n_ctx tokens, taken once.

    lengths   tokens that each row has read, row by row
    end       the column behind the last token of every row
    """

    def __init__(self, network: Transformer, max_rows: int):
        a, weight = network.architecture, network.embed.token.weight
        self.network, self.n_ctx, self.max_rows = network, a.n_ctx, max_rows
        # half a context more than needed, so that rows are seldom moved to the left
        self.cache = Cache(a, max_rows, a.n_ctx + max(1, a.n_ctx // 2), dtype=weight.dtype, device=weight.device)
        self.lengths: list[int] = []

    @property
    def end(self) -> int:
        return self.cache.length

    def join(self, sequence: Cache) -> None:
        """Add a row that holds what `sequence`, a cache of one row, has read."""
        row, n = len(self.lengths), sequence.length
        if not self.lengths:
            self.cache.length = n
        elif n > self.end:
            self.move(n)
        self.cache.store[:, :, row, :, self.end - n : self.end] = sequence.store[:, :, 0, :, :n]
        self.cache.tokens[row, self.end - n : self.end] = sequence.tokens[0, :n]
        self.lengths.append(n)

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
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
        self.lengths = []
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
        n = self.lengths[row]
        columns = slice(self.end - n, self.end)
        a, store = self.network.architecture, self.cache.store
        copy = Cache(a, 1, n, dtype=store.dtype, device=store.device)
        copy.store[:, :, 0] = store[:, :, row, :, columns]
        copy.tokens[0] = self.cache.tokens[row, columns]
        copy.length = n
        return copy


def bytes_of_row(network: Transformer) -> int:
    """Bytes of keys, values and token ids that one row of a BatchCache takes."""
    a, weight = network.architecture, network.embed.token.weight
    columns = a.n_ctx + max(1, a.n_ctx // 2)
    return columns * (2 * a.n_layers * a.n_kv_heads * a.d_head * weight.element_size() + 8)


def rows_in(memory: int, row_bytes: int, max_rows: int, n_ctx: int) -> int:
    """How many rows of so many bytes there may be; GenerationError where there is memory for none."""
    rows = min(max_rows, memory // row_bytes)
    if rows < 1:
        raise GenerationError(
            f"{memory:,} bytes hold the keys and values of no sequence of {n_ctx} tokens: give at least {row_bytes:,}"
        )
    return rows
