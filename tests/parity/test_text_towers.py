"""Folders for texts and images: their language model alone gives transformers' logits of texts, and that is said."""

import json

import pytest
import torch
import transformers
from random_models import LLAMA, ROTARY, in_float64
from safetensors.torch import load_file, save_file
from theirs import farthest, perturb

import pellucid
from pellucid.conversion import convert
from pellucid.hub import FamilyError
from pellucid.hub.canonical_fields import canonical_fields
from pellucid.hub.families import architecture_of, unknown_entries
from pellucid.hub.folder import LoadWarning
from pellucid.hub.open import open_folder, read_network
from pellucid.hub.text_towers import TEXT_TOWERS, text_config, text_model_name, whole_model_name
from pellucid.hub.write import write_tokenizer
from pellucid.model_names import FolderError
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

TEXT = {name: value for name, value in LLAMA.items() if name != "rope_parameters"} | {"vocab_size": 13, "head_dim": 6}
TEXT |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
SMALL = {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 2, "patch_size": 4}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 3}
BASES = {"full_attention": ROTARY, "sliding_attention": ROTARY | {"rope_theta": 10.0}}
#: the text's and the images' configurations of the smallest of each kind
TINY = {
    "gemma3": (
        TEXT | WINDOWS | {"query_pre_attn_scalar": 6, "rope_parameters": BASES},
        SMALL | {"image_size": 8, "num_hidden_layers": 1},
    ),
    "qwen3_vl": (
        TEXT | {"rope_parameters": ROTARY | {"mrope_section": [1, 1, 1], "mrope_interleaved": True}},
        {"hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4, "depth": 2}
        | {"out_hidden_size": 24, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
}
#: ids of images beyond the vocabulary, so that every id of a text is a word
BESIDE = {"gemma3": {"mm_tokens_per_image": 4, "boi_token_index": 20, "eoi_token_index": 21, "image_token_index": 22}}
BESIDE["qwen3_vl"] = {"image_token_id": 20, "video_token_id": 21, "vision_start_token_id": 22}
TOKENS = torch.randint(0, 13, (3, 9), generator=torch.Generator().manual_seed(0))


def their_model(name, head=True, **entries):
    """A perturbed model of theirs in float64."""
    text, vision = TINY[name]
    tower = TEXT_TOWERS[name]
    kind = getattr(transformers, tower.model_class)
    entries = BESIDE[name] | {"attn_implementation": "eager"} | entries
    config = kind.config_class(text_config=dict(text), vision_config=dict(vision), **entries)
    return perturb((kind if head else getattr(transformers, tower.body))(config))


def saved(model, folder, rename=None):
    """The folder that transformers writes, its tensors renamed."""
    model.save_pretrained(folder)
    if rename is not None:
        path = folder / "model.safetensors"
        tensors = {rename(tensor_name): tensor for tensor_name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


def in_older_files(name):
    """The names in Gemma 3's files on the hub."""
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "language_model.model.")
    return f"language_model.{name}" if name.startswith("lm_head.") else name.removeprefix("model.")


def our_logits(folder):
    opened = open_folder(folder)
    with torch.no_grad():
        return read_network(opened.architecture, opened.ours(), torch.float64)(TOKENS)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", TINY)
def test_the_logits_of_a_text_are_theirs(name, tied, tmp_path):
    with in_float64():
        model = their_model(name, tie_word_embeddings=tied)
        with torch.no_grad():
            expected = model(input_ids=TOKENS).logits
    folder = saved(model, tmp_path / "theirs")
    assert any("vision" in tensor or "visual" in tensor for tensor in load_file(folder / "model.safetensors"))
    assert farthest(our_logits(folder), expected) <= 1e-12
    assert open_folder(folder).architecture.unembed == ("tied" if tied else "untied")
    older = saved(model, tmp_path / "older", in_older_files)
    assert torch.equal(our_logits(older), our_logits(folder))


def test_a_cap_of_logits_is_read_by_the_class_for_texts_alone(tmp_path):
    with in_float64():
        model = their_model("gemma3")
        model.config.text_config.final_logit_softcapping = 1.0
        with torch.no_grad():
            expected = model(input_ids=TOKENS).logits
    assert farthest(our_logits(saved(model, tmp_path)), expected) <= 1e-12


@pytest.mark.parametrize("name", TINY)
def test_as_published_in_float32(name, tmp_path):
    model = their_model(name).float()
    with torch.no_grad():
        expected = model(input_ids=TOKENS).logits
    assert farthest(our_logits(saved(model, tmp_path)).float(), expected) <= 1e-5


@pytest.mark.parametrize("name", TINY)
def test_entries_that_are_missing_have_their_class_s_values(name):
    tower, kind = TEXT_TOWERS[name], getattr(transformers, TEXT_TOWERS[name].model_class)
    whole = text_config(json.loads(kind.config_class().to_json_string(use_diff=False)), tower)
    assert canonical_fields(architecture_of(text_config({"model_type": name}, tower))) == canonical_fields(
        architecture_of(whole)
    )
    assert unknown_entries(whole) == []


@pytest.mark.parametrize("name", TINY)
def test_it_is_said_that_images_are_left_out(name, tmp_path):
    saved(their_model(name), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.warns(LoadWarning) as said:
        model = pellucid.load(tmp_path)
    [note] = [str(one.message) for one in said if "for texts and images" in str(one.message)]
    assert f"({TEXT_TOWERS[name].model_class}): its language model is opened alone" in note
    assert model.trace("1 0 2").logits.shape[-1] == 13
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_frobnication": True}))
    with pytest.warns(LoadWarning) as said:
        pellucid.load(tmp_path)
    assert any("unknown entries, which are ignored: use_frobnication;" in str(one.message) for one in said)


@pytest.mark.parametrize("name", TINY)
def test_a_body_has_a_readout_only_where_it_is_the_embedding(name, tmp_path):
    opened = open_folder(saved(their_model(name, head=False), tmp_path))
    assert opened.architecture.readout == ("linear" if TEXT_TOWERS[name].tied else "none")
    assert opened.their_class == TEXT_TOWERS[name].model_class


@pytest.mark.parametrize("name", TINY)
def test_a_conversion_is_compared_with_the_whole_model(name, tmp_path):
    folder = saved(their_model(name), tmp_path / "theirs")
    done = convert(folder, tmp_path / "ours", to="pellucid")
    assert done.parity is not None
    assert "transformers" in done.parity.other
    assert torch.equal(our_logits(tmp_path / "ours"), our_logits(folder))


def test_adapters_name_the_modules_of_the_whole_model(tmp_path):
    folder, adapter = saved(their_model("qwen3_vl"), tmp_path / "theirs"), tmp_path / "adapter"
    adapter.mkdir()
    module = "model.language_model.layers.1.self_attn.q_proj"
    A, B = torch.ones(1, 24), torch.ones(24, 1)
    save_file(
        {f"base_model.model.{module}.lora_{kind}.weight": t for kind, t in (("A", A), ("B", B))},
        adapter / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 1, "lora_alpha": 2}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    plain, changed = dict(open_folder(folder).ours()), dict(open_folder(adapter).ours())
    expected = plain["blocks.1.attn.query.weight"] + 2
    assert torch.equal(changed["blocks.1.attn.query.weight"], expected)
    assert whole_model_name(text_model_name(module)) == module
    assert whole_model_name("lm_head") == text_model_name("lm_head") == "lm_head"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore::pellucid.hub.folder.LoadWarning")
def test_peft_reads_the_adapters_of_a_run_on_the_whole_model(tmp_path, monkeypatch):
    """A run that begins with the language model writes adapters for the model that holds it."""
    from peft import PeftModel  # it takes three seconds

    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    folder = saved(their_model("qwen3_vl", tie_word_embeddings=False).float(), tmp_path / "theirs")
    text = "abcdefg h\n" * 300
    (tmp_path / "text.txt").write_text(text)
    write_tokenizer(folder, learn_tokenizer("char", [text]), 9)
    fields = {"batch": 4, "device": "cpu", "precision": "float32", "compile": "no", "adapt.rank": 2, "sample_every": 0}
    run = pellucid.train(
        tmp_path / "text.txt", out=tmp_path / "run", from_model=folder, steps=5, fields=fields | {"learning_rate": 0.03}
    ).path
    names = load_file(run / "adapter" / "adapter_model.safetensors")
    assert all(name.startswith("base_model.model.model.language_model.layers.") for name in names)
    kind = getattr(transformers, TEXT_TOWERS["qwen3_vl"].model_class)
    plain = kind.from_pretrained(folder).eval()
    with torch.no_grad():
        before = plain(input_ids=TOKENS % 8).logits
        expected = PeftModel.from_pretrained(plain, str(run / "adapter")).eval()(input_ids=TOKENS % 8).logits
        found = pellucid.load(run, device="cpu").network(TOKENS % 8)
    assert farthest(before, expected) > 1e-2
    assert farthest(found, expected) <= 1e-5
    assert farthest(pellucid.load(run / "adapter", device="cpu").network(TOKENS % 8).detach(), expected) <= 1e-5
    assert "peft" in pellucid.convert(run, tmp_path / "alone", to="adapter").parity.other


def test_what_is_no_text_model_is_refused(tmp_path):
    folder = saved(their_model("qwen3_vl"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for changes, kind, message in (
        ({"text_config": "llama"}, FamilyError, "text_config = 'llama' in config.json: expected an object"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, FolderError, "quantised by AWQ"),
        ({"text_config": config["text_config"] | {"hidden_act": "mish"}}, FamilyError, "hidden_act = 'mish'"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(kind, match=message):
            open_folder(folder)
