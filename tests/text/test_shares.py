"""A corpus encoded in shares, by one process or several, is the corpus encoded at once."""

import subprocess
import sys

import numpy as np
import pytest

from pellucid.cli import main
from pellucid.cli.tokenizer import EncodingOptions
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.split import PARTS
from pellucid.text.tokens.prepare import SHARD_TOKENS, prepared_folder
from pellucid.text.tokens.shares import documents_of_share, prepare_share
from pellucid.text.tokens.store import Tokens, TokensError

BYTES = learn_tokenizer("byte", [])


@pytest.fixture(scope="module")
def texts(tmp_path_factory, udhr):
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    folder.mkdir()
    for name, text in udhr.items():
        (folder / f"{name}.txt").write_text(text[:2000], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def split(texts):
    return split_corpus(read_corpus(texts), 0.25)


@pytest.fixture(scope="module")
def at_once(split, tmp_path_factory):
    return prepare_tokens(split, BYTES, tmp_path_factory.mktemp("at-once"), shard_tokens=999)


def assert_same_tokens(tokens: Tokens, other: Tokens) -> None:
    tokens.verify()
    assert tokens.folder.name == other.folder.name
    for name in PARTS:
        part, expected = tokens.part(name), other.part(name)
        assert np.array_equal(part.read(0, len(part)), expected.read(0, len(expected)))
        assert np.array_equal(part.starts, expected.starts)
        entry, expected_entry = ({**t.manifest["parts"][name], "shards": None} for t in (tokens, other))
        assert entry == expected_entry


@pytest.mark.parametrize("of", [1, 2, 5, 12])
def test_shares_in_any_order_are_the_corpus_encoded_at_once(of, split, at_once, tmp_path):
    for number in reversed(range(1, of)):
        assert prepare_share(split, BYTES, tmp_path, number, of, shard_tokens=700) is None
    tokens = prepare_share(split, BYTES, tmp_path, 0, of, shard_tokens=700)
    assert tokens is not None
    assert_same_tokens(tokens, at_once)
    assert [path.name for path in tmp_path.iterdir()] == [tokens.folder.name]


@pytest.mark.parametrize("of", [1, 3, 7, 100])
def test_every_document_is_in_one_share_and_shares_have_about_as_many_bytes(of, split):
    shares = [documents_of_share(split, number, of) for number in range(of)]
    assert [k for share in shares for k in share] == list(range(len(split.corpus.documents)))
    sizes = np.asarray(split.corpus.documents.n_bytes)
    for share in shares:
        assert abs(sizes[share.start : share.stop].sum() - sizes.sum() / of) <= sizes.max()


def test_a_number_outside_the_shares_is_refused(split, tmp_path):
    with pytest.raises(TokensError, match="the shares of 4 are 0 to 3"):
        prepare_share(split, BYTES, tmp_path, 4, 4)


def test_a_finished_share_is_not_encoded_again(split, at_once, tmp_path):
    seen = []
    prepare_share(split, BYTES, tmp_path, 1, 2)
    prepare_share(split, BYTES, tmp_path, 1, 2, progress=lambda *numbers: seen.append(numbers))
    assert not seen
    tokens = prepare_share(split, BYTES, tmp_path, 0, 2)
    assert tokens is not None
    assert_same_tokens(tokens, at_once)


def test_a_share_killed_half_way_continues_and_its_finished_shards_stay(texts, split, at_once, tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pellucid.text import learn_tokenizer, read_corpus, split_corpus\n"
        "from pellucid.text.tokens import encode\n"
        "from pellucid.text.tokens.shares import prepare_share\n"
        "encode.UNIT = 2000\n"
        "kill = lambda stage, done, total: os.kill(os.getpid(), signal.SIGKILL) if done > total / 2 else None\n"
        "split = split_corpus(read_corpus(sys.argv[1]), 0.25)\n"
        "prepare_share(split, learn_tokenizer('byte', []), sys.argv[2], 0, 2, shard_tokens=999, progress=kill)\n"
    )
    subprocess.run([sys.executable, "-c", script, texts, tmp_path], check=False)
    final = prepared_folder(split, BYTES, tmp_path)
    (partial,) = (tmp_path / f".{final.name}.2-shares").iterdir()
    finished = {path: path.stat().st_mtime_ns for path in partial.glob("*.json") if path.name.startswith("train-")}
    assert len(finished) > 3
    again = script.replace("os.kill(os.getpid(), signal.SIGKILL) if done > total / 2", "print(done) if False")
    subprocess.run([sys.executable, "-c", again, texts, tmp_path], check=True)
    (share,) = (tmp_path / f".{final.name}.2-shares").iterdir()
    assert share.name == "share-0"
    shard = next(iter(finished)).with_suffix(".bin").name
    assert (share / shard).stat().st_mtime_ns < max(finished.values()) + 1
    tokens = prepare_share(split, BYTES, tmp_path, 1, 2)
    assert tokens is not None
    assert_same_tokens(tokens, at_once)


def test_training_reads_what_the_command_encoded(texts, tmp_path, monkeypatch, capsys):
    """The same defaults of seed, held-out share and size of shards on both sides."""
    assert EncodingOptions().shard_tokens == SHARD_TOKENS
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    BYTES.save(tmp_path)
    command = ["tokenizer", "encode-corpus", str(texts), "--tokenizer", str(tmp_path)]
    assert main([*command, "--share", "1/2"]) == 0
    assert "the process that finishes the last share joins them" in capsys.readouterr().out
    assert main([*command, "--share", "0/2"]) == 0
    assert "all shares are encoded" in capsys.readouterr().out
    (folder,) = (tmp_path / "cache").iterdir()
    written = (folder / "manifest.json").stat().st_mtime_ns
    sizes = ("d_model=8", "attention.n_heads=1", "n_layers=1", "n_ctx=16", "batch=2")
    run = ["train", str(texts), "--tokenizer", str(tmp_path), "--steps", "1"]
    assert main([*run, *(word for size in sizes for word in ("--set", size)), "--out", str(tmp_path / "run")]) == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]
    assert (folder / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("share", ["2/2", "1", "a/b", "-1/2"])
def test_a_share_that_is_none_is_refused(share, texts, tmp_path, capsys):
    BYTES.save(tmp_path)
    command = ["tokenizer", "encode-corpus", str(texts), "--tokenizer", str(tmp_path), f"--share={share}"]
    assert main(command) == 2
    assert "K/N with K from 0 to N - 1" in capsys.readouterr().err
