"""Adapters made to do harm, or of kinds that are more than a product of two matrices: each refused in one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from their_folders import write_theirs

from pellucid.hub.open import open_folder
from pellucid.hub.peft import CONFIG, TENSORS, Change, write_adapter
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

MODULE = "transformer.h.0.attn.c_attn"
NAME = f"base_model.model.{MODULE}.lora_A.weight"


def config(**changes):
    def make(folder):
        path = folder / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return make


def tensors(change):
    def make(folder):
        save_file(change(load_file(folder / TENSORS)), folder / TENSORS)

    return make


def linked(folder):
    (folder / TENSORS).rename(folder.parent / "outside.safetensors")
    (folder / TENSORS).symlink_to(folder.parent / "outside.safetensors")


HOSTILE = {
    "another kind": config(peft_type="LOHA"),
    "magnitudes too": config(use_dora=True),
    "another scale": config(use_rslora=True),
    "biases too": config(bias="all"),
    "whole modules too": config(modules_to_save=["lm_head"]),
    "layers repeated": config(layer_replication=[[0, 2]]),
    "code of its own": config(auto_mapping={"base_model_class": "Evil"}),
    "behind some tokens alone": config(alora_invocation_tokens=[5, 6]),
    "principal components taken from the weights": config(init_lora_weights="pissa"),
    "the same, found faster": config(init_lora_weights="pissa_niter_16"),
    "orthonormal parts taken from them": config(init_lora_weights="olora"),
    "parts for a task taken from them": config(init_lora_weights="corda"),
    "rounded weights": config(init_lora_weights="loftq"),
    "parts along the gradient taken from them": config(init_lora_weights="lora_ga"),
    "alpha of text": config(lora_alpha="many"),
    "alpha without end": config(lora_alpha=1e300),
    "a rank that it has not": config(r=7),
    "a pattern to hang on": config(alpha_pattern={"(a+)+$": 1.0}),
    "patterns as a list": config(rank_pattern=[1]),
    "nested": lambda folder: (folder / CONFIG).write_text("[" * 100_000 + "]" * 100_000),
    "no base": config(base_model_name_or_path=None),
    "a base that is not there": config(base_model_name_or_path="/nowhere/at/all"),
    "a link out": linked,
    "a header of a terabyte": lambda folder: (folder / TENSORS).write_bytes((10**12).to_bytes(8, "little") + b"{}"),
    "no tensors": lambda folder: (folder / TENSORS).unlink(),
    "a name of another form": tensors(lambda t: t | {"evil": torch.zeros(1)}),
    "one matrix of two": tensors(lambda t: {NAME: t[NAME]}),
    "a module that is not there": tensors(lambda t: {n.replace("h.0", "h.9"): x.clone() for n, x in t.items()}),
    "for another width": tensors(lambda t: t | {NAME: torch.zeros(2, 33)}),
    "no rank": tensors(lambda t: t | {NAME: torch.zeros(0, 32)}),
    "numbers without a point": tensors(lambda t: t | {NAME: torch.zeros(2, 32, dtype=torch.int64)}),
    "three axes": tensors(lambda t: t | {NAME: torch.zeros(2, 32, 1)}),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory, shakespeare):
    folder = tmp_path_factory.mktemp("adapters")
    base = write_theirs(folder / "base", "gpt2", learn_tokenizer("bpe", [shakespeare[:5000]], 280))
    write_adapter(folder / "adapter", {MODULE: Change(torch.ones(2, 32), torch.ones(96, 2), 0.5, True)}, 2, str(base))
    return folder / "adapter"


def copy(sound, tmp_path):
    (tmp_path / "adapter").mkdir()
    for path in sound.iterdir():
        (tmp_path / "adapter" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "adapter"


def read(folder):
    return dict(open_folder(folder).ours())


def test_the_sound_one_is_read(sound):
    before, after = read(sound.parent / "base"), read(sound)
    name = "blocks.0.attn.query.weight"
    assert torch.allclose(after[name], before[name] + 0.5 * 2)
    assert {n for n in after if not torch.equal(after[n], before[n])} == {name, name.replace("query", "key")} | {
        name.replace("query", "value")
    }


@pytest.mark.parametrize("drawn", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_how_the_matrices_were_first_drawn_changes_nothing(drawn, sound, tmp_path):
    folder = copy(sound, tmp_path)
    config(init_lora_weights=drawn, alora_invocation_tokens=None)(folder)
    expected, found = read(sound), read(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_adapter_is_refused_in_one_line(name, sound, tmp_path):
    folder = copy(sound, tmp_path)
    HOSTILE[name](folder)
    with pytest.raises(ValueError) as caught:
        read(folder)
    assert type(caught.value).__module__.startswith("pellucid.")
    assert "\n" not in str(caught.value)
    assert 10 < len(str(caught.value)) < 600
