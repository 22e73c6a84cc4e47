"""Parameters counted three ways: in closed form, in our network and in theirs."""

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from pellucid.hub import architecture_of
from pellucid.model import Transformer
from pellucid.parameter_counts import count_parameters
from pellucid.presets import preset
from pellucid.training.encoder import with_model_fields

GPT2_SIZES = {
    "gpt2": ((768, 12, 12), 124_439_808),
    "gpt2-medium": ((1024, 24, 16), 354_823_168),
    "gpt2-large": ((1280, 36, 20), 774_030_080),
    "gpt2-xl": ((1600, 48, 25), 1_557_611_200),
}


def counted(make):
    """Trainable numbers of a module made without memory."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


@pytest.mark.item("X-PARAMS")
@pytest.mark.parametrize("name", GPT2_SIZES)
def test_gpt2(name):
    (d_model, n_layers, n_heads), expected = GPT2_SIZES[name]
    config = GPT2Config(n_embd=d_model, n_layer=n_layers, n_head=n_heads)
    a = architecture_of(config.to_dict())
    assert a == preset(name).with_fields({"mlp.d_ff": a.mlp.d_ff})
    assert counted(lambda: GPT2LMHeadModel(config)) == counted(lambda: Transformer(a)) == expected
    assert count_parameters(a)["total"] == expected


@pytest.mark.item("X-PARAMS")
def test_gpt1():
    """Post-norm without a final norm."""
    a = preset("gpt1")
    theirs = counted(lambda: OpenAIGPTLMHeadModel(OpenAIGPTConfig()))
    assert theirs == counted(lambda: Transformer(a)) == count_parameters(a)["total"] == 116_534_784


@pytest.mark.item("X-PARAMS")
def test_gpt3():
    """Too large to count but in closed form: L = 96, d = 12288, n_ctx = 2048."""
    assert count_parameters(preset("gpt3"))["total"] == 174_604_259_328


@pytest.mark.item("X-PARAMS")
def test_pythia_14m():
    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=128, num_hidden_layers=6, num_attention_heads=4, intermediate_size=512
    )
    a = architecture_of(config.to_dict())
    theirs = counted(lambda: GPTNeoXForCausalLM(config))
    assert theirs == counted(lambda: Transformer(a)) == count_parameters(a)["total"] == 14_067_712


@pytest.mark.item("X-PARAMS")
def test_the_original_encoder_decoder():
    """nn.Transformer's defaults are Vaswani et al.'s base model, with a final norm on either side: 2,048 numbers more.

    44,140,544 without embeddings; with one shared by both sides and the readout, of 37,000 tokens, 63,084,544
    (65 million in the paper). We hold one for each side, so the second is taken off.
    """
    a, embedding = preset("original"), 37_000 * 512
    normed = with_model_fields(a, {"final_norm": "norm"})
    assert counted(lambda: nn.Transformer(batch_first=True)) == 44_140_544
    assert counted(lambda: Transformer(normed)) - 2 * embedding == 44_140_544
    assert count_parameters(normed)["total"] - embedding == 63_084_544
    assert counted(lambda: Transformer(a)) == count_parameters(a)["total"] == 44_138_496 + 2 * embedding
    assert preset("original", 99).encoder.n_vocab == 99
