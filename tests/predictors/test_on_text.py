"""Files scored as training reads them, and the n-grams of a run's training text beside the model."""

import gzip
import math
import shutil

import numpy as np
import pytest

import pellucid
from pellucid.cli import main
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import ORDERS
from pellucid.runs.options import RecipeError
from pellucid.text.read.chunks import DocumentError
from pellucid.text.read.find import ReadOptions

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "ngrams": (), "batch": 4, "sample_every": -1}
TINY |= {"compile": "no", "precision": "float32", "device": "cpu", "tokenizer": "char"}
TEXT = "Speak, speak. First, you know Caius Marcius is chief enemy to the people."


@pytest.fixture(scope="module")
def runs(tmp_path_factory, shakespeare):
    """A transformer and an n-gram of order 3 on the same text, and a transformer that reads inside documents."""
    folder = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        (folder / "text.txt").write_text(shakespeare[:8000], encoding="utf-8")
        for i in range(4):
            (folder / f"{i}.md").write_text(shakespeare[1000 * i : 1000 * (i + 1)], encoding="utf-8")
        counted = {"order": 3, "tokenizer": "char"}
        pellucid.train(folder / "text.txt", out=folder / "counted", predictor="ngram", fields=counted)
        pellucid.train(folder / "text.txt", out=folder / "learned", steps=2, fields=TINY)
        inside = TINY | {"inside_documents": "yes"}
        pellucid.train(*sorted(folder.glob("*.md")), out=folder / "inside", steps=2, fields=inside)
    return folder


@pytest.fixture(autouse=True)
def _cache_of_the_runs(runs, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(runs / "cache"))


def by_hand(tokenizer, training, text, context, separator=None):
    """Nats per token of each n-gram, counted on these training texts, given a context of the text."""
    ids = np.concatenate([[*tokenizer.encode(one), tokenizer.separator] for one in training])
    whole = np.array([*context, *tokenizer.encode(text)])
    grams = {name: NGram.train(ids, tokenizer.n_vocab, n, separator=separator) for n, name in ORDERS.items()}
    found = {name: -gram.log_probs(whole)[len(context) - 1 :].mean() for name, gram in grams.items()}
    return {"uniform": math.log(tokenizer.n_vocab), **found}


def test_ngrams_are_counted_on_the_training_text_of_the_run(runs, shakespeare):
    model = pellucid.load(runs / "learned")
    training = [shakespeare[:7200]]  # the last tenth is held out
    separator = model.tokenizer.separator
    found = model.score(TEXT, baselines=True)
    expected = by_hand(model.tokenizer, training, TEXT, [separator])
    assert {name: nats for name, nats, _ in found.baselines} == pytest.approx(expected, rel=1e-12)
    for _, nats, bits in found.baselines:
        assert bits == pytest.approx(nats / math.log(2) * found.n_tokens / len(TEXT.encode()), rel=1e-12)
    assert found.log_prob == model.score(TEXT).log_prob
    # a prefix is read by them too, and with nothing before it the first token is not scored
    after = model.score(TEXT[6:], prefix=TEXT[:6], baselines=True)
    context = [separator, *model.tokenizer.encode(TEXT[:6])]
    expected = by_hand(model.tokenizer, training, TEXT[6:], context)
    assert after.context == tuple(context)
    assert {name: nats for name, nats, _ in after.baselines} == pytest.approx(expected, rel=1e-12)
    bare = model.score(TEXT, start="none", baselines=True)
    first, rest = model.tokenizer.encode(TEXT)[:1], TEXT[1:]
    assert {n: x for n, x, _ in bare.baselines} == pytest.approx(
        by_hand(model.tokenizer, training, rest, first), rel=1e-12
    )


def test_the_trigram_of_a_run_is_an_ngram_run_of_order_3(runs):
    counted = pellucid.load_predictor(runs / "counted")
    found = counted.score(TEXT, baselines=True)
    assert {name: nats for name, nats, _ in found.baselines}["trigram"] == pytest.approx(found.loss, rel=1e-12)
    mixture = pellucid.load(runs / "learned").mixed_with(counted)
    assert mixture.score(TEXT, baselines=True).baselines == found.baselines


def test_ngrams_read_across_documents_where_the_run_does(runs, shakespeare):
    model = pellucid.load(runs / "inside")
    ends = [shakespeare[1000 * i : 1000 * (i + 1)][:900] for i in range(4)]
    separator = model.tokenizer.separator
    found = model.score(TEXT, baselines=True)
    expected = by_hand(model.tokenizer, ends, TEXT, [separator], separator)
    assert {name: nats for name, nats, _ in found.baselines} == pytest.approx(expected, rel=1e-12)


def test_a_file_is_scored_as_its_text(runs, tmp_path):
    """Whatever it is packed in; a string stays a string, also one that names a file."""
    model = pellucid.load(runs / "learned")
    expected = model.score(TEXT + "\n")  # as a page ends
    path = tmp_path / "a.html.gz"
    path.write_bytes(gzip.compress(f"<p>{TEXT.strip()}</p>".encode("utf-16")))
    found = model.score(path)
    assert found.log_probs.tolist() == expected.log_probs.tolist()
    assert found.counted.startswith(
        "the bytes in UTF-8 of the text extracted from HTML, unpacked from .gz; the file has"
    )
    assert model.score("text.txt").n_bytes == len("text.txt")
    rows = tmp_path / "a.jsonl"
    rows.write_text('{"a": "x", "b": "Speak"}\n')
    assert model.score(rows, reading=ReadOptions(field="b")).log_prob == model.score("Speak").log_prob
    with pytest.raises(DocumentError, match=r"a text was given: give a pathlib\.Path"):
        model.score("Speak", reading=ReadOptions(field="b"))


