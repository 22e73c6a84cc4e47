"""Setting text aside: which part of a corpus is trained on and which is held out to measure with.

By documents where that comes near the share asked for: whole documents, in an order drawn by hashing
their text with the seed, exact duplicates always on one side. Otherwise by tail: the last characters
of every document. For one document and a tenth this is nanoGPT's split, `data[:int(n * 0.9)]` and the rest.
"""

import hashlib
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pellucid.text.documents import Corpus
from pellucid.text.pieces import DocumentError, Piece
from pellucid.text.scan import Documents

PARTS = ("train", "held_out")
#: held-out bytes may be this many times less or more than asked for before whole documents are given up
REACH = 2
#: characters from which a sample of a text is taken
SAMPLED = 1 << 26


@dataclass(frozen=True)
class Split:
    """`cuts[k]` characters of document k are training text, the rest of it is held out; `note` says why in words."""

    corpus: Corpus
    held_out: float
    seed: int
    rule: Literal["documents", "tail"]
    cuts: array
    note: str

    def documents(self, part: str) -> Iterator[Iterator[Piece]]:
        """The documents of one part, or what the part has of each, as pieces; each is to be used up before the next."""
        if part not in PARTS:
            raise DocumentError(f"there is no part {part!r}: say one of {', '.join(PARTS)}")
        lengths, cuts = self.corpus.documents.n_characters, self.cuts

        def wanted(k: int) -> bool:
            return cuts[k] > 0 if part == "train" else cuts[k] < lengths[k]

        for k, pieces in self.corpus.stream(wanted):
            yield _between(pieces, *((0, cuts[k]) if part == "train" else (cuts[k], lengths[k])))

    def texts(self, part: str) -> Iterator[str]:
        """The text of one part, in pieces: what a tokenizer is trained on."""
        for pieces in self.documents(part):
            yield from (piece.text for piece in pieces)

    def sample(self, n: int = 50_000, runs: int = 50) -> str:
        """`n` characters of the training text, or all it has: `runs` of them, spread over its first 67 million."""
        total = min(sum(self.cuts), SAMPLED)
        starts, each = ([k * total // runs for k in range(runs)], n // runs) if total > n else ([0], total)
        at, found = 0, []
        for text in self.texts("train"):
            inside = [start - at for start in starts if at - each < start < at + len(text)]
            found += [text[max(first, 0) : first + each] for first in inside]
            at += len(text)
            if at >= total:
                break
        return "".join(found)

    def to_dict(self) -> dict:
        """What decides the split, in plain JSON types."""
        return {"held_out": self.held_out, "seed": self.seed, "rule": self.rule}


def split_corpus(corpus: Corpus, held_out: float = 0.1, seed: int = 0) -> Split:
    """Set aside about `held_out` of the bytes of `corpus`; the same corpus, share and seed give the same split.

    Raises DocumentError for a share outside (0, 1) and for a corpus too small to have both parts.
    """
    if not 0 < held_out < 1:
        raise DocumentError(f"held_out = {held_out}: expected a share above 0 and below 1, such as 0.1")
    documents = corpus.documents
    chosen, n_bytes = _choose(documents, held_out, seed)
    target = held_out * corpus.n_bytes
    share = f"{n_bytes / corpus.n_bytes:.1%} of the bytes for {held_out:.1%} asked"
    lengths = np.array(documents.n_characters)
    if target / REACH <= n_bytes <= target * REACH and 0 < n_bytes < corpus.n_bytes:
        cuts = np.where(chosen, 0, lengths)
        note = f"{chosen.sum()} of {len(cuts)} documents are held out, {share}"
        return Split(corpus, held_out, seed, "documents", array("q", cuts.tobytes()), note)
    cuts = (lengths * (1 - held_out)).astype(np.int64)
    if not cuts.any() or (cuts == lengths).all():
        n = lengths.sum()
        raise DocumentError(f"{n} characters are too few to hold {held_out:.1%} of them out: give more text")
    if len(cuts) == 1:
        note = f"the last {held_out:.1%} of the characters of the one document is held out"
    else:
        note = (
            f"the last {held_out:.1%} of every document is held out: no choice of whole documents comes near that share"
        )
    return Split(corpus, held_out, seed, "tail", array("q", cuts.tobytes()), note)


def _choose(documents: Documents, held_out: float, seed: int) -> tuple[np.ndarray, int]:
    """Which documents to hold out, bool [documents], and their bytes.

    In hashed order each text is taken if that brings the share nearer; in two more rounds each is taken or put back so.
    """
    firsts, text = documents.same_text()
    sizes = np.bincount(text, weights=documents.n_bytes).astype(np.int64)
    salt = str(seed).encode() + b"\0"
    salted = b"".join(hashlib.sha256(salt + documents.digest(k)).digest() for k in firsts)
    keys = np.frombuffer(salted, dtype=">u8").reshape(len(firsts), -1)
    order = np.lexsort(keys.T[::-1]).tolist()
    target = held_out * sizes.sum()
    chosen = bytearray(len(firsts))
    total, of = 0, sizes.tolist()
    for k in itertools.chain(order, order, order):
        change = -of[k] if chosen[k] else of[k]
        if abs(total + change - target) < abs(total - target):
            chosen[k] ^= 1
            total += change
    return np.frombuffer(chosen, dtype=bool)[text], total


def _between(pieces: Iterator[Piece], start: int, stop: int) -> Iterator[Piece]:
    """Characters `start` to `stop` of a document; it is read to its end, so that a change is noticed."""
    at = 0
    for piece in pieces:
        here, at = at, at + len(piece.text)
        if at > stop:
            piece = piece.cut(max(stop - here, 0))[0]
        if here < start:
            piece = piece.cut(min(start - here, len(piece.text)))[1]
        if piece.text:
            yield piece
