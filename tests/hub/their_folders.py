"""Folders as other projects write them: tiny random models of transformers, with a tokenizer of ours or of theirs."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer as Engine
from tokenizers import processors

from pellucid.hub.write import write_tokenizer
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import BPETokenizer

GPT2 = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
NEOX = {"max_position_embeddings": 32, "hidden_size": 32, "intermediate_size": 48}
NEOX |= {"num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = NEOX | {"num_key_value_heads": 2}
OF_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "head_dim": 8, "norm_topk_prob": True}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 5, "head_dim": 8, "sliding_window": None}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", LLAMA | OF_EXPERTS | {"moe_intermediate_size": 24, "intermediate_size": 48}),
    "olmoe": ("OlmoeForCausalLM", LLAMA | {"num_experts": 5, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX),
}


def write_theirs(folder: Path, family: str, tokenizer: Tokenizer, seed: int = 0, **options: Any) -> Path:
    """A random model of the family in float32, as transformers saves it, with its tokenizer."""
    kind, sizes = KINDS[family]
    model_class = getattr(transformers, kind)
    ends = {"bos_token_id": tokenizer.separator, "eos_token_id": tokenizer.separator}
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**(sizes | ends | {"vocab_size": tokenizer.n_vocab} | options)))
    model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, model.config.max_position_embeddings)
    return folder


def begun(tokenizer: Tokenizer, name: str = "<|begin_of_text|>") -> BPETokenizer:
    """The tokenizer with one more special token, which it puts before every text, as Llama 3 has it."""
    more = tokenizer.with_special(name)
    engine = Engine.from_str(more.to_json())
    first = processors.TemplateProcessing(f"{name} $A", special_tokens=[(name, more.special[name])])
    engine.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), first])
    return BPETokenizer(engine.to_str(pretty=True))
