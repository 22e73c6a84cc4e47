"""Training a mixture of experts: what the balance is, and that the loss is reported without it."""

import pytest
import torch
from tiny import rows, start, write_text

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.model import Recorder
from pellucid.runs.options import RecipeError
from pellucid.training.expert_use import ExpertUse, balance, expert_shares
from pellucid.training.objectives import MicroBatch, summed_loss
from pellucid.training.recipe import make_recipe
from running import draw_tokens

EXPERTS = {"experts": 3, "experts_per_token": 2, "steps": 3, "evaluate_every": 3, "sample_every": 0}


def test_the_balance_is_one_where_the_use_is_even_and_n_experts_at_most():
    even = torch.tensor([[[2.0, 0, 0], [0, 2, 0], [0, 0, 2]]], dtype=torch.float64)
    assert torch.equal(expert_shares(even, 1), torch.full((3,), 1 / 3))
    assert abs(float(balance(even, expert_shares(even, 1))) - 1) <= 1e-6
    one = torch.tensor([[[50.0, 0, 0]] * 4])
    assert abs(float(balance(one, expert_shares(one, 1))) - 3) <= 1e-6


def test_the_loss_gains_the_mean_balance_of_the_layers():
    a = Architecture(n_vocab=11, n_ctx=6, d_model=8, n_layers=2).with_fields({"mlp.experts": 3})
    network, tokens = make_network(a), draw_tokens(a, 2, 6)
    batch, use = MicroBatch(tokens, tokens), ExpertUse(network, 0.5)
    loss = use(summed_loss, network, batch, torch.tensor(12))
    added = float((loss - summed_loss(network, batch)).detach())
    recorder = Recorder(["blocks.0.mlp.router", "blocks.1.mlp.router"])
    with torch.no_grad():
        summed_loss(network, batch, recorder)
    by_layer = []
    for r in recorder.values.values():
        f = torch.nn.functional.one_hot(r.topk(2).indices, 3).sum((0, 1, 2)) / 24
        by_layer.append(3 * (f * r.softmax(-1).mean((0, 1))).sum())
    assert abs(added - 0.5 * 12 * float(sum(by_layer)) / 2) <= 1e-5
    figures = use.take_figures()
    assert abs(float(figures["added"]) - added) <= 1e-5
    assert 0 <= figures["least_used"] <= 1 / 3 <= figures["most_used"]
    difference = loss - summed_loss(network, batch)
    (gradient,) = torch.autograd.grad(difference, network.blocks[0].mlp.router.weight)
    assert gradient.abs().sum() > 1e-3


def test_a_run_reports_the_loss_without_the_balance(tmp_path):
    first = {}
    text = write_text(tmp_path)
    for c in (0.0, 0.3):
        folder = tmp_path / str(c)
        start(text, folder, balance=c, **EXPERTS)
        steps = [row for row in rows(folder) if "balance" in row]
        assert len(steps) == 3
        assert all(0 <= row["least_used"] <= row["most_used"] <= 1 for row in steps)
        first[c] = steps
    assert first[0.0][0]["loss"] == pytest.approx(first[0.3][0]["loss"], abs=1e-5)
    assert first[0.0][0]["balance"] == pytest.approx(first[0.3][0]["balance"], abs=1e-6)
    assert first[0.0][0]["grad_norm"] != first[0.3][0]["grad_norm"]


def test_a_balance_without_experts_is_refused():
    with pytest.raises(RecipeError, match=r"train.balance = 0.1: expected 0 where mlp.experts = 0"):
        make_recipe(("text.txt",), "small", {"balance": 0.1})
