"""The baselines of a run, and each of its warnings on a run that has the fault and on one that has not."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.tiny import FIELDS, SHAKESPEARE, recipe_for, rows
from tests.training.tiny import start as start_run

import pellucid
from pellucid import baselines
from pellucid.predictors.ngram_baselines import Baseline, score_baselines
from pellucid.predictors.repeats import Repeats, repeats, window_hashes, window_length
from pellucid.runs.checkpoint import folder_of, steps_of
from pellucid.runs.overfitting import Curve
from pellucid.text.read.pairs import read_pairs, split_pairs
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text.tokens.pairs import prepare_pairs
from pellucid.text.tokens.store import TokenSequence

TINY = {name: value for name, value in FIELDS.items() if name != "steps"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SHAKESPEARE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    return path


def train(*paths, out, steps=2, **fields):
    return pellucid.train(*paths, out=out, steps=steps, fields=TINY | fields)


def measured(run):
    """The baselines in the run's folder, which has one."""
    found = baselines.read_baselines(run.path)
    assert found is not None
    return found


def test_a_run_stores_and_prints_what_counting_makes_of_its_held_out_text(text, tmp_path, capsys):
    """The very numbers of the predictors on the very ids, in the model's bits per byte."""
    run = pellucid.train(text, out=tmp_path / "run", steps=2, fields=TINY, show=True)
    said = capsys.readouterr().out
    about = json.loads((run.path / "data.json").read_bytes())["parts"]
    ids = np.frombuffer(text.read_bytes(), dtype=np.uint8).astype(np.int64)
    tokens = [np.append(ids[: about["train"]["bytes"]], 256), np.append(ids[about["train"]["bytes"] :], 256)]
    train_part, held_out = (TokenSequence.from_ids(t, 257, (0,), len(t) - 1) for t in tokens)
    expected = score_baselines(*tokens, held_out, 257)
    found = measured(run)
    assert found.predictors == expected
    assert [p.name for p in expected] == ["uniform", "unigram", "bigram", "trigram", "5-gram"]
    assert (found.counted, found.n_train, found.n_held_out) == (len(train_part), len(train_part), len(held_out))
    for p in (*expected, Baseline("this model, step 2", run.held_out_loss, run.bits_per_byte)):
        assert f"{p.name:<18}  {p.nats_per_token:>10.4f}  {p.bits_per_byte:>9.4f}" in said
        assert p.bits_per_byte / p.nats_per_token == pytest.approx(run.bits_per_byte / run.held_out_loss)
    assert said.index("baselines, bits/byte") < said.index("step 2/2") < said.index("held-out text ")
    assert "warning" not in said


def test_the_verdict_names_who_is_ahead():
    found = baselines.Baselines(
        [Baseline("uniform", 5.0, 8.0), Baseline("bigram", 2.0, 3.0)], 10, 10, 5, 5, Repeats(0, 0, 16, 0), 1.0
    )
    assert "better than each" in baselines.verdict(found, 2.9)
    assert "behind bigram (" in baselines.verdict(found, 3.1)
    assert "behind uniform, bigram (" in baselines.verdict(found, 8.5)
    assert baselines.Baselines.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def add_evaluation(run, **measured):
    """A row of metrics.jsonl after all others."""
    row = {"step": run.step, "held_out_loss": run.held_out_loss, "bits_per_byte": run.bits_per_byte} | measured
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_a_model_that_was_measured_on_a_part_gets_no_verdict(text, tmp_path):
    """Where the time of a run was over before all was read, and where a run was stopped before its end."""
    run = train(text, out=tmp_path / "run")
    n_held_out = measured(run).n_held_out
    assert "first" not in "".join(baselines.table(run)[:-1])
    assert "the model is " in baselines.table(run)[-1]
    add_evaluation(run, whole=False, cut=n_held_out - 7)
    *_, figures, said = baselines.table(run)
    assert figures.startswith(f"this model, step 2 (first {n_held_out - 7:,} tokens)  ")
    assert said.startswith(f"no verdict: the model was measured on the first {n_held_out - 7:,} held-out tokens alone")
    assert f"scored on all {n_held_out:,} held-out tokens" in said
    for read, begins in ((n_held_out - 1, "no verdict: "), (0, "the model is ")):  # 0 where all of it was read
        add_evaluation(run, whole=False, read=read)
        assert baselines.table(run)[-1].startswith(begins)


