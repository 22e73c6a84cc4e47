"""Tables of n-grams: RMSprop's step, by gradients of all rows or only of those that a step meets."""

import math
from typing import Any

import pytest
import torch
from tiny import assert_same_tensors, make_training

from pellucid.reference.learning import adamw_step
from pellucid.runs.gradients import clip
from pellucid.runs.options import LEAST_BETA_2, RecipeError
from pellucid.runs.rmsprop import BLOCK, SOURCE, RMSprop, update

GOOD, BAD = torch.tensor(False), torch.tensor(True)
#: 64 tokens a step: of so many rows a step meets few, or it may meet all
FEW, ALL = 128, 127
RMSPROP: dict[str, Any] = {"ngram_optimizer": "rmsprop", "ngram_rows": FEW}
TABLE = "embed.ngrams.tables.2.weight"


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("beta", [0.99, 0.9, 0.3])
def test_it_is_adamw_without_an_average_of_the_gradients(sparse, beta):
    """PyTorch's and the reference's numbers after each of 40 steps; rows are met twice in a step, or not at all."""
    torch.manual_seed(0)
    start = torch.randn(9, 4, dtype=torch.float64)
    ours, theirs, whole = torch.nn.Embedding(9, 4, sparse=sparse), torch.nn.Embedding(9, 4), start.numpy()
    for table in (ours, theirs):
        table.weight = torch.nn.Parameter(start.clone())
    mine = RMSprop([ours.weight], 0.1, beta, 0.0, 1e-8)
    known = torch.optim.AdamW([theirs.weight], lr=0.1, betas=(0.0, beta), eps=1e-8, weight_decay=0.0)
    state = None
    for step in range(2 * BLOCK + 8):
        ids, to = torch.randint(0, 8, (4,)), torch.randn(4, 4, dtype=torch.float64)
        for table in (ours, theirs):
            table.weight.grad = None
            (table(ids) * to).sum().backward()
        assert theirs.weight.grad is not None
        lengths = [clip([table.weight], 1.5) for table in (ours, theirs)]
        assert lengths[0] == pytest.approx(lengths[1].item(), rel=1e-12)
        gradient = {"t": theirs.weight.grad.numpy()}
        after, state = adamw_step({"t": whole}, gradient, state, step + 1, lr=0.1, betas=(0.0, beta), decay=0.0)
        whole = after["t"]
        mine.step(GOOD)
        known.step()
        assert torch.allclose(ours.weight, theirs.weight, rtol=1e-10, atol=0)
        assert torch.allclose(ours.weight, torch.from_numpy(whole), rtol=1e-10, atol=0)
    assert torch.equal(ours.weight[8], start[8])


@pytest.mark.parametrize("met", [[0, 5, 7, 40], list(range(50))])
def test_the_compiled_update_is_pytorchs(met, monkeypatch):
    """To a rounding, of rows that lie anywhere, or of all; in a bad step neither changes a bit."""
    torch.manual_seed(1)
    gradient = torch.randn(len(met), 37)
    if len(met) < 50:
        rows = torch.tensor([met[::-1]])
        gradient = torch.sparse_coo_tensor(rows, gradient, (50, 37), check_invariants=True).coalesce()
    table, sums = torch.randn(50, 37), torch.rand(50, 37)
    assert SOURCE.load()[1] == ""
    results = []
    for usable in (True, False):
        monkeypatch.setattr(SOURCE, "is_loaded", usable)
        p, s = table.clone(), sums.clone()
        update(p, s, gradient, 0.1, 1e-8, BAD, 0.3, 0.9)
        assert torch.equal(p, table)
        assert torch.equal(s, sums)
        update(p, s, gradient, 0.1, 1e-8, GOOD, 0.3, 0.9)
        results += [p, s]
    assert torch.allclose(results[0], results[2], rtol=1e-6, atol=1e-7)
    assert torch.allclose(results[1], results[3], rtol=1e-6, atol=0)
    assert (results[0] != table).any(1).nonzero().flatten().tolist() == met


