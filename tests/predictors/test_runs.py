"""Runs of predictors: from a text to a folder like a transformer's, and back to a predictor that is used."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pellucid.generate.errors import GenerationError
from pellucid.generate.scoring import ScoringError
from pellucid.look.model_card import loading_code
from pellucid.predictors.data import PredictorData
from pellucid.predictors.load import load_predictor
from pellucid.predictors.mixture import NGramMixture
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import score_baselines
from pellucid.predictors.options import PredictorError
from pellucid.predictors.recipe import (
    PredictorRecipe,
    described_by_text,
    make_predictor_recipe,
    predictor_fields,
    read_predictor_recipe,
)
from pellucid.predictors.train import train_predictor
from pellucid.runs.checkpoint import CheckpointError, load_checkpoint
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.text.tokens.store import Tokens, TokenSequence

SMALL = {"tokenizer": "char", "batch": 4, "device": "cpu", "sample_every": 0}
KINDS = {
    "neural-probabilistic": {"order": 4, "d_embed": 6, "d_hidden": 12},
    "recurrent": {"d_embed": 6, "d_hidden": 12, "n_ctx": 16},
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path, shakespeare):
    path = tmp_path / "text.txt"
    path.write_text(shakespeare[:12_000], encoding="utf-8")
    return path


def prepared(tmp_path):
    return Tokens.open(next((tmp_path / "cache").glob("tokens-*")))


def small(text, kind, out, more=(), steps=6):
    fields = {**SMALL, **KINDS[kind], **dict(more)}
    return train_predictor(text, kind=kind, out=out, fields=fields, steps=steps)


def weights(run, step):
    return load_checkpoint(run, step)[0].weights


# N-grams ------------------------------------------------------------------------------------


def test_a_counted_run_has_the_layout_and_the_loss_of_its_counts(tmp_path, text):
    run = train_predictor(text, kind="ngram", out=tmp_path / "run", fields={"tokenizer": "char", "order": "4"})
    names = {path.name for path in run.path.iterdir()}
    assert names >= {"recipe.json", "architecture.json", "tokenizer.json", "data.json", "metrics.jsonl", "ngram"}
    recipe = json.loads((run.path / "recipe.json").read_text())["options"]
    assert recipe["kind"] == "ngram"
    assert recipe["model"]["order"] == 4
    tokens = prepared(tmp_path)
    train, held_out = (tokens.part(p).read(0, len(tokens.part(p))) for p in ("train", "held_out"))
    expected = -NGram.train(train, tokens.n_vocab, 4).log_probs(held_out).mean()
    assert run.held_out_loss == pytest.approx(expected, rel=1e-12)
    row = read_metrics(run.path / "metrics.jsonl")[-1]
    assert row["held_out_loss"] == run.held_out_loss
    ratio = len(held_out) / tokens.part("held_out").n_bytes
    assert row["bits_per_byte"] == pytest.approx(expected / math.log(2) * ratio, rel=1e-12)


def test_documents_are_borders_where_asked(tmp_path, shakespeare):
    for i, part in enumerate(shakespeare[:9000].split("\n\n")):
        (tmp_path / f"{i:03}.txt").write_text(part, encoding="utf-8")
    fields = {"tokenizer": "char", "inside_documents": "yes"}
    run = train_predictor(*tmp_path.glob("*.txt"), kind="ngram", out=tmp_path / "run", fields=fields)
    predictor = load_predictor(run.path)
    assert predictor.network.ngram.choices.separator == predictor.tokenizer.separator


def test_maximum_likelihood_says_how_much_it_knows_nothing_about(tmp_path, text):
    fields = {"tokenizer": "char", "order": 6, "smoothing": "maximum-likelihood"}
    run = train_predictor(text, kind="ngram", out=tmp_path / "run", fields=fields)
    assert run.held_out_loss is None
    row = json.loads((run.path / "metrics.jsonl").read_text())
    assert row["held_out_loss"] is None
    assert 0.2 < row["without_probability"] < 0.9
    with pytest.raises(ScoringError, match="a context that training did not have"):
        load_predictor(run.path).score("zzzzzzzzzz")


# Networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_learns_and_is_measured_on_every_held_out_token(tmp_path, text, kind):
    run = small(text, kind, tmp_path / "run", steps=90, more={"learning_rate": 0.02})
    assert (run.step, run.exit_code) == (90, 0)
    predictor, tokens = load_predictor(run.path, checkpoint="last"), prepared(tmp_path)
    held_out = tokens.part("held_out").read(0, len(tokens.part("held_out")))
    if kind == "neural-probabilistic":
        loss = -predictor.log_probs(held_out).mean()
    else:  # windows of n_ctx that do not overlap, as a transformer is measured; the last is moved back
        n, total = len(held_out) - 1, 0.0
        for start in range(0, n, 16):
            begin = min(start, n - 16)
            rows = predictor.network(torch.from_numpy(held_out[begin : begin + 16])[None])[0].log_softmax(-1)
            own = rows[torch.arange(16), torch.from_numpy(held_out[begin + 1 : begin + 17])]
            total -= own[start - begin :].double().sum().item()
        loss = total / n
    assert run.held_out_loss == pytest.approx(loss, abs=1e-5)
    assert run.held_out_loss < 0.8 * math.log(tokens.n_vocab)
    assert run.recipe.train.precision == "float32"
    assert read_predictor_recipe(run.path) == run.recipe
    assert PredictorRecipe.from_dict(run.recipe.to_dict()) == run.recipe


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_a_target_once_an_epoch_with_all_that_it_reads(kind):
    n_ctx = 64 if kind == "neural-probabilistic" else 16
    ids = np.arange(n_ctx * 6)  # each token says where it is from
    part = TokenSequence.from_ids(ids, n_vocab=len(ids), n_bytes=len(ids))
    recipe = make_predictor_recipe(("-",), kind, {**KINDS[kind], "batch": 2}, {"steps": 3})
    recipe = described_by_text(recipe, len(ids), 0)
    manifest = {"tokenizer": {"n_vocab": len(ids), "separator": 0, "hash": ""}}
    tokens = Tokens(Path(), manifest, {"train": part, "held_out": part})
    data = PredictorData(tokens, recipe, torch.device("cpu"))
    passes = [data.at(step, 0, 1) for step in range(3)]
    targets = np.concatenate([p.targets[p.counts].numpy() for p in passes])
    np.testing.assert_array_equal(np.sort(targets), ids)
    reach = 3 if kind == "neural-probabilistic" else 1
    for p in passes:
        assert p.counts.shape == p.inputs.shape
        for row, at in p.counts.nonzero().tolist():
            before = p.inputs[row, at - reach + 1 : at + 1].tolist()
            assert before == [(int(p.targets[row, at]) - k) % len(ids) for k in range(reach, 0, -1)]
    measured = np.concatenate([p.targets[p.counts].numpy() for p in data.held_out()])
    np.testing.assert_array_equal(np.sort(measured), ids[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_is_fitted_on_training_text_set_aside(tmp_path, text, kind):
    """As that of a transformer (tests/training/test_mixed_training.py)."""
    run = small(text, kind, tmp_path / "run", steps=30, more={"mix": "auto", "learning_rate": 0.02})
    predictor, tokens = load_predictor(run.path), prepared(tmp_path)
    assert isinstance(predictor.network, NGramMixture)
    part, ranges = tokens.part("train"), json.loads((run.path / "data.json").read_bytes())["set_aside"]
    rest = part.without(ranges)
    assert len(rest) == pytest.approx(0.95 * len(part), rel=0.001)
    expected = NGram.train(rest.read(0, len(rest)), tokens.n_vocab, 5)
    held_out = tokens.part("held_out").read(0, len(tokens.part("held_out")))
    np.testing.assert_array_equal(predictor.network.counted.log_probs(held_out), expected.log_probs(held_out))
    row = read_metrics(run.path / "metrics.jsonl")[-1]
    assert 0 < row["mixture_weight"] == predictor.network.weight < 1
    assert row["mixed_loss"] == pytest.approx(-predictor.log_probs(held_out).mean(), abs=1e-6)
    assert row["unmixed_loss"] == pytest.approx(-predictor.network.network.log_probs(held_out).mean(), abs=1e-6)
    # the weight is the best one for the text set aside
    aside = [part.read(*one) for one in ranges]
    both = (predictor.network.network, predictor.network.counted)
    own, counted = (np.concatenate([m.log_probs(ids) for ids in aside]) for m in both)
    gains = [np.logaddexp(np.log(w) + own, np.log(1 - w) + counted).sum() for w in np.linspace(0.01, 0.99, 99)]
    assert row["mixture_weight"] == pytest.approx(np.linspace(0.01, 0.99, 99)[int(np.argmax(gains))], abs=0.011)
    assert not isinstance(load_predictor(run.path, checkpoint="last").network, NGramMixture)
    again = train_predictor(kind=kind, out=run.path, resume=True)  # finished: nothing is done twice
    assert (again.mixture_weight, again.held_out_loss) == (run.mixture_weight, run.held_out_loss)


# Using --------------------------------------------------------------------------------------


@pytest.fixture(params=["ngram", *KINDS])
def predictor(request, tmp_path, text):
    if request.param == "ngram":
        train_predictor(text, kind="ngram", out=tmp_path / "used", fields={"tokenizer": "char"})
    else:
        small(text, request.param, tmp_path / "used")
    return load_predictor(tmp_path / "used")


def test_texts_are_written_from_the_seed_and_streamed_as_they_are(predictor):
    options = {"max_tokens": 30, "seed": 3, "temperature": 1.0}
    one = predictor.generate("First", **options)
    assert len(one.ids) == 30 or one.finish_reason == "end"
    assert predictor.tokenizer.decode(one.ids) == one.text
    assert "".join(piece.text for piece in predictor.stream("First", **options)) == one.text
    many = predictor.generate_many(["First", "Speak, spea"], n=2, **options)
    assert [(g.prompt, g.sample) for g in many] == [("First", 0), ("First", 1), ("Speak, spea", 0), ("Speak, spea", 1)]
    assert many[0].text == one.text
    stopped = predictor.generate("First", **{**options, "max_tokens": 400}, stop=list("abcdefghijklmnopqrstuvwxyz"))
    assert stopped.finish_reason == "stop"
    assert stopped.text.upper() == stopped.text
    with pytest.raises(GenerationError, match="max_tokens = -1"):
        predictor.generate("a", max_tokens=-1)


def test_the_next_token_written_is_drawn_from_what_is_scored(predictor):
    """At temperature 0 the likeliest token comes: no other one scores higher."""
    prompt = "First Citizen"
    chosen = predictor.generate(prompt, max_tokens=1, temperature=0).ids
    ids = [predictor.tokenizer.separator, *predictor.tokenizer.encode(prompt)]
    scores = [predictor.log_probs(np.array([*ids, v]))[-1] for v in range(predictor.tokenizer.n_vocab)]
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)
    likeliest = int(np.argmax(scores))
    assert chosen == ([] if likeliest == predictor.tokenizer.separator else [likeliest])


def test_scores_add_up_and_count_bytes(predictor):
    score = predictor.score("Speak, speak.")
    assert score.n_bytes == 13
    assert score.n_context == 1
    ids = [predictor.tokenizer.separator, *predictor.tokenizer.encode("Speak, speak.")]
    np.testing.assert_array_equal(score.log_probs, predictor.log_probs(np.array(ids)))
    after = predictor.score("speak.", prefix="Speak, ")
    np.testing.assert_allclose(after.log_probs, score.log_probs[-7:], rtol=1e-6)
    assert b"".join(after.pieces) == b" speak."
    with pytest.raises(ScoringError, match="no token to score"):
        predictor.score("")


# The baselines ------------------------------------------------------------------------------


def test_baselines_are_the_counts_on_the_held_out_part(tmp_path, text):
    train_predictor(text, kind="ngram", out=tmp_path / "run", fields={"tokenizer": "char", "order": 3})
    tokens = prepared(tmp_path)
    train, part = (tokens.part(name) for name in ("train", "held_out"))
    ids, text = train.read(0, len(train)), part.read(0, len(part))
    found = {b.name: b for b in score_baselines(ids, text, part, tokens.n_vocab)}
    assert list(found) == ["uniform", "unigram", "bigram", "trigram", "5-gram"]
    assert found["uniform"].nats_per_token == math.log(tokens.n_vocab)
    assert found["trigram"].nats_per_token == read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["held_out_loss"]
    losses = [b.nats_per_token for b in found.values()]
    assert losses == sorted(losses, reverse=True)
    for b in found.values():
        assert b.bits_per_byte == pytest.approx(b.nats_per_token / math.log(2) * len(part) / part.n_bytes)
    fewer = score_baselines(ids[:5000], text, part, tokens.n_vocab, longest=2)
    assert [b.name for b in fewer] == ["uniform", "unigram", "bigram"]
    assert fewer[-1].nats_per_token > found["bigram"].nats_per_token


# Refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("ngram", {"minutes": 1}, "leave out minutes"),
        ("ngram", {"fields": {"d_hidden": 3}}, "no field 'd_hidden'"),
        ("ngram", {"fields": {"ordr": 3}}, "did you mean 'model.order'"),
        ("ngram", {"fields": {"order": 0}}, "order = 0"),
        ("ngram", {"fields": {"order": "five"}}, "expected an integer"),
        ("ngram", {"fields": {"smoothing": "kneser"}}, "did you mean 'kneser-ney'"),
        ("ngram", {"fields": {"learning_rate": 1}}, "no field 'learning_rate'"),
        ("neural-probabilistic", {"steps": -1}, "steps = -1"),
        ("neural-probabilistic", {"steps": 3, "minutes": 1}, "given twice"),
        ("neural-probabilistic", {"fields": {"optimizer": "muon"}}, "no field 'optimizer'"),
        ("neural-probabilistic", {"fields": {"mix": "always"}}, "train.mix = 'always'"),
        ("ngram", {"fields": {"mix": "auto"}}, "no field 'mix'"),
        ("recurrent", {"fields": {"inside_documents": "yes"}}, "keeps its state across documents"),
        ("oracle", {}, "choose one of ngram, neural-probabilistic, recurrent"),
    ],
)
def test_wrong_choices_are_refused_and_nothing_is_written(tmp_path, text, kind, options, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        train_predictor(text, kind=kind, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_folders_are_refused_for_what_they_are(tmp_path, text):
    run = train_predictor(text, kind="ngram", out=tmp_path / "run", fields={"tokenizer": "char"})
    with pytest.raises(RecipeError, match="exists"):
        train_predictor(text, kind="ngram", out=run.path)
    with pytest.raises(RecipeError, match="counts its text once"):
        train_predictor(kind="ngram", out=run.path, resume=True)
    with pytest.raises(RecipeError, match="no text was named"):
        train_predictor(kind="ngram")
    with pytest.raises(RecipeError, match="nowhere does not exist"):
        load_predictor(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="an n-gram has no checkpoints"):
        load_predictor(run.path, checkpoint="4")
    (run.path / "recipe.json").write_text('{"options": {"kind": "transformer"}}')
    with pytest.raises(RecipeError, match=r"is a run of kind transformer: open it with pellucid\.load\("):
        load_predictor(run.path)


def test_fields_that_would_be_ignored_cannot_be_set():
    assert {"model.order", "model.smoothing", "text.tokenizer", "train.seed"} <= set(predictor_fields("ngram"))
    assert "train.learning_rate" not in predictor_fields("ngram")
    ignored = {"optimizer", "recompute", "init_std", "objective", "mask_share", "attention"}
    assert not {f"train.{name}" for name in ignored} & set(predictor_fields("recurrent"))
    make_predictor_recipe((), "ngram", {"alpha": 7, "smoothing": "add-alpha"}, {})
    with pytest.raises(RecipeError, match="alpha belongs to smoothing=add-alpha"):
        make_predictor_recipe((), "ngram", {"alpha": 7}, {})


@pytest.mark.parametrize("step", ["best", "4"])
def test_the_code_of_the_inspector_opens_a_mixture_as_one_and_its_network_alone_as_that(tmp_path, text, step):
    run = small(text, "recurrent", tmp_path / "run", {"mix": "auto"}, steps=4).path
    names: dict = {}
    exec(loading_code(load_predictor(run, checkpoint=step, allow_nan=True)), names)
    assert isinstance(names["model"].network, NGramMixture) is (step == "best")
    assert names["model"].provenance == {"folder": str(run), "allow_nan": True, "step": 4}


def test_a_mixture_fitted_for_another_checkpoint_is_refused(tmp_path, text):
    run = small(text, "recurrent", tmp_path / "run", {"mix": "auto"}).path
    fitted = json.loads((run / "mixture.json").read_bytes())
    assert isinstance(load_predictor(run).network, NGramMixture)
    (run / "mixture.json").write_text(json.dumps(fitted | {"step": fitted["step"] + 1}))
    with pytest.raises(PredictorError, match=r"finish the run \(--resume\), or open the network alone"):
        load_predictor(run)
    assert not isinstance(load_predictor(run, checkpoint=str(fitted["step"])).network, NGramMixture)
