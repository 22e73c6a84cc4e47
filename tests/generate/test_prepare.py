"""Packed products are the products of the weights they keep, and a prepared network is the network of those."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.generate import GenerationError, Sampling, choose_reader, generate_ids, row_products
from pellucid.generate import packed_linear as products
from pellucid.generate.choose_reader import GenerationRequest, choose_weights
from pellucid.generate.pack_weights import pack_network, packed_network
from pellucid.generate.packed_linear import PRODUCTS, Int4, Int8
from pellucid.model import Transformer

KINDS = [kind for kind in PRODUCTS if products.available(kind)]
SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)


def kept(product: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    return getattr(product, "kept", weight).double()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 24), st.booleans(), st.integers(0, 9))
def test_a_product_is_the_exact_one_with_what_it_keeps(kind, n_out, n_in, n_rows, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(n_out, n_in, generator=generator), torch.randn(n_out, generator=generator)
    x = torch.randn(1, n_rows, n_in, generator=generator)
    product = PRODUCTS[kind](weight, bias if biased else None)
    exact = x.double() @ kept(product, weight).T + (bias.double() if biased else 0)
    assert product(x).shape == exact.shape
    assert (product(x) - exact).abs().max() <= 2e-6 * n_in**0.5 * max(1, float(exact.abs().max()))


@given(st.integers(1, 20), st.integers(1, 20), st.floats(1e-6, 1e6))
def test_int8_is_within_half_a_step_of_each_weight(n_out, n_in, size):
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_out)) * size
    product = Int8(weight, None)
    steps = weight.double().abs().amax(1, keepdim=True) / 127
    assert ((product.kept.double() - weight.double()).abs() <= (0.5 + 1e-4) * steps).all()
    assert torch.equal(Int8(torch.zeros(2, 3), None).kept, torch.zeros(2, 3))


@given(st.integers(1, 20), st.integers(1, 70), st.floats(1e-6, 1e6))
def test_int4_is_within_half_a_step_of_each_weight_but_for_the_largest_of_the_other_sign(n_out, n_in, size):
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_in)) * size
    kept_weight = Int4(weight, None).kept
    for group, kept_group in zip(weight.split(32, 1), kept_weight.split(32, 1), strict=True):
        largest = group.gather(1, group.abs().argmax(1, keepdim=True))
        steps = (group - kept_group) / (largest / 8)
        reached = group / largest > -7.4 / 8
        assert (steps.abs()[reached] <= 0.54).all()
        assert (steps.abs() <= 1.04).all()
    assert torch.equal(Int4(torch.zeros(2, 3), None).kept, torch.zeros(2, 3))


def network_of_kept(network: Transformer, made: Transformer) -> Transformer:
    """A plain network in float64 with the weights that the prepared one keeps; what was tied is not any more."""
    plain = Transformer(replace(network.architecture, unembed="untied")).double().eval()
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, p in plain.named_parameters():
            known = kept_of(made, name) if name.endswith("weight") else None
            p.copy_(own.get(name, network.unembed.weight) if known is None else known)
    return plain


def kept_of(made: Transformer, name: str) -> torch.Tensor | None:
    """What the prepared network keeps of the matrix `name`, which may be rows of a larger one; None: the matrix."""
    place, _, part = name.removesuffix(".weight").rpartition(".")
    parent = made.get_submodule(place)
    if part in ("query", "key", "value") and hasattr(parent, "qkv"):
        whole, h, g = getattr(parent.qkv, "kept", None), made.architecture.n_heads, made.architecture.n_kv_heads
        return None if whole is None else whole.split([n * parent.d_head for n in (h, g, g)])["qkv".index(part[0])]
    return getattr(getattr(parent, part), "kept", None)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(architectures({"attention.mask": st.sampled_from(["causal", "prefix"])}, max_ctx=8), st.data())
def test_a_prepared_network_computes_the_network_of_the_kept_weights(kind, a, data):
    """Every word, cached, in batches of different lengths, beyond the context; the other recomputes in float64."""
    network = make_network(a, dtype=torch.float32)
    made = pack_network(network, kind).network
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    prompts = [[(3 * n + i) % 11 for i in range(n)] for n in lengths]
    options = {"max_tokens": a.n_ctx + 2, "sampling": Sampling(temperature=0)}
    packed, plain = (
        generate_ids(n, prompts, **options, **cached)
        for n, cached in ((made, {}), (network_of_kept(network, made), {"cache": False}))
    )
    for step, other in zip(packed, plain, strict=True):
        assert difference(step.logits.double(), other.logits) <= 2e-4
        for row, follower in zip(packed.rows, plain.rows, strict=True):
            follower.generated[-1] = row.generated[-1]  # both read the same next


def test_weights_are_shared_but_for_what_is_packed():
    network = make_network(SMALL, dtype=torch.float32)
    made = pack_network(network, "float32").network
    assert made.embed.token.weight is network.embed.token.weight
    assert isinstance(network.blocks[0].attn.query, nn.Linear)
    assert network.blocks[0].attn.kernel is network.blocks[0].attn.fused


def test_loaded_weights_are_read_where_they_lie():
    network = make_network(SMALL, dtype=torch.float32)
    made = pack_network(network, "loaded").network
    own, read = dict(network.named_modules()), [m for m in made.named_modules() if isinstance(m[1], products.AsLoaded)]
    assert len(read) == 2 * 6 + 1
    assert all(module.weight.data_ptr() == own[name].weight.data_ptr() for name, module in read)


def test_a_change_of_the_weights_is_seen():
    network = make_network(SMALL, dtype=torch.float32)
    first = packed_network(network, "int8")
    assert packed_network(network, "int8") is first
    with torch.no_grad():
        network.blocks[0].mlp.down.weight.mul_(2)
    assert packed_network(network, "int8") is not first


def test_errors_are_reported_and_auto_leaves_small_networks_alone():
    network = make_network(SMALL, dtype=torch.float32)
    made = pack_network(network, "int8")
    assert 0.001 < made.errors["unembed"] < 0.02
    assert "int8" in made.summary
    assert "%" in made.summary
    assert choose_weights(GenerationRequest(network, 1000))[0] is network
    assert choose_weights(GenerationRequest(network, 1000), "loaded") == (network, "weights: as loaded")


def kind_of(network: Transformer, n_tokens: int) -> str:
    """The kind of products that `auto` chooses."""
    linear = choose_weights(GenerationRequest(network, n_tokens))[0].blocks[0].mlp.down
    return {nn.Linear: "its own", products.AsLoaded: "loaded", products.Float32: "float32"}[type(linear)]


def test_auto_copies_weights_for_a_server_or_without_a_compiler(monkeypatch):
    network = make_network(SMALL, dtype=torch.float32)
    monkeypatch.setattr(choose_reader, "LEAST_PARAMETERS", 100)
    assert choose_weights(GenerationRequest(make_network(SMALL), 1000))[1] == "weights: as loaded"
    assert row_products.why_not_compiled() == ""
    assert [kind_of(network, n) for n in (1, 31, 32, 1 << 20)] == ["loaded", "loaded", "loaded", "float32"]
    monkeypatch.setattr(choose_reader, "MOST_BYTES", 1000)
    assert kind_of(network, 1 << 20) == "loaded"
    monkeypatch.undo()
    monkeypatch.setattr(choose_reader, "LEAST_PARAMETERS", 100)
    monkeypatch.setattr(row_products, "is_compiled", lambda: False)
    assert [kind_of(network, n) for n in (31, 32)] == ["its own", "loaded"]
    monkeypatch.setattr(row_products, "why_not_compiled", lambda: "there is no C++ compiler")
    assert [kind_of(network, n) for n in (31, 32)] == ["its own", "float32"]


@pytest.mark.parametrize(("word", "dtype"), [("int3", torch.float32), ("int8", torch.float64)])
def test_what_cannot_be_packed_is_refused(word, dtype):
    with pytest.raises(GenerationError, match=word):
        choose_weights(GenerationRequest(make_network(SMALL, dtype=dtype), 100), word)


def test_weights_that_are_assigned_anew_are_packed_anew():
    """A new parameter has the version of the one before it, and other memory."""
    network = make_network(SMALL).float()
    linear = network.blocks[0].mlp.up[0]
    before = packed_network(network, "int8").network
    linear.weight = nn.Parameter(linear.weight.detach() * 2)
    after = packed_network(network, "int8").network
    assert after is not before
    x, bias = torch.ones(1, 1, 8), linear.bias
    doubled, once = (made.blocks[0].mlp.up[0](x) - bias for made in (after, before))
    assert torch.allclose(doubled, 2 * once, atol=1e-5)


#: writes that PyTorch's version counter does not count, as ablations do
UNCOUNTED = {
    "a head's rows": lambda network: network.blocks[0].attn.query.weight.data[:4].zero_(),
    "two rows change places": lambda network: network.blocks[0].mlp.down.weight.data.copy_(
        network.blocks[0].mlp.down.weight.data.flip(0)
    ),
    "a gain": lambda network: network.final_norm.gain.data.mul_(-1),
    "by NumPy": lambda network: network.embed.token.weight.detach().numpy().__imul__(2.0),
}


@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED)
@pytest.mark.parametrize("gain", ["g", "1+g"])
def test_weights_that_are_edited_through_data_are_packed_and_compiled_anew(change, gain):
    """The texts of packed weights and of the compiled step are those of a network that never was another."""
    a = SMALL.with_fields({"norm.kind": "rms", "norm.gain": gain})
    edited, fresh = make_network(a, dtype=torch.float32), make_network(a, dtype=torch.float32)
    change(fresh)
    ways = [*((weights, "no") for weights in ("loaded", "float32", "int8", "int4")), ("loaded", "yes")]

    def logits(network, weights, compiled):
        network = network if weights == "loaded" else packed_network(network, weights).network
        options = {"max_tokens": 5, "sampling": Sampling(temperature=0), "compile": compiled}
        return torch.cat([one.logits for one in generate_ids(network, [[1, 2, 3]], **options)])

    before = [logits(edited, *way) for way in ways]
    change(edited)
    for way, old in zip(ways, before, strict=True):
        now, expected = logits(edited, *way), logits(fresh, *way)
        assert torch.equal(now, expected), way
        assert not torch.equal(now, old), way
