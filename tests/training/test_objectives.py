"""Objectives: what is read, what is predicted, and that nothing scored can be read."""

import shutil

import numpy as np
import pytest
import torch
from tests.training.tiny import assert_same_tensors, make_training, recipe_for, resume, rows, start, tensors, write_text

from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.model.mask import prefix_mask
from pellucid.model.weights import initialise
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder
from pellucid.text.tokenizers.base import MASK
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.batches import noise
from pellucid.text.tokens.store import Tokens
from pellucid.training import objectives
from pellucid.training.data import MaskedData
from pellucid.training.load import load_run
from pellucid.training.objectives import (
    MicroBatch,
    after_prefix,
    hide_random_tokens,
    logits_of,
    losses_and_hits,
    summed_loss,
    summed_loss_in_chunks,
)


@pytest.mark.item("S3-2-b")
def test_hidden_places_and_what_stands_there():
    """Exactly n_hidden places a row; 80 % the mask, 10 % random, 10 % themselves, in the long run."""
    tokens = np.random.default_rng(0).integers(0, 50, (400, 64))
    inputs, hidden = hide_random_tokens(
        tokens, noise(1, 2, np.arange(400), 64), 10, mask_id=50, plain_ids=np.arange(50)
    )
    assert (hidden.sum(1) == 10).all()
    assert (inputs[~hidden] == tokens[~hidden]).all()
    masked = (inputs[hidden] == 50).mean()
    changed = ((inputs[hidden] != 50) & (inputs[hidden] != tokens[hidden])).mean()
    assert masked == pytest.approx(0.8, abs=0.03)
    assert changed == pytest.approx(0.1 * 49 / 50, abs=0.03)
    places = hidden.mean(0)
    assert places.min() > 0.08  # no place is spared: 10 of 64 is 0.156
    assert places.max() < 0.24


def test_noise_is_a_function_of_seed_step_and_row():
    whole = noise(3, 7, np.arange(8), 5)
    assert (noise(3, 7, np.arange(4, 8), 5) == whole[4:]).all()
    assert (noise(3, 8, np.arange(8), 5) != whole).all()
    assert (noise(4, 7, np.arange(8), 5) != whole).all()
    assert len(np.unique(whole)) == whole.size


def test_targets_behind_the_prefix():
    """A prefix of p tokens leaves tokens p ... n_ctx to be predicted; the first token never is."""
    expected = [[True] * 4, [True] * 4, [False, True, True, True], [False, False, False, True]]
    assert after_prefix(np.array([0, 1, 2, 4]), 4).tolist() == expected


@pytest.mark.item("S3-6-c")
def test_one_network_is_measured_under_both_alignments():
    """The same logits, judged by the token that stands there and by the next: the shift is the pass's alone."""
    network = initialise(Transformer(Architecture(n_vocab=7, n_ctx=6, d_model=8, n_layers=1)), seed=0, std=1.0)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 0]])
    there, behind = MicroBatch(tokens, tokens), MicroBatch(tokens[:, :-1], tokens[:, 1:])
    log_probs = network(tokens).log_softmax(-1)[0]
    assert summed_loss(network, there).item() == pytest.approx(
        -sum(log_probs[i, t].item() for i, t in enumerate(tokens[0]))
    )
    nexts = -sum(log_probs[i, t].item() for i, t in enumerate(tokens[0, 1:]))
    assert summed_loss(network, behind).item() == pytest.approx(nexts, rel=1e-5)
    assert summed_loss(network, there).item() != pytest.approx(nexts, rel=0.01)


@pytest.mark.item("S3-6-c")
@pytest.mark.parametrize("objective", ["masked", "prefix"])
def test_passes_add_up_to_the_step(objective, tmp_path):
    """The passes of a step are its rows in order, and `total` counts the targets of them all."""
    run = start(write_text(tmp_path), tmp_path / "run", objective=objective, steps=4, evaluate_every=2)
    assert run.held_out_loss is not None
    training = loop_of(run)
    whole = training.at(3, 0, 1)
    parts = [training.at(3, i, 4) for i in range(4)]
    for field in ("inputs", "targets", "counts"):
        assert torch.equal(torch.cat([getattr(p, field) for p in parts]), getattr(whole, field))
    assert {p.total for p in [*parts, whole]} == {int(whole.counts.sum())}


