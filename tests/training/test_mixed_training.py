"""`train --mix auto`: an n-gram is stored in the run, and its share is fitted on text that neither saw."""

import contextlib
import io
import json
import math
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import TRANSFORMER
from tests.some_cases import one_in
from tiny import assert_same_run, assert_same_tensors, forked, rows, tensors, write_text
from together import train as train_together

import pellucid
from pellucid import cli
from pellucid.predictors import mixed_training
from pellucid.predictors.mixed_training import MOST_SET_ASIDE, MOST_STRETCHES, STRETCH, ranges_to_set_aside
from pellucid.predictors.ngram import NGram
from pellucid.predictors.options import PredictorError
from pellucid.runs.checkpoint import folder_of
from pellucid.runs.options import RecipeError
from pellucid.runs.pace import Pace
from pellucid.text.tokens.batches import Batches
from pellucid.text.tokens.store import Tokens, TokenSequence, TokensError
from pellucid.training.load import read_recipe
from pellucid.training.recipe import make_recipe

#: one token for each character, and steps enough to have learned something
FIELDS = TRANSFORMER | {"tokenizer": "char", "dropout": 0, "ngrams": (), "batch": 8, "learning_rate": 0.02}
FIELDS |= {"evaluate_every": 20, "sample_every": 0}
STEPS, N_CTX = 60, FIELDS["n_ctx"]


def train_mixed(text, out, steps=STEPS, **fields):
    return pellucid.train(text, out=out, mix="auto", steps=steps, fields=FIELDS | fields)


@dataclass(frozen=True)
class Trained:
    """A finished run of 12,000 characters that the command has trained, what it printed, and the text."""

    path: Path
    said: str
    text: Path

    @property
    def row(self) -> dict[str, Any]:
        """What metrics.jsonl says of the mixture."""
        return next(row for row in rows(self.path) if "mixture_weight" in row)


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    text, said = write_text(folder, 12_000), io.StringIO()
    spelled = {name: ",".join(map(str, v)) if isinstance(v, tuple) else v for name, v in FIELDS.items()}
    fields = [f"--set={name}={value}" for name, value in spelled.items()]
    command = ["train", str(text), "--out", str(folder / "run"), "--steps", str(STEPS), "--mix", "auto", *fields]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        assert cli.main(command) == 0
    return Trained(folder / "run", said.getvalue(), text)


@pytest.fixture(scope="module")
def ids(mixed_run):
    """The training tokens, those set aside of them, and the held-out tokens."""
    tokens = Tokens.open(next((mixed_run.path.parent / "cache").glob("tokens-*")))
    train, held_out = (tokens.part(name).read(0, len(tokens.part(name))) for name in ("train", "held_out"))
    aside = json.loads((mixed_run.path / "data.json").read_bytes())["set_aside"]
    return train, [np.arange(start, stop) for start, stop in aside], held_out


def network_log_probs(run, ids):
    """log P of each token after the first: windows of the context do not overlap, and the last one is moved back."""
    network, out = pellucid.load(run).network, []
    for start in range(0, len(ids) - 1, N_CTX):
        begin = min(start, len(ids) - 1 - N_CTX)
        with torch.no_grad():
            log_probs = network(torch.from_numpy(ids[begin : begin + N_CTX])[None])[0].double().log_softmax(-1)
        out += [log_probs[i - begin, ids[i + 1]].item() for i in range(start, min(start + N_CTX, len(ids) - 1))]
    return np.array(out)


# What is set aside -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [40, 999, 54_321, 3_000_000])
def test_a_twentieth_is_set_aside_in_stretches_over_the_whole_text(n):
    ranges = ranges_to_set_aside(n)
    n_aside = sum(stop - start for start, stop in ranges)
    assert min(0.05 * n, MOST_SET_ASIDE) - len(ranges) <= n_aside + 1
    assert n_aside <= min(0.05 * n, MOST_SET_ASIDE)
    assert len(ranges) == 1 or min(stop - start for start, stop in ranges) >= STRETCH
    assert 1 <= len(ranges) <= MOST_STRETCHES
    for k, (start, stop) in enumerate(ranges):  # each within its own section of the text
        assert (n - 1) * k // len(ranges) <= start < stop <= (n - 1) * (k + 1) // len(ranges)


