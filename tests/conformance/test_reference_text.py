"""Text, bytes, byte pair encoding and vocabularies: S0 1.1 and S4 "Symbols and tokens"."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.reference import bpe as B
from pellucid.reference import tokens as T
from pellucid.reference.embedding import one_hot

corpora = st.lists(st.text("ab ", max_size=14), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def gpt2(needs_data):
    return B.read_gpt2_merges((needs_data / "gpt2" / "vocab.bpe").read_text(encoding="utf-8"))


def show(text, bpe):
    return "".join(f"[{B.token_str(t, bpe)}]" for t in B.bpe_encode(text, bpe))


@pytest.mark.item("S0-1.1-a")
def test_documents_survive_the_stream_and_text_cannot_forge_a_separator():
    documents = [[5, 3], [], [7], [1, 1, 2]]
    assert T.split_documents(T.join_documents(documents, 9), 9) == documents
    bpe = B.bpe_train(["some text"], 260)
    separator = B.special_token(T.END_OF_TEXT, bpe)
    for text in ("<|endoftext|>", "a★b", "x<|endoftext|>y"):
        assert separator not in B.bpe_encode(text, bpe)
    assert B.bpe_encode("x<|endoftext|>y", bpe, allowed_special=[T.END_OF_TEXT])[1] == separator
    # a special token that begins another is not taken for it
    two = B.bpe_train(["some text"], 260, special=["<|end|>", "<|end|><|of|>"])
    long = B.special_token("<|end|><|of|>", two)
    for names in (["<|end|>", "<|end|><|of|>"], ["<|end|><|of|>", "<|end|>"]):
        assert B.bpe_encode("a<|end|><|of|>", two, allowed_special=names)[1:] == [long]


def test_white_space_is_unicodes():
    """Python's isspace counts the four separators of ASCII too, which have no such property."""
    spaces = {chr(point) for point in range(0x110000) if chr(point).isspace()}
    assert spaces - set("\x1c\x1d\x1e\x1f") == T.WHITE_SPACE


@pytest.mark.item("S0-1.1-b")
def test_utf8_is_injective_and_prefix_free():
    lengths = {1: 0, 2: 0, 3: 0, 4: 0}
    lead, continuation = set(), set()
    for point in (*range(0xD800), *range(0xE000, 0x110000)):
        image = chr(point).encode()
        lengths[len(image)] += 1
        lead.add(image[0])
        continuation.update(image[1:])
    assert lengths == {1: 128, 2: 1920, 3: 61440, 4: 1_048_576}
    assert not lead & continuation
    assert T.utf8_encode("aé€𝄞") == [b"a", "é".encode(), "€".encode(), "𝄞".encode()]


@pytest.mark.item("S0-1.1-c")
def test_base_vocabulary_by_bytes_and_by_characters():
    assert len(T.base_vocabulary()) == 256 + 1
    alphabet = "abcé★"
    symbols = T.base_vocabulary("character", alphabet, (T.END_OF_WORD, T.END_OF_TEXT))
    assert len(symbols) == len(alphabet) + 2
    assert "★".encode() in symbols
    assert "★" not in symbols
    with pytest.raises(ValueError, match="alphabet"):
        T.base_vocabulary("character")


@pytest.mark.item("S0-1.1-d")
@settings(max_examples=300)
@given(st.text())
def test_text_over_the_base_vocabulary_decodes_to_itself(text):
    bpe = B.BPE(B.BYTES, (), pretokenised=False)
    assert B.bpe_decode(B.bpe_encode(text, bpe), bpe) == text


@pytest.mark.item("S0-1.1-e")
def test_pairs_are_counted_with_overlaps():
    counts = B.count_pairs([b"aaabdaaabac"])
    a, b = ord("a"), ord("b")
    assert counts[a, a] == 4
    assert counts[a, b] == 2
    assert B.most_frequent(counts) == (a, a)
    # E-12: counting without overlaps would choose the other pair
    counts = B.count_pairs([b"aaaaa", b"bc", b"bc", b"bc"])
    assert counts[a, a] == 4
    assert counts[b, ord("c")] == 3
    assert 9 not in {s for pair in B.count_pairs([[1, 2, 9, 1, 2]], special=frozenset({9})) for s in pair}


@pytest.mark.item("S0-1.1-f")
@pytest.mark.parametrize("tie_break", ["smallest", "first"])
def test_the_wikipedia_example(tie_break):
    merges, (corpus,) = B.bpe_merges([b"aaabdaaabac"], 256, 3, tie_break=tie_break)
    assert corpus == [258, 100, 258, 97, 99]
    assert merges[0] == (97, 97)
    assert B.merge_pair([1, 1, 1, 1, 1], (1, 1), 2) == [2, 2, 1]


