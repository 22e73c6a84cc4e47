"""A corpus that several processes read is the corpus that one reads, errors and all."""

import gzip
from pathlib import Path

import pytest

from pellucid.text.read import scan_files as module
from pellucid.text.read.chunks import ChangedError, DocumentError
from pellucid.text.read.decompress import Origin
from pellucid.text.read.documents import Corpus, read_corpus
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.scan_files import ScannedFile, pack_scanned, unpack_scanned
from some_cases import one_in

ROWS = "".join(f'{{"text": "{text}"}}\n' for text in ("one row", "", "Ещё одна строка", "one row"))


@pytest.fixture
def folder(tmp_path: Path, udhr) -> Path:
    """Texts of several scripts and formats, empty ones, ones that are not UTF-8, and what is no text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in udhr.items():
        (folder / f"{name}.txt").write_text(text[:500], encoding="utf-8")
    (folder / "rows.jsonl").write_text(ROWS, encoding="utf-8")
    (folder / "more.jsonl.gz").write_bytes(gzip.compress(ROWS.encode()))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin.txt").write_bytes("naïve café, and enough of it to be text. ".encode("latin-1") * 3)
    (folder / "binary.txt").write_bytes(b"\x89PNG\0\0")
    return folder


def assert_same_corpus(corpus: Corpus, other: Corpus) -> None:
    assert corpus.documents == other.documents
    assert (corpus.sources, corpus.skipped, corpus.notes) == (other.sources, other.skipped, other.notes)
    assert corpus.about() == other.about()


@pytest.mark.parametrize(
    ("workers", "reading"),
    one_in(
        4,
        [
            (2, ReadOptions(encoding="latin-1", drop_duplicates=True)),
            (3, ReadOptions()),
            (2, ReadOptions(format="plain")),
            (9, ReadOptions(skip_bad=True)),
        ],
    ),
)
def test_any_number_of_processes_reads_the_same_corpus(workers, reading, folder, monkeypatch):
    if reading.skip_bad:
        (folder / "damaged.txt.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    told: list[int] = []
    alone = read_corpus(folder, reading=reading)
    monkeypatch.setattr(module, "scan_file", lambda *given: pytest.fail("this process reads a file"))
    corpus = read_corpus(folder, lambda stage, done, total: told.append(done), reading, workers=workers)
    assert_same_corpus(corpus, alone)
    assert list(corpus.texts()) == list(alone.texts())
    assert told == sorted(told)
    assert told[-1] == sum(source.n_bytes for source in alone.sources)


def test_errors_of_several_processes_are_those_of_one(folder):
    (folder / "damaged.txt.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    (folder / "rows.jsonl").write_text("{", encoding="utf-8")
    messages = []
    for workers in (0, 2):
        with pytest.raises(DocumentError) as caught:
            read_corpus([folder, folder / "binary.txt"], workers=workers)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert all(name in messages[0] for name in ("damaged.txt.gz", "rows.jsonl", "binary.txt"))


@pytest.mark.parametrize("kind", [DocumentError, ChangedError])
def test_an_error_keeps_its_kind_in_the_pipe(kind):
    """A file that changes stops the reading; one that is damaged may be left out."""
    back = unpack_scanned(pack_scanned(ScannedFile(error=kind("why"))), Origin(Path("file"), "file"))
    assert (type(back.error), str(back.error)) == (kind, "why")
    assert back.source is None
    assert not back.documents
