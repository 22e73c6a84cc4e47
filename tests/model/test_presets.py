"""Presets are the published models: counted by formula and counted as built, without memory."""

import pytest
import torch
from hypothesis import given, settings

from drawing import make_network
from pellucid.model import Transformer
from pellucid.option_values import ArchitectureError
from pellucid.parameter_counts import count_parameters
from pellucid.presets import PRESETS, preset
from running import any_architectures


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "gpt3"])
def test_what_is_built_has_as_many_numbers_as_the_formula(name):
    with torch.device("meta"):
        network = Transformer(PRESETS[name])
    assert sum(p.numel() for p in network.parameters()) == count_parameters(PRESETS[name])["total"]


@pytest.mark.item("S0-0-a", "X-PARAMS")
@settings(max_examples=25)
@given(any_architectures())
def test_the_formula_counts_every_drawn_network_part_by_part(a):
    network, counts = make_network(a), count_parameters(a)
    assert counts["total"] == sum(p.numel() for p in network.parameters())
    assert counts["total"] == sum(count for part, count in counts.items() if part != "total")
    found = dict.fromkeys(counts, 0)
    for name, p in network.named_parameters():
        found[part_of(name)] += p.numel()
    del found["total"], counts["total"]
    assert found == counts


def part_of(name):
    if name.startswith("encoder."):
        return "encoder"
    if name.startswith("unembed."):
        return "unembed"
    if name.startswith(("embed.position.", "relative.")):
        return "positions"
    if ".mlp." in name:
        return "mlp"
    if ".attn." in name or ".cross." in name:
        return "attention"
    return "norms" if "norm" in name else "embed"


def test_gpt3_by_hand():
    """Brown et al. 2020, table 2.1: 12 n_layers d_model^2 and what a formula in powers of d_model leaves out."""
    m, layers, vocabulary, context = 12288, 96, 50257, 2048
    block = 12 * m**2 + 13 * m
    assert count_parameters(PRESETS["gpt3"])["total"] == layers * block + (vocabulary + context) * m + 2 * m


def test_a_preset_takes_the_vocabulary_of_the_tokenizer():
    assert preset("gpt2", n_vocab=100).n_vocab == 100
    assert preset("gpt2") == PRESETS["gpt2"]
    assert preset("gpt2", n_vocab=100).d_model == 768
    with pytest.raises(
        ArchitectureError, match=r"there is no preset 'gpt4': did you mean 'gpt\d'\? choose one of .*modern, gpt1, gpt2"
    ):
        preset("gpt4")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    a = PRESETS[name]
    assert type(a).from_dict(a.to_dict()) == a
