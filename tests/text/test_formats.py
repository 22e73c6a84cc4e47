"""Every format a text may come in, each also packed, and what is said when one is broken."""

import contextlib
import csv
import gzip
import importlib
import io
import json
import os
import random
import re
import sys
import zlib

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.one_text import document_name
from pellucid.text.read import decompress as opening
from pellucid.text.read import find as finding
from pellucid.text.read import formats
from pellucid.text.read.chunks import decode_chunks, split_documents
from pellucid.text.read.decompress import Origin
from pellucid.text.read.documents import DocumentError, read_corpus
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.html import read_html
from pellucid.text.split import split_corpus
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text.tokens.prepare import prepared_folder

TEXTS = ['one\nline, "quoted"; é', "two\ttabs", "three 😀", "four"]


def json_lines(texts, field="text"):
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def table(texts, separator=",", header=("id", "text")):
    file = io.StringIO(newline="")
    rows = csv.writer(file, delimiter=separator)
    rows.writerows([header, *enumerate(texts)])
    return file.getvalue().encode()


def arrow_table(texts, kind=None):
    return pyarrow.table({"id": list(range(len(texts))), "text": pyarrow.array(texts, kind)})


def parquet(texts, kind=None):
    file = io.BytesIO()
    pyarrow.parquet.write_table(arrow_table(texts, kind), file, row_group_size=3)
    return file.getvalue()


def arrow(texts, make=pyarrow.ipc.new_stream):
    file = io.BytesIO()
    rows = arrow_table(texts)
    with make(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return file.getvalue()


WRITERS = {
    "a.jsonl": json_lines,
    "a.ndjson": json_lines,
    "a.csv": table,
    "b.csv": lambda texts: table(texts, ";"),
    "a.tsv": lambda texts: table(texts, "\t"),
    "a.parquet": parquet,
    "a.arrow": arrow,
    "b.arrow": lambda texts: arrow(texts, pyarrow.ipc.new_file),
}
PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


def texts_of(path, **reading):
    corpus = read_corpus(path, reading=ReadOptions(**reading))
    alone = [document.text for document in corpus.documents]
    streamed = ["".join(piece.text for piece in pieces) for _, pieces in corpus.stream()]
    assert streamed == alone
    assert [d.n_bytes for d in corpus.documents] == [len(text.encode()) for text in alone]
    return alone


def refused(path, match, **reading):
    with pytest.raises(DocumentError, match=match) as caught:
        read_corpus(path, reading=ReadOptions(**reading))
    assert "\n" not in str(caught.value)


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# What there is ----------------------------------------------------------------------------------


@pytest.mark.item("S4-learn-b")
@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("name", WRITERS)
def test_every_row_of_every_format_is_a_document(name, packed, tmp_path):
    texts = TEXTS * 5
    path = put(tmp_path, name + packed, PACKERS[packed](WRITERS[name](texts)))
    assert texts_of(path) == texts
    assert texts_of(tmp_path) == texts
    assert texts_of(path, field="text") == texts


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "plain\r\ntext", "plain\r\ntext"),
        ("a.md", "# head\n\ntext", "# head\n\ntext"),
        ("NOTES", "no ending", "no ending"),
        ("a.html", "<h1>A</h1><p>b &amp; <b>c</b></p><script>x < 1</script>", "A\n\nb & c\n"),
        ("a.htm", "<title>T</title>text", "T\ntext\n"),
    ],
)
def test_a_file_of_text_is_a_document(name, content, text, packed, tmp_path):
    assert texts_of(put(tmp_path, name + packed, PACKERS[packed](content.encode()))) == [text]


def test_all_of_them_in_one_folder_are_one_corpus(tmp_path):
    for i, (name, make) in enumerate(WRITERS.items()):
        put(tmp_path, f"{i}/{name}", make(TEXTS))
    put(tmp_path, "z/a.txt.gz", gzip.compress(b"last"))
    corpus = read_corpus(tmp_path)
    assert [source.n_documents for source in corpus.sources] == [4] * len(WRITERS) + [1]
    assert list(corpus.texts()) == TEXTS * len(WRITERS) + ["last"]
    again = read_corpus(tmp_path)
    assert corpus == again
    assert corpus.hash == again.hash
    split = split_corpus(corpus, 0.3, rule="documents")
    parts = ["".join(p.text for p in pieces) for name in ("train", "held_out") for pieces in split.documents(name)]
    assert sorted(parts) == sorted(corpus.texts())


def test_members_of_a_packed_file_one_after_another_are_all_read(tmp_path):
    for ending, pack in list(PACKERS.items())[1:]:
        assert texts_of(put(tmp_path, f"a.txt{ending}", pack(b"one, ") + pack(b"two"))) == ["one, two"]


def test_a_data_set_saved_by_datasets_is_read_without_what_it_left_beside(tmp_path):
    """The layout of `DatasetDict.save_to_disk`, with a file of its cache."""
    put(tmp_path, "dataset_dict.json", '{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        name = "data-00000-of-00001.arrow"
        put(tmp_path, f"{split}/{name}", arrow([f"{split} {text}" for text in TEXTS]))
        put(tmp_path, f"{split}/state.json", json.dumps({"_data_files": [{"filename": name}]}))
        put(tmp_path, f"{split}/dataset_info.json", "{}")
    put(tmp_path, "train/cache-77.arrow", arrow(["not ours"]))
    corpus = read_corpus(tmp_path)
    assert list(corpus.texts()) == [f"{split} {text}" for split in ("test", "train") for text in TEXTS]
    assert dict(corpus.skipped)["train/cache-77.arrow"] == "not among the files of the data set that state.json lists"
    assert dict(corpus.skipped)["dataset_dict.json"] == "describes a data set, holds no text"
    os.remove(tmp_path / "train" / "data-00000-of-00001.arrow")
    refused(tmp_path, "which is not there: the data set is not complete")


def test_what_datasets_itself_saves_is_read(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    made = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3, 4]})})
    made.save_to_disk(tmp_path / "saved")
    assert texts_of(tmp_path / "saved") == TEXTS


@pytest.mark.parametrize("packed", PACKERS)
def test_standard_input(packed, tmp_path, monkeypatch):
    class Input:
        buffer = io.BytesIO(PACKERS[packed](json_lines(TEXTS)))

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdin", Input())
    corpus = read_corpus("-", reading=ReadOptions(format="jsonl"))
    assert list(corpus.texts()) == TEXTS
    assert [source.path for source in corpus.sources] == ["-"]
    Input.buffer = io.BytesIO(b"")
    refused("-", "no text to read")
    monkeypatch.setattr(Input, "isatty", lambda self: True)
    refused("-", "standard input is a terminal")


def test_patterns_and_what_they_leave_out(tmp_path):
    for name in ("a.txt", "b.md", "deep/c.txt", "deep/d.log", "deep/er/e.txt"):
        put(tmp_path, name, name)
    put(tmp_path, "binary.txt", b"\0\0")
    assert texts_of(tmp_path / "*.txt") == ["a.txt"]
    assert texts_of(tmp_path / "**" / "*.txt") == ["a.txt", "deep/c.txt", "deep/er/e.txt"]
    refused(tmp_path / "*.rst", "no file but hidden ones and those of runs matches this pattern")
    assert texts_of(tmp_path, include="*.md, *.log") == ["b.md", "deep/d.log"]
    assert texts_of(tmp_path, include="*.txt", exclude="er,a.*") == ["deep/c.txt"]
    assert texts_of(tmp_path, exclude="deep/*") == ["a.txt", "b.md"]
    # what is named is read whatever the patterns say
    assert texts_of([tmp_path / "a.txt", tmp_path / "deep"], exclude="*.txt") == ["a.txt", "deep/d.log"]
    reasons = dict(read_corpus(tmp_path, reading=ReadOptions(include="*.txt", exclude="deep")).skipped)
    assert reasons["b.md"] == "not included"
    assert reasons["deep/c.txt"] == "excluded by deep"
    assert reasons["binary.txt"] == "it is binary, expected text"


def test_links_to_folders_are_not_followed_and_said(tmp_path):
    put(tmp_path, "a.txt", "text")
    os.symlink(tmp_path, tmp_path / "round", target_is_directory=True)
    assert dict(read_corpus(tmp_path).skipped) == {"round": "a link to a folder, which is not followed"}


def test_the_format_can_be_said(tmp_path):
    path = put(tmp_path, "a.log", json_lines(TEXTS))
    assert texts_of(path, format="jsonl") == TEXTS
    assert len(texts_of(path)) == 1
    assert texts_of(put(tmp_path, "a.json", json_lines(TEXTS)), format="jsonl") == TEXTS
    with pytest.raises(DocumentError, match="choose auto or one of plain, markdown, html"):
        ReadOptions(format="xml")


# Fields and columns -----------------------------------------------------------------------------


def test_the_field_is_chosen_or_the_only_one(tmp_path):
    rows = [{"title": "a", "body": "b"}, {"title": "c", "body": "d"}]
    many = put(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert texts_of(many, field="body") == ["b", "d"]
    refused(many, "several hold text, title, body: choose a field with --field")
    refused(many, r"a\.jsonl, line 1: no field 'boby'; the fields are title, body", field="boby")
    assert texts_of(put(tmp_path, "b.jsonl", json_lines(TEXTS, "content"))) == TEXTS
    assert texts_of(put(tmp_path, "c.jsonl", '"plain"\n"strings"\n\n')) == ["plain", "strings"]
    refused(put(tmp_path, "d.jsonl", '{"n": 1}\n'), "none of n holds text")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_a_column_that_is_missing_is_refused_with_those_there_are(name, tmp_path):
    path = put(tmp_path, name, WRITERS[name](TEXTS))
    refused(path, "has no column 'body'; the columns are id, text", field="body")
    if name in ("a.parquet", "a.arrow"):
        refused(path, "column 'id' holds int64, expected text; columns of text are text", field="id")
    else:
        assert texts_of(path, field="id") == ["0", "1", "2", "3"]


def test_columns_of_every_type_of_text_and_rows_without_any(tmp_path):
    texts = ["a", None, "b", "", "c"]
    kinds = (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    for kind in kinds:
        path = put(tmp_path, "a.parquet", parquet(texts, kind))
        assert texts_of(path) == ["a", "b", "c"]
    assert read_corpus(path).sources[0].empty == 2
    rows = '{"text": "a"}\n{"text": null}\n{"text": ""}\n'
    assert read_corpus(put(tmp_path, "a.jsonl", rows)).sources[0].empty == 2
    assert texts_of(put(tmp_path, "a.csv", "text,n\r\na,1\r\n,2\r\nb,3\r\n")) == ["a", "b"]


def test_a_table_of_one_column_needs_no_choice_and_cells_may_be_long(tmp_path):
    long = "x" * 300_000
    assert texts_of(put(tmp_path, "a.csv", f'words\n"a\nb"\n{long}\n')) == ["a\nb", long]
    assert texts_of(put(tmp_path, "b.tsv", "words\ttext\n1\ta, b; c\n")) == ["a, b; c"]


def test_rows_without_text_are_said_with_the_fields_that_may_hold_it(tmp_path):
    rows = "".join(json.dumps({"text": text, "body": "b", "n": 1}) + "\n" for text in ("a", None, "b", "", "c"))
    few = put(tmp_path, "a.jsonl", rows)
    assert read_corpus(few).notes == ["2 of 5 rows have no text in the field 'text' and were left out"]
    put(tmp_path, "b.jsonl", rows + rows.replace('"a"', "null").replace('"b"', "null", 1))
    for name, pack in PACKERS.items():
        most = put(tmp_path / "most", f"c.csv{name}", pack(b"text,body\n,one\n,two\nyes,three\n"))
        (note,) = read_corpus(most).notes
        assert note.startswith("2 of 3 rows have no text in the field 'text' and were left out; other fields are body:")
    (note,) = read_corpus([few, most], reading=ReadOptions(drop_duplicates=True)).notes
    assert note.startswith(
        "4 of 8 rows of 2 files have no text in the field 'text' and were left out, the most in a.jso"
    )
    assert read_corpus(put(tmp_path, "d.jsonl", '{"text": "a"}\n\n"b"\n')).notes == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"words": "one"}\n'),
        ("a.csv", b"words\none\n"),
        ("a.parquet", parquet(["one"]).replace(b"text", b"note")),
    ],
)
def test_a_field_of_another_name_is_said_unless_it_was_named(name, content, tmp_path):
    path = put(tmp_path, name, content)
    field = "note" if "parquet" in name else "words"
    (note,) = read_corpus(path).notes
    assert note.startswith(f"no field is called 'text': the only one of text was read, '{field}' of {name}; ")
    assert read_corpus(path, reading=ReadOptions(field=field)).notes == []
    put(tmp_path, f"b.{name}", content)
    assert f"'{field}' of {name} and of 1 more file; " in read_corpus(tmp_path).notes[0]


def test_names_of_fields_can_be_printed_and_are_short(tmp_path):
    path = put(tmp_path, "a.csv", b"caf\xe9 " + b"x" * 100 + b",text\n1,\n2,\n3,a\n")
    source = read_corpus(path).sources[0]
    assert source.other_fields == "caf\ufffd " + "x" * 55 + "..."
    source.other_fields.encode()


def test_bars_separate_columns(tmp_path):
    assert texts_of(put(tmp_path, "a.csv", table(TEXTS, "|"))) == TEXTS


# What is broken ---------------------------------------------------------------------------------

