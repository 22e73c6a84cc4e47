"""Pairs: read with file and line for what is wrong, split by source, and encoded without loss."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.read.documents import DocumentError
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.pairs import PairsError, read_pairs, split_pairs
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, learn_tokenizer
from pellucid.text.tokens.pairs import prepare_pairs
from pellucid.text.tokens.store import describe_difference

SIDES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n\r"), min_size=1, max_size=8)
SIDES = SIDES.filter(lambda text: bool(text.strip()))


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tsv(folder, pairs, name="pairs.tsv"):
    return write(folder / name, "".join(f"{s}\t{t}\n" for s, t in pairs))


def numbered(n):
    return [(f"word {i}", f"{i}") for i in range(n)]


@settings(max_examples=60)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6))
def test_both_formats_give_back_what_was_written(tmp_path_factory, pairs):
    """Whatever the characters: line separators of Unicode, quotes and backslashes are text."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = "\r\n\r\n".join(json.dumps({"id": 1, "source": s, "target": t}) for s, t in pairs)
    for path in (tsv(folder, pairs), write(folder / "pairs.jsonl", lines)):
        found = read_pairs(path)
        assert list(zip(found.sources, found.targets, strict=True)) == pairs
        assert found.n_bytes == sum(len((s + t).encode()) for s, t in pairs)


def test_files_of_a_folder_come_in_the_order_of_their_paths(tmp_path):
    tsv(tmp_path, [("b", "2"), ("c", "3")], "two.tsv")
    write(tmp_path / "one.jsonl", '\ufeff{"source": "a", "target": "1"}\n\n{"source": "x", "target": "0"}')
    write(tmp_path / "notes.txt", "not pairs")
    found = read_pairs(tmp_path)
    assert found.sources == ["a", "x", "b", "c"]
    assert [found.place(pair) for pair in range(4)] == ["one.jsonl:1", "one.jsonl:3", "two.tsv:1", "two.tsv:2"]
    assert [(f.path, f.n_documents) for f in found.files] == [("one.jsonl", 2), ("two.tsv", 2)]
    assert [skipped.path for skipped in found.skipped] == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "one\ttwo\nthree\n", r"a\.tsv:2: 1 column, expected two"),
        ("a.tsv", "one\ttwo\n\none\ttwo\tthree\n", r"a\.tsv:3: 3 columns"),
        ("a.tsv", "one\t \n", r"a\.tsv:1: the target is empty"),
        ("a.tsv", "\ttwo\n", r"a\.tsv:1: the source is empty"),
        ("a.tsv", b"one\ttw\xff\n", r"a\.tsv:1: byte 7 of the line is not UTF-8: convert the file to UTF-8"),
        ("a.tsv", "source\ttarget\nsource\n", r"a\.tsv:2: 1 column"),
        ("a.tsv.gz", b"no gzip", r"a\.tsv\.gz is damaged after 0 bytes"),
        ("a.txt.gz", b"no gzip", r"a\.txt\.gz: not a \.tsv or \.jsonl file"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": "a"\n', r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", '{"source": "a"}', r"a\.jsonl:1: no field 'target'.*the fields are source"),
        ("a.jsonl", '{"source": "a", "target": 3}', r"a\.jsonl:1: a int as field 'target'"),
        ("a.jsonl", '["a", "b"]', r"a\.jsonl:1: list, expected an object"),
        ("a.jsonl", '{"source": "a", "target": "\\ud800"}', r"a\.jsonl:1: a lone surrogate"),
        ("a.tsv", "\n", "there are no pairs to read"),
        ("a.csv", "one,two", r"a\.csv: not a \.tsv or \.jsonl file"),
    ],
)
def test_what_is_not_a_pair_is_refused_with_its_line(tmp_path, name, content, message):
    with pytest.raises(PairsError, match=message):
        read_pairs(write(tmp_path / name, content))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_compressed_files_are_read_and_known_by_their_own_bytes(tmp_path, pack):
    content = pack("a\t1\r\nb\té\n".encode())
    path = write(tmp_path / f"a.tsv.{'gz' if pack is gzip.compress else 'zst'}", content)
    found = read_pairs(tmp_path)
    assert found.rows == [("a", "1"), ("b", "é")]
    assert found.place(1) == f"{path.name}:2"
    assert (found.files[0].n_bytes, found.files[0].sha256) == (len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_the_mark_at_the_beginning_says_the_encoding(tmp_path, encoding):
    assert read_pairs(write(tmp_path / "a.tsv", "é\t1\n😀\t2\n".encode(encoding))).rows == [("é", "1"), ("😀", "2")]


def test_a_first_line_that_names_the_columns_is_no_pair(tmp_path):
    for first in ("source\ttarget\n", "\nSource\tTarget\r\n"):
        found = read_pairs(write(tmp_path / "a.tsv", first + "a\t1\nsource\ttarget\n"))
        assert found.rows == [("a", "1"), ("source", "target")]
    assert len(read_pairs(tsv(tmp_path, [("source", "target of it")]))) == 1


def test_sides_in_quotation_marks_stay_text_and_are_said(tmp_path):
    """They may be speech as well as what a spreadsheet program wrote."""
    pairs = [('"one", he said', "1"), ('"two ""2"""', "2"), ("three", '"3, 4"')]
    found = read_pairs(tsv(tmp_path, pairs))
    assert found.rows == pairs
    (note,) = found.notes
    assert note.startswith(
        "2 pairs have a side that is all in quotation marks, the first at pairs.tsv:2; they are read as"
    )
    rows = "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs)
    assert read_pairs(write(tmp_path / "a.jsonl", rows)).notes == []


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DocumentError, match="no such file"):
        read_pairs(tmp_path / "nothing.tsv")


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), SIDES), min_size=2, max_size=40),
    st.sampled_from([0.1, 0.3, 0.7]),
    st.integers(0, 9),
)
def test_no_source_is_on_both_sides(tmp_path_factory, pairs, share, seed):
    """So no duplicate is either; both parts have pairs, and the order of the file does not matter."""
    if len({s for s, _ in pairs}) < 2:
        return
    folder = tmp_path_factory.mktemp("split")
    found = read_pairs(tsv(folder, pairs))
    split = split_pairs(found, share, seed)
    parts = {part: {found.sources[pair] for pair in split.numbers(part)} for part in ("train", "held_out")}
    assert not parts["train"] & parts["held_out"]
    assert all(parts.values())
    assert parts["train"] | parts["held_out"] == {s for s, _ in pairs}
    turned = read_pairs(tsv(folder, pairs[::-1]))
    assert {turned.sources[pair] for pair in split_pairs(turned, share, seed).numbers("held_out")} == parts["held_out"]


