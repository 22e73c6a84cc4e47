"""A config.json is computed as transformers computes it, or refused by us: drawn over every entry of every family."""

import contextlib
import copy
import random
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import transformers
from random_configs import draw_config, theirs_of
from random_models import PADDING_UNPLACED, PAIRS, ROTARY, TINY, YARN, config_of_theirs, in_float64
from theirs import our_logits, source_of

from pellucid.architecture import Architecture
from pellucid.hub import FAMILIES, FamilyError, architecture_of, to_ours
from pellucid.hub.canonical_fields import canonical_fields
from pellucid.hub.config import read_config
from pellucid.hub.families import unknown_entries
from pellucid.model import Transformer
from pellucid.model.weights import load_state

TOLERANCE = 1e-5


def compare(name: str, seed: int) -> str:
    """What became of one drawn config.json: refused, theirs fails, or equal; AssertionError for anything else."""
    config = draw_config(name, random.Random(f"{name}/{seed}"))
    try:
        a = read_config(Path("drawn"), copy.deepcopy(config))
    except ValueError as error:
        if type(error).__module__.startswith("pellucid.") and "\n" not in str(error):
            return "refused"
        raise
    n = min(a.n_ctx, 7 if name in PAIRS else 9)
    tokens = torch.randint(0, a.n_vocab, (2, n), generator=torch.Generator().manual_seed(seed))
    # the padding token of RoBERTa has no position
    tokens = tokens.masked_fill(tokens == 1, 0) if name in PADDING_UNPLACED else tokens
    try:
        model = theirs_of(name, config)
        given = (
            {"input_ids": source_of(tokens), "decoder_input_ids": tokens} if name in PAIRS else {"input_ids": tokens}
        )
        with torch.no_grad():
            expected = model(**given, return_dict=True).logits
    except Exception:
        return "theirs fails"
    if not expected.isfinite().all():
        return "theirs fails"
    if name in PAIRS and a.encoder is not None and source_of(tokens).size(1) > a.encoder.n_ctx:
        return "refused"  # T5 has no longest text, ours has
    network = Transformer(a).double().eval()
    load_state(network, to_ours(model.state_dict(), copy.deepcopy(config)))
    ours = our_logits(network, tokens)
    assert ours.shape == expected.shape, config
    apart = (ours - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    assert apart <= TOLERANCE, (apart, config)
    return "equal"


def compare_all(name: str, seeds: range, equal: int) -> None:
    """All of these draws; at least `equal` of them get as far as the comparison, or little is tested."""
    # float64 would put some of T5's distances into the bucket before theirs
    with contextlib.nullcontext() if name == "t5" else in_float64():
        found = Counter(compare(name, seed) for seed in seeds)
    assert found["equal"] >= equal, found


@pytest.mark.parametrize("name", [*TINY][::4])
def test_drawn_configurations_are_equal_or_refused(name):
    compare_all(name, range(10), equal=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_many_drawn_configurations_are_equal_or_refused(name):
    compare_all(name, range(70), equal=20)


@pytest.mark.parametrize("name", TINY)
def test_every_entry_of_their_class_is_read_or_known_to_decide_nothing(name):
    """Beside what is drawn: no field of the class is unknown, and none of another value is passed over in silence."""
    config_class = getattr(transformers, TINY[name][0]).config_class
    config = config_class().to_dict()
    assert unknown_entries(config) == []
    # those that it does not write, or writes as null, with a value
    for silent in [f.name for f in fields(config_class) if config.get(f.name) is None]:
        try:
            # a head of one coordinate has no plane to rotate
            value = 4 if silent == "head_dim" else 1
            assert unknown_entries(config | {silent: value}) == []
        except FamilyError as error:
            assert str(error).startswith(f"{silent} = {value}")  # noqa: PT017
    assert unknown_entries(config | {"use_frobnication": True}) == ["use_frobnication"]


#: what files on the hub say beside the sizes, as far as their classes do not know it any more
HUB = {
    "gpt2": {"n_ctx": 1024, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
    "openai-gpt": {"n_ctx": 512, "predict_special_tokens": True, "n_special": None},
    "gptj": {"rotary": True, "scale_attn_weights": True, "n_ctx": 2048, "gradient_checkpointing": False},
    "gpt_bigcode": {"inference_runner": 0, "max_batch_size": None, "pad_key_length": True, "n_ctx": 8192},
    "bert": {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"},
    "distilbert": {"tie_weights_": True, "finetuning_task": "sst-2"},
    "modernbert": {"layer_norm_eps": 1e-5, "position_embedding_type": "absolute", "reference_compile": False},
    "bloom": {"offset_alibi": 100, "skip_bias_add": True, "masked_softmax_fusion": True, "n_inner": None},
    "bart": {"add_bias_logits": False, "normalize_before": False, "normalize_embedding": True, "_num_labels": 3},
    "mbart": {"normalize_before": True, "add_final_layer_norm": True, "static_position_embeddings": False},
    "marian": {"normalize_before": False, "static_position_embeddings": True, "extra_pos_embeddings": 58_101},
    "t5": {"output_past": True, "early_stopping": True, "prefix": "translate English to German: "},
    "llama": {"pretraining_tp": 1, "rope_scaling": None, "torch_dtype": "float16", "unsloth_version": "2024.9"},
    "qwen2": {"use_mrope": False, "max_window_layers": 21},
    "gemma": {"hidden_activation": None, "hidden_act": "gelu"},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gemma3_text": {"cache_implementation": "hybrid", "_sliding_window_pattern": 2},
}


@pytest.mark.parametrize("name", HUB)
def test_entries_of_files_on_the_hub_are_known(name):
    config = config_of_theirs(name, "tied").to_dict()
    assert unknown_entries(config | HUB[name]) == []
    assert canonical_fields(architecture_of(config | HUB[name])) == canonical_fields(architecture_of(config))


@pytest.mark.parametrize("name", TINY)
def test_entries_that_are_missing_have_their_class_s_values(name):
    config = getattr(transformers, TINY[name][0]).config_class().to_dict()
    assert canonical_fields(architecture_of({"model_type": name})) == canonical_fields(architecture_of(config))


@pytest.mark.parametrize("name", TINY)
def test_entries_have_types(name):
    """Every entry that is read is refused by its name where it is of another type."""
    sound = config_of_theirs(name, "tied").to_dict()
    for row in FAMILIES[name].fields:
        for wrong in ("16", ["llama"], {"a": 1}, 1.5 if isinstance(row.default, int) else "x"):
            path = row.theirs.split("|")[0]
            with pytest.raises(FamilyError, match=f"^{path} = "):
                architecture_of(sound | {path: wrong})


@pytest.mark.parametrize("wrong", [["llama"], {"llama": 1}, None, 7, "lama", True])
def test_the_model_type_is_a_name(wrong):
    with pytest.raises(FamilyError, match="is not a known family: expected one of gpt2"):
        architecture_of({"model_type": wrong})


OLDER_LINEAR = {"type": "linear", "factor": 8.0}
EXACT = {"full_attention": YARN | {"truncate": False}, "sliding_attention": ROTARY}
NOT_SAID = [
    ("llama", {"is_causal": False}, "is_causal = false"),
    ("gpt2", {"is_causal": None}, "is_causal = null"),
    ("llama", {"per_layer_config": {"0": {"intermediate_size": 7}}}, "per_layer_config = "),
    ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads = "),
    ("gpt2", {"n_head": 3, "num_attention_heads": 4}, "n_head = 3 and num_attention_heads = 4 in config.json are one"),
    ("gpt_neox", {"head_dim": 10}, "head_dim = 10"),
    ("gpt_neo", {"window_size": 0}, "window_size = 0"),
    ("mistral", {"sliding_window": 0}, "sliding_window = 0"),
    ("llama", {"head_dim": 5}, "head_dim in config.json sets attention.d_head = 5"),
    ("llama", {"rope_parameters": {"rope_theta": 10.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 10.0}}}, "rope_parameters.full_attention = "),
    ("bert", {"type_vocab_size": 0}, "type_vocab_size in config.json sets n_segments = 0"),
    ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0.0"),
    ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn = 'gelu' in config.json: feed_forward_proj implies 'relu'"),
    ("falcon", {"alibi": True}, "alibi = true in config.json: transformers rounds slope times position to bfloat16"),
    ("modernbert", {"classifier_activation": "relu"}, "classifier_activation = 'relu' and hidden_activation = 'gelu'"),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling = "),
    ("gemma3_text", {"rope_parameters": None, "rope_scaling": OLDER_LINEAR}, "rope_scaling.type = 'linear'"),
    ("olmo3", {"rope_parameters": None, "rope_scaling": OLDER_LINEAR}, "rope_scaling.type = 'linear'"),
    ("gemma3_text", {"rope_parameters": EXACT}, "rope_parameters.full_attention.truncate = false"),
    ("olmo3", {"rope_parameters": EXACT}, "rope_parameters.full_attention.truncate = false"),
    ("modernbert", {"rope_parameters": EXACT}, "rope_parameters.full_attention.truncate = false"),
    ("glm", {"rope_parameters": ROTARY, "partial_rotary_factor": None}, "partial_rotary_factor = null"),
    ("glm4", {"rope_parameters": ROTARY, "partial_rotary_factor": None}, "partial_rotary_factor = null"),
    ("modernbert", {"sliding_window": 3}, "sliding_window = 3 and local_attention = 4"),
    ("modernbert", {"head_dim": 4}, "head_dim = 4"),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv = 8.0 in config.json: only null can be represented"),
    ("mbart", {"normalize_before": False}, "normalize_before = false"),
    ("mbart", {"add_final_layer_norm": False}, "add_final_layer_norm = false"),
    ("marian", {"static_position_embeddings": False}, "static_position_embeddings = false"),
    (
        "marian",
        {"tie_word_embeddings": False},
        "share_encoder_decoder_embeddings = true and tie_word_embeddings = false",
    ),
    ("marian", {"decoder_vocab_size": 11}, "decoder_vocab_size = 11"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "layer_types holds 'sliding_attention'"),
]


@pytest.mark.parametrize(("name", "changes", "said"), NOT_SAID)
def test_what_would_be_computed_wrongly_is_refused_by_name(name, changes, said):
    config = config_of_theirs(name, "tied").to_dict()
    assert isinstance(architecture_of(config), Architecture)
    with pytest.raises(FamilyError) as refused:
        architecture_of(config | changes)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("name", ["glm", "glm4"])
def test_a_share_of_null_is_none_where_the_object_holds_one(name):
    config = config_of_theirs(name, "tied").to_dict()
    assert architecture_of(config | {"partial_rotary_factor": None}) == architecture_of(config)
