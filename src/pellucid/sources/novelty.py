"""How much of what a model writes is new: n-grams that do not occur in the training text, beside held-out text.

The measure is that of RAVEN (McCoy et al. 2023) against the training text: the share of the n-grams of a text that do
not occur in it, for n = 1 ... 32. Samples at temperature 1 continue held-out texts, and are compared with how these go
on themselves: new text of the same authors, of the same length. A low temperature alone makes short n-grams less novel
(Merrill et al. 2024), so what is copied shows in the tail, n >= 16, and in the longest copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.json_shapes import COUNT, NUMBER, Fields, ListOf, ObjectOf
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.runs.run_dir import read_json
from pellucid.sources.suffix_array import SourcesError
from pellucid.sources.text_index import DUPLICATE, TextIndex
from pellucid.text.tokens.store import TokenSequence

#: the longest n-grams
LONGEST_NGRAM = 32
#: the n-grams whose shares are printed
PRINTED_NGRAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: from these n on an n-gram that is not new is a copy, and how much more often than held-out text that is copying
TAIL, MOST_COPIED = 16, 0.01
#: the file of a run's folder with the curves of its checkpoints
FILE = "novelty.json"
CURVE = Fields({"shares": ListOf(NUMBER), "longest": COUNT}, needed=("shares", "longest"))
SHAPE = Fields({"held_out": CURVE, "checkpoints": ObjectOf(CURVE)}, needed=("held_out", "checkpoints"))


@dataclass(frozen=True)
class NoveltyCurve:
    """The share of n-grams that do not occur in the training text, for n = 1 ... 32, and the tokens of the longest
    passage that does.
    """

    shares: tuple[float, ...]
    longest: int

    @classmethod
    def of(cls, index: TextIndex, texts: Sequence[Sequence[int]]) -> "NoveltyCurve":
        """The curve of these texts, in ids."""
        new, total, longest = np.zeros(LONGEST_NGRAM), np.zeros(LONGEST_NGRAM), 0
        for ids in texts:
            matches = np.array(index.match_lengths(ids), dtype=np.int64)
            longest = max(longest, int(matches.max(initial=0)))
            for n in range(1, min(LONGEST_NGRAM, len(ids)) + 1):
                whole_ones = matches[: len(ids) - n + 1]
                new[n - 1] += (whole_ones < n).sum()
                total[n - 1] += len(whole_ones)
        return cls(tuple((new / np.maximum(total, 1)).tolist()), longest)


@dataclass(frozen=True, repr=False)
class Novelty(PrintsAsTable):
    """The novelty of a model's samples, by checkpoint, beside that of held-out text of the same length."""

    held_out: NoveltyCurve
    checkpoints: Mapping[int, NoveltyCurve]

    @property
    def verdict(self) -> str:
        """One sentence about the last checkpoint."""
        step = max(self.checkpoints)
        own, other = self.checkpoints[step], self.held_out
        more = max(b - a for a, b in zip(own.shares[TAIL - 1 :], other.shares[TAIL - 1 :], strict=True))
        lengths = f"the longest passage has {own.longest} tokens, of held-out text {other.longest}"
        if more > MOST_COPIED or own.longest > max(2 * other.longest, TAIL):
            return f"samples of step {step:,} copy more than new text of the same kind does: {lengths}"
        return f"samples of step {step:,} copy no more than new text of the same kind does: {lengths}"

    def printed(self) -> PrintedTable:
        """The shares of n-grams that are new, a row for each n."""
        steps = sorted(self.checkpoints)[-4:]
        rows = [
            (n, *(self.checkpoints[step].shares[n - 1] for step in steps), self.held_out.shares[n - 1])
            for n in PRINTED_NGRAMS
        ]
        columns = ("n-grams of", *(f"step {step:,}" for step in steps), "held-out text")
        return PrintedTable(f"the share that is new; {self.verdict}", columns, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as in a run's novelty.json."""
        return {
            "held_out": vars(self.held_out),
            "checkpoints": {str(step): vars(curve) for step, curve in self.checkpoints.items()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Novelty":
        """The inverse of `to_dict`."""
        curves = {int(step): _curve(curve) for step, curve in values["checkpoints"].items()}
        return cls(_curve(values["held_out"]), curves)


def read_novelty(run: Path) -> Novelty | None:
    """The curves in a run's folder; None if it has none, or if they cannot be read."""
    if not (run / FILE).exists():
        return None
    try:
        return Novelty.from_dict(read_json(run / FILE, SHAPE))
    except (ValueError, KeyError):
        return None


def _curve(values: dict[str, Any]) -> NoveltyCurve:
    return NoveltyCurve(tuple(values["shares"]), values["longest"])


def held_out_continuations(
    index: TextIndex, part: TokenSequence, excluded: Sequence[int], n: int, before: int, behind: int
) -> list[tuple[list[int], list[int]]]:
    """`n` beginnings of `before` tokens of the held-out part, and the `behind` tokens that follow each, evenly spread.

    Stretches with special tokens are left out, and those that hold a copy of a passage of the training text.
    """
    length = before + behind
    starts = np.unique(np.linspace(0, max(len(part) - length, 0), 4 * n).astype(np.int64)).tolist()
    usable = []
    for start in starts:
        ids = part.read(start, min(start + length, len(part))).tolist()
        if len(ids) < length or {*ids} & {*excluded} or max(index.match_lengths(ids)) >= DUPLICATE:
            continue
        usable.append((ids[:before], ids[before:]))
    if not usable:
        raise SourcesError(f"the held-out text has no stretch of {length} tokens of one document that is no copy")
    return [usable[k] for k in np.unique(np.linspace(0, len(usable) - 1, min(n, len(usable))).astype(int)).tolist()]
