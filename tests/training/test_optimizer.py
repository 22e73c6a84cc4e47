"""What decays, what Muon has, and what the two optimisers compute."""

import pytest
import torch
from tiny import make_training, recipe_for

from pellucid.generate.pack_weights import weights_state
from pellucid.parameter_counts import count_parameters
from pellucid.runs.muon import Muon, orthogonal
from pellucid.runs.optimizer import make_optimizer
from pellucid.training.build import build_network

GOOD = torch.tensor(False)


def groups(training):
    """name -> (optimiser, weight decay), once for every time a parameter is held."""
    names = {p: n for n, p in training.network.named_parameters()}
    found = []
    for part in training.optimizer.parts:
        kind = type(part).__name__
        found += [(names[p], kind, g["weight_decay"]) for g in part.param_groups for p in g["params"]]
    return found


@pytest.mark.item("S0-0-c", "S0-1.2-f")
@pytest.mark.parametrize("word", ["adamw", "muon"])
@pytest.mark.parametrize(("unembed", "ngrams"), [("tied", ()), ("untied", (2, 3))])
def test_every_parameter_is_held_once_and_only_matrices_decay(text, tmp_path, word, unembed, ngrams):
    fields = {"attention.bias": "all", "mlp.bias": "all", "norm.kind": "layer", "positions.kind": "learned"}
    fields |= {"weight_decay": 0.3, "ngrams": ngrams}
    training = make_training(text, tmp_path / "run", optimizer=word, unembed=unembed, **fields)
    found = groups(training)
    names = [name for name, _, _ in found]
    shapes = {n: p for n, p in training.network.named_parameters()}
    assert sorted(names) == sorted(shapes)
    assert ("unembed.weight" in names) == (unembed == "untied")
    assert sum(p.numel() for p in shapes.values()) == count_parameters(training.recipe.model)["total"]
    for name, kind, decay in found:
        assert decay == pytest.approx(0.3 if shapes[name].ndim == 2 else 0.0), name
        hidden = shapes[name].ndim == 2 and name.startswith("blocks.")
        assert kind == ("Muon" if word == "muon" and hidden else "AdamW"), name


@pytest.mark.parametrize("word", ["adamw", "muon"])
def test_a_step_is_seen_by_what_was_made_of_the_earlier_weights(text, tmp_path, word):
    """Packed weights and compiled steps are made anew: every parameter counts the step, whatever kernel took it."""
    training = make_training(text, tmp_path / "run", optimizer=word)
    network = training.network
    versions, state = [p._version for p in network.parameters()], weights_state(network)
    for p in network.parameters():
        p.grad = torch.ones_like(p)
    training.optimizer.step(GOOD)
    assert weights_state(network) != state
    assert all(p._version > before for p, before in zip(network.parameters(), versions, strict=True))


def test_a_vector_with_no_gradient_does_not_move_and_a_matrix_shrinks(text, tmp_path):
    training = make_training(text, tmp_path / "run", optimizer="adamw", learning_rate=0.5, weight_decay=0.1)
    before = {n: p.detach().clone() for n, p in training.network.named_parameters()}
    for p in training.network.parameters():
        p.grad = torch.zeros_like(p)
    training.optimizer.step(GOOD)
    for name, p in training.network.named_parameters():
        expected = before[name] * (1 - 0.5 * 0.1) if p.ndim == 2 else before[name]
        assert torch.allclose(p, expected, rtol=1e-6, atol=0), name


def test_adamw_takes_the_step_of_its_paper(text, tmp_path):
    training = make_training(text, tmp_path / "run", torch.float64, optimizer="adamw", learning_rate=0.01)
    w = training.network.blocks[0].mlp.down.weight
    theta, m, v = w.detach().clone(), torch.zeros_like(w), torch.zeros_like(w)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 4):
        g = torch.randn(w.shape, generator=generator, dtype=torch.float64)
        for p in training.network.parameters():
            p.grad = g.clone() if p is w else torch.zeros_like(p)
        training.optimizer.step(GOOD)
        # Loshchilov and Hutter 2017, algorithm 2, with the decay scaled by the rate as everywhere today
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        theta = theta - 0.01 * 0.1 * theta
        theta = theta - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
    assert torch.allclose(w, theta, rtol=1e-12, atol=0)


