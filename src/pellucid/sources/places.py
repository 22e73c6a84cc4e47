"""Where the tokens of a part stand: from positions to documents, characters and lines, and to the bytes of files."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.text.one_text import document_number
from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError, TextChunk
from pellucid.text.read.decompress import MARKS, Origin, as_utf8, unpacked
from pellucid.text.read.formats import unit_of
from pellucid.text.read.rows import RowSplit
from pellucid.text.read.scan import Document, changed_file_error, documents_of
from pellucid.text.split import Split
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import TokenSequence

#: formats whose files are their text
PLAIN_FORMATS = ("plain", "markdown")


@dataclass(frozen=True)
class TextPlace:
    """Where a passage stands.

    file        the name of the file, as training reads it
    row         the number of its document among the rows or documents of the file, from 1, or of a pair or a
                conversation the line of the file; None where the file is one document
    line        the line on which it begins, from 1: of the file where `file_bytes` says where it stands in it, else of
                the text that was extracted
    characters  [start, stop) of the document's text
    file_bytes  [start, stop) of the file's bytes, or of what a compressed file holds; None where the text was
                extracted from another format
    """

    file: str
    row: int | None
    line: int
    characters: tuple[int, int]
    file_bytes: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.file}, row {self.row:,}" if self.row else f"{self.file}:{self.line}"


class PartText:
    """The text of one part of a run, from its tokens: bytes, characters and lines at any position.

    split   says which documents the part has, and from which characters on
    """

    def __init__(self, part: TokenSequence, tokenizer: Tokenizer, split: Split | RowSplit[Any], name: str):
        self.part, self.tokenizer, self.split, self.name = part, tokenizer, split, name
        if isinstance(split, Split):
            cuts, lengths = np.array(split.cuts), split.corpus.documents.rows["n_characters"]
            self.numbers = np.flatnonzero(cuts > 0 if name == "train" else cuts < lengths)
            self.first_characters = np.zeros(len(cuts), np.int64) if name == "train" else cuts
        else:
            self.numbers = split.numbers(name.removesuffix("_source"))
        #: whether ids spell the very bytes of their text
        self.is_exact = (tokenizer.lossless and tokenizer.unknown is None) or not isinstance(split, Split)
        self._spelled: tuple[int, list[bytes]] = (-1, [])
        table = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        self._characters = np.array([sum(byte & 0xC0 != 0x80 for byte in data) for data in table], np.int64)
        self._special = np.zeros(max(tokenizer.n_vocab, part.n_vocab), bool)
        self._special[[i for i in tokenizer.special.values() if i < len(self._special)]] = True

    def document_at(self, position: int) -> tuple[int, int, int]:
        """The number of the document in the part, and the range of its tokens [start, stop)."""
        d = int(np.searchsorted(self.part.starts, position, side="right")) - 1
        start = int(self.part.starts[d])
        return d, start, start + int(self.part.lengths[d])

    def documents(self) -> Iterator[tuple[int, int]]:
        """The tokens of each document, [start, stop)."""
        for start, n in zip(self.part.starts.tolist(), self.part.lengths.tolist(), strict=True):
            if n:
                yield start, start + n

    def bytes_between(self, start: int, stop: int) -> bytes:
        """The bytes of these tokens of one document."""
        if self.is_exact:
            return self.tokenizer.decode_bytes(self.part.read(start, stop))
        d, first, _ = self.document_at(start)
        return b"".join(self._pieces(d)[start - first : stop - first])

    def around(self, start: int, stop: int, n: int) -> tuple[bytes, bytes]:
        """The bytes of up to `n` tokens before and behind these, of the same document and not across special tokens."""
        _, first, end = self.document_at(start)
        before = self.part.read(max(first, start - n), start)
        behind = self.part.read(stop, min(end, stop + n))
        n_before = len(before) - 1 - int(np.flatnonzero(self._special[before]).max(initial=-1))
        n_behind = int(np.flatnonzero(self._special[behind]).min(initial=len(behind)))
        return self.bytes_between(start - n_before, start), self.bytes_between(stop, stop + n_behind)

    def characters_before(self, position: int) -> int:
        """How many characters of its document's part begin before this token."""
        d, start, _ = self.document_at(position)
        if not self.is_exact:
            return len(b"".join(self._pieces(d)[: position - start]).decode("utf-8", "replace"))
        return sum(
            int(self._characters[self.part.read(at, min(at + CHUNK_BYTES, position))].sum())
            for at in range(start, position, CHUNK_BYTES)
        )

    def places(self, position: int, characters: Sequence[tuple[int, int]], texts: Sequence[str]) -> list[TextPlace]:
        """Where passages of the document at this position stand, by their characters [start, stop) in its part."""
        d = self.document_at(position)[0]
        number = int(self.numbers[d])
        if not isinstance(self.split, Split):
            rows = self.split.corpus
            file, row = rows.files[rows.places[number]].path, int(rows.lines[number])
            return [TextPlace(file, row, 1, place) for place in characters]
        document, first = self.split.corpus.documents[number], int(self.first_characters[number])
        characters = [(first + start, first + stop) for start, stop in characters]
        of_file = places_in_file(document, self.split.corpus.sources[document.source].front_matter, characters, texts)
        unit = unit_of(document.origin)
        row = document_number(document, unit) if unit else None
        return [
            TextPlace(document.origin.name, row, line, place, file_bytes)
            for place, (line, file_bytes) in zip(characters, of_file, strict=True)
        ]

    def _pieces(self, d: int) -> list[bytes]:
        """The bytes that each token of a document stands for, where ids do not spell them; the last document's stay."""
        if self._spelled[0] != d:
            assert isinstance(self.split, Split)
            number = int(self.numbers[d])
            text = self.split.corpus.documents[number].text
            cut = int(self.split.cuts[number])
            text = text[:cut] if self.name == "train" else text[cut:]
            start, n = int(self.part.starts[d]), int(self.part.lengths[d])
            ids = self.part.read(start, start + n - 1).tolist()  # without the separator
            self._spelled = d, [*self.tokenizer.pieces_of(text, ids), b""]
        return self._spelled[1]


