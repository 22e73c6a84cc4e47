"""Runs of low-rank adapters: the base stays where it is, what is loaded and exported is merged, peft reads the rest."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from their_folders import KINDS, write_theirs

import pellucid
from drawing import make_network
from pellucid.cli import main
from pellucid.hub.families import FAMILIES, FamilyError, architecture_of, parameter_shapes
from pellucid.hub.open import open_folder
from pellucid.hub.peft import lora_deltas
from pellucid.language_model import LanguageModel
from pellucid.model.weights import state_of
from pellucid.runs.checkpoint import folder_of, steps_of
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from some_cases import one_in

#: peft asks transformers for what its next version calls otherwise
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

FIELDS = {"batch": 4, "device": "cpu", "precision": "float32", "compile": "no", "attention": "fused"}
FIELDS |= {"adapt.rank": 3, "sample_every": 0, "learning_rate": 1e-2}


@pytest.fixture
def desk(tmp_path, monkeypatch, shakespeare, tokenizer):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(shakespeare[20_000:32_000])
    return tmp_path, tokenizer


def adapt(folder, base, name="run", steps=12, **fields):
    return pellucid.train(
        folder / "text.txt", out=folder / name, from_model=base, steps=steps, fields=FIELDS | fields
    ).path


def their_logits(base, adapter, family, tokens):
    """Logits of transformers' model of the base, in float64, under peft's reading of the adapter."""
    from peft import PeftModel  # it takes three seconds, in this file alone

    model = getattr(transformers, KINDS[family][0]).from_pretrained(base, dtype=torch.float64)
    with torch.no_grad():
        return PeftModel.from_pretrained(model, adapter).double().eval()(tokens).logits


def logits(model, tokens):
    with torch.no_grad():
        return model.network(tokens)


@pytest.mark.parametrize(
    ("family", "modules"),
    one_in(4, [("gpt2", "query,value"), ("gpt2", "all"), ("llama", "all"), ("gpt_neox", "all")]),
)
def test_peft_reads_what_a_run_saves(family, modules, desk):
    """GPT-2 keeps query, key and value in one transposed matrix, GPT-NeoX in one by heads, Llama apart."""
    folder, tokenizer = desk
    base = write_theirs(folder / "base", family, tokenizer)
    run = adapt(folder, base, **{"adapt.modules": modules})
    tokens = torch.arange(24).view(2, 12)
    expected = their_logits(base, run / "adapter", family, tokens)
    model = pellucid.load(run, device="cpu", dtype=torch.float64)
    # Llama's and NeoX's tables and norms are float32 whatever the weights are
    assert (logits(model, tokens) - expected).abs().max() <= (1e-10 if family == "gpt2" else 1e-5)
    plain = pellucid.load(base, device="cpu", dtype=torch.float64)
    assert (logits(plain, tokens) - expected).abs().max() > 1e-2
    rounded = pellucid.load(run, device="cpu")
    assert (logits(rounded, tokens) - expected).abs().max() <= 1e-5

    # what peft reads is read here too, merged in the precision of the base's files
    again = pellucid.load(run / "adapter", device="cpu", dtype=torch.float64)
    assert (logits(again, tokens) - logits(model, tokens)).abs().max() <= 1e-6
    assert again.tokenizer.to_json() == tokenizer.to_json()


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to:UserWarning", "ignore:Setting `save_emb:UserWarning")
@pytest.mark.parametrize("modules", [["attn.c_proj", "lm_head"], ["lm_head", "mlp.c_fc"]], ids=["square", "not square"])
def test_the_orientation_of_a_change_is_that_of_its_module(modules, desk):
    """peft decides by each module's type, and saves one fan_in_fan_out for all of them."""
    import peft

    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer, tie_word_embeddings=False)
    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=modules, init_lora_weights=False))
    adapted.save_pretrained(folder / "adapter")
    for said in (False, True):
        path = folder / "adapter/adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"fan_in_fan_out": said}))
        tokens = torch.arange(24).view(2, 12)
        expected = their_logits(base, folder / "adapter", "gpt2", tokens)
        found = logits(pellucid.load(folder / "adapter", device="cpu", dtype=torch.float64), tokens)
        assert (found - expected).abs().max() <= 1e-5


