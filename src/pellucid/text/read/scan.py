"""Scan one file: find, count and hash its documents, and read them again later with a check for changes.

A few numbers are kept for each document, not its text: a corpus may have millions of documents.
"""

import codecs
import hashlib
import io
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast, overload

import numpy as np

from pellucid.text.read.chunks import (
    CHUNK_BYTES,
    ChangedError,
    DocumentError,
    TextChunk,
    piece_of_text,
    split_documents,
)
from pellucid.text.read.decompress import HashingFile, Origin, as_utf8, unpacked
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.formats import ARRAY_OF_TEXT, READERS, SEEKING, UNREAD, unit_of
from pellucid.text.read.guess_encoding import fitting_encoding
from pellucid.text.read.tables import ChosenField, FileDocuments, first_column_names
from pellucid.text.scripts import sampled_script_of
from pellucid.text.tokenizers.base import SEPARATOR

#: how many bytes of a file decide whether it is text
HEAD_BYTES = 8192
#: the share of undecodable bytes allowed there
MOST_UNDECODABLE = 0.3
#: the numbers that are kept for a document, and how they are packed one after another
ROW = np.dtype(
    [("source", "<i4"), ("index", "<i8"), ("n_bytes", "<i8"), ("n_characters", "<i8"), ("script", "<u2"),
     ("digest", ">u8", 4)]
)  # fmt: skip
PACKED_ROW = struct.Struct("<iqqqH32s")
#: characters of a field's name that are kept: the first line of a table without names may be a long text
FIELD_CHARACTERS = 60


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
            drain(pieces)
        raise changed_file_error(self.origin)

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(piece.text for piece in self.pieces())


