"""The tables go both ways bit for bit, and what one side cannot represent is refused with the word in the way."""

import dataclasses
import functools
import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from random_models import MASKED, PAIRS, config_of_theirs, model_of_theirs
from safetensors.torch import load_file, save_file
from theirs import draw, farthest, logits_of, our_logits

from drawing import architectures, make_network
from pellucid.architecture import Architecture, Positions, field_options
from pellucid.hub import FAMILIES, FamilyError, architecture_of, config_of, to_ours, to_theirs
from pellucid.hub.round_trip import lost
from pellucid.model import Transformer
from pellucid.model.weights import load_state, state_of
from pellucid.option_values import ArchitectureError
from some_cases import one_in

#: what goes with an untied readout
UNTIED = {"t5": {"logit_scale": "1"}} | {name: {"source_embed": "own"} for name in ("bart", "mbart", "marian")}
MODELS = {name: getattr(transformers, family.model_class) for name, family in FAMILIES.items()}


@functools.cache
def one_of(name):
    """One architecture of the family."""
    return architecture_of(config_of_theirs(name, "tied").to_dict())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", one_in(2, FAMILIES))
@pytest.mark.parametrize("unembed", ["tied", "untied"])
def test_the_files_load_in_transformers(name, unembed, tmp_path):
    """config.json and model.safetensors, with nothing missing and nothing left over."""
    a = one_of(name).with_fields({"unembed": unembed} | (UNTIED.get(name, {}) if unembed == "untied" else {}))
    network = make_network(a)
    config = {"pad_token_id": None} | config_of(a, FAMILIES[name], end_token=12) | {"dtype": "float64"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        to_theirs(state_of(network), a, FAMILIES[name]), tmp_path / "model.safetensors", metadata={"format": "pt"}
    )
    model, info = MODELS[name].from_pretrained(
        tmp_path, dtype="auto", output_loading_info=True, experts_implementation="eager"
    )
    assert not any(info.values()), info
    assert model.config.architectures == [type(model).__name__] == [FAMILIES[name].model_class]
    # the padding token of RoBERTa has no position
    tokens = draw(a).clamp(min=2)
    # 5e-5: float32 inside their code, see test_every_family
    tolerance = 1e-12 if name in ("gpt2", "bert") else 5e-5
    assert farthest(our_logits(network, tokens), logits_of(model.eval(), tokens)) <= tolerance
    if name not in MASKED:
        assert model.generation_config.eos_token_id == 12


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_saves_is_read(name, tmp_path):
    a = one_of(name)
    network = make_network(a)
    config = {"pad_token_id": None} | config_of(a, FAMILIES[name], end_token=12)
    model = MODELS[name](MODELS[name].config_class(**config)).double()
    theirs = stacked_again(to_theirs(state_of(network), a, FAMILIES[name]), model)
    extra = model.load_state_dict(theirs, strict=False).unexpected_keys
    model.tie_weights()
    assert not extra
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    again = Transformer(architecture_of(saved)).double().eval()
    load_state(again, to_ours(load_file(tmp_path / "model.safetensors"), saved))
    tokens = draw(a)
    assert torch.equal(our_logits(again, tokens), our_logits(network, tokens))


def stacked_again(state, model):
    """The tensors of files under the names of transformers' memory: all experts of a layer in one tensor."""
    family = FAMILIES[model.config.model_type]
    for last, maps in family.stacked.items():
        for layer in range(model.config.num_hidden_layers):
            scope = next(n.rpartition(".")[0] for n, _ in model.named_parameters() if n.endswith(f"experts.{last}"))
            scope = scope.replace(".0.", f".{layer}.")
            inside = next(n for n in state if f".{layer}." in n and ".experts.0." in n).rpartition(".0.")[0]
            of_experts = [
                torch.cat([state.pop(f"{inside}.{e}.{theirs}.weight") for theirs in maps])
                for e in range(model.config.num_experts)
            ]
            state[f"{scope}.{last}"] = torch.stack(of_experts)
    known = model.state_dict().keys()
    renamed = {new: old for old, new in family.renames.items()}
    for name in [name for name in state if name not in known]:
        for new, old in renamed.items():
            if name.replace(new, old) in known:
                state[name.replace(new, old)] = state.pop(name)
                break
    return state