def test_of_long_texts_a_part_is_read_and_it_says_how_much(text, tmp_path, monkeypatch):
    monkeypatch.setattr("pellucid.predictors.ngram_baselines.PIECE_TOKENS", 100)
    monkeypatch.setattr(baselines, "COUNTED", 1000)
    monkeypatch.setattr(baselines, "SCORED", 200)
    found = measured(train(text, out=tmp_path / "run"))
    assert (found.counted, found.scored) == (1000, 200)
    assert "counted on 1,000 of 3," in found.reach
    assert "scored on 200 of " in found.reach
    part = TokenSequence.from_ids(np.arange(1050))
    assert baselines.spread(part, 200).tolist() == [*range(100), *range(950, 1050)]
    assert baselines.spread(part, 1050).tolist() == list(range(1050))


@pytest.mark.slow
def test_each_objective_has_the_baselines_that_fits_it(text, tmp_path):
    masked = measured(train(text, out=tmp_path / "masked", objective="masked"))
    assert [p.name for p in masked.predictors] == ["uniform", "unigram"]
    assert "both sides" in masked.note
    across, inside = (measured(train(text, out=tmp_path / word, inside_documents=word)) for word in ("no", "yes"))
    assert across.predictors[-1] != inside.predictors[-1]


def test_pairs_are_measured_on_their_targets(tmp_path):
    path = tmp_path / "pairs.tsv"
    words = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    run = pellucid.train(
        path, out=tmp_path / "run", steps=2, preset="original", fields=TINY | {"objective": "source-target"}
    )
    found = baselines.read_baselines(run.path)
    tokens = prepare_pairs(split_pairs(read_pairs([str(path)]), 0.1, run.recipe.train.seed), ByteTokenizer(), tmp_path)
    train_ids, held_out = (tokens.part(name).ids.astype(np.int64) for name in ("train", "held_out"))
    # every token of a target counts, the first one given the separator before it
    expected = score_baselines(train_ids, np.append(256, held_out), tokens.part("held_out"), 257, separator=256)
    assert found.predictors == expected
    assert expected[2].nats_per_token < 1.5  # three letters of four each, and the end of the word


def test_an_older_run_has_no_baselines_and_a_damaged_one_is_none(text, tmp_path):
    run = train(text, out=tmp_path / "run")
    (run.path / baselines.FILE).write_text('{"predictors": 3}')
    assert baselines.read_baselines(run.path) is None
    (run.path / baselines.FILE).unlink()
    assert baselines.table(run) == []


# The held-out text also occurs in the training text -------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=8, max_size=60), st.sampled_from([1, 2, 4, 8]))
def test_windows_with_equal_hashes_are_equal(ids, length):
    row = np.array(ids)
    hashes = window_hashes(row, length)
    windows = [tuple(ids[i : i + length]) for i in range(len(ids) - length + 1)]
    assert len(hashes) == len(windows)
    for i, one in enumerate(windows):
        assert [h == hashes[i] for h in hashes] == [other == one for other in windows]
    assert (window_hashes(np.stack([row, row]), length) == hashes).all()


def test_repeats_are_what_a_plain_search_finds(monkeypatch):
    monkeypatch.setattr("pellucid.predictors.repeats.HASHED_AT_ONCE", 50)
    rng = np.random.default_rng(0)
    train_ids, fresh = rng.integers(0, 50, 1000), rng.integers(0, 50, 320)
    fresh[64:80], fresh[160:192], fresh[304:320] = train_ids[40:56], train_ids[500:532], train_ids[984:1000]
    one, other = TokenSequence.from_ids(train_ids, 50, (0,), 8000), TokenSequence.from_ids(fresh, 50, (0,), 2560)
    assert window_length(other) == 16  # 8 bytes a token: 12.5 tokens would do
    searched = "".join(map(chr, train_ids))
    windows = ["".join(map(chr, fresh[i : i + 16])) for i in range(0, 320, 16)]
    assert repeats(one, other) == Repeats(sum(w in searched for w in windows) / 20, 20, 16, 1000)
    assert repeats(one, other).share == 4 / 20
    assert repeats(one, TokenSequence.from_ids(fresh[:10], 50, (0,), 80)).windows == 0