def test_no_batch_reads_what_is_set_aside():
    ids = np.arange(5000)
    ranges = [(100, 200), (200, 300), (4700, 5000)]
    part = TokenSequence.from_ids(ids, starts=(0, 50, 150, 250, 1000), n_bytes=10_000)
    rest, aside = part.without(ranges), part.select(ranges)
    left = np.delete(ids, np.concatenate([np.arange(*one) for one in ranges]))
    np.testing.assert_array_equal(rest.read(0, len(rest)), left)
    np.testing.assert_array_equal(aside.read(0, len(aside)), np.setdiff1d(ids, left))
    assert (rest.n_bytes, aside.n_bytes) == (9000, 1000)
    np.testing.assert_array_equal(left[rest.starts], [0, 50, 300, 1000])
    np.testing.assert_array_equal(aside.read(0, 500)[aside.starts], [100, 150, 200, 250, 4700])
    batches = Batches(rest, 8, 4)
    read = np.unique([batches.at(step).targets for step in range(math.ceil(batches.n_windows / batches.batch) * 2)])
    assert set(read) == set(left)
    with pytest.raises(TokensError, match="tokens 4700 to 5001 of tokens: it has 5000"):
        part.select([(4700, 5001)])


@pytest.mark.slow
def test_what_is_set_aside_changes_neither_the_network_nor_the_ngram(mixed_run, ids, tmp_path):
    """The characters of each stretch in another order: everything but the share stays as it is, bit for bit."""
    run = mixed_run
    letters = np.array(list(run.text.read_text(encoding="utf-8")))
    for stretch in ids[1]:
        letters[stretch] = np.sort(letters[stretch])
    (tmp_path / "text.txt").write_text("".join(letters), encoding="utf-8")
    other = train_mixed(tmp_path / "text.txt", tmp_path / "run")
    assert_same_tensors(tensors(other.path, STEPS), tensors(run.path, STEPS))
    files = [(path / "ngram" / "ngram.safetensors").read_bytes() for path in (run.path, other.path)]
    assert files[0] == files[1]
    assert [row for row in rows(other.path) if "mixture_weight" not in row] == rows(run.path)[:-1]
    assert other.mixture_weight != run.row["mixture_weight"]


# The share and what is reported ------------------------------------------------------------------


def test_the_ngram_is_counted_on_what_the_network_is_trained_on(mixed_run, ids):
    run, (train, aside, held_out) = mixed_run, ids
    expected = NGram.train(np.delete(train, np.concatenate(aside)), pellucid.load(run.path).tokenizer.n_vocab, 5)
    stored = NGram.load(run.path / "ngram")
    np.testing.assert_array_equal(stored.log_probs(held_out), expected.log_probs(held_out))


def test_the_share_is_the_best_on_what_neither_saw(mixed_run, ids):
    run, (train, aside, _) = mixed_run, ids
    ngram = NGram.load(run.path / "ngram")
    own = np.exp(np.concatenate([network_log_probs(run.path, train[stretch]) for stretch in aside]))
    counted = np.exp(np.concatenate([ngram.log_probs(train[stretch]) for stretch in aside]))
    shares = np.linspace(0, 1, 1001)
    likelihoods = [np.log(w * own + (1 - w) * counted).sum() for w in shares]
    weight = run.row["mixture_weight"]
    assert weight == pytest.approx(shares[int(np.argmax(likelihoods))], abs=1e-3)
    assert 0.02 < weight < 0.98  # neither has nothing to add
    stored = json.loads((run.path / "mixture.json").read_bytes())
    assert stored["weight"] == weight
    assert stored["fitted_on_tokens"] == sum(len(stretch) - 1 for stretch in aside)