def places_in_file(
    document: Document, front_matter: int, characters: Sequence[tuple[int, int]], texts: Sequence[str]
) -> list[tuple[int, tuple[int, int] | None]]:
    """The line of each passage, and its bytes where the document is the text of a file.

    front_matter   the bytes of front matter that the document leaves out
    characters     [start, stop) in the document's text
    texts          the passages: bytes of the file that do not spell them are not reported

    Raises ChangedError where the file is gone.
    """
    origin = document.origin
    is_file = origin.format in PLAIN_FORMATS and not origin.split_at
    try:
        encoding, mark, lines = _layout(origin, front_matter) if is_file else ("utf-8", 0, 0)
    except OSError as error:
        raise DocumentError(f"{origin.name} cannot be opened: {error.strerror}") from None
    n_characters, n_bytes = 0, mark + (front_matter if encoding == "utf-8" else 0)
    wanted, at = sorted({x for place in characters for x in place}), {}
    for chunk in _chunks_of(document):
        while wanted and wanted[0] <= n_characters + len(chunk.text):
            head = chunk.cut(wanted[0] - n_characters)[0]
            at[wanted.pop(0)] = lines + head.text.count("\n") + 1, n_bytes + _n_bytes(head, encoding)
        n_characters += len(chunk.text)
        n_bytes += _n_bytes(chunk, encoding)
        lines += chunk.text.count("\n")
        if not wanted:
            break
    if wanted:
        raise changed_file_error(origin)
    places: list[tuple[int, tuple[int, int] | None]] = []
    for (start, stop), text in zip(characters, texts, strict=True):
        (line, first), (_, last) = at[start], at[stop]
        spelled = is_file and _read_range(origin, first, last).decode(encoding, "replace") == text
        places.append((line, (first, last) if spelled else None))
    return places


def _chunks_of(document: Document) -> Iterator[TextChunk]:
    """The chunks of a document; those before it in its file are left out."""
    for index, chunks in enumerate(documents_of(document.origin)):
        if index == document.index:
            yield from chunks
            return


def _layout(origin: Origin, front_matter: int) -> tuple[str, int, int]:
    """The codec that reads a file of text from its middle on, the bytes of its byte order mark, and the lines of the
    front matter that is left out.
    """
    with origin.path.open("rb") as file:
        head = unpacked(file, origin).read(4)
    bom = next((mark for mark, _ in MARKS if head.startswith(mark)), b"")
    lines = 0
    if front_matter:
        with origin.path.open("rb") as file:
            lines = as_utf8(unpacked(file, origin), origin).read(front_matter).count(b"\n")
    name = codecs.lookup(dict(MARKS).get(bom, origin.encoding)).name
    if name in ("utf-16", "utf-32"):
        name += "-be" if bom in (codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE) else "-le"
    return name, len(bom), lines


def _n_bytes(chunk: TextChunk, encoding: str) -> int:
    """The bytes of a chunk in its file."""
    return chunk.n_bytes if encoding == "utf-8" else len(chunk.text.encode(encoding, "replace"))


def _read_range(origin: Origin, start: int, stop: int) -> bytes:
    """These bytes of a file, or of what a compressed file holds."""
    with origin.path.open("rb") as file:
        if not origin.packed:
            file.seek(start)
            return file.read(stop - start)
        content = unpacked(file, origin)
        left = start
        while left and (chunk := content.read(min(left, CHUNK_BYTES))):
            left -= len(chunk)
        return content.read(stop - start)
