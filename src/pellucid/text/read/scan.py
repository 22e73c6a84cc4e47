"""Scan one file: find, count and hash its documents, and read them again later with a check for changes.

A few numbers are kept for each document, not its text: a corpus may have millions of documents.
"""

import codecs
import hashlib
import io
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast, overload

import numpy as np

from pellucid.text.read.chunks import PIECE, ChangedError, DocumentError, TextChunk, piece_of_text
from pellucid.text.read.decompress import HashingFile, Origin, as_utf8, unpacked
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.formats import READERS, ROWS, SEEKING, UNREAD
from pellucid.text.read.tables import ChosenField, FileDocuments, listed
from pellucid.text.scripts import NO_LETTERS, sampled_script_of

#: how many bytes of a file decide whether it is text, and the share of undecodable bytes allowed there
HEAD, MOST_UNDECODABLE = 8192, 0.3
#: bytes of a digest
DIGEST = 32
#: characters of a field's name that are kept: the first line of a table without names may be a long text
SHOWN = 60


@dataclass(frozen=True)
class Document:
    """One text: its file, its size, and a hash of the text that identifies exact duplicates.

    `source` is the number of its file, `index` its number within the file.
    """

    origin: Origin
    source: int
    index: int
    n_bytes: int
    n_characters: int
    digest: bytes

    @property
    def path(self) -> Path:
        return self.origin.path

    def pieces(self) -> Iterator[TextChunk]:
        """Read the text again, in chunks. Raises DocumentError at the end if it changed since it was counted.

        A row is searched from the beginning of its file: use `Corpus.stream` to read many.
        """
        for index, pieces in enumerate(documents_of(self.origin)):
            if index == self.index:
                yield from as_counted(pieces, self.digest, self.origin)
                return
            use_up(pieces)
        raise changed(self.origin)

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(piece.text for piece in self.pieces())


