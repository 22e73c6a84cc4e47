"""Keys and values of earlier prompts, kept so that later prompts that begin alike need not be read again.

They lie in blocks of BLOCK_TOKENS. A block knows the one before it, and prompts that begin alike share the blocks of
their beginning: many conversations over one system prompt hold it once. The last block of a sequence may be filled in
part. A sequence that goes on with the same tokens fills it up; one that goes on otherwise gets a block of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pellucid.model import Cache, Transformer

#: tokens of a block
BLOCK_TOKENS = 16


@dataclass(eq=False)
class Block:
    """The keys and values of up to BLOCK_TOKENS tokens behind those of another block.

    slot    where they lie in the cache's store
    tokens  their ids
    before  the block of the tokens before them; None at the beginning
    after   the blocks that follow this one, by their first token, while it is full
    """

    slot: int
    tokens: tuple[int, ...]
    before: "Block | None"
    after: dict[int, list["Block"]] = field(default_factory=dict)


class PrefixCache:
    """Blocks of sequences that were read from position 0, the least recently used forgotten first.

    Keys and values at a position depend on the tokens up to it alone (the mask is causal), so that a prompt whose first
    n tokens are those of kept blocks needs no computation for them, and its numbers are the same.

    budget   bytes that are kept at most; fewer than those of one block keep nothing
    store    [slot, 2, n_layers, n_kv_heads, BLOCK_TOKENS, d_head]: memory that the system gives when it is written
    blocks   the blocks in use, the least recently used first; each comes before the one that it follows
    """

    def __init__(self, network: Transformer, budget: int):
        self.network = network
        a, weight = network.architecture, network.embed.token.weight
        shape = (2, a.n_layers, a.n_kv_heads, BLOCK_TOKENS, a.d_head)
        self.block_bytes = 2 * a.n_layers * a.n_kv_heads * BLOCK_TOKENS * a.d_head * weight.element_size()
        n_blocks = budget // self.block_bytes if a.attention.mask == "causal" else 0
        self.store = torch.empty((n_blocks, *shape), dtype=weight.dtype, device=weight.device)
        self.free_slots = list(range(n_blocks))
        self.first_blocks: dict[int, list[Block]] = {}
        self.blocks: OrderedDict[Block, None] = OrderedDict()
        #: tokens that were asked for, and those of them that were not read again
        self.asked, self.reused = 0, 0

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in use."""
        return len(self.blocks) * self.block_bytes

    def start(self, tokens: Sequence[int], capacity: int) -> Cache:
        """A cache of `capacity` columns that holds the longest known beginning of `tokens`, short of the last one."""
        a, weight = self.network.architecture, self.network.embed.token.weight
        cache = Cache(a, 1, capacity, dtype=weight.dtype, device=weight.device)
        self.asked += len(tokens)
        self.extend(cache, tokens)
        return cache

    def extend(self, cache: Cache, tokens: Sequence[int]) -> int:
        """Copy what is known of `tokens`, short of the last one, behind what a cache holds; how many tokens that is."""
        chain, n_known = self.find(tokens)
        self.touch(chain)
        # the last token is read in any case: its logits are wanted
        begin, n = cache.length, min(n_known, len(tokens) - 1)
        if n <= begin:
            return 0
        for number, block in enumerate(chain):
            at = number * BLOCK_TOKENS
            first, end = max(begin, at), min(n, at + BLOCK_TOKENS)
            if first < end:
                cache.store[:, :, 0, :, first:end] = self.store[block.slot][..., first - at : end - at, :]
        cache.tokens[0, begin:n] = torch.tensor(tokens[begin:n])
        cache.length = n
        self.reused += n - begin
        return n - begin

    def known(self, tokens: Sequence[int]) -> int:
        """How many tokens of the beginning are known."""
        return self.find(tokens)[1]

    def find(self, tokens: Sequence[int]) -> tuple[list[Block], int]:
        """The blocks that hold the longest known beginning of `tokens`, and its length."""
        chain: list[Block] = []
        after = self.first_blocks
        n = 0
        while n < len(tokens):
            following = tokens[n : n + BLOCK_TOKENS]
            lengths = [common_length(block.tokens, following) for block in after.get(following[0], [])]
            if not lengths:
                break
            shared = max(lengths)
            best = after[following[0]][lengths.index(shared)]
            chain.append(best)
            n += shared
            if shared < BLOCK_TOKENS:
                break
            after = best.after
        return chain, n

    def keep(self, tokens: Sequence[int], columns: Tensor) -> None:
        """Keep keys and values [2, n_layers, n_kv_heads, n, d_head] of the first n of `tokens`.

        What is known already is not kept twice. Where memory is wanting, the blocks used longest ago are forgotten, and
        the end of a sequence that does not fit by itself is left out.
        """
        ids = tuple(tokens[: columns.size(-2)])
        chain, n_known = self.find(ids)
        self.touch(chain)
        if n_known == len(ids):
            return
        if chain and n_known < BLOCK_TOKENS * (len(chain) - 1) + len(chain[-1].tokens):
            # the last block goes on otherwise than this sequence, which gets one of its own
            chain.pop()
        elif chain and len(chain[-1].tokens) < BLOCK_TOKENS:
            self.fill(chain[-1], ids, columns, BLOCK_TOKENS * (len(chain) - 1))
        for begin in range(BLOCK_TOKENS * len(chain), len(ids), BLOCK_TOKENS):
            if not self.free_slots and not self.forget_oldest(chain):
                break
            block = Block(self.free_slots.pop(), (), chain[-1] if chain else None)
            self.fill(block, ids, columns, begin)
            self.after(block.before).setdefault(block.tokens[0], []).append(block)
            self.blocks[block] = None
            chain.append(block)
        self.touch(chain)

    def fill(self, block: Block, tokens: tuple[int, ...], columns: Tensor, begin: int) -> None:
        """Write the tokens from `begin` on into a block."""
        block.tokens = tokens[begin : begin + BLOCK_TOKENS]
        n = len(block.tokens)
        self.store[block.slot][..., :n, :] = columns[..., begin : begin + n, :]

    def after(self, block: Block | None) -> dict[int, list[Block]]:
        """The blocks that follow this one, by their first token; None has the first blocks of sequences."""
        return self.first_blocks if block is None else block.after

    def touch(self, chain: Sequence[Block]) -> None:
        """These blocks are the most recently used, each one more recently than those that follow it."""
        for block in reversed(chain):
            self.blocks.move_to_end(block)

    def forget_oldest(self, chain: Sequence[Block]) -> bool:
        """Give back the least recently used block, which none follows; False where `chain` holds all there are."""
        block = next(iter(self.blocks), None)
        if block is None or block in chain:
            return False
        del self.blocks[block]
        siblings = self.after(block.before)[block.tokens[0]]
        siblings.remove(block)
        if not siblings:
            del self.after(block.before)[block.tokens[0]]
        self.free_slots.append(block.slot)
        return True


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginnings."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
