"""Pairs as ids on disk: each side of a part is one flat array, with the offsets at which its texts begin."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.read.known_scans import hash_of_code
from pellucid.text.read.pairs import PairsError, PairSplit
from pellucid.text.read.rows import LINES_AT_ONCE, Progress
from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.stored_rows import RowTokens, StoredRows, manifest_of, prepare_rows, write_rows

PAIR_SIDES = ("source", "target")


@dataclass(frozen=True)
class SideTokens(StoredRows):
    """The texts of one side, each a row that a separator ends."""

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
    source: SideTokens
    target: SideTokens
    n_vocab: int

    def __len__(self) -> int:
        return len(self.target.ids)

    @property
    def n_pairs(self) -> int:
        return len(self.pairs)

    @property
    def targets_per_row(self) -> np.ndarray:
        """The number of predicted ids of each pair, int64 [n_pairs]."""
        return self.target.lengths

    @property
    def n_bytes(self) -> int:
        """Bytes of the targets' text."""
        return self.target.n_bytes

    def check_files(self) -> None:
        """Raise TokensError if a file is shorter than it was (`Part.check_files`)."""
        self.source.stored.check_files()
        self.target.stored.check_files()


@dataclass(frozen=True)
class PairTokens(RowTokens[PairSplit, PairPart]):
    """Both parts of the pairs as ids; targets begin with `start`."""

    start: int

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


def prepare_pairs(split: PairSplit, tokenizer: Tokenizer, folder: str | Path, progress: Progress = None) -> PairTokens:
    """Both parts of `split` in `folder`/tokens-KEY, encoded unless they are there already; a separator ends every text.
    A damaged folder is written again, and `notes` of the result say so.

    `Tokenizer.source_ids` encodes the sources, so that <s> stands before them where the vocabulary has it.
    """
    stored, notes = prepare_rows(
        split,
        tokenizer,
        folder,
        [_code(), tokenizer.source_ids([])],
        lambda working: {
            f"{name}_{side}": _write_side_tokens(split, name, side, tokenizer, working, progress)
            for name in SPLIT_PARTS
            for side in PAIR_SIDES
        },
    )
    parts, about = {}, stored.manifest["parts"]
    for name in SPLIT_PARTS:
        source, target = (
            SideTokens(stored.part(part), about[part]["unknown"]) for part in (f"{name}_{s}" for s in PAIR_SIDES)
        )
        parts[name] = PairPart(name, split.numbers(name), source, target, tokenizer.n_vocab)
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
    manifest = manifest_of(split, tokenizer, counts)
    return PairTokens(manifest, parts, split, tokenizer.n_vocab, tokenizer.separator, notes, tokenizer.start)


@cache
def _code() -> str:
    """What decides how pairs become ids: this package's code for it."""
    return hash_of_code((Path(__file__),), ())


def _write_side_tokens(
    split: PairSplit, part: str, side: str, tokenizer: Tokenizer, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Write one side of one part, and return its entry in the manifest."""
    texts = split.corpus.sources if side == "source" else split.corpus.targets
    own = [texts[pair] for pair in split.numbers(part)]
    closed: Callable[[Sequence[int]], list[int]]
    closed = tokenizer.source_ids if side == "source" else lambda ids: [*ids, tokenizer.separator]

    def batches() -> Iterator[list[Sequence[int]]]:
        for first in range(0, len(own), LINES_AT_ONCE):
            some = own[first : first + LINES_AT_ONCE]
            yield [closed(ids.tolist()) for ids in tokenizer.encode_batch(some)]
            if progress:
                progress("encoding", first + len(some), len(own))

    entry = write_rows(folder, f"{part}_{side}", tokenizer, batches())
    return {**entry, "bytes": sum(len(text.encode()) for text in own)}
