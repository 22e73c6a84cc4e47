"""What a run trains by default opens in transformers and llama.cpp, and every run says what opens it."""

import json

import pytest
import transformers

import pellucid
from pellucid.cli import main
from pellucid.hub.families import FamilyError
from pellucid.hub.round_trip import lost
from pellucid.hub.tables import FAMILIES
from pellucid.hub.targets import opens_in, preset_for
from pellucid.hub.write import exported_as
from pellucid.plan import as_dict, make_plan, plan_lines, sizing
from pellucid.plan.sized_recipe import sized
from pellucid.presets import PRESETS, preset
from pellucid.report.page import write_page
from pellucid.runs.length import with_length
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.training.recipe import make_recipe

TINY = {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16, "d_ff": 32, "vocabulary": 270, "sample_every": 0}


@pytest.fixture(scope="module")
def text(tmp_path_factory, shakespeare):
    path = tmp_path_factory.mktemp("text") / "plays.txt"
    path.write_text(shakespeare[:30_000])
    return path


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return pellucid.train(text, out=out, steps=2, fields=TINY)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("small", "opens in: transformers (as qwen3), llama.cpp (GGUF), pellucid"),
        ("llama-mini", "opens in: transformers (as llama), llama.cpp (GGUF), pellucid"),
        ("gpt2", "opens in: transformers (as gpt2), llama.cpp (GGUF), pellucid"),
        ("bert-mini", "opens in: transformers (as bert), pellucid"),
        ("t5-mini", "opens in: transformers (as t5), pellucid"),
    ],
)
def test_what_opens_an_architecture(name, line):
    assert opens_in(preset(name)) == line


def test_a_tokenizer_that_llama_cpp_lacks_is_counted():
    characters = learn_tokenizer("char", ["some text"])
    a = preset("small", characters.n_vocab)
    assert opens_in(a, characters).endswith("(as qwen3), pellucid; for llama.cpp train with --tokenizer bpe")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "small"),
        ({"attention.mask": "bidirectional"}, "bert-mini"),
        ({"attention.mask": "prefix"}, ""),
    ],
)
def test_a_model_that_needs_our_code_names_the_preset_that_does_not(fields, name):
    a = preset("small").with_fields({"ngrams": (2, 3)} | fields)
    assert preset_for(a) == name
    hint = f"; --preset {name} trains a model that opens there without code" if name else ""
    assert opens_in(a) == f"opens in: transformers (its own code), pellucid{hint}"
    if name:
        assert "its own code" not in opens_in(preset(name))


def test_a_default_run_opens_everywhere_without_code(run, tmp_path):
    done = pellucid.convert(run.path, tmp_path / "folder")
    assert json.loads((done.folder / "config.json").read_text())["model_type"] == "qwen3"
    assert not list(done.folder.glob("*.py"))
    model = transformers.AutoModelForCausalLM.from_pretrained(done.folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert pellucid.convert(run.path, tmp_path / "model.gguf").parity.largest == 0


def test_the_end_of_a_run_the_report_and_a_plan_say_what_opens_the_model(run, text, tmp_path, capsys):
    line = "opens in: transformers (as qwen3), llama.cpp (GGUF), pellucid"
    command = ["train", str(text), "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(command + [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]) == 0
    assert line in capsys.readouterr().out
    assert f"O{line[1:]}." in write_page(run.path).read_text()
    plan = make_plan("small", measure=False, accelerators=())
    assert line in plan_lines(plan)
    assert f"opens in: {as_dict(plan)['opens_in']}" == line


def test_dropout_keeps_no_model_from_its_family(text, tmp_path):
    """Its rates act in training alone: runs that read a short text often have them, and open as the others do."""
    dropped = preset("small").with_fields({"dropout": 0.1})
    assert opens_in(dropped) == opens_in(preset("small"))
    made = pellucid.train(text, out=tmp_path / "run", steps=1, fields=TINY | {"dropout": 0.1})
    done = pellucid.convert(made.path, tmp_path / "folder")
    assert json.loads((done.folder / "config.json").read_text())["model_type"] == "qwen3"
    assert not done.code
    assert done.parity.holds
    assert "Dropout rates, which matter only in training, are left out" in (done.folder / "README.md").read_text()
    # a family that has the rates keeps them
    family, written = exported_as(preset("gpt2"))
    assert (family.name, written) == ("gpt2", preset("gpt2"))
    assert exported_as(dropped, "qwen3")[1] == preset("small")
    with pytest.raises(FamilyError, match="gpt2 cannot represent"):
        exported_as(dropped, "gpt2")


def test_a_refusal_for_transformers_names_the_nearest_families_alone():
    with pytest.raises(FamilyError) as refused:
        exported_as(preset("small").with_fields({"ngrams": (2, 3)}))
    said = str(refused.value)
    assert "project: qwen3 cannot represent ngrams = [2, 3]; " in said
    assert said.count("cannot represent") == 3
    assert "other families are no nearer. Without --family, pellucid convert writes it with code" in said


def test_a_limit_of_a_family_counts_as_what_is_in_the_way():
    """Ministral's files need a window beside what no family has."""
    a = preset("small", 300).with_fields({"ngrams": (2,)})
    assert [way.field for way in lost(a, FAMILIES["qwen3"])] == ["ngrams"]
    assert {"ngrams", "attention.windows"} <= {way.field for way in lost(a, FAMILIES["ministral"])}


def test_what_is_in_the_way_of_a_model_without_layers_is_counted_for_every_family():
    a = preset("small", 300).with_fields({"n_layers": 0, "ngrams": (2,)})
    assert all(lost(a, family) for family in FAMILIES.values())
    assert opens_in(a)


def test_a_run_that_llama_cpp_cannot_open_is_refused_with_the_option(text, tmp_path):
    fields = TINY | {"n_layers": 2, "ngrams": (2,)}
    run = pellucid.train(text, out=tmp_path / "run", steps=1, fields=fields)
    with pytest.raises(FamilyError, match="qwen3 cannot represent ngrams"):
        pellucid.convert(run.path, tmp_path / "model.gguf", weights="q8_0")
    folder = pellucid.convert(run.path, tmp_path / "folder").folder
    with pytest.raises(FamilyError, match="qwen3 cannot represent ngrams"):
        pellucid.convert(folder, tmp_path / "model.gguf")


def test_chosen_sizes_are_architectures_that_open_everywhere():
    for minutes in (0.3, 3, 60):
        recipe = with_length(make_recipe((), "small", {}), {"minutes": minutes})
        made = sizing.choose_size(recipe, sizing.Text(1_000_000), (1.0, 1.0))
        model = sized(recipe, made, set()).model
        assert "llama.cpp" in opens_in(model)
        assert model.n_layers >= 2
        assert model.d_ff == 32 * round(8 * model.d_model / 96)
        assert sized(recipe, made, {"model.mlp.d_ff"}).model.d_ff == preset("small").d_ff


def test_the_small_presets_keep_the_published_options():
    """What differs between a mini preset and the published one is a size, a rate of dropout, or a base."""
    for mini, name in (("small", "qwen3"), ("bert-mini", "bert")):
        small, published = PRESETS[mini].to_dict(), PRESETS[name].to_dict()
        words = {k for k, v in small.items() if isinstance(v, str) and v != published[k]}
        parts = {
            p: {k for k, v in small[p].items() if isinstance(v, str) and v != published[p][k]}
            for p in ("attention", "mlp", "norm", "positions")
        }
        assert not words
        assert not any(parts.values())
