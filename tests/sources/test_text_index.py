"""The index of a text: what it answers is what a search of every place finds, whatever the shards."""

import sys
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.sources import text_index
from pellucid.sources.suffix_array import SourcesError, common_prefix, sorted_positions
from pellucid.sources.text_index import TextIndex, open_index
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.tokens.store import TokenSequence

#: documents of few different ids, so that much is repeated; 0 ends each, and 5 is unknown
DOCUMENTS = st.lists(st.lists(st.integers(1, 5), max_size=30), min_size=1, max_size=6)
QUERY = st.lists(st.integers(-1, 7), max_size=30)
EXCLUDED = (0, 5)


def part_of(documents, n_vocab, n_shards=1):
    ids = [i for document in documents for i in (*document, 0)]
    starts = np.cumsum([0, *(len(document) + 1 for document in documents)])[:-1]
    arrays = np.array_split(np.array(ids, "<u2" if n_vocab <= 1 << 16 else "<u4"), n_shards)
    return TokenSequence(arrays, starts, n_vocab)


def places_of(part, ids):
    """Every position at which these ids occur, found by looking at every one."""
    text = part.read(0, len(part)).tolist()
    if not ids or set(ids) & set(EXCLUDED):
        return []
    return [k for k in range(len(text)) if text[k : k + len(ids)] == list(ids)]


@given(DOCUMENTS, QUERY, st.sampled_from((6, 70_000)), st.integers(1, 4), st.integers(31, 200))
def test_counts_spans_and_continuations_are_those_of_a_search_of_every_place(documents, query, n_vocab, files, tokens):
    part = part_of(documents, n_vocab, files)
    index = TextIndex.of_ids(part, EXCLUDED, tokens * (2 if n_vocab == 6 else 4))
    matches = [
        max((n for n in range(1, len(query) - k + 1) if places_of(part, query[k : k + n])), default=0)
        for k in range(len(query))
    ]
    assert index.match_lengths(query) == matches
    spans = index.spans(query)
    for span in spans:
        text = query[span.start : span.stop]
        assert span.count == index.count(text) == len(places_of(part, text)) > 0
        assert index.positions(text, 3) == places_of(part, text)[:3]
        assert span.start == 0 or not places_of(part, query[span.start - 1 : span.stop])
        assert span.stop == len(query) or not places_of(part, query[span.start : span.stop + 1])
    maximal = {(k, k + n) for k, n in enumerate(matches) if n and not (k and matches[k - 1] > n)}
    assert {(span.start, span.stop) for span in spans} == maximal
    assert index.spans(query, 3) == [span for span in spans if span.stop - span.start >= 3]
    length, count, following = index.continuation(query)
    assert length == max((n for n in range(1, len(query) + 1) if places_of(part, query[-n:])), default=0)
    ids = part.read(0, len(part)).tolist()
    if length:
        places = places_of(part, query[-length:])
        assert (count, following) == (len(places), Counter(ids[k + length] for k in places))
    else:
        assert (count, following) == (len(ids), Counter(ids))


@given(st.lists(st.integers(0, 3), max_size=60), st.sampled_from(("<u2", "<u4")))
def test_positions_are_sorted_by_the_bytes_of_their_suffixes(ids, dtype):
    row = np.array(ids, dtype)
    order = sorted_positions(row).tolist()
    assert sorted(order) == list(range(len(ids)))
    assert order == sorted(order, key=lambda k: row[k:].tobytes())


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_common_beginnings(one, other):
    n = common_prefix(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]


def test_a_document_longer_than_a_shard_is_refused():
    with pytest.raises(SourcesError, match=r"a document of 9 tokens is longer than 4, .*--split-at"):
        TextIndex.of_ids(part_of([[1] * 8], 6), EXCLUDED, 8)


@pytest.fixture
def tokens(tmp_path, shakespeare):
    (tmp_path / "text.txt").write_text(shakespeare[:20_000], encoding="utf-8")
    tokenizer = learn_tokenizer("bpe", [shakespeare[:20_000]], 400)
    split = split_corpus(read_corpus(tmp_path / "text.txt"), 0.1)
    return prepare_tokens(split, tokenizer, tmp_path / "cache", shard_tokens=3000), tokenizer


def test_an_index_on_disk_is_built_once_and_again_where_it_is_damaged(tokens, tmp_path, monkeypatch):
    tokens, tokenizer = tokens
    part = tokens.part("train")
    index = open_index(tokens, "train", tokenizer, tmp_path)
    (folder,) = tmp_path.glob("sources-*")
    assert {"manifest.json", "counts.npy", "order-00000.npy"} <= {path.name for path in folder.iterdir()}
    assert (folder / "order-00000.npy").stat().st_size < 4 * len(part) + 200
    query = part.read(2990, 3010).tolist()  # across two files of tokens
    assert index.spans(query)[0][:2] == (0, 20)
    assert index.counts.sum() == len(part)
    assert 0 < index.by_chance < 20
    before = (folder / "manifest.json").stat().st_mtime_ns
    monkeypatch.setattr(text_index, "sorted_positions", None)
    again = open_index(tokens, "train", tokenizer, tmp_path)
    assert again.spans(query) == index.spans(query)
    monkeypatch.undo()
    (folder / "order-00000.npy").unlink()  # what is mapped stays
    np.save(folder / "order-00000.npy", np.zeros(3, np.int32))
    assert open_index(tokens, "train", tokenizer, tmp_path).spans(query) == index.spans(query)
    assert (folder / "manifest.json").stat().st_mtime_ns > before
    order = np.load(folder / "order-00000.npy")[::-1].copy()
    (folder / "order-00000.npy").unlink()
    np.save(folder / "order-00000.npy", order)  # of the same size
    assert open_index(tokens, "train", tokenizer, tmp_path).spans(query) == index.spans(query)


def test_both_parts_have_indexes_of_their_own(tokens, tmp_path):
    tokens, tokenizer = tokens
    held_out = tokens.part("held_out").read(0, 60).tolist()
    inside, outside = (open_index(tokens, name, tokenizer, tmp_path) for name in ("held_out", "train"))
    assert inside.count(held_out) == 1
    assert outside.count(held_out) == 0
    assert len(list(tmp_path.glob("sources-*"))) == 2


def test_time_and_memory_are_said_before_a_long_build(tokens, tmp_path, monkeypatch):
    tokens, tokenizer = tokens
    monkeypatch.setattr(text_index, "SECONDS_PER_TOKEN", 0.01)
    stages = []
    open_index(tokens, "train", tokenizer, tmp_path / "a", lambda *stage: stages.append(stage))
    n = len(tokens.part("train"))
    assert f"sorting {n:,} tokens (about {n / 100:.0f} s and " in stages[0][0]
    with pytest.warns(text_index.LongBuild, match="GB of memory; .* GB on disk"):
        open_index(tokens, "train", tokenizer, tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.undo()
        open_index(tokens, "train", tokenizer, tmp_path / "c")


def test_documents_without_a_special_token_between_them_are_refused(tokens, tmp_path):
    tokens, tokenizer = tokens
    train = tokens.part("train")
    joined = TokenSequence([train.read(0, 100).astype("<u2")], np.array([0, 50]), train.n_vocab)
    with pytest.raises(SourcesError, match="no special token between them"):
        open_index(tokens.with_parts(train=joined), "train", tokenizer, tmp_path)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(SourcesError, match=r"pip install 'pellucid\[sources\]'"):
        sorted_positions(np.array([1, 2], "<u2"))
