"""Encoding by several processes gives what one gives; interrupted, it goes on behind the last finished shard."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.cli import main
from pellucid.cli.tokenizer import EncodingOptions
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.tokenizers.tokenizer import TokenizerError
from pellucid.text.tokens import encode as encoding
from pellucid.text.tokens.encode import (
    Encoded,
    Encoders,
    Unit,
    pack_error,
    pack_ids,
    pack_texts,
    unpack_ids,
    unpack_texts,
)
from pellucid.text.tokens.prepare import SHARD_TOKENS
from pellucid.text.tokens.writer import PartWriter
from pellucid.text.workers import WorkerError, WorkerPool
from some_cases import one_in


@pytest.fixture
def split(tmp_path, udhr):
    for name, text in udhr.items():
        (tmp_path / f"{name}.txt").write_text(text[:6000] * 3, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {i} of many"}}\n' for i in range(900)))
    return split_corpus(read_corpus(tmp_path), 0.2)


def rows(tokens):
    return [
        (tokens.part(n).read(0, len(tokens.part(n))), np.array(tokens.part(n).starts)) for n in ("train", "held_out")
    ]


def assert_same(one, other):
    for (ids, starts), (more, too) in zip(rows(one), rows(other), strict=True):
        assert np.array_equal(ids, more)
        assert np.array_equal(starts, too)
    assert one.manifest == other.manifest


@pytest.mark.parametrize("kind", one_in(3, ["bpe", "char", "byte"]))
def test_any_number_of_workers_writes_the_same_files(kind, split, tmp_path, monkeypatch):
    tokenizer = learn_tokenizer(kind, split.texts("train"), 400 if kind == "bpe" else None)
    monkeypatch.setattr(encoding, "UNIT", 3000)
    made = [prepare_tokens(split, tokenizer, tmp_path / str(n), shard_tokens=5000, workers=n) for n in (0, 1, 3)]
    assert_same(made[0], made[1])
    assert_same(made[0], made[2])
    assert sum(len(made[0].manifest["parts"][n]["shards"]) for n in ("train", "held_out")) > 3
    for n in (0, 1, 3):
        assert {p.suffix for p in (tmp_path / str(n)).rglob("*-*.*")} == {".bin"}


class Stop(Exception):  # noqa: N818 (nothing goes wrong)
    pass


def interrupted(split, tokenizer, cache, when, **options):
    """Encode until so many units are written, and stop there."""
    seen = []

    def stop(stage, done, total):
        seen.append(done)
        if len(seen) == when:
            raise Stop

    with pytest.raises(Stop):
        prepare_tokens(split, tokenizer, cache, progress=stop, **options)
    return len(seen)


@pytest.mark.parametrize("workers", one_in(2, [2, 0]))
def test_interrupted_anywhere_at_most_one_shard_is_encoded_again(workers, split, tmp_path, monkeypatch):
    tokenizer = learn_tokenizer("bpe", split.texts("train"), 400)
    monkeypatch.setattr(encoding, "UNIT", 3000)
    whole = prepare_tokens(split, tokenizer, tmp_path / "whole", shard_tokens=7001)
    encoded = []
    real = Encoders.encode

    def counting(self, units):
        for unit, ids in real(self, units):
            encoded.append(len(ids.ids))
            yield unit, ids

    monkeypatch.setattr(Encoders, "encode", counting)
    n_tokens = sum(len(whole.part(name)) for name in ("train", "held_out"))
    for when in range(1, 14, 3 if workers == 0 else 8):
        cache = tmp_path / f"cache-{when}"
        encoded.clear()
        interrupted(split, tokenizer, cache, when, shard_tokens=7001, workers=workers)
        left = [path.name for path in cache.iterdir()]
        assert all(name.startswith(".") for name in left)
        assert len(left) == (sum(encoded) >= 7001)  # nothing is left where no shard was finished
        again = prepare_tokens(split, tokenizer, cache, shard_tokens=7001, workers=workers)
        assert_same(again, whole)
        assert [path.name for path in cache.iterdir()] == [again.folder.name]
        assert sum(encoded) - n_tokens <= 7001 + 3 * max(encoded)


def test_every_file_is_flushed_before_the_folder_gets_its_name(split, tmp_path, monkeypatch):
    flushed: set[int] = set()
    named: list[set[str]] = []
    flush, rename = os.fsync, os.rename

    def flushing(handle: int) -> None:
        flush(handle)
        flushed.add(os.fstat(handle).st_ino)

    def renaming(folder: Path, final: Path) -> None:
        named.append({path.name for path in (folder, *folder.iterdir()) if path.stat().st_ino not in flushed})
        rename(folder, final)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "rename", renaming)
    tokens = prepare_tokens(split, learn_tokenizer("byte", []), tmp_path / "cache", shard_tokens=9000)
    assert named == [set()]
    assert tokens.folder.stat().st_ino in flushed
    assert tokens.folder.parent.stat().st_ino in flushed


def test_a_damaged_shard_of_an_interrupted_call_is_not_taken_over(split, tmp_path, monkeypatch):
    tokenizer = learn_tokenizer("byte", [])
    monkeypatch.setattr(encoding, "UNIT", 3000)
    whole = prepare_tokens(split, tokenizer, tmp_path / "whole", shard_tokens=9000)
    damages = {"train-00001.bin": [b"\1"], "train-00001.json": [b"{", b""], "train-00000.ends": [b"", bytes]}
    for name, change in [(name, change) for name, changes in damages.items() for change in changes]:
        cache = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        interrupted(split, tokenizer, cache, 9, shard_tokens=9000)
        (working,) = cache.iterdir()
        size = (working / name).stat().st_size
        (working / name).write_bytes(change if isinstance(change, bytes) else change(size))
        assert_same(prepare_tokens(split, tokenizer, cache, shard_tokens=9000), whole)


SCRIPT = """
import os, signal, sys
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.tokens import encode as encoding
encoding.UNIT = 3000
after, seen = int(sys.argv[3]), []
def kill(stage, done, total):
    seen.append(done)
    if len(seen) == after:
        os.kill(os.getpid(), signal.SIGKILL)