BROKEN = {
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b', r"cut\.jsonl, line 2, character \d+: not valid JSON"),
    "number.jsonl": (b'{"text": "a"}\n7\n', "line 2: a number, expected an object with a field of text"),
    "missing.jsonl": (b'{"text": "a"}\n\n{"txt": "b"}\n', "line 3: no field 'text'; the fields are txt"),
    "list.jsonl": (b'{"text": ["a"]}\n{"text": "b"}\n', "none of text holds text"),
    "other.jsonl": (b'{"text": "b"}\n{"text": {"a": 1}}\n', "line 2: field 'text' holds an object, expected text"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", r"deep\.jsonl, line 1: not valid JSON"),
    "ragged.csv": (b"id,text\n1,a\n2,b,c\n", r"ragged\.csv, line 3: 3 cells, expected 2"),
    "open.csv": (b'id,text\n1,"a\n2,b\n', r"open\.csv, line 3: not a table"),
    "cut.txt.gz": (gzip.compress(os.urandom(4000).hex().encode())[:-900], "cut short: its gzip stream ends after"),
    "no.txt.gz": (b"this is no gzip stream", "damaged after 0 bytes of content"),
    "cut.txt.zst": (PACKERS[".zst"](os.urandom(4000).hex().encode())[:-900], "cut short: its zstd stream ends after"),
    "no.txt.zst": (b"this is no zstd stream", "damaged after 0 bytes of content"),
    "cut.jsonl.gz": (gzip.compress(json_lines(TEXTS * 999))[:-99], r"cut\.jsonl\.gz is cut short"),
    "cut.parquet": (parquet(TEXTS)[:-30], r"cut\.parquet is damaged or not of its format"),
    "no.parquet": (b"PAR1", r"no\.parquet is damaged or not of its format"),
    "cut.arrow": (arrow(TEXTS)[:-200], r"cut\.arrow is damaged or not of its format"),
    "cut.parquet.gz": (gzip.compress(parquet(TEXTS))[:-9], r"cut\.parquet\.gz is cut short"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_by_the_name_of_the_file_and_the_place(name, tmp_path):
    """Named or found: text that would silently be missing is an error."""
    content, message = BROKEN[name]
    put(tmp_path, "good.txt", "good")
    path = put(tmp_path, name, content)
    refused(path, message)
    refused(tmp_path, message)
    assert texts_of(tmp_path, exclude=name) == ["good"]


NOTHING = {
    "a.txt": b"",
    "a.txt.gz": b"",
    "a.txt.zst": b"",
    "b.txt.gz": gzip.compress(b""),
    "b.txt.zst": PACKERS[".zst"](b""),
    "a.jsonl": b"\n\n",
    "b.jsonl": b'{"text": ""}\n',
    "a.csv": b"",
    "b.csv": b"id,text\n",
    "a.tsv": b"text\n\n",
    "a.html": b"<html><script>1</script></html>",
    "a.parquet": parquet([], pyarrow.string()),
    "b.parquet": parquet(["", None], pyarrow.string()),
    "a.arrow": arrow([""]),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_holds_no_text_is_refused_by_name_and_skipped_in_a_folder(name, tmp_path):
    path = put(tmp_path / "texts", name, NOTHING[name])
    refused(path, rf"there is no text to read \(.*{name}: empty\)")
    put(tmp_path / "texts", "good.txt", "good")
    corpus = read_corpus(tmp_path / "texts")
    assert list(corpus.texts()) == ["good"]
    assert dict(corpus.skipped) == {name: "empty"}


def test_a_folder_of_nothing_readable_says_what_it_found(tmp_path):
    put(tmp_path, "a.bin", b"\0\1")
    put(tmp_path, "b.pdf", b"%PDF")
    put(tmp_path, ".hidden", b"text")
    refused(tmp_path, r"no text to read \(.*\.hidden: hidden; .*a\.bin: it is binary.*b\.pdf: \.pdf files are not read")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_what_may_not_be_opened_is_said(name, tmp_path, monkeypatch):
    put(tmp_path, "good.txt", "good")
    path, real = put(tmp_path, name, b"closed"), finding.Path.open

    def closed(self, *given, **options):
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *given, **options)

    monkeypatch.setattr(finding.Path, "open", closed)
    refused(path, rf"{name}: it cannot be opened: Permission denied")
    assert dict(read_corpus(tmp_path).skipped) == {name: "it cannot be opened: Permission denied"}


def test_a_file_that_is_closed_after_it_was_counted_is_an_error(tmp_path, monkeypatch):
    corpus = read_corpus(put(tmp_path, "a.txt", "text"))

    def closed(self, *given, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(finding.Path, "open", closed)
    with pytest.raises(DocumentError, match=r"a\.txt cannot be opened: Permission denied"):
        list(corpus.texts())


def test_a_folder_that_may_not_be_opened_is_among_what_was_skipped(tmp_path, monkeypatch):
    put(tmp_path, "a.txt", "text")
    put(tmp_path, "deep/b.txt", "text")
    real = os.scandir

    def closed(path):
        if os.path.basename(path) == "deep":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(finding.os, "scandir", closed)
    assert dict(read_corpus(tmp_path).skipped) == {"deep": "it cannot be opened: Permission denied"}


def test_links_that_lead_nowhere_or_round_are_skipped(tmp_path):
    put(tmp_path, "a.txt", "text")
    os.symlink(tmp_path / "gone.txt", tmp_path / "broken.txt")
    os.symlink(tmp_path / "round.txt", tmp_path / "round.txt")
    os.symlink(tmp_path / "a.txt", tmp_path / "z.txt")
    os.symlink(tmp_path / "down", tmp_path / "up", target_is_directory=True)
    os.symlink(tmp_path / "up", tmp_path / "down", target_is_directory=True)
    corpus = read_corpus(tmp_path)
    assert [source.path for source in corpus.sources] == ["a.txt", "z.txt"]
    assert dict(corpus.skipped) == dict.fromkeys(("broken.txt", "round.txt", "down", "up"), "not a regular file")
    refused(tmp_path / "round.txt", "there is no such file or folder")


# What is made to fill the memory ----------------------------------------------------------------


def test_a_few_packed_bytes_are_unpacked_in_parts(tmp_path):
    """64 MiB of one letter are some kilobytes packed."""
    size = 1 << 26
    for name in ("a.txt.gz", "a.txt.zst"):
        path = put(tmp_path, name, PACKERS[name[-4:].lstrip("t")](b"a" * size))
        assert path.stat().st_size < size >> 9
        origin = finding.origin_of(path, name, ReadOptions())
        with path.open("rb") as file:
            unpack = {".gz": opening._gunzipped, ".zst": opening._unzstd}[origin.packed]
            lengths = [len(chunk) for chunk in unpack(file, name)]
        assert sum(lengths) == size
        assert max(lengths) <= 1 << 25


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_a_line_without_end_is_refused_where_it_is_too_long(name, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_LINE", 1000)
    lines = {"a.jsonl": ['{"text": "a"}', '{"text": "', '"}']}.get(name, ["text", "", ""])
    long = put(tmp_path, f"{name}.gz", gzip.compress(f"{lines[0]}\n{lines[1]}{'a' * 2000}{lines[2]}\n".encode()))
    refused(long, rf"{name}\.gz, line 2: longer than 1,000 bytes")
    whole = put(tmp_path, name, f"{lines[0]}\n{lines[1]}{'a' * 900}{lines[2]}\n")
    assert texts_of(whole)[-1] == "a" * 900


@pytest.mark.parametrize("opened", ["<!-- ", "<a href='"])
def test_a_tag_without_end_is_refused_where_it_is_too_long(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("pellucid.text.read.html.STEP", 100)
    monkeypatch.setattr("pellucid.text.read.html.LONGEST_TAG", 1000)
    refused(
        put(tmp_path, "a.html", "one<br>\n" + opened + "a" * 2000), r"a\.html: a tag or comment does not end .* line 2"
    )
    assert texts_of(put(tmp_path, "b.html", "one<br>\n" + "a" * 2000))[0].startswith("one\naaa")
    # an unclosed script, however long, is none of the text, nor is what follows it
    assert texts_of(put(tmp_path, "c.html", "one<script>" + "a" * 2000 + "<p>two")) == ["one\n"]


@given(st.binary(max_size=60), st.sampled_from(sorted(formats.READERS)))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused_in_words(tmp_path_factory, content, kind):
    path = put(tmp_path_factory.mktemp("any"), "a.dat", content)
    with contextlib.suppress(DocumentError):
        corpus = read_corpus(path, reading=ReadOptions(format=kind))
        assert "".join(corpus.texts()) == "".join(document.text for document in corpus.documents)


@pytest.mark.parametrize(
    ("module", "name"), [("pyarrow", "a.parquet"), ("pyarrow", "a.arrow"), ("zstandard", "a.txt.zst")]
)
def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(module, name, tmp_path, monkeypatch):
    path = put(tmp_path, name, b"not looked at")
    real = importlib.import_module

    def without(wanted):
        if wanted.partition(".")[0] == module:
            raise ImportError
        return real(wanted)

    monkeypatch.setattr(opening.importlib, "import_module", without)
    refused(path, rf"cannot be read without {module}: pip install 'pellucid\[data\]'")


# Encodings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_the_mark_at_the_beginning_says_the_encoding(encoding, tmp_path):
    for name, content in (
        ("a.txt", "é😀\r\n"),
        ("a.jsonl", '{"text": "é😀\\r\\n"}'),
        ("a.csv", 'text\r\n"é😀\r\n"\r\n'),
    ):
        assert texts_of(put(tmp_path, name, content.encode(encoding))) == ["é😀\r\n"]
    corpus = read_corpus(put(tmp_path, "b.txt", ("é" * 700_000).encode(encoding)))
    assert corpus.documents[0].n_bytes == 1_400_000


def test_one_file_in_another_encoding_among_files_in_utf8(tmp_path):
    """The text of the first is not UTF-8: said where, and read when the encoding is named; the second stays UTF-8."""
    put(tmp_path, "a.txt", b"plain " * 20 + "naïve".encode("latin-1"))
    put(tmp_path, "b.txt", "naïve € ")
    corpus = read_corpus(tmp_path)
    assert [(s.replaced, s.first_replaced) for s in corpus.sources] == [(1, "byte 122"), (0, "")]
    assert texts_of(tmp_path, encoding="latin-1") == ["plain " * 20 + "naïve", "naïve € "]
    named = read_corpus(tmp_path, reading=ReadOptions(encoding="latin-1"))
    assert [(s.replaced, s.encoding) for s in named.sources] == [(0, "latin-1"), (0, "")]
    assert named.hash != corpus.hash
    refused(tmp_path, r"a\.txt: byte 122 is not ascii", encoding="ascii")
    for name in ("klingon", "zlib"):
        with pytest.raises(DocumentError, match="no such encoding"):
            ReadOptions(encoding=name)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-be", "iso-2022-jp", "utf-7", "cp037"])
def test_an_encoding_that_does_not_extend_ascii_is_that_of_every_file(encoding, tmp_path):
    """Its bytes may be UTF-8 too, of another text, so it is not tried second."""
    text = "plain + text" if encoding == "cp037" else "plain + \u65e5\u672c"
    assert texts_of(put(tmp_path, "a.txt", text.encode(encoding)), encoding=encoding) == [text]
    read = read_corpus(tmp_path, reading=ReadOptions(encoding=encoding))
    assert [(s.replaced, s.encoding) for s in read.sources] == [(0, encoding)]
    assert texts_of(put(tmp_path, "a.txt", "\ufeffmarked \xe9".encode()), encoding=encoding) == ["marked \xe9"]


def test_half_a_character_in_a_row_leaves_a_file_utf8(tmp_path):
    path = put(tmp_path, "a.jsonl", b'{"text": "d\xc3\xa9j\xc3\xa0"}\n{"text": "half \\ud83d"}\n')
    for reading in ({}, {"encoding": "latin-1"}):
        assert texts_of(path, **reading) == ["d\xe9j\xe0", "half \ufffd"]
        (note,) = read_corpus(path, reading=ReadOptions(**reading)).notes
        assert note.startswith("1 escape in JSON is half of a character")
        assert "a.jsonl at row 2; no encoding mends this" in note


def test_patterns_name_folders_as_people_write_them_and_say_when_they_name_nothing(tmp_path):
    for name in ("a.txt", "drafts/b.txt", "x/drafts/y/c.txt"):
        put(tmp_path, name, name)
    for pattern in ("drafts", "drafts/", "./drafts/,x/drafts", "*/drafts,drafts"):
        assert texts_of(tmp_path, exclude=pattern) == ["a.txt"], pattern
    assert texts_of(tmp_path, exclude="./drafts/*") == ["a.txt", "x/drafts/y/c.txt"]
    skipped = dict(read_corpus(tmp_path, reading=ReadOptions(exclude="draft,drafts", include="*.txt,*.md")).skipped)
    assert {name for name in skipped if name.startswith("--")} == {"--exclude draft", "--include *.md"}
    assert skipped["--exclude draft"] == "it matches none of the 3 files there"


def test_patterns_follow_no_links_to_folders(tmp_path):
    """Two that lead back would lead through one another for ever."""
    put(tmp_path, "a/b.txt", "b")
    put(tmp_path, "a/.hidden/c.txt", "c")
    for name in ("one", "two"):
        (tmp_path / "a" / name).symlink_to(tmp_path, target_is_directory=True)
    assert texts_of(tmp_path / "**" / "*.txt") == ["b"]
    assert texts_of(tmp_path / "*" / "b*") == ["b"]


def test_the_folders_of_runs_among_the_text_are_not_read(tmp_path):
    """A run that is written into its own input can be resumed, and a second one begun."""
    put(tmp_path, "a.txt", "one")
    before = read_corpus(tmp_path)
    for run in ("run", "runs/b"):
        for name in (*finding.FILES_OF_RUN, "metrics.jsonl"):
            put(tmp_path, f"{run}/{name}", '{"step": 1}')
        put(tmp_path, f"{run}/report.html", "<p>report</p>")
    after = read_corpus(tmp_path)
    assert [source.path for source in after.sources] == ["a.txt"]
    assert after.hash == before.hash
    assert dict(after.skipped) == {"run": "the folder of a run", "runs/b": "the folder of a run"}
    assert texts_of(tmp_path / "*") == texts_of(tmp_path / "**" / "*") == ["one"]
    assert texts_of(tmp_path / "run" / "report.html") == texts_of(tmp_path / "run", include="*.html") == ["report\n"]
    (tmp_path / "run" / "data.json").unlink()
    put(tmp_path, "run/metrics.jsonl", '{"text": "two"}')
    assert texts_of(tmp_path) == ["one", "two", "report\n"]


def test_conversations_are_not_read_as_the_text_of_their_ids(tmp_path):
    """A file beside them is enough for them not to be recognised as conversations."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    put(tmp_path, "README.md", "about them")
    for field in ("messages", "conversations"):
        rows = "".join(json.dumps({"id": f"row {i}", field: turns}) + "\n" for i in range(3)).encode()
        for name, content in (("a.jsonl", rows), ("a.jsonl.gz", gzip.compress(rows))):
            file = put(tmp_path, name, content)
            refused(
                tmp_path, rf"{name}, line 1: the field '{field}' holds a conversation, .* --objective chat, .* --field"
            )
            assert texts_of(file, field="id") == ["row 0", "row 1", "row 2"]
            file.unlink()
        pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], field: [turns]}), tmp_path / "a.parquet")
        refused(tmp_path, rf"a\.parquet: the column '{field}' holds a conversation")
        (tmp_path / "a.parquet").unlink()
        file = put(tmp_path, "a.jsonl", json.dumps({"text": "read", field: turns}))
        assert texts_of(file) == ["read"]
        for other in (2, [], ["Hi", "Hello"]):
            file = put(tmp_path, "a.jsonl", json.dumps({"title": "read", field: other}))
            assert texts_of(file) == ["read"]


def test_a_file_called_as_standard_input_is(tmp_path):
    put(tmp_path, "d/-", "text")
    put(tmp_path, "d/e", "text")
    refused(tmp_path / "d", "has the name that means standard input")


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        (['1\t"Hello', "2\tHe said", '3\tbye"'], ['"Hello', "He said", 'bye"']),
        (['1\t"Hello" she said', '2\t"said ""yes"""', '3\t"'], ['"Hello" she said', 'said "yes"', '"']),
        (['1\t"two', 'lines"', "2\tone"], ["two\nlines", "one"]),
        (['1\t"a\ttab"', "2\tnone"], ["a\ttab", "none"]),
        (['"1\n', '2"\ttext', '3\t"open'], ["text", '"open']),
    ],
)
def test_tables_of_tabs_are_read_with_quotation_marks_that_quote_and_that_do_not(rows, read, tmp_path):
    assert texts_of(put(tmp_path, "a.tsv", "\n".join(["id\ttext", *rows, ""]))) == read


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.text('a"', max_size=3), st.text('a" ', min_size=1, max_size=6)), min_size=1, max_size=5))
def test_a_table_of_tabs_that_csv_wrote_is_read_as_it_was(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("id", "text"), *rows])
    assert texts_of(path) == [text for _, text in rows]