def loop_of(run):
    """The data of a finished run, made again."""
    from pellucid.text.read.documents import read_corpus
    from pellucid.text.split import split_corpus
    from pellucid.text.tokenizers.tokenizer import load_tokenizer
    from pellucid.text.tokens.prepare import prepare_tokens
    from pellucid.training.data import make_data

    corpus = split_corpus(read_corpus(run.recipe.inputs), run.recipe.text.held_out, run.recipe.train.seed)
    tokens = prepare_tokens(corpus, load_tokenizer(run.path), run.path.parent / "cache")
    return make_data(tokens, run.recipe, torch.device("cpu"))


def test_no_scored_target_behind_a_prefix_can_be_read(tmp_path):
    """Changing the tokens that are scored changes no logit that predicts them or earlier ones."""
    run = start(write_text(tmp_path), tmp_path / "run", objective="prefix", steps=2, evaluate_every=2)
    network, _, _ = load_run(run.path, "last", torch.device("cpu"))
    given = loop_of(run).at(0, 0, 1)
    before = logits_of(network, given)
    for row in range(given.inputs.size(0)):
        first = int(given.counts[row].nonzero()[0]) + 1  # the first token that is predicted
        if first >= given.inputs.size(1):
            continue
        given.inputs[row, first:] = (given.inputs[row, first:] + 1) % 250
        after = logits_of(network, given)
        assert torch.equal(after[row, :first], before[row, :first])
    assert prefix_mask(given.prefix, 16).any(-1).all()


def test_a_masked_run_hides_by_a_token_of_its_own_and_resumes(tmp_path):
    text = write_text(tmp_path)
    fields = {"objective": "masked", "evaluate_every": 2, "schedule": "constant", "dropout": 0.1}
    whole = start(text, tmp_path / "whole", steps=6, **fields)
    start(text, tmp_path / "parts", steps=4, **fields)
    assert whole.recipe.model.attention.mask == "bidirectional"
    _, tokenizer, _ = load_run(whole.path, "last", torch.device("cpu"))
    assert tokenizer.special[MASK] == tokenizer.n_vocab - 1
    assert resume(tmp_path / "parts", steps=6).step == 6
    assert_same_tensors(tensors(tmp_path / "parts", 6), tensors(whole.path, 6))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention.mask": "bidirectional"}, "could read what it is to predict"),
        ({"objective": "masked", "attention.mask": "causal"}, "attention.mask = bidirectional"),
        ({"objective": "prefix", "inside_documents": "yes"}, "goes with train.objective = next-token"),
        ({"objective": "masked", "mask_share": 1.0}, "mask_share"),
    ],
)
def test_contradictions_are_refused(fields, message, tmp_path):
    with pytest.raises(RecipeError, match=message):
        recipe_for(write_text(tmp_path), **fields)


