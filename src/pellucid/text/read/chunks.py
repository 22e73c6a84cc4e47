"""Chunks of documents: text with the bytes it stands for, so that memory never holds more than a chunk.

A byte that is not UTF-8 becomes U+FFFD in the text and still counts as one byte.
"""

import bisect
import codecs
import itertools
from collections.abc import Generator, Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

#: bytes per chunk
CHUNK_BYTES = 1 << 20
#: line ends before a mark between documents that belong to it; others are text
LINE_ENDS = 64


class DocumentError(ValueError):
    """Input that is missing, empty, not text, damaged, or changed since it was counted."""


class ChangedError(DocumentError):
    """A file was changed or removed while it was being read. Waiting helps; leaving the file out does not."""


def counted(n: int, what: str) -> str:
    """A count with its noun: 1 document, 2 documents."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


class TextChunk(NamedTuple):
    """Part of a document: its text, the bytes of the file it stands for, and the number of sequences that were not
    UTF-8.

    `raw` keeps those bytes if there were such sequences, because the text no longer shows them. `halves` is the number
    of halves of characters (lone surrogates, which JSON can escape) that became U+FFFD.
    """

    text: str
    n_bytes: int
    replaced: int = 0
    raw: bytes = b""
    halves: int = 0

    def cut(self, i: int) -> "tuple[TextChunk, TextChunk]":
        """Split the chunk after the first `i` characters."""
        if not self.raw:
            head = self.text[:i]
            n_head = len(head.encode())
            return TextChunk(head, n_head), TextChunk(self.text[i:], self.n_bytes - n_head)
        # a broken sequence counts as one character from its first byte on, so this count never decreases
        ends = range(len(self.raw) + 1)
        end = bisect.bisect_right(ends, i, key=lambda k: len(self.raw[:k].decode("utf-8", "replace"))) - 1
        return decode_chunk(self.raw[:end]), decode_chunk(self.raw[end:])


def decode_chunk(raw: bytes) -> TextChunk:
    """Bytes as a chunk. Each maximal broken sequence becomes one U+FFFD (Unicode 3.9, D93b)."""
    try:
        return TextChunk(raw.decode(), len(raw))
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        genuine = raw.count("\ufffd".encode())
        return TextChunk(text, len(raw), text.count("\ufffd") - genuine, raw)


def piece_of_text(text: str) -> TextChunk:
    """Text as a chunk. A lone surrogate, which is half a character, becomes U+FFFD."""
    try:
        return TextChunk(text, len(text.encode()))
    except UnicodeEncodeError:
        repaired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        halves = repaired.count("\ufffd") - text.count("\ufffd")
        return TextChunk(repaired, len(repaired.encode()), halves=halves)


def decode_chunks(chunks: Iterable[bytes]) -> Iterator[TextChunk]:
    """Decode chunks of UTF-8 bytes, which may end inside a character, and drop a leading byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    first = True
    for chunk in itertools.chain(chunks, (b"",)):
        text = decoder.decode(chunk, final=not chunk)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        if text:
            yield decode_chunk(text.encode("utf-8", "surrogateescape"))


def split_documents(
    documents: Iterator[Iterator[TextChunk]], mark: str
) -> Generator[Iterator[TextChunk], None, tuple[Any, int]]:
    """The documents, each divided where it has the characters of `mark`, without the parts that are empty; a document
    without text stays one. Returns what `documents` returns, and how often one was divided.
    """
    n_divisions = 0
    while True:
        try:
            chunks = next(documents)
        except StopIteration as end:
            return end.value, n_divisions
        k = -1
        for k, (_, part) in enumerate(itertools.groupby(_between_marks(chunks, mark), key=itemgetter(0))):  # noqa: B007
            yield map(itemgetter(1), part)
        n_divisions += max(k, 0)
        if k < 0:
            yield iter(())


def _between_marks(chunks: Iterator[TextChunk], mark: str) -> Iterator[tuple[int, TextChunk]]:
    """The text without the marks and the line ends beside them, each chunk with the number of its document."""
    number, begun, held = 0, True, TextChunk("", 0)
    for chunk in itertools.chain(chunks, (None,)):
        joined = held if chunk is None else _joined(held, chunk)
        *complete, rest = _split_at_mark(joined, mark)
        if joined.halves:
            yield number, TextChunk("", 0, halves=joined.halves)
        for part in complete:
            part = part.cut(len(part.text.rstrip("\r\n")))[0]
            text = part if begun else _without_line_ends(part)
            if text.text:
                yield number, text
            number, begun = number + 1, False
        if chunk is not None:  # what may be the beginning of a mark, and line ends before it, waits
            waits = max(len(rest.text) - len(mark) + 1, 0)
            rest, held = rest.cut(max(len(rest.text[:waits].rstrip("\r\n")), waits - LINE_ENDS))
        text = rest if begun else _without_line_ends(rest)
        if text.text:
            begun = True
            yield number, text


def _split_at_mark(chunk: TextChunk, mark: str) -> list[TextChunk]:
    """The chunk divided at each mark."""
    if not chunk.raw:
        return [TextChunk(text, len(text.encode())) for text in chunk.text.split(mark)]
    parts = []
    while (at := chunk.text.find(mark)) >= 0:
        head, chunk = chunk.cut(at)
        parts.append(head)
        chunk = chunk.cut(len(mark))[1]
    return [*parts, chunk]


def _joined(one: TextChunk, other: TextChunk) -> TextChunk:
    raw = b"".join(chunk.raw or chunk.text.encode() for chunk in (one, other)) if one.raw or other.raw else b""
    counts = (one.n_bytes + other.n_bytes, one.replaced + other.replaced)
    return TextChunk(one.text + other.text, *counts, raw, one.halves + other.halves)


def _without_line_ends(chunk: TextChunk) -> TextChunk:
    """The chunk without line ends at its beginning."""
    return chunk.cut(len(chunk.text) - len(chunk.text.lstrip("\r\n")))[1]