def test_a_table_may_begin_with_empty_lines(tmp_path):
    for name, between in (("a.csv", ","), ("b.tsv", "\t")):
        assert texts_of(put(tmp_path, name, f"\n  \nid{between}text\n1{between}one\n")) == ["one"]


def test_blank_lines_of_a_table_are_no_rows(tmp_path):
    for name, between in ("a.csv", ","), ("b.tsv", "\t"):
        rows = f"id{between}text\n1{between}one\n\n2{between}\n3{between}two\n\n"
        corpus = read_corpus(put(tmp_path, name, rows))
        assert [corpus.documents[k].index for k in range(2)] == [0, 2]
        assert corpus.notes == ["1 of 3 rows has no text in the field 'text' and was left out"]
    # within quotation marks it is text
    assert texts_of(put(tmp_path, "c.csv", 'text\n"a\n\nb"\n\n')) == ["a\n\nb"]


def test_columns_of_one_name_are_refused(tmp_path):
    refused(put(tmp_path, "a.csv", "text,text\na,b\n"), "has 2 columns 'text': rename one")
    table = pyarrow.table([["a"], [1]], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "has 2 columns 'text': rename one")


def test_the_field_of_json_lines_is_what_every_row_says(tmp_path):
    """Null may be a text that this row lacks; a row with `text` behind rows without it leaves the choice open."""
    refused(put(tmp_path, "a.jsonl", '{"title": "T", "body": null}\n'), "several hold text, title, body")
    refused(put(tmp_path, "b.jsonl", '{"body": "x"}\n{"body": "y", "text": "z"}\n'), "line 2: the field 'text'")
    path = put(tmp_path, "c.jsonl", '{"text": null}\n{"text": "z"}\n{"body": "y", "text": "z", "n": 1}\n')
    assert texts_of(path) == ["z", "z"]
    refused(put(tmp_path, "d.jsonl", '{"n": ' + "1" * 5000 + "}\n"), "line 1.*a number is too long")


