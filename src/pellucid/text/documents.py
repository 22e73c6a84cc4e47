"""Reading text: files and folders become documents, in a fixed order, with an account of what was read.

A document is read in pieces, so that one larger than memory can be counted, hashed, split and
encoded. Every piece carries its text and how many bytes of the file it stands for: a byte that is
not UTF-8 becomes U+FFFD in the text and still counts as the one byte it was. Newlines stay as the
file has them; a leading byte order mark is dropped.
"""

import bisect
import codecs
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

#: bytes per piece
PIECE = 1 << 20
#: how much of a file decides whether it is text, and the share of undecodable bytes it may have there
HEAD, MOST_UNDECODABLE = 8192, 0.3


class DocumentError(ValueError):
    """Input that is missing, empty, not text, or no longer what it was."""


class Piece(NamedTuple):
    """Part of a document: its text, the bytes of the file it stands for, and how many sequences were not UTF-8.

    `raw` keeps those bytes where some were not, because the text no longer tells them.
    """

    text: str
    n_bytes: int
    replaced: int = 0
    raw: bytes = b""

    def cut(self, i: int) -> "tuple[Piece, Piece]":
        """The first `i` characters and the rest."""
        if not self.raw:
            head = self.text[:i]
            n_head = len(head.encode())
            return Piece(head, n_head), Piece(self.text[i:], self.n_bytes - n_head)
        # a broken sequence counts as one character from its first byte on, so this count never falls
        ends = range(len(self.raw) + 1)
        end = bisect.bisect_right(ends, i, key=lambda k: len(self.raw[:k].decode("utf-8", "replace"))) - 1
        return piece_of(self.raw[:end]), piece_of(self.raw[end:])


def piece_of(raw: bytes) -> Piece:
    """Bytes as a piece; what is not UTF-8 becomes U+FFFD, one for each maximal broken sequence (Unicode 3.9, D93b)."""
    try:
        return Piece(raw.decode(), len(raw))
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        genuine = raw.count("\ufffd".encode())
        return Piece(text, len(raw), text.count("\ufffd") - genuine, raw)


#: a reader turns one open file into its documents, each an iterator of pieces, to be used up in order
Reader = Callable[[BinaryIO], Iterator[Iterator[Piece]]]


@dataclass(frozen=True)
class Document:
    """One text: where it is from, its size, and a hash of its text that tells exact duplicates."""

    path: Path
    source: int
    index: int
    n_bytes: int
    n_characters: int
    digest: bytes

    def pieces(self) -> Iterator[Piece]:
        """The text from the file again, in pieces; DocumentError at the end if it is not what was counted."""
        digest = hashlib.sha256()
        for piece in _document(self.path, self.index):
            digest.update(piece.text.encode())
            yield piece
        if digest.digest() != self.digest:
            raise DocumentError(f"{self.path} changed while it was being read: start again once it is complete")

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(piece.text for piece in self.pieces())


@dataclass(frozen=True)
class Source:
    """One file that was read; `path` is relative to the folder named, `replaced` counts sequences not UTF-8."""

    path: str
    n_bytes: int
    sha256: str
    n_documents: int
    replaced: int


class Skipped(NamedTuple):
    """A file that was found and not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """What was read: documents in the order of their paths, the files they are from, and what was left out."""

    documents: tuple[Document, ...]
    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of text, byte order marks left out."""
        return sum(document.n_bytes for document in self.documents)

    @property
    def replaced(self) -> int:
        """How many sequences of bytes were not UTF-8 and became U+FFFD."""
        return sum(source.replaced for source in self.sources)


def read_corpus(paths: str | os.PathLike | Iterable[str | os.PathLike], progress: Callable | None = None) -> Corpus:
    """Every document of these files and folders, counted and hashed; their text is read again when it is used.

    Folders are searched through; hidden files and folders are left out. `progress(stage, done, total)` is
    called in bytes. Raises DocumentError for a path that does not exist, a named file that is not text, and
    input without any text.
    """
    named = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not named:
        raise DocumentError("no input was named: give at least one file or folder of text")
    skipped: list[Skipped] = []
    files = find_files(named, skipped)
    total, before = sum(path.stat().st_size for path, _ in files.values() if path.exists()), 0
    documents: list[Document] = []
    sources: list[Source] = []
    for relative in sorted(files):
        path, explicit = files[relative]
        if reason := _why_not(path):
            if explicit:
                raise DocumentError(f"{path}: {reason}")
            skipped.append(Skipped(relative, reason))
            continue
        report = partial(_report, progress, before, total)
        found, source = _scan(path, relative, len(sources), report)
        before += source.n_bytes
        if found:
            documents += found
            sources.append(source)
        else:
            skipped.append(Skipped(relative, "empty"))
    if not documents:
        raise DocumentError(_nothing(named, skipped))
    return Corpus(tuple(documents), tuple(sources), tuple(skipped))


def bundled(name: str) -> Path:
    """The path of a text that ships with the package: shakespeare."""
    folder = Path(__file__).parent.parent / "data"
    path = folder / f"{name}.txt"
    if not path.is_file():
        raise DocumentError(
            f"no bundled text {name!r}: say one of {', '.join(sorted(p.stem for p in folder.glob('*.txt')))}"
        )
    return path