REFUSED = [
    ("qwen3_moe", {"mlp.experts": 0}, "mlp.experts = 0"),
    ("llama", {"mlp.experts": 4}, "mlp.experts = 4"),
    ("qwen3_moe", {"mlp.shared_d_ff": 8}, "mlp.shared_d_ff = 8"),
    ("qwen2_moe", {"mlp.shared_d_ff": 0}, "mlp.shared_d_ff = 0"),
    ("qwen2_moe", {"mlp.shared_gate": "none"}, "mlp.shared_gate = none"),
    ("mixtral", {"mlp.router_softmax": "all"}, "mlp.router_softmax = all"),
    ("olmoe", {"mlp.form": "plain"}, "mlp.form = plain"),
    ("nemotron", {"norm.gain": "g"}, "norm.gain = g"),
    ("llama", {"norm.gain": "1"}, "norm.gain = 1"),
    ("olmo", {"norm.gain": "g"}, "norm.gain = g"),
    ("olmo", {"norm.bias": "all"}, "norm.bias = all"),
    ("olmo", {"norm.eps": 1e-6}, "norm.eps = 1e-06"),
    ("seed_oss", {"mlp.form": "plain"}, "mlp.form = plain"),
    ("gpt2", {"positions.kind": "rotary"}, "positions.kind = rotary"),
    ("gpt2", {"block": "parallel"}, "block = parallel"),
    ("gpt2", {"norm.kind": "rms"}, "norm.kind = rms"),
    ("gpt2", {"norm.bias": "none"}, "norm.bias = none"),
    ("gpt2", {"norm.eps_at": "outside"}, "norm.eps_at = outside"),
    ("gpt2", {"attention.n_kv_heads": 1}, "attention.n_kv_heads = 1"),
    ("gpt2", {"attention.d_head": 5}, "attention.d_head = 5"),
    ("gpt2", {"attention.n_heads": 5, "attention.d_head": 2}, "attention.d_head = 2"),
    ("gpt2", {"attention.windows": "0, 3"}, "attention.windows = [0, 3]"),
    ("gpt2", {"attention.scale": "1/d_head"}, "attention.scale = 1/d_head"),
    ("gpt2", {"attention.mask": "prefix"}, "attention.mask = prefix"),
    ("gpt2", {"mlp.form": "gated"}, "mlp.form = gated"),
    ("gpt2", {"mlp.n_hidden": 2}, "mlp.n_hidden = 2"),
    ("gpt2", {"mlp.bias": "none"}, "mlp.bias = none"),
    ("gpt2", {"n_segments": 2}, "n_segments = 2"),
    ("gpt2", {"dropout.mlp_out": 0.3}, "dropout.mlp_out = 0.3"),
    ("gpt_neox", {"positions.layout": "pairs"}, "positions.layout = pairs"),
    ("gpt_neox", {"positions.fraction": 0.625}, "positions.fraction = 0.625"),
    ("llama", {"attention.d_head": 5}, "attention.d_head = 5"),
    ("phi", {"positions.fraction": 0.45}, "positions.fraction = 0.45"),
    ("bloom", {"n_heads": 3, "d_head": 4, "slopes": "geometric"}, "positions.slopes = geometric"),
    ("gemma2", {"attention.scale": "scale_value", "scale_value": 0.3}, "attention.scale = scale_value"),
    ("gpt_neox", {"attention.bias": "qkv"}, "attention.bias = qkv"),
    ("gpt_neox", {"block": "post"}, "block = post"),
    ("bert", {"attention.mask": "causal"}, "attention.mask = causal"),
    ("bert", {"n_segments": 0}, "n_segments = 0"),
    ("bert", {"readout": "linear"}, "readout = linear"),
]


