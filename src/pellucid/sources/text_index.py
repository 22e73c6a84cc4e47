"""The index of one part of a run's text: suffix arrays on disk beside the tokens that they sort, and what is asked.

    sources-KEY/manifest.json     the part, its shards, what the other part shares with it by chance
                order-00000.npy   the sorted positions of a shard, int32
                counts.npy        how often each id occurs, int64

KEY is a hash of the checksums of the part's tokens and of those of the part that it is compared with, so an index never
belongs to other text. A folder appears under its name complete, or not at all. A shard has whole documents and at most
2^31 bytes of ids; the answers of shards are merged as in infini-gram (Liu et al. 2024).
"""

import hashlib
import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pellucid.destination import DestinationError, atomic_output, flush_files
from pellucid.json_files import JSONFileError, read_json_file
from pellucid.json_shapes import COUNT, TEXT, Fields, ListOf, ObjectOf
from pellucid.sources.suffix_array import FIRST_COMPARED, SourcesError, SuffixArray, sorted_positions
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.prepare import verify_changed
from pellucid.text.tokens.store import Tokens, TokenSequence, dtype_for, sha256_of

FORMAT = 1
#: the most bytes of ids in a shard: positions are int32
SHARD_BYTES = (1 << 31) - 1
#: seconds to sort one token, of ten million to a hundred million (benchmarks/sources.py)
SECONDS_PER_TOKEN = 2.5e-7
#: seconds of sorting above which time and memory are said first
LONG_BUILD = 10.0
#: tokens of the other part whose spans say what new text shares by chance, in this many stretches
SAMPLED, STRETCHES = 1 << 15, 32
#: spans of the other part from this length on are copies, not chance
DUPLICATE = 50
#: the share of the other part's spans that are no longer than what counts as chance
BY_CHANCE = 0.999
MANIFEST = Fields(
    {
        "format": COUNT,
        "by_chance": COUNT,
        "sha256": ObjectOf(TEXT),
        "shards": ListOf(Fields(dict.fromkeys(("first", "tokens"), COUNT), needed=("first", "tokens"))),
    },
    needed=("format", "by_chance", "sha256", "shards"),
)

#: progress(stage, done, total)
Progress = Callable[[str, int, int], None] | None


class LongBuild(UserWarning):
    """Building an index will take a while, and memory."""


class TokenSpan(NamedTuple):
    """Tokens [start, stop) of a query that occur together, and how often."""

    start: int
    stop: int
    count: int


class Continuation(NamedTuple):
    """The longest end of a prefix that occurs: how many tokens, how often, and how often each id follows it."""

    length: int
    count: int
    next_counts: dict[int, int]