# Readers --------------------------------------------------------------------------------------


def read_plain(file: BinaryIO) -> Iterator[Iterator[Piece]]:
    """Plain text: the file is one document."""
    yield _decode(iter(lambda: file.read(PIECE), b""))


#: one reader per suffix; a suffix that is not listed, and no suffix, is plain text
READERS: dict[str, Reader] = {".txt": read_plain, ".md": read_plain}
#: suffixes whose files hold text inside a format that plain reading would mistake for the text
UNREAD = (".jsonl", ".json", ".csv", ".tsv", ".html", ".htm", ".parquet", ".gz", ".zst", ".zip", ".pdf", ".docx")


def _decode(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """UTF-8 in chunks as pieces of text, whatever the chunks cut through."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    first = True
    for chunk in itertools.chain(chunks, (b"",)):
        text = decoder.decode(chunk, final=not chunk)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        if text:
            yield piece_of(text.encode("utf-8", "surrogateescape"))


def _document(path: Path, index: int) -> Iterator[Piece]:
    with path.open("rb") as file:
        for i, pieces in enumerate(_reader(path)(file)):
            if i == index:
                yield from pieces
                return
            for _ in pieces:
                pass
    raise DocumentError(f"{path} changed while it was being read: start again once it is complete")


def _reader(path: Path) -> Reader:
    return READERS.get(path.suffix.lower(), read_plain)


# Finding and counting -------------------------------------------------------------------------


def find_files(named: list[Path], skipped: list[Skipped]) -> dict[str, tuple[Path, bool]]:
    """Relative path -> (path, whether it was named itself) of every file to read."""
    for path in named:
        if not path.exists():
            raise DocumentError(f"{path}: there is no such file or folder")
    one_folder = len(named) == 1 and named[0].is_dir()
    parents = [os.path.abspath(path if one_folder else path.parent) for path in named]
    try:
        base = os.path.commonpath(parents)
    except ValueError:  # different drives on Windows
        base = ""
    files: dict[str, tuple[Path, bool]] = {}
    for path in named:
        found = [path] if not path.is_dir() else _walk(path, base, skipped)
        for file in found:
            relative = _relative(file, base)
            explicit = not path.is_dir() or files.get(relative, (file, False))[1]
            files[relative] = (file, explicit)
    return files


def _walk(folder: Path, base: str, skipped: list[Skipped]) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        for hidden in sorted(name for name in (*folders, *names) if name.startswith(".")):
            skipped.append(Skipped(_relative(Path(here, hidden), base), "hidden"))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here, name) for name in sorted(names) if not name.startswith("."))


def _relative(path: Path, base: str) -> str:
    return Path(os.path.relpath(os.path.abspath(path), base)).as_posix() if base else path.as_posix()


def _why_not(path: Path) -> str:
    """Why this file cannot be read as text; nothing if it can."""
    if not path.is_file():
        return "not a regular file"
    suffix = path.suffix.lower()
    if suffix in UNREAD and suffix not in READERS:
        return f"{suffix} files are not read: convert it to plain text, one file per document"
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it is UTF-16, expected UTF-8: convert it first"
    if b"\0" in head:
        return "it is binary, expected UTF-8 text"
    escaped = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(head)
    bad = sum("\udc80" <= character <= "\udcff" for character in escaped)
    if bad > MOST_UNDECODABLE * len(head):
        return (
            f"{bad} of its first {len(head)} bytes are not UTF-8: it is binary or in another encoding; convert it first"
        )
    return ""


def _report(progress: Callable | None, before: int, total: int, here: int) -> None:
    if progress:
        progress("reading", before + here, total)


def _scan(path: Path, relative: str, source: int, report: Callable[[int], None]) -> tuple[list[Document], Source]:
    """The documents of one file that have any text, counted and hashed, and the file's own account."""
    documents, replaced = [], 0
    with path.open("rb") as file:
        hashed = _HashingFile(file, report)
        for index, pieces in enumerate(_reader(path)(hashed)):  # type: ignore[arg-type]
            digest, n_bytes, n_characters = hashlib.sha256(), 0, 0
            for piece in pieces:
                digest.update(piece.text.encode())
                n_bytes, n_characters = n_bytes + piece.n_bytes, n_characters + len(piece.text)
                replaced += piece.replaced
            if n_characters:
                documents.append(Document(path, source, index, n_bytes, n_characters, digest.digest()))
        hashed.exhaust()
    return documents, Source(relative, hashed.n_bytes, hashed.digest.hexdigest(), len(documents), replaced)


class _HashingFile:
    """A file opened for reading that keeps the SHA-256 and the count of what was read, and reports the count."""

    def __init__(self, file: BinaryIO, report: Callable[[int], None]):
        self._file, self._report = file, report
        self.digest, self.n_bytes = hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        self.n_bytes += len(data)
        self._report(self.n_bytes)
        return data

    def exhaust(self) -> None:
        while self.read(PIECE):
            pass


def _nothing(named: list[Path], skipped: list[Skipped]) -> str:
    names = ", ".join(map(str, named))
    found = "; ".join(f"{path}: {reason}" for path, reason in skipped[:3]) or "no files were found"
    return f"{names}: there is no text to read ({found}); expected at least one non-empty UTF-8 file"