def test_bits_per_byte_are_those_of_the_sum_of_both(mixed_run, ids):
    run, (_, _, held_out) = mixed_run, ids
    own, counted = network_log_probs(run.path, held_out), NGram.load(run.path / "ngram").log_probs(held_out)
    row = run.row
    w = row["mixture_weight"]
    nats = -np.log(w * np.exp(own) + (1 - w) * np.exp(counted)).mean()
    tokens_per_byte = len(held_out) / 1200  # a tenth of the text, and a separator
    assert row["mixed_bits_per_byte"] == pytest.approx(nats / math.log(2) * tokens_per_byte, rel=1e-6)
    assert row["unmixed_bits_per_byte"] == pytest.approx(-own.mean() / math.log(2) * tokens_per_byte, rel=1e-6)
    assert (row["mixed_loss"], row["unmixed_loss"]) == pytest.approx((nats, -own.mean()), rel=1e-6)
    assert row["mixed_tokens"] == len(held_out) - 1
    assert row["mixed_bits_per_byte"] < row["unmixed_bits_per_byte"]
    measured = {r["step"]: r["bits_per_byte"] for r in rows(run.path) if r.get("whole")}
    assert row["unmixed_bits_per_byte"] == pytest.approx(measured[row["mixed_step"]], rel=1e-6)


def test_the_report_and_the_terminal_have_both_numbers(mixed_run):
    page, row = (mixed_run.path / "report.html").read_text(encoding="utf-8"), mixed_run.row
    assert f"{row['mixed_bits_per_byte']:.3f} bits per byte, and {row['unmixed_bits_per_byte']:.3f} without it" in page
    assert f"has a share of {row['mixture_weight']:.3f}" in page
    assert "to mix with: a 5-gram, " in mixed_run.said
    both = (
        f"{row['mixed_bits_per_byte']:.4f} bits/byte of the held-out text, {row['unmixed_bits_per_byte']:.4f} without ("
    )
    assert f"a share of {row['mixture_weight']:.3f}: {both}" in mixed_run.said
    assert "without its n-gram, which convert leaves out" in mixed_run.said


# Using it ----------------------------------------------------------------------------------------

TEXT = "Speak, speak. First, you know Caius Marcius is chief enemy to the people."


