"""Low-rank adapters: W + (alpha / r) B A, trained alone, merged into the same function."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, make_network
from pellucid.model import Transformer
from pellucid.model.lora import MergedWeights, adapt, factors, start_adapters
from pellucid.model.weights import WeightsError, load_state, load_trained, state_of, trained_state
from pellucid.presets import preset
from pellucid.reference.feedforward import low_rank
from pellucid.runs.optimizer import Optimizer
from running import any_architectures, call, draw_tokens

RATES = {"learning_rate": 0.1, "muon_learning_rate": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def merged_network(network, a, scale, new_ids=()):
    """The plain network with the adapters merged into its weights."""
    trained = trained_state(network)
    weights = {name: p for name, p in state_of(network).items() if name not in trained}
    plain = Transformer(a).double().eval()
    load_state(plain, MergedWeights(weights, trained, scale, new_ids, torch.float64))
    return plain


def layered(each):
    """Those with a block to adapt."""
    return each.filter(lambda a: a.n_layers > 0)


def make_adapted(a, rank=3, alpha=5.0, modules="all"):
    """A network with adapters that change it: B as random as A."""
    network = start_adapters(adapt(make_network(a), rank, alpha, modules), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith(".B"):
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.3)
    return network


@settings(max_examples=15)
@given(a=layered(any_architectures()), rank=st.integers(1, 4))
def test_merged_logits_are_adapted_logits(a, rank):
    network, tokens = make_adapted(a, rank), draw_tokens(a)
    with torch.no_grad():
        adapted = call(network, tokens)
        merged = call(merged_network(network, a, 5.0 / rank), tokens)
    assert (merged - adapted).abs().max() <= 1e-10 * max(1.0, float(adapted.abs().max()))


@settings(max_examples=8)
@given(a=layered(architectures()), rank=st.integers(1, 4))
def test_a_merged_weight_is_the_definitions(a, rank):
    before, network = state_of(make_network(a)), make_adapted(a, rank)
    pairs = {name: (A.clone(), B.clone()) for name, (A, B) in factors(trained_state(network)).items()}
    after = state_of(merged_network(network, a, 5.0 / rank))
    assert after.keys() == before.keys()
    for name, weight in before.items():
        pair = pairs.get(name.removesuffix(".weight"))
        expected = weight.numpy() if pair is None else low_rank(weight.numpy(), *(m.numpy() for m in pair), 5.0)
        assert np.abs(after[name].numpy() - expected).max(initial=0) <= 1e-12


@settings(max_examples=5)
@given(a=layered(any_architectures()))
def test_at_the_start_nothing_is_changed(a):
    tokens = draw_tokens(a)
    network = start_adapters(adapt(make_network(a), 2, 4.0), 0)
    assert torch.equal(call(network, tokens), call(make_network(a), tokens))


@settings(max_examples=5)
@given(a=layered(any_architectures()))
def test_only_adapters_are_trained_and_remembered(a):
    """Every base weight stays bit for bit, and the optimiser keeps numbers of the adapters alone."""
    network, before = make_adapted(a), state_of(make_network(a))
    for word in ("adamw", "muon"):
        optimizer = Optimizer(network, word, **RATES)
        call(network, draw_tokens(a)).square().mean().backward()
        first = {name: p.clone() for name, p in trained_state(network).items()}
        optimizer.step(torch.tensor(False))
        assert {name.rpartition("/")[0] for name in optimizer.state()} == trained_state(network).keys()
        assert any(not torch.equal(p, first[name]) for name, p in trained_state(network).items())
        for name, p in state_of(network).items():
            assert name.endswith((".A", ".B")) or torch.equal(p, before[name])
            assert name.endswith((".A", ".B")) or p.grad is None


def test_adapters_start_at_nothing_from_numbers_of_the_size_of_the_input():
    """A is normal with standard deviation in^-1/2, drawn for each map by itself, and B is 0."""
    a = preset("gpt2").with_fields({"n_vocab": 11, "d_model": 64, "n_layers": 1, "n_heads": 2})
    found = factors(trained_state(start_adapters(adapt(make_network(a), 32, 1.0), 0)))
    assert len(found) == 6
    for A, B in found.values():
        assert A.std().item() == pytest.approx(A.size(1) ** -0.5, rel=0.05)
        assert abs(A.mean().item()) < 0.1 * A.size(1) ** -0.5
        assert not B.any()
    assert len({A.flatten()[0].item() for A, _ in found.values()}) == 6


def test_some_maps_and_what_is_kept_of_them():
    a = small()
    network = make_adapted(a, 2, modules="query, value")
    kept = trained_state(network)
    assert {name.split(".", 2)[2] for name in kept} == {f"attn.{m}.{x}" for m in ("query", "value") for x in "AB"}
    other = start_adapters(adapt(make_network(a), 2, 5.0, "query,value"), 7)
    load_trained(other, kept, "the file")
    tokens = draw_tokens(a)
    assert torch.equal(call(other, tokens), call(network, tokens))
    with pytest.raises(WeightsError, match="the file and the architecture differ"):
        load_trained(make_adapted(a, 2, modules="query"), kept, "the file")


@pytest.mark.parametrize("unembed", ["tied", "untied"])
@pytest.mark.parametrize("d_embed", [0, 3])
def test_rows_of_new_ids_are_merged_into_what_projects_them(unembed, d_embed):
    a = preset("gpt2", 11).with_fields(
        {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 8, "unembed": unembed, "d_embed": d_embed}
    )
    plain = make_network(a)
    network, tokens = adapt(make_network(a), 2, 4.0, new_ids=(9, 10)), draw_tokens(a)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith(".rows"):
                p.copy_(torch.arange(p.numel()).view_as(p) / 7)
        adapted, untouched = network(tokens), plain(tokens)
        merged = merged_network(network, a, 4.0 / 2, (9, 10))
        assert state_of(merged).keys() == state_of(plain).keys()
        assert (merged(tokens) - adapted).abs().max() <= 1e-10
        assert (adapted - untouched)[..., 9:].abs().min() > 1e-3


def test_what_is_not_there_is_named():
    with pytest.raises(WeightsError, match=r"called 'gate'; say all, or some of query,key,value,out,up,down"):
        adapt(make_network(small()), 2, 4.0, "query,gate")
    with pytest.raises(WeightsError, match="no layer"):
        adapt(make_network(small().with_fields({"n_layers": 0})), 2, 4.0)


def small():
    return preset("gpt2", 11).with_fields({"n_layers": 2, "d_model": 8, "n_heads": 2, "n_ctx": 8, "dropout": 0.0})