class TextIndex:
    """What can be asked of one part of a text: counts, places, spans of other texts, continuations.

    by_chance   how many tokens the longest passages have that new text shares with this part, by the other part: 99.9 %
                of its spans are no longer
    """

    def __init__(self, part: TokenSequence, excluded: np.ndarray, shards: list[SuffixArray], by_chance: int = 0):
        self.part, self.shards, self.by_chance = part, shards, by_chance
        self.counts = np.zeros(part.n_vocab, np.int64)
        self._excluded, self._dtype = excluded, dtype_for(part.n_vocab)

    @classmethod
    def of_ids(cls, part: TokenSequence, excluded: Sequence[int], shard_bytes: int = SHARD_BYTES) -> Self:
        """An index in memory. `excluded` are the ids that match nothing, as those between documents."""
        stretches = list(_stretches(part, shard_bytes))
        shards = []
        for start, stop in stretches:
            ids = part.select([(start, stop)]).ids.astype(dtype_for(part.n_vocab))
            shards.append(SuffixArray([ids], sorted_positions(ids), start))
        index = cls(part, _mask(part.n_vocab, excluded), shards)
        index.counts = _count_ids(part)
        return index

    # Questions --------------------------------------------------------------------------------

    def count(self, ids: Sequence[int]) -> int:
        """How often these ids occur one after another."""
        return sum(high - low for _, low, high in self._ranges(ids))

    def positions(self, ids: Sequence[int], most: int) -> list[int]:
        """The first `most` positions at which these ids occur, in order."""
        first: list[int] = []
        for shard, low, high in self._ranges(ids):
            here = shard.order[low:high]
            if len(here) > most:
                here = np.partition(here, most - 1)[:most]
            first += sorted(shard.first + int(position) for position in here)
            if len(first) >= most:  # later shards hold later positions
                break
        return first[:most]

    def match_lengths(self, ids: Sequence[int]) -> list[int]:
        """For each position of the query, how many of the ids from there on occur together."""
        lengths = [0] * len(ids)
        for first, run in self._runs(ids):
            query, n = run.tobytes(), 0
            for k in range(len(run)):
                compared = max(FIRST_COMPARED, 2 * n)  # one position further on, about as much matches
                n = max((shard.longest_match(query, k, compared) for shard in self.shards), default=0)
                lengths[first + k] = n
        return lengths

    def spans(self, ids: Sequence[int], least: int = 1) -> list[TokenSpan]:
        """The maximal spans of at least `least` tokens of a query that occur: none lies inside another, and none can be
        made longer at either end.
        """
        found, reached = [], 0
        for start, n in enumerate(self.match_lengths(ids)):
            if n and start + n > reached:
                reached = start + n
                if n >= least:
                    found.append(TokenSpan(start, reached, self.count(ids[start:reached])))
        return found

    def continuation(self, prefix: Sequence[int]) -> Continuation:
        """The longest end of `prefix` that occurs, and what follows it: an infini-gram (Liu et al. 2024).

        Of the ids that follow, those that end documents are among them.
        """
        low, high = 0, len(prefix)  # the last `low` ids occur together
        while low < high:
            middle = (low + high + 1) // 2
            if self.count(prefix[len(prefix) - middle :]):
                low = middle
            else:
                high = middle - 1
        end = prefix[len(prefix) - low :]
        if not low:
            follow = {i: n for i, n in enumerate(self.counts.tolist()) if n}
            return Continuation(0, len(self.part), follow)
        following: dict[int, int] = {}
        count = 0
        for shard, first, last in self._ranges(end):
            count += last - first
            positions = shard.order[first:last].astype(np.int64) + shard.first + low
            ids, times = np.unique(self.part.at(positions[positions < len(self.part)]), return_counts=True)
            for token, n in zip(ids.tolist(), times.tolist(), strict=True):
                following[token] = following.get(token, 0) + n
        return Continuation(low, count, dict(sorted(following.items(), key=lambda item: -item[1])))

    def log_probability(self, ids: Sequence[int]) -> float:
        """The sum of the logarithms of the shares that these ids have in the text, in nats."""
        shares = self.counts[np.asarray(ids, dtype=np.int64)] / max(len(self.part), 1)
        return float(np.log(np.maximum(shares, 1 / max(len(self.part), 1))).sum())

    def _ranges(self, ids: Sequence[int]) -> Iterator[tuple[SuffixArray, int, int]]:
        """The shards in which these ids occur, each with the range of its order; none for ids that match nothing."""
        row = np.asarray(ids, dtype=np.int64)
        if not len(row) or self._matches_nothing(row).any():
            return
        query = row.astype(self._dtype).tobytes()
        for shard in self.shards:
            low, high = shard.range_of(query)
            if high > low:
                yield shard, low, high

    def _matches_nothing(self, row: np.ndarray) -> np.ndarray:
        inside = (row >= 0) & (row < len(self._excluded))
        return ~inside | self._excluded[np.where(inside, row, 0)]

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """The stretches of a query without an id that matches nothing, each with its first position."""
        row = np.asarray(ids, dtype=np.int64)
        bounds = [-1, *np.flatnonzero(self._matches_nothing(row)).tolist(), len(row)]
        for before, stop in itertools.pairwise(bounds):
            if stop > before + 1:
                yield before + 1, row[before + 1 : stop].astype(self._dtype)


