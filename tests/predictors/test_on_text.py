"""Files scored as training reads them, and the n-grams of a run's training text beside the model."""

import gzip
import json
import math
import shutil

import numpy as np
import pytest

import pellucid
from pellucid.cli import main
from pellucid.generate.scoring import CorpusScore, ScoringError
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import ORDERS
from pellucid.runs.options import RecipeError
from pellucid.text.read.chunks import DocumentError
from pellucid.text.read.documents import Corpus
from pellucid.text.read.find import ReadOptions

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "ngrams": (), "batch": 4, "sample_every": 0}
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
        pellucid.train_predictor(folder / "text.txt", out=folder / "counted", kind="ngram", fields=counted)
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
    (tmp_path / "advised" / "d.jsonl").write_text('{"a": }')
    assert main(["score", str(runs / "learned"), str(tmp_path / "advised")]) == 2
    assert "leave them out with --skip-bad" in capsys.readouterr().err
    assert (
        main(["score", str(runs / "learned"), str(tmp_path / "advised"), "--include", "c*", "--format", "plain"]) == 0
    )
    assert main(["score", str(runs / "learned"), str(tmp_path / "advised"), "--skip-bad", "--field", "b"]) == 0


# Several documents ------------------------------------------------------------------------------

TEXTS = (TEXT, "Speak.", "You are all resolved rather to die than to famish? " * 3, "First Citizen")


@pytest.fixture
def rows(tmp_path):
    """A file of these texts, one a row."""
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def scorers(runs):
    """A transformer, an n-gram, and a mixture of the two."""
    model, counted = pellucid.load(runs / "learned"), pellucid.load_predictor(runs / "counted")
    return model, counted, model.mixed_with(counted)


@pytest.mark.parametrize("options", [{}, {"prefix": "First "}])
def test_each_document_is_scored_as_it_is_alone(runs, rows, options):
    for model in scorers(runs):
        found, alone = model.score(rows, **options), [model.score(text, **options) for text in TEXTS]
        assert isinstance(found, CorpusScore)
        assert found.log_probs.tolist() == [one.log_prob for one in alone]
        for numbers, name in (
            (found.token_counts, "n_tokens"),
            (found.byte_counts, "n_bytes"),
            (found.word_counts, "n_words"),
        ):
            assert numbers.tolist() == [getattr(one, name) for one in alone]
        nats = -math.fsum(one.log_prob for one in alone)
        assert found.loss == pytest.approx(nats / sum(one.n_tokens for one in alone), rel=1e-12)
        assert found.perplexity == pytest.approx(math.exp(found.loss), rel=1e-12)
        bits = nats / math.log(2) / sum(one.n_bytes for one in alone)
        assert found.bits_per_byte == pytest.approx(bits, rel=1e-12)


def test_the_windows_of_each_document_are_those_that_it_has_alone(runs, rows):
    model = pellucid.load(runs / "learned")
    options = {"stride": 3, "start": "none"}
    expected = [model.score(text, **options).log_prob for text in TEXTS]
    assert model.score(rows, **options).log_probs.tolist() == expected


def test_files_of_a_folder_are_scored_as_rows_are(runs, rows, tmp_path):
    model = pellucid.load(runs / "learned")
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text)
    (folder / "5.bin").write_bytes(b"\0")
    found = model.score(folder)
    assert found.log_probs.tolist() == model.score(rows).log_probs.tolist()
    assert [document.path.name for document in found.documents] == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert found.counted == "the bytes in UTF-8 of 4 documents in 4 files"
    assert found.notes == ("skipped 5.bin: it is binary, expected text",)
    assert found.documents[1].text == TEXTS[1]
    for i in (0, 2, 3):
        (folder / f"{i}.txt").unlink()
    assert model.score(folder).notes == found.notes


def test_ngrams_are_compared_on_all_documents(runs, rows):
    for model in scorers(runs):
        found, alone = model.score(rows, baselines=True), [model.score(text, baselines=True) for text in TEXTS]
        for i, (name, nats, bits) in enumerate(found.baselines):
            total = sum(one.baselines[i][1] * one.n_tokens for one in alone)
            assert name == alone[0].baselines[i][0]
            assert nats == pytest.approx(total / found.n_tokens, rel=1e-12)
            assert bits == pytest.approx(total / math.log(2) / found.n_bytes, rel=1e-12)