def test_its_sums_fit_into_float32_with_the_least_beta(text, tmp_path):
    training = make_training(text, tmp_path / "run", **RMSPROP, beta_2=LEAST_BETA_2)
    training.network.train()
    for _ in range(BLOCK + 1):
        training.take_step()
    training.read_figures(0)
    assert all(x.isfinite().all() for x in training.optimizer.state().values())
    with pytest.raises(RecipeError, match=r"beta_2 .* 0\.01 or more for ngram_optimizer = rmsprop"):
        make_training(text, tmp_path / "other", **RMSPROP, beta_2=0.0)
    make_training(text, tmp_path / "adamw", **RMSPROP | {"ngram_optimizer": "adamw"}, beta_2=0.0)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_bad_step_keeps_every_bit(sparse):
    table = torch.nn.Embedding(9, 4, sparse=sparse)
    with torch.no_grad():
        table.weight[3, :2] = torch.tensor([0.0, -0.0])
    rmsprop = RMSprop([table.weight], 0.1, 0.99, 0.01, 1e-8)
    for bad in (GOOD, BAD):
        before = table.weight.detach().clone(), {k: v.clone() for k, v in rmsprop.state[table.weight].items()}
        table.weight.grad = None
        (table(torch.tensor([3, 3, 5])).sum() * (math.nan if bad else 1.0)).backward()
        clip([table.weight], 1.0)
        rmsprop.step(bad)
        has_moved = not torch.equal(before[0], table.weight)
        assert has_moved == (not bad)
    assert before[0].numpy().tobytes() == table.weight.detach().numpy().tobytes()
    assert_same_tensors(before[1], rmsprop.state[table.weight])


def test_a_decay_that_is_too_large_for_its_rate_takes_all_of_a_row_and_no_more(text, tmp_path):
    """It had changed the signs of the rows, and made them grow beyond what float32 holds."""
    rates = {"learning_rate": 300.0, "muon_learning_rate": 20.0, "weight_decay": 0.1}
    training = make_training(text, tmp_path / "run", **RMSPROP, **rates)
    table = dict(training.network.named_parameters())[TABLE]
    torch.nn.init.ones_(table)
    training.take_step()
    assert table.grad is not None
    met = table.grad.indices()[0]
    unmet = torch.ones(FEW, dtype=torch.bool)
    unmet[met] = False
    assert (table[unmet] == 0).all()
    for part in (training.optimizer.adamw, training.optimizer.muon):
        assert part is not None
        assert all(0 <= 1 - group["lr"] * group["weight_decay"] <= 1 for group in part.param_groups)


def test_the_decay_of_many_steps_is_applied_at_once_to_every_row(text, tmp_path):
    rates = {"learning_rate": 0.01, "ngram_weight_decay": 2.0, "warmup": 0, "schedule": "constant"}
    training = make_training(text, tmp_path / "run", **RMSPROP, **rates)
    table = dict(training.network.named_parameters())[TABLE]
    torch.nn.init.ones_(table)  # it begins with zeros
    met = torch.zeros(FEW, dtype=torch.bool)
    before = table.detach().clone()
    for step in range(1, BLOCK + 2):
        training.network.train()
        training.take_step()
        assert table.grad is not None
        met[table.grad.indices()[0]] = True
        unmet = table[~met] / before[~met]
        times = 1 + (step > BLOCK)  # before steps 0 and BLOCK
        assert torch.allclose(unmet, torch.tensor((1 - 0.01 * 2.0) ** (times * BLOCK)), rtol=1e-5)
    assert 0 < (~met).sum() < FEW


def test_weights_are_those_of_gradients_of_all_rows(text, tmp_path):
    """Four steps with sparse gradients give the weights of four steps with whole ones.

    Gradients are sparse where a step has at most half as many tokens as a table has rows.
    """
    few = make_training(text, tmp_path / "few", **RMSPROP)
    for n_rows, is_sparse in ((FEW, True), (ALL, False)):
        made = make_training(text, tmp_path / f"rows{n_rows}", **RMSPROP | {"ngram_rows": n_rows})
        assert made.network.embed.ngrams.tables["2"].sparse == is_sparse
    dense = make_training(text, tmp_path / "dense", **RMSPROP)
    dense.network.embed.ngrams.tables["2"].sparse = False
    for training in (few, dense):
        training.network.train()
        for _ in range(4):
            training.take_step()
    for (name, a), (_, b) in zip(few.network.named_parameters(), dense.network.named_parameters(), strict=True):
        assert (a.grad is not None and a.grad.is_sparse) == (name == TABLE)
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name


def test_with_adamw_every_row_has_a_gradient(text, tmp_path):
    training = make_training(text, tmp_path / "run", ngram_rows=FEW, ngram_optimizer="adamw")
    assert not training.network.embed.ngrams.tables["2"].sparse