@pytest.mark.item("S0-1.1-g")
@settings(max_examples=200)
@given(corpora, st.integers(0, 12))
def test_every_merge_makes_a_new_string(corpus, n_merges):
    bpe = B.bpe_train(corpus, 257 + n_merges, pretokenised=False)
    vocabulary = [B.token_bytes(t, bpe) for t in range(256 + len(bpe.merges))]
    assert len(set(vocabulary)) == len(vocabulary)
    assert len(bpe.merges) <= n_merges
    if len(bpe.merges) < n_merges:  # exhausted: every document has become one token
        assert all(len(B.bpe_encode(document, bpe)) <= 1 for document in corpus)


@pytest.mark.item("S0-1.1-g")
def test_training_stops_when_no_pair_is_left():
    merges, corpus = B.bpe_merges([[0, 1, 0, 1]], 2, 10)
    assert len(merges) == 2
    assert corpus == [[3]]
    with pytest.raises(ValueError, match="at least 257"):
        B.bpe_train(["a"], 256)


@pytest.mark.item("S0-1.1-h")
def test_the_vocabulary_follows_from_base_and_merges(shakespeare):
    bpe = B.bpe_train([shakespeare[:3000]], 300)
    rebuilt = B.BPE(tuple(bpe.base), tuple(bpe.merges), bpe.special)
    assert rebuilt == bpe
    for k, (left, right) in enumerate(bpe.merges):
        assert B.token_bytes(256 + k, bpe) == B.token_bytes(left, bpe) + B.token_bytes(right, bpe)


@pytest.mark.item("S0-1.1-i")
def test_special_characters_never_merge():
    merges, _ = B.bpe_merges([[0, 1, 9, 0, 1, 9, 0, 1]], 10, 5, special=frozenset({9}))
    assert merges == [(0, 1)]
    bpe = B.bpe_train(["ab ab ab"] * 3, 262)
    assert all(B.special_token(T.END_OF_TEXT, bpe) not in pair for pair in bpe.merges)
    with pytest.raises(ValueError, match="special"):
        B.token_bytes(B.special_token(T.END_OF_TEXT, bpe), bpe)


@pytest.mark.item("S0-1.1-j")
@settings(max_examples=200)
@given(corpora, st.text("abc ", max_size=20))
def test_tokenization_is_canonical(corpus, text):
    bpe = B.bpe_train(corpus, 265, pretokenised=False)
    _, segmented = B.bpe_merges([list(d.encode()) for d in corpus], 256, len(bpe.merges), tie_break="smallest")
    if len(set(corpus)) == len(corpus):
        assert [B.bpe_encode(document, bpe) for document in corpus] == segmented
    assert B.bpe_encode(text, bpe) == B.bpe_encode(text, bpe, order="sequential")
    assert B.bpe_decode(B.bpe_encode(text, bpe), bpe) == text


@pytest.mark.item("S0-1.1-k")
def test_merges_may_be_learned_from_a_sample(shakespeare):
    """The full text still round-trips; the sample's vocabulary costs few tokens more."""
    text = shakespeare[:20_000]
    full, sample = B.bpe_train([text], 350), B.bpe_train([text[:6000]], 350)
    assert B.bpe_decode(B.bpe_encode(text, sample), sample) == text
    held_out = shakespeare[60_000:65_000]
    assert len(B.bpe_encode(held_out, sample)) <= 1.15 * len(B.bpe_encode(held_out, full))


@pytest.mark.item("S0-1.1-l")
def test_a_token_is_shown_by_inverting_utf8():
    bpe = B.bpe_train(["walked talked edited ed ed é é é é"], 275)
    shown = {B.token_str(t, bpe) for t in range(256, 256 + len(bpe.merges))}
    assert "ed" in shown
    assert B.token_str(0xC3, bpe) == "�"
    for t in range(256 + len(bpe.merges)):
        assert b"".join(bpe.base[k] for k in B.unmerge(t, bpe)) == B.token_bytes(t, bpe)


@pytest.mark.item("S0-1.1-m", "S0-1.1-n", "S0-1.2-b", "S3-1-a")
def test_one_hot_is_a_bijection_onto_the_basis():
    assert np.array_equal(one_hot(np.arange(7), 7), np.eye(7))
    bpe = B.bpe_train(["abab"], 259)
    tokens = B.bpe_encode("abba", bpe)
    t = one_hot(np.array(tokens), bpe.n_vocab)
    assert t.shape == (len(tokens), bpe.n_vocab)
    assert np.array_equal(t.sum(1), np.ones(len(tokens)))
    assert t.argmax(1).tolist() == tokens


@pytest.mark.item("S1-1.1-b")
def test_tokens_outside_the_vocabulary_are_refused():
    for wrong in ([7], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"not in|integers"):
            one_hot(np.array(wrong), 7)


