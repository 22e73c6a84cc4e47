"""Books, documents of word processors and arrays of JSON: their text, and what a hostile or broken one does."""

import io
import json
import tracemalloc
import zipfile

import pytest

from pellucid.text.read import archives, formats
from pellucid.text.read.documents import DocumentError, read_corpus
from pellucid.text.read.find import ReadOptions

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><manifest>
<item id="b" href="two%20b.xhtml"/><item id="a" href="one.xhtml"/><item id="s" href="style.css"/></manifest>
<spine><itemref idref="a"/><itemref idref="b"/></spine></package>"""
PAGE = """<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>The book</title>
<script src="x.js"/></head><body><a id="x"/><h1>{}</h1><p>Été &amp; hiver<br/>again.</p>
<script/><p>End.</p></body></html>"""
WORD = '<w:document xmlns:w="http://w" xmlns:mc="http://mc"><w:body>{}</w:body></w:document>'
PARAGRAPH = "<w:p><w:pPr><w:tabs><w:tab w:val='left'/></w:tabs></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>"
ENTITIES = '<!DOCTYPE a [<!ENTITY e0 "lol">' + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))


def packed(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def book(**changed):
    members = {
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE,
        "OEBPS/one.xhtml": PAGE.format("One"),
        "OEBPS/two b.xhtml": PAGE.format("Two"),
    }
    named = {name: next((m for m in members if name in m), f"META-INF/{name}.xml") for name in changed}
    return packed(members | {named[name]: content for name, content in changed.items()})


def word(body):
    return packed({"word/document.xml": WORD.format(body)})


def texts_of(path, **options):
    return [document.text for document in read_corpus(path, reading=ReadOptions(**options)).documents]


def test_a_book_is_its_chapters_in_order(tmp_path):
    (tmp_path / "a.epub").write_bytes(book())
    chapter = "{}\n\nÉté & hiver\nagain.\n\nEnd.\n"
    assert texts_of(tmp_path) == [chapter.format("One") + "\n" + chapter.format("Two")]


def test_a_document_is_its_paragraphs_and_tables(tmp_path):
    deleted = "<w:delText>gone</w:delText><w:instrText>PAGE</w:instrText>"
    tabbed = f"<w:p><w:r>{deleted}<w:t>a</w:t><w:tab/><w:t>b</w:t></w:r></w:p>"
    table = "<w:tbl><w:tr>" + "".join(f"<w:tc>{PARAGRAPH.format(cell)}</w:tc>" for cell in "xy") + "</w:tr></w:tbl>"
    twice = "<mc:Choice><w:t>once</w:t></mc:Choice><mc:Fallback><w:t>once</w:t></mc:Fallback>"
    body = PARAGRAPH.format("Été &amp; hiver") + tabbed + table + f"<w:p>{twice}</w:p>" + PARAGRAPH.format("End")
    (tmp_path / "a.docx").write_bytes(word(body))
    assert texts_of(tmp_path) == ["Été & hiver\na\tb\nx\ty\nonce\nEnd\n"]


ROWS = ["one", 'zwei "é" \U0001f600', "", "drei \\ud83d"]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_an_array_has_a_document_for_each_item(size, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", size)
    full = [text for text in ROWS if text]
    for name, rows in (("objects", [{"id": i, "text": text} for i, text in enumerate(ROWS)]), ("strings", ROWS)):
        for indent in (None, 1):
            (tmp_path / f"{name}.json").write_text(json.dumps(rows, indent=indent) + "\n")
            assert texts_of(tmp_path / f"{name}.json") == full
    (tmp_path / "strings.json").write_bytes(b' ["caf\xe9", "tea"]')
    corpus = read_corpus(tmp_path / "strings.json")
    assert [document.text for document in corpus.documents] == ["caf\ufffd", "tea"]
    assert (corpus.replaced, corpus.sources[0].first_replaced) == (1, "row 1")
    assert texts_of(tmp_path / "strings.json", encoding="latin-1") == ["café", "tea"]


def test_json_that_is_no_array_of_text_is_left_out_of_a_folder(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    for i, content in enumerate(('{"name": "x"}', "[1, 2]", "3", "[[1]]")):
        (tmp_path / f"{i}.json").write_text(content)
    (tmp_path / "empty.json").write_text("[]")
    corpus = read_corpus(tmp_path)
    reason = "it is no JSON array of objects or strings; --format plain reads it as text"
    assert dict(corpus.skipped) == {**{f"{i}.json": reason for i in range(4)}, "empty.json": "empty"}


BROKEN = {
    "cut.json": (b'["one", "two', r"cut\.json, item 2, character 3: not valid JSON \(Unterminated string"),
    "comma.json": (b'["one" "two"]', r"item 2, character 1: not valid JSON \(expected ,\)"),
    "more.json": (b'["one"] 1', "there is more behind the array, expected one array"),
    "value.json": (b'["one", 2]', "item 2: a number, expected an object with a field of text, or a string"),
    "open.json": (b'["one",', r"item 2, character 2: not valid JSON"),
    "no.epub": (b"no zip", r"no\.epub is damaged or not of its format"),
    "cut.epub": (book()[:-30], r"cut\.epub is damaged or not of its format"),
    "other.epub": (word("x"), r"other\.epub holds no META-INF/container\.xml"),
    "nothing.epub": (book(container="<container/>"), "names no package"),
    "xml.epub": (book(book="<package><manifest>"), r"xml\.epub is damaged or not of its format"),
    "missing.epub": (book(book=PACKAGE.replace("one.xhtml", "../../etc/passwd")), r"holds no \.\./etc/passwd"),
    "xml.docx": (packed({"word/document.xml": "<w:document>"}), r"xml\.docx is damaged or not of its format"),
    "lol.docx": (
        packed({"word/document.xml": f"{ENTITIES}]><a><t>&e9;</t></a>"}),
        r"lol\.docx has a document type, which DOCX files do not",
    ),
    "drm.epub": (book(encryption="<encryption>one.xhtml</encryption>"), "protected against copying"),
    "lol.epub": (
        book(book=PACKAGE.replace("<package", f"{ENTITIES}]><package").replace("<manifest>", "<manifest>&e9;")),
        r"lol\.epub is damaged or not of its format \(Maximum entity amplification",
    ),
    "a.pdf": (b"%PDF", r"\.pdf files are not read: make text of it first, such as with pdftotext FILE\.pdf"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_by_name_with_what_to_do(name, tmp_path):
    content, said = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=said):
        read_corpus(tmp_path / name)


def test_entities_and_files_of_this_machine_are_not_put_into_a_book(tmp_path):
    secret = tmp_path / "secret.xml"
    secret.write_text("<item id='a' href='one.xhtml'/>")
    package = PACKAGE.replace('<?xml version="1.0"?>', f'<!DOCTYPE package [<!ENTITY x SYSTEM "file://{secret}">]>')
    package = package.replace('<item id="a" href="one.xhtml"/>', "&x;")
    (tmp_path / "a.epub").write_bytes(book(book=package, one=f"{ENTITIES}]>{PAGE.format('&e9;')}"))
    (text,) = texts_of(tmp_path / "a.epub")
    assert text.startswith("Two")
    (tmp_path / "b.epub").write_bytes(book(one=f"{ENTITIES}]>{PAGE.format('&e9;')}"))
    (text,) = texts_of(tmp_path / "b.epub")
    assert len(text) < 200
    assert "lollol" not in text


@pytest.mark.parametrize("kind", ["epub", "docx"])
def test_what_unpacks_to_more_than_the_limit_is_refused_in_little_memory(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBER_BYTES", 1 << 20)
    bomb = " " * (1 << 24)
    (tmp_path / f"a.{kind}").write_bytes(book(one=bomb) if kind == "epub" else word(bomb))
    tracemalloc.start()
    with pytest.raises(DocumentError, match="the limits are 1,048,576 for a member"):
        read_corpus(tmp_path / f"a.{kind}")
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_many_members_that_are_small_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_ARCHIVE_BYTES", 4000)
    spine = PACKAGE.replace('<itemref idref="a"/>', '<itemref idref="a"/>' * 40)
    (tmp_path / "a.epub").write_bytes(book(book=spine))
    with pytest.raises(DocumentError, match="and 4,000 for all"):
        read_corpus(tmp_path / "a.epub")
