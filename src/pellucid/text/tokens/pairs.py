"""Pairs as ids on disk: the targets of a part are its tokens, and the sources those of another part."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.read.known_scans import hash_of_code
from pellucid.text.read.pairs import PairsError, PairSplit
from pellucid.text.read.rows import LINES_AT_ONCE, Progress
from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.prepare import prepare_rows, write_rows
from pellucid.text.tokens.store import Tokens, TokenSequence


class PairTokens(Tokens):
    """Pairs as ids: the targets are the parts train and held_out, and those of train_source and held_out_source
    are their sources, text by text. A separator ends every text; targets begin with `start`.
    """

    split: PairSplit
    start: int

    def sides(self, name: str) -> tuple[TokenSequence, TokenSequence]:
        """The sources and the targets of a part."""
        return self.part(f"{name}_source"), self.part(name)

    def check_lengths(self, n_source: int, n_target: int) -> None:
        """Raise PairsError if a pair is longer than the encoder's or the decoder's context, and name the first such
        pair.
        """
        limits = {"source": n_source, "target": n_target}
        fields = {"source": "model.encoder.n_ctx", "target": "model.n_ctx"}
        lengths = {
            (name, side): texts.lengths
            for name in SPLIT_PARTS
            for side, texts in zip(limits, self.sides(name), strict=True)
        }
        need = {side: max(int(lengths[name, side].max()) for name in SPLIT_PARTS) for side in limits}
        wrong = [
            (self.split.corpus.place(int(self.split.numbers(name)[k])), side, int(own[k]))
            for (name, side), own in lengths.items()
            for k in np.flatnonzero(own > limits[side])
        ]
        if wrong:
            where, side, n = min(wrong)
            raise PairsError(
                f"{len(wrong)} sides of pairs are longer than the context, the first at {where}: a {side} of {n} "
                f"tokens with its separator, for a context of {limits[side]}. Leave these pairs out, or set "
                + " and ".join(f"{fields[side]}={need[side]}" for side in limits if need[side] > limits[side])
            )


def prepare_pairs(split: PairSplit, tokenizer: Tokenizer, folder: str | Path, progress: Progress = None) -> PairTokens:
    """Both parts of `split` in `folder`/tokens-KEY, encoded unless they are there already; a separator ends every text.
    A damaged folder is written again, and `notes` of the result say so.

    `Tokenizer.source_ids` encodes the sources, so that <s> stands before them where the vocabulary has it.
    """

    def with_separator(ids: Sequence[int]) -> list[int]:
        return [*ids, tokenizer.separator]

    def write_parts(working: Path) -> dict[str, dict[str, Any]]:
        parts = {}
        for name in SPLIT_PARTS:
            sources, targets = zip(*(split.corpus.rows[pair] for pair in split.numbers(name)), strict=True)
            for part, texts, closed in (
                (f"{name}_source", sources, tokenizer.source_ids),
                (name, targets, with_separator),
            ):
                parts[part] = _write_texts(part, texts, closed, tokenizer, working, progress)
        return parts

    tokens = prepare_rows(PairTokens, split, tokenizer, folder, [_code(), tokenizer.source_ids([])], write_parts)
    tokens.split, tokens.start = split, tokenizer.start
    return tokens


@cache
def _code() -> str:
    """What decides how pairs become ids: this package's code for it."""
    return hash_of_code((Path(__file__),), ())


def _write_texts(
    part: str,
    texts: Sequence[str],
    closed: Callable[[Sequence[int]], list[int]],
    tokenizer: Tokenizer,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Write a part whose texts `closed` ends, and return its entry in the manifest."""

    def batches() -> Iterator[list[Sequence[int]]]:
        for first in range(0, len(texts), LINES_AT_ONCE):
            some = texts[first : first + LINES_AT_ONCE]
            yield [closed(ids.tolist()) for ids in tokenizer.encode_batch(some)]
            if progress:
                progress("encoding", first + len(some), len(texts))

    entry = write_rows(folder, part, tokenizer, batches())
    return {**entry, "bytes": sum(len(text.encode()) for text in texts)}
