"""Setting text aside: which part of a corpus is trained on and which is held out to measure with.

stratified   The held-out part has the share asked for of every script and of every size of document, so that it
             resembles the part that is trained on. Whole documents are held out, exact duplicates always on one side,
             except where a single document would be much of what is held out: such a document gives its last
             characters.
documents    Whole documents of any size that come near the share asked for, or tails where none do. This is the rule
             of runs whose recipe names no rule.
tail         The last characters of every document are held out. For one document and a tenth this is nanoGPT's split,
             `data[:int(n * 0.9)]` and the rest.
files        The documents of the files that were named to be held out.

A run is resumed with the split it began with: a rule that would choose otherwise needs another name.
"""

import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from pellucid.text.read.chunks import DocumentError, TextChunk, counted
from pellucid.text.read.documents import Corpus
from pellucid.text.read.scan import Documents

SPLIT_PARTS = ("train", "held_out")
Rule = Literal["stratified", "documents", "tail", "files"]
#: at least this many documents of its size must be held out before a whole one is: fewer would not resemble the rest
FEWEST_DOCUMENTS = 4
#: rule "documents": how many times less or more than the requested bytes may be held out before tails are taken
REACH = 2
#: how many held-out documents the manifest lists
LISTED_DOCUMENTS = 1000
#: how many characters a sample of a text is taken from
SAMPLED_CHARACTERS = 1 << 26


