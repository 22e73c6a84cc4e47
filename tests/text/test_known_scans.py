"""Files that have not changed are not read again: the corpus is the same, and every change is seen."""

import os
import time
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid
from pellucid.cli import main
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.read import documents, known_scans
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.known_scans import CHECK_TEXT, checking_text
from pellucid.text.tokens.prepare import VERIFIED

TEXT = "To be, or not to be, that is the question.\n" * 40


@pytest.fixture
def texts(tmp_path):
    """A folder with a text, rows, a table that is packed, and a file that is no text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.jsonl").write_text('{"text": "one"}\n{"text": "two \\ud83d"}\n')
    (folder / "c.csv").write_text("text,n\nthree,1\nfour,2\n")
    (folder / "d.bin").write_bytes(bytes(range(256)) * 20)
    return folder


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that are scanned, in order; files count as settled at once."""
    names = []
    scan = documents.scan_file

    def scan_file(file, *arguments):
        names.append(file.relative)
        return scan(file, *arguments)

    monkeypatch.setattr(documents, "scan_file", scan_file)
    monkeypatch.setattr(known_scans, "SETTLED_SECONDS", -1)
    return names


def test_what_has_not_changed_is_not_read_again_and_the_corpus_is_the_same(texts, tmp_path, opened):
    plain = read_corpus(texts)
    for n_read in (4, 0):
        opened.clear()
        corpus = read_corpus(texts, kept=tmp_path / "kept")
        assert len(opened) == n_read
        assert corpus.about() == plain.about()
        assert corpus.documents == plain.documents
        assert corpus.notes == plain.notes
        assert list(corpus.texts()) == list(plain.texts())


