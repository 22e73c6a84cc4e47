"""Pairs as ids: two flat rows and where each text begins in them, in memory.

An id takes 2 bytes (4 where the vocabulary is larger than 65,536), and a pair 16 for where its two sides
begin: a million pairs of 30 ids on each side are 136 MB. They are encoded anew for every run.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pellucid.text.read.pairs import TOGETHER, PairsError, PairSplit, Progress
from pellucid.text.split import PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import FORMAT, check_ids, dtype_for


@dataclass(frozen=True)
class Side:
    """Texts as one flat row of ids, each closed by the separator: text k is ids[starts[k] : starts[k + 1]]."""

    ids: np.ndarray
    starts: np.ndarray
    n_bytes: int
    unknown: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Ids of each text, its separator among them, int64 [texts]."""
        return np.diff(self.starts)

    def rows(self, numbers: np.ndarray, width: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
        """These texts flush left in int64 [len(numbers), width], `fill` behind them, and which ids are theirs."""
        begins, lengths = self.starts[numbers], self.lengths[numbers]
        place = np.arange(width)
        own = place < lengths[:, None]
        at = np.where(own, begins[:, None] + place, 0)
        return np.where(own, self.ids[at].astype(np.int64), fill), own


@dataclass(frozen=True)
class PairPart:
    """One part of the pairs as ids; its length is what is predicted, the targets' ids, separators among them."""

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
        """Bytes of the original targets."""
        return self.target.n_bytes


@dataclass(frozen=True)
class PairTokens:
    """Both parts as ids, and a manifest of what they depend on, with hashes; `key` is one hash of it all."""

    manifest: dict[str, Any]
    parts: dict[str, PairPart]
    split: PairSplit = field(repr=False)
    n_vocab: int = 0
    separator: int = 0
    start: int = 0

    def part(self, name: str) -> PairPart:
        """train or held_out."""
        return self.parts[name]

    @property
    def key(self) -> str:
        """A hash of files, tokenizer and split: equal for equal ids."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the ids take."""
        sides = [side for part in self.parts.values() for side in (part.source, part.target)]
        return sum(side.ids.nbytes + side.starts.nbytes for side in sides)

    def check_lengths(self, n_source: int, n_target: int) -> None:
        """Refuse pairs longer than the encoder's and the decoder's contexts, naming the first of them."""
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
                f"tokens, its separator among them, for {limits[name]}. Leave them out, or set "
                + " and ".join(f"{fields[n]}={need[n]}" for n in limits if need[n] > limits[n])
            )


def encode_pairs(split: PairSplit, tokenizer: Tokenizer, progress: Progress = None) -> PairTokens:
    """Both parts of `split` in the ids of one tokenizer, in memory; every text is closed by the separator.

    A source is what `Tokenizer.source_ids` makes of it, so that <s> is before it where the vocabulary has one.
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
