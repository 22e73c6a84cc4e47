"""Configurations drawn over every entry that a family's config.json may have, right and wrong ones.

A draw starts from a tiny configuration that both sides read, and changes a few entries: fields of the family's
configuration class, the older spellings that its class still reads, and entries that all classes share.
"""

import copy
import random
import warnings
from dataclasses import fields
from typing import Any

import transformers
from random_models import COMMON, TINY
from theirs import perturb
from torch import nn
from transformers.activations import ACT2FN

#: entries that a class reads though they are no fields of it
OLDER: dict[str, tuple[str, ...]] = {
    "gpt_neox": ("rotary_pct", "rotary_emb_base", "rope_scaling", "rope_theta", "head_dim"),
    "bloom": ("n_embed", "num_attention_heads", "num_hidden_layers", "seq_length", "skip_bias_add"),
    "falcon": ("n_embed", "n_layer", "n_head", "rope_theta", "rope_scaling", "head_dim"),
    "gemma3_text": ("sliding_window_pattern", "rope_local_base_freq", "rope_theta", "rope_scaling"),
    "modernbert": ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_scaling"),
    "gpt_neo": ("attention_layers", "num_attention_heads"),
    "t5": ("scale_decoder_outputs", "tie_word_embeddings", "n_positions", "dense_act_fn", "is_gated_act"),
    "mistral": ("layer_types",),
    "mpt": ("num_attention_heads", "attn_impl"),
}
ROTARY = ("rope_theta", "rope_scaling", "partial_rotary_factor", "original_max_position_embeddings", "head_dim")
for name in ("llama", "mistral", "qwen2", "qwen3", "stablelm", "phi", "olmo2", "gemma", "gemma2"):
    OLDER[name] = (*OLDER.get(name, ()), *ROTARY)
#: what any config.json may hold
SHARED = ("per_layer_config", "position_embedding_type", "torch_dtype", "attention_bias", "is_causal", "pruned_heads")
SHARED += ("gradient_checkpointing", "layer_types", "sliding_window", "torchscript", "head_dim", "hidden_size")

SIZES: dict[str, tuple[Any, ...]] = {
    "layers": (0, 1, 2, 3),
    "heads": (1, 2, 3, 4, 5, 6, 7),
    "kv": (None, 1, 2, 3, 4),
    "head_dim": (None, 2, 3, 4, 5, 6, 7, 8, 10),
    "width": (6, 8, 10, 12, 14, 20, 24, 30),
    "hidden": (None, 7, 20),
    "vocabulary": (13, 3, 20),
    "context": (9, 5, 1, 20),
    "segments": (0, 1, 2, 3),
    "window": (None, 0, 1, 2, 3, 9, 20),
    "rate": (0.0, 0, 0.1, 0.5, 1, None),
    "scalar": (1, 3, 4, 5, 10, 16, 100, 0.5, 0, -4),
    "cap": (None, 0.0, 1.0, 3.0, 30, -2.0),
    "base": (100.0, 10, 50.5, None, 10_000),
    "fraction": (None, 0.0, 0.1, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.5),
    "epsilon": (1e-5, 1e-2, 0.5, 0, 1e-12, 1),
}
KIND_OF: dict[str, tuple[str, ...]] = {
    kind: tuple(names.split())
    for kind, names in {
        "layers": "num_hidden_layers n_layer n_layers num_layers num_decoder_layers encoder_layers decoder_layers",
        "heads": "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads",
        "kv": "num_key_value_heads num_kv_heads num_ln_in_parallel_attn",
        "head_dim": "head_dim d_kv rotary_dim",
        "width": "hidden_size n_embd d_model dim word_embed_proj_dim n_embed embedding_size",
        "hidden": "intermediate_size n_inner ffn_dim hidden_dim d_ff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim",
        "vocabulary": "vocab_size decoder_vocab_size",
        "context": "max_position_embeddings n_positions max_seq_len seq_length",
        "segments": "type_vocab_size",
        "window": "sliding_window window_size sliding_window_pattern max_window_layers",
        "scalar": "query_pre_attn_scalar softmax_scale relative_attention_num_buckets",
        "cap": "final_logit_softcapping attn_logit_softcapping logit_scale clip_qkv",
        "base": "rope_theta rotary_emb_base rope_local_base_freq global_rope_theta local_rope_theta",
        "fraction": "partial_rotary_factor rotary_pct",
        "epsilon": "layer_norm_epsilon layer_norm_eps rms_norm_eps norm_eps",
    }.items()
}
POOL = {name: SIZES[kind] for kind, listed in KIND_OF.items() for name in listed}
WRONG = ("16", "junk", [1], [], {}, {"a": 1}, True, False, None, 1.5, 3, 0, -1, 1e300, [["llama"]], 2**60)
ACTIVATIONS = (*ACT2FN, "junk", "gelu", "gelu_new", "relu", "silu")
LAYER_KINDS = ("full_attention", "sliding_attention", "sliding_attention", "chunked_attention", "attention", 3)