def test_a_changed_file_alone_is_read_again(texts, tmp_path, opened):
    read_corpus(texts, kept=tmp_path / "kept")
    before = (texts / "a.txt").stat()
    (texts / "a.txt").write_text(TEXT.replace("not", "now"))  # as long as before
    os.utime(texts / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    opened.clear()
    corpus = read_corpus(texts, kept=tmp_path / "kept")
    assert opened == ["a.txt"]
    assert corpus.about() == read_corpus(texts).about()
    opened.clear()
    (texts / "new.txt").write_text("new")
    corpus = read_corpus(texts, kept=tmp_path / "kept")
    assert opened == ["new.txt"], "a new file alone is read"
    assert corpus.about() == read_corpus(texts).about()
    opened.clear()
    read_corpus(texts / "new.txt", kept=tmp_path / "kept")
    read_corpus(texts, kept=tmp_path / "kept")
    assert opened == [], "a run on some of the files keeps what is known of the others"
    read_corpus(texts, kept=tmp_path / "kept", reading=ReadOptions(encoding="latin-1"))
    assert len(opened) == 5, "other options read in another way"


def test_a_file_that_was_just_written_is_read_again(texts, tmp_path, opened, monkeypatch):
    """Another change in the same instant may give it the same times."""
    monkeypatch.setattr(known_scans, "SETTLED_SECONDS", 3600)
    for _ in range(2):
        opened.clear()
        read_corpus(texts, kept=tmp_path / "kept")
        assert len(opened) == 4


def test_a_file_that_was_written_just_before_a_long_scan_is_read_again(texts, tmp_path, opened, monkeypatch):
    """It may have been written again meanwhile, with the same times."""
    monkeypatch.setattr(known_scans, "SETTLED_SECONDS", 2.0)
    now, scan = time.time_ns, documents.scan_file

    def scan_slowly(*arguments):
        monkeypatch.setattr(known_scans.time, "time_ns", lambda: now() + 10**10)
        return scan(*arguments)

    monkeypatch.setattr(documents, "scan_file", scan_slowly)
    for _ in range(2):
        opened.clear()
        monkeypatch.setattr(known_scans.time, "time_ns", now)
        for path in texts.iterdir():
            path.touch()
        read_corpus(texts, kept=tmp_path / "kept")
        assert not [*(tmp_path / "kept").glob("scanned-*")]
    assert len(opened) == 4


@pytest.mark.parametrize("damage", ["pipe", "cut", "changed", "folder", "empty"])
def test_a_damaged_record_is_not_believed(texts, tmp_path, opened, damage):
    read_corpus(texts, kept=tmp_path / "kept")
    (record,) = (tmp_path / "kept").iterdir()
    content = record.read_bytes()
    record.unlink()
    if damage == "pipe":
        os.mkfifo(record)
    elif damage == "folder":
        record.mkdir()
    else:
        changed = content.replace(b"text", b"next", 1) if damage == "changed" else content[: len(content) // 2]
        record.write_bytes(b"" if damage == "empty" else changed)
    opened.clear()
    assert read_corpus(texts, kept=tmp_path / "kept").about() == read_corpus(texts).about()
    assert len(opened) == 8


def test_records_do_not_pile_up(texts, tmp_path, opened, monkeypatch):
    """One for each folder and its options, whatever its files are; it is removed where no run uses it any more."""
    kept = tmp_path / "kept"
    read_corpus(texts, kept=kept)
    (record,) = kept.iterdir()
    size = record.stat().st_size
    (texts / "b.jsonl").unlink()
    (texts / "new.txt").write_text("new")
    monkeypatch.setattr(known_scans, "_code", lambda: "another version's")
    opened.clear()
    read_corpus(texts, kept=kept)
    assert opened == ["a.txt", "c.csv", "d.bin", "new.txt"]
    assert [*kept.iterdir()] == [record]
    assert record.stat().st_size < size, "a file that is gone is forgotten"
    (tmp_path / "other.txt").write_text(TEXT)
    long_ago = record.stat().st_mtime - known_scans.UNUSED_SECONDS - 60
    os.utime(record, (long_ago, long_ago))
    read_corpus(texts, kept=kept)  # which uses it
    read_corpus(tmp_path / "other.txt", kept=kept)
    assert len([*kept.iterdir()]) == 2
    os.utime(record, (long_ago, long_ago))
    read_corpus(tmp_path / "other.txt", kept=kept, reading=ReadOptions(split_at="***"))
    assert record not in kept.iterdir()


def test_what_reads_formats_is_part_of_what_is_known(monkeypatch):
    before = known_scans._code.__wrapped__()
    monkeypatch.setattr(known_scans, "version", lambda library: "0.1" if library == "pyarrow" else version(library))
    assert known_scans._code.__wrapped__() != before


@given(st.binary(max_size=300))
def test_any_bytes_in_the_place_of_a_record_do_no_harm(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_scans, "SETTLED_SECONDS", -1)
        read_corpus(folder / "a.txt", kept=folder / "kept")
    (record,) = (folder / "kept").iterdir()
    record.write_bytes(content)
    assert read_corpus(folder / "a.txt", kept=folder / "kept").about() == read_corpus(folder / "a.txt").about()


def test_with_check_text_everything_is_read(texts, tmp_path, opened):
    read_corpus(texts, kept=tmp_path / "kept")
    opened.clear()
    with checking_text(True):
        read_corpus(texts, kept=tmp_path / "kept")
    assert len(opened) == 4


def test_shards_are_verified_where_they_changed_and_with_check_text(texts, tmp_path, opened, monkeypatch):
    split, tokenizer = split_corpus(read_corpus(texts), 0.25), learn_tokenizer("byte", [])
    tokens = prepare_tokens(split, tokenizer, tmp_path / "cache")
    verified = []
    verify = type(tokens).verify
    monkeypatch.setattr(type(tokens), "verify", lambda self: verified.append(self.folder) or verify(self))
    for n_times in (1, 1):
        prepare_tokens(split, tokenizer, tmp_path / "cache")
        assert len(verified) == n_times
    with checking_text(True):
        prepare_tokens(split, tokenizer, tmp_path / "cache")
    assert len(verified) == 2
    shard = next(tokens.folder.glob("train-*.bin"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    again = prepare_tokens(split, tokenizer, tmp_path / "cache")
    assert len(verified) == 3, "and what was damaged is encoded again"
    assert next(again.folder.glob("train-*.bin")).read_bytes() != bytes(content)
    assert not (again.folder / VERIFIED).exists()


def test_a_run_that_is_resumed_reads_nothing_again(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    fields = {"tokenizer": "byte", "d_hidden": 8, "d_embed": 8, "n_ctx": 8}
    run = pellucid.train_predictor(text, kind="recurrent", out=tmp_path / "run", steps=1, fields=fields).path
    for check_text in (False, True):
        opened.clear()
        pellucid.train_predictor(out=run, resume=True, steps=2 + check_text, check_text=check_text)
        assert opened == ["text.txt"] * check_text
        assert not CHECK_TEXT.get(), "what follows in this process is read as before"
    with pytest.raises(ValueError, match=r"text\.txt"):
        pellucid.train(text, steps=1, check_text=True, fields={"tokenizer": "byte", "objective": "chat"})
    assert not CHECK_TEXT.get()
    tokenizer = str(run / "tokenizer.json")
    assert main(["tokenizer", "encode-corpus", str(text), "--tokenizer", tokenizer, "--check-text"]) == 0
    assert not CHECK_TEXT.get()
