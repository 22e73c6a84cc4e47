"""tiktoken gives the ids of the engine wherever it is used, and is not used elsewhere."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.tokenizers import bpe
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.bpe import BORDERS, QWEN_PATTERN, BPETokenizer, ids_are_ranks
from some_cases import one_in

PATTERNS = ("gpt2", "gpt4", "word-end", "qwen")
TEXT = "ab ab. 12 12\n\nab 123 don't DON'T  ab.\r\n we'll 字字 é\u3000é" * 30
#: what the patterns treat apart, and characters of which two versions of Unicode may think differently
PIECES = [
    *("ab", " ", "  ", "\n", "\r\n", "\t", ".", "!?", "12", "1234", "don't", "'S", "'\u017f", "we'LL", "é", "字"),
    "\x1c",
    *("\x85", "\xa0", "\u3000", "\u200b", "\u0301", "²", "Ⅷ", "\U0001f600", "\U00010400", "𝟙", "\ufb05", "\u0378", "_"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, BPETokenizer]:
    learned = {pattern: BPETokenizer.train([TEXT], 290, pattern) for pattern in PATTERNS[:-1]}
    content = json.loads(learned["gpt4"].to_json())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN_PATTERN
    return learned | {"qwen": BPETokenizer(json.dumps(content))}


@pytest.fixture(autouse=True, scope="module")
def always():
    """No text is too short for tiktoken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "MIN_TIKTOKEN_CHARACTERS", 0)
        yield


def agree(tokenizer: BPETokenizer, texts: list[str]) -> None:
    assert tokenizer._tiktoken is not None
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == tokenizer._ids(texts)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40), max_size=3))
@settings(max_examples=200)
def test_ids_are_those_of_the_engine(pattern, tokenizers, texts):
    agree(tokenizers[pattern], ["".join(pieces) for pieces in texts])


@given(text=st.text("abc ", max_size=200), learned=st.text("abc ", min_size=40, max_size=200), n=st.integers(257, 300))
@settings(max_examples=200)
def test_pairs_that_overlap_are_merged_in_the_same_order(text, learned, n):
    agree(BPETokenizer.train([learned], n, "gpt2"), [text, learned])


@pytest.mark.parametrize("pattern", one_in(4, PATTERNS))
def test_every_character_is_of_the_class_that_the_engine_has_it_in(pattern, tokenizers):
    """Each beside letters, numbers, white space and marks."""
    rng = random.Random(0)
    characters = [chr(point) for point in (*range(0xD800), *range(0xE000, 0x110000))]
    rng.shuffle(characters)
    agree(tokenizers[pattern], ["".join(c + rng.choice(("a", "1", " ", "\n", ".", "'s", "a b")) for c in characters)])


def test_gpt2s_vocabulary_has_its_ids_by_rank(needs_data):
    folder = needs_data / "gpt2"
    files = [(folder / name).read_text(encoding="utf-8") for name in ("encoder.json", "vocab.bpe")]
    tokenizer = BPETokenizer.from_merges(*files)
    agree(tokenizer, [TEXT])
    # as transformers writes it, with the separator among the vocabulary
    content = json.loads(tokenizer.to_json())
    content["model"]["vocab"]["<|endoftext|>"] = 50_256
    agree(BPETokenizer(json.dumps(content)), [TEXT + "<|endoftext|>"])


@pytest.mark.parametrize("n", [99_999, 100_000])
def test_white_space_of_any_length_has_the_ids_of_the_engine(n, tokenizers):
    agree(tokenizers["gpt2"], ["a" + " " * n + "a"])


def test_text_that_is_changed_or_divided_otherwise_is_left_to_the_engine(tokenizers):
    content = json.loads(tokenizers["gpt2"].to_json())
    assert BPETokenizer(json.dumps(content | {"normalizer": {"type": "NFC"}}))._tiktoken is None
    assert BPETokenizer.train([TEXT], 280, "none")._tiktoken is None
    assert {*BORDERS} == {tokenizer._pattern for tokenizer in tokenizers.values()}


def changed_models(content):
    """Models of the same vocabulary with other merges, and with entries that no pair makes."""
    model = content["model"]
    vocab, merges = model["vocab"], model["merges"]
    yield "a token that no pair makes", model | {"merges": merges[:-1]}
    yield "another order", model | {"merges": [merges[-1], *merges[:-1]]}
    last = max(vocab.values())
    yield "one name more", model | {"vocab": vocab | {"Ġhereafter": last + 2}, "ignore_merges": True}
    # "abab" of "aba" and "b", which its bytes never become, as "ab" comes first
    more = {"aba": last + 2, "abab": last + 3}
    yield "a pair that never meets", model | {"vocab": vocab | more, "merges": [*merges, ["ab", "a"], ["aba", "b"]]}


def test_where_ids_are_not_ranks_the_engine_encodes(tokenizers):
    content = json.loads(tokenizers["gpt4"].to_json())
    assert ids_are_ranks(content)
    for why, model in changed_models(content):
        assert not ids_are_ranks(content | {"model": model}), why
    several = content["model"]["merges"]
    assert ids_are_ranks(content | {"model": content["model"] | {"merges": [*several, several[-1]]}})


def test_words_that_the_vocabulary_holds_without_merges_are_found(tokenizers):
    """Llama 3's `ignore_merges`: a pre-token that is an entry of the vocabulary is its id."""
    content = json.loads(tokenizers["gpt4"].to_json())
    content["model"]["ignore_merges"] = True
    agree(BPETokenizer(json.dumps(content)), [TEXT])
    names = {i: name for name, i in content["model"]["vocab"].items()}
    last = max(names)
    content["model"]["vocab"] |= {"Ġhereafter": last, names[last]: last + 2}
    changed = BPETokenizer(json.dumps(content))
    text = "who goes hereafter, hereafter and\n hereafter"
    assert changed._tiktoken is None
    assert changed.encode(text) == changed._ids([text])[0]
    assert changed.encode("a hereafter")[1:] == [last]


def test_a_failure_of_tiktoken_is_an_error_of_the_tokenizer(tokenizers, monkeypatch):
    class Failing:
        def encode_ordinary(self, text: str):
            raise BaseException("it panicked")  # a panic is no Exception

    tokenizer = BPETokenizer(tokenizers["gpt2"].to_json())
    monkeypatch.setitem(tokenizer.__dict__, "_tiktoken", Failing())
    with pytest.raises(TokenizerError, match="it panicked"):
        tokenizer.encode_batch(["some text"])
