"""How weights start, how they are written and read, and that a tied matrix stays one."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import (
    WeightsError,
    empty_network,
    generator_of,
    initialise,
    load_state,
    load_weights,
    save_weights,
    state_of,
    without_memory,
)  # fmt: skip
from running import any_architectures, call, draw_tokens, with_encoder

A = Architecture(n_vocab=200, n_ctx=32, d_model=64, n_layers=8).with_fields({"n_heads": 2})


def start(a, seed=0, **options):
    return state_of(initialise(Transformer(a), seed, **options))


# How they start -----------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_standard_deviations_and_depth_scaling(std):
    for name, p in start(A, std=std).items():
        if name.endswith("gain"):
            assert (p == 1).all()
        elif name.endswith("bias"):
            assert (p == 0).all()
        else:
            writes = name.endswith(("attn.out.weight", "mlp.down.weight"))
            expected = std / math.sqrt(2 * 8) if writes else std
            # six standard deviations of the estimate
            assert abs(p.std().item() / expected - 1) < 6 / math.sqrt(2 * p.numel()), name
            assert abs(p.mean().item()) < 6 * expected / math.sqrt(p.numel()), name


def test_every_norm_starts_at_one():
    """A gain of g starts at 1, one of 1 + g at 0."""
    for word, value in (("g", 1), ("1+g", 0)):
        gains = [p for name, p in start(A.with_fields({"norm.gain": word})).items() if name.endswith("gain")]
        assert len(gains) == 2 * 8 + 1
        assert all((gain == value).all() for gain in gains)


def test_an_encoder_is_scaled_by_its_own_depth():
    encoder = A.with_fields({"mask": "bidirectional", "n_layers": 2})
    state = start(Architecture.from_dict(A.to_dict() | {"encoder": encoder.to_dict()}))
    for name, depth in (("encoder.blocks.0.mlp.down.weight", 2), ("blocks.0.cross.out.weight", 8)):
        assert abs(state[name].std().item() * math.sqrt(2 * depth) / 0.02 - 1) < 0.05, name


@settings(max_examples=20)
@given(any_architectures(), st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_weights(a, seed):
    torch.manual_seed(1)
    first = start(a, seed)
    torch.manual_seed(2)
    second = start(a, seed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = start(a, seed + 1)
    drawn = [name for name in first if not name.endswith(("gain", "bias")) and ".ngrams." not in name]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    assert len({first[name].sum().item() for name in drawn}) == len(drawn)


def test_a_tensor_s_start_does_not_depend_on_which_others_exist():
    few = start(A.with_fields({"attention.bias": "none", "norm.kind": "none"}))
    many = start(A.with_fields({"unembed": "untied", "mlp.form": "gated", "n_segments": 2}))
    shared = few.keys() & many.keys()
    assert "blocks.7.mlp.down.weight" in shared
    assert all(torch.equal(few[name], many[name]) for name in shared)


def test_the_start_does_not_depend_on_the_precision_nor_move_the_global_generator():
    double, single, network = state_of(initialise(Transformer(A).double(), 0)), start(A), Transformer(A)
    assert all(torch.equal(double[name].float(), single[name]) for name in single)
    before = torch.get_rng_state()
    initialise(network, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_of_tensors_are_those_of_every_version():
    """FNV-1a of seed/name, 64 bits without the highest: another hash would change every start and every resumed run."""
    assert generator_of(0, "embed.token.weight").initial_seed() == 0xBD5490FBE8E732E0 - 2**63
    assert generator_of(7, "x").initial_seed() == 0x352FAB180F3BF879


# Files --------------------------------------------------------------------------------------------


def test_a_tied_matrix_is_in_the_file_once(tmp_path):
    tied, untied = make_network(A), make_network(A.with_fields({"unembed": "untied"}))
    save_weights(tied, tmp_path / "tied")
    save_weights(untied, tmp_path / "untied")
    assert load_file(tmp_path / "untied").keys() - load_file(tmp_path / "tied").keys() == {"unembed.weight"}
    size = (tmp_path / "tied").stat().st_size
    assert size < 8 * sum(p.numel() for p in tied.parameters()) + 20_000


def is_tied(network):
    names = [name for name, p in network.named_parameters(remove_duplicate=False) if p is network.embed.token.weight]
    return names == ["embed.token.weight", "unembed.weight"]


@pytest.mark.item("S0-1.2-f")
def test_a_tied_matrix_stays_one_parameter_whatever_happens(tmp_path):
    network = make_network(A)
    save_weights(network, tmp_path / "w")
    load_weights(network, tmp_path / "w")
    assert is_tied(network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(draw_tokens(A)).square().mean().backward()
    optimiser.step()
    assert is_tied(network)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(state_of(network))
    for move in (copy.deepcopy, Transformer.float, Transformer.double, Transformer.bfloat16):
        network = move(network)
        assert is_tied(network)
    network.load_state_dict(network.state_dict())
    assert is_tied(network)
    network.to_empty(device="cpu")
    assert is_tied(network)
    assert not is_tied(make_network(A.with_fields({"unembed": "untied"})).to_empty(device="cpu"))


def test_a_tied_encoder_decoder_moves_its_matrix_too():
    network = make_network(with_encoder(A)).float()
    assert is_tied(network)
    assert network.encoder.embed.token.weight is not network.embed.token.weight
    network = make_network(with_encoder(A.with_fields({"source_embed": "shared"})))
    for moved in (network.float(), copy.deepcopy(network), network.to_empty(device="cpu")):
        assert moved.unembed.weight is moved.embed.token.weight
        assert moved.encoder.embed.token.weight is moved.embed.token.weight
        assert [n for n, _ in moved.named_parameters() if "embed.token" in n] == ["embed.token.weight"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("final_norm.gain"), "missing final_norm.gain, left over nothing"),
        (lambda s: s.update(extra=torch.zeros(1)), "missing nothing, left over extra"),
        (
            lambda s: [s.pop(f"blocks.{i}.mlp.down.bias") for i in range(5)],
            "missing blocks.0.mlp.down.bias, blocks.1.mlp.down.bias, blocks.2.mlp.down.bias and 2 more",
        ),
        (
            lambda s: s.update({"blocks.3.attn.key.weight": torch.zeros(2, 64)}),
            "blocks.3.attn.key.weight has shape [2, 64], the architecture asks for [64, 64]",
        ),
        (
            lambda s: s.update({"final_norm.gain": torch.zeros(65)}),
            "final_norm.gain has shape [65], the architecture asks for [64]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name_and_change_nothing(tmp_path, spoil, message):
    network, path = make_network(A, dtype=torch.float32), tmp_path / "weights.safetensors"
    state = {name: torch.zeros_like(p) for name, p in state_of(network).items()}
    spoil(state)
    save_file(state, path)
    before = {name: p.clone() for name, p in state_of(network).items()}
    with pytest.raises(WeightsError) as refused:
        load_weights(network, path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert all(torch.equal(before[name], p) for name, p in state_of(network).items())


def test_load_state_takes_another_precision():
    network, other = make_network(A), make_network(A, seed=1, dtype=torch.float32)
    load_state(network, state_of(other))
    assert all(torch.equal(p.float(), state_of(other)[name]) for name, p in state_of(network).items())


@given(any_architectures())
@settings(max_examples=20, deadline=None)
def test_an_empty_network_differs_from_a_drawn_one_in_its_values_alone(a):
    empty, drawn = empty_network(a, torch.float64), initialise(Transformer(a).double(), 0)
    shapes = [(n, p.shape, p.stride(), p.dtype, p.device) for n, p in drawn.named_parameters(remove_duplicate=False)]
    assert [
        (n, p.shape, p.stride(), p.dtype, p.device) for n, p in empty.named_parameters(remove_duplicate=False)
    ] == shapes
    assert state_of(empty).keys() == state_of(drawn).keys()
    for (name, table), (other, expected) in zip(empty.named_buffers(), drawn.named_buffers(), strict=True):
        assert name == other
        assert torch.equal(table, expected)
    load_state(empty, state_of(drawn))
    tokens = draw_tokens(a)
    assert torch.equal(call(empty.eval(), tokens), call(drawn.eval(), tokens))


def test_a_network_without_memory_draws_no_number():
    state = torch.get_rng_state()
    with without_memory():
        network = Transformer(A)
    assert all(p.is_meta for p in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    drawn = torch.nn.Linear(3, 3)  # values are drawn again behind it
    assert not drawn.weight.is_meta
    assert not torch.equal(torch.get_rng_state(), state)