@dataclass
class Documents(Sequence[Document]):
    """Documents as columns, some 60 bytes for each; `script` is an index into `scripts`, names in order of
    appearance.
    """

    origins: list[Origin] = field(default_factory=list)
    source: array = field(default_factory=partial(array, "i"))
    index: array = field(default_factory=partial(array, "q"))
    n_bytes: array = field(default_factory=partial(array, "q"))
    n_characters: array = field(default_factory=partial(array, "q"))
    script: array = field(default_factory=partial(array, "H"))
    scripts: list[str] = field(default_factory=list)
    digests: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, k: int) -> Document: ...
    @overload
    def __getitem__(self, k: slice) -> list[Document]: ...
    def __getitem__(self, k: int | slice) -> Document | list[Document]:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        k = range(len(self))[k]
        numbers = (self.source[k], self.index[k], self.n_bytes[k], self.n_characters[k])
        return Document(self.origins[self.source[k]], *numbers, self.digest(k))

    def digest(self, k: int) -> bytes:
        return bytes(self.digests[k * DIGEST : (k + 1) * DIGEST])

    def add(
        self, source: int, index: int, n_bytes: int, n_characters: int, digest: bytes, script: str = NO_LETTERS
    ) -> None:
        self.source.append(source)
        self.index.append(index)
        self.n_bytes.append(n_bytes)
        self.n_characters.append(n_characters)
        if script not in self.scripts:
            self.scripts.append(script)
        self.script.append(self.scripts.index(script))
        self.digests += digest

    def truncate(self, n: int) -> None:
        """Remove all but the first `n`."""
        for column in self._columns():
            del column[n:]
        del self.digests[n * DIGEST :]

    def same_text(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of the first document with each text, in order of digests, and for each document the index of its
        text in that list.
        """
        keys = np.frombuffer(bytes(self.digests), dtype=">u8").reshape(-1, DIGEST // 8)
        order = np.lexsort(keys.T[::-1])
        new = np.ones(len(order), dtype=bool)
        new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
        text_number = np.empty(len(order), dtype=np.int64)
        text_number[order] = np.cumsum(new) - 1
        return order[new], text_number

    def only(self, chosen: np.ndarray) -> "Documents":
        """The documents for which `chosen`, bool [documents], is True."""
        a, b, c, d, e = (array(c.typecode, np.asarray(c)[chosen].tobytes()) for c in self._columns())
        digests = np.frombuffer(bytes(self.digests), dtype=np.uint8).reshape(-1, DIGEST)[chosen]
        return Documents(self.origins, a, b, c, d, e, self.scripts, bytearray(digests.tobytes()))

    def followed_by(self, other: "Documents") -> "Documents":
        """These documents, followed by the others."""
        joined = self.only(np.ones(len(self), dtype=bool))
        joined.origins, joined.scripts = list(self.origins), list(self.scripts)
        joined.extend(other)
        return joined

    def extend(self, other: "Documents") -> None:
        """Add the other documents after these."""
        for script in other.scripts:
            if script not in self.scripts:
                self.scripts.append(script)
        numbers = np.array([self.scripts.index(script) for script in other.scripts], dtype=np.uint16)
        self.script.frombytes(numbers[np.asarray(other.script)].tobytes())
        self.source.frombytes((np.asarray(other.source) + len(self.origins)).astype(np.int32).tobytes())
        for own, column in zip(self._columns()[1:4], other._columns()[1:4], strict=True):
            own.extend(column)
        self.digests += other.digests
        self.origins += other.origins

    def column_bytes(self) -> bytes:
        """All columns, one after another."""
        return b"".join([*(column.tobytes() for column in self._columns()), bytes(self.digests)])

    @classmethod
    def of_columns(cls, origins: list[Origin], scripts: list[str], n: int, content: bytes) -> "Documents":
        """`n` documents whose columns `column_bytes` gave."""
        documents, at = cls(origins, scripts=scripts), 0
        for column in documents._columns():
            column.frombytes(content[at : at + n * column.itemsize])
            at += n * column.itemsize
        documents.digests += content[at:]
        return documents

    def _columns(self) -> tuple[array, ...]:
        return self.source, self.index, self.n_bytes, self.n_characters, self.script


@dataclass(frozen=True)
class Source:
    """A file that was read; `path` is relative to the folder that was named.

    n_bytes, sha256   of the file on disk
    n_documents       documents of this file in the corpus, without `empty` rows and `duplicates`
    replaced          how many byte sequences were not text and became U+FFFD; `first_replaced` is the position of the
    first
    halves            how many halves of characters, escaped in JSON, became U+FFFD; `first_half` is the row of the
    first
    field             the field or column that was read; `other_fields` lists the others where most rows have no text
    separator         what separates a table's columns, where earlier versions read them as one
    encoding          the encoding, if it is neither UTF-8 nor given by a byte order mark
    held_out          whether this file was named to be held out
    """

    path: str
    n_bytes: int
    sha256: str
    n_documents: int
    replaced: int
    first_replaced: str = ""
    encoding: str = ""
    empty: int = 0
    duplicates: int = 0
    held_out: bool = False
    halves: int = 0
    first_half: str = ""
    field: str = ""
    other_fields: str = ""
    separator: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The file's name, its content hash, and how it is used and read where that is not the rule: what decides its
        tokens.
        """
        special = (*(["held out"] if self.held_out else []), *([self.separator] if self.separator else []))
        return (self.path, self.sha256, *special)


def documents_of(origin: Origin, file: BinaryIO | None = None) -> FileDocuments:
    """The documents of one file, to be used up in order; `file` is the file if it is open already."""
    if file is not None:
        return (yield from READERS[origin.format](unpacked(file, origin), origin))
    try:
        own = origin.path.open("rb")
    except FileNotFoundError:
        raise ChangedError(f"{origin.name} was removed while it was being read: start again with it") from None
    except OSError as error:
        raise DocumentError(f"{origin.name} cannot be opened: {error.strerror}") from None
    with own:
        return (yield from READERS[origin.format](unpacked(own, origin), origin))


def why_not(origin: Origin, reading: ReadOptions) -> str:
    """Why this file cannot be read as text; empty if it can, or if only reading it can show."""
    if not origin.path.is_file():
        return "not a regular file"
    inner = Path(origin.path.stem) if origin.packed else origin.path
    if (suffix := inner.suffix.lower()) in UNREAD and reading.format == "auto":
        return f"{suffix} files are not read: convert it to text or JSON lines, or name its format with --format"
    try:
        with origin.path.open("rb") as file:
            if origin.format in SEEKING or origin.encoding != "utf-8":
                return ""
            head = as_utf8(unpacked(file, origin), origin).read(HEAD)
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    if b"\0" in head:
        return "it is binary, expected text"
    bad = sum("\udc80" <= character <= "\udcff" for character in head.decode("utf-8", "surrogateescape"))
    if bad > MOST_UNDECODABLE * len(head) and not reading.encoding and origin.format != "html":
        return (
            f"{bad} of its first {len(head)} bytes are not UTF-8: it is binary or in another encoding; name "
            "it with --encoding NAME, or convert the file to UTF-8"
        )
    return ""


def scan(
    origin: Origin, relative: str, documents: Documents, reading: ReadOptions, report: Callable[[int], None]
) -> Source:
    """Count and hash the documents of one file, and add those with any text. Returns the entry for the file."""
    before, state = len(documents), _state(origin)
    try:
        with origin.path.open("rb") as file:
            hashed = HashingFile(file, report)
            counts = _count_hashed(origin, file, hashed, documents)
            if counts["replaced"] and reading.encoding and origin.format not in SEEKING and not _is_utf8(file, origin):
                documents.truncate(before)
                file.seek(0)
                origin = replace(origin, encoding=reading.encoding)
                counts = _count(origin, file, documents)
    except DocumentError:
        documents.truncate(before)
        if _state(origin) != state:
            raise changed(origin) from None
        raise
    if _state(origin) != state:
        raise changed(origin)
    documents.origins.append(origin)
    n_documents, n_bytes, digest = len(documents) - before, hashed.n_bytes, hashed.digest.hexdigest()
    encoding = "" if origin.encoding == "utf-8" else origin.encoding
    return Source(relative, n_bytes, digest, n_documents, encoding=encoding, **counts)


def _is_utf8(file: BinaryIO, origin: Origin) -> bool:
    """Whether every byte of an open file is UTF-8. A page that names another encoding may still not be text in it."""
    file.seek(0)
    decoder, content = codecs.getincrementaldecoder("utf-8")("strict"), as_utf8(unpacked(file, origin), origin)
    try:
        for chunk in itertools.chain(iter(lambda: content.read(PIECE), b""), (b"",)):
            decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError:
        return False
    return True


def _state(origin: Origin) -> tuple[int, int]:
    """The file's size and modification time; (-1, -1) if it is gone."""
    try:
        state = origin.path.stat()
    except FileNotFoundError:
        return -1, -1
    return state.st_size, state.st_mtime_ns


def _count_hashed(origin: Origin, file: BinaryIO, hashed: HashingFile, documents: Documents) -> dict[str, Any]:
    """Count the documents of a file while hashing all of it. If its reader seeks, hash the file first."""
    if origin.format in SEEKING:
        hashed.exhaust()
        file.seek(0)
        return _count(origin, file, documents)
    counts = _count(origin, cast(BinaryIO, io.BufferedReader(hashed, PIECE)), documents)
    hashed.exhaust()
    return counts


class _WithField:
    """Iterates over the documents of an open file; `field` is then the one that was read."""

    def __init__(self, origin: Origin, file: BinaryIO):
        self.documents, self.field = documents_of(origin, file), ChosenField("")

    def __iter__(self) -> Iterator[Iterator[TextChunk]]:
        self.field = (yield from self.documents) or self.field


def _count(origin: Origin, file: BinaryIO, documents: Documents) -> dict[str, Any]:
    """Add the documents of an open file. Returns how many rows were empty, how many sequences were not text, and which
    field was read.
    """
    empty = replaced = halves = 0
    first = first_half = ""
    before, rows = len(documents), _WithField(origin, file)
    for index, pieces in enumerate(rows):
        digest, n_bytes, n_characters, script = hashlib.sha256(), 0, 0, ""
        for piece in pieces:
            script = script or (sampled_script_of(piece.text) if piece.text else "")
            if piece.replaced and not first:
                first = f"row {index + 1}" if origin.format in ROWS else _place(piece, n_bytes)
            digest.update(piece.text.encode())
            n_bytes, n_characters = n_bytes + piece.n_bytes, n_characters + len(piece.text)
            if piece.halves and not first_half:
                first_half = f"row {index + 1}"
            replaced, halves = replaced + piece.replaced, halves + piece.halves
        if n_characters:
            documents.add(len(documents.origins), index, n_bytes, n_characters, digest.digest(), script)
        else:
            empty += 1
    name, others, separator = rows.field
    return {
        "empty": empty,
        "replaced": replaced,
        "first_replaced": first,
        "halves": halves,
        "first_half": first_half,
        "field": _shown(name),
        "other_fields": listed(map(_shown, others)) if others and empty > len(documents) - before else "",
        "separator": separator,
    }


def _shown(field: str) -> str:
    """The name of a field, its beginning where it is long, without halves of characters, which cannot be printed."""
    return piece_of_text(field if len(field) <= SHOWN else f"{field[:SHOWN]}...").text


def _place(piece: TextChunk, before: int) -> str:
    """The position of the first byte that is not UTF-8, counted from 0 after the byte order mark."""
    try:
        piece.raw.decode()
    except UnicodeDecodeError as error:
        return f"byte {before + error.start}"
    return f"after byte {before}"


def as_counted(pieces: Iterator[TextChunk], digest: bytes, origin: Origin) -> Iterator[TextChunk]:
    """The chunks. Raises DocumentError at their end if the digest of their text is another."""
    actual = hashlib.sha256()
    for piece in pieces:
        actual.update(piece.text.encode())
        yield piece
    if actual.digest() != digest:
        raise changed(origin)


def use_up(pieces: Iterator[TextChunk]) -> None:
    """Read the rest without using it."""
    for _ in pieces:
        pass


def changed(origin: Origin) -> ChangedError:
    """The error for a file that changed since it was counted."""
    return ChangedError(f"{origin.name} changed while it was being read: start again once it is complete")