@pytest.mark.parametrize(("name", "changes", "word"), REFUSED)
def test_the_word_in_the_way_is_named(name, changes, word):
    a = one_of(name)
    assert lost(a, FAMILIES[name]) == []
    changed = a.with_fields(changes)
    assert str(lost(changed, FAMILIES[name])[0]) == word
    for refused in (lambda: config_of(changed, FAMILIES[name]), lambda: to_theirs({}, changed, FAMILIES[name])):
        with pytest.raises(FamilyError, match=word.replace("[", "\\[")):
            refused()


@settings(max_examples=40)
@given(architectures())
def test_every_family_has_an_answer_to_every_architecture(a):
    """What is not in the way comes back from config.json as the same function's words."""
    for family in FAMILIES.values():
        if not lost(a, family):
            config = config_of(a, family)
            assert config_of(architecture_of(config), family) == config


def test_a_head_whose_norm_is_missing_is_refused():
    model, config = model_of_theirs("stablelm", "queries and keys normalised")
    of_one, state = "model.layers.1.self_attn.k_layernorm.norms.{}.weight", model.state_dict()
    left = {name: tensor for name, tensor in state.items() if name != of_one.format(0)}
    with pytest.raises(FamilyError, match=r"the tensors model.layers.1.*{h}.weight are of heads \[1\]: expected all"):
        to_ours(left, config)
    left = {name: tensor for name, tensor in state.items() if name != of_one.format(1)}
    with pytest.raises(FamilyError, match=r"k_layernorm.norms.{h}.weight has shape \[1, 8\].* implies \[2, 8\]"):
        to_ours(left, config)


def test_an_encoder_is_refused():
    a = one_of("gpt2")
    encoder = a.with_fields({"attention.mask": "bidirectional"})
    reading = Architecture.from_dict(a.to_dict() | {"encoder": encoder.to_dict()})
    with pytest.raises(FamilyError, match="gpt2 cannot represent encoder = given"):
        config_of(reading, FAMILIES["gpt2"])
    with pytest.raises(FamilyError, match=r"(t5|bart|mbart|marian) cannot represent "):
        config_of(reading)


@pytest.mark.parametrize("name", one_in(18, FAMILIES))
def test_every_word_is_written_or_refused_by_name(name):
    """What is not refused is the same function when it comes back from the files."""
    family, written, compared = FAMILIES[name], set(), set()
    for field, options in field_options():
        for word in options:
            if field == "block" and word not in ("pre", "post") and name in PAIRS:
                continue  # no architecture that reads an encoder has it
            try:
                a = with_word(one_of(name), field, word)
            except ArchitectureError:
                continue  # another option of the family excludes it
            if fields := lost(a, family):
                assert str(fields[0]) in (f"{field} = {word}", "d_embed = 6" if field == "embed_projection" else None)
                continue
            written.add(f"{field} = {word}")
            if a in compared:
                continue  # the option that the family has anyway
            compared.add(a)
            config, network = config_of(a, family), make_network(a)
            again = Transformer(architecture_of(config)).double().eval()
            load_state(again, to_ours(to_theirs(state_of(network), a, family), config))
            tokens = draw(a)
            assert torch.equal(our_logits(again, tokens), our_logits(network, tokens)), (field, word)
    free = {"gpt2": "attention.scale = 1", "gpt_neox": "block = pre", "bert": "unembed = untied"}
    free |= {"t5": "mlp.form = gated", "bart": "embed_scale = sqrt(d_model)"}
    assert free.get(name, "unembed = untied") in written


def with_word(a, field, word):
    """The word in an encoder too, except where it must read all: families of pairs say most words of both at once."""
    pair = (UNTIED["t5"] if a.positions.kind == "relative" else UNTIED["bart"]) if a.encoder else {}
    bare = {"readout": {"unembed": "tied", "logit_scale": "1", "logit_cap": 0.0}}
    bare |= {"embed_projection": {"d_embed": 6}}
    changed = a.with_fields((bare.get(field, {}) if word in ("none", "plain", "sum") else {}) | {field: word})
    changed = changed.with_fields(pair) if word == "untied" else changed
    if a.encoder is None or field in ("attention.mask", "source_embed"):
        return changed
    return dataclasses.replace(changed, encoder=a.encoder.with_fields({field: word}))


