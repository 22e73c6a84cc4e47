"""Tokens on disk: what is written comes back, and what was damaged or made for something else is named."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.store import HEADER, Tokens, TokenSequence, TokensError, describe_difference, dtype_for
from pellucid.text.tokens.writer import PartWriter


@pytest.fixture
def corpus(tmp_path, udhr):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in udhr.items():
        (folder / f"{name}.txt").write_text(text[:3000], encoding="utf-8")
    return read_corpus(folder)


@pytest.fixture
def split(corpus):
    return split_corpus(corpus, 0.25)


@pytest.fixture
def tokens(split, tmp_path):
    return prepare_tokens(split, learn_tokenizer("byte", []), tmp_path / "cache", shard_tokens=10_000)


@pytest.mark.item("S0-1.1-a")
@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_every_document_comes_back_followed_by_one_separator(kind, split, tmp_path):
    tokenizer = learn_tokenizer(kind, split.texts("train"), 600 if kind == "bpe" else None)
    tokens = prepare_tokens(split, tokenizer, tmp_path / "cache", shard_tokens=999)
    for name in ("train", "held_out"):
        part = tokens.part(name)
        written = ["".join(piece.text for piece in pieces) for pieces in split.documents(name)]
        ids = part.read(0, len(part))
        assert (ids == tokens.separator).sum() == len(written) == len(part.starts)
        ends = [*part.starts[1:], len(part)]
        for start, end, text in zip(part.starts, ends, written, strict=True):
            assert ids[end - 1] == tokens.separator
            assert ids[start : end - 1].tolist() == tokenizer.encode(text)
        assert part.n_bytes == sum(len(text.encode()) for text in written)
        known = len(tokenizer.decode_bytes(ids[ids != tokenizer.unknown]))
        assert known == part.n_bytes if kind != "char" else known <= part.n_bytes
    assert load_tokenizer(tokens.folder).hash == tokenizer.hash


def test_byte_counts_are_of_the_files_even_where_they_are_not_utf8(tmp_path):
    raw = "caf\xe9 and plain text ".encode("latin-1") * 40
    (tmp_path / "a.txt").write_bytes(raw)
    split = split_corpus(read_corpus(tmp_path / "a.txt"), 0.1)
    tokens = prepare_tokens(split, learn_tokenizer("byte", []), tmp_path / "cache")
    cut = int(len(raw.decode("utf-8", "replace")) * 0.9)
    assert [tokens.part(name).n_bytes for name in ("train", "held_out")] == [cut, len(raw) - cut]


def test_documents_larger_than_a_batch_of_small_ones_are_streamed_the_same(split, tmp_path, monkeypatch):
    tokenizer = learn_tokenizer("bpe", split.texts("train"), 500)
    whole = prepare_tokens(split, tokenizer, tmp_path / "one")
    monkeypatch.setattr("pellucid.text.tokens.encode.UNIT", 100)
    monkeypatch.setattr("pellucid.text.read.formats.CHUNK_BYTES", 640)
    pieces = prepare_tokens(split, tokenizer, tmp_path / "two")
    for name in ("train", "held_out"):
        one, two = whole.part(name), pieces.part(name)
        assert np.array_equal(one.read(0, len(one)), two.read(0, len(two)))
        assert np.array_equal(one.starts, two.starts)
        assert one.n_bytes == two.n_bytes


@pytest.mark.item("S4-copy-a")
def test_the_same_input_is_prepared_once_and_any_other_is_prepared_anew(corpus, tmp_path):
    cache, tokenizer = tmp_path / "cache", learn_tokenizer("byte", [])
    first = prepare_tokens(split_corpus(corpus, 0.25), tokenizer, cache)
    stamp = (first.folder / "manifest.json").stat().st_mtime_ns
    calls = []
    again = prepare_tokens(split_corpus(corpus, 0.25), tokenizer, cache, progress=lambda *told: calls.append(told))
    assert again.folder == first.folder
    assert (first.folder / "manifest.json").stat().st_mtime_ns == stamp
    assert calls == []
    others = [
        prepare_tokens(split_corpus(corpus, 0.3), tokenizer, cache),
        prepare_tokens(split_corpus(corpus, 0.25, 7), tokenizer, cache),
    ]
    others.append(prepare_tokens(split_corpus(corpus, 0.25), learn_tokenizer("char", ["abc"]), cache))
    (tmp_path / "texts" / "eng.txt").write_text("changed " * 400)
    others.append(prepare_tokens(split_corpus(read_corpus(tmp_path / "texts"), 0.25), tokenizer, cache))
    assert len({tokens.folder for tokens in (first, *others)}) == 5
    assert "eng.txt changed, from" in describe_difference(first.manifest, others[-1].manifest)


def test_progress_counts_the_bytes_of_the_text_up_to_all_of_them(split, tmp_path):
    told = []
    prepare_tokens(split, learn_tokenizer("byte", []), tmp_path / "cache", progress=lambda *call: told.append(call))
    done = [call[1] for call in told]
    assert done == sorted(done)
    assert told[-1] == ("encoding", split.corpus.n_bytes, split.corpus.n_bytes)


@pytest.mark.item("S4-copy-a")
def test_differences_are_told_by_file_and_choice(corpus, tmp_path):
    one = prepare_tokens(split_corpus(corpus, 0.25), learn_tokenizer("byte", []), tmp_path / "cache").manifest
    (tmp_path / "texts" / "fra.txt").unlink()
    (tmp_path / "texts" / "new.txt").write_text("new text " * 300)
    (tmp_path / "texts" / "eng.txt").write_text("changed " * 300)
    split = split_corpus(read_corpus(tmp_path / "texts"), 0.25, seed=9)
    other = prepare_tokens(split, learn_tokenizer("char", split.texts("train")), tmp_path / "cache").manifest
    told = describe_difference(one, other).split("\n")
    for line in ("fra.txt is gone", "new.txt is new", "the split's seed changed, from 0 to 9"):
        assert line in told
    assert any(line.startswith("eng.txt changed") for line in told)
    assert any(line.startswith("the tokenizer changed, from byte") for line in told)
    assert describe_difference(one, one) == ""


def test_a_damaged_cache_is_made_again(tmp_path):
    """What the tokens were made from is at hand: no run reads other ids, and nobody has to delete a folder."""
    (tmp_path / "a.txt").write_text("to be or not to be " * 50)
    split, tokenizer = split_corpus(read_corpus(tmp_path / "a.txt"), 0.25), learn_tokenizer("byte", [])
    tokens = prepare_tokens(split, tokenizer, tmp_path / "cache")
    files = {path.name: path.read_bytes() for path in tokens.folder.iterdir()}
    for name in ("train-00000.bin", "manifest.json", "train.documents.npy"):
        for change in (lambda raw: raw[:-9], lambda raw: raw[:-4] + bytes(4) if raw[-1] else raw[:-4] + b"good"):
            (tokens.folder / name).write_bytes(change(files[name]))
            (note,) = prepare_tokens(split, tokenizer, tmp_path / "cache").notes
            assert name in note
            assert {path.name: path.read_bytes() for path in tokens.folder.iterdir()} == files
    assert prepare_tokens(split, tokenizer, tmp_path / "cache").notes == ()


def damaged(path, change) -> None:
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)


SHARD = "train-00001.bin"
DAMAGE = {
    "cut short": (SHARD, lambda raw: raw.__delitem__(slice(-2, None)), f"{SHARD} is truncated"),
    "cut to an odd length": (SHARD, lambda raw: raw.__delitem__(slice(-3, None)), f"{SHARD} is truncated"),
    "cut inside the header": (SHARD, lambda raw: raw.__delitem__(slice(10, None)), "less than its header"),
    "made longer": (SHARD, lambda raw: raw.extend(b"\0\0"), "longer than it should be"),
    "another magic": (SHARD, lambda raw: raw.__setitem__(0, 0), "header's magic"),
    "another version": (SHARD, lambda raw: raw.__setitem__(8, 9), "header's version"),
    "another width": (SHARD, lambda raw: raw.__setitem__(12, 4), "header's width"),
    "another count": (SHARD, lambda raw: raw.__setitem__(16, raw[16] ^ 1), "header's count"),
    "another vocabulary": (SHARD, lambda raw: raw.__setitem__(24, raw[24] ^ 1), "header's n_vocab"),
    "another tokenizer": (SHARD, lambda raw: raw.__setitem__(40, raw[40] ^ 1), "header's tokenizer"),
    "index cut short": ("train.documents.npy", lambda raw: raw.__delitem__(slice(-5, None)), r"train\.documents\.npy"),
    "index of another count": (
        "train.documents.npy",
        lambda raw: raw.__setitem__(slice(None), _npy(np.zeros(3, dtype=np.int64))),
        "does not list",
    ),
    "manifest not JSON": ("manifest.json", lambda raw: raw.__delitem__(slice(-9, None)), "manifest.json is damaged"),
    "manifest of another format": (
        "manifest.json",
        lambda raw: raw.__setitem__(slice(None), raw.replace(b'"format": 1', b'"format": 8')),
        "format 8, expected 1",
    ),
    "manifest of another shape": (
        "manifest.json",
        lambda raw: raw.__setitem__(slice(None), raw.replace(b'"tokens":', b'"token":')),
        "manifest is damaged",
    ),
    "manifest leading out": (
        "manifest.json",
        lambda raw: raw.__setitem__(slice(None), raw.replace(b"train-00001.bin", b"../x/secret.bin")),
        "not inside its folder",
    ),
}


def _npy(array: np.ndarray) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_folders_are_refused_by_the_name_of_the_file(name, tokens):
    file, change, message = DAMAGE[name]
    damaged(tokens.folder / file, change)
    with pytest.raises(TokensError, match=message):
        Tokens.open(tokens.folder)


def test_a_missing_shard_or_folder_is_named(tokens, tmp_path):
    (tokens.folder / SHARD).unlink()
    with pytest.raises(TokensError, match=f"{SHARD} cannot be read"):
        Tokens.open(tokens.folder)
    with pytest.raises(TokensError, match="holds no tokens"):
        Tokens.open(tmp_path)
    with pytest.raises(TokensError, match="choose one of train, held_out"):
        tokens.part("test")


def test_a_flipped_bit_is_found_when_asked(tokens):
    tokens.verify()
    damaged(tokens.folder / SHARD, lambda raw: raw.__setitem__(200, raw[200] ^ 1))
    with pytest.raises(TokensError, match=f"{SHARD} is damaged"):
        Tokens.open(tokens.folder).verify()


def test_tokens_of_another_tokenizer_are_refused(tokens):
    with pytest.raises(TokensError, match="but you gave the char tokenizer"):
        Tokens.open(tokens.folder, learn_tokenizer("char", ["abc"]))


def test_a_file_cut_short_in_use_is_noticed_before_it_is_read(tokens):
    tokens.part("train").check_files()
    damaged(tokens.folder / SHARD, lambda raw: raw.__delitem__(slice(-100, None)))
    with pytest.raises(TokensError, match="while it was in use"):
        tokens.part("train").check_files()


@pytest.mark.parametrize(("n_vocab", "wrong"), [(300, 300), (1 << 16, 1 << 16), (70_000, 70_000), (300, -1)])
def test_the_writer_refuses_ids_that_do_not_fit(n_vocab, wrong, tmp_path):
    writer = PartWriter(tmp_path, "train", n_vocab, "00" * 32, 100)
    writer.add(np.array([1, n_vocab - 1]))
    with pytest.raises(TokensError, match=f"id {wrong} is outside"):
        writer.add(np.array([1, wrong]))
    assert writer.finish()["tokens"] == 2


def test_an_error_of_writing_tokens_names_their_folder(tmp_path):
    """Not only what the system says of the disk."""
    (tmp_path / "train-00000.bin").symlink_to("/dev/full")
    writer = PartWriter(tmp_path, "train", 300, "00" * 32, 100)
    writer.add(np.array([1, 2]))
    for end in (writer.finish, writer.close):
        with pytest.raises(OSError, match="No space left on device") as caught:
            end()
        assert caught.value.filename == str(tmp_path)


def test_ids_take_two_bytes_where_they_fit_and_four_where_not(tmp_path):
    assert [dtype_for(n).itemsize for n in (257, 1 << 16, (1 << 16) + 1)] == [2, 2, 4]
    writer = PartWriter(tmp_path, "train", 70_000, "ab" * 32, 5)
    writer.add(np.arange(69_990, 69_999))
    writer.add(np.array([69_999]), (1,))
    part = writer.finish()
    assert [shard["tokens"] for shard in part["shards"]] == [5, 5]
    assert (tmp_path / "train-00000.bin").stat().st_size == HEADER.size + 20
    raw = (tmp_path / "train-00001.bin").read_bytes()
    assert np.frombuffer(raw, "<u4", offset=HEADER.size).tolist() == [69_995, 69_996, 69_997, 69_998, 69_999]


@given(st.lists(st.integers(0, 7), max_size=6), st.data())
def test_reading_across_shards_is_reading_one_row(lengths, data):
    row = np.arange(sum(lengths), dtype=np.int64)
    ends = np.cumsum(lengths)
    part = TokenSequence(
        [row[end - n : end].astype(np.uint16) for n, end in zip(lengths, ends, strict=True)], np.array([0]), 99
    )
    start = data.draw(st.integers(0, len(row)))
    stop = data.draw(st.integers(start, len(row)))
    assert part.read(start, stop).tolist() == row[start:stop].tolist()
    with pytest.raises(TokensError, match="it has"):
        part.read(start, len(row) + 1)


def test_a_failure_half_way_leaves_nothing_and_spoils_nothing(corpus, tokens, tmp_path):
    before = sorted(path.name for path in (tmp_path / "cache").iterdir())
    manifest = json.dumps(tokens.manifest)

    def stop(stage, done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_tokens(
            split_corpus(corpus, 0.25, seed=5), learn_tokenizer("byte", []), tmp_path / "cache", progress=stop
        )
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == before
    assert json.dumps(Tokens.open(tokens.folder).manifest) == manifest


def test_killed_half_way_nothing_is_published_and_the_next_run_completes(corpus, tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus\n"
        "kill = lambda stage, done, total: os.kill(os.getpid(), signal.SIGKILL) if done > total / 2 else None\n"
        "split = split_corpus(read_corpus(sys.argv[1]), 0.25)\n"
        "prepare_tokens(split, learn_tokenizer('byte', []), sys.argv[2], progress=kill)\n"
    )
    cache = tmp_path / "cache"
    killed = subprocess.run([sys.executable, "-c", script, tmp_path / "texts", cache], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not [path for path in cache.iterdir() if path.name.startswith("tokens-")]
    prepare_tokens(split_corpus(corpus, 0.25), learn_tokenizer("byte", []), cache).verify()


def test_two_preparing_at_once_agree(split, tmp_path):
    tokenizer = learn_tokenizer("byte", [])
    inner = []

    def meanwhile(stage, done, total):
        if not inner:
            inner.append(None)
            inner.append(prepare_tokens(split, tokenizer, tmp_path / "cache"))

    outer = prepare_tokens(split, tokenizer, tmp_path / "cache", progress=meanwhile)
    assert outer.folder == inner[1].folder
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [outer.folder.name]
    outer.verify()


def test_tokens_that_were_written_before_are_read_and_used_again(tmp_path):
    """A folder of tests/data, written on 2026-11-26, whose ids are the bytes of its texts."""
    kept = Path(__file__).parents[1] / "data" / "prepared_tokens"
    cache = shutil.copytree(kept, tmp_path / "cache")
    (folder,) = cache.glob("tokens-*")
    texts = ["To be, or not to be: that is the question.\n"]
    texts.append("Whether \u2019tis nobler in the mind to suffer\nThe slings and arrows.\n")
    found = Tokens.open(folder)
    ids = [found.part(name).read(0, len(found.part(name))).tolist() for name in ("train", "held_out")]
    assert sorted(i for part in ids for i in part if i < 256) == sorted("".join(texts).encode())
    assert ids[0][:6] == [84, 111, 32, 98, 101, 44]
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    again = prepare_tokens(split_corpus(read_corpus(cache / "texts"), 0.25), learn_tokenizer("byte", []), cache)
    assert again.folder == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp
