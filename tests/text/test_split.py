"""The part held out resembles the part trained on, whatever the folder is a mixture of."""

import hashlib
import math
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.read.decompress import Origin
from pellucid.text.read.documents import Corpus, DocumentError, read_corpus
from pellucid.text.read.scan import PACKED_ROW, ROW, Documents, Source
from pellucid.text.split import FEWEST_DOCUMENTS, split_corpus


def corpus_of(documents) -> Corpus:
    """A corpus in memory of (text's number, bytes, script) a document, one document a file; nothing can be read."""
    columns, sources = [], []
    for i, (text, size, script) in enumerate(documents):
        digest = hashlib.sha256(str(text).encode()).digest()
        row = np.frombuffer(PACKED_ROW.pack(0, 0, size, size, 0, digest), ROW)
        columns.append(Documents([Origin(Path(f"{i}"), f"{i}")], row, [script]))
        sources.append(Source(f"{i:05}.txt", size, digest.hex(), 1, 0))
    return Corpus(Documents.joined(columns), tuple(sources))


def parts_of(corpus, split):
    """Bytes, whether held out whole, and whether cut, of each document."""
    sizes, cuts = corpus.documents.rows["n_bytes"], np.array(split.cuts)
    return sizes, cuts == 0, (cuts > 0) & (cuts < sizes)


#: sizes of three kinds, so that small documents, large ones and some in between meet
SIZES = st.one_of(st.integers(20, 60), st.integers(500, 2000), st.integers(20, 200_000))
SCRIPTS = st.sampled_from(["Latin"] * 8 + ["Greek", "Cyrillic"])
SHARES = st.sampled_from([0.02, 0.1, 0.3, 0.5, 0.9])


@given(st.lists(st.tuples(SIZES, SCRIPTS), min_size=2, max_size=400), SHARES, st.integers(0, 3))
@settings(max_examples=150)
def test_every_script_and_every_size_gives_its_share(sizes, held_out, seed):
    """Of the documents that are not cut, those of a script up to any power of two give the share to half a document."""
    corpus = corpus_of([(i, *document) for i, document in enumerate(sizes)])
    split = split_corpus(corpus, held_out, seed)
    n_bytes, whole, cut = parts_of(corpus, split)
    scripts, octaves = corpus.documents.rows["script"], np.frexp(n_bytes)[1]
    for script in set(scripts.tolist()):
        uncut = (scripts == script) & ~cut
        # a document that is all trained on or all held out because nothing of it could be cut off
        uncut &= ~((n_bytes * (1 - held_out)).astype(int) == 0)
        total = n_bytes[uncut].sum()
        for octave in set(octaves[uncut].tolist()):
            here = uncut & (octaves <= octave)
            assert abs(n_bytes[here & whole].sum() - held_out * n_bytes[here].sum()) <= n_bytes[here].max() / 2
        if total:
            assert n_bytes[uncut].max() <= min(held_out, 1 - held_out) * total / FEWEST_DOCUMENTS
    assert np.array_equal(np.array(split.cuts)[cut], (n_bytes[cut] * (1 - held_out)).astype(int))


@given(st.lists(st.tuples(st.integers(0, 40), SCRIPTS), min_size=120, max_size=400), st.randoms(), st.integers(0, 3))
@settings(max_examples=60)
def test_the_order_of_files_decides_nothing_and_duplicates_stay_together(documents, rng, seed):
    known = {}
    texts = [known.setdefault(text, (text, 50 + 13 * text, script)) for text, script in documents]
    shuffled = rng.sample(texts, len(texts))
    cuts = []
    for given_in in (texts, shuffled):
        split = split_corpus(corpus_of(given_in), 0.2, seed)
        found = {(text, cut) for (text, *_), cut in zip(given_in, split.cuts, strict=True)}
        assert len(found) == len({text for text, *_ in given_in})  # one cut for each text
        cuts.append(found)
    assert cuts[0] == cuts[1]


def test_texts_of_one_size_are_held_out_of_every_folder(tmp_path):
    """Forty documents of each of five folders: each gives its tenth, to a document, whatever the seed."""
    for i in range(200):
        path = tmp_path / f"{i % 5}" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"document {i:03} of some words\n" * 8)
    corpus = read_corpus(tmp_path)
    for seed in range(5):
        split = split_corpus(corpus, 0.1, seed)
        held = Counter(d.path.parent.name for d, cut in zip(corpus.documents, split.cuts, strict=True) if not cut)
        assert split.rule == "stratified"
        assert set(held) == set("01234")
        assert all(3 <= n <= 5 for n in held.values())


def mixed_folder(folder, languages: dict[str, str]) -> Path:
    """One large document of random English words and 95 small ones, five of these in other scripts."""
    rng = random.Random(5)
    words = re.findall(r"\w+", "the of and to in that he was it his is with as had you not be her on at by which have")
    (folder / "large.txt").write_text(" ".join(rng.choices(words, k=60_000)))
    for i in range(90):
        (folder / f"small {i:02}.txt").write_text(" ".join(rng.choices(words, k=rng.randint(50, 100))))
    for name, text in languages.items():
        (folder / f"{name}.txt").write_text(text[:300], encoding="utf-8")
    return folder


def excess(split) -> float:
    """Bits a character that a unigram of the training characters needs more for the held-out ones than for its own."""
    train, held = (Counter("".join(split.texts(part))) for part in ("train", "held_out"))
    n = train.total() + len(train | held)

    def bits(counts):
        return -sum(k * math.log2((train[c] + 1) / n) for c, k in counts.items()) / counts.total()

    return bits(held) - bits(train)


def test_a_mixed_folder_holds_out_what_resembles_its_training_part(tmp_path, udhr):
    """The rule of earlier runs takes small documents alone, with them all there is in other scripts."""
    others = {name: udhr[name] for name in ("ell_polytonic", "hin", "jpn", "rus", "amh")}
    corpus = read_corpus(mixed_folder(tmp_path, others))
    names = [document.path.stem for document in corpus.documents]
    for seed in range(4):
        before, now = (split_corpus(corpus, 0.1, seed, rule) for rule in ("documents", "stratified"))
        earlier = {name for name, cut in zip(names, before.cuts, strict=True) if not cut}
        assert "large" not in earlier
        assert len(earlier) > 50
        assert len(earlier & others.keys()) >= 3
        assert excess(before) > 0.3
        held = corpus.documents.rows["n_characters"] - np.array(now.cuts)
        assert {names[k] for k in np.flatnonzero(held)} >= {*others, "large"}
        assert all(cut > 0 for name, cut in zip(names, now.cuts, strict=True) if name in others)
        assert abs(excess(now)) < 0.03
        assert "the last 10.0% of 6 others, which are too large or too few of a script" in now.note


def test_a_few_documents_give_their_tails_and_it_says_why(tmp_path):
    for i in range(13):
        (tmp_path / f"{i}.txt").write_text(f"book {i} " * 500)
    split = split_corpus(read_corpus(tmp_path), 0.1)
    assert split.rule == "tail"
    assert split.note == (
        "the last 10.0% of every document is held out: there are too few of similar size and script to hold out whole "
        "documents (about 40 are needed)"
    )
    assert split_corpus(read_corpus(tmp_path), 0.1, rule="tail").note.endswith("as asked")


def test_the_rule_of_earlier_runs_chooses_as_it_did(tmp_path):
    """Runs that were made with it are resumed with it: these are the documents that it held out from the beginning."""
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * (i % 17 + 1 + 40 * (i == 7)))
    corpus = read_corpus(tmp_path)
    golden = {
        (0.1, 1): ("ea8cb99f6aa4c934", [4, 23, 30, 32, 40, 57]),
        (0.1, 2): ("cdc6251297c53944", [17, 32, 37, 39, 44, 52, 56, 58]),
        (0.01, 0): ("2d582bec2eec3411", [19, 35]),
    }
    for (share, seed), (digest, expected) in golden.items():
        split = split_corpus(corpus, share, seed, "documents")
        held = [int(d.path.stem) for d, cut in zip(corpus.documents, split.cuts, strict=True) if not cut]
        assert sorted(held) == expected
        assert hashlib.sha256(split.cuts.tobytes()).hexdigest().startswith(digest)
        assert split.to_dict() == {"held_out": share, "seed": seed, "rule": "documents"}


def test_one_document_is_and_several_are(tmp_path):
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * 20)
    corpus = read_corpus(tmp_path)
    assert split_corpus(corpus, 0.1, 0, "documents").note.startswith("1 of 10 documents is held out, 10.0% of the")
    assert split_corpus(corpus, 0.3, 0, "documents").note.startswith("3 of 10 documents are held out, 30.0% of the")


def test_a_rule_that_does_not_exist_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text " * 50)
    with pytest.raises(DocumentError, match="choose one of stratified, documents, tail"):
        split_corpus(read_corpus(tmp_path), 0.1, rule="random")  # type: ignore[arg-type]
