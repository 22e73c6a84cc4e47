"""A decoding step with fixed shapes, so that CUDA can record it once and replay it for every token.

A small network on a GPU spends its step on launching kernels one by one; a CUDA graph launches them together. A
recorded graph must use the same memory every time: queries read the whole cache, and a mask hides its unfilled part.
The step is tested on the CPU, where nothing is recorded. Recording itself was never run, because no GPU was available,
so it is used only where `cuda_graphs` asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.generate.readers import CachedReader, NextLogits, last_logits
from pellucid.model import Cache, Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import NoCache
from pellucid.model.shapes import Keys, NewKeys


@dataclass
class StaticCacheLayer(NoCache):
    """The keys and values of one layer, all columns; new ones are written to column `at`, int64 [1]."""

    keys: Tensor
    values: Tensor
    at: Tensor

    def of_source(self) -> NoCache:
        return NoCache()

    def extend(self, k: NewKeys, v: NewKeys) -> tuple[Keys, Keys]:
        self.keys.index_copy_(2, self.at, k)
        self.values.index_copy_(2, self.at, v)
        return self.keys, self.values


class StaticCache(NoCache):
    """A Cache with the interface of the recorded step: only tensors, at fixed addresses."""

    def __init__(self, cache: Cache, at: Tensor):
        self.store, self.at = cache.store, at

    def __getitem__(self, layer: int) -> StaticCacheLayer:
        return StaticCacheLayer(self.store[0, layer], self.store[1, layer], self.at)


class FixedShapeStep:
    """One more token for every row of a cache.

    inputs   int64 [3, rows]: the tokens, their positions, and each row's first column
    at       int64 [1]: the column that they are written to
    """

    def __init__(self, network: Transformer, cache: Cache):
        rows, device = cache.store.size(2), cache.store.device
        self.network, self.cache = network, cache
        self.inputs = torch.zeros((3, rows), dtype=torch.int64, device=device)
        self.at = torch.full((1,), cache.length, device=device)
        self.columns = torch.arange(cache.capacity, device=device)
        self.standing = StaticCache(cache, self.at)
        self.graph = None
        if device.type == "cuda":
            self.record()

    def compute(self) -> NextLogits:
        """The logits [rows, n_vocab] for the present inputs."""
        tokens, positions, starts = self.inputs[:, :, None]
        mask = ((self.columns >= starts) & (self.columns <= self.at))[:, None]
        return last_logits(self.network, tokens, positions=positions, mask=mask, cache=self.standing)

    def record(self) -> None:
        """Record the step after warm-up calls on a separate stream, as CUDA graphs require; never run so far.

        The next token overwrites the column that these calls write.
        """
        device, graph = self.inputs.device, torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device):  # only what runs on the current device is recorded
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.compute()
            torch.cuda.current_stream(device).wait_stream(stream)
            with torch.cuda.graph(graph, stream=stream):
                self.logits = self.compute()
        self.graph = graph

    def __call__(self, tokens: Sequence[int], positions: Sequence[int], starts: Sequence[int]) -> NextLogits:
        """The logits after these tokens, which are now in the cache."""
        self.inputs.copy_(torch.tensor([list(tokens), list(positions), list(starts)]))
        self.at.fill_(self.cache.length)
        if self.graph is None:
            logits = self.compute()
        else:
            self.graph.replay()
            logits = self.logits.clone()
        self.cache.advance(1)
        return logits


class GraphedReader(CachedReader):
    """A cached reader that replays its steps. A new cache (rows dropped, or a text outgrew it) needs a new step."""

    recorded: FixedShapeStep | None = None

    def step(self, tokens: Sequence[int], prompts: Sequence[int]) -> NextLogits:
        """Read one more token of every row."""
        assert self.cache is not None
        if self.recorded is None or self.recorded.cache is not self.cache:
            self.recorded = FixedShapeStep(self.network, self.cache)
        positions = [min(n, self.n_ctx - 1) for n in self.lengths]
        return self.recorded(tokens, positions, [self.cache.length - n for n in self.lengths])


def has_fixed_shapes(network: Transformer) -> bool:
    """Whether a step is the same function of tensors for every length: no encoder, no experts (whose tensors are as
    long as the tokens that chose them), no n-grams (which look back at tokens), and no masks that depend on a distance.
    """
    layers = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    has_none = network.encoder is None and network.embed.ngrams is None and not network.architecture.mlp.experts
    return has_none and all(m.mask.plain for m in layers)
