"""File formats: how a file becomes documents. Each file is one document; in JSONL and tables, each row is.

plain            the file as it is
markdown         the file without its front matter
html             the text that a reader of the page sees
jsonl            one JSON object, or string, on each line
json             an array of objects or strings
csv, tsv         a table whose first line names its columns
parquet, arrow   tables of Apache Arrow (tables.py)
epub, docx       books, and documents of word processors (archives.py)
"""

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from pellucid.text.read.archives import read_docx, read_epub
from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError, TextChunk, decode_chunk, decode_chunks, piece_of_text
from pellucid.text.read.decompress import Origin, as_utf8
from pellucid.text.read.html import main_text_of, read_html
from pellucid.text.read.tables import (
    FIELD,
    ChosenField,
    FileDocuments,
    choose_field,
    first_column_names,
    read_arrow,
    read_parquet,
    refuse_conversations,
)

#: a reader turns the content of one open file into its documents, each an iterator of chunks: use one up, or leave it
#: out, before you ask for the next
Reader = Callable[[BinaryIO, Origin], FileDocuments]


def unit_of(origin: Origin) -> str:
    """What messages call the parts of this file that are documents; empty where the whole file is one."""
    return "document" if origin.split_at else "row" if origin.format in ROWS else ""


#: the longest line and table cell, in bytes: neither an unclosed quotation mark nor a few compressed bytes that unpack
#: to gigabytes may fill the memory
LONGEST_LINE = 1 << 28
#: encodings that pages name, and the larger ones that browsers use for them
LARGER_ENCODING = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
}
LARGER_ENCODING |= {"shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "tis-620": "cp874"}
#: a cell in quotation marks, with doubled marks inside
QUOTED = re.compile(r'"(?:[^"]|"")*"\Z')
#: the white space of JSON, and how near the end of what was read a value that is cut off gives an error
_JSON_SPACE, _CUT_OFF = " \t\n\r", 16
#: entries between two lines of --- (YAML; the second may be ...) or +++ (TOML); a line of --- alone may be a rule
_FRONT_MATTER = re.compile(
    rb"(?:---[ \t]*\r?\n(?=[^\n:]+:).*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n.*?\n\+\+\+)[ \t]*(?:\r?\n|\Z)\s*", re.DOTALL
)
LONGEST_FRONT_MATTER = 1 << 16
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)