@pytest.mark.parametrize(
    ("said", "content", "read"),
    [
        ("iso-8859-1", b"na\xefve \x81", "na\xefve \ufffd"),
        ("gb2312", "\u9555 gbk".encode("gbk"), "\u9555 gbk"),
        ("base64", "caf\xe9".encode(), "caf\xe9"),
        ("utf-16", "caf\xe9".encode(), "caf\xe9"),
    ],
)
def test_pages_that_say_a_wrong_encoding_are_read_as_browsers_do(said, content, read, tmp_path):
    page = b'<meta charset="' + said.encode() + b'"><p>' + content + b"</p>"
    path = put(tmp_path, "a.html", page)
    assert texts_of(path) == [read + "\n"]
    assert read_corpus(path).replaced == read.count("\ufffd")


HOSTILE_PAGES = {
    "<p>a<svg><text>no</text><p>b": "a\n\nb\n",
    "<p>a<svg><foreignObject><p>no</p></foreignObject><text>no</text></svg>b": "ab\n",
    "<div>a<svg><text>no</div>b": "a\nb\n",
    "<p>a<object data=x><p>b": "a\n\nb\n",
    "<p>a<math><mi>x</mi><p>b": "ax\n\nb\n",
    "a<!-- no --!>b": "ab\n",
    "a<!-->b<!--->c": "abc\n",
    "a&#" + "1" * 5000 + ";b": "a\ufffdb\n",
    "a&#x" + "f" * 5000 + ";b": "a\ufffdb\n",
    "<p " + " ".join(f"a{i}=1" for i in range(20_000)) + ">a": "a\n",
    "<script>'</scrip' <!-- <script> </script> no --></script>a": "a\n",
    "<textarea><b>a</textarea>b": "<b>ab\n",
    "if a<b and c " * 10_000: "if a\n",
    "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>": "a\tb\nc\n",
    "&" * 100_000: "&" * 100_000 + "\n",
}


@pytest.mark.parametrize("page", HOSTILE_PAGES)
def test_pages_with_faults_are_read_as_browsers_read_them(page):
    for width in (7, 1 << 20):
        assert page_text(page, width) == HOSTILE_PAGES[page]


@pytest.mark.parametrize("page", ["<svg>" * 40_000 + "</object>" * 40_000, "<div>" * 40_000 + "text"])
def test_a_page_of_elements_inside_one_another_is_refused_by_name(page, tmp_path):
    put(tmp_path, "a.html", page)
    put(tmp_path, "b.html", "text")
    refused(tmp_path, r"a\.html: more than 4,096 elements are open inside one another; close them")
    assert texts_of(tmp_path, skip_bad=True) == ["text\n"]


@pytest.mark.parametrize("before", ["", "a & b ", "&am", "<p>x</p> & "])
def test_a_sign_that_begins_no_tag_loses_nothing_behind_it(before, tmp_path):
    """Also where the parser still waits for the end of a character's name."""
    text = texts_of(put(tmp_path, "a.html", f"<p>first</p>{before}1 <2 and 3"))[0]
    assert text.endswith("1 <2 and 3\n")


