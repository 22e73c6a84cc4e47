"""A run for a target is one that the target opens without extra code, and every run says what opens it."""

import json

import pytest
import transformers

import pellucid
from pellucid.cli import main
from pellucid.hub.families import FamilyError, each_in_the_way, n_in_the_way
from pellucid.hub.tables import FAMILIES
from pellucid.hub.targets import PRESET_FOR, check_target, opens_in
from pellucid.hub.write import exported_as
from pellucid.option_values import ArchitectureError
from pellucid.plan import as_dict, make_plan, plan_lines, sizing
from pellucid.presets import PRESETS, preset
from pellucid.report.page import write_page
from pellucid.runs.length import with_length
from pellucid.runs.options import RecipeError
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.training.recipe import make_recipe

TINY = {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_ctx": 16, "d_ff": 32, "vocabulary": 270, "sample_every": -1}


@pytest.fixture(scope="module")
def text(tmp_path_factory, shakespeare):
    path = tmp_path_factory.mktemp("text") / "plays.txt"
    path.write_text(shakespeare[:30_000])
    return path


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return pellucid.train(text, out=out, steps=2, fields=TINY, opens_in="gguf")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("small", "opens in: transformers (its own code), pellucid; for llama.cpp train with --for gguf"),
        ("qwen3-mini", "opens in: transformers (as qwen3), llama.cpp (GGUF), pellucid"),
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
    a = preset("qwen3-mini", characters.n_vocab)
    assert opens_in(a, characters).endswith("transformers (as qwen3), pellucid; for llama.cpp train with --for gguf")


def test_a_run_for_a_target_opens_there_without_code(run, tmp_path):
    assert run.recipe.opens_in == "gguf"
    done = pellucid.convert(run.path, tmp_path / "folder")
    assert json.loads((done.folder / "config.json").read_text())["model_type"] == "qwen3"
    assert not list(done.folder.glob("*.py"))
    model = transformers.AutoModelForCausalLM.from_pretrained(done.folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert pellucid.convert(run.path, tmp_path / "model.gguf").parity.largest == 0


def test_the_end_of_a_run_the_report_and_a_plan_say_what_opens_the_model(run, text, tmp_path, capsys):
    line = "opens in: transformers (as qwen3), llama.cpp (GGUF), pellucid"
    command = ["train", str(text), "--steps", "1", "--for", "transformers", "--out", str(tmp_path / "run")]
    assert main(command + [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]) == 0
    assert line in capsys.readouterr().out
    assert f"O{line[1:]}." in write_page(run.path).read_text()
    plan = make_plan("qwen3-mini", measure=False, accelerators=())
    assert line in plan_lines(plan)
    assert f"opens in: {as_dict(plan)['opens_in']}" == line


def test_dropout_keeps_no_model_from_its_family(text, tmp_path):
    """Its rates act in training alone: runs that read a short text often have them, and open as the others do."""
    dropped = preset("qwen3-mini").with_fields({"dropout": 0.1})
    assert opens_in(dropped) == opens_in(preset("qwen3-mini"))
    check_target("transformers", dropped, "bpe")
    made = pellucid.train(text, out=tmp_path / "run", steps=1, fields=TINY | {"dropout": 0.1}, opens_in="transformers")
    done = pellucid.convert(made.path, tmp_path / "folder")
    assert json.loads((done.folder / "config.json").read_text())["model_type"] == "qwen3"
    assert not done.code
    assert done.parity.holds
    assert "Dropout rates, which matter only in training, are left out" in (done.folder / "README.md").read_text()
    # a family that has the rates keeps them
    family, written = exported_as(preset("gpt2"))
    assert (family.name, written) == ("gpt2", preset("gpt2"))
    assert exported_as(dropped, "qwen3")[1] == preset("qwen3-mini")
    with pytest.raises(FamilyError, match="gpt2 cannot represent"):
        exported_as(dropped, "gpt2")


@pytest.mark.parametrize(
    ("target", "given", "says"),
    [
        ("gguf", {"preset": "small"}, "ngrams"),
        ("transformers", {"fields": {"mlp.activation": "relu2", "mlp.form": "plain"}}, "mlp.form = plain"),
        ("gguf", {"fields": {"tokenizer": "char"}}, "of kind char"),
        ("gguf", {"fields": {"text.pattern": "word-end"}}, "has no name for"),
        ("gguf", {"fields": {"objective": "masked"}}, "bidirectional|post"),
        ("transformers", {"fields": {"objective": "prefix"}}, "prefix"),
        ("gguf", {"predictor": "ngram"}, "applies to a transformer"),
    ],
)
def test_what_a_target_cannot_open_is_refused_before_the_text_is_read(target, given, says, tmp_path):
    with pytest.raises((RecipeError, ArchitectureError), match=says):
        pellucid.train(tmp_path / "there is no such text", opens_in=target, **given)


def test_a_refusal_for_transformers_names_the_nearest_families_alone():
    with pytest.raises(FamilyError) as refused:
        check_target("transformers", preset("small"), "bpe")
    said = str(refused.value)
    assert "project: qwen3 cannot represent ngrams = [2, 3, 4, 5]; " in said
    assert said.count("cannot represent") == 3
    assert "other families are no nearer. Without --for transformers, pellucid convert writes it with code" in said


def test_a_limit_of_a_family_counts_as_what_is_in_the_way():
    """Ministral's files need a window beside what no family has."""
    a = preset("qwen3-mini", 300).with_fields({"ngrams": (2,)})
    n = n_in_the_way(a, FAMILIES["qwen3"])
    assert n == 1
    assert n_in_the_way(a, FAMILIES["ministral"]) > n
    assert any(way.startswith("attention.windows") for way in each_in_the_way(a, FAMILIES["ministral"]))


def test_what_is_in_the_way_of_a_model_without_layers_is_counted_for_every_family():
    a = preset("small", 300).with_fields({"n_layers": 0})
    assert all(n_in_the_way(a, family) > 0 for family in FAMILIES.values())
    assert opens_in(a)


def test_a_run_that_llama_cpp_cannot_open_is_refused_with_what_to_train(text, tmp_path):
    fields = TINY | {"n_layers": 2, "ngrams": (2,)}
    run = pellucid.train(text, out=tmp_path / "run", steps=1, fields=fields)
    with pytest.raises(FamilyError, match=r"qwen3 cannot represent ngrams = .*; for llama.cpp train with --for gguf$"):
        pellucid.convert(run.path, tmp_path / "model.gguf", weights="q8_0")
    folder = pellucid.convert(run.path, tmp_path / "folder").folder
    with pytest.raises(FamilyError, match="qwen3 cannot represent ngrams") as refused:
        pellucid.convert(folder, tmp_path / "model.gguf")
    assert "train with" not in str(refused.value)


def test_an_unknown_target_is_refused():
    with pytest.raises(FamilyError, match="choose one of transformers, gguf"):
        check_target("onnx", preset("qwen3-mini"), "bpe")


@pytest.mark.parametrize("objective", PRESET_FOR)
def test_every_objective_with_a_preset_has_a_family(objective):
    recipe = make_recipe(("x",), None, {"objective": objective}, default_preset=PRESET_FOR[objective])
    check_target("transformers", recipe.model, "bpe")
    assert recipe.model == preset(PRESET_FOR[objective], recipe.model.n_vocab)


def test_gpt4_splitting_is_checked_as_the_trained_tokenizer_will_be(shakespeare):
    """The check beforehand agrees with what the conversion finds afterwards, for every way to split."""
    from pellucid.hub.gguf import tokenizer_keys

    for pattern in ("gpt2", "gpt4", "word-end", "none"):
        trained = learn_tokenizer("bpe", [shakespeare[:5000]], 300, pattern=pattern)
        outcomes = []
        for check in (
            lambda p=pattern: check_target("gguf", preset("qwen3-mini"), "bpe", p),
            lambda t=trained: tokenizer_keys(t, 300),
        ):
            try:
                check()
                outcomes.append(True)
            except FamilyError:
                outcomes.append(False)
        assert outcomes[0] == outcomes[1], pattern


def test_sizes_for_a_target_are_architectures_that_it_opens():
    for minutes in (0.3, 3, 60):
        recipe = with_length(make_recipe((), "qwen3-mini", {}), {"minutes": minutes})
        made = sizing.choose_size(recipe, sizing.Text(1_000_000), (1.0, 1.0))
        sized = sizing.sized(recipe, made, set())
        assert "llama.cpp" in opens_in(sized.model)
        assert not made.chosen.ngrams
        assert sized.model.d_ff == 32 * round(8 * sized.model.d_model / 96)
        assert sizing.sized(recipe, made, {"model.mlp.d_ff"}).model.d_ff == preset("qwen3-mini").d_ff


def test_a_run_cannot_be_resumed_for_another_target(run):
    with pytest.raises(RecipeError, match="it was trained for gguf"):
        pellucid.train(out=run.path, resume=True, opens_in="transformers")
    assert pellucid.train(out=run.path, resume=True, opens_in="gguf", steps=3).step == 3


def test_the_small_presets_keep_the_published_options():
    """What differs between a mini preset and the published one is a size, a rate of dropout, or a base."""
    for name in ("qwen3", "bert"):
        small, published = PRESETS[f"{name}-mini"].to_dict(), PRESETS[name].to_dict()
        words = {k for k, v in small.items() if isinstance(v, str) and v != published[k]}
        parts = {
            p: {k for k, v in small[p].items() if isinstance(v, str) and v != published[p][k]}
            for p in ("attention", "mlp", "norm", "positions")
        }
        assert not words
        assert not any(parts.values())
