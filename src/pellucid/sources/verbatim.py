"""The verbatim passages of a text in the text that a run was trained on, with the places where they stand."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.sources.places import PartText, TextPlace
from pellucid.sources.suffix_array import common_prefix
from pellucid.sources.text_index import TextIndex, TokenSpan

#: the least tokens and characters of a passage that is listed: shorter ones are shared by chance
FEWEST_TOKENS, FEWEST_CHARACTERS = 12, 50
#: places that are compared character by character, so that a passage is as long as it can be there
MOST_COMPARED = 100
#: tokens that are compared at once at either end of a passage
COMPARED_TOKENS = 64
#: characters of the passage around that an occurrence shows at either side
AROUND_CHARACTERS = 100
#: characters of a passage that are printed
PRINTED_CHARACTERS = 60


@dataclass(frozen=True)
class Occurrence:
    """One place of a passage, and the text before and after it there."""

    place: TextPlace
    before: str
    after: str


@dataclass(frozen=True)
class VerbatimSpan:
    """A passage of a text that stands verbatim in the training text, as long as it can be made.

    start, stop   its characters in the text that was looked up
    n_tokens      the tokens that are the same there; at its ends, characters of other tokens may be the same too
    count         how often it stands there
    surprisal     how improbable its tokens are, each by how often it occurs, in bits
    occurrences   the first places
    """

    text: str
    start: int
    stop: int
    n_tokens: int
    count: int
    surprisal: float
    occurrences: tuple[Occurrence, ...]


@dataclass(frozen=True, repr=False)
class TextSources(PrintsAsTable):
    """What of a text stands verbatim in one part of a run's text.

    spans           passages of at least `fewest_tokens` tokens and `fewest_characters` characters, the most improbable
                    words first
    longest         the longest passage, of any length; None where not even a token occurs
    copied_share    the share of the text's characters that lie in `spans`
    by_chance       99.9 % of the passages that the rest of the run's text shares with this part have no more tokens
    n_characters    characters that were looked up
    """

    run: str
    part: str
    spans: tuple[VerbatimSpan, ...]
    longest: VerbatimSpan | None
    copied_share: float
    n_characters: int
    fewest_tokens: int
    fewest_characters: int
    by_chance: int

    def printed(self) -> PrintedTable:
        """The passages, a row each."""
        of = "training text" if self.part == "train" else "held-out text"
        least = f"{self.fewest_tokens} tokens" + (
            f" and {self.fewest_characters} characters" if self.fewest_characters > 1 else ""
        )
        heading = (
            f"{self.copied_share:.1%} of {self.n_characters:,} characters stand verbatim in the {of} of {self.run}, in "
            f"passages of at least {least}"
        )
        if self.spans:
            return PrintedTable(heading, COLUMNS, [span_row(span) for span in self.spans], "the field spans has all")
        if self.longest is None:
            return PrintedTable(heading + "; no part of the text occurs", COLUMNS, [])
        return PrintedTable(heading + "; the longest that is shorter:", COLUMNS, [span_row(self.longest)])


def short_text(text: str) -> str:
    """A passage, shortened in its middle."""
    half = PRINTED_CHARACTERS // 2
    return text if len(text) <= PRINTED_CHARACTERS else f"{text[: half - 2]} ... {text[-half + 2 :]}"


COLUMNS = ("passage", "tokens", "times", "bits", "first place")


def span_row(span: VerbatimSpan) -> tuple[str, int, int, int, str]:
    """A row of the table."""
    place = str(span.occurrences[0].place) if span.occurrences else "-"
    return short_text(span.text), span.n_tokens, span.count, round(span.surprisal), place


@dataclass(frozen=True)
class _Passage:
    """A passage of the query in bytes: the tokens that occur together, and how many bytes of others it has before and
    behind them; `positions` are the places of the tokens at which all of it stands.
    """

    tokens: TokenSpan
    start: int
    stop: int
    left: int
    right: int
    positions: tuple[int, ...]
    count: int

    @property
    def n_tokens(self) -> int:
        return self.tokens.stop - self.tokens.start


class SpanFinder:
    """Finds the passages of texts in one part of a run's text."""

    def __init__(self, index: TextIndex, text: PartText):
        self.index, self.text = index, text

    def find(
        self, query: str, *, fewest_tokens: int, fewest_characters: int, occurrences: int, after: int = 0
    ) -> tuple[list[VerbatimSpan], VerbatimSpan | None]:
        """The passages of a query with these least sizes, the most improbable first, and the longest of any size.

        occurrences   how many places of each
        after         characters at the beginning of the query within which no passage may end: they are its context
        """
        ids, bounds = self._encode(query)
        raw, first = query.encode(), len(query[:after].encode())
        spans = [span for span in self.index.spans(ids) if bounds[span.stop] > first]
        if not spans:
            return [], None
        most = max(span.stop - span.start for span in spans)
        long_ones = [span for span in spans if span.stop - span.start >= min(fewest_tokens, most)]
        passages = outermost([self._widened(raw, ids, bounds, span) for span in long_ones])
        listed = [
            passage
            for passage in passages
            if passage.n_tokens >= fewest_tokens
            and len(raw[passage.start : passage.stop].decode()) >= fewest_characters
        ]
        located = [self._located(raw, ids, passage, occurrences) for passage in listed]
        longest = max(passages, key=lambda passage: passage.stop - passage.start, default=None)
        return (
            sorted(located, key=lambda span: -span.surprisal),
            None if longest is None else self._located(raw, ids, longest, occurrences),
        )

    def _encode(self, query: str) -> tuple[list[int], list[int]]:
        """The ids of a query, and the byte at which each begins, and at which the last one ends: -1 for a blank before
        the query.

        A word inside a text has another id than at its beginning: the query is read with a blank before it where more
        of its beginning occurs so.
        """
        tokenizer = self.text.tokenizer
        ids, blank = tokenizer.encode(query), 0
        if query[:1].strip():
            spaced = tokenizer.encode(" " + query)
            beginnings = (one[:COMPARED_TOKENS] for one in (ids, spaced))
            plain, with_blank = (max(self.index.match_lengths(one)[:1], default=0) for one in beginnings)
            if with_blank > plain:
                ids, blank = spaced, 1
        pieces = tokenizer.pieces_of(" " * blank + query, ids)
        return ids, list(itertools.accumulate(map(len, pieces), initial=-blank))

    def _widened(self, raw: bytes, ids: Sequence[int], bounds: Sequence[int], span: TokenSpan) -> _Passage:
        """A span of tokens, made as long as its characters go on at one of its places; whole characters alone.

        The places of one that stands at more than MOST_COMPARED are not compared.
        """
        start, stop, n = bounds[span.start], bounds[span.stop], span.stop - span.start
        few = span.count <= MOST_COMPARED
        positions = self.index.positions(ids[span.start : span.stop], MOST_COMPARED) if few else []
        reach = [self._reach(raw, start, stop, position, position + n) for position in positions]
        left, right = max(reach, key=sum, default=(0, 0))
        left = min(left, start) if start < 0 else left  # a blank that is not of the query
        while start - left < len(raw) and is_inside_character(raw, start - left):
            left -= 1
        while stop + right < len(raw) and is_inside_character(raw, stop + right):
            right -= 1
        kept = tuple(
            position
            for position, (before, behind) in zip(positions, reach, strict=True)
            if before >= left and behind >= right
        )
        count = len(kept) if few else span.count
        return _Passage(span, start - left, max(stop + right, start - left), left, right, kept, count)

    def _reach(self, raw: bytes, start: int, stop: int, first: int, last: int) -> tuple[int, int]:
        """How many bytes before `start` and behind `stop` of the query are also around these tokens of the part."""
        n_tokens = COMPARED_TOKENS
        while True:
            before, behind = self.text.around(first, last, n_tokens)
            left = common_prefix(raw[: max(start, 0)][::-1], before[::-1])
            right = common_prefix(raw[stop:], behind)
            goes_on = (left == len(before) and left < start) or (right == len(behind) and right < len(raw) - stop)
            if not goes_on or (before, behind) == self.text.around(first, last, 2 * n_tokens):
                return left, right
            n_tokens *= 2

    def _located(self, raw: bytes, ids: Sequence[int], passage: _Passage, n_occurrences: int) -> VerbatimSpan:
        """A passage with its first places."""
        start, stop = (len(raw[:byte].decode()) for byte in (passage.start, passage.stop))
        text = raw[passage.start : passage.stop].decode()
        tokens = ids[passage.tokens.start : passage.tokens.stop]
        positions = passage.positions[:n_occurrences] or self.index.positions(tokens, n_occurrences)
        occurrences = [self._occurrence(position, passage, text) for position in positions]
        bits = -self.index.log_probability(tokens) / math.log(2)
        return VerbatimSpan(text, start, stop, passage.n_tokens, passage.count, bits, tuple(occurrences))

    def _occurrence(self, position: int, passage: _Passage, text: str) -> Occurrence:
        before, behind = self.text.around(position, position + passage.n_tokens, COMPARED_TOKENS)
        inside = self.text.bytes_between(position, position + passage.n_tokens)
        around, start = before + inside + behind, len(before) - passage.left
        stop = len(before) + len(inside) + passage.right
        # bytes at the ends of what was read may be part of a character
        outside = [part.decode("utf-8", "ignore") for part in (around[:start], around[stop:])]
        first = self.text.characters_before(position) + character_difference(around, len(before), start)
        (place,) = self.text.places(position, [(first, first + len(text))], [text])
        return Occurrence(place, outside[0][-AROUND_CHARACTERS:], outside[1][:AROUND_CHARACTERS])


def is_inside_character(raw: bytes, byte: int) -> bool:
    """Whether a character of the text in UTF-8 goes on at this byte."""
    return raw[byte] & 0xC0 == 0x80


def character_difference(raw: bytes, one: int, other: int) -> int:
    """How many characters begin between two bytes; below 0 where `other` comes first."""
    low, high = sorted((one, other))
    n = sum(byte & 0xC0 != 0x80 for byte in raw[low:high])
    return n if other > one else -n


def outermost(passages: Sequence[_Passage]) -> list[_Passage]:
    """The passages that lie in no other, in order."""
    outer: list[_Passage] = []
    for passage in sorted(passages, key=lambda p: (p.start, -p.stop)):
        if passage.stop > passage.start and (not outer or passage.stop > outer[-1].stop):
            outer.append(passage)
    return outer


def copied_share(spans: Sequence[VerbatimSpan], start: int, stop: int) -> float:
    """The share of the characters from `start` to `stop` that lie in these spans."""
    covered, reached = 0, start
    for span in sorted(spans, key=lambda span: span.start):
        covered += max(min(span.stop, stop) - max(span.start, reached), 0)
        reached = max(reached, span.stop)
    return covered / max(stop - start, 1)
