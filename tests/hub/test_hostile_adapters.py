"""Adapters made to do harm, or of kinds that are more than a product of two matrices: each refused in one line."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from their_folders import write_theirs

import pellucid
from pellucid.hub.open import open_folder
from pellucid.hub.peft import CONFIG, TENSORS, LoraDelta, write_adapter
from pellucid.model_names import FolderError
from pellucid.runs.options import RecipeError, with_record
from pellucid.starting_model import base_weights, fingerprint
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.training.config import Base
from pellucid.training.recipe import make_recipe

MODULE, QUERY = "transformer.h.0.attn.c_attn", "blocks.0.attn.query.weight"
NAME = f"base_model.model.{MODULE}.lora_A.weight"
STORED = f"base_model.model.{MODULE}.base_layer.weight"


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
    "another scale": config(use_rslora="twice"),
    "biases too": config(bias="all"),
    "whole modules too": config(modules_to_save=["lm_head"]),
    "layers repeated": config(layer_replication=[[0, 2]]),
    "all experts in one parameter": config(target_parameters=["mlp.experts.gate_up_proj"]),
    "parameters as text": config(target_parameters="mlp.experts"),
    "behind some tokens alone": config(alora_invocation_tokens=[5, 6]),
    "principal components taken from the weights": config(init_lora_weights="pissa"),
    "the same, found faster": config(init_lora_weights="pissa_niter_16"),
    "orthonormal parts taken from them": config(init_lora_weights="olora"),
    "parts for a task taken from them": config(init_lora_weights="corda"),
    "rounded weights": config(init_lora_weights="loftq"),
    "parts along the gradient taken from them": config(init_lora_weights="lora_ga"),
    "alpha of text": config(lora_alpha="many"),
    "alpha below 0": config(lora_alpha=-4),
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
    "another weight than the model's": tensors(lambda t: t | {STORED: torch.ones(32, 96)}),
    "a weight alone": tensors(lambda t: {STORED: torch.ones(32, 96)}),
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
    write_adapter(
        folder / "adapter", {MODULE: LoraDelta(torch.ones(2, 32), torch.ones(96, 2), 0.5, True)}, 2, str(base)
    )
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


def test_a_pickled_one_is_named_with_the_remedy(sound, tmp_path):
    folder = copy(sound, tmp_path)
    (folder / TENSORS).rename(folder / "adapter_model.bin")
    for trust in (False, True):
        with pytest.raises(FolderError, match=r"a pickle \(adapter_model.bin\), which is read neither with trust nor"):
            list(open_folder(folder, trust=trust).ours())


def test_the_card_of_a_merge_names_the_base_and_the_folder_of_one_is_no_name_on_the_hub(sound, tmp_path):
    done = pellucid.convert(sound, tmp_path / "merged", to="huggingface")
    card = (done.folder / "README.md").read_text()
    assert "model of the folder `base`" in card
    assert "base_model:" not in card


@pytest.mark.parametrize("drawn", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_how_the_matrices_were_first_drawn_changes_nothing(drawn, sound, tmp_path):
    folder = copy(sound, tmp_path)
    config(init_lora_weights=drawn, alora_invocation_tokens=None)(folder)
    expected, found = read(sound), read(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_class_that_peft_names_is_not_needed(sound, tmp_path):
    """It names the class of the base where it was told no task; nothing here imports it."""
    folder = copy(sound, tmp_path)
    config(auto_mapping={"base_model_class": "Evil", "parent_library": "evil"}, task_type=None)(folder)
    assert torch.equal(read(folder)[QUERY], read(sound)[QUERY])


def test_a_rank_stabilised_scale_is_that_of_peft(sound, tmp_path):
    folder = copy(sound, tmp_path)
    config(use_rslora=True)(folder)
    before, plain, found = (read(path)[QUERY] for path in (sound.parent / "base", sound, folder))
    assert torch.allclose(found - before, (plain - before) * 2**0.5, atol=1e-6)


def test_a_weight_beside_its_pair_is_the_models(sound, tmp_path):
    """peft keeps that of a readout there."""
    folder = copy(sound, tmp_path)
    weight = load_file(sound.parent / "base" / "model.safetensors")[f"{MODULE}.weight"]
    tensors(lambda t: t | {STORED: weight.bfloat16()})(folder)
    assert torch.equal(read(folder)[QUERY], read(sound)[QUERY])


def on_bfloat16(sound, tmp_path):
    """An adapter with a small change of a base whose weights are bfloat16, and the base's tensors."""
    shutil.copytree(sound.parent / "base", tmp_path / "base")
    path = tmp_path / "base" / "model.safetensors"
    weights = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    folder = copy(sound, tmp_path)
    config(base_model_name_or_path=str(tmp_path / "base"), lora_alpha=1e-4)(folder)
    return folder, weights