def test_accumulated_prefix_passes_are_the_large_batch(tmp_path):
    """Weighted by how many targets each pass scores, in float64 to 1e-12."""
    text = write_text(tmp_path)
    run = start(text, tmp_path / "run", objective="prefix", steps=1, dropout=0.0)
    data = loop_of(run)
    found = []
    for of in (1, 4):
        training = make_training(text, tmp_path / f"t{of}", torch.float64, data=data, objective="prefix", dropout=0.0)
        for micro in range(of):
            given = data.at(0, micro, of)
            (training.trainable.loss(given) / given.total).backward()
        found.append({n: p.grad.clone() for n, p in training.network.named_parameters()})
    for name, grad in found[0].items():
        assert torch.allclose(grad, found[1][name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("readout", [{}, {"unembed": "untied"}, {"readout": "bert"}])
@pytest.mark.parametrize("n_logits", [1, 3 * 50 + 1, 10_000])
def test_cross_entropy_in_chunks_is_the_same_loss_with_the_same_gradients(readout, n_logits, trained, monkeypatch):
    """Whatever the chunks are, with targets that do not count, beside a loss that is divided, with a frozen readout."""
    monkeypatch.setattr(objectives, "LOGITS_AT_ONCE", n_logits)
    a = Architecture(n_vocab=50, n_ctx=8, d_model=16, n_layers=1, attention=Attention(n_heads=2), **readout)
    network = initialise(Transformer(a), 0).double()
    network.unembed.requires_grad_(trained)
    ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(1))
    given = MicroBatch(ids, ids.roll(-1, 1), counts=torch.arange(8).expand(2, 8) > 2)
    found = []
    for loss_of in (summed_loss, summed_loss_in_chunks):
        network.zero_grad()
        loss = loss_of(network, given)
        (loss / 10).backward()
        found.append([loss.detach(), *(p.grad for p in network.parameters() if p.requires_grad)])
    for whole, chunked in zip(*found, strict=True):
        assert torch.allclose(whole, chunked, rtol=1e-12, atol=1e-12)


def test_many_logits_are_made_in_chunks(tmp_path, monkeypatch):
    """A run trains to the same losses either way, and which way is taken follows from how many logits a pass has."""
    text, taken = write_text(tmp_path), []
    plain = start(text, tmp_path / "plain", dropout=0.0).path
    chunked = objectives.summed_loss_in_chunks
    monkeypatch.setattr(objectives, "MANY_LOGITS", 2 * 16 * 256)
    monkeypatch.setattr(objectives, "LOGITS_AT_ONCE", 1000)
    monkeypatch.setattr(objectives, "summed_loss_in_chunks", lambda *given: taken.append(1) or chunked(*given))
    other = start(text, tmp_path / "other", dropout=0.0).path
    losses = [[row["loss"] for row in rows(run) if "loss" in row] for run in (plain, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(taken) == 24


@pytest.mark.parametrize("readout", [{}, {"unembed": "untied"}, {"readout": "bert"}])
def test_many_logits_are_measured_in_chunks(readout, monkeypatch):
    """As in training: a few rows of logits exist at a time, and the losses and the hits are the same."""
    a = Architecture(n_vocab=50, n_ctx=8, d_model=16, n_layers=1, attention=Attention(n_heads=2), **readout)
    network = initialise(Transformer(a), 0).double()
    ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(1))
    given, sizes = MicroBatch(ids, ids.roll(-1, 1)), []
    whole, hits = losses_and_hits(network, given)
    network.unembed.register_forward_hook(lambda module, inputs, output: sizes.append(output.numel()))
    monkeypatch.setattr(objectives, "MANY_LOGITS", 800)
    monkeypatch.setattr(objectives, "LOGITS_AT_ONCE", 170)
    in_chunks, hits_in_chunks = losses_and_hits(network, given)
    assert sizes == [150, 150, 150, 150, 150, 50]
    assert torch.allclose(in_chunks, whole, rtol=1e-12, atol=1e-12)
    assert torch.equal(hits_in_chunks, hits)


def test_random_tokens_of_a_masked_model_are_no_special_ones():
    """The mask of a BERT vocabulary stands among the first ids, and words behind it."""
    tokens = np.full((400, 64), 7)
    inputs, hidden = hide_random_tokens(
        tokens, noise(1, 2, np.arange(400), 64), 10, mask_id=3, plain_ids=np.arange(5, 50)
    )
    drawn = inputs[hidden & (inputs != 3)]
    assert set(drawn.tolist()) == set(range(5, 50))


def test_held_out_text_is_hidden_by_the_same_share_and_scored_once(tmp_path):
    """A text shorter than a window has fewer places hidden; places that two windows share are scored in one."""
    fields = {"objective": "masked", "steps": 2, "evaluate_every": 2, "mask_share": 0.25, "n_ctx": 16}
    for n, least in ((4000, 30), (120, 2)):
        folder = tmp_path / str(n)
        folder.mkdir()
        run = start(write_text(folder, n), folder / "run", **fields)
        tokens = Tokens.open(next(iter(cache_folder().glob("tokens-*"))), load_tokenizer(run.path))
        data = MaskedData(tokens, run.recipe, torch.device("cpu"))
        places, scored = [], 0
        assert (data.n_held_out < fields["n_ctx"]) == (n == 120)
        for given, plain in zip(data.held_out(), data.windows(), strict=True):
            hidden = given.inputs != given.targets
            places.append(hidden.float().mean().item())
            scored += int(given.counts.sum())
            assert not (given.counts & ~torch.from_numpy(plain.counts)).any()
        assert max(places) <= 0.25 + 1 / 16
        assert least <= scored <= 0.25 * len(tokens.part("held_out")) + 1
        shutil.rmtree(cache_folder())
