"""GPT-NeoX of transformers and ours are one function, up to the digits that its float32 angles lose.

transformers forms the rotary angles i w_k and their cosines in float32 whatever the model's precision
(modeling_gpt_neox.py, GPTNeoXRotaryEmbedding.forward); ours come from float64. For positions below 10^3 that is
a relative error of about 1e-7 i in the angle: at most 1e-6 in the logits of the tiny models here. With their
angles put in the place of ours the two agree to 1e-12. Their eager attention forces the softmax into
float32 as well, so sdpa is what is compared.
"""

import numpy as np
import pytest
import torch
from theirs import TOLERANCE, as_ours, both, draw, farthest, perturb
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from pellucid.architecture import Architecture
from pellucid.reference import embedding as reference_embedding
from pellucid.reference import layers as reference

FLOAT32_ANGLES = 1e-6
SIZES = {
    "vocab_size": 13,
    "max_position_embeddings": 17,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "bos_token_id": 0,
    "eos_token_id": 0,
    # half of 8 coordinates: two planes, so that the layouts differ
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
VARIANTS = {
    "plain": {"num_attention_heads": 3, "intermediate_size": 20},
    "all coordinates turned": {
        "num_attention_heads": 2,
        "intermediate_size": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
    "in sequence, no attention bias": {
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "use_parallel_residual": False,
        "attention_bias": False,
    },
    "tied, tanh gelu": {
        "num_attention_heads": 1,
        "intermediate_size": 20,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_new",
    },
}


def theirs(**options):
    config = GPTNeoXConfig(**SIZES | VARIANTS["plain"] | options, attn_implementation="sdpa")
    return perturb(GPTNeoXForCausalLM(config)), config.to_dict()


def float32_turns(a: Architecture) -> torch.Tensor:
    """Their cosines and sines [2, 1, pos, planes]: angle, cosine and sine each rounded to float32."""
    exponent = torch.arange(0, a.d_rotary, 2, dtype=torch.float32) / a.d_rotary
    angle = torch.arange(a.n_ctx, dtype=torch.float32)[:, None] * (1.0 / (a.positions.base**exponent))
    return torch.stack([angle.cos(), angle.sin()])[:, None].double()


@pytest.fixture
def their_angles(monkeypatch):
    """Puts their tables in the place of ours, in the engine and in the reference."""

    def put(network):
        turns = float32_turns(network.architecture)
        network.rotary_table.values = turns
        cos, sin = turns[:, 0].numpy()

        def rotate(x, positions, d_rotary, layout, w, c):
            assert c == 1
            first, second = reference_embedding._plane_indices(d_rotary, layout)
            across, along = cos[positions], sin[positions]
            turned = np.concatenate(
                [x[..., first] * across - x[..., second] * along, x[..., first] * along + x[..., second] * across],
                axis=-1,
            )
            return np.concatenate([turned, x[..., d_rotary:]], axis=-1)

        monkeypatch.setattr(reference, "rotate", rotate)

    return put


@pytest.mark.item("S0-4.1-c", "S1-1.1-l", "X-NEOX")
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_with_their_angles(options, their_angles):
    model, config = theirs(**options)
    network, _ = as_ours(model, config)
    their_angles(network)
    for n in (1, 6, 17):
        tokens = draw(network.architecture, n=n)
        expected = model(tokens).logits
        for logits in both(network, tokens).values():
            assert farthest(logits, expected) <= TOLERANCE


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_with_exact_angles(options):
    model, config = theirs(**options)
    network, _ = as_ours(model, config)
    tokens = draw(network.architecture)
    expected = model(tokens).logits
    for logits in both(network, tokens).values():
        # the lower bound says that the angles are what differs: were it to fall, transformers would have mended them
        assert 1e-11 < farthest(logits, expected) <= FLOAT32_ANGLES


def test_the_other_layout_is_another_function(their_angles):
    """Their planes are halves: with pairs the same weights give other logits."""
    model, config = theirs()
    network, _ = as_ours(model, config)
    their_angles(network)
    for block in network.blocks:
        block.attn.rotary.split, block.attn.rotary.axis = (-1, 2), -1
    tokens = draw(network.architecture)
    assert farthest(network(tokens), model(tokens).logits) > 1e-2


def test_files_of_an_older_version():
    """Flat rotary options, and buffers and names that were dropped since."""
    model, config = theirs()
    network, _ = as_ours(model, config)
    old = {name: value for name, value in config.items() if name != "rope_parameters"}
    old |= {"rotary_emb_base": 10000, "rotary_pct": 0.5}
    state = {name.replace("lm_head.", "embed_out."): tensor for name, tensor in model.state_dict().items()}
    state["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 17, 17).tril()
    state["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    state["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(2)

    class Older:
        def state_dict(self):
            return state

    again, _ = as_ours(Older(), old)  # type: ignore[arg-type]
    assert again.architecture == network.architecture
    tokens = draw(network.architecture)
    assert torch.equal(again(tokens), network(tokens))