def test_the_base_is_not_saved_again_and_the_loss_falls(desk):
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    run = adapt(folder, base, steps=60, warmup=1, evaluate_every=60)
    losses = [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]
    assert sum(losses[-5:]) < sum(losses[:5]) - 5 * 0.05
    kept = load_file(folder_of(run, 60) / "model-00001-of-00001.safetensors")
    assert {name[-2:] for name in kept} == {".A", ".B"}
    remembered = load_file(folder_of(run, 60) / "optimizer-00001-of-00001.safetensors")
    assert {name.rpartition("/")[0] for name in remembered} == kept.keys()
    assert steps_of(run) == [39, 60]
    sizes = {path.name: path.stat().st_size for path in run.rglob("*.safetensors")}
    assert max(sizes.values()) < (base / "model.safetensors").stat().st_size
    merged, before = state_of(pellucid.load(run, device="cpu").network), state_of(pellucid.load(base).network)
    changed = {name for name in merged if not torch.equal(merged[name], before[name])}
    assert changed == {f"{name[:-2]}.weight" for name in kept}


def test_an_export_is_merged(desk):
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    run = adapt(folder, base)
    done = pellucid.convert(run, folder / "out")
    assert done.parity.holds
    tokens = torch.arange(24).view(2, 12)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "out")
    with torch.no_grad():
        found = theirs(tokens).logits
    assert torch.allclose(found, logits(pellucid.load(run, device="cpu"), tokens), atol=1e-5)
    done = pellucid.convert(run / "adapter", folder / "ours")
    assert "peft" in done.parity.other
    assert "peft" in pellucid.convert(run, folder / "adapter", to="adapter").parity.other
    assert torch.equal(
        logits(pellucid.load(folder / "ours", device="cpu"), tokens),
        logits(pellucid.load(run / "adapter", device="cpu"), tokens),
    )


@pytest.mark.parametrize("word", one_in(2, ["adamw", "muon"]))
def test_resumed_is_uninterrupted_bit_for_bit(word, desk):
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    run = adapt(folder, base, steps=12, optimizer=word, evaluate_every=4, keep_last=3)
    cut = folder / "cut"
    shutil.copytree(run, cut)
    for step in (8, 12):
        shutil.rmtree(folder_of(cut, step))
    pellucid.train(out=cut, resume=True)
    for name in ("model", "optimizer"):
        one, other = (load_file(folder_of(r, 12) / f"{name}-00001-of-00001.safetensors") for r in (run, cut))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
def test_adapters_on_a_run_on_adapters(desk):
    """A base may be a run, and one of adapters too; its checkpoint is the one that was taken."""
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "llama", tokenizer)
    one = adapt(folder, base, "one")
    two = adapt(folder, one, "two", steps=6, **{"adapt.modules": "down"})
    assert pellucid.load(two, device="cpu").provenance["folder"] == str(two)
    before, after = (state_of(pellucid.load(run, device="cpu").network) for run in (one, two))
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        f"blocks.{i}.mlp.down.weight" for i in range(2)
    }


@pytest.mark.slow
def test_a_base_that_no_adapter_can_name_is_merged_instead(desk, capsys):
    """The run is complete without the folder for peft, and a note says why it has none."""
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "llama", tokenizer)
    adapter = adapt(folder, base, "one", steps=2) / "adapter"
    pellucid.convert(base, folder / "base.gguf", compare=False)
    for changed, kind in ((adapter, "an adapter itself"), (folder / "base.gguf", "a GGUF file")):
        run = folder / kind.split()[1]
        pellucid.train(folder / "text.txt", out=run, from_model=changed, steps=2, fields=FIELDS, show=True)
        assert f"no folder for peft is written beside the checkpoints: {run} changes" in capsys.readouterr().out
        assert not (run / "adapter").exists()
        assert main(["convert", str(run), str(folder / "out"), "--to", "adapter"]) == 2
        assert f"{kind}, and no program opens an adapter that changes one" in capsys.readouterr().err
        assert not (folder / "out").exists()


