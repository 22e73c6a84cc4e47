"""Dropout by sample: a row's masks are those of its number, whatever is computed beside it."""

import gc
import weakref

import pytest
import torch
from torch import nn

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.dropout import SampledDropout, draw_by_sample, kept_entries
from pellucid.model.modes import in_evaluation_mode, kept_in_evaluation_mode
from pellucid.presets import preset

P = 0.25
#: more than six standard deviations of the share of 4096 entries
FAR = 0.041


def numbers(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(seed))


def kept(n: int = 1, *shape: int, place: int = 0, first: int = 0) -> torch.Tensor:
    return kept_entries(torch.ones(n, *shape), numbers(n), place, first, P)


@pytest.mark.parametrize("context", [in_evaluation_mode, kept_in_evaluation_mode])
def test_a_network_that_two_threads_evaluate_is_restored_when_both_have_ended(context):
    """It has no dropout before, in whatever order they begin and end."""
    network = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    first, second = context(network), context(network)
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in network.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in network.modules()] == [True, True, False]
    kept = weakref.ref(network)
    del network, first, second
    gc.collect()
    assert kept() is None


def test_an_entry_is_kept_with_probability_1_minus_p_along_every_axis():
    of_streams, of_patterns = kept(8, 64, 64), kept(4, 8, 32, 32)
    for mask in (of_streams, of_patterns):
        for axis in range(mask.ndim):
            share = mask.double().mean(tuple(i for i in range(mask.ndim) if i != axis))
            assert (share - (1 - P)).abs().max() < 6 * (P * (1 - P) * mask.size(axis) / mask.numel()) ** 0.5


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_neighbours_are_independent(axis):
    """The share of neighbours that are both kept is the square of the share kept."""
    mask = kept(8, 8, 32, 32)
    both = mask.narrow(axis, 1, mask.size(axis) - 1) & mask.narrow(axis, 0, mask.size(axis) - 1)
    assert abs(both.double().mean().item() - (1 - P) ** 2) < 6 * (both.numel() ** -0.5)


def test_samples_and_places_draw_apart():
    one, other = kept(2, 64, 64), kept(2, 64, 64, place=1)
    for a, b in ((one[0], one[1]), (one[0], other[0]), (one[0], other[1])):
        assert abs((a & b).double().mean().item() - (1 - P) ** 2) < FAR


def test_a_mask_does_not_depend_on_sizes_or_on_other_rows():
    whole = kept_entries(torch.ones(4, 3, 16, 24), numbers(4), 5, 0, P)
    assert torch.equal(kept_entries(torch.ones(2, 3, 8, 12), numbers(4)[1:3], 5, 0, P), whole[1:3, :, :8, :12])
    assert torch.equal(kept_entries(torch.ones(4, 1, 16, 24), numbers(4), 5, 2, P), whole[:, 2:])


A = preset("small", 11).with_fields(
    {"n_layers": 2, "d_model": 16, "n_heads": 2, "n_kv_heads": 2, "d_ff": 24, "n_ctx": 8, "ngrams": ()}
)


def in_training(a: Architecture, **fields: float) -> Transformer:
    torch.manual_seed(0)
    return Transformer(a.with_fields(fields)).double().train()


def test_rows_apart_are_the_rows_together():
    network, tokens, samples = in_training(A, dropout=0.5), torch.randint(11, (4, 8)), numbers(4)
    draw_by_sample(network, samples)
    together = network(tokens)
    for rows in (slice(0, 2), slice(3, 4)):
        draw_by_sample(network, samples[rows])
        torch.testing.assert_close(network(tokens[rows]), together[rows], rtol=1e-12, atol=1e-12)
    draw_by_sample(network, samples.flip(0))
    assert not torch.allclose(network(tokens), together)


def test_both_kernels_drop_the_same_entries():
    network, tokens = in_training(A, **{"dropout.pattern": 0.5}), torch.randint(11, (2, 8))
    draw_by_sample(network, numbers(2))
    fused = network(tokens)
    choose_attention_kernel(network, "explicit")
    torch.testing.assert_close(network(tokens), fused, rtol=1e-12, atol=1e-12)


def test_without_numbers_pytorchs_generator_draws():
    network, tokens = in_training(A, dropout=0.5), torch.randint(11, (2, 8))
    first, second = network(tokens), network(tokens)
    assert not torch.allclose(first, second)
    draw_by_sample(network, numbers(2))
    assert torch.equal(network(tokens), network(tokens))
    assert torch.equal(network.eval()(tokens), in_training(A).eval()(tokens))


def test_every_place_has_a_number_of_its_own():
    for a in (A, preset("t5-mini", 11)):
        places = [m.place for m in Transformer(a).modules() if isinstance(m, SampledDropout)]
        assert places == list(range(len(places)))
        assert len(places) >= 1 + 3 * a.n_layers
