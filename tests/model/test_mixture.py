"""Mixtures of experts: which experts a position uses, what is refused, and that no law depends on the routing."""

import pytest
import torch

from drawing import difference, make_network
from pellucid.architecture import Architecture
from pellucid.edits import add, scale
from pellucid.lens.analysis.attribution import attribute
from pellucid.lens.analysis.metrics import logit_diff
from pellucid.lens.analysis.patching import patch
from pellucid.lens.analysis.residual import decompose
from pellucid.lens.core.inputs import InputError
from pellucid.lens.trace import trace as traced
from pellucid.model import Recorder, Transformer
from pellucid.model.lora import LoRALinear, MergedWeights, adapt, start_adapters
from pellucid.model.mlp import MixtureOfExperts
from pellucid.model.weights import initialise, load_state, load_weights, save_weights, state_of, trained_state
from pellucid.option_values import ArchitectureError
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.plan.flops import flops
from pellucid.reference import transformer as reference
from pellucid.text_model import of_ids
from running import draw_tokens

FIELDS = {"mlp.experts": 5, "mlp.experts_per_token": 2, "mlp.d_ff": 6, "attention.n_heads": 2}
SHARED = {"mlp.form": "gated", "mlp.shared_d_ff": 3, "mlp.shared_gate": "sigmoid", "mlp.router_softmax": "all"}
BASE = Architecture(n_vocab=11, n_ctx=7, d_model=8, n_layers=2).with_fields(FIELDS)
BOTH = [pytest.param(BASE, id="chosen"), pytest.param(BASE.with_fields(SHARED), id="all, shared")]


@pytest.mark.parametrize("a", BOTH)
def test_each_position_uses_its_experts_alone(a):
    """The weights of the experts that are used are as the option says, and those of the others are 0."""
    network, tokens = make_network(a), draw_tokens(a, 2, 7)
    recorder = Recorder(["blocks.0.mlp.router", "blocks.0.mlp.expert_weights"])
    with torch.no_grad():
        network(tokens, tap=recorder)
    r, g = (recorder.values[f"blocks.0.mlp.{name}"] for name in ("router", "expert_weights"))
    chosen = r.topk(2).indices
    assert torch.equal(g.nonzero()[:, -1].view(2, 7, 2), chosen.sort(-1).values)
    whole = r.softmax(-1).gather(-1, chosen)
    expected = whole / whole.sum(-1, keepdim=True) if a.mlp.router_softmax == "chosen" else whole
    assert difference(g.gather(-1, chosen), expected) <= 1e-15


@pytest.mark.parametrize("a", BOTH)
def test_a_trace_and_an_edit_of_one_expert_are_the_reference_s(a):
    """What is kept changes nothing, and an expert's result that is doubled is doubled in the definition too."""
    network, tokens = make_network(a), draw_tokens(a, 1, 7)
    name = "blocks.1.mlp.expert_3.result"
    weights = {n: p.numpy() for n, p in state_of(network).items()}
    with torch.no_grad():
        plain = network(tokens)
        assert torch.equal(network(tokens, tap=Recorder(["blocks.1.mlp.expert_3.post"])), plain)
        edited = network(tokens, tap=Recorder(edits={name: [lambda x: 2 * x]}))
    doubled = {n: 2 * w if n.startswith("blocks.1.mlp.experts.3.down") else w for n, w in weights.items()}
    assert difference(edited, torch.from_numpy(reference.forward(a, doubled, tokens.numpy()))) <= 1e-12
    assert difference(edited, plain) > 1e-3


@pytest.mark.parametrize("a", BOTH)
def test_weights_of_unused_experts_have_slopes(a):
    """d metric / d weight of every expert is what moving this weight changes, used or not."""
    network, ids, name = make_network(a), draw_tokens(a, 1, 4), "blocks.1.mlp.expert_weights"
    alone, metric = traced(of_ids(network), ids, keep=name, grad=True), logit_diff(3, 5)
    slope = alone.gradient(metric, name)[name][0, -1]
    (kept,) = torch.autograd.grad(metric.of(alone)(alone.logits).sum(), [alone[name]])
    assert (alone[name][0, -1] == 0).sum() == a.mlp.experts - a.mlp.experts_per_token
    assert difference(kept[0, -1], slope) <= 1e-12

    def moved(size: float) -> float:
        t = traced(of_ids(network), ids, edits=[add(name, size * step, pos=3)])
        return float(metric.of(t)(t.logits)[0])

    for expert in range(a.mlp.experts):
        step = torch.zeros(a.mlp.experts, dtype=torch.float64).index_fill(0, torch.tensor([expert]), 1.0)
        assert abs((moved(1e-5) - moved(-1e-5)) / 2e-5 - slope[expert]) <= 1e-6
        assert slope[expert].abs() > 1e-6
    # another run's weights put into the unused experts are estimated by them
    other = [*ids[0, :-1].tolist(), (int(ids[0, -1]) + 1) % a.n_vocab]
    found = patch(
        of_ids(network), other, ids, metric, site="mlp.expert_weights", layers=[1], positions=[3], mode="both"
    )
    change = traced(of_ids(network), other, keep=name)[name][0, -1] - alone[name][0, -1].detach()
    assert abs(float(found.estimate[0, 0]) - found.corrupt - float(change @ slope)) <= 1e-9