def test_what_is_not_utf8_counts_as_the_bytes_that_it_is(runs, tmp_path):
    """As in training, so that bits per byte compare."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"Speak, sp\xe9ak, and then speak of nothing else at all.")
    for model in (pellucid.load(runs / "learned"), pellucid.load_predictor(runs / "counted")):
        found = model.score(path)
        assert found.n_bytes == len(path.read_bytes())
        assert found.bits_per_byte == pytest.approx(-found.log_prob / math.log(2) / found.n_bytes, rel=1e-12)
        assert found.notes[0].startswith("1 sequence of bytes is not UTF-8")


def test_the_text_of_the_run_is_read_again_and_must_be_what_it_was(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    model = pellucid.load(runs / "learned")
    before = model.score(TEXT, baselines=True).baselines  # no tokens are kept anywhere
    path, aside = runs / "text.txt", tmp_path / "aside.txt"
    shutil.copy(path, aside)
    try:
        path.write_text("other text " * 99)
        with pytest.raises(
            RecipeError, match=r"was trained on other text \(text\.txt changed, from 8000 to 1089 bytes"
        ):
            model.score(TEXT, baselines=True)
        path.unlink()
        with pytest.raises(
            DocumentError, match=r"n-grams are counted on the text of .*, which cannot be read: .*no such file"
        ):
            model.score(TEXT, baselines=True)
    finally:
        shutil.copy(aside, path)
    assert model.score(TEXT, baselines=True).baselines == before


def test_a_model_of_no_run_has_no_ngrams(runs, tmp_path, capsys):
    pellucid.load(runs / "learned").save(tmp_path / "saved")
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(RecipeError, match="saved is no run, so there is no training text"):
        pellucid.load(tmp_path / "saved").score(TEXT, baselines=True)
    assert main(["score", str(tmp_path / "saved"), str(tmp_path / "a.txt"), "--baselines"]) == 2
    assert "saved is not a run: leave it out" in capsys.readouterr().err


def test_targets_are_compared_with_ngrams_of_targets(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    words = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    fields = TINY | {"objective": "source-target"}
    pellucid.train(tmp_path / "pairs.tsv", out=tmp_path / "run", steps=1, preset="original", fields=fields)
    found = pellucid.load(tmp_path / "run").score("iea", source="aei", baselines=True)
    nats = {name: nats for name, nats, _ in found.baselines}
    # three letters of four each: the first given the beginning, each of the others given the one before it
    assert nats["trigram"] == pytest.approx(math.log(4), rel=0.15)
    assert nats["unigram"] > 2


def test_the_command_prints_the_table_and_what_it_counted(runs, tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_bytes(b"Speak, sp\xe9ak, and then speak of nothing else at all.")
    expected = pellucid.load(runs / "learned").score(path, baselines=True)
    assert main(["score", str(runs / "learned"), str(path), "--baselines"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith(
        "1 sequence of bytes is not UTF-8 and became U+FFFD, in 1 of the files, in a.txt at byte 9"
    )
    assert "counted          the bytes of the file\n" in said.out
    assert f" tokens, {len(path.read_bytes())} bytes\n" in said.out
    assert f"{expected.perplexity_per_word:.3e}" in said.out or f"{expected.perplexity_per_word:.3f}" in said.out
    assert (
        f"bits per byte    {expected.bits_per_byte:.4f} (not comparable: 1 of 52 tokens is an unknown char" in said.out
    )
    for name, nats, bits in expected.baselines:
        assert f"{name:<10}  {nats:>10.4f}  {bits:>9.4f}\n" in said.out
    assert f"this model  {expected.loss:>10.4f}  {expected.bits_per_byte:>9.4f}\n" in said.out
    assert main(["score", str(runs / "learned"), str(path), "--encoding", "latin-1"]) == 0
    said = capsys.readouterr()
    assert (said.err, "converted from LATIN-1" in said.out) == ("", True)


def test_the_command_advises_options_that_it_has(runs, tmp_path, capsys):
    """Each of the files is refused with an option's name, and scored with the option."""
    for name, content, option, value in (
        ("a.jsonl", b'{"a": "Speak", "b": "Speak"}\n', "--field", "b"),
        ("b.txt", "Съешь ещё этих мягких французских булок".encode("koi8-r"), "--encoding", "koi8-r"),
        ("c.json", b"Speak, speak.", "--format", "plain"),
    ):
        path = tmp_path / "advised" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        assert main(["score", str(runs / "learned"), str(path)]) == 2
        assert option in capsys.readouterr().err
        assert main(["score", str(runs / "learned"), str(path), option, value]) == 0
        capsys.readouterr()
    assert main(["score", str(runs / "learned"), str(tmp_path / "advised")]) == 2
    said = capsys.readouterr().err
    assert "is a folder of 3 files, but this command reads one text: name one file, such as" in said
    assert "--" not in said
