"""Our trace in TransformerLens's names is TransformerLens's own, tensor by tensor, on weights shaped like GPT-2's."""

import warnings

import pytest
import torch
from theirs import TOLERANCE, as_ours, draw, perturb
from transformers import GPT2Config, GPT2LMHeadModel

from pellucid.lens import InputError, trace
from pellucid.names import names
from running import with_encoder

CONFIG = GPT2Config(vocab_size=13, n_positions=9, n_embd=12, n_layer=2, n_head=3, attn_implementation="eager")


@pytest.fixture(scope="module")
def sides():
    """Our network, theirs around the same weights, and the tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs to answer for
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        model = perturb(GPT2LMHeadModel(CONFIG))
        network, _ = as_ours(model, CONFIG.to_dict())
        bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=CONFIG)
        bridge.enable_compatibility_mode(no_processing=True)
        bridge.set_use_attn_result(True)
        tokens = draw(network.architecture, batch=2, n=7)
        with torch.no_grad():
            _, cache = bridge.run_with_cache(tokens)
    return network, dict(cache.items()), tokens


def test_every_tensor_that_both_have_is_one(sides):
    network, theirs, tokens = sides
    t = trace(network, None, tokens)
    ours, compared = t.as_transformer_lens(), 0
    for name, x in ours.items():
        given, expected = x, theirs[name]
        assert given.shape == expected.shape, name
        seen = expected > -1e30  # they write the least number, or -inf, where a key may not be read
        if name.endswith("attn_scores"):
            assert torch.equal(seen, given > -torch.inf)
            given, expected = given[seen], expected[seen]
        assert (given - expected).abs().max() <= TOLERANCE * max(1, float(expected.abs().max())), name
        compared += 1
    assert compared == len(ours) == sum(1 for name in names(network.architecture))


def test_their_names_ask_for_the_same_tensors(sides):
    network, _, tokens = sides
    t = trace(network, None, tokens)
    for name, x in t.as_transformer_lens().items():
        ours = t[name]
        assert torch.equal(x, ours) or torch.equal(x, ours.transpose(1, 2)), name


def test_encoder_decoders_have_other_names(sides):
    network, _, _ = sides
    a = with_encoder(network.architecture)
    with pytest.raises(InputError, match="other names for encoder-decoders"):
        trace(type(network)(a), None, [1, 2], source=[1]).as_transformer_lens()
