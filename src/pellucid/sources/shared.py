"""Passages that the two parts of a run's text share: what is measured on them says little about new text."""

from collections.abc import Iterator
from dataclasses import dataclass

from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.sources.places import PartText, TextPlace
from pellucid.sources.text_index import TextIndex
from pellucid.sources.verbatim import SpanFinder, VerbatimSpan, copied_share, short_text

COLUMNS = ("passage", "tokens", "times", "held out at", "also at")


@dataclass(frozen=True, repr=False)
class SharedPassages(PrintsAsTable):
    """Passages of at least `fewest_tokens` tokens of one part that stand verbatim in the other, the longest first.

    spans           each with its places in the part that is searched
    places          where each stands in the part that was looked up
    share           the share of that part's characters that lie in them
    """

    run: str
    spans: tuple[VerbatimSpan, ...]
    places: tuple[TextPlace, ...]
    share: float
    fewest_tokens: int

    def printed(self) -> PrintedTable:
        """The passages, a row each."""
        heading = (
            f"{self.share:.1%} of the characters of the held-out text of {self.run} also stand in the training text, "
            f"in passages of at least {self.fewest_tokens} tokens"
        )
        rows = [
            (short_text(span.text), span.n_tokens, span.count, str(place), str(span.occurrences[0].place))
            for span, place in zip(self.spans, self.places, strict=True)
        ]
        return PrintedTable(heading, COLUMNS, rows, "the field spans has all")


def shared_passages(
    index: TextIndex, finder: SpanFinder, other: PartText, run: str, fewest_tokens: int
) -> SharedPassages:
    """The passages of `other` of at least so many tokens that stand in the part of the index."""
    spans: list[VerbatimSpan] = []
    places: list[TextPlace] = []
    n_shared = 0
    for start, stop in stretches_with_copies(index, other, fewest_tokens):
        text = other.bytes_between(start, stop).decode("utf-8", "ignore")
        own, _ = finder.find(text, fewest_tokens=fewest_tokens, fewest_characters=1, occurrences=1)
        first = other.characters_before(start)
        n_shared += round(copied_share(own, 0, len(text)) * len(text))
        characters = [(first + span.start, first + span.stop) for span in own]
        spans += own
        places += other.places(start, characters, [span.text for span in own]) if own else []
    order = sorted(range(len(spans)), key=lambda k: -spans[k].n_tokens)
    n_characters = sum(other.characters_before(stop - 1) for _, stop in other.documents())
    return SharedPassages(
        run,
        tuple(spans[k] for k in order),
        tuple(places[k] for k in order),
        n_shared / max(n_characters, 1),
        fewest_tokens,
    )


def stretches_with_copies(index: TextIndex, other: PartText, fewest_tokens: int) -> Iterator[tuple[int, int]]:
    """Stretches of tokens of single documents of `other` within which every copy of so many tokens lies.

    A copy contains a window of half its length that begins at a multiple of that: these windows alone are looked up.
    """
    half = max(fewest_tokens // 2, 1)
    for start, stop in other.documents():
        ids = other.part.read(start, stop).tolist()
        reached = None
        for k in range(0, len(ids) - half + 1, half):
            if not index.count(ids[k : k + half]):
                continue
            low, high = max(k - fewest_tokens, 0), min(k + half + fewest_tokens, len(ids))
            if reached is not None and low <= reached[1]:
                reached = (reached[0], high)
                continue
            if reached is not None:
                yield start + reached[0], start + reached[1]
            reached = (low, high)
        if reached is not None:
            yield start + reached[0], start + reached[1]