@dataclass(frozen=True, eq=False)
class Documents(Sequence[Document]):
    """Documents as the rows of one array, 62 bytes for each; `script` is an index into `scripts`, names in order of
    appearance.
    """

    origins: list[Origin] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, ROW))
    scripts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Documents) and (self.origins, self.scripts, self.rows.tobytes()) == (
            other.origins,
            other.scripts,
            other.rows.tobytes(),
        )

    @overload
    def __getitem__(self, k: int) -> Document: ...
    @overload
    def __getitem__(self, k: slice) -> list[Document]: ...
    def __getitem__(self, k: int | slice) -> Document | list[Document]:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        source, index, n_bytes, n_characters, _, _ = self.rows[k].item()
        return Document(self.origins[source], source, index, n_bytes, n_characters, self.digest(k))

    def digest(self, k: int) -> bytes:
        return self.rows["digest"][k].tobytes()

    def same_text(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of the first document with each text, in order of digests, and for each document the index of its
        text in that list.
        """
        keys = self.rows["digest"]
        order = np.lexsort(keys.T[::-1])
        new = np.ones(len(order), dtype=bool)
        new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
        text_number = np.empty(len(order), dtype=np.int64)
        text_number[order] = np.cumsum(new) - 1
        return order[new], text_number

    @classmethod
    def joined(cls, parts: Sequence["Documents"]) -> "Documents":
        """The documents of all parts, one part after another."""
        origins: list[Origin] = []
        scripts = {script: None for part in parts for script in part.scripts}
        numbers = {script: number for number, script in enumerate(scripts)}
        rows, n = np.empty(sum(map(len, parts)), ROW), 0
        for part in parts:
            own = rows[n : n + len(part)]
            own[:] = part.rows
            own["source"] += len(origins)
            own["script"] = np.array([numbers[script] for script in part.scripts], np.uint16)[part.rows["script"]]
            origins += part.origins
            n += len(part)
        return cls(origins, rows, list(scripts))


@dataclass(frozen=True)
class Source:
    """A file that was read; `path` is relative to the folder that was named.

    n_bytes, sha256   of the file on disk
    n_documents       documents of this file in the corpus, without `empty` rows and `duplicates`
    replaced          how many byte sequences were not text and became U+FFFD; `first_replaced` is the position of the
    first
    halves            how many halves of characters, escaped in JSON, became U+FFFD; `first_half` is the row, or
    the document, of the first
    field             the field or column that was read; `other_fields` lists the others where most rows have no text
    end_marks         how often the documents hold the characters of SEPARATOR
    divisions         how often documents were divided at `ReadOptions.split_at`
    front_matter      bytes of front matter of Markdown, which are no text
    main_missing      whether a page was read as a whole because no part of it is clearly its main text
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
    end_marks: int = 0
    divisions: int = 0
    front_matter: int = 0
    main_missing: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The file's name, its content hash, and whether it is held out: what decides its tokens."""
        return (self.path, self.sha256, *(["held out"] if self.held_out else []))


class FileToScan(NamedTuple):
    """A file, and its path relative to the folder that was named."""

    relative: str
    origin: Origin


@dataclass(frozen=True)
class ScannedFile:
    """What scanning one file gave: its entry and its documents, or the reason why it is not text, or an error."""

    source: Source | None = None
    documents: Documents = field(default_factory=Documents)
    reason: str = ""
    error: DocumentError | None = None


def documents_of(origin: Origin, file: BinaryIO | None = None) -> FileDocuments:
    """The documents of one file, to be used up in order; `file` is the file if it is open already."""
    if file is not None:
        return (yield from _divided(origin, file))
    try:
        own = origin.path.open("rb")
    except FileNotFoundError:
        raise ChangedError(f"{origin.name} was removed while it was being read: start again with it") from None
    except OSError as error:
        raise DocumentError(f"{origin.name} cannot be opened: {error.strerror}") from None
    with own:
        return (yield from _divided(origin, own))


def _divided(origin: Origin, file: BinaryIO) -> FileDocuments:
    documents = READERS[origin.format](unpacked(file, origin), origin)
    if not origin.split_at:
        return (yield from documents)
    field, divisions = yield from split_documents(documents, origin.split_at)
    return (field or ChosenField(""))._replace(divisions=divisions)


def why_unreadable(origin: Origin, reading: ReadOptions) -> str:
    """Why this file cannot be read as text; empty if it can, or if only reading it can show."""
    if not origin.path.is_file():
        return "not a regular file"
    inner = Path(origin.path.stem) if origin.packed else origin.path
    if (suffix := inner.suffix.lower()) in UNREAD and reading.format == "auto":
        return f"{suffix} files are not read: make text of it first, such as with {UNREAD[suffix]}"
    try:
        with origin.path.open("rb") as file:
            if origin.format in SEEKING or origin.encoding != "utf-8":
                return ""
            head = as_utf8(unpacked(file, origin), origin).read(HEAD_BYTES)
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    if b"\0" in head:
        return "it is binary, expected text"
    if origin.format == "json" and not ARRAY_OF_TEXT.match(head):
        return "it is no JSON array of objects or strings; --format plain reads it as text"
    bad = sum("\udc80" <= character <= "\udcff" for character in head.decode("utf-8", "surrogateescape"))
    if bad > MOST_UNDECODABLE * len(head) and not reading.encoding and origin.format != "html":
        encoding = fitting_encoding(head)
        what = f"it is probably {encoding}" if encoding else "it is binary or in another encoding"
        return (
            f"{bad} of its first {len(head)} bytes are not UTF-8: {what}; name it with "
            f"--encoding {encoding or 'NAME'}, or convert the file to UTF-8"
        )
    return ""


def scan_file(file: FileToScan, reading: ReadOptions, report: Callable[[int], None]) -> ScannedFile:
    """Count and hash the documents of one file; `report` is called with the bytes read."""
    try:
        if reason := why_unreadable(file.origin, reading):
            return ScannedFile(reason=reason)
        return ScannedFile(*scan(file.origin, file.relative, reading, report))
    except DocumentError as error:
        return ScannedFile(error=error)


def scan(
    origin: Origin, relative: str, reading: ReadOptions, report: Callable[[int], None]
) -> tuple[Source, Documents]:
    """Count and hash the documents of one file. Returns the entry for the file, and its documents with any text."""
    state = _state(origin)
    try:
        with origin.path.open("rb") as file:
            hashed = HashingFile(file, report)
            counts, documents = _count_hashed(origin, file, hashed)
            if counts["replaced"] and reading.encoding and origin.format not in SEEKING and not _is_utf8(file, origin):
                file.seek(0)
                origin = replace(origin, encoding=reading.encoding)
                counts, documents = _count(origin, file)
    except DocumentError:
        if _state(origin) != state:
            raise changed_file_error(origin) from None
        raise
    if _state(origin) != state:
        raise changed_file_error(origin)
    encoding = "" if origin.encoding == "utf-8" else origin.encoding
    source = Source(relative, hashed.n_bytes, hashed.digest.hexdigest(), len(documents), encoding=encoding, **counts)
    return source, documents


def _is_utf8(file: BinaryIO, origin: Origin) -> bool:
    """Whether every byte of an open file is UTF-8. A page that names another encoding may still not be text in it."""
    file.seek(0)
    decoder, content = codecs.getincrementaldecoder("utf-8")("strict"), as_utf8(unpacked(file, origin), origin)
    try:
        for chunk in itertools.chain(iter(lambda: content.read(CHUNK_BYTES), b""), (b"",)):
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


def _count_hashed(origin: Origin, file: BinaryIO, hashed: HashingFile) -> tuple[dict[str, Any], Documents]:
    """Count the documents of a file while hashing all of it. If its reader seeks, hash the file first."""
    if origin.format in SEEKING:
        hashed.exhaust()
        file.seek(0)
        return _count(origin, file)
    counted = _count(origin, cast(BinaryIO, io.BufferedReader(hashed, CHUNK_BYTES)))
    hashed.exhaust()
    return counted


class _WithField:
    """Iterates over the documents of an open file; `field` is then the one that was read."""

    def __init__(self, origin: Origin, file: BinaryIO):
        self.documents, self.field = documents_of(origin, file), ChosenField("")

    def __iter__(self) -> Iterator[Iterator[TextChunk]]:
        self.field = (yield from self.documents) or self.field


def _count(origin: Origin, file: BinaryIO) -> tuple[dict[str, Any], Documents]:
    """The documents of an open file; and how many rows were empty, how many sequences were not text, and which field
    was read.
    """
    empty = replaced = halves = end_marks = 0
    first = first_half = ""
    content, scripts = bytearray(), {}
    rows, unit = _WithField(origin, file), unit_of(origin)
    for index, pieces in enumerate(rows):
        digest, n_bytes, n_characters, script, last = hashlib.sha256(), 0, 0, "", ""
        for piece in pieces:
            script = script or (sampled_script_of(piece.text) if piece.text else "")
            if piece.replaced and not first:
                first = f"{unit} {index + 1}" if unit else _first_bad_byte(piece, n_bytes)
            digest.update(piece.text.encode())
            end_marks += (last + piece.text).count(SEPARATOR)
            last = (last + piece.text)[1 - len(SEPARATOR) :]
            n_bytes, n_characters = n_bytes + piece.n_bytes, n_characters + len(piece.text)
            if piece.halves and not first_half:
                first_half = f"{unit} {index + 1}"
            replaced, halves = replaced + piece.replaced, halves + piece.halves
        if n_characters:
            number = scripts.setdefault(script, len(scripts))
            content += PACKED_ROW.pack(0, index, n_bytes, n_characters, number, digest.digest())
        else:
            empty += 1
    documents = Documents([origin], np.frombuffer(content, ROW), list(scripts))
    name, others, divisions, front_matter, main_missing = rows.field
    counts = {
        "empty": empty,
        "replaced": replaced,
        "first_replaced": first,
        "halves": halves,
        "first_half": first_half,
        "field": _field_label(name),
        "other_fields": first_column_names(map(_field_label, others)) if others and empty > len(documents) else "",
        "end_marks": end_marks,
        "divisions": divisions,
        "front_matter": front_matter,
        "main_missing": main_missing,
    }
    return counts, documents


def _field_label(field: str) -> str:
    """The name of a field, its beginning where it is long, without halves of characters, which cannot be printed."""
    return piece_of_text(field if len(field) <= FIELD_CHARACTERS else f"{field[:FIELD_CHARACTERS]}...").text


def _first_bad_byte(piece: TextChunk, before: int) -> str:
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
        raise changed_file_error(origin)


def drain(pieces: Iterator[TextChunk]) -> None:
    """Read the rest without using it."""
    for _ in pieces:
        pass


def changed_file_error(origin: Origin) -> ChangedError:
    """The error for a file that changed since it was counted."""
    return ChangedError(f"{origin.name} changed while it was being read: start again once it is complete")
