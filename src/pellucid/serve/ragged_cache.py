"""Several caches that one pass reads and extends: pieces of prompts beside the newest tokens of a batch.

The tokens of all parts stand one after another in one row. Everything but attention works on each token by itself, and
reads the weights once for all of them; attention is computed part by part, each with its own keys and mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.model import Tap
from pellucid.model.cache import NoCache
from pellucid.model.shapes import NewKeys, Queries, Tokens, Visible


@dataclass(frozen=True)
class RaggedPart:
    """Sequences that are in one cache.

    n_rows    how many there are
    n_new     new tokens of each of them
    visible   True where a new token may read a column [row, query, key]; None where the architecture's rule says it
    """

    cache: NoCache
    n_rows: int
    n_new: int
    visible: Visible | None = None

    def rows(self, x: Tensor) -> Tensor:
        """[1, head, n_rows * n_new, d_head] -> [n_rows, head, n_new, d_head]"""
        return x[0].unflatten(1, (self.n_rows, self.n_new)).transpose(0, 1)


class RaggedCache(NoCache):
    """The caches of all parts; its calls have one row. It keeps no history for embeddings that read earlier tokens."""

    def __init__(self, parts: list[RaggedPart]):
        self.parts = parts
        self.sizes = [part.n_rows * part.n_new for part in parts]

    def __getitem__(self, layer: int) -> "RaggedLayer":
        return RaggedLayer([part.cache[layer] for part in self.parts], self)

    def remember(self, tokens: Tokens) -> Tokens:
        """The tokens of this call: each part's cache remembers its own."""
        for part, ids in zip(self.parts, tokens.split(self.sizes, 1), strict=True):
            part.cache.remember(ids.view(part.n_rows, part.n_new))
        return tokens

    def advance(self, n: int) -> None:
        for part in self.parts:
            part.cache.advance(part.n_new)


class RaggedLayer(NoCache):
    """One layer of a RaggedCache."""

    def __init__(self, layers: list[NoCache], cache: RaggedCache):
        self.layers, self.cache = layers, cache

    def attended(
        self, attend: Callable[..., Queries], q: Queries, k: NewKeys, v: NewKeys, visible: Visible | None, tap: Tap
    ) -> Queries:
        """z of every part's queries, from that part's keys and values."""
        each = []
        new = zip(*(x.split(self.cache.sizes, 2) for x in (q, k, v)), strict=True)
        for part, layer, (new_q, new_k, new_v) in zip(self.cache.parts, self.layers, new, strict=True):
            z = layer.attended(attend, part.rows(new_q), part.rows(new_k), part.rows(new_v), part.visible, tap)
            each.append(z.transpose(0, 1).flatten(1, 2)[None])
        return torch.cat(each, 2)
