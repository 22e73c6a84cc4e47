"""AdamW beside PyTorch's own class: the same bits, and a bad step changes none."""

import pytest
import torch

from pellucid.runs.adamw import AdamW

GOOD, BAD = torch.tensor(False), torch.tensor(True)
SHAPES = [(7, 5), (3,), (), (64, 33)]


def parameters_of(dtypes):
    return [torch.nn.Parameter(torch.randn(s, dtype=d)) for s, d in zip(SHAPES, dtypes, strict=True)]


@pytest.mark.parametrize("dtypes", [[torch.float32] * 4, [torch.float64] * 4, [torch.float32, torch.float64] * 2])
def test_it_is_torchs_to_the_bit(dtypes):
    """After each of ten steps at changing rates, of groups that decay differently; once one has no gradient."""
    torch.manual_seed(0)
    ours = parameters_of(dtypes)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    mine, known = (
        make([{"params": p[:2], "weight_decay": 0.1}, {"params": p[2:], "weight_decay": 0.0}])
        for p, make in (
            (ours, lambda groups: AdamW(groups, 0.01, (0.9, 0.97), 1e-8)),
            (theirs, lambda groups: torch.optim.AdamW(groups, 0.01, (0.9, 0.97), 1e-8, fused=True)),
        )
    )
    for step in range(10):
        for part in (mine, known):
            for group in part.param_groups:
                group["lr"] = 0.01 / (1 + step)
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = None if k == 1 and step == 4 else torch.randn_like(a)
            b.grad = None if a.grad is None else a.grad.clone()
        mine.step(GOOD)
        known.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        for a, b in zip(ours, theirs, strict=True):
            remembered, state = mine.state[a], known.state[b]
            assert remembered.keys() == state.keys()
            assert all(torch.equal(remembered[name], state[name]) for name in state)
    mine.zero_grad()
    assert all(p.grad is None for p in ours)


def test_a_bad_step_leaves_every_bit_and_is_not_counted():
    torch.manual_seed(1)
    ours = parameters_of([torch.float32] * 4)
    mine = AdamW([{"params": ours, "weight_decay": 0.1}], 0.01, (0.9, 0.97), 1e-8)
    for bad in (GOOD, BAD):
        before = [p.detach().clone() for p in ours]
        state = {p: {k: v.clone() for k, v in mine.state[p].items()} for p in ours}
        for p in ours:
            p.grad = torch.full_like(p, torch.inf if bad else 1.0)
        mine.step(bad)
    assert all(torch.equal(p, b) for p, b in zip(ours, before, strict=True))
    assert all(torch.equal(v, state[p][k]) for p in ours for k, v in mine.state[p].items())
    assert {v["step"].item() for v in mine.state.values()} == {1.0}