def open_index(tokens: Tokens, name: str, tokenizer: Tokenizer, folder: Path, progress: Progress = None) -> "TextIndex":
    """The index of the part `name` of these tokens in `folder`/sources-KEY, which is built unless it is there."""
    part, other = tokens.part(name), opposite_part(name)
    excluded = [*tokenizer.special.values(), *([] if tokenizer.unknown is None else [tokenizer.unknown])]
    check_documents_end(part, excluded)
    path = folder / f"sources-{_key(tokens, name)}"
    try:
        return _open(path, part, excluded)
    except (OSError, JSONFileError, SourcesError, ValueError):
        pass  # it is not there, or damaged: it is built from the tokens, which are
    if path.exists():
        shutil.rmtree(path, ignore_errors=True)
    try:
        with atomic_output(path) as aside:
            _build(aside, part, tokens.parts.get(other), excluded, progress)
            flush_files(aside)
    except DestinationError:
        if not path.exists():
            raise
    return _open(path, part, excluded)


def check_documents_end(part: TokenSequence, excluded: Sequence[int]) -> None:
    """Raise SourcesError unless an id that matches nothing stands between any two documents."""
    borders = part.starts[(part.starts > 0) & (part.starts < len(part))]
    mask = _mask(part.n_vocab, excluded)
    if not (mask[part.at(borders - 1)] | mask[part.at(borders)]).all():
        raise SourcesError(
            f"the documents of {part.name} have no special token between them, so a passage could begin in one and end "
            "in another: such a text cannot be searched"
        )