def test_experts_whose_adapters_peft_leaves_out_are_refused():
    """peft reads those of Qwen3-MoE, but of Qwen2-MoE only the others, without a word."""
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_experts": 3}
    sizes |= {"num_key_value_heads": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
    for name, more in (("qwen2_moe", {"shared_expert_intermediate_size": 4}), ("qwen3_moe", {"head_dim": 4})):
        a = architecture_of({"model_type": name} | sizes | more)
        modules = ["blocks.0.attn.query", "blocks.0.mlp.experts.1.gate"]
        shapes = {module: parameter_shapes(a)[f"{module}.weight"] for module in modules}
        pairs = {module: (torch.zeros(2, into), torch.zeros(out, 2)) for module, (out, into) in shapes.items()}
        if name == "qwen3_moe":
            assert "model.layers.0.mlp.experts.1.gate_proj" in dict(lora_deltas(pairs, 1.0, a, FAMILIES[name]))
            continue
        with pytest.raises(FamilyError, match=r"experts\.1\.gate has a low-rank change, and peft leaves out"):
            dict(lora_deltas(pairs, 1.0, a, FAMILIES[name]))
        del pairs[modules[1]]
        assert list(dict(lora_deltas(pairs, 1.0, a, FAMILIES[name]))) == ["model.layers.0.self_attn.q_proj"]


def test_a_base_that_is_gone_or_changed_is_refused(desk, capsys):
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    run = adapt(folder, base, steps=2)
    weights = load_file(base / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1e-3}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(RecipeError, match="holds other weights than those that the adapters change"):
        pellucid.load(run, device="cpu")
    assert main(["train", "--resume", "--out", str(run), "--steps", "4"]) == 2
    shutil.rmtree(base)
    with pytest.raises(RecipeError, match=r"the model that the adapters change cannot be read: .* does not exist"):
        pellucid.load(run, device="cpu")


def test_adapters_without_a_model_to_change_are_refused(desk, capsys):
    folder, _ = desk
    assert main(["train", str(folder / "text.txt"), "--lora", "4", "--out", str(folder / "run")]) == 2
    assert "name it with --from, or leave out --lora" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_an_architecture_that_no_family_says_keeps_our_names(desk):
    folder, tokenizer = desk
    a = pellucid.preset("gpt2", tokenizer.n_vocab).with_fields(
        {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16, "mlp.n_hidden": 2}
    )
    LanguageModel(make_network(a, 0, torch.float32), tokenizer, {}).save(folder / "base")
    run = adapt(folder, folder / "base", steps=2)
    names = load_file(run / "adapter/adapter_model.safetensors")
    assert "base_model.model.blocks.0.mlp.up.1.lora_A.weight" in names
    assert json.loads((run / "adapter/adapter_config.json").read_text())["r"] == 3
    again, model = (pellucid.load(path, device="cpu") for path in (run / "adapter", run))
    tokens = torch.arange(8)[None]
    assert torch.allclose(logits(again, tokens), logits(model, tokens), atol=1e-6)


def test_modules_have_the_names_of_the_family_as_which_a_model_with_dropout_is_written(desk):
    """No rate of it is in what is converted, where the family has no field for one."""
    folder, tokenizer = desk
    a = pellucid.preset("gpt2", tokenizer.n_vocab).with_fields(
        {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16, "dropout.embed": 0.1, "dropout.mlp_out": 0.2}
    )
    LanguageModel(make_network(a, 0, torch.float32), tokenizer, {}).save(folder / "base")
    run = adapt(folder, folder / "base", steps=2)
    names = load_file(run / "adapter/adapter_model.safetensors")
    assert "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight" in names
    assert pellucid.convert(run, folder / "out", to="adapter").parity.holds


def test_an_adapter_brings_its_own_tokenizer_and_template(desk, shakespeare):
    """Trained elsewhere, it may be read with other markers than its base."""
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    adapter = adapt(folder, base, steps=2) / "adapter"
    assert pellucid.load(adapter, device="cpu").chat_template is None
    own = learn_tokenizer("bpe", [shakespeare[30_000:50_000]], 300)
    assert own.hash != tokenizer.hash
    own.save(adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    model = pellucid.load(adapter, device="cpu")
    assert model.tokenizer.hash == own.hash
    assert model.chat_template.source == "{{ messages[0]['content'] }}"


def test_an_adapter_folder_names_its_base_once(desk):
    """An adapter whose base is an adapter, or nothing, is one line."""
    folder, tokenizer = desk
    base = write_theirs(folder / "base", "gpt2", tokenizer)
    adapter = adapt(folder, base, steps=2) / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    for named, says in ((str(adapter), "is an adapter itself"), ("", "names no model"), (7, "names no model")):
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": named}))
        with pytest.raises(ValueError, match=says):
            open_folder(adapter)
