"""Dictionaries of a model in the pipeline of runs: trained, stopped and resumed, measured, opened again."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import pellucid
import pellucid.edits
from pellucid.features.dictionary import transcoder_sites
from pellucid.features.measure import LinearMap
from pellucid.features.recipe import check_explainable
from pellucid.features.splice import Spliced, site_activations
from pellucid.features.training import ROWS_PER_SAMPLE, TrainedDictionary
from pellucid.reference.dictionaries import batch_top_k, dictionary_output, unexplained_variance
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.training.objectives import MicroBatch

FIELDS = {"n_features": 64, "k": 4, "train.batch": 4, "device": "cpu", "evaluate_every": 6, "dead_tokens": 300}


@pytest.fixture(scope="module")
def explained(tmp_path_factory, shakespeare):
    """A run of a small transformer."""
    folder = tmp_path_factory.mktemp("explained")
    (folder / "text.txt").write_text(shakespeare[:40_000])
    fields = {"n_layers": 2, "d_model": 16, "n_heads": 2, "n_ctx": 32, "batch": 4, "device": "cpu", "vocabulary": 300}
    return pellucid.train(folder / "text.txt", out=folder / "run", steps=20, fields=fields, show=False).path


@pytest.fixture(scope="module")
def trained(explained):
    """A run of dictionaries of it, without a stop."""
    return pellucid.train_features(explained, steps=12, fields=FIELDS, show=False)


def test_a_run_of_dictionaries_is_measured_and_opened(explained, trained):
    assert trained.path == explained / "features"
    features = pellucid.load_features(trained.path)
    assert [one.site for one in features] == transcoder_sites(features.model.architecture)
    figures = json.loads((trained.path / "features.json").read_text())
    assert figures["own_loss"] < figures["loss"]
    assert figures["kl"] > 0
    for site in figures["sites"]:
        assert site["active"] == pytest.approx(FIELDS["k"], rel=0.5)
        assert len(site["frequency"]) == FIELDS["n_features"]
    losses = [row["loss"] for row in read_metrics(trained.path / "metrics.jsonl") if "loss" in row]
    assert losses[-1] < losses[0]
    assert {f"{x:.5f}" for x in features[0].W_dec.norm(dim=1).tolist()} == {"1.00000"}


def test_dictionaries_stand_in_the_place_of_what_they_explain(trained):
    features = pellucid.load_features(trained.path)
    model, sites = features.model, [one.site for one in features]
    tokens = torch.arange(20)[None]
    trace = model.trace(tokens.tolist(), keep="*")
    with torch.no_grad():
        same = Spliced(model.network, sites, [lambda x, name=site.writes: trace[name] for site in sites])
        assert torch.equal(same(tokens), trace["logits"])
        given_to = []
        zero = Spliced(model.network, sites, [lambda x: given_to.append(x) or torch.zeros_like(x)] * len(sites))
        logits = zero(tokens)
        edits = [pellucid.edits.zero(site.writes) for site in sites]
        assert torch.equal(logits, model.trace(tokens.tolist(), edits=edits)["logits"])
    assert torch.equal(given_to[0], trace[sites[0].reads])


def test_a_run_that_is_stopped_and_resumed_is_bitwise_the_same(explained, trained, tmp_path, monkeypatch):
    from pellucid.runs import trainer

    out = tmp_path / "features"
    take = trainer.Trainer.advance

    def stopping(self, compiles):
        take(self, compiles)
        if self.step == 7:
            self.interruption.signal = 2

    monkeypatch.setattr(trainer.Trainer, "advance", stopping)
    stopped = pellucid.train_features(explained, out=out, steps=12, fields=FIELDS, show=False)
    monkeypatch.undo()
    assert stopped.step == 7
    assert not (out / "dictionaries").exists()
    with pytest.raises(ValueError, match="has no dictionaries yet: finish it with"):
        pellucid.load_features(out)
    pellucid.train_features(explained, out=out, resume=True, show=False)
    one, other = pellucid.load_features(out), pellucid.load_features(trained.path)
    for mine, theirs in zip(one, other, strict=True):
        for name, value in theirs.dictionary.state_dict().items():
            assert torch.equal(mine.dictionary.state_dict()[name], value), name
    assert one.figures == other.figures


def test_a_model_with_other_weights_is_refused(explained, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(explained, copy)
    values = json.loads((copy / "features" / "recipe.json").read_text())
    values["options"]["base"]["sha256"] = "0" * 64
    (copy / "features" / "recipe.json").write_text(json.dumps(values))
    with pytest.raises(RecipeError, match="holds other weights than those that the dictionaries explain"):
        pellucid.load_features(copy / "features")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 0}, "model.k = 0: expected from 1 to n_features"),
        ({"n_features": 3}, "model.k = 32: expected from 1 to n_features"),
        ({"tensor": "norm"}, "model.tensor = 'norm': choose mlp, or one of .*resid_post"),
        ({"tensor": "resid_post", "linear": "yes"}, "goes with transcoders"),
        ({"kk": 1}, "there is no field 'kk'"),
        ({"n_ctx": 999}, "model.n_ctx = 999: the model reads at most 32 tokens at once"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(fields, message, explained, tmp_path):
    with pytest.raises(RecipeError, match=message):
        pellucid.train_features(explained, out=tmp_path / "out", steps=2, fields=fields, show=False)
    assert not (tmp_path / "out").exists()


def test_an_autoencoder_of_a_tensor_of_every_block(explained, tmp_path):
    fields = {**FIELDS, "tensor": "resid_post"}
    run = pellucid.train_features(explained, out=tmp_path / "out", steps=4, fields=fields, show=False)
    features = pellucid.load_features(run.path)
    assert {one.site.kind for one in features} == {"autoencoder"}
    assert features.activations("To be")[1].shape[-1] == 64


@pytest.mark.parametrize("linear", [False, True])
def test_training_scores_what_the_definition_says(linear):
    """On rows of which each is sampled: the unexplained share, with the largest activations of the batch."""
    torch.manual_seed(0)
    dictionary = TrainedDictionary(5, 6, 20, 3, linear).double()
    for value in dictionary.parameters():
        torch.nn.init.normal_(value)
    x = torch.randn(8, 5).double().repeat_interleave(ROWS_PER_SAMPLE, 0)  # rows that are sampled stand for all
    y = torch.randn(len(x), 6).double()
    state = {name: t.detach().numpy() for name, t in dictionary.state_dict().items()}
    h = batch_top_k(x.numpy()[::ROWS_PER_SAMPLE] @ state["W_enc"] + state["b_enc"], 3).repeat(ROWS_PER_SAMPLE, 0)
    decoder = F.normalize(dictionary.W_dec, dim=1).detach().numpy()
    out = dictionary_output(x.numpy(), h, decoder, state["b_dec"], state.get("W_skip"))
    found = dictionary.unexplained(x, y, dead_tokens=10**9, dead_share=0.0).item()
    assert found == pytest.approx(unexplained_variance(y.numpy(), out), rel=1e-12)


@pytest.mark.parametrize("dead_share", [0.0, 1.0])
def test_silent_features_are_trained_on_the_rest(dead_share):
    """Features 2 to 5 are never among the largest: only what the others leave unexplained reaches them."""
    torch.manual_seed(0)
    dictionary = TrainedDictionary(4, 4, 6, 2, has_skip=False)
    torch.nn.init.normal_(dictionary.W_dec)
    with torch.no_grad():
        dictionary.W_enc.zero_()
        dictionary.b_enc.copy_(torch.tensor([5.0, 4.0, 0.5, 0.4, 0.3, 0.2]))
    x, y = torch.randn(32, 4), torch.randn(32, 4)
    dictionary.unexplained(x, y, dead_tokens=16, dead_share=dead_share).backward()
    assert dictionary.silent.tolist() == [0, 0, 32, 32, 32, 32]
    assert dictionary.W_dec.grad is not None
    moved = dictionary.W_dec.grad.abs().sum(1) > 0
    # of the four the two largest explain the rest, half of the width
    assert moved.tolist() == [True, True, *([dead_share > 0] * 2), False, False]


def test_a_linear_map_is_the_best_one():
    torch.manual_seed(0)
    x, noise = torch.randn(200, 3).double(), torch.randn(200, 2).double()
    y = x @ torch.randn(3, 2).double() + 4 + noise
    linear = LinearMap(3, 2)
    for first in range(0, 200, 50):
        linear.see(x[first : first + 50], y[first : first + 50])
    design = torch.cat([x, torch.ones(200, 1).double()], 1)
    assert torch.allclose(linear.solved(), torch.linalg.lstsq(design, y).solution, atol=1e-6)


def test_activations_are_the_tensors_of_the_trace(explained):
    model = pellucid.load(explained, device="cpu")
    tokens, sites = torch.arange(8)[None], transcoder_sites(model.architecture)
    trace = model.trace([list(range(8))], keep="*")
    pairs = site_activations(model.network, MicroBatch(tokens, tokens), sites)
    for site, (x, y) in zip(sites, pairs, strict=True):
        assert torch.equal(x, trace[site.reads][0])
        assert torch.equal(y, trace[site.writes][0])


def test_a_card_is_what_the_model_computes(trained):
    """Activations, places and effects of a card, each computed again from the text and the weights."""
    features = pellucid.load_features(trained.path)
    row = features.active("First Citizen: we are").rows[0]
    card = features.card(row.layer, row.feature, n_tokens=2048)
    dictionary, model = features[row.layer], features.model
    assert card.n_tokens <= 2048
    assert card.passages[0].activation == max(p.activation for p in card.passages)
    assert card.passages[0].quantile == 1
    for passage in card.passages:
        start, stop = passage.place.file_bytes or (0, 0)
        with open(passage.place.file, "rb") as file:
            assert file.read()[start:stop].decode() == passage.token
        assert passage.activation > dictionary.threshold[row.feature]
    x = dictionary.W_dec[row.feature] * model.network.final_norm.multiplier
    effect = x @ model.network.unembed.weight.T
    effect = (effect - effect.mean())[: model.tokenizer.n_vocab].detach()
    assert [e.effect for e in card.raised] == pytest.approx(effect.topk(8).values.tolist(), rel=1e-4)
    assert card.lowered[0].effect == pytest.approx(effect.min().item(), rel=1e-4)
    token = model.network.blocks[row.layer].norm_2(model.network.embed.token.weight)
    h = dictionary.pre_activations(token)[:, row.feature].detach()
    assert card.excited_by[0].effect == pytest.approx(h.max().item(), rel=1e-4)
    assert f"feature {row.layer}.{row.feature} of blocks.{row.layer}.mlp_out" in repr(card)


def test_active_features_are_those_of_the_text(trained):
    features = pellucid.load_features(trained.path)
    row, values = features.active("To be").rows[0], features.activations("To be")
    assert row.activation == max(float(v.max()) for v in values.values())
    assert row.activation == float(values[row.layer][0, row.position, row.feature])
    assert features.active("To be", more_than="To be").rows == ()


def test_a_feature_that_does_not_exist_is_refused(trained):
    features = pellucid.load_features(trained.path)
    with pytest.raises(ValueError, match="there is no feature 64: there are 64, from 0 on"):
        features.card(0, 64)
    with pytest.raises(ValueError, match="there is no dictionary of layer 9: there are those of 0, 1"):
        features[9]


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("bert", {"objective": "masked"}, "reads the tokens behind a position too"),
        ("small", {"objective": "source-target"}, "reads a source beside its text"),
    ],
)
def test_models_that_predict_no_next_token_are_refused(name, fields, why):
    a = pellucid.preset(name, 300)
    if fields["objective"] == "source-target":
        a = replace(a, encoder=replace(a, attention=replace(a.attention, mask="bidirectional")))
    with pytest.raises(RecipeError, match=f"predict the next token of a text, and this one {why}"):
        check_explainable(a)


def test_dictionaries_whose_measuring_did_not_end_are_not_opened(explained, trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "cut")
    (tmp_path / "cut" / "features.json").unlink()
    with pytest.raises(ValueError, match="finish it with pellucid train --resume --out"):
        pellucid.load_features(tmp_path / "cut")