def test_one_document_is_held_in_memory_at_a_time(runs, rows, monkeypatch):
    """Another is read when the one before has been scored."""
    happened, stream = [], Corpus.stream

    def told(corpus):
        for k, chunks in stream(corpus):
            happened.append(f"read {k}")
            yield k, chunks

    monkeypatch.setattr(Corpus, "stream", told)
    pellucid.load(runs / "learned").score(rows, progress=lambda stage, done, total: happened.append((stage, done)))
    read = [step for step in happened if step[0] != "reading"]
    assert read == [("scoring", 0)] + [step for k in range(4) for step in (f"read {k}", ("scoring", k))]


def test_a_document_that_cannot_be_scored_or_compared_is_named(runs, tmp_path):
    model, path = pellucid.load(runs / "learned"), tmp_path / "a.jsonl"
    path.write_text('"Speak"\n"S"\n')
    with pytest.raises(ScoringError, match=r"a\.jsonl, row 2: a text of one token read after nothing"):
        model.score(path, start="none")
    path.write_text('"Speak"\n"Speak \u00e9"\n')
    found, reason = model.score(path), model.score("Speak \u00e9").why_not_comparable
    assert found.why_not_comparable == f"1 of 2 documents, the first is {path}, row 2: {reason}"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_bytes(b"Speak, sp\xe9ak, and then speak of nothing else at all.")
    (tmp_path / "folder" / "b.txt").write_bytes(b"Speak")
    found = model.score(tmp_path / "folder")
    assert found.byte_counts.tolist() == [52, 5]
    assert found.notes[0].startswith("1 sequence of bytes is not UTF-8")


def test_the_command_scores_a_test_set(runs, rows, capsys):
    model = pellucid.load(runs / "learned")
    expected = model.score(rows, baselines=True)
    command = ["score", str(runs / "learned"), str(rows), "--baselines"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f" nats over 4 documents, {expected.n_tokens} tokens, {expected.n_bytes} bytes\n" in out
    assert f"loss             {expected.loss:.4f} nats per token" in out
    assert f"bits per byte    {expected.bits_per_byte:.4f}" in out
    assert f"these texts  nats/token  bits/byte\nuniform      {expected.baselines[0][1]:>10.4f}" in out
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("loss", "perplexity", "bits_per_byte", "log_prob", "n_tokens", "n_bytes", "n_words"):
        assert printed[name] == getattr(expected, name)
    assert printed["n_documents"] == 4
    assert [tuple(row.values()) for row in printed["baselines"]] == [tuple(row) for row in expected.baselines]
    assert [(row["file"], row["row"]) for row in printed["documents"]] == [(str(rows), k) for k in (1, 2, 3, 4)]
    for row, text in zip(printed["documents"], TEXTS, strict=True):
        one = model.score(text)
        for name in ("log_prob", "n_tokens", "n_bytes", "n_words", "loss", "bits_per_byte"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-12)


def test_one_text_as_json_has_one_row(runs, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    assert main(["score", str(runs / "learned"), str(tmp_path / "a.txt"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = pellucid.load(runs / "learned").score(TEXT)
    (row,) = printed["documents"]
    assert (row["file"], row["row"]) == (str(tmp_path / "a.txt"), None)
    assert printed["n_documents"] == 1
    assert printed["counted"] == "the bytes of the file"
    assert row["log_prob"] == printed["log_prob"] == expected.log_prob
    assert printed["bits_per_byte"] == expected.bits_per_byte


def test_a_divided_text_as_json_has_a_row_for_each_document(runs, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(f"{TEXT}***{TEXT}")
    assert main(["score", str(runs / "learned"), str(tmp_path / "a.txt"), "--split-at", "***", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["row"], row["document"]) for row in printed["documents"]] == [(None, 1), (None, 2)]


def test_tokens_are_printed_of_one_text(runs, rows, capsys):
    learned = str(runs / "learned")
    assert main(["score", learned, str(rows), "--per-token"]) == 2
    assert "prints the tokens of one text, but" in capsys.readouterr().err
    assert main(["score", learned, str(rows), "--per-token", "--json"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