def test_zstd_with_a_window_larger_than_usual_is_read(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = packed.compress(b"text") + packed.flush()
    assert texts_of(put(tmp_path, "a.txt.zst", content)) == ["text"]


def test_rows_in_another_encoding_are_counted_by_row(tmp_path):
    path = put(tmp_path, "a.csv", b"id,text\n1,good\n2,na\xefve\n")
    source = read_corpus(path).sources[0]
    assert (source.replaced, source.first_replaced) == (1, "row 2")
    assert texts_of(path, encoding="latin-1") == ["good", "naïve"]
    path = put(tmp_path, "a.jsonl", b'{"text": "good"}\n{"text": "na\xefve \\ud83d half"}\n')
    corpus = read_corpus(path)
    assert (corpus.sources[0].replaced, corpus.sources[0].halves) == (1, 1)
    assert list(corpus.texts()) == ["good", "na\ufffdve \ufffd half"]
    assert [note.partition(" became")[0] for note in corpus.notes] == [
        "1 sequence of bytes is not UTF-8 and",
        "1 escape in JSON is half of a character (as \\ud83d is without the \\ude00 behind it) and",
    ]


def test_a_page_says_its_own_encoding(tmp_path):
    page = "<html><head><meta charset='{}'></head><body>naïve – text</body></html>"
    for said, encoding in (
        ("iso-8859-1", "cp1252"),
        ("windows-1251", "cp1252"),
        ("utf-8", "utf-8"),
        ("nonsense", "utf-8"),
    ):
        text = texts_of(put(tmp_path, "a.html", page.format(said).encode(encoding)))[0]
        assert (text == "naïve – text\n") == (said != "windows-1251")


# Pages ------------------------------------------------------------------------------------------


def page_text(html, width):
    raw = html.encode()
    return "".join(
        piece.text for piece in read_html(decode_chunks(raw[i : i + width] for i in range(0, len(raw), width)))
    )


def test_the_text_of_a_page_is_what_a_reader_sees():
    page = """<!doctype html><html><head><title>A &amp; B</title><style>p{}</style><script>if (a<b) {}</script>
    <body><h1>Head</h1><p>One <b>bo</b>ld,
    two &eacute;.<p>Second<br>line <!-- no --></p><table><tr><td>a<td>b</tr><tr><td>c</td><td>d</td></tr></table>
    <pre>  x\n   y</pre><ul><li>one</li><li>two</ul><noscript>no</noscript><svg><text>no</text></svg>last</body>"""
    seen = "A & B\n\nHead\n\nOne bold, two é.\n\nSecond\nline\n\na\tb\nc\td\n\n  x\n   y\n\none\ntwo\n\nlast\n"
    for width in (1, 7, 10_000):
        assert page_text(page, width) == seen


@given(
    st.lists(
        st.sampled_from(
            ["<p>", "</p>", "<pre>", "</pre>", "<script>", "</script>", "<b>", "a", " b", "&lt;", "<td>", "<"]
        )
    )
)
@settings(deadline=None)
def test_the_text_of_a_page_does_not_depend_on_how_it_is_cut(parts):
    page = "".join(parts) + ">"
    assert page_text(page, 3) == page_text(page, 10_000)


# Duplicates and the account ---------------------------------------------------------------------


def test_exact_duplicates_are_dropped_where_asked_and_counted(tmp_path):
    put(tmp_path, "a.txt", "one")
    put(tmp_path, "b.jsonl", json_lines(["one", "two", "two", "three"]))
    put(tmp_path, "c.txt", "one")
    assert texts_of(tmp_path) == ["one", "one", "two", "two", "three", "one"]
    corpus = read_corpus(tmp_path, reading=ReadOptions(drop_duplicates=True))
    assert list(corpus.texts()) == ["one", "two", "three"]
    assert [(s.path, s.n_documents, s.duplicates) for s in corpus.sources] == [
        ("a.txt", 1, 0),
        ("b.jsonl", 2, 2),
        ("c.txt", 0, 1),
    ]
    about = corpus.about()
    assert (about["documents"], about["duplicates"]) == (3, 3)
    assert about["hash"] != read_corpus(tmp_path).hash


@pytest.mark.item("S4-copy-a")
def test_the_account_names_every_input_and_the_hash_is_another_with_any_of_them(tmp_path):
    put(tmp_path, "a.txt", "one")
    put(tmp_path, "b.csv", table(TEXTS))
    put(tmp_path, "c.bin", b"\0")
    reading = ReadOptions(licence="CC0")
    about = read_corpus(tmp_path, reading=reading).about()
    assert json.loads(json.dumps(about)) == about
    assert [(s["path"], s["n_documents"]) for s in about["sources"]] == [("a.txt", 1), ("b.csv", 4)]
    assert all(len(s["sha256"]) == 64 and s["n_bytes"] > 0 for s in about["sources"])
    assert (about["licence"], about["skipped"]) == ("CC0", [["c.bin", "it is binary, expected text"]])
    hashes = {about["hash"]}
    put(tmp_path, "a.txt", "onE")
    hashes.add(read_corpus(tmp_path).hash)
    put(tmp_path, "d.txt", "new")
    hashes.add(read_corpus(tmp_path).hash)
    os.remove(tmp_path / "a.txt")
    hashes.add(read_corpus(tmp_path).hash)
    os.rename(tmp_path / "d.txt", tmp_path / "e.txt")
    hashes.add(read_corpus(tmp_path).hash)
    assert len(hashes) == 5


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.parquet"])
def test_a_file_that_changes_while_it_is_counted_is_refused(name, tmp_path, monkeypatch):
    make = {"a.txt": lambda t: t[0].encode(), "a.txt.gz": lambda t: gzip.compress(t[0].encode())} | WRITERS
    path = put(tmp_path, name, make[name](["before"]))
    real = formats.READERS[finding.origin_of(path, name, ReadOptions()).format]

    def slow(file, origin):
        for pieces in real(file, origin):
            yield pieces
            path.write_bytes(make[name](["longer than it was"]))

    monkeypatch.setitem(formats.READERS, finding.origin_of(path, name, ReadOptions()).format, slow)
    refused(path, rf"{name} changed while it was being read")


@pytest.mark.parametrize("after", [TEXTS[:-1], ["0ne", *TEXTS[1:]], []])
def test_rows_that_change_after_they_were_counted_are_noticed(after, tmp_path):
    path = put(tmp_path, "a.jsonl", json_lines(TEXTS))
    corpus = read_corpus(path)
    path.write_bytes(json_lines(after))
    with pytest.raises(DocumentError, match=r"a\.jsonl changed while"):
        list(corpus.texts())
    path.unlink()
    with pytest.raises(DocumentError, match=r"a\.jsonl was removed while"):
        list(corpus.texts())


def test_a_document_of_many_is_found_again_by_itself(tmp_path):
    corpus = read_corpus(put(tmp_path, "a.jsonl", json_lines(["", *TEXTS])))
    assert corpus.documents[-1].text == TEXTS[-1]
    assert [d.index for d in corpus.documents] == [1, 2, 3, 4]
    assert corpus.documents[1:3] == [corpus.documents[1], corpus.documents[2]]


def test_what_was_counted_takes_little_memory_for_each_document(tmp_path):
    path = put(tmp_path, "a.jsonl", json_lines(str(i) for i in range(5000)))
    documents = read_corpus(path).documents
    assert documents.rows.nbytes == 62 * 5000


def test_an_origin_is_what_the_name_says():
    read = ReadOptions(field="body")
    found = finding.origin_of(finding.Path("x/A.CSV.GZ"), "A.CSV.GZ", read)
    assert found == Origin(finding.Path("x/A.CSV.GZ"), "A.CSV.GZ", "csv", ".gz", field="body")


def test_files_of_several_kinds_have_fields_of_their_own(tmp_path):
    put(tmp_path, "chat.csv", "id,message\n1,hello\n")
    put(tmp_path, "tables/a.csv", 'id,"last, first"\n1,world\n')
    put(tmp_path, "rest.jsonl", '{"id": "1", "body": "again"}\n')
    fields = "body,chat.csv=message,tables/*=last, first"
    assert texts_of(tmp_path, field=fields) == ["hello", "again", "world"]
    assert texts_of(tmp_path / "chat.csv", field=fields) == ["hello"]
    corpus = read_corpus(tmp_path, reading=ReadOptions(field=f"{fields},none.csv=x"))
    assert [note for note in corpus.notes if "none.csv" in note] == [
        "--field 'none.csv=x' has no effect: no file that is read matches none.csv"
    ]
    put(tmp_path, "equals.csv", "id,a=b\n1,sum\n")
    assert texts_of(tmp_path / "equals.csv", field="*=a=b") == ["sum"]
    for wrong in ("=message", "chat.csv="):
        with pytest.raises(DocumentError, match=r"expected a field, or PATTERN=FIELD for the files of a pattern"):
            ReadOptions(field=wrong)


# Several files that cannot be read --------------------------------------------------------------


def bad_folder(folder):
    """Six files that cannot be read, each for a reason of its own, beside two that can."""
    put(folder, "good.txt", "some text\n" * 5)
    put(folder, "good.jsonl", json_lines(TEXTS))
    put(folder, "1.jsonl", '{"text": "a"}\n{"text": }\n')
    put(folder, "2.csv", "text,b\nx,y,z\n")
    put(folder, "3.txt.gz", gzip.compress(os.urandom(9000).hex().encode())[:-2000])
    put(folder, "4.parquet", b"PAR1 no table")
    put(folder, "5.jsonl", '{"a": "x", "b": "y"}\n')
    put(folder, "6.txt.zst", b"this is no zstd stream")
    return folder


BAD = (
    r"1\.jsonl, line 2, character 10: not valid JSON",
    r"2\.csv, line 2: 3 cells, expected 2",
    r"3\.txt\.gz is cut short: its gzip stream ends after",
    r"4\.parquet is damaged",
    r"5\.jsonl, line 1: several hold text, a, b",
    r"6\.txt\.zst is damaged",
)


def test_everything_that_is_wrong_with_a_folder_is_said_at_once(tmp_path):
    with pytest.raises(
        DocumentError, match="6 files cannot be read; repair them, or leave them out with --skip-bad"
    ) as e:
        read_corpus(bad_folder(tmp_path))
    lines = str(e.value).splitlines()
    assert len(lines) == 7
    assert all(re.search(expected, line) for expected, line in zip(BAD, lines[1:], strict=True))


def test_files_that_cannot_be_read_are_left_out_where_that_is_asked_for(tmp_path):
    corpus = read_corpus(bad_folder(tmp_path), reading=ReadOptions(skip_bad=True))
    assert [source.path for source in corpus.sources] == ["good.jsonl", "good.txt"]
    # nothing is left of the rows that were read before the broken one
    assert [document.text for document in corpus.documents] == [*TEXTS, "some text\n" * 5]
    assert corpus.notes == ["6 files that cannot be read were left out"]
    for (path, reason), expected in zip(corpus.skipped, BAD, strict=True):
        assert reason.startswith("it cannot be read: ")
        assert re.search(expected.split(", ")[-1].split(" is ")[-1], reason)
        assert str(tmp_path) not in reason
        assert path[0] in "123456"


def test_one_file_that_cannot_be_read_keeps_its_message(tmp_path):
    """Beside others it can be left out; by itself it cannot."""
    path = put(tmp_path, "1.jsonl", '{"text": }\n')
    refused(path, r"expected one object a line; mend the line$")
    put(tmp_path, "a.txt", "text")
    refused(tmp_path, r"mend the line; --skip-bad leaves such files out$")
    refused([path, tmp_path / "a.txt"], r"--skip-bad leaves such files out$")
    assert texts_of([path, tmp_path / "a.txt"], skip_bad=True) == ["text"]
    refused(path, r"there is no text to read \(1\.jsonl: it cannot be read: line 1", skip_bad=True)


def test_all_that_is_not_there_is_said_at_once(tmp_path):
    put(tmp_path, "a.txt", "text")
    with pytest.raises(DocumentError) as e:
        read_corpus([tmp_path / name for name in ("a.txt", "b.txt", "c*")])
    lines = str(e.value).splitlines()
    assert ["b.txt: there is no" in lines[0], "c*: no file but hidden ones" in lines[1]] == [True, True]


def test_a_damaged_data_set_is_one_of_the_files_that_cannot_be_read(tmp_path):
    put(tmp_path, "set/data.arrow", arrow(TEXTS))
    put(tmp_path, "set/state.json", "{")
    put(tmp_path, "a.txt", "text")
    refused(tmp_path, r"state\.json is damaged")
    assert texts_of(tmp_path, skip_bad=True) == ["text"]


@pytest.mark.parametrize("n", [4000, 4_000_000])
@pytest.mark.parametrize("lost", [8, 900])
def test_a_stream_that_is_cut_short_says_how_much_of_it_can_be_read(n, lost, tmp_path):
    """As much as zlib makes of the bytes that are there."""
    packed = gzip.compress(random.Random(n).randbytes(n).hex().encode(), mtime=0)[:-lost]
    readable = len(zlib.decompressobj(wbits=31).decompress(packed))
    assert readable > 1.5 * n
    refused(put(tmp_path, "a.txt.gz", packed), f"ends after {readable:,} bytes of content, before its end mark")


def test_a_field_where_nothing_has_fields_is_said_to_do_nothing(tmp_path):
    put(tmp_path, "a.txt", "text")
    put(tmp_path, "a.html", "<p>text")
    assert (
        "--field body has no effect: only JSON lines and tables"
        in read_corpus(tmp_path, reading=ReadOptions(field="body")).notes[0]
    )
    put(tmp_path, "a.jsonl", '{"body": "text"}')
    assert read_corpus(tmp_path, reading=ReadOptions(field="body")).notes == []


# Files of one's own to hold out -----------------------------------------------------------------


def split_parts(corpus):
    split = split_corpus(corpus, 0.5)
    return [["".join(p.text for p in pieces) for pieces in split.documents(part)] for part in ("train", "held_out")]


def test_files_named_to_be_held_out_are_and_are_not_trained_on(tmp_path):
    """Also where they lie in the folder that is trained on, or are reached by a link."""
    for name in ("a.txt", "b.txt", "sub/valid.txt", "sub/c.txt"):
        put(tmp_path, f"data/{name}", f"text of {name}")
    put(tmp_path, "apart/a.txt", "another a")
    os.symlink(tmp_path / "data" / "b.txt", tmp_path / "apart" / "linked.txt")
    corpus = read_corpus([tmp_path / "data"], held_out=[tmp_path / "data" / "sub" / "valid.txt", tmp_path / "apart"])
    train, held = split_parts(corpus)
    assert train == ["text of a.txt", "text of sub/c.txt"]
    assert held == ["another a", "text of b.txt", "text of sub/valid.txt"]
    assert dict(corpus.skipped) == {"b.txt": "held out", "sub/valid.txt": "held out"}
    split = split_corpus(corpus, 0.1)
    assert split.to_dict() == {"held_out": 0.0, "seed": 0, "rule": "files"}
    assert split.note == "held out: 3 documents, 43 bytes, of 3 files of your own"
    assert split.n_bytes == sum(map(len, train))
    assert [path for path, *_ in split.held_out_documents()] == [
        "apart/a.txt",
        "apart/linked.txt",
        "data/sub/valid.txt",
    ]


def test_a_file_named_for_both_parts_is_refused(tmp_path):
    path = put(tmp_path, "a.txt", "text")
    with pytest.raises(DocumentError, match="named both as text to train on and as text to hold out"):
        read_corpus([path], held_out=[path])
    with pytest.raises(DocumentError, match="no text to read"):
        read_corpus([tmp_path], held_out=[path])


def test_a_text_held_out_is_not_among_the_others_where_duplicates_are_left_out(tmp_path):
    put(tmp_path, "data/a.jsonl", json_lines(["one", "two", "three", "two"]))
    put(tmp_path, "valid.txt", "two")
    reading = ReadOptions(drop_duplicates=True)
    corpus = read_corpus([tmp_path / "data"], held_out=[tmp_path / "valid.txt"], reading=reading)
    assert split_parts(corpus) == [["one", "three"], ["two"]]
    assert [source.duplicates for source in corpus.sources] == [0, 2]
    put(tmp_path, "data/a.jsonl", json_lines(["two"]))
    corpus = read_corpus([tmp_path / "data"], held_out=[tmp_path / "valid.txt"], reading=reading)
    with pytest.raises(DocumentError, match="every text to train on is also held out"):
        split_corpus(corpus)


def test_a_corpus_knows_which_of_its_files_are_held_out(tmp_path):
    """The same files in other roles are another corpus, with other tokens."""
    paths = [put(tmp_path, name, f"text {name}") for name in ("a.txt", "b.txt")]
    one, other = (read_corpus([a], held_out=[b]) for a, b in (paths, paths[::-1]))
    assert len({one.hash, other.hash, read_corpus(paths).hash}) == 3
    tokenizer = ByteTokenizer()
    folders = {prepared_folder(split_corpus(corpus, 0.5), tokenizer, tmp_path) for corpus in (one, other)}
    assert len(folders) == 2


# Marks between documents --------------------------------------------------------------------


def test_marks_between_documents_are_text_and_a_note_says_how_to_divide_there(tmp_path, monkeypatch):
    """Also where a mark lies in two chunks."""
    monkeypatch.setattr(formats, "CHUNK_BYTES", 5)
    stories = "\nOne day.\n<|endoftext|>\n\nTwo <|\n\r\n<|endoftext|><|endoftext|>\nThree.\n\n"
    (tmp_path / "stories.txt").write_bytes(stories.encode())
    (tmp_path / "other.txt").write_text("nothing")
    corpus = read_corpus(tmp_path)
    assert len(corpus.documents) == 2
    (note,) = corpus.notes
    assert note == (
        "stories.txt holds the characters <|endoftext|> 3 times; they are read as text and end no document: to "
        'begin a new document there, add --split-at "<|endoftext|>"'
    )
    divided = read_corpus(tmp_path, reading=ReadOptions(split_at="<|endoftext|>"))
    assert [document.text for document in divided.documents] == ["nothing", "\nOne day.", "Two <|", "Three.\n\n"]
    assert not divided.notes
    assert divided.hash != corpus.hash
    notes = read_corpus(tmp_path, reading=ReadOptions(split_at="</s>")).notes
    assert notes[0] == note
    assert notes[1].startswith("--split-at '</s>' has no effect")


def test_split_at_has_an_effect_where_a_text_was_divided_however_many_documents_are_left(tmp_path):
    """Duplicates that are left out undo no division; rows are no divisions."""
    twice = put(tmp_path, "a.txt", "one***one")
    assert not read_corpus(twice, reading=ReadOptions(split_at="***", drop_duplicates=True)).notes
    rows = put(tmp_path, "b.jsonl", '"one"\n"two"\n')
    (note,) = read_corpus(rows, reading=ReadOptions(split_at="***")).notes
    assert note.startswith("--split-at '***' has no effect")


def test_divided_rows_are_counted_and_named_as_documents(tmp_path):
    lines = ['"one***two"', '""', '"***"', '"three***four"', '"\\ud83d"']
    path = put(tmp_path, "a.jsonl", "\n".join(lines))
    corpus = read_corpus(path, reading=ReadOptions(split_at="***"))
    half, empty = corpus.notes
    assert "in a.jsonl at document 7;" in half
    assert empty == "2 of 7 documents have no text and were left out"
    assert [document.text for document in corpus.documents] == ["one", "two", "three", "four", "\ufffd"]
    assert [document_name(document) for document in corpus.documents] == [
        f"{path}, document {k}" for k in (1, 2, 5, 6, 7)
    ]
    latin = read_corpus(put(tmp_path, "b.txt", b"a***b\xe9"), reading=ReadOptions(split_at="***"))
    assert "in b.txt at document 2;" in latin.notes[0]


def test_documents_of_every_format_are_divided_at_marks(tmp_path):
    text = "one *** two\n***\nthree"
    (tmp_path / "a.html").write_text(f"<p>{text}</p>")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "four"}) + "\n")
    with (tmp_path / "c.csv").open("w") as file:
        csv.writer(file).writerows([["text"], [text], ["***"], ["four"]])
    pyarrow.parquet.write_table(pyarrow.table({"text": [text, "four"]}), tmp_path / "d.parquet")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(text.encode()))
    corpus = read_corpus(tmp_path, reading=ReadOptions(split_at="***"))
    texts = [document.text.strip() for document in corpus.documents]
    assert texts == ["one", "two", "three", *["one", "two", "three", "four"] * 3, "one", "two", "three"]
    assert [source.n_documents for source in corpus.sources] == [3, 4, 4, 4, 3]
    assert ["".join(piece.text for piece in pieces).strip() for _, pieces in corpus.stream(lambda k: k % 2)] == texts[
        1::2
    ]


