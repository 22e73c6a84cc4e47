"""Scores in the units they claim, of the bytes that were given, with the borders drawn as documented."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.generate import GenerationError, ScoringError, score, score_tokens
from pellucid.generate.scoring import lay_windows
from pellucid.model import Transformer
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.external import ExternalTokenizer
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, learn_tokenizer
from pellucid.text_model import Model

BYTES = ByteTokenizer()
TEXT = "to be or not to be, naïve café — ещё 日本語 🙂 "
BPE = learn_tokenizer("bpe", [TEXT * 5], 320)


def network_for(tokenizer, n_ctx=16, **words):
    return make_network(Architecture(n_vocab=tokenizer.n_vocab, n_ctx=n_ctx, d_model=8, n_layers=2, **words))


def uniform_network(n_vocab: int) -> Transformer:
    network = Transformer(Architecture(n_vocab=n_vocab, n_ctx=8, d_model=4, n_layers=1, unembed="untied")).double()
    torch.nn.init.zeros_(network.unembed.weight)
    return network.eval()


def test_a_uniform_model_needs_log2_of_its_vocabulary_a_token():
    result = score(Model(uniform_network(257), BYTES), "naïve 🙂" * 5)
    assert result.n_tokens == result.n_bytes == 5 * len("naïve 🙂".encode())
    assert result.bits_per_token == pytest.approx(math.log2(257), rel=1e-14)
    assert result.bits_per_byte == pytest.approx(math.log2(257), rel=1e-14)
    assert result.perplexity == pytest.approx(257, rel=1e-12)
    assert np.allclose(result.surprisal_bits, math.log2(257), rtol=1e-14)
    assert result.log_prob == pytest.approx(-result.n_tokens * math.log(257), rel=1e-14)


@pytest.mark.item("S4-ml-c")
def test_a_uniform_model_of_the_256_bytes_needs_8_bits_a_byte():
    log_probs = score_tokens(uniform_network(256), list("日本語 text".encode()))
    assert -log_probs.sum() / math.log(2) / (len("日本語 text".encode()) - 1) == pytest.approx(8, rel=1e-14)


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, CharTokenizer("abcdefg ")], ids=lambda t: t.kind)
def test_bytes_are_those_of_the_text_whatever_the_tokens(tokenizer):
    network = network_for(tokenizer)
    for text in (TEXT, "\ufffd", "🙂x日" * 9):
        result = score(Model(network, tokenizer), text)
        assert b"".join(result.pieces) == text.encode()
        assert result.n_bytes == len(text.encode())
        assert result.ids == tokenizer.encode(text)
        assert result.bits_per_byte == pytest.approx(-math.fsum(result.log_probs) / math.log(2) / len(text.encode()))
        assert math.fsum(result.surprisal) == -result.log_prob


def direct(network, ids: list[int], first: int = 1, mask=None) -> list[float]:
    with torch.no_grad():
        logits = network(torch.tensor([ids[:-1]]), mask=mask)[0].log_softmax(-1)
    return [logits[t - 1, ids[t]].item() for t in range(first, len(ids))]


def test_the_first_token_is_scored_after_the_separator_or_not_at_all():
    network = network_for(BYTES)
    ids = list(b"hello")
    result = score(Model(network, BYTES), "hello")
    assert np.allclose(result.log_probs, direct(network, [256, *ids]), atol=1e-12)
    assert (result.n_context, result.n_tokens, result.n_bytes) == (1, 5, 5)
    without = score(Model(network, BYTES), "hello", start="none")
    assert np.allclose(without.log_probs, direct(network, ids), atol=1e-12)
    assert (without.n_context, without.n_tokens, without.n_bytes, without.pieces[0]) == (1, 4, 4, b"e")


@pytest.mark.item("S1-1.1-m")
def test_a_continuation_is_scored_after_its_prefix():
    network = network_for(BYTES)
    result = score(Model(network, BYTES), "cde", prefix="ab")
    assert np.allclose(result.log_probs, direct(network, [256, *b"abcde"], 3), atol=1e-12)
    assert (result.pieces, result.n_context) == ([b"c", b"d", b"e"], 3)
    as_lm_eval = score(Model(network, BYTES), "cde", prefix="ab", start="none")
    assert np.allclose(as_lm_eval.log_probs, direct(network, list(b"abcde"), 2), atol=1e-12)


def test_parts_multiply_where_tokens_respect_the_border():
    network = network_for(BPE, n_ctx=40)
    a, b = "to be or", " not to be"
    assert BPE.encode(a) + BPE.encode(b) == BPE.encode(a + b)
    whole = score(Model(network, BPE), a + b).log_prob
    assert score(Model(network, BPE), a).log_prob + score(Model(network, BPE), b, prefix=a).log_prob == pytest.approx(
        whole, rel=1e-13
    )


def test_white_space_at_the_end_of_a_prefix_belongs_to_the_continuation():
    network = network_for(BPE, n_ctx=40)
    moved = score(Model(network, BPE), "not", prefix="to be or ")
    assert b"".join(moved.pieces) == b" not"
    assert np.array_equal(moved.log_probs, score(Model(network, BPE), " not", prefix="to be or").log_probs)
    naive = BPE.encode("to be or ") + BPE.encode("not")
    assert naive != BPE.encode("to be or not")


def test_a_continuation_that_melts_into_the_prefix_is_refused_and_says_so():
    network = network_for(BPE, n_ctx=40)
    assert len(BPE.encode("to b")) >= len(BPE.encode("to be"))
    with pytest.raises(ScoringError, match="no token of its own"):
        score(Model(network, BPE), "e", prefix="to b")


@given(st.integers(1, 60), st.integers(1, 12), st.data())
def test_windows_score_every_target_once_with_context_enough(n, n_ctx, data):
    stride, first = data.draw(st.integers(1, n_ctx)), data.draw(st.integers(1, n))
    windows = list(lay_windows(n, n_ctx, stride, first))
    scored = [t for _, end, start in windows for t in range(start, end + 1)]
    assert scored == list(range(first, n + 1))
    for begin, end, start in windows:
        assert end - begin == min(n, n_ctx)
        assert 0 <= begin < start
        assert start - begin >= min(start, n_ctx - stride + 1)


def test_a_prefix_network_reads_the_prefix_whole():
    network = network_for(BYTES, attention=Attention(mask="prefix"))
    ids, n_prefix = [256, *b"abcde"], 3
    place = torch.arange(5)
    mask = (place <= place[:, None]) | (place < n_prefix)
    result = score(Model(network, BYTES), "cde", prefix="ab")
    assert np.allclose(result.log_probs, direct(network, ids, n_prefix, mask), atol=1e-12)
    assert not np.allclose(result.log_probs, direct(network, ids, n_prefix), atol=1e-4)


def test_precision_is_reported_in_float64_and_training_is_left_alone():
    network = network_for(BYTES).float().train()
    result = score(Model(network, BYTES), TEXT)
    assert result.log_probs.dtype == np.float64
    assert network.training
    half = score(Model(network.bfloat16(), BYTES), TEXT)
    assert half.log_prob == pytest.approx(result.log_prob, rel=0.05)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "an empty text has no token to score"),
        ("a", {"start": "none"}, "one token read after nothing"),
        ("ab", {"start": "bos"}, "start = 'bos'"),
        ("ab", {"stride": 0}, "stride = 0"),
        ("ab", {"stride": 17}, "expected 1 to n_ctx = 16"),
        ("ab", {"batch": 0}, "batch = 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(text, options, message):
    with pytest.raises(ScoringError, match=message):
        score(Model(network_for(BYTES), BYTES), text, **options)


def test_ids_and_networks_that_do_not_fit_are_refused():
    with pytest.raises(ScoringError, match="expected 0 to 256"):
        score_tokens(network_for(BYTES), [1, 257])
    with pytest.raises(GenerationError, match="bidirectional"):
        score(Model(network_for(BYTES, attention=Attention(mask="bidirectional")), BYTES), "abc")


def test_a_prefix_that_a_window_has_left_behind_is_a_shorter_prefix():
    network = network_for(BYTES, n_ctx=6, attention=Attention(mask="prefix"))
    ids, n_prefix = list(range(12)), 4
    found = score_tokens(network, ids, first=n_prefix, n_prefix=n_prefix, stride=3)
    # windows of six inputs: targets 4 ... 6 from inputs 0 ... 5, 7 ... 9 from 3 ... 8, the rest from 5 ... 10
    place, expected = torch.arange(6), []
    for begin, targets in ((0, range(4, 7)), (3, range(7, 10)), (5, range(10, 12))):
        mask = (place <= place[:, None]) | (place < max(0, n_prefix - begin))
        row = direct(network, ids[begin : begin + 7], 1, mask)
        expected += [row[t - begin - 1] for t in targets]
    assert np.allclose(found, expected, atol=1e-12)


# What a text's bytes are, whatever the tokenizer makes of them ------------------------------------

WORDS = learn_tokenizer("word", ["to be, or not to be: "] * 3, 12)


def wordpiece() -> ExternalTokenizer:
    """As BERT has it: lower case, no accents, one id for every word that it lacks."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*names, "to", "be", "or", "not", "naive", "##s", ",", "cafe"]
    engine = Engine(models.WordPiece({name: i for i, name in enumerate(vocabulary)}, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    engine.add_special_tokens(names)
    return ExternalTokenizer(engine.to_str())


@given(st.lists(st.sampled_from([*"tobernoq ,\n\u0301\u00e9\u65e5\U0001f642", "to", " be"]), min_size=1).map("".join))
def test_pieces_are_the_texts_own_bytes_also_where_words_are_unknown(text):
    for tokenizer in (WORDS, wordpiece(), BPE, CharTokenizer("tobe ")):
        ids = tokenizer.encode(text)
        pieces = tokenizer.pieces_of(text, ids)
        assert len(pieces) == len(ids)
        assert b"".join(pieces) == (text.encode() if ids else b"")


def test_an_unknown_word_is_scored_and_its_bytes_are_said_not_to_compare():
    """It failed with "the tokenizer changes this text before encoding it"."""
    text = "to be zephyrous, or not\n"
    result = score(Model(uniform_network(WORDS.n_vocab), WORDS), text)
    assert result.pieces == [b"to", b" be", b" zephyrous", b",", b" or", b" not", b"\n"]
    assert result.ids.count(WORDS.unknown) == 2  # the newline is unknown too
    assert result.n_bytes == len(text)
    assert result.why_not_comparable.startswith("2 of 7 tokens are unknown words: their spelling is not predicted")
    assert result.n_words == 5
    assert result.perplexity_per_word == pytest.approx(WORDS.n_vocab ** (7 / 5), rel=1e-12)
    assert not score(Model(uniform_network(WORDS.n_vocab), WORDS), "to be, or not").why_not_comparable


def test_only_what_is_scored_decides_whether_bytes_compare():
    network = uniform_network(WORDS.n_vocab)
    assert not score(Model(network, WORDS), " to be", prefix="zephyrous").why_not_comparable
    one = score(Model(network, WORDS), " zephyrous be", prefix="to")
    assert one.why_not_comparable.startswith("1 of 2 tokens is an unknown word: its spelling is not predicted")
    characters = CharTokenizer("tobe ")
    assert score(Model(uniform_network(7), characters), "to xx").why_not_comparable.startswith(
        "2 of 5 tokens are unknown char"
    )


def test_a_tokenizer_that_changes_the_text_is_scored_and_says_so():
    """Accents and capitals are lost, so that the ids do not spell the text; one word is unknown as a whole."""
    tokenizer = wordpiece()
    network = uniform_network(tokenizer.n_vocab)
    changed = score(Model(network, tokenizer), "To be,  Na\u00efves caf\u00e9")
    assert changed.pieces == [b"To ", b"be", b",  ", "Na\u00efve".encode(), b"s ", "caf\u00e9".encode()]
    assert changed.why_not_comparable.startswith("the tokenizer normalizes the text before it encodes it")
    unknown = score(Model(network, tokenizer), "to zephyr be")
    assert unknown.pieces == [b"to ", b"zephyr ", b"be"]
    assert unknown.why_not_comparable.startswith("1 of 3 tokens is an unknown")


def test_a_byte_level_tokenizer_that_changes_the_text_is_scored():
    """Composed characters (Pythia, Qwen) are other bytes, and a space before every text is none of them; it failed."""
    content = json.loads(BPE.to_json())
    composing = BPETokenizer(json.dumps(content | {"normalizer": {"type": "NFC"}}))
    network = uniform_network(BPE.n_vocab)
    text = "cafe\u0301 to be, na\u00efve"
    changed = score(Model(network, composing), text)
    assert b"".join(changed.pieces) == text.encode()
    assert len(changed.pieces) == len(changed.ids)
    assert changed.why_not_comparable.startswith("the tokenizer normalizes the text before it encodes it")
    assert not score(Model(network, composing), "caf\u00e9 to be").why_not_comparable
    content["pre_tokenizer"]["add_prefix_space"] = True
    spaced = BPETokenizer(json.dumps(content))
    assert not spaced.lossless
    for text in ("to be", " to be"):
        result = score(Model(network, spaced), text)
        assert b"".join(result.pieces) == text.encode()
        assert not result.why_not_comparable


def test_a_blank_before_every_text_is_no_byte_of_it():
    """As SentencePiece puts it there: the text itself is spelled, and its bytes compare."""
    vocabulary = ["<unk>", "</s>", "\u2581", "\u2581a", "b", "a"]
    engine = Engine(models.Unigram([(name, -float(i)) for i, name in enumerate(vocabulary)], unk_id=0))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    engine.add_special_tokens(["</s>"])
    tokenizer = ExternalTokenizer(engine.to_str())
    for text in ("ab a", " ab", "  a"):
        result = score(Model(uniform_network(tokenizer.n_vocab), tokenizer), text)
        assert b"".join(result.pieces) == text.encode()
        assert not result.why_not_comparable


def test_words_are_what_white_space_divides():
    result = score(Model(uniform_network(257), BYTES), " to  be\nor ")
    assert (result.n_words, result.n_bytes) == (3, 11)
    assert result.perplexity_per_word == pytest.approx(257 ** (11 / 3), rel=1e-12)
    assert score(Model(uniform_network(257), BYTES), " \n ").perplexity_per_word == math.inf
