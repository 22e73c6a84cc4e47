"""Surveys of tokenizers: their sums are the texts', their trees spell the words."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid
from pellucid.cli import main
from pellucid.text.tokenizers.survey import WORD, Merged, merge_trees, script_of, survey
from pellucid.text.tokenizers.tokenizer import learn_tokenizer, load_tokenizer


def greek_of(udhr: dict[str, str]) -> str:
    return next(text for text in udhr.values() if script_of(text) == "Greek")


@pytest.mark.parametrize("kind", ["bpe", "word", "char", "byte"])
def test_sums_are_those_of_the_texts(kind, udhr, shakespeare):
    texts = [("one", udhr["eng"]), ("two", udhr["fra"]), ("two", shakespeare), ("three", greek_of(udhr))]
    tokenizer = learn_tokenizer(kind, [shakespeare, udhr["eng"]], 500 if kind in ("bpe", "word") else None)
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
    found = survey(learn_tokenizer("byte", []), [])
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


BPE = learn_tokenizer("bpe", ["the theme there then é éé café thé " * 40], 300)


def test_the_merges_of_a_word():
    first, *others = merge_trees(BPE, " the")
    assert (first.token, others) == (b" the", [])
    assert b"".join(part.token for part in first.parts) == b" the"
    assert first.rank is not None
    assert merge_trees(learn_tokenizer("char", ["abc"]), "ab") == [Merged(b"a"), Merged(b"b")]


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
    learn_tokenizer("bpe", [shakespeare], 400).save(made)
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


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_a_text_without_words_shows_no_nan(kind, tmp_path, shakespeare, capsys, monkeypatch):
    """There is nothing to divide by: a dash, and what it stands for; also where a text has no token at all."""
    monkeypatch.setenv("COLUMNS", "200")
    learn_tokenizer(kind, [shakespeare], 400).save(tmp_path / "made")
    texts = {"marks.txt": "!!! ... ???\n", "blanks.txt": "   \n\n  ", "words.txt": "to be\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    shown = ["tokenizer", "show", str(tmp_path / "made"), *(str(tmp_path / name) for name in texts)]
    assert main(shown) == 0
    out = capsys.readouterr().out
    assert not re.search(r"\bnan\b|\binf\b", out)
    row = next(line for line in out.splitlines() if "marks.txt" in line)
    assert row.split("\u2502")[6].strip() == "\u2013"
    assert "\u2013: nothing to divide by; a word is a run of letters and digits" in out
    assert main([*shown[:3], str(tmp_path / "words.txt")]) == 0
    assert "\u2013" not in capsys.readouterr().out


WHOLE = Path(pellucid.__file__).parent / "data" / "shakespeare.txt"


def shown_in_columns(out: str, row: str) -> list[float]:
    """The numbers of one row of the first table that has it."""
    line = next(line for line in out.splitlines() if re.match(rf"\W*{re.escape(row)} ", line))
    return [float(x.replace(",", "")) for x in re.findall(r"[\d,]+\.?\d*", line.split(row, 1)[1])]


@pytest.mark.item("S1-1.1-c")
@pytest.mark.slow
def test_the_command_prints_tokens_per_word_which_depend_on_text_and_vocabulary(tmp_path, udhr, capsys, monkeypatch):
    """More ids, fewer tokens; on text unlike that it was made from, more."""
    monkeypatch.setenv("COLUMNS", "200")
    text = WHOLE.read_text(encoding="utf-8")
    start = int(0.9 * len(text))
    (tmp_path / "held_out.txt").write_text(text[start:], encoding="utf-8")
    (tmp_path / "declaration.txt").write_text(udhr["eng"], encoding="utf-8")
    found = {}
    for n in (1024, 8192):
        folder = tmp_path / str(n)
        learn_tokenizer("bpe", [text[:start]], n).save(folder)
        files = [str(tmp_path / name) for name in ("held_out.txt", "declaration.txt")]
        assert main(["tokenizer", "show", str(folder), *files]) == 0
        out = capsys.readouterr().out
        assert "tokens / word" in out
        for name, content in (("held_out.txt", text[start:]), ("declaration.txt", udhr["eng"])):
            n_tokens = len(load_tokenizer(folder).encode(content))
            n_bytes, shown, *_, per_word = shown_in_columns(out, name)
            assert (n_bytes, shown) == (len(content.encode()), n_tokens)
            assert per_word == pytest.approx(n_tokens / len(WORD.findall(content)), abs=0.005)
            found[n, name] = per_word
    assert found[8192, "held_out.txt"] < found[8192, "declaration.txt"]
    assert found[8192, "held_out.txt"] < found[1024, "held_out.txt"]
    assert 1.1 < found[8192, "held_out.txt"] < 1.8


@pytest.mark.item("S1-1.1-c")
@pytest.mark.slow
def test_with_gpt2s_vocabulary_prose_has_a_token_and_a_third_per_word(needs_data, tmp_path, udhr, capsys, monkeypatch):
    """Of running text: indented lines have more."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "declaration.txt").write_text(" ".join(udhr["eng"].split()), encoding="utf-8")
    assert main(["tokenizer", "show", str(needs_data / "gpt2"), str(tmp_path / "declaration.txt")]) == 0
    assert 1.1 < shown_in_columns(capsys.readouterr().out, "declaration.txt")[-1] < 1.7