def draw_rope(dice: random.Random, nested: bool = False) -> Any:
    """What rope_parameters or rope_scaling may hold."""
    if nested and dice.random() < 0.7:
        kinds = ("full_attention", "sliding_attention")
        return {kind: draw_rope(dice) for kind in kinds if dice.random() < 0.9}
    kind = dice.choice(("default", "default", "linear", "llama3", "yarn", "dynamic", "longrope", "proportional", "x"))
    pool: dict[str, tuple[Any, ...]] = {
        "rope_theta": SIZES["base"],
        "partial_rotary_factor": SIZES["fraction"],
        "factor": (1, 2.0, 4.0, 8, 0.5, None),
        "low_freq_factor": (0.1, 1, 1.0, 2),
        "high_freq_factor": (1.0, 4, 4.0),
        "original_max_position_embeddings": (3, 8, 8192),
        "attention_factor": (0.5, 1.0, None),
        "beta_fast": (32, 4.0),
        "beta_slow": (1, 0.1, 0),
        "mscale": (0.7, 1.0),
        "mscale_all_dim": (1.0, 0.5),
        "truncate": (True, True, False),
        "short_factor": ([1.0, 2.0], [1.0, 1.5, 4.0], [1.0, 2, 3.0, 4.0]),
        "long_factor": ([1.0, 2.0], [1.0, 1.5, 4.0], [1.0, 3, 5.0, 9.0]),
        "mrope_section": ([1, 1],),
    }
    found = {name: dice.choice(values) for name, values in pool.items() if dice.random() < 0.5}
    if kind in ("linear", "llama3", "yarn", "dynamic") and dice.random() < 0.8:
        found |= {"factor": dice.choice((2.0, 4.0, 8))}
        found |= {"low_freq_factor": 0.1, "high_freq_factor": 1.0} if kind == "llama3" else {}
    if kind == "longrope" and dice.random() < 0.8:
        found |= {"short_factor": dice.choice(pool["short_factor"])}
        found |= {"long_factor": dice.choice((found["short_factor"], *pool["long_factor"]))}
    named = {dice.choice(("rope_type", "rope_type", "type")): kind} if dice.random() < 0.9 else {}
    return found | named


