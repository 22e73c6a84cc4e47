"""A table of pre-tokens gives the ids that the engine gives the whole text."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.tokenizers import pretokens
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.pretokens import PreTokenTable
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from some_cases import one_in

PATTERNS = ("gpt2", "gpt4", "word-end")
TEXT = "ab ab. 12 12\n\nab 123 don't DON'T  ab.\r\n we'll 字字 é\u3000é" * 30
#: what the patterns treat apart, and what the table leaves to the engine
PIECES = [
    *(
        "ab",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        ".",
        "!?",
        "12",
        "1234",
        "don't",
        "'S",
        "'\u017f",
        "we'LL",
        "é",
        "字",
        "\x1c",
    ),
    *("\x85", "\xa0", "\u3000", "\u200b", "\u0301", "²", "Ⅷ", "\U0001f600", "\U00010400", "𝟙", "\ufb05", "\u0378", "_"),
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, BPETokenizer]:
    learned = {pattern: learn_tokenizer("bpe", [TEXT], 290, pattern=pattern) for pattern in PATTERNS}
    return {pattern: tokenizer for pattern, tokenizer in learned.items() if isinstance(tokenizer, BPETokenizer)}


@pytest.fixture(scope="module", autouse=True)
def always():
    """Nothing is too short for a table, or too new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretokens, "WORTH_DIVIDING", 0)
        patch.setattr(pretokens, "MOST_NEW", 2)
        patch.setattr(pretokens, "RARE", 4)
        yield


def table_of(tokenizer: BPETokenizer) -> PreTokenTable:
    assert tokenizer._table_of_pretokens
    return tokenizer._table_of_pretokens


def divided(tokenizer: BPETokenizer, text: str) -> list[str]:
    table = table_of(tokenizer)
    return table.divide(text, table.divider_of([text]))


def new_table(tokenizer: BPETokenizer) -> PreTokenTable:
    table = table_of(tokenizer)
    return PreTokenTable(table.pattern, table.border, table.table.merge, table.table.encode)


def agree(tokenizer: BPETokenizer, texts: list[str]) -> None:
    ids = table_of(tokenizer).encode_batch(texts)
    assert ids is not None
    assert [one.tolist() for one in ids] == tokenizer._ids(texts)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40), max_size=3))
@settings(max_examples=100)
def test_ids_are_those_of_the_whole_text(pattern, tokenizers, texts):
    agree(tokenizers[pattern], ["".join(pieces) for pieces in texts])


@pytest.mark.parametrize("pattern", one_in(3, PATTERNS))
def test_every_character_is_of_the_class_that_the_engine_has_it_in(pattern, tokenizers):
    """Each beside letters, numbers, white space and marks."""
    rng = random.Random(0)
    characters = [chr(point) for point in (*range(0xD800), *range(0xE000, 0x10000))]
    usual = [character for character in characters if not pretokens.UNUSUAL.match(character)]
    rng.shuffle(usual)
    text = "".join(character + rng.choice(("a", "1", " ", "\n", ".", "'s", "a b")) for character in usual)
    by_engine = tokenizers[pattern]._engine.pre_tokenizer.pre_tokenize_str(text)
    assert divided(tokenizers[pattern], text) == [text[start:end] for _, (start, end) in by_engine]


def test_unusual_characters_leave_the_rest_of_the_text_to_the_table(tokenizers):
    text = "some words here " * 20 + "and \U0001f600hereafter " + "some words there " * 20
    assert [piece for piece in divided(tokenizers["gpt2"], text) if len(piece) > 6] == [" \U0001f600hereafter"]


def test_a_full_table_is_begun_anew(tokenizers, monkeypatch):
    monkeypatch.setattr(pretokens, "TABLE_SIZE", 300)
    table = new_table(tokenizers["gpt2"])
    sizes = []
    for text in ("one two three", "four five six", "seven one two"):
        ids = table.encode_batch([text])
        assert ids is not None
        assert ids[0].tolist() == tokenizers["gpt2"].encode(text)
        sizes.append(len(table.table))
    assert sizes == [3, 1, 4]


def test_texts_whose_pretokens_are_new_are_left_to_the_engine(tokenizers, monkeypatch):
    monkeypatch.setattr(pretokens, "MOST_NEW", 0.5)
    monkeypatch.setattr(pretokens, "WORTH_DIVIDING", 10)
    table = new_table(tokenizers["gpt2"])
    assert table.encode_batch(["short"]) is None
    assert table.encode_batch(["all of these words are new"]) is not None
    assert [table.encode_batch(["ab " * 100]) is None for _ in range(pretokens.CALLS_LEFT + 1)] == [
        *[True] * pretokens.CALLS_LEFT,
        False,
    ]


def test_text_that_is_changed_before_it_is_divided_has_no_table(tokenizers):
    content = tokenizers["gpt2"].to_json()
    changed = content.replace('"normalizer": null', '"normalizer": {"type": "NFC"}')
    assert changed != content
    assert BPETokenizer(changed)._table_of_pretokens is None
    assert BPETokenizer.train([TEXT], 280, "none")._table_of_pretokens is None


def test_words_that_the_vocabulary_holds_without_merges_are_found(tokenizers):
    """Llama 3's `ignore_merges`: a pre-token that is an entry of the vocabulary is its id."""
    content = json.loads(tokenizers["gpt4"].to_json())
    content["model"]["ignore_merges"] = True
    names = {i: name for name, i in content["model"]["vocab"].items()}
    last = max(names)
    content["model"]["vocab"] |= {"Ġhereafter": last, names[last]: last + 2}
    changed = BPETokenizer(json.dumps(content))
    agree(changed, ["who goes hereafter, hereafter and\n hereafter"])
    assert changed.encode("a hereafter")[1:] == [last]


def test_a_failure_of_the_engine_is_an_error_of_the_tokenizer(tokenizers, monkeypatch):
    class Failing:
        def tokenize(self, word: str):
            raise BaseException("it panicked")  # a panic is no Exception

    tokenizer = BPETokenizer(tokenizers["gpt2"].to_json())
    monkeypatch.setattr(tokenizer, "_model", Failing())
    with pytest.raises(TokenizerError, match="it panicked"):
        tokenizer.encode_batch(["some text"])
