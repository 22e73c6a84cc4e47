"""Keys and values of earlier prompts, kept so that later prompts that begin alike need not be read again."""

from collections import OrderedDict
from collections.abc import Sequence

from pellucid.model import Cache, Transformer


class PrefixCache:
    """Caches of sequences that were read from position 0, the least recently used forgotten first.

    Keys and values at a position depend on the tokens up to it alone (the mask is causal), so that a prompt whose first
    n tokens are those of a kept sequence needs no computation for them, and its numbers are the same.

    budget   bytes that are kept at most; 0 keeps nothing
    """

    def __init__(self, network: Transformer, budget: int):
        self.network = network
        self.budget = budget if network.architecture.attention.mask == "causal" else 0
        self.nbytes = 0
        self.entries: OrderedDict[tuple[int, ...], Cache] = OrderedDict()
        #: tokens that were asked for, and those of them that were not read again
        self.asked, self.reused = 0, 0

    def start(self, tokens: Sequence[int], capacity: int) -> Cache:
        """A cache of `capacity` columns that holds the longest known beginning of `tokens`, short of the last one."""
        a, weight = self.network.architecture, self.network.embed.token.weight
        cache = Cache(a, 1, capacity, dtype=weight.dtype, device=weight.device)
        self.asked += len(tokens)
        best = max(self.entries, key=lambda known: common_length(known, tokens), default=())
        # the last token is read in any case: its logits are wanted
        n = min(common_length(best, tokens), len(tokens) - 1)
        if n > 0:
            self.entries.move_to_end(best)
            known = self.entries[best]
            cache.store[..., :n, :] = known.store[..., :n, :]
            cache.tokens[:, :n] = known.tokens[:, :n]
            cache.length = n
            self.reused += n
        return cache

    def known(self, tokens: Sequence[int]) -> int:
        """How many tokens of the beginning are known."""
        return max((common_length(entry, tokens) for entry in self.entries), default=0)

    def keep(self, tokens: Sequence[int], cache: Cache) -> None:
        """Keep what a cache of one row has read of `tokens`, and forget what it makes superfluous or too much."""
        key = tuple(tokens[: cache.length])
        if not key or cache.nbytes > self.budget:
            return
        if any(common_length(known, key) == len(key) for known in self.entries):
            return
        for known in [known for known in self.entries if common_length(known, key) == len(known)]:
            self.forget(known)
        self.entries[key] = cache
        self.nbytes += cache.nbytes
        while self.nbytes > self.budget:
            self.forget(next(iter(self.entries)))

    def forget(self, key: tuple[int, ...]) -> None:
        self.nbytes -= self.entries.pop(key).nbytes


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginnings."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
