"""Setting text aside: which part of a corpus is trained on and which is held out to measure with.

By documents where that comes near the share asked for: whole documents, in an order drawn by hashing
their text with the seed, exact duplicates always on one side. Otherwise by tail: the last characters
of every document. For one document and a tenth this is nanoGPT's split, `data[:int(n * 0.9)]` and the rest.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pellucid.text.documents import Corpus, Document, DocumentError, Piece

PARTS = ("train", "held_out")
#: held-out bytes may be this many times less or more than asked for before whole documents are given up
REACH = 2


@dataclass(frozen=True)
class Split:
    """`cuts[k]` characters of document k are training text, the rest of it is held out; `note` says why in words."""

    corpus: Corpus
    held_out: float
    seed: int
    rule: Literal["documents", "tail"]
    cuts: tuple[int, ...]
    note: str

    def documents(self, part: str) -> Iterator[Iterator[Piece]]:
        """The documents of one part, or what the part has of each, as pieces."""
        if part not in PARTS:
            raise DocumentError(f"there is no part {part!r}: say one of {', '.join(PARTS)}")
        for document, cut in zip(self.corpus.documents, self.cuts, strict=True):
            start, stop = (0, cut) if part == "train" else (cut, document.n_characters)
            if start < stop:
                yield _between(document, start, stop)

    def texts(self, part: str) -> Iterator[str]:
        """The text of one part, in pieces: what a tokenizer is trained on."""
        for pieces in self.documents(part):
            yield from (piece.text for piece in pieces)

    def to_dict(self) -> dict:
        """What decides the split, in plain JSON types."""
        return {"held_out": self.held_out, "seed": self.seed, "rule": self.rule}


def split_corpus(corpus: Corpus, held_out: float = 0.1, seed: int = 0) -> Split:
    """Set aside about `held_out` of the bytes of `corpus`; the same corpus, share and seed give the same split.

    Raises DocumentError for a share outside (0, 1) and for a corpus too small to have both parts.
    """
    if not 0 < held_out < 1:
        raise DocumentError(f"held_out = {held_out}: expected a share above 0 and below 1, such as 0.1")
    chosen, n_bytes = _choose(corpus.documents, held_out, seed)
    target = held_out * corpus.n_bytes
    share = f"{n_bytes / corpus.n_bytes:.1%} of the bytes for {held_out:.1%} asked"
    if target / REACH <= n_bytes <= target * REACH and 0 < n_bytes < corpus.n_bytes:
        cuts = tuple(0 if document.digest in chosen else document.n_characters for document in corpus.documents)
        held = sum(cut == 0 for cut in cuts)
        note = f"{held} of {len(cuts)} documents are held out, {share}"
        return Split(corpus, held_out, seed, "documents", cuts, note)
    cuts = tuple(int(document.n_characters * (1 - held_out)) for document in corpus.documents)
    if not any(cuts) or all(cut == d.n_characters for cut, d in zip(cuts, corpus.documents, strict=True)):
        n = sum(document.n_characters for document in corpus.documents)
        raise DocumentError(f"{n} characters are too few to hold {held_out:.1%} of them out: give more text")
    if len(cuts) == 1:
        note = f"the last {held_out:.1%} of the characters of the one document is held out"
    else:
        note = (
            f"the last {held_out:.1%} of every document is held out: no choice of whole documents comes near that share"
        )
    return Split(corpus, held_out, seed, "tail", cuts, note)


def _choose(documents: tuple[Document, ...], held_out: float, seed: int) -> tuple[set[bytes], int]:
    """Digests of the documents to hold out, and their bytes.

    In hashed order each is taken if that brings the share nearer; in two more rounds each is taken or put back so.
    """
    sizes: dict[bytes, int] = defaultdict(int)
    for document in documents:
        sizes[document.digest] += document.n_bytes
    order = sorted(sizes, key=lambda digest: hashlib.sha256(str(seed).encode() + b"\0" + digest).digest())
    target = held_out * sum(sizes.values())
    chosen: set[bytes] = set()
    total = 0
    for digest in order * 3:
        change = -sizes[digest] if digest in chosen else sizes[digest]
        if abs(total + change - target) < abs(total - target):
            chosen ^= {digest}
            total += change
    return chosen, total


def _between(document: Document, start: int, stop: int) -> Iterator[Piece]:
    """Characters `start` to `stop` of a document; the file is read to its end, so that a change is noticed."""
    at = 0
    for piece in document.pieces():
        here, at = at, at + len(piece.text)
        if at > stop:
            piece = piece.cut(max(stop - here, 0))[0]
        if here < start:
            piece = piece.cut(min(start - here, len(piece.text)))[1]
        if piece.text:
            yield piece
