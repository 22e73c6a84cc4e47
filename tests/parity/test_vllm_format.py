"""Exported folders in the format that vLLM reads, checked against its loaders as published, without vLLM itself.

vLLM 0.24 and newer reads config.json by transformers 5, finds its class by `architectures` (model_executor/models/
registry.py), and loads tensors by name, q, k and v as one matrix and gate and up as another (`stacked_params_mapping`
in models/qwen2.py and llama.py; models/gpt2.py turns the matrices of Conv1D). What its classes hold is written below.
"""

from math import prod

import pytest
import torch
from transformers import AutoConfig

from drawing import make_network
from pellucid.hub.families import config_of, each_to_theirs
from pellucid.hub.write import exported_as
from pellucid.presets import preset

#: (what a tensor's name contains, the parameter that it becomes a part of), as vLLM stacks them
STACKED = (
    (".q_proj", ".qkv_proj"),
    (".k_proj", ".qkv_proj"),
    (".v_proj", ".qkv_proj"),
    (".gate_proj", ".gate_up_proj"),
    (".up_proj", ".gate_up_proj"),
)


def llama_parameters(config, head_norms=False):
    """The parameters of vLLM's LlamaForCausalLM, and of Qwen3ForCausalLM with the norms of heads, by name."""
    width, inner, d_head = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    names = {"model.embed_tokens.weight": (config.vocab_size, width), "model.norm.weight": (width,)}
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        names |= {
            f"{layer}.self_attn.qkv_proj.weight": ((heads + 2 * kv_heads) * d_head, width),
            f"{layer}.self_attn.o_proj.weight": (width, heads * d_head),
            f"{layer}.mlp.gate_up_proj.weight": (2 * inner, width),
            f"{layer}.mlp.down_proj.weight": (width, inner),
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
        }
        if head_norms:
            names |= {f"{layer}.self_attn.{name}.weight": (d_head,) for name in ("q_norm", "k_norm")}
    return names if config.tie_word_embeddings else names | {"lm_head.weight": (config.vocab_size, width)}


def gpt2_parameters(config):
    """The parameters of vLLM's GPT2LMHeadModel by name, its matrices as Conv1D keeps them, [in, out]."""
    width, inner = config.hidden_size, config.n_inner or 4 * config.hidden_size
    names = {
        "transformer.wte.weight": (config.vocab_size, width),
        "transformer.wpe.weight": (config.max_position_embeddings, width),
        "transformer.ln_f.weight": (width,),
        "transformer.ln_f.bias": (width,),
    }
    for i in range(config.num_hidden_layers):
        layer = f"transformer.h.{i}"
        sizes = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        sizes |= {"mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}
        for name, size in sizes.items():
            names |= {f"{layer}.{name}.weight": size, f"{layer}.{name}.bias": size[1:]}
        for norm in ("ln_1", "ln_2"):
            names |= {f"{layer}.{norm}.weight": (width,), f"{layer}.{norm}.bias": (width,)}
    return names


LOADERS = {
    "small": ("Qwen3ForCausalLM", lambda config: llama_parameters(config, head_norms=True)),
    "llama-mini": ("LlamaForCausalLM", llama_parameters),
    "gpt2": ("GPT2LMHeadModel", gpt2_parameters),
}


def as_loaded(tensors, tied):
    """Names and shapes after vLLM's renaming: parts of one matrix are stacked, a tied head is skipped."""
    shapes = {}
    for name, tensor in tensors:
        if name == "lm_head.weight" and tied:
            continue
        for part, stacked in STACKED:
            name = name.replace(part, stacked)
        rows = shapes.get(name, (0,))[0] + tensor.shape[0] if ".qkv_proj" in name or ".gate_up_proj" in name else None
        shapes[name] = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
    return shapes


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("fields", [{}, {"unembed": "untied", "attention.n_kv_heads": 2}], ids=["tied", "untied"])
def test_a_family_export_has_the_tensors_that_vllm_loads(name, fields, tmp_path):
    if name == "gpt2":  # the family has neither
        fields = {}
    architecture = preset(name, 300).with_fields(
        {"n_layers": 2, "d_model": 32, "attention.n_heads": 4, "n_ctx": 16, **fields}
    )
    family, exported = exported_as(architecture)
    network = make_network(exported, dtype=torch.float32)
    values = config_of(exported, family)
    expected_class, parameters = LOADERS[name]
    assert values["architectures"] == [expected_class]
    # entries that vLLM's class reads are those of transformers' configuration
    config = AutoConfig.for_model(**values)
    shapes = as_loaded(each_to_theirs(network.state_dict(), exported, family), config.tie_word_embeddings)
    assert shapes == parameters(config)
    loaded = sum(prod(shape) for shape in shapes.values())
    assert loaded == sum(parameter.numel() for parameter in network.parameters())
    if name != "gpt2":
        assert config.rope_parameters["rope_theta"] == exported.positions.base
