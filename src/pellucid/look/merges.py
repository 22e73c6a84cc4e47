"""How byte-pair encoding came to the tokens of a word: the merges that were made, as a tree over its bytes."""

import itertools
from typing import Any

from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.symbols import byte_characters

#: bytes of a word beyond which its tree is not drawn
LONGEST_WORD = 64


class MergeTrees:
    """The merges of one tokenizer, by their rank: the order in which they were learned.

    Only byte-level BPE merges bytes; for other tokenizers `reason` says so and there are no trees.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.reason = ""
        if not isinstance(tokenizer, BPETokenizer):
            self.reason = f"a tokenizer of kind {tokenizer.kind} does not merge bytes"
            return
        self.ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
        self.byte_of = {character: value for value, character in enumerate(byte_characters())}

    def of_text(self, text: str) -> list[dict[str, Any]]:
        """The words that a text is divided into before merging, each with the trees of its tokens.

        A tree is {bytes, rank, parts}: the bytes in hexadecimal, the rank of the merge that made them (None for a
        single byte), and the two trees that were merged.
        """
        if self.reason or not isinstance(self.tokenizer, BPETokenizer):
            return []
        return [{"bytes": self.hexadecimal(word), "trees": self.of_word(word)} for word in self.tokenizer.words(text)]

    def of_word(self, word: str) -> list[dict[str, Any]] | None:
        """The trees of a word in byte-level characters: the pair of lowest rank is merged until none is left."""
        if len(word) > LONGEST_WORD:
            return None
        nodes = [(character, self.tree(character, None, [])) for character in word]
        while len(nodes) > 1:
            pairs = [(self.ranks.get((a[0], b[0])), k) for k, (a, b) in enumerate(itertools.pairwise(nodes))]
            known = [(rank, k) for rank, k in pairs if rank is not None]
            if not known:
                break
            rank, k = min(known)
            (left, left_tree), (right, right_tree) = nodes[k], nodes[k + 1]
            nodes[k : k + 2] = [(left + right, self.tree(left + right, rank, [left_tree, right_tree]))]
        return [tree for _, tree in nodes]

    def tree(self, characters: str, rank: int | None, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """One node."""
        return {"bytes": self.hexadecimal(characters), "rank": rank, "parts": parts}

    def hexadecimal(self, characters: str) -> str:
        """The bytes of byte-level characters."""
        return bytes(self.byte_of[character] for character in characters).hex()