split = split_corpus(read_corpus(sys.argv[1]), 0.2)
workers = int(sys.argv[4])
prepare_tokens(split, learn_tokenizer("byte", []), sys.argv[2], progress=kill, shard_tokens=9000, workers=workers)
"""


@pytest.mark.parametrize(("after", "workers"), one_in(3, [(2, 0), (12, 0), (12, 2)]))
def test_killed_it_goes_on_behind_the_last_finished_shard(after, workers, split, tmp_path, monkeypatch):
    folder, cache = split.corpus.documents[0].path.parent, tmp_path / "cache"
    arguments = [sys.executable, "-c", SCRIPT, str(folder), str(cache), str(after), str(workers)]
    killed = subprocess.run(arguments, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    monkeypatch.setattr(encoding, "UNIT", 3000)
    tokenizer = learn_tokenizer("byte", [])
    taken = []
    real = PartWriter.take_over
    monkeypatch.setattr(PartWriter, "take_over", lambda self: taken.append(real(self)))
    again = prepare_tokens(split, tokenizer, cache, shard_tokens=9000)
    assert taken[1] == 0
    assert 0 < taken[0] < len(again.part("train"))
    assert taken[0] % 9000 == 0
    assert_same(again, prepare_tokens(split, tokenizer, tmp_path / "whole", shard_tokens=9000))


def test_a_worker_that_dies_is_an_error_and_not_a_wait(split, tmp_path, monkeypatch):
    tokenizer = learn_tokenizer("byte", [])
    tokenizer.save(tmp_path)
    with Encoders(tokenizer, tmp_path, 1) as encoders:
        units = (Unit(["text"], [True]) for _ in range(9))
        answers = encoders.encode(units)
        assert next(answers)[1].ids.tolist() == [*b"text", 256]
        os.kill(encoders.pool.processes[0].pid, signal.SIGKILL)
        encoders.pool.processes[0].wait()
        with pytest.raises(WorkerError, match="ended with code -9"):
            list(answers)
    assert all(worker.poll() is not None for worker in encoders.pool.processes)


def test_a_worker_answers_in_words_what_it_cannot_encode():
    with pytest.raises(TokenizerError, match="why"):
        unpack_ids(pack_error(TokenizerError("why")))


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())))
@settings(deadline=None)
def test_units_and_ids_survive_the_pipe(texts):
    unit = Unit([text for text, _ in texts], [end for _, end in texts])
    assert unpack_texts(pack_texts(unit)) == unit
    ids = Encoded(np.arange(len(texts), dtype="<u4"), np.flatnonzero(unit.ends).astype("<i8"))
    back = unpack_ids(pack_ids(ids))
    assert np.array_equal(back.ids, ids.ids)
    assert np.array_equal(back.ends, ids.ends)


def test_training_reads_what_the_command_encoded(tmp_path, monkeypatch, capsys):
    """The same defaults of seed, held-out share and size of shards on both sides."""
    assert EncodingOptions().shard_tokens == SHARD_TOKENS
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    texts, tokenizer = tmp_path / "texts", tmp_path / "tokenizer"
    texts.mkdir()
    for k in range(20):
        (texts / f"{k}.txt").write_text(f"text {k} of many " * 20)
    learn_tokenizer("byte", []).save(tokenizer)
    assert main(["tokenizer", "encode-corpus", str(texts), "--tokenizer", str(tokenizer)]) == 0
    assert "tokens to train on" in capsys.readouterr().out
    (folder,) = (tmp_path / "cache").glob("tokens-*")
    written = (folder / "manifest.json").stat().st_mtime_ns
    sizes = ("d_model=8", "attention.n_heads=1", "n_layers=1", "n_ctx=16", "batch=2")
    run = ["train", str(texts), "--tokenizer", str(tokenizer), "--steps", "1"]
    assert main([*run, *(word for size in sizes for word in ("--set", size)), "--out", str(tmp_path / "run")]) == 0
    assert [path.name for path in (tmp_path / "cache").glob("tokens-*")] == [folder.name]
    assert (folder / "manifest.json").stat().st_mtime_ns == written


def test_a_worker_that_is_still_starting_when_its_pool_ends_is_ended_too(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text("from pellucid.text.workers import answer_all\nanswer_all(lambda x: x)\n")
    monkeypatch.syspath_prepend(tmp_path)

    class SlowPool(WorkerPool):
        def _start(self):
            time.sleep(0.3)
            return super()._start()

    def items():
        yield b"one"
        raise ValueError("the file has changed")

    with pytest.raises(ValueError, match="changed"), SlowPool(1, "echo", (), "echoes") as pool:
        list(pool.answers(items(), lambda item: item, 4))
    assert [process.poll() is not None for process in pool.processes] == [True]