def test_a_change_that_bfloat16_would_lose_is_kept(sound, tmp_path):
    """The base's weights have 8 binary digits, their sum with a small change more."""
    folder, weights = on_bfloat16(sound, tmp_path)
    found = read(folder)
    expected = weights[f"{MODULE}.weight"].float().T[:32] + 1e-4
    assert torch.equal(found[QUERY], expected)
    assert not torch.equal(found[QUERY].bfloat16().float(), expected)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    # what is written of it has one precision, which keeps the change when it is converted again
    for given, name in ((folder, "out"), (tmp_path / "out", "again")):
        pellucid.convert(given, tmp_path / name, to="huggingface", compare=False)
        assert json.loads((tmp_path / name / "config.json").read_text())["dtype"] == "float32"
        assert {tensor.dtype for tensor in load_file(tmp_path / name / "model.safetensors").values()} == {torch.float32}
        assert torch.equal(read(tmp_path / name)[QUERY], expected)


def test_a_run_that_began_with_an_adapter_finds_its_weights_again(sound, tmp_path):
    folder, _ = on_bfloat16(sound, tmp_path)
    merged = read(folder)
    recipe = replace(make_recipe(("text.txt",), None, {}), model=open_folder(folder).architecture)
    found = base_weights(with_record(recipe, base=Base(str(folder), "", fingerprint(merged))))
    assert torch.equal(found[QUERY], merged[QUERY])
    with pytest.raises(RecipeError, match="holds other weights than those that the run starts from"):
        base_weights(with_record(recipe, base=Base(str(folder), "", fingerprint(merged | {QUERY: merged[QUERY] + 1}))))


def test_a_router_is_known_by_the_name_that_transformers_gives_it(tmp_path):
    """In memory Mixtral's blocks are called mlp, in files block_sparse_moe."""
    tokenizer = learn_tokenizer("byte", [""])
    base = write_theirs(tmp_path / "base", "mixtral", tokenizer)
    router = {"model.layers.0.mlp.gate": LoraDelta(torch.ones(2, 32), torch.ones(5, 2), 0.5)}
    write_adapter(tmp_path / "adapter", router, 2, str(base))
    config(target_modules=[], target_parameters=["gate.weight"])(tmp_path / "adapter")
    name = "blocks.0.mlp.router.weight"
    assert torch.allclose(read(tmp_path / "adapter")[name], read(base)[name] + 1)


def test_an_adapter_of_a_gguf_file_says_what_to_name_instead(sound, tmp_path):
    pellucid.convert(sound.parent / "base", tmp_path / "base.gguf", compare=False)
    folder = copy(sound, tmp_path)
    config(base_model_name_or_path=str(tmp_path / "base.gguf"))(folder)
    with pytest.raises(FolderError, match="a GGUF file, whose tensors have other names"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (config(lora_alpha=-4), "lora_alpha = -4: expected a number above 0"),
        (config(rank_pattern={"c_attn": 0}), "rank_pattern of c_attn = 0: expected a number above 0"),
        (HOSTILE["all experts in one parameter"], "target_parameters with 'mlp.experts.gate_up_proj'"),
        (HOSTILE["another weight than the model's"], r"holds a weight of .*c_attn \(base_layer\) that differs"),
    ],
)
def test_the_entry_that_is_wrong_is_named(make, says, sound, tmp_path):
    folder = copy(sound, tmp_path)
    make(folder)
    with pytest.raises(FolderError, match=says):
        read(folder)


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
