"""Keys and values already computed, so that a new position need not compute them again."""

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model.shapes import History, Keys, NewKeys, Queries, Tokens, Visible
from pellucid.model.tap import Tap
from pellucid.option_values import ArchitectureError


class NoCache:
    """Remembers nothing: every position is in the call."""

    length = 0

    def __getitem__(self, layer: int) -> "NoCache":
        return self

    def of_source(self) -> "NoCache":
        """What cross-attention is given: keys and values of an encoder's output, computed once."""
        return self

    def recall(self, compute: Callable[[], tuple[NewKeys, NewKeys]]) -> tuple[NewKeys, NewKeys]:
        """The new keys and values."""
        return compute()

    def extend(self, k: NewKeys, v: NewKeys) -> tuple[Keys, Keys]:
        return k, v

    def attended(
        self, attend: Callable[..., Queries], q: Queries, k: NewKeys, v: NewKeys, visible: Visible | None, tap: Tap
    ) -> Queries:
        """z, as `attend` computes it from the queries and all keys and values up to now."""
        return attend(q, *self.extend(k, v), visible, tap)

    def remember(self, tokens: Tokens) -> History:
        """The tokens read so far, these among them."""
        return tokens

    def advance(self, n: int) -> None:
        pass


def zeros(shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """`torch.zeros`; on a CPU of memory that is zero by itself, so that what is never written takes no time.

    `torch.zeros` writes all of it: 110 ms for eight rows of 800 columns of GPT-2 small (docs/experiments/serving.md).
    """
    empty = torch.empty(0, dtype=dtype, device=device)
    if empty.device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    n_bytes = math.prod(shape) * empty.element_size()
    memory = torch.frombuffer(mmap.mmap(-1, max(1, n_bytes)), dtype=torch.uint8)
    return memory[:n_bytes].view(empty.dtype).view(shape)


class Cache(NoCache):
    """Room for `capacity` positions (n_ctx unless said) of every layer's keys and values, filled from the left.

    It keeps numbers, not gradients: the model is called under `torch.no_grad()`.
    Memory is asked for once: 2 n_layers batch n_kv_heads capacity d_head numbers, and batch capacity
    token ids, which n-grams reach back to (`nbytes` bytes). On a CPU the system gives it as it is first written.
    Raises ArchitectureError where earlier positions read later ones, so that nothing can be kept.
    """

    def __init__(
        self,
        a: Architecture,
        batch: int = 1,
        capacity: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        if a.attention.mask == "bidirectional":
            raise ArchitectureError(
                "attention.mask = bidirectional: a cache needs masks under which nothing earlier reads what "
                "comes later (causal, or prefix after its prefix); call the model without a cache"
            )
        self.capacity = capacity or a.n_ctx
        shape = (2, a.n_layers, batch, a.n_kv_heads, self.capacity, a.d_head)
        self.store = zeros(shape, dtype, device)
        self.tokens = torch.zeros((batch, self.capacity), dtype=torch.int64, device=device)
        self.length, self.border = 0, a.frequency_border
        #: by layer, keys and values of the encoder's output [batch, kv_head, source_pos, d_head]
        self.sources: dict[int, tuple[Tensor, Tensor]] = {}

    def __getitem__(self, layer: int) -> "CacheLayer":
        """One layer's part, as its attention sees it."""
        source = CachedSource(self.sources, layer)
        return CacheLayer(self.store[0, layer], self.store[1, layer], source, self.length)

    def remember(self, tokens: Tokens) -> History:
        """The tokens read so far, these behind the kept ones."""
        end = self.length + tokens.size(1)
        if end <= self.capacity:  # what does not fit is refused where keys and values are kept
            self.tokens[:, self.length : end] = tokens
        return self.tokens[:, :end]

    def advance(self, n: int) -> None:
        """n more positions are kept, in every layer."""
        self.length += n

    def crop(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} positions to {length}: give 0 to {self.length}")
        if 0 < length <= self.border < self.length:
            raise ValueError(
                f"cannot crop a cache of {self.length} positions to {length}: longrope has other frequencies for "
                f"texts of up to positions.n_trained = {self.border} positions; crop to 0 and read it again"
            )
        self.length = length
        if not length:
            self.sources.clear()

    def keep_last(self, length: int) -> None:
        """Forget all but the last `length` positions, which move to the left."""
        if (start := self.length - length) > 0:
            self.store[..., :length, :] = self.store[..., start : self.length, :].clone()
            self.tokens[:, :length] = self.tokens[:, start : self.length].clone()
            self.length = length

    def replace(self, rows: list[int], fresh: "Cache") -> None:
        """Put the sequences of another cache in the places of these, their last positions at this one's last."""
        self.store[:, :, rows, :, self.length - fresh.length : self.length] = fresh.store[..., : fresh.length, :]
        self.tokens[rows, self.length - fresh.length : self.length] = fresh.tokens[:, : fresh.length]

    def some_rows(self, begin: int, end: int) -> "Cache":
        """The sequences from `begin` to `end`, in the same memory; `length` is the view's own."""
        view = object.__new__(Cache)
        view.capacity, view.length, view.border, view.sources = self.capacity, self.length, self.border, {}
        view.store, view.tokens = self.store[:, :, begin:end], self.tokens[begin:end]
        return view

    def fork(self, rows: Int[Tensor, " rows"] | None = None) -> "Cache":
        """An independent copy; with `rows`, of those sequences, in that order and repeated where asked."""
        copy = object.__new__(Cache)
        copy.capacity, copy.length, copy.border = self.capacity, self.length, self.border
        copy.store = self.store.clone() if rows is None else self.store.index_select(2, rows)
        copy.tokens = self.tokens.clone() if rows is None else self.tokens.index_select(0, rows)
        # what is kept of a source is never written again, so that copies may share it
        copy.sources = {
            layer: (k, v) if rows is None else (k.index_select(0, rows), v.index_select(0, rows))
            for layer, (k, v) in self.sources.items()
        }
        return copy

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return self.store.nbytes + self.tokens.nbytes + sum(k.nbytes + v.nbytes for k, v in self.sources.values())


@dataclass
class CacheLayer(NoCache):
    """One layer of a Cache: [batch, kv_head, capacity, d_head] each, `length` positions of them filled."""

    keys: Tensor
    values: Tensor
    source: NoCache
    length: int

    def of_source(self) -> NoCache:
        return self.source

    def extend(self, k: NewKeys, v: NewKeys) -> tuple[Keys, Keys]:
        """All keys and values up to now, the new ones written behind the kept ones.

        Raises ValueError when they do not fit or are wanted with gradients, before anything is written.
        """
        if k.requires_grad:
            raise ValueError("a cache keeps numbers, not gradients: call the model under torch.no_grad()")
        end = self.length + k.size(2)
        if end > self.keys.size(2):
            raise ValueError(
                f"{end} positions do not fit into a cache of {self.keys.size(2)}: make one of more capacity"
            )
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


@dataclass
class CachedSource(NoCache):
    """Keys and values of an encoder's output in one layer: computed at the first call and kept.

    The source is that of the first call: another one needs another cache, or `crop(0)`.
    """

    kept: dict[int, tuple[Tensor, Tensor]]
    layer: int

    def recall(self, compute: Callable[[], tuple[NewKeys, NewKeys]]) -> tuple[NewKeys, NewKeys]:
        if self.layer not in self.kept:
            self.kept[self.layer] = compute()
        return self.kept[self.layer]


NO_CACHE = NoCache()
