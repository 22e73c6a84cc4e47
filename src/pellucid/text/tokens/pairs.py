"""Pairs as ids in memory: two flat arrays, and the offsets at which each text begins in them.

An id takes 2 bytes (4 if the vocabulary is larger than 65,536), and a pair 16 more for its two offsets: a million pairs
of 30 ids on each side take 136 MB. Every run encodes them anew.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pellucid.text.read.pairs import PairsError, PairSplit
from pellucid.text.read.rows import TOGETHER, Progress
from pellucid.text.split import PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import FORMAT, check_ids, dtype_for


@dataclass(frozen=True)
class Side:
    """The texts of one side as one flat array of ids; a separator ends each. Text k is ids[starts[k] :
    starts[k + 1]].
    """

    ids: np.ndarray
    starts: np.ndarray
    n_bytes: int
    unknown: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """The number of ids of each text with its separator, int64 [texts]."""
        return np.diff(self.starts)

    def rows(self, numbers: np.ndarray, width: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
        """These texts left-aligned, int64 [len(numbers), width] filled up with `fill`, and a bool mask of their own
        ids.
        """
        begins, lengths = self.starts[numbers], self.lengths[numbers]
        column = np.arange(width)
        own = column < lengths[:, None]
        at = np.where(own, begins[:, None] + column, 0)
        return np.where(own, self.ids[at].astype(np.int64), fill), own


@dataclass(frozen=True)
class PairPart:
    """One part of the pairs as ids. Its length is the number of predicted ids: all targets with their separators."""

    name: str
    pairs: np.ndarray
    source: Side
    target: Side
    n_vocab: int

    def __len__(self) -> int:
        return len(self.target.ids)

    @property
    def n_pairs(self) -> int:
        return len(self.pairs)

    @property
    def n_bytes(self) -> int:
        """Bytes of the targets' text."""
        return self.target.n_bytes


@dataclass(frozen=True)
class PairTokens:
    """Both parts as ids, with a manifest of what they depend on; `key` is a hash of the manifest."""

    manifest: dict[str, Any]
    parts: dict[str, PairPart]
    split: PairSplit = field(repr=False)
    n_vocab: int = 0
    separator: int = 0
    start: int = 0

    def part(self, name: str) -> PairPart:
        """The part called `name`: train or held_out."""
        return self.parts[name]

    @property
    def key(self) -> str:
        """A hash of files, tokenizer and split: equal keys mean equal ids."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the ids take."""
        sides = [side for part in self.parts.values() for side in (part.source, part.target)]
        return sum(side.ids.nbytes + side.starts.nbytes for side in sides)

    def check_lengths(self, n_source: int, n_target: int) -> None:
        """Raise PairsError if a pair is longer than the encoder's or the decoder's context, and name the first such
        pair.
        """
        limits, fields = (
            {"source": n_source, "target": n_target},
            {"source": "model.encoder.n_ctx", "target": "model.n_ctx"},
        )
        need = {n: max(int(getattr(p, n).lengths.max()) for p in self.parts.values()) for n in limits}
        wrong = [
            (self.split.corpus.place(int(part.pairs[k])), name, int(getattr(part, name).lengths[k]))
            for part in self.parts.values()
            for name, most in limits.items()
            for k in np.flatnonzero(getattr(part, name).lengths > most)
        ]
        if wrong:
            where, name, n = min(wrong)
            raise PairsError(
                f"{len(wrong)} sides of pairs are longer than the context, the first at {where}: a {name} of {n} "
                f"tokens with its separator, for a context of {limits[name]}. Leave these pairs out, or set "
                + " and ".join(f"{fields[n]}={need[n]}" for n in limits if need[n] > limits[n])
            )


def encode_pairs(split: PairSplit, tokenizer: Tokenizer, progress: Progress = None) -> PairTokens:
    """Encode both parts of `split` with one tokenizer, in memory; a separator ends every text.

    `Tokenizer.source_ids` encodes the sources, so that <s> stands before them where the vocabulary has it.
    """
    parts = {}
    for name in PARTS:
        numbers = split.numbers(name)
        source = _encode(split.corpus.sources, numbers, tokenizer, tokenizer.source_ids, progress)
        target = _encode(split.corpus.targets, numbers, tokenizer, lambda ids: [*ids, tokenizer.separator], progress)
        parts[name] = PairPart(name, numbers, source, target, tokenizer.n_vocab)
    about = {"kind": tokenizer.kind, "hash": tokenizer.hash}
    about |= {"n_vocab": tokenizer.n_vocab, "separator": tokenizer.separator}
    counts = {
        name: {
            "pairs": part.n_pairs,
            "source_tokens": len(part.source.ids),
            "target_tokens": len(part.target.ids),
            "source_bytes": part.source.n_bytes,
            "target_bytes": part.target.n_bytes,
            "unknown": part.source.unknown + part.target.unknown,
        }
        for name, part in parts.items()
    }
    sources = [vars(source) for source in split.corpus.files]
    manifest = {"format": FORMAT, "sources": sources, "tokenizer": about, "split": split.to_dict(), "parts": counts}
    return PairTokens(manifest, parts, split, tokenizer.n_vocab, tokenizer.separator, tokenizer.start)


def _encode(
    texts: list[str],
    numbers: np.ndarray,
    tokenizer: Tokenizer,
    closed: Callable[[Sequence[int]], list[int]],
    progress: Progress,
) -> Side:
    dtype, rows, lengths = dtype_for(tokenizer.n_vocab), [], []
    n_bytes = unknown = 0
    for first in range(0, len(numbers), TOGETHER):
        some = [texts[pair] for pair in numbers[first : first + TOGETHER]]
        n_bytes += sum(len(text.encode()) for text in some)
        for ids in tokenizer.encode_batch(some):
            unknown += int((ids == tokenizer.unknown).sum()) if tokenizer.unknown is not None else 0
            check_ids(ids, tokenizer.n_vocab)
            rows.append(np.asarray(closed(ids.tolist()), dtype))
            lengths.append(len(rows[-1]))
        if progress:
            progress("encoding", first + len(some), len(numbers))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Side(np.concatenate(rows), starts, n_bytes, unknown)