def test_the_share_held_out_is_the_share_asked_for(tmp_path):
    found = read_pairs(tsv(tmp_path, numbered(1000)))
    split = split_pairs(found, 0.1, 1)
    held = [found.sources[pair] + found.targets[pair] for pair in split.numbers("held_out")]
    assert sum(map(len, held)) / found.n_bytes == pytest.approx(0.1, abs=0.002)
    assert (split_pairs(found, 0.1, 2).held != split.held).any()
    assert "pairs are held out" in split.note
    for share, message in ((0.0, "held_out = 0.0"), (1.0, "held_out = 1.0")):
        with pytest.raises(PairsError, match=message):
            split_pairs(found, share)
    with pytest.raises(PairsError, match="one source"):
        split_pairs(read_pairs(tsv(tmp_path, [("a", "1"), ("a", "2")], "one.tsv")))


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_ids_are_those_of_each_text_and_the_separator(tmp_path, kind):
    found = read_pairs(tsv(tmp_path, numbered(50)))
    split = split_pairs(found, 0.2, 3)
    tokenizer = learn_tokenizer(kind, split.texts("train"), 280 if kind == "bpe" else None)
    tokens = prepare_pairs(split, tokenizer, tmp_path)
    for name in ("train", "held_out"):
        pairs = split.numbers(name)
        for side, texts in zip(tokens.sides(name), (found.sources, found.targets), strict=True):
            assert len(side) == side.lengths.sum()
            width = int(side.lengths.max()) + 2
            rows, own = side.padded(np.arange(len(pairs)), width, tokenizer.separator)
            assert rows.dtype == np.int64
            for row, mask, pair in zip(rows, own, pairs, strict=True):
                assert row[mask].tolist() == [*tokenizer.encode(texts[pair]), tokenizer.separator]
                assert (row[~mask] == tokenizer.separator).all()
            assert side.n_bytes == sum(len(texts[pair].encode()) for pair in pairs)


def content_of(tokens):
    parts = tokens.parts.values()
    return tokens.manifest, [(part.ids.tolist(), part.starts.tolist(), part.n_bytes) for part in parts]


@pytest.fixture
def encoded(monkeypatch):
    """The texts that are encoded."""
    texts, encode = [], ByteTokenizer.encode_batch
    monkeypatch.setattr(ByteTokenizer, "encode_batch", lambda self, some: texts.extend(some) or encode(self, some))
    return texts


