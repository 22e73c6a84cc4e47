"""Surveys of tokenizers: their sums are the texts', their trees spell the words."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.cli import main
from pellucid.text.survey import Merged, merge_trees, script_of, survey
from pellucid.text.tokenizer import train_tokenizer


def greek_of(udhr: dict[str, str]) -> str:
    return next(text for text in udhr.values() if script_of(text) == "Greek")


@pytest.mark.parametrize("kind", ["bpe", "word", "char", "byte"])
def test_sums_are_those_of_the_texts(kind, udhr, shakespeare):
    texts = [("one", udhr["eng"]), ("two", udhr["fra"]), ("two", shakespeare), ("three", greek_of(udhr))]
    tokenizer = train_tokenizer(kind, [shakespeare, udhr["eng"]], 500 if kind in ("bpe", "word") else None)
    found = survey(tokenizer, texts)
    ids = [tokenizer.encode(text) for _, text in texts]
    assert found.total.n_tokens == sum(map(len, ids)) == found.counts.sum()
    assert found.total.n_bytes == sum(len(text.encode()) for _, text in texts)
    assert (found.by_file["two"].documents, found.total.documents) == (2, 4)
    assert found.by_file["two"].n_tokens == len(ids[1]) + len(ids[2])
    assert set(found.by_script) == {"Latin", "Greek"}
    assert found.by_script["Greek"].n_tokens == len(ids[3])
    assert found.total.bytes_per_token == pytest.approx(found.total.n_bytes / found.total.n_tokens)
    seen = {i for row in ids for i in row}
    reachable = set(range(tokenizer.n_vocab)) - set(tokenizer.special.values())
    assert found.unused == len(reachable - seen)
    rarest = found.rarest(5)
    assert set(rarest) <= seen
    assert max(found.counts[rarest]) <= min(found.counts[i] for i in seen - set(rarest))
    longest = [len(tokenizer.token_bytes(i)) for i in found.longest(5)]
    assert longest == sorted(map(len, tokenizer._table()), reverse=True)[:5]
    if tokenizer.unknown is not None:
        assert found.total.n_unknown == found.counts[tokenizer.unknown] > 0


def test_nothing_measured_divides_by_nothing():
    found = survey(train_tokenizer("byte", []), [])
    assert math.isnan(found.total.bytes_per_token)
    assert math.isnan(found.total.tokens_per_word)
    assert found.rarest() == []


def spelled(node: Merged) -> bytes:
    return b"".join(map(spelled, node.parts)) if node.parts else node.token


@given(word=st.text(max_size=12))
@settings(max_examples=100, deadline=None)
def test_trees_spell_the_word_from_bytes_by_earlier_merges(word):
    trees = merge_trees(BPE, word)
    assert b"".join(node.token for node in trees) == word.encode()

    def check(node: Merged) -> None:
        assert spelled(node) == node.token
        assert (node.rank is None) == (not node.parts) == (len(node.token) == 1)
        for part in node.parts:
            assert part.rank is None or part.rank < node.rank
            check(part)

    for node in trees:
        check(node)


BPE = train_tokenizer("bpe", ["the theme there then é éé café thé " * 40], 300)


def test_the_merges_of_a_word():
    first, *others = merge_trees(BPE, " the")
    assert (first.token, others) == (b" the", [])
    assert b"".join(part.token for part in first.parts) == b" the"
    assert first.rank is not None
    assert merge_trees(train_tokenizer("char", ["abc"]), "ab") == [Merged(b"a"), Merged(b"b")]


def test_scripts_are_told_by_their_letters():
    assert [script_of(text) for text in ("Wort", "слово, a", "12, 3", "語です語語")] == [
        "Latin",
        "Cyrillic",
        "no letters",
        "Cjk",
    ]


def test_the_command_shows_all_of_it(tmp_path, udhr, shakespeare, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "english.txt").write_text(udhr["eng"], encoding="utf-8")
    (tmp_path / "texts" / "greek.txt").write_text(greek_of(udhr), encoding="utf-8")
    made = tmp_path / "made"
    made.mkdir()
    train_tokenizer("bpe", [shakespeare], 400).save(made)
    command = [
        "tokenizer",
        "show",
        str(made),
        str(tmp_path / "texts"),
        "--word",
        "[thing]",
        "--word",
        "é",
        "--rows",
        "3",
    ]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for part in ("bpe, 400 ids, 143 merges", "english.txt", "greek.txt", "Greek", "bytes / token", "rarest", "longest"):
        assert part in shown, part
    assert "[thing]" in shown, "markup is shown as it is written"
    assert "\\xc3" in shown
    assert main(["tokenizer", "show", str(made)]) == 0
    assert "bytes / token" not in capsys.readouterr().out
    assert main(["tokenizer", "show", str(tmp_path / "none")]) == 2