@pytest.mark.item("S1-1.1-c")
def test_tokens_per_word(gpt2, needs_data):
    text = (needs_data / "shakespeare.txt").read_text(encoding="utf-8")
    assert len(B.bpe_encode(text[:200_000], gpt2)) / len(text[:200_000].split()) == pytest.approx(1.668, abs=0.05)


@pytest.mark.item("S1-1.1-d")
def test_chunks_lose_no_token_and_targets_are_the_next_token():
    x, y = T.chunk(range(10, 23), 4)
    assert x.tolist() == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20, 21]]
    assert y.tolist() == [[11, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21, 22]]
    with pytest.raises(ValueError, match="at least 5"):
        T.chunk(range(4), 4)


@pytest.mark.item("S4-tok-a")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"low": 5, "lower": 2, "newest": 6, "widest": 3},
            ["es", "est", "est</w>", "lo", "low", "ne", "new", "newest</w>", "low</w>", "wi"],
        ),
        ({"low": 1, "lowest": 1, "newer": 1, "wider": 1}, ["lo", "low", "er", "er</w>"]),
    ],
)
def test_the_tables_of_sennrich(words, expected):
    """Algorithm 1 of Sennrich et al. 2016, with an end-of-word symbol that merges (E-10) and first-seen ties (E-11)."""
    base = [*sorted({c for word in words for c in word}), T.END_OF_WORD]
    sequences = [[*map(base.index, word), len(base) - 1] for word in words]
    merges, corpus = B.bpe_merges(sequences, len(base), len(expected), weights=list(words.values()), tie_break="first")
    symbols = list(base)
    for left, right in merges:
        symbols.append(symbols[left] + symbols[right])
    assert symbols[len(base) :] == expected
    if "newest" in words:
        shown = [" ".join(symbols[s] for s in sequence) for sequence in corpus]
        assert shown == ["low</w>", "low e r </w>", "newest</w>", "wi d est</w>"]


@pytest.mark.item("S0-1.1-j")
def test_ties_need_a_rule():
    """E-11: three pairs are equally frequent in the toy corpus, and the rules choose differently."""
    counts = B.count_pairs([b"newest_", b"widest_", b"low_", b"lower_"], weights=[6, 3, 5, 2])
    best = max(counts.values())
    assert sorted(p for p, c in counts.items() if c == best) == [(101, 115), (115, 116), (116, 95)]
    assert B.most_frequent(counts, "smallest") == (101, 115)
    with pytest.raises(ValueError, match="smallest or first"):
        B.most_frequent(counts, "largest")


@pytest.mark.item("S4-sym-a", "S4-sym-b")
def test_characters_words_and_tokens_behind_the_same_ids(shakespeare):
    text = shakespeare[:8000]
    chars, words = T.char_vocabulary(text), T.word_vocabulary(text, 10_000)
    bpe = B.bpe_train([text], 350)
    as_chars = T.encode_symbols(text, chars)
    as_words = T.encode_symbols(T.split_words(text), words)
    as_tokens = B.bpe_encode(text, bpe)
    assert "".join(chars[k] for k in as_chars) == text
    assert [words[k] for k in as_words] == T.split_words(text)
    assert len(as_chars) > len(as_tokens) > len(as_words)
    assert len(chars) < bpe.n_vocab < len(words)
    assert T.encode_symbols(["zyzzyva"], words) == [0]
    with pytest.raises(ValueError, match="not among"):
        T.encode_symbols(["€"], chars)


@pytest.mark.item("S4-sym-c")
def test_tokens_share_a_stem_and_words_do_not():
    text = "cat cats dog dogs cat cats dog dogs cat dog"
    bpe = B.bpe_train([text], 263)
    cat, cats = B.bpe_encode(" cat", bpe), B.bpe_encode(" cats", bpe)
    assert cats[0] == cat[0]
    words = T.word_vocabulary(text, 10)
    # the most frequent words, equals by the alphabet
    assert T.word_vocabulary("b a c b a d b", 4) == [T.UNKNOWN, "b", "a", "c"]
    assert len({words.index("cat"), words.index("cats")}) == 2


@pytest.mark.item("S4-tok-b")
def test_the_size_of_gpt2s_vocabulary(gpt2):
    assert gpt2.n_vocab == 256 + 50_000 + 1


def test_pieces_join_to_the_text_and_keep_words_whole():
    random.seed(0)
    alphabet = "ab'sdl 12\n\t.,é中½\u3000"
    for _ in range(300):
        text = "".join(random.choice(alphabet) for _ in range(12))
        assert "".join(T.pretokenise(text)) == text
    assert T.pretokenise("I'll go,  now!! 12a") == ["I", "'ll", " go", ",", " ", " now", "!!", " 12", "a"]
