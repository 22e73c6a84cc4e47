"""The configurations of published models: translated or refused, their parameters counted, their logits compared.

The files are in tests/data/published_configs, whose README names the source of each. A model is compared with sizes
reduced by one rule (`reduced`), which keeps every option and every ratio of the published one.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from theirs import draw, logits_of, our_logits, perturb
from torch import nn

from pellucid.architecture import Architecture
from pellucid.hub import architecture_of, to_ours
from pellucid.hub.config import read_config
from pellucid.hub.families import unknown_entries
from pellucid.model import Transformer
from pellucid.model.weights import load_state
from pellucid.parameter_counts import count_active_parameters, count_parameters
from some_cases import one_in

CONFIGURATIONS = Path(__file__).parents[1] / "data" / "published_configs"
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGURATIONS.glob("*.json"))}
#: models of which no family of ours is, by the entry that says so
REFUSED = {
    "baichuan2-7b": "baichuan",
    "chatglm3-6b": "chatglm",
    "deepseek-v2-lite": "deepseek_v2",
    "internlm2": "internlm2",
    "minicpm-2b": "minicpm",
    "phi-2": "phi-msft",
    "qwen-1_8b": "qwen",
    "rwkv5-3b": "rwkv5",
}
OPENED = [name for name in CONFIGS if name not in REFUSED]
#: parameters without the embeddings on either side, from the model cards of EleutherAI/pythia-*
PYTHIA = {"pythia-70m": 18_915_328, "pythia-160m": 85_056_000, "pythia-1b": 805_736_448}
#: the largest difference of the logits in float32, over the largest logit
TOLERANCE = 1e-5

WIDTHS = ("hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "d_ff", "head_dim", "d_kv")
WIDTHS += ("moe_intermediate_size", "shared_expert_intermediate_size", "query_pre_attn_scalar")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
#: the fields of an architecture that are sizes, or numbers that follow them
SIZES = ("n_vocab", "n_layers", "d_model", "encoder", "attention.d_head", "mlp.d_ff", "mlp.shared_d_ff")
SIZES += (
    "logit_scale",
    "logit_scale_value",
    "attention.windows",
    "attention.scale_value",
    "positions.short_factors",
    "positions.long_factors",
)


def first(config: dict[str, Any], *names: str) -> Any:
    """The first of these entries that is there and neither null nor 0."""
    return next((config[name] for name in names if config.get(name)), None)


def divisor(config: dict[str, Any]) -> int:
    """The largest number that divides every width and leaves a head at least 8 wide, its rotated part even."""
    width = first(config, "hidden_size", "n_embd", "d_model")
    d_head = first(config, "head_dim", "d_kv") or width // first(config, "num_attention_heads", "n_head", "num_heads")
    rotated = round(d_head * (first(config, "partial_rotary_factor", "rotary_pct") or 1))
    widths = [width, d_head, rotated // 2, *(config[name] for name in WIDTHS if config.get(name))]
    return max(k for k in range(1, d_head // 8 + 1) if all(size % k == 0 for size in widths))


def reduced(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with every width divided by `divisor`, few layers, 97 tokens, and windows of 3 tokens.

    The numbers of heads and experts stay; so does the context. Gemma 3 keeps its first six layers, the period of its
    windows; the others two. A score scale that stands for the width of a head is divided like a width, and of the
    factors of longrope, one for each plane that a head rotates, as many stay as it still rotates.
    """
    k, layers = divisor(config), 6 if config["model_type"] == "gemma3_text" else 2
    small = config | {name: config[name] // k for name in WIDTHS if config.get(name)}
    small |= {name: layers for name in LAYERS if config.get(name)} | {"vocab_size": 97}
    small |= {name: 0 for name in TOKENS if config.get(name) is not None and config[name] not in range(97)}
    if "layer_types" in config:
        small["layer_types"] = config["layer_types"][:layers]
    if config.get("sliding_window"):
        small["sliding_window"] = 3
    if "local_attention" in config:  # two tokens on either side
        small["local_attention"] = 4
    if "attention_multiplier" in config:  # 1 / the width of a head
        small["attention_multiplier"] = config["attention_multiplier"] * k
    if scaling := config.get("rope_scaling"):
        lists = {name: value[::k] for name, value in scaling.items() if isinstance(value, list)}
        small["rope_scaling"] = scaling | lists
    return small


def model_of(config: dict[str, Any], **options: Any) -> nn.Module:
    """The class of transformers that the file names, with the file's entries."""
    entries = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    settings = transformers.AutoConfig.for_model(config["model_type"], **(entries | {"torch_dtype": None} | options))
    return getattr(transformers, config["architectures"][0])(settings)


def options_of(a: Architecture) -> dict[str, Any]:
    """Every field but the sizes, by its dotted name."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(a):
        value = getattr(a, field.name)
        if field.name != "encoder" and dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields |= {f"{field.name}.{name}": one for name, one in vars(value).items()}
        else:
            fields[field.name] = value
    return {name: value for name, value in fields.items() if name not in SIZES}


def layer_windows(a: Architecture) -> list[int]:
    """The window of each layer, 0 for none."""
    return [a.attention.windows[layer % len(a.attention.windows)] for layer in range(a.n_layers)]


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_family_represents_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=rf"model_type = '{REFUSED[name]}' is not a known family"):
        read_config(CONFIGURATIONS / name, CONFIGS[name])


@pytest.mark.parametrize("name", OPENED)
def test_a_published_model_has_the_parameters_of_their_class(name):
    """None of them is allocated: Mixtral has 46.7 billion. What some of them name as code of their own is not run."""
    with torch.device("meta"):
        theirs = sum(p.numel() for p in model_of(CONFIGS[name]).parameters())
    assert count_parameters(read_config(CONFIGURATIONS / name, CONFIGS[name]))["total"] == theirs


@pytest.mark.parametrize("name", PYTHIA)
def test_pythia_has_the_published_number_of_parameters(name):
    counts = count_parameters(architecture_of(CONFIGS[name]))
    assert counts["total"] - counts["embed"] - counts["unembed"] == PYTHIA[name]


def test_qwen3_30b_a3b_has_the_parameters_that_its_name_says():
    """30.5 billion in all and 3.3 billion activated: the model card of Qwen/Qwen3-30B-A3B."""
    a = architecture_of(CONFIGS["qwen3-30b-a3b"])
    assert round(count_parameters(a)["total"] / 1e9, 1) == 30.5
    assert 3.3e9 <= count_active_parameters(a) < 3.4e9


def test_modernbert_has_the_parameters_and_the_layers_that_its_paper_says():
    """149 million; every third of 22 layers reads all positions, the others 64 on either side (Warner et al. 2024)."""
    a = architecture_of(CONFIGS["modernbert-base"])
    assert round(count_parameters(a)["total"] / 1e6) == 150  # 149.0 without the head
    assert round((count_parameters(a)["total"] - count_parameters(a)["unembed"]) / 1e6) == 149
    assert layer_windows(a) == [65 if layer % 3 else 0 for layer in range(22)]


@pytest.mark.parametrize("name", OPENED)
def test_no_entry_of_a_published_model_is_unknown(name):
    """`pellucid.load` warns of unknown entries, and these files have been read to the end."""
    assert unknown_entries(CONFIGS[name]) == []


@pytest.mark.parametrize("name", OPENED)
def test_the_reduced_model_has_every_option_and_ratio_of_the_published_one(name):
    k, whole, part = divisor(CONFIGS[name]), architecture_of(CONFIGS[name]), architecture_of(reduced(CONFIGS[name]))
    pairs = [(whole, part), *([(whole.encoder, part.encoder)] if whole.encoder and part.encoder else [])]
    assert len(pairs) == 1 + (whole.encoder is not None)
    for a, small in pairs:
        assert options_of(small) == options_of(a)
        assert (small.d_model * k, small.d_head * k, small.d_ff * k) == (a.d_model, a.d_head, a.d_ff)
        assert small.mlp.shared_d_ff * k == a.mlp.shared_d_ff
        windowed = [bool(width) for width in layer_windows(a)]
        assert [bool(width) for width in layer_windows(small)] == windowed[: small.n_layers]
        # 1/16 is 1/sqrt(d_model) of the reduced Cohere and Granite, by chance
        assert small.logit_scale == a.logit_scale or small.d_model**-0.5 == a.logit_scale_value


@pytest.mark.parametrize("name", one_in(3, OPENED))
def test_the_logits_of_the_reduced_model_are_theirs(name):
    config = reduced(CONFIGS[name])
    torch.manual_seed(0)
    model = perturb(model_of(config, attn_implementation="eager", experts_implementation="eager")).float()
    network = Transformer(architecture_of(config)).eval()
    load_state(network, to_ours(model.state_dict(), config))
    tokens = draw(network.architecture, batch=2, n=9)
    ours, theirs = our_logits(network, tokens), logits_of(model, tokens)
    assert ours.dtype == theirs.dtype == torch.float32
    assert (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max()
