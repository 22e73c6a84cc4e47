"""Tables of n-grams: Adagrad's step, by gradients of all rows or only of those that a step meets."""

import math
from typing import Any

import pytest
import torch
from tiny import assert_same_tensors, make_training

from pellucid.reference.learning import adagrad_step
from pellucid.runs.adagrad import DECAY_EVERY, Adagrad
from pellucid.runs.gradients import clip

GOOD, BAD = torch.tensor(False), torch.tensor(True)
#: 64 tokens a step: of so many rows a step meets few, or it may meet all
FEW, ALL = 128, 127
ADAGRAD: dict[str, Any] = {"ngram_optimizer": "adagrad", "ngram_rows": FEW}
TABLE = "embed.ngrams.tables.2.weight"


@pytest.mark.parametrize("sparse", [False, True])
def test_it_is_torchs_and_the_references(sparse):
    """The same numbers after each of six steps; rows are met twice in a step, or not at all."""
    torch.manual_seed(0)
    start = torch.randn(9, 4, dtype=torch.float64)
    ours, theirs, whole = torch.nn.Embedding(9, 4, sparse=sparse), torch.nn.Embedding(9, 4), start.numpy()
    for table in (ours, theirs):
        table.weight = torch.nn.Parameter(start.clone())
    mine = Adagrad([ours.weight], 0.1, 0.0, 1e-8)
    known, state = torch.optim.Adagrad([theirs.weight], lr=0.1, eps=1e-8), None
    for step in range(6):
        ids, to = torch.randint(0, 8, (7,)), torch.randn(7, 4, dtype=torch.float64)
        for table in (ours, theirs):
            table.weight.grad = None
            (table(ids) * to).sum().backward()
        assert theirs.weight.grad is not None
        lengths = [clip([table.weight], 1.5) for table in (ours, theirs)]
        assert lengths[0] == pytest.approx(lengths[1].item(), rel=1e-12)
        after, state = adagrad_step({"t": whole}, {"t": theirs.weight.grad.numpy()}, state, lr=0.1)
        whole = after["t"]
        mine.step(GOOD, decays=step == 3)  # of which nothing is asked
        known.step()
        assert torch.allclose(ours.weight, theirs.weight, rtol=1e-12, atol=0)
        assert torch.allclose(ours.weight, torch.from_numpy(whole), rtol=1e-12, atol=0)
    assert torch.equal(ours.weight[8], start[8])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_bad_step_keeps_every_bit(sparse):
    table = torch.nn.Embedding(9, 4, sparse=sparse)
    with torch.no_grad():
        table.weight[3, :2] = torch.tensor([0.0, -0.0])
    adagrad = Adagrad([table.weight], 0.1, 0.01, 1e-8)
    for bad in (GOOD, BAD):
        before = table.weight.detach().clone(), {k: v.clone() for k, v in adagrad.state[table.weight].items()}
        table.weight.grad = None
        (table(torch.tensor([3, 3, 5])).sum() * (math.nan if bad else 1.0)).backward()
        clip([table.weight], 1.0)
        adagrad.step(bad, decays=True)
        has_moved = not torch.equal(before[0], table.weight)
        assert has_moved == (not bad)
    assert before[0].numpy().tobytes() == table.weight.detach().numpy().tobytes()
    assert_same_tensors(before[1], adagrad.state[table.weight])


def test_the_decay_of_many_steps_is_applied_at_once_to_every_row(text, tmp_path):
    rates = {"learning_rate": 0.01, "ngram_weight_decay": 2.0, "warmup": 0, "schedule": "constant"}
    training = make_training(text, tmp_path / "run", **ADAGRAD, **rates)
    table = dict(training.network.named_parameters())[TABLE]
    torch.nn.init.ones_(table)  # it begins with zeros
    met = torch.zeros(FEW, dtype=torch.bool)
    before = table.detach().clone()
    for step in range(1, DECAY_EVERY + 2):
        training.network.train()
        training.take_step()
        assert table.grad is not None
        met[table.grad.indices()[0]] = True
        unmet = table[~met] / before[~met]
        times = 1 + (step > DECAY_EVERY)  # before steps 0 and DECAY_EVERY
        assert torch.allclose(unmet, torch.tensor((1 - 0.01 * 2.0) ** (times * DECAY_EVERY)), rtol=1e-5)
    assert 0 < (~met).sum() < FEW


def test_weights_are_those_of_gradients_of_all_rows(text, tmp_path):
    """Twelve steps with sparse gradients give the weights of twelve steps with whole ones.

    Gradients are sparse where a step has at most half as many tokens as a table has rows.
    """
    few = make_training(text, tmp_path / "few", **ADAGRAD)
    for n_rows, is_sparse in ((FEW, True), (ALL, False)):
        made = make_training(text, tmp_path / f"rows{n_rows}", **ADAGRAD | {"ngram_rows": n_rows})
        assert made.network.embed.ngrams.tables["2"].sparse == is_sparse
    dense = make_training(text, tmp_path / "dense", **ADAGRAD)
    dense.network.embed.ngrams.tables["2"].sparse = False
    for training in (few, dense):
        training.network.train()
        for _ in range(12):
            training.take_step()
    for (name, a), (_, b) in zip(few.network.named_parameters(), dense.network.named_parameters(), strict=True):
        assert (a.grad is not None and a.grad.is_sparse) == (name == TABLE)
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name


def test_with_adamw_every_row_has_a_gradient(text, tmp_path):
    training = make_training(text, tmp_path / "run", ngram_rows=FEW)
    assert not training.network.embed.ngrams.tables["2"].sparse