@pytest.mark.item("S4-iss-a")
def test_the_command_shows_the_letters_that_tokens_hide(tmp_path, capsys):
    """Three r, all inside tokens of several letters, which are one id each; by characters all three are seen."""
    merges = ["st st st st", "raw raw raw", "berry berry berry"]
    learn_tokenizer("bpe", merges, 270).save(tmp_path / "bpe")
    learn_tokenizer("char", merges).save(tmp_path / "char")
    tokenizer = load_tokenizer(tmp_path / "bpe")
    spelt = [tokenizer.token_str(i) for i in tokenizer.encode("strawberry")]
    assert spelt == ["st", "raw", "berry"]
    assert "r" not in spelt
    assert main(["tokenizer", "show", str(tmp_path / "bpe"), "--word", "strawberry"]) == 0
    tree = capsys.readouterr().out.split("strawberry")[1].splitlines()
    assert tree[0].split() == ["3", "tokens"]
    leaves = [line for line in tree[1:] if "merge" not in line and line.strip()]
    assert "".join(line.strip(" \u2502\u251c\u2514\u2500") for line in leaves) == "strawberry"
    tops = [line for line in tree[1:] if line.startswith(("\u251c", "\u2514"))]
    assert [line.split()[1] for line in tops] == spelt
    assert main(["tokenizer", "show", str(tmp_path / "char"), "--word", "strawberry"]) == 0
    seen = capsys.readouterr().out.split("strawberry")[1].splitlines()
    assert [line.split()[-1] for line in seen[1:] if line.strip()] == list("strawberry")


@pytest.mark.item("S0-1.1-k")
@pytest.mark.slow
def test_a_tenth_of_the_text_makes_nearly_as_good_a_tokenizer(tmp_path, capsys):
    """The command's option, on the whole bundled text: the rest comes back whole, in at most a tenth more tokens."""
    text = WHOLE.read_text(encoding="utf-8")
    start = int(0.9 * len(text))
    (tmp_path / "train.txt").write_text(text[:start], encoding="utf-8")
    found = []
    for share in ("1", "0.1"):
        out = tmp_path / share
        given_ = ["--out", str(out), "--vocabulary", "2048", "--sample", share]
        assert main(["tokenizer", "train", str(tmp_path / "train.txt"), *given_]) == 0
        found.append(load_tokenizer(out))
    assert "trained on 0.1 of the training text" in capsys.readouterr().out
    whole, part = found
    assert whole.hash != part.hash
    assert part.decode(part.encode(text)) == text
    assert len(part.encode(text[start:])) <= 1.1 * len(whole.encode(text[start:]))