def read_plain_text(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Plain text: the file is one document."""
    yield decode_chunks(_chunks(as_utf8(file, origin)))


def read_markdown(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Markdown: the file is one document, without front matter in YAML or TOML and the empty lines behind it."""
    content = as_utf8(file, origin)
    head = content.read(LONGEST_FRONT_MATTER)
    n_bytes = match.end() if (match := _FRONT_MATTER.match(head)) else 0
    yield decode_chunks(itertools.chain([head[n_bytes:]], _chunks(content)))
    return ChosenField("", front_matter=n_bytes)


def read_page(file: BinaryIO, origin: Origin) -> FileDocuments:
    """HTML: its text, or its main text, is one document. An encoding that the page names in <meta charset> is used."""
    buffered = file if hasattr(file, "peek") else io.BufferedReader(file, CHUNK_BYTES)  # type: ignore[arg-type]
    said = _CHARSET.search(buffered.peek(1024)[:1024])  # type: ignore[attr-defined]
    if said and origin.encoding == "utf-8":
        origin = replace(origin, encoding=_encoding_of_page(said[1].decode("ascii", "replace")))
    # a byte outside the page's encoding stays as it is and counts as not UTF-8
    utf8 = as_utf8(buffered, origin, "surrogateescape" if said else "strict")  # type: ignore[arg-type]
    chunks = decode_chunks(_chunks(utf8))
    if origin.html == "all":
        yield read_html(chunks, origin.name)
        return None
    page = list(chunks)
    main = main_text_of("".join(chunk.text for chunk in page), origin.name)
    replaced = sum(chunk.replaced for chunk in page)
    yield iter([_and_replaced(piece_of_text(main), replaced)]) if main else read_html(iter(page), origin.name)
    return ChosenField("", main_missing=not main)


def _encoding_of_page(name: str) -> str:
    """The encoding in which browsers read a page with this label (WHATWG Encoding, 4.2): often a larger set."""
    try:
        codec = codecs.lookup(name)
    except LookupError:
        return "utf-8"
    known = codec._is_text_encoding and not codec.name.startswith(("utf-16", "utf-32", "utf-7"))  # type: ignore[attr-defined]
    return LARGER_ENCODING.get(codec.name, codec.name) if known else "utf-8"


def read_json_lines(file: BinaryIO, origin: Origin) -> FileDocuments:
    """JSON lines: one object on each line, with its text in one field, or one string on each line.

    Once the field is known, a line is parsed only if its document is used.
    """
    field = origin.field
    others: tuple[str, ...] = ()
    for number, line in enumerate(utf8_lines(file, origin), 1):
        if not line.strip():
            continue
        if field:
            yield _document_of_line(line, number, origin, field)
            continue
        chunk, row_name = decode_chunk(line), f"{origin.name}, line {number}"
        row = _parsed(chunk.text, number, origin)
        if isinstance(row, dict):
            field, others = _field_of_row(row, row_name)[:2]
        yield iter([_and_replaced(_text_of_row(row, row_name, origin, field), chunk.replaced)])
    return ChosenField(field, others)


def _field_of_row(row: dict, row_name: str) -> ChosenField:
    """The field of text of the first row. A null may be a missing text in this row."""
    texts = [k for k, v in row.items() if v is None or isinstance(v, str)]
    refuse_conversations([k for k, v in row.items() if is_turns(v)], texts, row_name)
    field = choose_field(texts, list(row), row_name)
    return ChosenField(field, tuple(name for name in texts if name != field))


def read_json_array(file: BinaryIO, origin: Origin) -> FileDocuments:
    """A JSON array of objects, each with its text in one field, or of strings. One of them is in memory at a time."""
    chosen = ChosenField(origin.field)
    for number, (row, replaced) in enumerate(_items_of_array(file, origin), 1):
        row_name = f"{origin.name}, item {number}"
        if not isinstance(row, dict | str):
            raise DocumentError(f"{row_name}: {_json_type(row)}, expected an object with a field of text, or a string")
        if isinstance(row, dict) and not chosen.name:
            chosen = _field_of_row(row, row_name)
        yield iter([_and_replaced(_text_of_row(row, row_name, origin, chosen.name), replaced)])
    return chosen


def _items_of_array(file: BinaryIO, origin: Origin) -> Iterator[tuple[Any, int]]:
    """The items of an array, each with the number of its byte sequences that are not UTF-8."""
    content, decoder = as_utf8(file, origin), codecs.getincrementaldecoder("utf-8")("surrogateescape")
    parse, text, at, number, is_last = json.JSONDecoder().raw_decode, "", 0, 0, False
    while True:
        try:
            at = _behind_space(text, at)
            if number and text[at : at + 1] == "]":
                break
            if text[at : at + 1] != (expected := "," if number else "["):
                raise json.JSONDecodeError(f"expected {expected}", text, at)
            start = _behind_space(text, at + 1)
            if not number and text[start : start + 1] == "]":
                at = start
                break
            item, end = parse(text, start)
        except (ValueError, RecursionError) as error:
            # what is cut off gives an error at the end of what was read, or is a string that does not end
            position = getattr(error, "pos", 0)
            is_cut_off = position >= len(text) - _CUT_OFF or getattr(error, "msg", "").startswith("Unterminated")
            if not is_last and is_cut_off and len(text) - at <= LONGEST_LINE:
                text = text[at:]
                chunk = content.read(max(CHUNK_BYTES, len(text)))
                is_last, at = not chunk, 0
                text += decoder.decode(chunk, final=is_last)
                continue
            what = f"{origin.name}, item {number + 1}"
            raise _broken_json(error, what, "an array of objects or strings; mend the file", before=at) from None
        chunk = decode_chunk(text[start:end].encode("utf-8", "surrogateescape"))
        yield (json.loads(chunk.text) if chunk.replaced else item), chunk.replaced
        at, number = end, number + 1
    if text[at + 1 :].strip() or any(chunk.strip() for chunk in _chunks(content)):
        raise DocumentError(f"{origin.name}: there is more behind the array, expected one array; mend the file")


def _behind_space(text: str, at: int) -> int:
    """The position of the next character that is not white space of JSON."""
    while text[at : at + 1] in _JSON_SPACE and at < len(text):
        at += 1
    return at


def is_turns(value: Any) -> bool:
    """Whether a value of a row is a list of objects, as the turns of a conversation are."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _document_of_line(line: bytes, number: int, origin: Origin, field: str) -> Iterator[TextChunk]:
    """The document of a line, parsed when it is used."""
    chunk = decode_chunk(line)
    row_name = f"{origin.name}, line {number}"
    yield _and_replaced(_text_of_row(_parsed(chunk.text, number, origin), row_name, origin, field), chunk.replaced)


def _parsed(line: str, number: int, origin: Origin) -> dict | str:
    """The object or the string of a line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _broken_json(error, f"{origin.name}, line {number}", "one object a line; mend the line") from None
    if not isinstance(row, dict | str):
        raise DocumentError(
            f"{origin.name}, line {number}: {_json_type(row)}, expected an object with a field of text, or a string"
        )
    return row


def _broken_json(error: Exception, row_name: str, expected: str, before: int = 0) -> DocumentError:
    position = f", character {error.pos - before + 1}" if isinstance(error, json.JSONDecodeError) else ""
    nested = isinstance(error, RecursionError)
    said = "nested too deeply" if nested else getattr(error, "msg", "a number is too long")
    return DocumentError(f"{row_name}{position}: not valid JSON ({said}), expected {expected}")


def _text_of_row(row: dict | str, row_name: str, origin: Origin, field: str) -> TextChunk:
    """The text of a row."""
    if isinstance(row, dict):
        if not origin.field and field != FIELD and isinstance(row.get(FIELD), str):
            raise DocumentError(
                f"{row_name}: the field {FIELD!r} occurs here first, after {field!r} was read in the rows before: "
                "choose one with --field"
            )
        row = _text_of(row, field, row_name)
    return piece_of_text(row)


def _text_of(row: dict, field: str, row_name: str) -> str:
    if field not in row:
        raise DocumentError(
            f"{row_name}: no field {field!r}; the fields are {first_column_names(row)}: choose with --field"
        )
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise DocumentError(f"{row_name}: field {field!r} holds {_json_type(text)}, expected text")
    return text or ""


def read_csv(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Comma-separated values (RFC 4180) with a header. One without commas may use semicolons, tabs or bars."""
    return _read_table(file, origin, ",;\t|")


def read_tsv(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Tab-separated values with a header."""
    return _read_table(file, origin, "\t")


def _read_table(file: BinaryIO, origin: Origin, separators: str) -> FileDocuments:
    # bytes that are not UTF-8 are escaped until their cell is read
    lines = (line.decode("utf-8", "surrogateescape") for line in utf8_lines(file, origin))
    first = next((line for line in lines if line.strip()), "")
    separator = next((s for s in separators if s in first), separators[0])
    csv.field_size_limit(LONGEST_LINE)
    rows: Any = csv.reader(_put_back(first, lines), delimiter=separator, strict=True)
    try:
        header = next(rows, [])
        if not header:
            return None
        rows = _TabbedRows(lines, len(header), rows.line_num) if separator == "\t" and len(header) > 1 else rows
        if twice := next((name for name in header if name == (origin.field or FIELD) and header.count(name) > 1), ""):
            raise DocumentError(f"{origin.name} has {header.count(twice)} columns {twice!r}: rename one of them")
        column = header.index(choose_field(header, header, origin.name, origin.field, "column"))
        for row in rows:
            if not row:  # a blank line
                continue
            if len(row) != len(header):
                raise DocumentError(
                    f"{origin.name}, line {rows.line_num}: {len(row)} cells, expected {len(header)} as in the first "
                    "line, which names the columns"
                )
            yield iter([decode_chunk(row[column].encode("utf-8", "surrogateescape"))])
        others = tuple(name for name in header if name != header[column])
        return ChosenField(header[column], others)
    except csv.Error as error:
        raise DocumentError(f"{origin.name}, line {rows.line_num}: not a table ({error})") from None


class _TabbedRows:
    """Rows of a tab-separated table. A line with one cell for each column is a row, quotation marks included.

    A cell that is quoted as a whole is unquoted. Other lines with quotation marks are read by RFC 4180: those with
    another number of cells, and those whose last cell opens a quotation that the next line continues.
    """

    def __init__(self, lines: Iterator[str], n_cells: int, line_num: int):
        self.lines, self.n, self.line_num = lines, n_cells, line_num
        self.ahead: list[str] = []

    def __iter__(self) -> "_TabbedRows":
        return self

    def __next__(self) -> list[str]:
        line = self._line()
        cells = line.rstrip("\r\n").split("\t")
        if '"' not in line or (len(cells) == self.n and not self._goes_on(cells[-1])):
            return [
                cell[1:-1].replace('""', '"') if QUOTED.match(cell) else cell for cell in cells if line.strip("\r\n")
            ]
        self.ahead.insert(0, line)
        self.line_num -= 1
        return next(csv.reader(iter(self._line, None), delimiter="\t", strict=True))

    def _line(self) -> str:
        line = self.ahead.pop(0) if self.ahead else next(self.lines)
        self.line_num += 1
        return line

    def _goes_on(self, cell: str) -> bool:
        if not cell.startswith('"') or QUOTED.match(cell):
            return False
        self.ahead += [] if self.ahead else itertools.islice(self.lines, 1)
        return bool(self.ahead) and self.ahead[0].count("\t") != self.n - 1


def utf8_lines(file: BinaryIO, origin: Origin) -> Iterator[bytes]:
    """Lines in UTF-8, with their line ends. Raises DocumentError for one that is longer than LONGEST_LINE bytes."""
    content, number = as_utf8(file, origin), 0
    while line := content.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DocumentError(
                f"{origin.name}, line {number}: longer than {LONGEST_LINE:,} bytes, the limit for a line; if the file "
                "does not have this format, name its format, such as --format plain"
            )
        yield line


def _put_back(first: str, rest: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def _and_replaced(piece: TextChunk, more: int) -> TextChunk:
    return piece._replace(replaced=piece.replaced + more) if more else piece


def _json_type(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


READERS: dict[str, Reader] = {
    "plain": read_plain_text,
    "markdown": read_markdown,
    "html": read_page,
    "jsonl": read_json_lines,
    "json": read_json_array,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "epub": read_epub,
    "docx": read_docx,
}
#: formats with many documents in a file
ROWS = ("jsonl", "json", "csv", "tsv", "parquet", "arrow")
#: formats whose readers seek in the file
SEEKING = ("parquet", "arrow", "epub", "docx")
#: the format of each file ending; all other files are plain text
ENDINGS = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".htm": "html",
    ".html": "html",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".epub": "epub",
    ".docx": "docx",
}
#: endings of files whose text lies inside another format, which plain reading would take for the text, and what makes
#: text of them
UNREAD = {
    ".pdf": "pdftotext FILE.pdf",
    **dict.fromkeys((".doc", ".odt", ".rtf"), "LibreOffice, saved as .docx"),
    ".ipynb": "jupyter nbconvert --to markdown FILE.ipynb",
    ".zip": "unzip FILE.zip",
    **dict.fromkeys((".tar", ".tgz"), "tar -xf FILE"),
    **dict.fromkeys((".bz2", ".xz", ".7z"), "7z x FILE"),
}
#: the beginning of a JSON array of objects or strings
ARRAY_OF_TEXT = re.compile(rb'\s*\[\s*(?:["{\]]|\Z)')