def draw_value(name: str, annotation: str, default: Any, n_layers: int, dice: random.Random) -> Any:
    """A value for this entry: most often of a kind that it may have."""
    if dice.random() < 0.06:
        return dice.choice(WRONG)
    if name in ("rope_parameters", "rope_scaling"):
        return draw_rope(dice, nested=True) if dice.random() < 0.9 else None
    if name in POOL:
        return dice.choice(POOL[name])
    if name == "layer_types":
        n = n_layers if dice.random() < 0.8 else dice.randint(0, 4)
        return [dice.choice(LAYER_KINDS[: dice.choice((2, 3, 6))]) for _ in range(n)]
    if name == "attention_layers":
        return [dice.choice(("global", "local")) for _ in range(n_layers)]
    if name == "attention_types":
        kinds = [dice.choice(("global", "local", "local")) for _ in range(dice.randint(0, 2))]
        return [[kinds, dice.randint(0, 3)], [[dice.choice(("global", "local", "x"))], 1]]
    if name == "attn_config":
        parts = fields(transformers.models.mpt.configuration_mpt.MptAttentionConfig)
        own = [f for f in parts if f.name not in SHARED_FIELDS]
        chosen = [f for f in own if dice.random() < 0.15]
        return {f.name: draw_value(f.name, str(f.type), f.default, n_layers, dice) for f in chosen}
    if name == "per_layer_config":
        return {"0": {"intermediate_size": 7}} if dice.random() < 0.5 else {}
    if name == "position_embedding_type":
        return dice.choice(("absolute", "relative_key", "relative_key_query"))
    if name == "pruned_heads":
        return dice.choice(({}, {"0": [0]}))
    if name in ("id2label", "label2id", "architectures", "transformers_version", "dtype", "torch_dtype"):
        return {"dtype": "float32", "torch_dtype": "bfloat16", "architectures": None}.get(name)
    if name in ("return_dict", "output_hidden_states", "num_labels"):
        return default
    if name == "feed_forward_proj":
        return dice.choice(("", "", "gated-")) + dice.choice(ACTIVATIONS)
    if name in ("hidden_act", "activation_function", "hidden_activation", "classifier_activation", "activation", "afn"):
        return dice.choice(ACTIVATIONS)
    if "dropout" in name or "pdrop" in name or "layerdrop" in name:
        return dice.choice(SIZES["rate"])
    if "bool" in annotation or isinstance(default, bool):
        return dice.choice((True, False, True, False, True, False, None, 1))
    if name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"):
        return dice.choice((None, 0, 1, 2, 5, 12))
    if "int" in annotation:
        return dice.choice((0, 1, 2, 3, 4, 5, 8, 16, 30, None))
    if "float" in annotation:
        return dice.choice((0.0, 0.1, 0.5, 1.0, 2.0, 0.02, None))
    return dice.choice((None, True, False, "first", "junk"))


SHARED_FIELDS = {f.name for f in fields(transformers.PreTrainedConfig)}


def entries_of(name: str) -> dict[str, tuple[str, Any]]:
    """Every entry that may be drawn: its annotation and default."""
    config_class = getattr(transformers, TINY[name][0]).config_class
    found = {f.name: (str(f.type), f.default) for f in fields(config_class)}
    found |= {alias: found.get(own, ("", None)) for alias, own in config_class.attribute_map.items()}
    return found | {n: ("", None) for n in (*OLDER.get(name, ()), *SHARED) if n not in found}


def draw_config(name: str, dice: random.Random) -> dict[str, Any]:
    """A config.json of the family, a few entries of which are other than in a tiny sound one."""
    _, common, variants = TINY[name]
    config = {"model_type": name} | COMMON | common | variants[dice.choice(list(variants))]
    listed = entries_of(name)
    n_layers = next((config[n] for n in KIND_OF["layers"] if isinstance(config.get(n), int)), 2)
    for entry in dice.sample(sorted(listed), dice.choice((1, 1, 2, 3, 4))):
        if dice.random() < 0.1:
            config.pop(entry, None)
        else:
            config[entry] = draw_value(entry, *listed[entry], n_layers, dice)
    return config


#: what a configuration may ask for and still be made
LARGEST = {"width": 300, "hidden": 300, "layers": 8, "heads": 300, "kv": 300, "head_dim": 300, "segments": 300}
LARGEST |= {"vocabulary": 300_000, "context": 300_000, "window": 300_000}


def too_large(config: Any) -> bool:
    """Whether their model of it would fill the memory."""
    held = ((kind, getattr(config, name, None)) for kind, names in KIND_OF.items() for name in names)
    buckets = getattr(config, "relative_attention_num_buckets", 0) or 0
    return buckets > 300 or any(isinstance(n, int) and n > LARGEST.get(kind, n) for kind, n in held)


def theirs_of(name: str, config: dict[str, Any]) -> nn.Module:
    """Their model of this config.json, perturbed, in float64; raises whatever they raise."""
    model_class = getattr(transformers, TINY[name][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if any(isinstance(value, int) and value > 300_000 for value in config.values()):
            raise ValueError("too large to be tried")
        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        made = model_class.config_class.from_dict(copy.deepcopy(config) | eager)
        if too_large(made):
            raise ValueError("too large to be tried")
        model = model_class(made)
        if name == "t5" and not made.scale_decoder_outputs:
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    return perturb(model)
