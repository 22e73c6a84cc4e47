"""GPT-2 of transformers and ours are one function, and its files go both ways."""

import pytest
import torch
from theirs import TOLERANCE, as_ours, both, draw, farthest, perturb
from transformers import GPT2Config, GPT2LMHeadModel

from pellucid.hub import architecture_of

SIZES = {"vocab_size": 13, "n_positions": 9, "n_embd": 12, "n_layer": 3, "bos_token_id": 0, "eos_token_id": 0}
VARIANTS = {
    "plain": {"n_head": 3},
    "one head, relu, narrow MLP": {"n_head": 1, "activation_function": "relu", "n_inner": 7},
    "untied, exact gelu": {"n_head": 2, "tie_word_embeddings": False, "activation_function": "gelu"},
    "scores not scaled, large eps": {"n_head": 4, "scale_attn_weights": False, "layer_norm_epsilon": 1e-2},
    "silu": {"n_head": 2, "activation_function": "silu"},
    "no block": {"n_head": 2, "n_layer": 0},
}


def theirs(**options):
    config = GPT2Config(**SIZES | options)
    return perturb(GPT2LMHeadModel(config)), config.to_dict()


@pytest.mark.item("S0-ref", "S1-1.1-l", "S1-1.1.1.1-a", "X-GPT2")
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits(options, attention):
    model, config = theirs(**options, attn_implementation=attention)
    network, _ = as_ours(model, config)
    for n in (1, 5, 9):
        tokens = draw(network.architecture, n=n)
        expected = model(tokens).logits
        for logits in both(network, tokens).values():
            assert farthest(logits, expected) <= TOLERANCE


@pytest.mark.item("S1-1.1-k")
def test_padding_on_the_left():
    """Their attention_mask and position_ids are our mask and positions."""
    model, config = theirs(n_head=3)
    network, _ = as_ours(model, config)
    a, tokens = network.architecture, draw(architecture_of(config))
    kept = torch.arange(a.n_ctx) >= torch.tensor([0, 2, 5])[:, None]
    positions = (kept.cumsum(-1) - 1).clamp(min=0)
    expected = model(tokens, attention_mask=kept.long(), position_ids=positions).logits
    mask = kept[:, None, :] & torch.ones(a.n_ctx, a.n_ctx, dtype=torch.bool).tril()
    for logits in both(network, tokens, mask=mask, positions=positions).values():
        assert farthest(logits[kept], expected[kept]) <= TOLERANCE
