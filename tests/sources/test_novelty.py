"""Novelty: the share of new n-grams is that of a naive count, and a copying model is told from a writing one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid
from pellucid.cli import main
from pellucid.generate.errors import GenerationError
from pellucid.novelty import novelty_of_run
from pellucid.report.page import write_page
from pellucid.runs.checkpoint import steps_of
from pellucid.sources.novelty import FILE, LONGEST_NGRAM, Novelty, NoveltyCurve, held_out_continuations, read_novelty
from pellucid.sources.suffix_array import SourcesError
from pellucid.sources.text_index import DUPLICATE, TextIndex
from pellucid.text.tokens.store import TokenSequence

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 64, "ngrams": (), "batch": 4, "sample_every": 0}
TINY |= {"compile": "no", "precision": "float32", "device": "cpu", "vocabulary": 400, "checkpoint_every": 2}


def index_of(ids):
    return TextIndex.of_ids(TokenSequence([np.array([*ids, 0], "<u2")], np.array([0]), 9), [0])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=60), st.lists(st.lists(st.integers(1, 4), max_size=40)))
def test_the_shares_are_those_of_a_count_of_every_ngram(training, texts):
    curve = NoveltyCurve.of(index_of(training), texts)
    for n in range(1, LONGEST_NGRAM + 1):
        known = {tuple(training[k : k + n]) for k in range(len(training) - n + 1)}
        grams = [tuple(text[k : k + n]) for text in texts for k in range(len(text) - n + 1)]
        share = sum(gram not in known for gram in grams) / max(len(grams), 1)
        assert curve.shares[n - 1] == pytest.approx(share)


def test_one_sentence_tells_copying_from_writing():
    new = NoveltyCurve((0.0, *(1.0,) * (LONGEST_NGRAM - 1)), 8)
    copied = NoveltyCurve((0.0, *(0.5,) * (LONGEST_NGRAM - 1)), 64)
    assert "samples of step 2 copy no more than new text" in Novelty(new, {1: copied, 2: new}).verdict
    assert "samples of step 2 copy more than new text" in Novelty(new, {1: new, 2: copied}).verdict
    assert "the longest passage has 64 tokens, of held-out text 8" in repr(Novelty(new, {2: copied}))


def test_held_out_stretches_are_of_one_document_and_no_copies():
    random = np.random.default_rng(0)
    training = random.integers(1, 8, 500)
    new, copied = random.integers(1, 8, 300), training[:200]
    ids = np.concatenate([new, [0], copied, [0]]).astype("<u2")
    part = TokenSequence([ids], np.array([0, 301]), 9)
    index = index_of(training)
    texts = held_out_continuations(index, part, [0], 5, 20, 40)
    assert 3 <= len(texts) <= 5
    for before, behind in texts:
        assert (len(before), len(behind)) == (20, 40)
        assert max(index.match_lengths(before + behind)) < DUPLICATE
        assert 0 not in {*before, *behind}
    with pytest.raises(SourcesError, match="no stretch of 400 tokens"):
        held_out_continuations(index, part, [0], 5, 200, 200)


def test_the_curves_of_a_run_are_stored_and_drawn(tmp_path, shakespeare, monkeypatch, capsys):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(shakespeare[:30_000], encoding="utf-8")
    run = tmp_path / "run"
    pellucid.train(tmp_path / "text.txt", out=run, steps=4, fields=TINY)
    assert read_novelty(run) is None
    assert "Does it copy?" not in write_page(run).read_text()
    with pytest.raises(GenerationError, match="give as many"):
        novelty_of_run(run, max_tokens=8)
    assert main(["sources", "novelty", str(run), "--samples", "3", "--max-tokens", "32"]) == 0
    assert "the share that is new; samples of step 4 copy" in capsys.readouterr().out
    novelty = read_novelty(run)
    assert novelty == novelty_of_run(run, samples=3, max_tokens=32)
    assert [*novelty.checkpoints] == steps_of(run)
    assert len(novelty.checkpoints) == 2
    assert novelty.held_out.shares[0] < 0.1 < novelty.held_out.shares[7]
    page = write_page(run).read_text()
    assert "Does it copy?" in page
    assert novelty.verdict[1:] in page
    (run / FILE).write_text(json.dumps({"held_out": 1}))
    assert read_novelty(run) is None
