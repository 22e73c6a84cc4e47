"""One text out of a file: what is read, how many bytes that is, and what these bytes are."""

import gzip
import io
import sys

import pytest

from pellucid.text.one_text import document_name, one_text
from pellucid.text.read.documents import read_corpus
from pellucid.text.read.find import ReadOptions

UTF16 = "the bytes in UTF-8 of the text converted from UTF-16"
#: content of a file, its text, and what is said of its bytes
FILES = {
    "plain.txt": (b"caf\xc3\xa9", "café", "the bytes of the file"),
    "mark.txt": (b"\xef\xbb\xbfcaf\xc3\xa9", "café", "the bytes of the file, without its byte order mark"),
    "utf16.txt": ("café".encode("utf-16"), "café", f"{UTF16}; the file has 10"),
    "page.html": (b"<p>a<b>b</b>", "ab\n", "the bytes in UTF-8 of the text extracted from HTML; the file has 12"),
    "packed.txt.gz": (
        gzip.compress(b"text", mtime=0),
        "text",
        "the bytes in UTF-8 of the text unpacked from .gz; the file has 24",
    ),
    "all.html.gz": (
        gzip.compress("<p>é".encode(), mtime=0),
        "é\n",
        "the bytes in UTF-8 of the text extracted from HTML, unpacked from .gz; the file has 25",
    ),
    "packed16.txt.gz": (
        gzip.compress("é".encode("utf-16"), mtime=0),
        "é",
        f"{UTF16}, unpacked from .gz; the file has 24",
    ),
    "row.jsonl": (
        b'{"text": "a\\nb"}',
        "a\nb",
        "the bytes in UTF-8 of the text read from a row of JSON lines; the file has 16",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_counted_is_said(name, tmp_path):
    content, text, counted = FILES[name]
    (tmp_path / name).write_bytes(content)
    one = one_text(read_corpus(tmp_path / name))
    assert (one.text, one.n_bytes, one.counted, one.notes) == (text, len(text.encode()), counted, ())


def test_standard_input_is_read_as_a_file_is(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"caf\xe9"))))
    one = one_text(read_corpus("-", reading=ReadOptions(encoding="latin-1")))
    assert one.text == "café"
    assert one.counted.startswith(
        "the bytes in UTF-8 of the text converted from LATIN-1, unpacked from .gz; standard input"
    )


def test_bytes_that_are_not_utf8_are_told_as_in_training_and_count_as_they_are(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"nearly all of it is text, but caf\xe9 is not; \xff")
    one = one_text(read_corpus(path))
    assert one.n_bytes == len(path.read_bytes()) == len(one.text.encode()) - 4
    (note,) = one.notes
    assert note.startswith(
        "2 sequences of bytes are not UTF-8 and became U+FFFD, in 1 of the files, the first in a.txt at"
    )
    assert note.endswith("name it: --encoding latin-1")
    named = one_text(read_corpus(path, reading=ReadOptions(encoding="latin-1")))
    assert named.counted == f"the bytes in UTF-8 of the text converted from LATIN-1; the file has {one.n_bytes}"
    assert named.notes == ()


def test_the_file_of_the_only_document_is_named_where_others_hold_duplicates(tmp_path):
    (tmp_path / "b.html").write_text("<p>text")
    (tmp_path / "c.txt").write_text("text\n")
    one = one_text(read_corpus(tmp_path, reading=ReadOptions(drop_duplicates=True)))
    assert one.text == "text\n"
    assert one.counted == "the bytes in UTF-8 of the text extracted from HTML; the file has 7"


def test_a_document_has_the_name_of_its_file_and_the_number_of_its_row(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.jsonl").write_text('"a"\n"b"\n')
    names = [document_name(document) for document in read_corpus(tmp_path).documents]
    assert names == [str(tmp_path / "a.txt"), f"{tmp_path / 'b.jsonl'}, row 1", f"{tmp_path / 'b.jsonl'}, row 2"]