def _build(
    folder: Path, part: TokenSequence, other: TokenSequence | None, excluded: Sequence[int], progress: Progress
) -> None:
    stretches = list(_stretches(part, SHARD_BYTES))
    stage = f"sorting {len(part):,} tokens"
    seconds, width = len(part) * SECONDS_PER_TOKEN, dtype_for(part.n_vocab).itemsize
    if seconds > LONG_BUILD:
        memory = 5 * width * max(stop - start for start, stop in stretches) / 1e9
        stage += f" (about {seconds:.0f} s and {memory:.1f} GB of memory; {4e-9 * len(part):.1f} GB on disk)"
        if progress is None:
            warnings.warn(stage, LongBuild, stacklevel=4)
    done, entries = 0, []
    for number, (start, stop) in enumerate(stretches):

        def wait(done: int = done) -> None:
            if progress:
                progress(stage, done, len(part))

        wait()
        order = sorted_positions(part.select([(start, stop)]).ids, wait)
        np.save(folder / f"order-{number:05}.npy", order)
        del order
        entries.append({"first": start, "tokens": stop - start})
        done = stop
    counts = _count_ids(part)
    np.save(folder / "counts.npy", counts)
    index = TextIndex(part, _mask(part.n_vocab, excluded), _mapped_shards(folder, part, entries))
    manifest = {
        "format": FORMAT,
        "by_chance": 0 if other is None else by_chance(index, other),
        "sha256": {path.name: sha256_of(path) for path in sorted(folder.glob("*.npy"))},
        "shards": entries,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8", newline="\n")


def by_chance(index: TextIndex, other: TokenSequence) -> int:
    """The length that 99.9 % of the spans of another part of the text do not exceed, without those that are copies of
    whole passages (DUPLICATE tokens and more), on an evenly spread sample of it.
    """
    n = min(len(other), SAMPLED)
    stretches = STRETCHES if n < len(other) else 1
    starts = np.linspace(0, len(other) - n // stretches, stretches).astype(np.int64).tolist()
    lengths: list[int] = []
    for start in starts:
        reached = 0
        matches = index.match_lengths(other.read(start, start + n // stretches).tolist())
        for k, length in enumerate(matches):
            if length and k + length > reached:
                reached = k + length
                lengths.append(length)
    own = np.array([length for length in lengths if length < DUPLICATE])
    return int(np.quantile(own, BY_CHANCE, method="higher")) if len(own) else 0


@dataclass
class IndexFiles:
    """The files of an index with their checksums."""

    folder: Path
    checksums: dict[str, str]

    def verify(self) -> None:
        """Raise SourcesError that names a file that differs."""
        for name, expected in self.checksums.items():
            if sha256_of(self.folder / name) != expected:
                raise SourcesError(f"{self.folder / name} is damaged, its checksum differs from the manifest")


def _open(path: Path, part: TokenSequence, excluded: Sequence[int]) -> TextIndex:
    manifest: dict[str, Any] = read_json_file(path / "manifest.json")
    MANIFEST.check(manifest, str(path / "manifest.json"))
    if manifest["format"] != FORMAT or sum(entry["tokens"] for entry in manifest["shards"]) != len(part):
        raise SourcesError(f"{path} is of another format or of other tokens")
    verify_changed(IndexFiles(path, manifest["sha256"]))
    shards = _mapped_shards(path, part, manifest["shards"])
    index = TextIndex(part, _mask(part.n_vocab, excluded), shards, manifest["by_chance"])
    index.counts = np.load(path / "counts.npy", allow_pickle=False)
    return index


def _mapped_shards(folder: Path, part: TokenSequence, entries: Sequence[dict[str, int]]) -> list[SuffixArray]:
    shards = []
    for number, entry in enumerate(entries):
        order = np.load(folder / f"order-{number:05}.npy", mmap_mode="r", allow_pickle=False)
        if order.dtype != np.int32 or order.shape != (entry["tokens"],):
            raise SourcesError(f"{folder}: shard {number} does not have {entry['tokens']:,} positions")
        stretch = part.select([(entry["first"], entry["first"] + entry["tokens"])])
        shards.append(SuffixArray(stretch.shards, np.asarray(order), entry["first"]))
    return shards


def _stretches(part: TokenSequence, shard_bytes: int) -> Iterator[tuple[int, int]]:
    """The shards of a text, [start, stop): as many whole documents as have at most `shard_bytes` bytes of ids."""
    most = shard_bytes // dtype_for(part.n_vocab).itemsize
    ends = np.append(part.starts[1:], len(part))
    if (longest := int(part.lengths.max(initial=0))) > most:
        raise SourcesError(
            f"a document of {longest:,} tokens is longer than {most:,}, the most that can be sorted at once: divide it "
            "when it is trained on (--split-at TEXT)"
        )
    start = 0
    while start < len(part):
        stop = int(ends[np.searchsorted(ends, start + most, side="right") - 1])
        yield start, stop
        start = stop


def _count_ids(part: TokenSequence) -> np.ndarray:
    counts = np.zeros(part.n_vocab, np.int64)
    for start in range(0, len(part), 1 << 22):
        counts += np.bincount(part.read(start, min(start + (1 << 22), len(part))), minlength=part.n_vocab)
    return counts


def _mask(n_vocab: int, excluded: Sequence[int]) -> np.ndarray:
    mask = np.zeros(n_vocab, bool)
    mask[[i for i in excluded if 0 <= i < n_vocab]] = True
    return mask


def opposite_part(name: str) -> str:
    """The part that a part is compared with."""
    return "train" if name.startswith("held_out") else "held_out"


def _key(tokens: Tokens, name: str) -> str:
    """A hash of what decides an index: the ids of its part, and those of the part that it is compared with."""
    parts = tokens.manifest["parts"]
    files = [
        [shard["sha256"] for shard in parts[one]["shards"]] + [parts[one]["documents_sha256"]]
        for one in (name, opposite_part(name))
        if one in parts
    ]
    content = [FORMAT, name, tokens.tokenizer_hash, files]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