def test_muon_moves_a_matrix_along_nearly_orthogonal_directions(text, tmp_path):
    training = make_training(text, tmp_path / "run", optimizer="muon", weight_decay=0.0)
    w = training.network.blocks[0].mlp.up[0].weight
    before = w.detach().clone()
    generator = torch.Generator().manual_seed(0)
    for p in training.network.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    training.optimizer.step(GOOD)
    values = torch.linalg.svdvals(w.detach() - before)
    # five rounds of Newton-Schulz bring singular values between 0.7 and 1.2 of a common size
    assert values.max() / values.min() < 2.5


def test_the_state_is_put_back_under_the_names_of_the_parameters(text, tmp_path):
    training = make_training(text, tmp_path / "run", optimizer="muon")
    training.take_step()
    state = {name: value.clone() for name, value in training.optimizer.state().items()}
    assert "blocks.0.attn.query.weight/momentum_buffer" in state
    assert {"embed.token.weight/exp_avg", "embed.token.weight/exp_avg_sq", "embed.token.weight/step"} <= state.keys()
    other = make_optimizer(training.recipe, training.network)
    other.load_state(state)
    again = other.state()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    with pytest.raises(KeyError, match="momentum_buffer"):
        other.load_state({n: v for n, v in state.items() if "query.weight" not in n})


def test_the_factor_scales_all_peaks(text):
    recipe = recipe_for(text, learning_rate=0.5, muon_learning_rate=0.25)
    network = build_network(recipe, torch.device("cpu"))
    optimizer = make_optimizer(recipe, network)
    for factor in (0.5, 0.1, 1.0):
        optimizer.set_factor(factor)
        rates = [{group["lr"] for group in part.param_groups} for part in optimizer.parts]
        assert rates == [{0.5 * factor}, {0.25 * factor}]


@pytest.mark.parametrize("shapes", [[(24, 16)], [(48, 8)], [(16, 40), (16, 40), (8, 8)]])
def test_muon_is_torchs(shapes, monkeypatch):
    """The same parameters as torch.optim.Muon after several steps, once its iteration is kept in float64 too."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    torch.manual_seed(0)
    start = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(t.clone()) for t in start] for _ in range(2))
    mine = Muon(ours, 0.02, 0.1, torch.float64)
    known = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="original")
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, dtype=torch.float64)
            b.grad = a.grad.clone()
        mine.step(torch.tensor(False))
        known.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_orthogonal_moves_singular_values_to_one():
    torch.manual_seed(1)
    x = torch.randn(3, 20, 12, dtype=torch.float64)
    made = orthogonal(x, torch.float64)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6
    assert values.max() < 1.25
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    cosine = (made * (u @ vh)).sum((-2, -1)) / (made.norm(dim=(-2, -1)) * 12**0.5)
    assert cosine.min() > 0.97
    assert torch.allclose(orthogonal(x[1], torch.float64), made[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(32, 32), (24, 96), (96, 24), (32, 256)])
@pytest.mark.parametrize("rank", [1, 3, 6, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonal_in_every_precision_and_rank(shape, rank, dtype):
    """Gradients of few tokens have a low rank: what they do not span stays small, and nothing grows."""
    torch.manual_seed(rank)
    u = torch.randn(2, shape[0], rank) @ torch.randn(2, rank, shape[1])
    exact, made = orthogonal(u.double(), torch.float64), orthogonal(u, dtype)
    assert torch.linalg.svdvals(made).max() < 1.25
    left, _, right = torch.linalg.svd(u.double(), full_matrices=False)
    left, right = left[..., :rank], right[..., :rank, :]
    spanned = left @ left.mT @ (made.double() - exact) @ right.mT @ right
    assert spanned.abs().max() < (1e-3 if dtype == torch.float32 else 0.03)
