"""Read books (EPUB) and documents of word processors (DOCX): ZIP archives of pages and of XML. A file is one document.

Members are bounded in size and parsed without document types, entities and the network, since archives come from
anywhere: a few bytes can unpack to gigabytes, and a few entities can expand to as many.
"""

import errno
import io
import lzma
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, cast
from urllib.parse import unquote

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from pellucid.text.read.chunks import DocumentError, TextChunk, decode_chunks, piece_of_text
from pellucid.text.read.decompress import Origin, as_utf8
from pellucid.text.read.html import STEP, read_html
from pellucid.text.read.tables import FileDocuments, seekable

#: the most bytes of one member, which is unpacked as a whole, and of all members that are read of one archive
MOST_MEMBER_BYTES, MOST_ARCHIVE_BYTES = 1 << 26, 1 << 30
#: elements that have no end in HTML; in the pages of books, which are XML, any other may be written <a/> too
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
_PROTECTED = "META-INF/encryption.xml"
_CLOSED_TAG = re.compile(rf"<(?!(?:{_VOID})\b)([A-Za-z][\w:-]*)((?:\s[^<>]*)?)/>".encode())
#: elements of WordprocessingML that stand for characters, and what separates the text before the end of an element from
#: the text behind it
_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_GAPS = {"p": "\n", "tc": "\t", "tr": "\n"}
#: what the standard library raises for damaged archives, and lxml for damaged XML
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, ValueError)


class _Archive:
    """The members of an open ZIP archive."""

    def __init__(self, file: BinaryIO, name: str):
        self.name, self._zip, self._n_bytes = name, zipfile.ZipFile(file), 0
        self.names = frozenset(self._zip.namelist())

    def read(self, member: str) -> bytes:
        """The content of a member. Raises DocumentError where it is not there, encrypted or too large."""
        if member not in self.names:
            raise DocumentError(f"{self.name} holds no {member}, so it is not of its format: name it with --format")
        about = self._zip.getinfo(member)
        if about.flag_bits & 1:
            raise DocumentError(f"{self.name} is encrypted: remove the password")
        self._n_bytes += about.file_size
        if about.file_size > MOST_MEMBER_BYTES or self._n_bytes > MOST_ARCHIVE_BYTES:
            raise DocumentError(
                f"{self.name}: {member} unpacks to {about.file_size:,} bytes; the limits are {MOST_MEMBER_BYTES:,} for "
                f"a member and {MOST_ARCHIVE_BYTES:,} for all: convert the file to text"
            )
        with self._zip.open(about) as opened:
            return opened.read(MOST_MEMBER_BYTES + 1)  # zipfile gives no more than file_size says

    def read_xml(self, member: str) -> etree._Element:
        """The root of a member that is XML."""
        return etree.fromstring(self.read(member), _xml_parser())


def _xml_parser(target: object | None = None) -> etree.XMLParser:
    return etree.XMLParser(target=target, resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)


@contextmanager
def _archive(file: BinaryIO, origin: Origin) -> Iterator[_Archive]:
    """The opened archive. Errors of a damaged one become DocumentError."""
    try:
        with seekable(file, origin) as opened:
            yield _Archive(opened, origin.name)
    except DocumentError:
        raise
    except (*_DAMAGE, etree.XMLSyntaxError, OSError) as error:
        is_of_disk = getattr(error, "errno", None) not in (None, errno.EINVAL)
        if is_of_disk:
            raise
        said = "".join(str(error).splitlines()[:1])
        raise DocumentError(f"{origin.name} is damaged or not of its format ({said}): fetch or save it again") from None


def read_epub(file: BinaryIO, origin: Origin) -> FileDocuments:
    """EPUB: the text of the book's chapters, in the order of its spine."""
    yield _chapters(file, origin)
    return None


def _chapters(file: BinaryIO, origin: Origin) -> Iterator[TextChunk]:
    """The text of the chapters of a book, with an empty line between them (EPUB 3.3, section 5)."""
    with _archive(file, origin) as archive:
        paths = archive.read_xml("META-INF/container.xml").xpath("//*[local-name() = 'rootfile']/@full-path")
        if not paths:
            raise DocumentError(f"{origin.name} names no package in META-INF/container.xml, so it is no book")
        package = archive.read_xml(paths[0])
        hrefs = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}item")}
        spine = [hrefs.get(item.get("idref"), "") for item in package.iterfind(".//{*}itemref")]
        protected = archive.read(_PROTECTED) if _PROTECTED in archive.names else b""
        gap = ""
        for href in filter(None, spine):
            if href.encode() in protected:
                raise DocumentError(f"{origin.name} is protected against copying (DRM) and cannot be read")
            member = posixpath.normpath(posixpath.join(posixpath.dirname(paths[0]), unquote(href)))
            page = as_utf8(cast(BinaryIO, io.BytesIO(archive.read(member))), origin).read()
            # the head of each page repeats the title of the book
            page = _CLOSED_TAG.sub(rb"<\1\2></\1>", page[max(page.find(b"<body"), 0) :])
            for chunk in read_html(decode_chunks([page]), f"{origin.name}, {member}"):
                if chunk.text and gap:
                    yield piece_of_text(gap)
                    gap = ""
                yield chunk
            gap = "\n"


def read_docx(file: BinaryIO, origin: Origin) -> FileDocuments:
    """DOCX: the text of the paragraphs and tables, without headers, footnotes and what was deleted."""
    yield _paragraphs(file, origin)
    return None


def _paragraphs(file: BinaryIO, origin: Origin) -> Iterator[TextChunk]:
    with _archive(file, origin) as archive:
        content, paragraphs = archive.read("word/document.xml"), _Paragraphs(origin.name)
        parser = _xml_parser(paragraphs)
        for start in range(0, len(content), STEP):
            parser.feed(content[start : start + STEP])
            if text := paragraphs.take():
                yield piece_of_text(text)
        parser.close()
        if text := paragraphs.take() + "\n" * paragraphs.begun:
            yield piece_of_text(text)


class _Paragraphs:
    """Collects the text of WordprocessingML (ECMA-376, part 1, 17.3): a line for each paragraph and row of a table."""

    def __init__(self, name: str):
        self.name, self.begun = name, False
        self._texts: list[str] = []
        self._gap, self._is_text, self._left_out = "", False, 0

    def doctype(self, name: str, public: str, system: str) -> None:
        raise DocumentError(f"{self.name} has a document type, which DOCX files do not: save it again")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        local = tag.rpartition("}")[2]
        self._left_out += local == "Fallback"  # the same text once more, for older programs
        self._is_text = local == "t"
        if local in _CHARACTERS and not (local == "tab" and attributes):  # others say where columns are
            self._write(_CHARACTERS[local])

    def end(self, tag: str) -> None:
        local = tag.rpartition("}")[2]
        self._left_out -= local == "Fallback"
        self._is_text = False
        self._gap = _GAPS.get(local, self._gap)

    def data(self, data: str) -> None:
        if self._is_text:
            self._write(data)

    def close(self) -> None:
        pass

    def take(self) -> str:
        """The text collected since the last call."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def _write(self, text: str) -> None:
        if not self._left_out:
            self._texts.append((self._gap if self.begun else "") + text)
            self._gap, self.begun = "", True
