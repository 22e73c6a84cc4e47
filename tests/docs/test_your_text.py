"""The page on one's own text names every format, and what it shows is what is found."""

import re
from pathlib import Path

from pellucid.generate.scoring import why_not_comparable
from pellucid.text.read.decompress import PACKED
from pellucid.text.read.documents import read_corpus
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.formats import ENDINGS
from pellucid.text.split import split_corpus
from pellucid.text.tokenizers.words import WordTokenizer
from pellucid.text.tokens.prepare import SHARD_TOKENS
from pellucid.training.recipe import recipe_fields

PAGE = (Path(__file__).parents[2] / "docs" / "your-text.md").read_text(encoding="utf-8")


def test_every_ending_is_in_the_table():
    table = PAGE.partition("| ending |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\.\w+)`", table)) == {*ENDINGS, ".txt"}
    assert all(f"`{ending}`" in PAGE for ending in PACKED)
    assert f"{SHARD_TOKENS / 1e6:.1f}" in PAGE


def test_every_field_that_is_set_exists():
    named = set(re.findall(r"--set ([\w.]+)=", PAGE))
    assert {"text.split", "text.sample"} <= named
    assert all(name in recipe_fields() or f"model.{name}" in recipe_fields() for name in named)


def test_what_is_said_of_unknown_words_is_on_the_page():
    tokenizer = WordTokenizer.train(["to be or not to be"], n_vocab=8)
    text = "to be zephyrous or zany"
    said = why_not_comparable(tokenizer, text, tokenizer.encode(text))
    assert said.partition(" tokens ")[2] == "are unknown words: their spelling is not predicted, but their bytes count"
    assert said.partition(" tokens ")[2] in PAGE


def test_what_is_shown_of_the_books_is_what_is_found(needs_data):
    corpus = read_corpus(needs_data / "gutenberg")
    assert f"text: {len(corpus.documents)} documents, {corpus.n_bytes:,} bytes;" in PAGE
    assert split_corpus(corpus, 0.1, 1337).note in PAGE
    assert corpus.notes[0] in PAGE
    named = read_corpus(needs_data / "gutenberg", reading=ReadOptions(encoding="latin-1"))
    assert f"text: {len(named.documents)} documents, {named.n_bytes:,} bytes;" in PAGE