def test_held_out_text_that_is_also_trained_on_is_warned_of(tmp_path):
    whole = SHAKESPEARE.read_text(encoding="utf-8")
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(whole[1000 * i : 1000 * (i + 1)], encoding="utf-8")
    clean = measured(train(*tmp_path.glob("?.txt"), out=tmp_path / "clean"))
    for i in range(10):
        (tmp_path / f"{i} again.txt").write_text("Once more: " + (tmp_path / f"{i}.txt").read_text(encoding="utf-8"))
    copied = measured(train(*tmp_path.glob("*.txt"), out=tmp_path / "copied", split="documents"))
    assert clean.repeats.share == 0
    assert not clean.warnings
    assert copied.repeats.share > 0.5
    assert "also occurs in the training text" in copied.warnings[0]
    assert f"{copied.repeats.share:.0%}" in copied.warnings[0]


# The held-out text is unlike the training text ------------------------------------------------


@pytest.mark.slow
def test_held_out_text_that_is_unlike_the_training_text_is_warned_of(tmp_path, udhr):
    """A whole language is held out by the rule of earlier runs, a tenth of each by the present one."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("eng", "ell_polytonic", "hin", "rus"):
        (folder / f"{name}.txt").write_text(udhr[name][:3000], encoding="utf-8")
    (folder / "short.txt").write_text(udhr["amh"][:400], encoding="utf-8")
    apart, alike = (
        measured(train(folder, out=tmp_path / rule, split=rule, held_out=0.05)) for rule in ("documents", "stratified")
    )
    (said,) = apart.warnings
    held_out = {p.name: p.bits_per_byte for p in apart.predictors}["unigram"]
    assert held_out > 1.2 * apart.unigram_of_training
    assert f"needs {held_out:.2f} bits per byte of the held-out text and {apart.unigram_of_training:.2f}" in said
    assert not alike.warnings
    assert {p.name: p.bits_per_byte for p in alike.predictors}["unigram"] < 1.1 * alike.unigram_of_training


def test_a_unigram_needs_its_entropy_of_its_own_text():
    """Of equally frequent ids: as many bits as there are, in tokens that are two bytes each."""
    part = TokenSequence.from_ids(np.arange(64_000) % 64, 64, (0,), 128_000)
    assert baselines.unigram_of(part.read(0, len(part)), part, 64) == pytest.approx(3, rel=1e-3)
    found = [Baseline("uniform", 6.0, 4.0), Baseline("unigram", 5.0, 3.59)]
    assert not baselines.warn_of_unlike(3.0, found)
    assert baselines.warn_of_unlike(2.99, found)


def test_the_baselines_of_an_older_run_says_nothing_of_its_training_text(text, tmp_path):
    run = train(text, out=tmp_path / "run")
    path = run.path / baselines.FILE
    values = json.loads(path.read_bytes())
    del values["unigram_of_training"]
    path.write_text(json.dumps(values))
    assert measured(run).unigram_of_training == 0.0


# Too few data --------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_many_passes_are_warned_of(text, tmp_path):
    text.write_text(text.read_text(encoding="utf-8")[:600], encoding="utf-8")
    few, many = (train(text, out=tmp_path / str(n), steps=n, batch=64, accumulate=1) for n in (2, 23))
    a, b = (measured(run) for run in (few, many))
    assert not a.warnings
    assert b.passes == pytest.approx(23 * 1024 / b.n_train, rel=1e-3)
    assert f"will be read {b.passes:.0f} times: more than 40 epochs" in b.warnings[0]


def test_a_model_that_can_hold_the_text_by_heart_is_warned_of(text):
    """Of 100,000 bytes at 1 bit each: 10,000 parameters cannot, 120,000 can, and in three epochs none does."""
    part = TokenSequence.from_ids(np.zeros(4000, dtype=np.int64), 257, (0,), 100_000)
    small = replace(recipe_for(text), model=recipe_for(text).model.with_fields({"n_vocab": 257}))
    large = replace(small, model=small.model.with_fields({"d_model": 64}))
    assert not baselines.warn_of_too_few(small, 30.0, part, 1.0)
    assert not baselines.warn_of_too_few(large, 3.0, part, 1.0)
    (said,) = baselines.warn_of_too_few(large, 30.0, part, 1.0)
    assert "memorise" in said
    assert "read 30 times" in said


# Overfitting ---------------------------------------------------------------------------------


def curve(held_out, losses):
    made = Curve()
    for i, (part, loss) in enumerate(zip(held_out, losses, strict=True), 1):
        made.see({"step": 10 * i, "loss": loss})
        made.see({"step": 10 * i, "held_out_part": part})
    return made


@pytest.mark.parametrize(
    ("held_out", "losses", "overfits"),
    [
        ((4.0, 3.0, 3.2, 3.5), (4.0, 3.0, 2.5, 2.0), True),
        ((4.0, 3.0, 2.9, 2.8), (4.0, 3.0, 2.5, 2.0), False),
        ((4.0, 3.0, 3.2, 3.5), (4.0, 3.0, 3.3, 3.6), False),  # it diverges: the training loss rises too
        ((4.0, 3.0, 3.2), (4.0, 3.0, 2.5), False),  # one evaluation may be chance
        ((4.0, 3.0, 3.01, 3.02), (4.0, 3.0, 2.5, 2.0), False),  # less than evaluations vary
    ],
)
def test_overfitting_is_a_rising_held_out_loss_while_the_training_loss_falls(held_out, losses, overfits):
    made = curve(held_out, losses)
    assert bool(made.warning()) is overfits
    if overfits:
        assert "since step 20" in made.warning()
        assert "give more text or dropout, or train" in made.warning("more text or dropout")
        made.see({"step": 40, "warning": "said"})
        assert not made.warning()


@pytest.mark.slow
def test_a_run_that_overfits_says_so_once_and_one_that_does_not_says_nothing(tmp_path):
    fields = {"d_model": 32, "dropout": 0, "accumulate": 1, "batch": 8, "evaluate_every": 20, "evaluate_tokens": 200}
    said = {}
    for n in (600, 20_000):
        path = tmp_path / f"{n}.txt"
        path.write_text(SHAKESPEARE.read_text(encoding="utf-8")[:n], encoding="utf-8")
        run = train(path, out=tmp_path / str(n), steps=160, learning_rate=1e-2, **fields)
        said[n] = [row["warning"] for row in rows(run.path) if "warning" in row]
    assert len(said[600]) == 1
    assert "the model overfits: since step" in said[600][0]
    assert not said[20_000]


@pytest.mark.slow
def test_a_resumed_run_warns_as_the_uninterrupted_one(tmp_path):
    """It goes on from before the warning, and knows of the evaluations of the first sitting."""
    fields = {"d_model": 32, "dropout": 0, "accumulate": 1, "batch": 8, "evaluate_every": 20, "evaluate_tokens": 200}
    (tmp_path / "text.txt").write_text(SHAKESPEARE.read_text(encoding="utf-8")[:600], encoding="utf-8")
    fields |= {"learning_rate": 1e-2, "keep_last": 10}
    run = train(tmp_path / "text.txt", out=tmp_path / "run", steps=160, **fields)
    (warned,) = [row for row in rows(run.path) if "warning" in row]
    for step in steps_of(run.path):
        if step >= warned["step"]:
            shutil.rmtree(folder_of(run.path, step))
    pellucid.train(out=run.path, resume=True)
    assert [row for row in rows(run.path) if "warning" in row] == [warned]


def test_what_the_curve_knows_is_in_the_metrics(text, tmp_path):
    run = start_run(text, tmp_path / "run")
    found = Curve.of(rows(run.path))
    whole = [row for row in rows(run.path) if "held_out_loss" in row]
    assert [(step, part) for step, part, _ in found.points] == [(row["step"], row["held_out_part"]) for row in whole]
    losses = [row["loss"] for row in rows(run.path) if "loss" in row]
    assert [mean for _, _, mean in found.points] == pytest.approx([np.mean(losses[i : i + 4]) for i in (0, 4, 8)])


@pytest.mark.slow
def test_bits_per_byte_that_leave_out_unknown_words_are_warned_of(text, tmp_path):
    """With 300 words a good part of the held-out ones is unknown, and nobody pays for their bytes; bytes know all."""
    fields = {"tokenizer": "word", "vocabulary": 300}
    (said,) = [w for w in measured(train(text, out=tmp_path / "words", **fields)).warnings if "unknown" in w]
    assert "of the held-out tokens are unknown" in said
    assert "do not compare with other tokenizers" in said
    assert not any("unknown" in w for w in measured(train(text, out=tmp_path / "bytes")).warnings)