@dataclass(frozen=True)
class Split:
    """A corpus with its held-out part.

    `cuts[k]` characters of document k are training text and the rest of it is held out. `note` explains the split in a
    sentence.
    """

    corpus: Corpus
    held_out: float
    seed: int
    rule: Rule
    cuts: array
    note: str

    def documents(self, part: str) -> Iterator[Iterator[TextChunk]]:
        """The documents of one part, each as an iterator of chunks. Use up each before you ask for the next."""
        if part not in SPLIT_PARTS:
            raise DocumentError(f"there is no part {part!r}: choose one of {', '.join(SPLIT_PARTS)}")
        lengths, cuts = self.corpus.documents.rows["n_characters"], self.cuts

        def wanted(k: int) -> bool:
            return cuts[k] > 0 if part == "train" else cuts[k] < lengths[k]

        for k, pieces in self.corpus.stream(wanted):
            yield _slice_characters(pieces, *((0, cuts[k]) if part == "train" else (cuts[k], lengths[k])))

    def texts(self, part: str) -> Iterator[str]:
        """The text of one part, in chunks, such as a tokenizer is trained on."""
        for pieces in self.documents(part):
            yield from (piece.text for piece in pieces)

    def sample(self, n: int = 50_000, runs: int = 50) -> str:
        """`n` characters of the training text in `runs` stretches spread over its first 67 million, or all of a shorter
        text.
        """
        total = min(sum(self.cuts), SAMPLED_CHARACTERS)
        starts, each = ([k * total // runs for k in range(runs)], n // runs) if total > n else ([0], total)
        at, stretches = 0, []
        for text in self.texts("train"):
            inside = [start - at for start in starts if at - each < start < at + len(text)]
            stretches += [text[max(first, 0) : first + each] for first in inside]
            at += len(text)
            if at >= total:
                break
        return "".join(stretches)

    @property
    def n_bytes(self) -> int:
        """Bytes of the text, without the files that were named to be held out."""
        files = (source.held_out for source in self.corpus.sources)
        named = np.fromiter(files, dtype=bool)[self.corpus.documents.rows["source"]]
        return int(self.corpus.documents.rows["n_bytes"][~named].sum())

    def held_out_documents(self) -> list[tuple[str, int, int]]:
        """The first LISTED_DOCUMENTS with a held-out part: (file, number in the file, first character held out)."""
        rows, sources = self.corpus.documents.rows, self.corpus.sources
        numbers = np.flatnonzero(np.array(self.cuts) < rows["n_characters"])[:LISTED_DOCUMENTS]
        named = zip(numbers, rows["source"][numbers].tolist(), rows["index"][numbers].tolist(), strict=True)
        return [(sources[source].path, index, self.cuts[k]) for k, source, index in named]

    def to_dict(self) -> dict:
        """The options that decide the split, in plain JSON types."""
        return {"held_out": self.held_out, "seed": self.seed, "rule": self.rule}


def split_corpus(corpus: Corpus, held_out: float = 0.1, seed: int = 0, rule: Rule = "stratified") -> Split:
    """Set aside about `held_out` of the bytes of `corpus`; the same corpus, share, seed and rule give the same split.

    If files were named to be held out, exactly these are held out, and the other arguments have no effect.
    Raises DocumentError for a share outside (0, 1) and for a corpus too small to have both parts.
    """
    lengths = corpus.documents.rows["n_characters"]
    if any(source.held_out for source in corpus.sources):
        return _split_as_named(corpus, lengths)
    if not 0 < held_out < 1:
        raise DocumentError(f"held_out = {held_out}: expected a share above 0 and below 1, such as 0.1")
    if rule not in CHOICES:
        raise DocumentError(f"text.split = {rule!r}: choose one of {', '.join(CHOICES)}")
    chosen, uncut = CHOICES[rule](corpus, held_out, seed)
    cuts = np.where(uncut, np.where(chosen, 0, lengths), (lengths * (1 - held_out)).astype(np.int64))
    if not cuts.any() or (cuts == lengths).all():
        n = lengths.sum()
        raise DocumentError(f"{n} characters are too few to hold {held_out:.1%} of them out: give more text")
    split = Split(corpus, held_out, seed, rule if uncut.any() else "tail", array("q", cuts.tobytes()), "")
    return replace(split, note=_note(split, rule, chosen, uncut))


def _split_as_named(corpus: Corpus, lengths: np.ndarray) -> Split:
    """Hold out the documents of the files that were named for it, and train on all others."""
    files = [source.held_out for source in corpus.sources]
    named = np.array(files)[corpus.documents.rows["source"]]
    if named.all():
        raise DocumentError("every text to train on is also held out, and was left out: give other text to train on")
    n_bytes = int(corpus.documents.rows["n_bytes"][named].sum())
    documents, own = counted(int(named.sum()), "document"), counted(sum(files), "file")
    note = f"held out: {documents}, {n_bytes:,} bytes, of {own} of your own"
    return Split(corpus, 0.0, 0, "files", array("q", np.where(named, 0, lengths).tobytes()), note)


def _note(split: Split, asked: Rule, chosen: np.ndarray, uncut: np.ndarray) -> str:
    """Describe the held-out part, and give the reason where it is not what one would expect."""
    share, n, n_chosen, n_cut = f"{split.held_out:.1%}", len(uncut), int(chosen.sum()), int((~uncut).sum())
    if n == n_cut == 1:
        return f"the last {share} of the characters of the one document is held out"
    if n == n_cut:
        why = {
            "tail": "as asked",
            "documents": "no choice of whole documents comes near that share",
            "stratified": "there are too few of similar size and script to hold out whole documents (about "
            f"{FEWEST_DOCUMENTS / min(split.held_out, 1 - split.held_out):.0f} are needed)",
        }
        return f"the last {share} of every document is held out: {why[asked]}"
    lengths, n_bytes = split.corpus.documents.rows["n_characters"], split.corpus.documents.rows["n_bytes"]
    reached = float(((lengths - np.array(split.cuts)) / lengths * n_bytes).sum() / n_bytes.sum())
    reached_for = f"{reached:.1%} of the bytes ({share} requested)"
    if not n_cut:
        return f"{n_chosen:,} of {n:,} documents {'is' if n_chosen == 1 else 'are'} held out, {reached_for}"
    others = "1 other, which is" if n_cut == 1 else f"{n_cut:,} others, which are"
    return (
        f"{n_chosen:,} of {n:,} documents are held out, {reached_for}, among these the last {share} of {others} too "
        "large or too few of a script to be held out whole"
    )


# How documents are chosen. Each function returns two bool arrays [documents]: held out whole, and not cut --------


def _choose_none(corpus: Corpus, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rule "tail": cut every document."""
    none = np.zeros(len(corpus.documents), dtype=bool)
    return none, none


def _choose_near(corpus: Corpus, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rule "documents": hold out whole documents, in the order of their hashes.

    A text is held out if that brings the share nearer to the requested one; two more rounds add or return texts in the
    same way.
    """
    firsts, text, sizes = _texts(corpus.documents)
    order = np.lexsort(_hashes(corpus.documents, firsts, seed)).tolist()
    target = held_out * sizes.sum()
    chosen = bytearray(len(firsts))
    total, of = 0, sizes.tolist()
    for k in itertools.chain(order, order, order):
        change = -of[k] if chosen[k] else of[k]
        if abs(total + change - target) < abs(total - target):
            chosen[k] ^= 1
            total += change
    near = target / REACH <= total <= target * REACH and 0 < total < corpus.n_bytes
    return np.frombuffer(chosen, dtype=bool)[text], np.full(len(text), near)


def _choose_stratified(corpus: Corpus, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rule "stratified": hold out the same share of every script and of every size of text.

    Within a script, texts are visited from the smallest to the largest, and a text is held out if that brings the
    held-out bytes nearer to their share of the bytes visited. Sizes are ordered by powers of two, texts of one size by
    folder, and texts of one folder by a hash with the seed. At every step of this order the held-out bytes differ from
    their share by at most half of the largest text visited.
    """
    firsts, text, sizes = _texts(corpus.documents)
    scripts = corpus.documents.rows["script"][firsts]
    folders = _folders(corpus)[corpus.documents.rows["source"][firsts]]
    uncut, chosen = np.zeros(len(firsts), dtype=bool), np.zeros(len(firsts), dtype=bool)
    hashes, octaves = _hashes(corpus.documents, firsts, seed), np.frexp(sizes)[1]
    for script in np.flatnonzero(np.bincount(scripts)):
        here = np.flatnonzero(scripts == script)
        small = here[_short_documents_mask(sizes[here], held_out)]
        uncut[small] = True
        order = small[np.lexsort((*(hashed[small] for hashed in hashes), folders[small], octaves[small]))]
        total = seen = 0
        for k, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            seen += size
            if 2 * total + size <= 2 * held_out * seen:
                chosen[k], total = True, total + size
    return chosen[text], uncut[text]


def _short_documents_mask(sizes: np.ndarray, held_out: float) -> np.ndarray:
    """Mark the texts that may be held out whole: as many of the smallest as possible, none above
    1 / FEWEST_DOCUMENTS of the smaller part.
    """
    order = np.argsort(sizes, kind="stable")
    least = min(held_out, 1 - held_out) / FEWEST_DOCUMENTS
    fits = np.flatnonzero(sizes[order] <= least * np.cumsum(sizes[order]))
    small = np.zeros(len(sizes), dtype=bool)
    small[order[: fits[-1] + 1 if len(fits) else 0]] = True
    return small


def _texts(documents: Documents) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The number of the first document with each text, each document's text number, and the bytes of each text."""
    firsts, text = documents.same_text()
    return firsts, text, np.bincount(text, weights=documents.rows["n_bytes"]).astype(np.int64)


def _hashes(documents: Documents, firsts: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """A hash of each text and the seed, as columns for np.lexsort, the most significant last."""
    salt = str(seed).encode() + b"\0"
    salted = b"".join(hashlib.sha256(salt + documents.digest(k)).digest() for k in firsts)
    return tuple(np.frombuffer(salted, dtype=">u8").reshape(len(firsts), -1).T[::-1])


def _folders(corpus: Corpus) -> np.ndarray:
    """A number for the folder of each document's file; a file of many documents has its own number."""
    names = [s.path if s.n_documents > 1 else str(PurePosixPath(s.path).parent) for s in corpus.sources]
    number = {name: k for k, name in enumerate(sorted(set(names)))}
    return np.array([number[name] for name in names])


CHOICES: dict[str, Callable[[Corpus, float, int], tuple[np.ndarray, np.ndarray]]] = {
    "stratified": _choose_stratified,
    "documents": _choose_near,
    "tail": _choose_none,
}


def _slice_characters(pieces: Iterator[TextChunk], start: int, stop: int) -> Iterator[TextChunk]:
    """Characters `start` to `stop` of a document. The document is read to its end, so that a change is noticed."""
    at = 0
    for piece in pieces:
        here, at = at, at + len(piece.text)
        if at > stop:
            piece = piece.cut(max(stop - here, 0))[0]
        if here < start:
            piece = piece.cut(min(start - here, len(piece.text)))[1]
        if piece.text:
            yield piece