def test_pairs_are_encoded_again_only_where_something_changed(tmp_path, encoded):
    def prepare(pairs, share=0.2, tokenizer=None):
        encoded.clear()
        split = split_pairs(read_pairs(tsv(tmp_path, pairs)), share)
        return prepare_pairs(split, tokenizer or ByteTokenizer(), tmp_path / "cache")

    pairs = numbered(20)
    first = content_of(prepare(pairs))
    assert len(encoded) == 40
    assert content_of(prepare(pairs)) == first
    assert encoded == []
    prepare(pairs, share=0.5)
    assert len(encoded) == 40
    prepare(pairs, tokenizer=ByteTokenizer().with_special("<s>"))
    assert len(encoded) == 40
    prepare([("new", "new"), *pairs[1:]])
    assert len(encoded) == 40
    assert content_of(prepare(pairs)) == first


@pytest.mark.parametrize("name", ["train_source-00000.bin", "held_out.documents.npy", "manifest.json"])
def test_damaged_pairs_are_encoded_again_and_said(name, tmp_path, encoded):
    split = split_pairs(read_pairs(tsv(tmp_path, numbered(20))), 0.2)
    first = content_of(prepare_pairs(split, ByteTokenizer(), tmp_path / "cache"))
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    again = prepare_pairs(split, ByteTokenizer(), tmp_path / "cache")
    (note,) = again.notes
    assert note.startswith("prepared tokens were damaged and have been encoded again")
    assert name in note
    assert content_of(again) == first
    assert len(encoded) == 80


def test_characters_never_seen_are_counted(tmp_path):
    found = read_pairs(tsv(tmp_path, numbered(50)))
    split = split_pairs(found, 0.2, 3)
    tokens = prepare_pairs(split, learn_tokenizer("char", ["word "]), tmp_path)
    digits = sum(c.isdigit() for side in (found.sources, found.targets) for text in side for c in text)
    assert sum(part["unknown"] for part in tokens.manifest["parts"].values()) == digits


def test_a_pair_too_long_for_the_context_is_named(tmp_path):
    pairs = numbered(20)
    pairs[7] = ("word 7", "seven" * 10)
    tokens = prepare_pairs(split_pairs(read_pairs(tsv(tmp_path, pairs))), ByteTokenizer(), tmp_path)
    tokens.check_lengths(8, 51)
    with pytest.raises(PairsError, match=r"1 sides.*first at pairs\.tsv:8: a target of 51 tokens.* of 50.*n_ctx=51"):
        tokens.check_lengths(8, 50)
    with pytest.raises(PairsError, match=r"set model\.encoder\.n_ctx=8$"):
        tokens.check_lengths(7, 51)
    with pytest.raises(PairsError, match=r"set model\.encoder\.n_ctx=8 and model\.n_ctx=51$"):
        tokens.check_lengths(7, 9)


def test_the_manifest_tells_what_changed(tmp_path):
    path = tsv(tmp_path, numbered(20))
    before = prepare_pairs(split_pairs(read_pairs(path)), ByteTokenizer(), tmp_path)
    assert prepare_pairs(split_pairs(read_pairs(path)), ByteTokenizer(), tmp_path).manifest == before.manifest
    assert json.loads(json.dumps(before.manifest)) == before.manifest
    assert not describe_difference(before.manifest, before.manifest)
    other = prepare_pairs(split_pairs(read_pairs(path), 0.3), ByteTokenizer(), tmp_path)
    assert other.manifest != before.manifest
    assert describe_difference(before.manifest, other.manifest) == "the split's held_out changed, from 0.1 to 0.3"
    changed = prepare_pairs(split_pairs(read_pairs(tsv(tmp_path, numbered(21)))), ByteTokenizer(), tmp_path)
    assert describe_difference(before.manifest, changed.manifest).startswith("pairs.tsv changed")
    otherwise_read = json.loads(json.dumps(before.manifest))
    otherwise_read["parts"]["held_out"]["documents"] += 1
    said = describe_difference(otherwise_read, before.manifest)
    assert said.startswith("its files are the same, but this version reads them in another way: ")
    assert said.endswith("documents of the held-out part are 2 now")


def test_an_unreadable_file_is_named_and_can_be_left_out(tmp_path, monkeypatch):
    tsv(tmp_path, numbered(3), "a.tsv")
    locked, real = tsv(tmp_path, numbered(3), "b.tsv"), Path.open

    def refuse(path, *given, **options):
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *given, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PairsError, match=r"b\.tsv: it cannot be read: Permission denied"):
        read_pairs(tmp_path)
    found = read_pairs(tmp_path, reading=ReadOptions(skip_bad=True))
    assert len(found.sources) == 3
    assert [skipped.path for skipped in found.skipped] == ["b.tsv"]