def test_it_is_used_where_it_is_asked_for(mixed_run, tmp_path, capsys):
    run = mixed_run
    model, w = pellucid.load(run.path), run.row["mixture_weight"]
    both, own = model.mixed_with().score(TEXT).log_probs, model.score(TEXT).log_probs
    counted = NGram.load(run.path / "ngram").log_probs(
        np.array([model.tokenizer.separator, *model.tokenizer.encode(TEXT)])
    )
    np.testing.assert_allclose(both, np.log(w * np.exp(own) + (1 - w) * np.exp(counted)), rtol=1e-12)
    given = model.mixed_with(weight=0.25).score(TEXT).log_probs
    np.testing.assert_allclose(given, np.log(0.25 * np.exp(own) + 0.75 * np.exp(counted)), rtol=1e-12)
    (tmp_path / "chapter.txt").write_text(TEXT)
    for options, bits in (
        ([], model.score(TEXT).bits_per_byte),
        (["--mix", "auto"], model.mixed_with().score(TEXT).bits_per_byte),
        (["--mix", "auto", "--mix-weight", "0.25"], model.mixed_with(weight=0.25).score(TEXT).bits_per_byte),
    ):
        assert cli.main(["score", str(run.path), str(tmp_path / "chapter.txt"), *options]) == 0
        assert f"bits per byte    {bits:.4f}" in capsys.readouterr().out
    assert cli.main(["generate", str(run.path), "Speak", "--mix", "auto", "--max-tokens", "4", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Speak")


def test_the_ngrams_it_is_compared_with_are_counted_on_the_same_tokens(mixed_run, ids):
    train, aside, _ = ids
    model = pellucid.load(mixed_run.path)
    score = model.score(TEXT, baselines=True)
    counted = NGram.train(np.delete(train, np.concatenate(aside)), model.tokenizer.n_vocab, 3)
    text = np.array([model.tokenizer.separator, *model.tokenizer.encode(TEXT)])
    trigram = next(b for b in score.baselines if b.name == "trigram")
    assert trigram.nats_per_token == pytest.approx(-counted.log_probs(text).mean(), rel=1e-12)


def test_what_has_no_share_is_refused(mixed_run, tmp_path, capsys):
    run = mixed_run.path
    others = {"step": 20, "ngram": None, "mixture.json": None}
    for what in others:
        shutil.copytree(run, tmp_path / what)
    shutil.rmtree(tmp_path / "ngram" / "ngram")
    (tmp_path / "mixture.json" / "mixture.json").unlink()
    (tmp_path / "step" / "mixture.json").write_text('{"weight": 0.5, "step": 7}')
    for what, said in (
        ("ngram", "holds no n-gram: train with --mix auto to have one stored"),
        ("mixture.json", "whose share is not fitted yet: finish the run with --resume"),
        ("step", "was fitted with the network of step 7, and that of step"),
    ):
        with pytest.raises(PredictorError, match=said):
            pellucid.load(tmp_path / what).mixed_with()
        assert cli.main(["generate", str(tmp_path / what), "Speak", "--mix", "auto"]) == 2
        assert said in capsys.readouterr().err
    pellucid.load(tmp_path / "step").mixed_with(weight=0.5)  # a share of one's own is for any step
    model = pellucid.load(run)
    model = replace(model, provenance={})
    with pytest.raises(PredictorError, match="the model does not come from a run"):
        model.mixed_with()
    assert cli.main(["score", str(run), str(run / "recipe.json"), "--mix", "nowhere"]) == 2
    assert (
        "--mix nowhere: expected the folder of a run of n-grams, such as runs/NAME, or auto" in capsys.readouterr().err
    )


def test_convert_says_that_the_ngram_is_left_out(mixed_run, tmp_path, capsys):
    sentence = "The n-gram that the run stores (train --mix auto) is left out: this is the network alone"
    assert cli.main(["convert", str(mixed_run.path), str(tmp_path / "exported"), "--no-compare"]) == 0
    assert sentence in capsys.readouterr().out
    assert sentence in (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    assert not list((tmp_path / "exported").rglob("ngram*"))


# Interrupted -------------------------------------------------------------------------------------


def same_mixture(run, other):
    assert_same_run(run, other)
    for name in ("mixture.json", "ngram/ngram.safetensors", "ngram/ngram.json"):
        assert (run / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("lost", one_in(3, ["nothing", "the n-gram", "a byte of the n-gram"]))
def test_killed_before_the_share_is_written_it_is_fitted_when_resumed(mixed_run, tmp_path, capsys, lost):
    run = tmp_path / "run"

    def go() -> int:
        def write_json(*given):
            os.kill(os.getpid(), signal.SIGKILL)

        mixed_training.write_json = write_json
        return train_mixed(mixed_run.text, run).exit_code

    code, _, errors = forked(go, tmp_path)
    assert code == -signal.SIGKILL, errors
    assert not (run / "mixture.json").exists()
    counts = run / "ngram" / "ngram.safetensors"
    if lost == "the n-gram":
        shutil.rmtree(run / "ngram")
    elif lost == "a byte of the n-gram":
        counts.write_bytes(counts.read_bytes()[:-1] + b"?")
    assert cli.main(["train", "--resume", "--out", str(run)]) == 0
    printed = capsys.readouterr()
    assert ("the n-gram was counted and written again: " in printed.out + printed.err) == (lost != "nothing")
    same_mixture(run, mixed_run.path)
    done = pellucid.train(out=run, resume=True)  # finished: nothing is done twice
    assert (done.step, done.exit_code, done.mixture_weight) == (STEPS, 0, mixed_run.row["mixture_weight"])
    same_mixture(run, mixed_run.path)


@pytest.mark.slow
def test_a_signal_while_the_share_is_fitted_is_obeyed(mixed_run, tmp_path, monkeypatch):
    real = mixed_training.token_losses

    def token_losses(*given):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(mixed_training, "token_losses", token_losses)
        stopped = train_mixed(mixed_run.text, tmp_path / "run")
    assert (stopped.step, stopped.exit_code, stopped.mixture_weight) == (STEPS, 130, None)
    assert pellucid.train(out=tmp_path / "run", resume=True).exit_code == 0
    same_mixture(tmp_path / "run", mixed_run.path)


@pytest.mark.slow
def test_resumed_from_an_earlier_checkpoint_and_made_longer_it_is_fitted_again(mixed_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(mixed_run.path, run)
    shutil.rmtree(folder_of(run, STEPS))
    assert pellucid.train(out=run, resume=True).mixture_weight == mixed_run.row["mixture_weight"]
    same_mixture(run, mixed_run.path)
    longer = pellucid.train(out=run, resume=True, steps=STEPS + 20)
    row = rows(run)[-1]
    assert (row["step"], row["mixture_weight"]) == (STEPS + 20, longer.mixture_weight)
    assert json.loads((run / "mixture.json").read_bytes())["weight"] == longer.mixture_weight


@pytest.mark.slow
def test_several_processes_fit_the_share_of_one(tmp_path):
    text = write_text(tmp_path)
    one = train_together(text, tmp_path / "one", mix="auto", optimizer="adamw")
    two = train_together(text, tmp_path / "two", 2, mix="auto", optimizer="adamw")
    assert (one / "ngram" / "ngram.safetensors").read_bytes() == (two / "ngram" / "ngram.safetensors").read_bytes()
    shares = [json.loads((run / "mixture.json").read_bytes())["weight"] for run in (one, two)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-4)
    written = [[row for row in rows(run) if "mixture_weight" in row] for run in (one, two)]
    assert [len(found) for found in written] == [1, 1]


# Time --------------------------------------------------------------------------------------------


def test_a_run_of_minutes_keeps_the_time_of_mixing(tmp_path):
    """A step of 512 tokens takes 0.3 s, so that each token that is read takes 0.1 / 512 s."""
    fields = TRANSFORMER | {"batch": 32, "accumulate": 1, "sample_every": 0, "evaluate_every": 10**6}
    recipe = make_recipe((str(write_text(tmp_path)),), "small", fields)
    ends = []
    for cost in ((0, 0.0), (10_240, 1.0)):
        pace = Pace.from_now(60.0)
        pace.know(512, 1000, finish=cost)
        pace.start(0.3)
        assert pace.finish(recipe) == pytest.approx(cost[0] * 0.1 / 512 + cost[1])
        ends.append(pace.end_of(recipe, 0))
    assert ends[0] - ends[1] == pytest.approx(3.0 / 0.3, abs=1)


# Refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": {"objective": "masked"}}, "goes with train.objective = next-token, not masked"),
        ({"fields": {"objective": "prefix"}}, "goes with train.objective = next-token, not prefix"),
        ({"fields": {"objective": "chat"}}, "goes with train.objective = next-token, not chat"),
        ({"fields": {"objective": "source-target"}}, "goes with train.objective = next-token, not source-target"),
        ({"from_model": "gpt2"}, "what the weights that a run starts from have seen is not known"),
        ({"mix": "always"}, "train.mix = 'always'"),
    ],
    ids=str,
)
def test_what_cannot_be_mixed_is_refused_and_nothing_is_written(tmp_path, options, message):
    text = write_text(tmp_path)
    with pytest.raises(ValueError, match=message):
        pellucid.train(text, out=tmp_path / "run", **{"mix": "auto", **options})
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_it_for_an_ngram(tmp_path, capsys):
    text = write_text(tmp_path)
    assert cli.main(["train", str(text), "--predictor", "ngram", "--mix", "auto", "--out", str(tmp_path / "run")]) == 2
    assert "--mix auto mixes a network with an n-gram, and ngram is one: leave it out" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="are too few to set 5% of them aside"):
        ranges_to_set_aside(39)


def test_a_run_without_it_cannot_be_resumed_with_it(mixed_run, tmp_path):
    plain = pellucid.train(mixed_run.text, out=tmp_path / "run", steps=1, fields=FIELDS)
    assert (plain.mixture_weight, plain.mixed_bits_per_byte) == (None, None)
    assert not (plain.path / "ngram").exists()
    assert read_recipe(plain.path).train.mix == "no"
    with pytest.raises(RecipeError, match=r"train\.mix: no in the run, auto asked for"):
        pellucid.train(out=plain.path, resume=True, mix="auto", steps=2)
