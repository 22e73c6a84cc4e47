"""Dictionaries beside their definitions, where they stand in a network, and their files."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import architectures, make_network

from pellucid.features.dictionary import (
    Dictionary,
    DictionaryError,
    SavedDictionary,
    Site,
    save_dictionary,
    transcoder_sites,
    with_unit_rows,
)
from pellucid.model import Recorder
from pellucid.reference.dictionaries import (
    batch_top_k,
    dictionary_output,
    jump_relu,
    top_k,
    unexplained_variance,
)

SITE = Site(layer=0, reads="blocks.0.norm_2", writes="blocks.0.mlp_out")


def drawn(d_in: int, d_out: int, n_features: int, has_skip: bool, seed: int = 0) -> Dictionary:
    """A dictionary whose every number is drawn."""
    dictionary, generator = Dictionary(d_in, d_out, n_features, has_skip).double(), torch.Generator().manual_seed(seed)
    for value in dictionary.state_dict().values():
        value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64))
    return dictionary


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_a_dictionary_is_its_definition(d_in, d_out, n_features, has_skip, seed):
    dictionary = drawn(d_in, d_out, n_features, has_skip, seed)
    x = torch.randn(4, d_in, dtype=torch.float64)
    state = {name: t.numpy() for name, t in dictionary.state_dict().items()}
    f = jump_relu(x.numpy() @ state["W_enc"] + state["b_enc"], state["threshold"])
    expected = dictionary_output(x.numpy(), f, state["W_dec"], state["b_dec"], state.get("W_skip"))
    with torch.no_grad():
        assert np.allclose(dictionary.encode(x).numpy(), f, atol=1e-12)
        assert np.allclose(dictionary(x).numpy(), expected, atol=1e-12)
        same = with_unit_rows(dictionary)(x).numpy()
    assert np.allclose(same, expected, atol=1e-12)
    assert np.allclose(dictionary.W_dec.norm(dim=1).detach().numpy(), 1)


def test_the_largest_activations_are_kept():
    h = np.array([[3.0, -1.0, 2.0, 2.0], [-5.0, -4.0, -3.0, 1.0]])
    assert top_k(h, 2).tolist() == [[3, 0, 2, 0], [0, 0, 0, 1]]
    assert batch_top_k(h, 2).tolist() == [[3, 0, 2, 2], [0, 0, 0, 1]]
    assert unexplained_variance(h, h) == 0
    assert unexplained_variance(h, np.broadcast_to(h.mean(0), h.shape)) == pytest.approx(1)


@settings(deadline=None)
@given(architectures())
def test_a_transcoder_reads_what_the_mlp_reads_and_writes_what_it_adds(a):
    """What is named `reads` is the very tensor that each MLP is given."""
    network, sites, given_to = make_network(a), transcoder_sites(a), {}
    for layer, block in enumerate(network.blocks):
        block.mlp.register_forward_pre_hook(lambda module, args, layer=layer: given_to.update({layer: args[0]}))
    tap = Recorder(keep=[name for site in sites for name in (site.reads, site.writes)])
    tokens = torch.arange(4)[None] % a.n_vocab
    with torch.no_grad():
        network(tokens, tap=tap)
    assert [site.layer for site in sites] == list(range(a.n_layers))
    for site in sites:
        assert site.kind == "transcoder"
        assert torch.equal(tap.values[site.reads], given_to[site.layer])
        assert tap.values[site.writes].shape == given_to[site.layer].shape


@pytest.mark.parametrize("has_skip", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dictionary_comes_back_from_its_files(has_skip, dtype, tmp_path):
    dictionary = drawn(3, 4, 7, has_skip).to(dtype)
    save_dictionary(dictionary, SITE, tmp_path / "one", {"run": "runs/a", "k": 3})
    back = SavedDictionary.load(tmp_path / "one")
    assert back.site == SITE
    assert back.metadata == {"run": "runs/a", "k": 3}
    assert back.dictionary.state_dict().keys() == dictionary.state_dict().keys()
    for name, value in dictionary.state_dict().items():
        assert torch.equal(back.dictionary.state_dict()[name], value), name
        assert back.dictionary.state_dict()[name].dtype == dtype


def test_files_of_another_kind_are_refused_by_name(tmp_path):
    with pytest.raises(DictionaryError, match="holds no dictionary"):
        SavedDictionary.load(tmp_path)
    save_dictionary(drawn(3, 3, 5, has_skip=False), SITE, tmp_path, {})
    path = tmp_path / "cfg.json"
    config = json.loads(path.read_text())
    for name, value in (
        ("architecture", "gated"),
        ("apply_b_dec_to_input", True),
        ("normalize_activations", "layer_norm"),
    ):
        path.write_text(json.dumps({**config, name: value}))
        with pytest.raises(DictionaryError, match=f"{value!r}: expected"):
            SavedDictionary.load(tmp_path)
    with pytest.raises(DictionaryError, match="an autoencoder has no skip"):
        save_dictionary(drawn(3, 3, 5, has_skip=True), Site(layer=0, reads="embed", writes="embed"), tmp_path, {})
