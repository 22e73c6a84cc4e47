"""Tiny models of every family of transformers, one for each option that the family's configuration has."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from theirs import perturb
from torch import nn

from some_cases import slow

COMMON: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 13}
GPT = {"n_positions": 9, "n_embd": 12, "n_layer": 3, "n_head": 3}
LLAMA = {"max_position_embeddings": 9, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
ROTARY = {"rope_type": "default", "rope_theta": 100.0}
LINEAR = ROTARY | {"rope_type": "linear", "factor": 4.0}
#: planes of three kinds: within 8 positions they turn 1.27, 0.27 and 0.06 times
LLAMA3 = ROTARY | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.1, "high_freq_factor": 1.0}
LLAMA3 |= {"original_max_position_embeddings": 8}
#: planes that turn often, seldom and between, from whole plane 0 to 2 where there are three
YARN = ROTARY | {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 0.1}
YARN |= {"original_max_position_embeddings": 8}
#: one list for texts of every length, of six rotated coordinates
LONGROPE = ROTARY | {"rope_type": "longrope", "original_max_position_embeddings": 3}
LONGROPE |= {"short_factor": [1.0, 1.5, 4.0], "long_factor": [1.0, 1.5, 4.0]}
#: another list for texts of more than original_max_position_embeddings
PHI3_LONG = LONGROPE | {"partial_rotary_factor": 0.75, "long_factor": [2.0, 3.5, 8.0]}
LLAMA |= {"intermediate_size": 20, "num_key_value_heads": 2, "rope_parameters": ROTARY}
GEMMA2 = {"head_dim": 10, "query_pre_attn_scalar": 10, "sliding_window": 3, "final_logit_softcapping": 3.0}
GEMMA2 |= {"attn_logit_softcapping": 2.0}
BERT = {"max_position_embeddings": 9, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT |= {"intermediate_size": 20}
#: a window of two tokens on either side, in the second and third of four layers
MODERNBERT = BERT | {"num_hidden_layers": 4, "local_attention": 4}
MODERNBERT |= {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
#: enough experts that some have no position, and others all
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "num_local_experts": 5}
MULTIPLIERS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3}
MULTIPLIERS |= {"logits_scaling": 3.0}
TIED = {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}}

#: family -> (class, what all of its models here have, the variants)
TINY: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        GPT,
        TIED
        | {
            "exact gelu": {"activation_function": "gelu"},
            "silu": {"activation_function": "silu"},
            "no layer": {"n_layer": 0},
            "scores not scaled, relu, narrow MLP, large eps": {
                "scale_attn_weights": False,
                "activation_function": "relu",
                "n_inner": 7,
                "layer_norm_epsilon": 1e-2,
            },
        },
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        LLAMA | {"hidden_size": 32, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED
        | {
            "tanh gelu, all coordinates turned": {"hidden_act": "gelu_new", "rope_parameters": ROTARY},
            "in sequence, no attention bias": {"use_parallel_residual": False, "attention_bias": False},
            "positions scaled": {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}},
        },
    ),
    "bert": (
        "BertForMaskedLM",
        BERT,
        TIED
        | {
            "one head, tanh gelu": {"num_attention_heads": 1, "hidden_act": "gelu_new"},
            "three segments, relu, large eps": {"type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 1e-2},
        },
    ),
    "llama": (
        "LlamaForCausalLM",
        LLAMA,
        TIED
        | {
            "biases": {"attention_bias": True, "mlp_bias": True},
            "one key head, another width": {"num_key_value_heads": 1, "head_dim": 10},
            "gelu, large eps": {"hidden_act": "gelu", "rms_norm_eps": 1e-2},
            "positions scaled": {"rope_parameters": LINEAR},
            "scaled by turns": {"rope_parameters": LLAMA3},
            "scaled by turns, fewer turns": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 3}},
            "yarn, as in DeepSeek's files": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
            "longrope": {"rope_parameters": LONGROPE},
            "dynamic": {"rope_parameters": ROTARY | {"rope_type": "dynamic", "factor": 2.0}},
            "no layer": {"num_hidden_layers": 0},
        },
    ),
    "mistral": (
        "MistralForCausalLM",
        LLAMA,
        TIED
        | {"scaled by turns": {"rope_parameters": LLAMA3}}
        | {"window": {"sliding_window": 3}, "none": {"sliding_window": None}, "width": {"head_dim": 10}},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        LLAMA,
        TIED
        | {
            "yarn": {"rope_parameters": YARN},
            "windows from layer 1 on": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            "windows by name": {
                "use_sliding_window": True,
                "sliding_window": 2,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
        },
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        LLAMA | {"head_dim": 6},
        TIED
        | {
            "biases, large eps": {"attention_bias": True, "rms_norm_eps": 1e-2},
            "windows": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            "yarn, another factor": {"rope_parameters": YARN | {"attention_factor": 0.7, "beta_fast": 4.0}},
        },
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        LLAMA | {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "pad_token_id": None},
        TIED
        | {
            "biases": {"attention_bias": True, "mlp_bias": True},
            "every layer rotated": {"no_rope_layers": [1, 1, 1]},
            "windows": {"use_sliding_window": True, "sliding_window": 3},
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        LLAMA | {"head_dim": 6, "moe_intermediate_size": 7} | EXPERTS,
        TIED
        | {
            "renormalised, biases, windows": {
                "norm_topk_prob": True,
                "attention_bias": True,
                "use_sliding_window": True,
                "sliding_window": 3,
            },
        },
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        LLAMA | {"intermediate_size": 7, "pad_token_id": None} | EXPERTS,
        TIED
        | {
            "renormalised, biases, one expert": {
                "norm_topk_prob": True,
                "attention_bias": True,
                "num_experts_per_tok": 1,
            }
        },
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        LLAMA | {"moe_intermediate_size": 7, "shared_expert_intermediate_size": 5} | EXPERTS,
        TIED
        | {
            "renormalised, no biases, windows": {
                "norm_topk_prob": True,
                "qkv_bias": False,
                "use_sliding_window": True,
                "sliding_window": 3,
            },
        },
    ),
    "mixtral": (
        "MixtralForCausalLM",
        LLAMA | {"intermediate_size": 7} | EXPERTS,
        TIED | {"window, width, three experts": {"sliding_window": 3, "head_dim": 10, "num_experts_per_tok": 3}},
    ),
    "phi3": (
        "Phi3ForCausalLM",
        LLAMA | {"hidden_size": 32, "pad_token_id": None, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.75}},
        TIED
        | {
            "window, gelu": {"sliding_window": 3, "hidden_act": "gelu", "rope_parameters": ROTARY},
            "longrope, the context of the training": {
                "original_max_position_embeddings": 12,
                "rope_parameters": PHI3_LONG | {"attention_factor": 1.3},
            },
            "longrope, two lists": {
                "max_position_embeddings": 20,
                "original_max_position_embeddings": 9,
                "rope_parameters": PHI3_LONG,
            },
            "longrope, one list, a longer context": {
                "original_max_position_embeddings": 3,
                "rope_parameters": PHI3_LONG | {"short_factor": PHI3_LONG["long_factor"]},
            },
        },
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        LLAMA,
        TIED | {"no biases, window": {"use_bias": False, "sliding_window": 3, "norm_epsilon": 1e-2}},
    ),
    "nemotron": (
        "NemotronForCausalLM",
        LLAMA | {"hidden_size": 32, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED | {"biases, width": {"attention_bias": True, "mlp_bias": True, "head_dim": 12}},
    ),
    "arcee": (
        "ArceeForCausalLM",
        LLAMA,
        TIED | {"biases, scaled": {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}},
    ),
    "glm": (
        "GlmForCausalLM",
        LLAMA | {"head_dim": 8, "pad_token_id": None, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED
        | {
            "no biases, whole heads": {
                "attention_bias": False,
                "rope_parameters": ROTARY | {"partial_rotary_factor": 1.0},
            }
        },
    ),
    "glm4": (
        "Glm4ForCausalLM",
        LLAMA | {"head_dim": 8, "pad_token_id": None, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED | {"no biases, large eps": {"attention_bias": False, "rms_norm_eps": 1e-2}},
    ),
    "seed_oss": (
        "SeedOssForCausalLM",
        LLAMA | {"head_dim": 10, "pad_token_id": None},
        TIED | {"other biases": {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}},
    ),
    "ministral": (
        "MinistralForCausalLM",
        LLAMA | {"head_dim": 6, "sliding_window": 3},
        TIED
        | {
            "one layer with a window": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        },
    ),
    "olmo3": (
        "Olmo3ForCausalLM",
        {name: value for name, value in LLAMA.items() if name != "rope_parameters"}
        | {"sliding_window": 3, "num_hidden_layers": 4, "pad_token_id": None},
        TIED
        | {
            "scaled, biases, large eps": {
                "rope_parameters": {"full_attention": LLAMA3, "sliding_attention": ROTARY},
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "attention_bias": True,
                "rms_norm_eps": 1e-2,
            },
        },
    ),
    "olmo": (
        "OlmoForCausalLM",
        LLAMA | {"pad_token_id": None},
        TIED
        | {
            "biases, one key head, scaled": {
                "attention_bias": True,
                "num_key_value_heads": 1,
                "hidden_act": "gelu",
                "rope_parameters": LLAMA3,
            },
        },
    ),
    "exaone4": (
        "Exaone4ForCausalLM",
        LLAMA | {"head_dim": 6, "sliding_window": 3, "sliding_window_pattern": 2},
        TIED
        | {
            "no windows, all rotated": {
                "sliding_window": None,
                "layer_types": ["full_attention"] * 3,
                "rms_norm_eps": 1e-2,
            },
        },
    ),
    "cohere": (
        "CohereForCausalLM",
        LLAMA | {"logit_scale": 3.0},
        TIED
        | {
            "queries and keys normalised": {"use_qk_norm": True, "layer_norm_eps": 1e-2},
            "biases, no scale, width": {
                "attention_bias": True,
                "logit_scale": 1.0,
                "layer_norm_eps": 1e-2,
                "head_dim": 10,
                "rope_parameters": LLAMA3,
            },
        },
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        LLAMA | {"sliding_window": 3, "sliding_window_pattern": 2, "logit_scale": 3.0},
        TIED
        | {
            "biases, no scale, all windows": {
                "attention_bias": True,
                "logit_scale": 1.0,
                "layer_norm_eps": 1e-2,
                "layer_types": ["sliding_attention"] * 3,
                "head_dim": 10,
            },
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        LLAMA | MULTIPLIERS,
        TIED
        | {
            "biases, only scores scaled": {
                "attention_bias": True,
                "mlp_bias": True,
                "embedding_multiplier": 1.0,
                "residual_multiplier": 1.0,
                "logits_scaling": 1.0,
                "head_dim": 10,
            },
            "biases, factors that are options": {
                "attention_bias": True,
                "embedding_multiplier": 24**0.5,
                "attention_multiplier": 6**-0.5,
                "logits_scaling": 24**0.5,
            },
        },
    ),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        LLAMA | MULTIPLIERS | {"intermediate_size": 7} | EXPERTS,
        TIED | {"biases, three experts": {"attention_bias": True, "num_experts_per_tok": 3, "rms_norm_eps": 1e-2}},
    ),
    "stablelm": (
        "StableLmForCausalLM",
        LLAMA | {"hidden_size": 32, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED
        | {
            "biases": {"use_qkv_bias": True, "layer_norm_eps": 1e-2},
            "parallel": {"use_parallel_residual": True, "hidden_act": "gelu"},
            "queries and keys normalised": {"qk_layernorm": True, "layer_norm_eps": 1e-2, "use_qkv_bias": True},
        },
    ),
    "openai-gpt": (
        "OpenAIGPTLMHeadModel",
        GPT,
        TIED | {"relu": {"afn": "relu"}, "silu, large eps": {"afn": "silu", "layer_norm_epsilon": 1e-2}},
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "max_position_embeddings": 9,
            "hidden_size": 12,
            "num_layers": 3,
            "num_heads": 3,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
            "window_size": 3,
        },
        TIED
        | {
            "global, relu, narrow": {
                "attention_types": [[["global"], 3]],
                "activation_function": "relu",
                "intermediate_size": 7,
                "layer_norm_epsilon": 1e-2,
            }
        },
    ),
    "gpt_bigcode": (
        "GPTBigCodeForCausalLM",
        GPT,
        TIED
        | {
            "not scaled, relu": {"scale_attn_weights": False, "activation_function": "relu", "n_inner": 7},
            "a key head for each": {"multi_query": False, "layer_norm_epsilon": 1e-2},
        },
    ),
    "opt": (
        "OPTForCausalLM",
        BERT | {"ffn_dim": 20, "dropout": 0.0},
        TIED
        | {
            "post, gelu": {"do_layer_norm_before": False, "activation_function": "gelu"},
            "no biases": {"enable_bias": False},
            "no final norm": {"_remove_final_layer_norm": True},
            "wider embeddings, untied": {"word_embed_proj_dim": 17, "tie_word_embeddings": False},
            "narrower embeddings, post": {"word_embed_proj_dim": 5, "do_layer_norm_before": False},
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 12, "n_layer": 3, "n_head": 4, "seq_length": 9},
        TIED
        | {
            "one head, large eps": {"n_head": 1, "layer_norm_epsilon": 1e-2},
            "three heads": {"n_head": 3},
            "six heads": {"n_head": 6},
            "112 heads": {"n_head": 112, "hidden_size": 112},
        },
    ),
    "mpt": (
        "MptForCausalLM",
        {"d_model": 12, "n_layers": 3, "n_heads": 4, "max_seq_len": 9},
        TIED
        | {
            "one head, large eps": {"n_heads": 1, "layer_norm_epsilon": 1e-2},
            "three heads, another scale": {"n_heads": 3, "attn_config": {"softmax_scale": 0.3}},
            "twelve heads": {"n_heads": 12},
        },
    ),
    "roberta": (
        "RobertaForMaskedLM",
        BERT | {"max_position_embeddings": 11, "pad_token_id": 1, "type_vocab_size": 1},
        TIED | {"two segments, large eps": {"type_vocab_size": 2, "layer_norm_eps": 1e-2}},
    ),
    "xlm-roberta": (
        "XLMRobertaForMaskedLM",
        BERT | {"max_position_embeddings": 11, "pad_token_id": 1, "type_vocab_size": 1},
        TIED | {"two segments, large eps": {"type_vocab_size": 2, "layer_norm_eps": 1e-2}},
    ),
    "electra": (
        "ElectraForMaskedLM",
        BERT | {"embedding_size": 12},
        TIED
        | {
            "three segments, large eps": {
                "type_vocab_size": 3,
                "layer_norm_eps": 1e-2,
                "tie_word_embeddings": False,
                "num_attention_heads": 2,
            },
            "wider embeddings, untied": {"embedding_size": 17, "tie_word_embeddings": False},
            "narrower embeddings, as in the small model": {"embedding_size": 5},
        },
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        MODERNBERT,
        TIED
        | {
            "biases everywhere": {
                "norm_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "classifier_bias": True,
                "norm_eps": 1e-2,
            },
            "no bias, all layers global, relu": {
                "decoder_bias": False,
                "layer_types": ["full_attention"] * 4,
                "hidden_activation": "relu",
                "classifier_activation": "relu",
            },
            "local layers first, global ones scaled, untied": {
                "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
                "local_attention": 3,
                "rope_parameters": {"full_attention": LINEAR, "sliding_attention": ROTARY},
                "classifier_bias": True,
                "decoder_bias": False,
                "tie_word_embeddings": False,
            },
        },
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"max_position_embeddings": 9, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20},
        TIED | {"relu": {"activation": "relu"}},
    ),
    "gptj": (
        "GPTJForCausalLM",
        {"n_positions": 9, "n_embd": 24, "n_layer": 3, "n_head": 3, "rotary_dim": 6},
        TIED | {"whole heads, relu": {"rotary_dim": 8, "activation_function": "relu", "n_inner": 7}},
    ),
    "phi": (
        "PhiForCausalLM",
        {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
        | {"hidden_size": 32, "rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
        TIED
        | {
            "shared keys, large eps": {"num_key_value_heads": 2, "layer_norm_eps": 1e-2, "hidden_act": "gelu"},
            "positions scaled": {"rope_parameters": LLAMA3 | {"partial_rotary_factor": 1.0}},
            "queries and keys normalised": {"qk_layernorm": True, "num_key_value_heads": 2, "layer_norm_eps": 1e-2},
        },
    ),
    "falcon": (
        "FalconForCausalLM",
        {"max_position_embeddings": 9, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4},
        TIED
        | {
            "40b": {"new_decoder_architecture": True, "num_kv_heads": 2},
            "40b with one norm": {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            "a key head for each, biases": {"multi_query": False, "bias": True, "layer_norm_epsilon": 1e-2},
            "not parallel": {"parallel_attn": False, "activation": "relu", "ffn_hidden_size": 7},
            "positions scaled": {"rope_parameters": LINEAR},
        },
    ),
    "olmo2": (
        "Olmo2ForCausalLM",
        LLAMA,
        TIED
        | {
            "biases, one key head, large eps": {"attention_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "scaled by turns, gelu": {"rope_parameters": LLAMA3, "hidden_act": "gelu"},
        },
    ),
    "gemma": (
        "GemmaForCausalLM",
        LLAMA | {"head_dim": 10},
        TIED
        | {
            "biases, one key head, large eps": {"attention_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
            "relu, positions scaled": {"hidden_act": "relu", "rope_parameters": LINEAR},
        },
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        LLAMA | GEMMA2,
        TIED
        | {
            "no caps, scaled by the shared width": {
                "final_logit_softcapping": None,
                "attn_logit_softcapping": None,
                "query_pre_attn_scalar": 6,
            },
            "no windows, one cap": {"layer_types": ["full_attention"] * 3, "attn_logit_softcapping": None},
            "any scale": {"query_pre_attn_scalar": 7},
            "windows by name, biases": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                "attention_bias": True,
                "hidden_activation": "silu",
            },
        },
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        LLAMA
        | {"head_dim": 10, "query_pre_attn_scalar": 10, "sliding_window": 3, "sliding_window_pattern": 2}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": ROTARY | {"rope_theta": 10.0}}},
        TIED
        | {
            "capped, not scaled, other layers": {
                "final_logit_softcapping": 3.0,
                "rope_parameters": {"full_attention": ROTARY, "sliding_attention": ROTARY},
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                "query_pre_attn_scalar": 6,
            },
            "wide windows, biases, any scale": {
                "sliding_window": 20,
                "attention_bias": True,
                "rms_norm_eps": 1e-2,
                "query_pre_attn_scalar": 144,
            },
            "no windows": {"layer_types": ["full_attention"] * 3},
        },
    ),
}
TINY |= {
    "t5": (
        "T5ForConditionalGeneration",
        {"n_positions": 9, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3}
        | {"num_heads": 3, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 7},
        TIED
        | {
            "gated gelu, as in v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            "gated silu, large eps": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-2},
            "gelu, more buckets": {
                "feed_forward_proj": "gelu",
                "relative_attention_num_buckets": 9,
                "relative_attention_max_distance": 20,
            },
            "as many layers": {"num_decoder_layers": None},
        },
    ),
    "bart": (
        "BartForConditionalGeneration",
        {"max_position_embeddings": 9, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3}
        | {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 14},
        TIED
        | {
            "scaled embedding, relu": {"scale_embedding": True, "activation_function": "relu"},
            "scaled and untied, gelu_new": {
                "scale_embedding": True,
                "activation_function": "gelu_new",
                "tie_word_embeddings": False,
            },
            "no layer in the decoder": {"decoder_layers": 0},
        },
    ),
}
BART = TINY["bart"][1]
TINY |= {
    "mbart": (
        "MBartForConditionalGeneration",
        BART,
        TIED
        | {
            "scaled and untied, relu": {
                "scale_embedding": True,
                "activation_function": "relu",
                "tie_word_embeddings": False,
            },
        },
    ),
    "marian": (
        "MarianMTModel",
        BART | {"decoder_start_token_id": 0, "pad_token_id": 1},
        {
            "tied": {"tie_word_embeddings": True},
            "untied": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
            "scaled, swish, two vocabularies": {
                "scale_embedding": True,
                "activation_function": "swish",
                "share_encoder_decoder_embeddings": False,
                "decoder_vocab_size": 11,
            },
        },
    ),
}
#: an encoder and a decoder
PAIRS = ("t5", "bart", "mbart", "marian")
MASKED = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert")
#: families that give their padding token, 1, no position
PADDING_UNPLACED = ("roberta", "xlm-roberta")
CASES = [(name, variant) for name, (_, _, variants) in TINY.items() for variant in variants]
#: families near another one
NEAR = ("qwen3_moe", "olmoe", "qwen2_moe", "mixtral", "phi3", "starcoder2", "nemotron", "arcee", "glm", "glm4")
NEAR += ("seed_oss", "ministral", "olmo3", "olmo", "exaone4", "cohere", "cohere2", "granite", "granitemoe")
NEAR += ("xlm-roberta", "electra", "mbart", "marian")
NEAR += ("modernbert",)


def marked(cases: list[tuple[str, str]]) -> list[Any]:
    """The cases, marked slow but for the first and the last variant of each family, or the last of a `NEAR` one.

    The last variant of a family has the most options.
    """
    quick = {name: {[*variants][-1 if name in NEAR else 0], [*variants][-1]} for name, (_, _, variants) in TINY.items()}
    return [case if case[1] in quick[case[0]] else slow(case) for case in cases]


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Their code with every float32 in it read as float64: rotary tables, norms and softmax that they hold there."""
    kept = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    single = torch.FloatTensor
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64  # type: ignore[misc]
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]  # type: ignore[misc]
        torch.FloatTensor = single  # type: ignore[misc]
        torch.set_default_dtype(kept[3])


def config_of_theirs(name: str, variant: str) -> Any:
    """A configuration object of transformers."""
    kind, common, variants = TINY[name]
    options = {"attn_implementation": "eager", "experts_implementation": "eager"} | COMMON | common | variants[variant]
    config_class = getattr(transformers, kind).config_class
    # a class writes its defaults, such as GPT-NeoX's partial_rotary_factor, into the dictionaries that it is given
    return config_class(**copy.deepcopy(options))


def model_of_theirs(name: str, variant: str) -> tuple[nn.Module, dict[str, Any]]:
    """A perturbed model of transformers in float64, and its config.json."""
    config = config_of_theirs(name, variant)
    model = getattr(transformers, TINY[name][0])(config)
    if name == "t5" and not config.scale_decoder_outputs:
        # their class ties the readout when it is made; the files of v1.1 untie it when they are read
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    return perturb(model), config.to_dict()