def test_without_gradients_only_the_experts_that_are_used_compute():
    network, ids = make_network(BASE), draw_tokens(BASE, 2, 7)
    rows: list[int] = []
    for expert in network.blocks[0].mlp.experts:
        expert.register_forward_hook(lambda module, given, y: rows.append(given[0].size(0)))
    name = "blocks.0.mlp.expert_weights"
    expected = traced(of_ids(network), ids).logits
    assert torch.equal(traced(of_ids(network), ids, keep=name, edits=[scale(name, 1.0)]).logits, expected)
    assert sum(rows) == 2 * BASE.mlp.experts_per_token * ids.numel()


def test_unused_experts_have_no_gradient_and_all_take_part():
    """In training every expert is in the graph, so that processes agree on which gradients exist."""
    a = BASE.with_fields({"n_layers": 1, "mlp.experts_per_token": 1})
    network = make_network(a)
    network(draw_tokens(a, 1, 1)).square().sum().backward()
    sums = [float(m.down.weight.grad.abs().sum()) for m in network.blocks[0].mlp.experts]
    assert sum(n > 0 for n in sums) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp.n_hidden": 2}, "mlp.n_hidden = 2: expected 1 where mlp.experts > 0"),
        ({"mlp.experts_per_token": 6}, "mlp.experts_per_token = 6: expected 1 to mlp.experts = 5"),
        ({"mlp.experts_per_token": 0}, "mlp.experts_per_token = 0: expected 1 to"),
        ({"mlp.experts": -1}, "mlp.experts = -1: expected 0"),
        ({"mlp.experts": 0, "mlp.shared_d_ff": 3}, "mlp.shared_d_ff = 3: expected 0 where mlp.experts = 0"),
    ],
)
def test_what_excludes_each_other_is_refused_by_name(changes, message):
    with pytest.raises(ArchitectureError, match=message):
        BASE.with_fields(changes)


@pytest.mark.parametrize("a", BOTH)
def test_parameters_are_counted_in_all_and_for_one_position(a):
    network = Transformer(a)
    assert count_parameters(a)["total"] == sum(p.numel() for p in network.parameters())
    of_one = sum(p.numel() for p in network.blocks[0].mlp.experts[0].parameters())
    assert count_active_parameters(a) == count_parameters(a)["total"] - a.n_layers * 3 * of_one
    assert count_active_parameters(a.with_fields({"mlp.experts_per_token": 5})) == count_parameters(a)["total"]
    dense = a.with_fields({"mlp.experts": 0, "mlp.shared_d_ff": 0, "mlp.form": "plain"})
    assert count_active_parameters(dense) == count_parameters(dense)["total"]
    matrices = sum(p.numel() for p in network.blocks[0].mlp.experts[0].parameters() if p.ndim == 2)
    one_more = a.with_fields({"mlp.experts_per_token": 3})
    assert flops(one_more).products - flops(a).products == 2.0 * a.n_layers * matrices


def test_weights_go_into_a_file_and_back_and_start_by_name(tmp_path):
    network = initialise(Transformer(BASE), 3)
    save_weights(network, tmp_path / "weights.safetensors")
    again = Transformer(BASE)
    load_weights(again, tmp_path / "weights.safetensors")
    assert all(torch.equal(p, q) for p, q in zip(network.parameters(), again.parameters(), strict=True))
    first, second = (network.get_parameter(f"blocks.0.mlp.experts.{e}.down.weight") for e in (0, 1))
    assert not torch.equal(first, second)
    assert first.std() < 0.75 * network.get_parameter("blocks.0.mlp.experts.0.up.0.weight").std()


def test_adapters_reach_every_expert_and_not_the_router():
    network = start_adapters(adapt(make_network(BASE), 2, 4.0), 0)
    tokens = draw_tokens(BASE, 2, 5)
    mixture = network.blocks[0].mlp
    assert isinstance(mixture, MixtureOfExperts)
    assert all(isinstance(m.down, LoRALinear) and isinstance(m.up[0], LoRALinear) for m in mixture.experts)
    assert not isinstance(mixture.router, LoRALinear)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith(".B"):
                p.fill_(0.1)
        adapted = network(tokens)
        trained = trained_state(network)
        weights = {name: p for name, p in state_of(network).items() if name not in trained}
        plain = Transformer(BASE).double()
        load_state(plain, MergedWeights(weights, trained, 4.0 / 2, dtype=torch.float64))
        assert difference(plain(tokens), adapted) <= 1e-12


@pytest.fixture(scope="module", params=["pre", "sandwich", "post"])
def trace(request):
    a = BASE.with_fields({**SHARED, "block": request.param})
    return traced(of_ids(make_network(a)), draw_tokens(a, 1, 6))


def test_attribution_by_expert_is_exact(trace):
    parts, whole = attribute(trace, 4, by="expert"), attribute(trace, 4)
    assert abs(parts.total - whole.total) <= 1e-12
    of_mlp = sum(parts[label] for label in parts.labels if label.startswith("blocks.1.mlp"))
    assert abs(of_mlp - whole["blocks.1.mlp_out"]) <= 1e-12
    used = trace["blocks.1.mlp.expert_weights"][0, -1] > 0
    for e in range(5):
        assert (parts[f"blocks.1.mlp.expert.{e}"] != 0) == bool(used[e])
    sums = decompose(trace, by="expert")
    assert difference(sums.total, decompose(trace).total) <= 1e-12


def test_splits_that_a_network_does_not_have_are_refused(trace):
    with pytest.raises(InputError, match=r"by = 'neuron' and mlp.experts = 5: .*use by='expert'"):
        attribute(trace, 4, by="neuron")
    dense = BASE.with_fields({"mlp.experts": 0})
    with pytest.raises(InputError, match=r"by = 'expert' and mlp.experts = 0"):
        attribute(traced(of_ids(make_network(dense)), draw_tokens(dense, 1, 3)), 4, by="expert")