@given(
    parts=st.lists(st.text("a\n\r|*é\udc80", max_size=6), min_size=1, max_size=5),
    size=st.integers(1, 7),
    n=st.integers(1, 3),
)
def test_dividing_at_marks_is_that_of_the_whole_text_whatever_the_chunks(parts, size, n):
    mark = "|*"[:n] * 2 if n < 3 else "***"
    raw = mark.join(parts).encode("utf-8", "surrogateescape")
    whole = "".join(piece.text for piece in decode_chunks([raw])).removeprefix("\ufeff").split(mark)
    edges = [
        text.lstrip("\r\n" if k else "").rstrip("\r\n" if k < len(whole) - 1 else "") for k, text in enumerate(whole)
    ]
    chunks = (raw[i : i + size] for i in range(0, len(raw), size))
    documents = split_documents(iter([decode_chunks(chunks)]), mark)
    assert ["".join(piece.text for piece in pieces) for pieces in documents] == ([*filter(None, edges)] or [""])


# Markdown ---------------------------------------------------------------------------------------


def test_a_field_of_a_skipped_file_has_no_other_note(tmp_path):
    put(tmp_path, "a.txt", b"text")
    put(tmp_path, "bad.csv", b'body\n"open')
    corpus = read_corpus(tmp_path, reading=ReadOptions(field="bad.csv=body", skip_bad=True))
    assert [file.path for file in corpus.skipped] == ["bad.csv"]
    assert not [note for note in corpus.notes if "has no effect" in note]