def test_windows_that_reach_the_whole_context_are_none():
    assert lost(one_of("gpt2").with_fields({"attention.windows": "9, 0"}), FAMILIES["gpt2"]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba' is not a known family: expected one of gpt2, gpt_neox, bert"),
        ({"activation_function": "mish"}, "activation_function = 'mish' in config.json: only 'gelu'"),
        ({"add_cross_attention": True}, "add_cross_attention = true in config.json: only false"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
    ],
)
def test_options_of_theirs_that_we_cannot_say(change, message):
    with pytest.raises(FamilyError, match=message):
        architecture_of(config_of(one_of("gpt2")) | change)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_parameters": {"rope_type": "yarn"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": 0}},
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": "1"}},
        {"rope_scaling": {"type": "dynamic"}},
        {"rope_scaling": {"type": "proportional", "factor": 2.0}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_rotary_positions_scaled_otherwise_are_refused(scaling):
    with pytest.raises(FamilyError, match="rope_"):
        architecture_of(config_of(one_of("gpt_neox")) | scaling)


def test_rotary_positions_scaled_in_the_older_spelling():
    older = {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}
    older["rope_scaling"] |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = {name: value for name, value in config_of(one_of("llama")).items() if name != "rope_parameters"}
    positions = architecture_of(config | older).positions
    assert positions == Positions(kind="rotary", base=500_000.0, scaling="llama3")


def test_files_of_an_older_gpt_neox():
    """Flat rotary options, and buffers and names that were dropped since."""
    model, config = model_of_theirs("gpt_neox", "untied")
    state = model.state_dict()
    old = {name: value for name, value in config.items() if name != "rope_parameters"}
    old |= {"rotary_emb_base": 100, "rotary_pct": 0.5}
    older = {name.replace("lm_head.", "embed_out."): tensor for name, tensor in state.items()}
    older["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 9, 9).tril()
    older["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    older["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(2)
    assert architecture_of(old) == architecture_of(config)
    assert same(to_ours(older, old), to_ours(state, config))


def test_damaged_states_are_refused():
    a = one_of("gpt2")
    state, config = to_theirs(state_of(make_network(a)), a), config_of(a)
    name = "transformer.h.1.attn.c_attn.weight"
    for changed, message in [
        ({n: t for n, t in state.items() if n != name}, f"{name} is missing"),
        (state | {name: state[name].T}, r"has shape \[36, 12\]: config.json implies \[12, 36\]"),
        (state | {"transformer.h.7.ln_1.weight": state["transformer.ln_f.weight"]}, "h.7.ln_1.weight is unknown"),
        (state | {"lm_head.weight": state["transformer.wte.weight"] + 1}, "lm_head.weight differs from the embedding"),
    ]:
        with pytest.raises(FamilyError, match=message):
            to_ours(changed, config)
    with pytest.raises(FamilyError, match=r"embed.token.weight is missing"):
        to_theirs({}, a)
    bert = one_of("bert")
    state = to_theirs(state_of(make_network(bert)), bert)
    state["cls.predictions.bias"] = state["cls.predictions.bias"] + 1
    with pytest.raises(FamilyError, match="should be one tensor and differ"):
        to_ours(state, config_of(bert))


def test_names_without_the_prefix():
    """The files of the bare models, as they lie on the hub."""
    a = one_of("gpt2")
    state = state_of(make_network(a))
    bare = {name.removeprefix("transformer."): tensor for name, tensor in to_theirs(state, a).items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 9, 9).tril()
    assert same(to_ours(bare, config_of(a)), state)
    a = one_of("bert")
    state = state_of(make_network(a))
    bare = {name.removeprefix("bert."): tensor for name, tensor in to_theirs(state, a).items()}
    assert same(to_ours(bare, config_of(a)), state)