PAGE = """<html><head><title>Sea</title></head><body><nav><ul><li><a href="/">Home</a></li><li><a href="/a">About</a>
</li></ul></nav><div id="cookie-banner">We use cookies. <button>Accept all</button></div>
<main><h1>The sea</h1>
<p>The sea is wide and its waves are long; nobody has seen the other side of it, and those who say so are mistaken.</p>
<p>A second paragraph speaks of ships, harbours, and people who come from far away to see them.</p></main>
<footer>Copyright 2020 Somebody. Imprint</footer></body></html>"""


def test_the_main_text_of_a_page_is_read_on_request(tmp_path):
    path = put(tmp_path, "sea.html", PAGE.encode())
    everything, main = texts_of(path)[0], texts_of(path, html="main")[0]
    assert all(words in everything for words in ("Home", "cookies", "The sea is wide", "Imprint"))
    first = "wide and its waves are long; nobody has seen the other side of it, and those who say so are mistaken."
    second = "A second paragraph speaks of ships, harbours, and people who come from far away to see them."
    assert main == f"The sea\nThe sea is {first}\n{second}\n"
    assert read_corpus(path, reading=ReadOptions(html="main")).notes == []


def test_a_page_without_a_main_text_is_read_as_a_whole_and_said(tmp_path):
    put(tmp_path, "sea.html", PAGE.encode())
    put(tmp_path, "short.html", b"<p>hi</p>")
    corpus = read_corpus(tmp_path, reading=ReadOptions(html="main"))
    assert corpus.notes == ["short.html was read as a whole: no part is clearly the main text"]
    assert texts_of(tmp_path, html="main")[1] == "hi\n"
    put(tmp_path, "shorter.html", b"<p>ho</p>")
    assert read_corpus(tmp_path, reading=ReadOptions(html="main")).notes == [
        "2 of 3 pages were read as a whole: no part is clearly the main text"
    ]


def test_a_part_of_pages_that_does_not_exist_or_has_no_effect_is_said(tmp_path):
    with pytest.raises(DocumentError, match="choose one of all, main"):
        ReadOptions(html="body")
    path = put(tmp_path, "a.txt", b"text")
    note = "--html main has no effect: none of these files is an HTML page"
    assert read_corpus(path, reading=ReadOptions(html="main")).notes == [note]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("---\ntitle: A: plan\ntags: [a]\n---\n\n# Plan\n---\n", "# Plan\n---\n"),
        ("\ufeff---\r\ntitle: A\r\n...\r\nPlan", "Plan"),
        ("+++\ntitle = 'A'\n+++\nPlan", "Plan"),
        ("---\n\nA rule: not front matter.\n\n---\n", None),
        ("---\ntitle: it does not end\n", None),
        ("Plan\n---\na: b\n---\n", None),
    ],
)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_front_matter_is_left_out_and_said(content, text, packed, tmp_path):
    path = put(tmp_path, f"plan.md{packed}", PACKERS[packed](content.encode()))
    assert texts_of(path) == [content if text is None else text]
    notes = [note for note in read_corpus(path).notes if "front matter" in note]
    n_bytes = len(content.removeprefix("\ufeff").encode()) - len((text or content).encode())
    said = f"the front matter of plan.md{packed} is left out, {n_bytes:,} bytes: --format plain reads it too"
    assert notes == ([] if text is None else [said])
    assert texts_of(path, format="plain") == [content.removeprefix("\ufeff")]
