"""Every example runs and shows what it says; those that train are slow: make test-slow."""

import ast
import importlib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from pellucid.reference.images import embed_patches, patchify, vision_parameters
from running import arrays_of

EXAMPLES = Path(__file__).parents[2] / "examples"
HELPERS = {"svg", "character_model", "sparse"}
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in HELPERS)


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_says_what_it_shows(name: str):
    """It is imported without doing anything, names its item or its source, and is in the README."""
    module = example(name)
    assert callable(module.main)
    assert module.__doc__ is not None
    assert module.__doc__.startswith("S"), "the docstring begins with the item of the conformance list, or the source"
    assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_has_a_test_here(name: str):
    """Each script's main is called by a test of this file."""
    calls = [n.args[0].value for n in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8"))) if is_example(n)]
    assert name in calls


def is_example(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "example"
        and isinstance(node.args[0], ast.Constant)
    )


def drawn(folder: Path, name: str) -> None:
    """The figure is there, is XML, and has something in it besides its ground."""
    root = ElementTree.parse(folder / f"{name}.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root)) > 5


@pytest.mark.item("S4-att-a")
def test_day_after_annas_birthday(figures: Path):
    results = example("day_after_annas_birthday").main()
    assert results["right"] == 98
    drawn(figures, "day_after_annas_birthday")


@pytest.mark.item("S4-att-a")
def test_anna_and_bikram_in_the_inspector(tmp_path: Path):
    """The head reads Anna's statement alone, and the MLP's memory alone speaks for the day after."""
    anna = example("day_after_annas_birthday")
    figure = anna.page(anna.hand_built())
    panels = {panel["kind"]: panel for panel in figure.panels}
    assert figure.tokens == [anna.VOCABULARY[i] for i in anna.QUESTION]
    assert panels["attribution"]["target"][-1] == "Wednesday"
    pattern, parts = arrays_of(panels["attention"])["tiles"][0], panels["attribution"]["labels"]
    assert pattern[0, 2].tolist() == [255, 0, 0]
    assert panels["tokens"]["top"][2][0]["text"] == "Wednesday"
    shares = dict(zip(parts, arrays_of(panels["attribution"])["values"][:, 2].tolist(), strict=True))
    assert max(shares, key=lambda part: shares[part]) == "blocks.0.mlp_out"
    assert abs(shares["blocks.0.attn.head.0"]) < 1e-6
    page = figure.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Anna was born on Tuesday." in page


@pytest.mark.item("S2-4-g", "S2-4-h", "S2-4-j")
def test_shift_of_sinusoids(figures: Path):
    results = example("shift_of_sinusoids").main()
    assert results["shift_error"] < 1e-12
    assert results["previous_6"] > 0.99
    drawn(figures, "shift_of_sinusoids")


@pytest.mark.item("S4-emb-d")
@pytest.mark.slow
def test_hintons_family_trees(figures: Path):
    results = example("hintons_family_trees").main()
    assert (results["questions"], results["facts"]) == (104, 112)
    assert results["separable_mean"] >= 0.95
    assert results["right_unseen"] >= 0.3
    drawn(figures, "hintons_family_trees")


@pytest.mark.item("S1-1.1.2-j")
@pytest.mark.slow
def test_mup_scores(figures: Path):
    results = example("mup_scores").main()
    assert results["muP_ratio"] <= 1.6
    assert results["standard_ratio"] >= 5
    drawn(figures, "mup_scores")


@pytest.mark.item("S4-emp-b")
@pytest.mark.slow
def test_shannons_series(figures: Path):
    results = example("shannons_series").main(with_model=False)
    assert results["order_1_runs_1"] < 0.01
    assert results["order_2_runs_2"] < 0.01
    assert results["F_0"] > results["F_1"] > results["F_2"] > results["F_3"]
    drawn(figures, "shannons_series")


# Trainings ----------------------------------------------------------------------------------

training = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    """The character model, trained afresh."""
    from character_model import character_model

    return character_model(folder=tmp_path_factory.mktemp("characters") / "run")


@pytest.fixture(scope="module")
def models(model, tmp_path_factory: pytest.TempPathFactory):
    """The same model from two starts."""
    from character_model import character_model

    return [model, character_model(folder=tmp_path_factory.mktemp("more_characters") / "2", seed=2)]


@pytest.mark.parametrize("reached", [None, 3])
def test_a_training_that_was_cut_is_said(reached: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the first step nothing is there; after it there is a checkpoint, which is not the model asked for."""
    module = example("character_model")

    def cut(text, *, out: Path, **options):
        if reached is not None:
            (out / "checkpoints" / f"step-{reached:08d}").mkdir(parents=True)

    monkeypatch.setattr(module, "train", cut)
    with pytest.raises(RuntimeError, match=f"the training was cut at step {reached or 0} of 10: run this again"):
        module.character_model(10, tmp_path / "run")


@pytest.mark.xdist_group("the character model is trained once")
class TestCharacterModel:
    pytestmark = training

    @pytest.mark.item("S4-deep-b")
    def test_losses_after_each_block(self, model, figures: Path):
        losses = list(example("losses_after_each_block").main(model).values())
        assert sorted(losses, reverse=True) == losses
        assert losses[-1] < 1.88
        drawn(figures, "losses_after_each_block")

    @pytest.mark.item("S4-mlp-c", "S4-mlp-d", "S4-mlp-e")
    def test_key_value_memories(self, models, figures: Path):
        results = example("key_value_memories").main(models)
        assert max(results["memory_error"], results["attention_error"]) < 1e-12
        assert all(results[f"agreement_{l}"] >= 2 * results[f"shuffled_{l}"] for l in range(3))
        drawn(figures, "key_value_memories")

    @pytest.mark.item("S4-acc-b")
    def test_hyperfitting(self, model, figures: Path):
        results = example("hyperfitting").main(model)
        assert results["after: type-token ratio"] > results["before: type-token ratio"]
        assert results["after: predictive entropy"] < results["before: predictive entropy"]
        assert results["after: held-out loss"] > results["before: held-out loss"]
        drawn(figures, "hyperfitting")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-deep-b")
def test_induction(figures: Path):
    results = example("induction").main()
    assert results["accuracy_1"] <= 0.6
    assert results["accuracy_2"] >= 0.9
    drawn(figures, "induction_losses")
    drawn(figures, "induction_heads")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-deep-b", "S4-draw-c")
def test_induction_circuit(figures: Path):
    results = example("induction_circuit").main()
    assert results["accuracy"] >= 0.95
    assert results["composition"] >= results["baseline"] + 10 * results["spread"]
    assert max(results["without_previous"], results["without_induction"]) <= 0.5
    assert results["without_another"] >= 0.9
    drawn(figures, "induction_circuit")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-emb-f")
def test_space_probe(figures: Path):
    results = example("space_probe").main()
    assert results["r2_W_U"] >= 0.6
    assert results["r2_shuffled"] <= 0.1
    drawn(figures, "space_probe")


@pytest.mark.item("S4-tok-c")
def test_patches_of_images_reach_the_class_as_tokens():
    """Their embeddings are the definition's; all of them count, and without positions in any order."""
    digits = example("digits")
    a = digits.vision(16, 2, 2, 16)
    model = digits.initialise_classifier(digits.ImageClassifier(a, 4, 10), 1).double()
    image = torch.randn(1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).numpy()
    patches = torch.from_numpy(patchify(image, 2))[None]
    embed, class_token = model.embed, model.encoder.embed.token.weight[0]
    with torch.no_grad():
        W, b, token = (w.numpy() for w in (embed.weight, embed.bias, class_token))
        by_definition = embed_patches(patches[0].numpy(), W, b, token)
        assert np.abs(model.embeddings(patches)[0].numpy() - by_definition).max() < 1e-12
        before = model(patches)
        for k in range(16):
            changed = patches.clone()
            changed[:, k] += 1
            assert (model(changed) - before).abs().max() > 1e-6
        assert (model(patches.flip(1)) - before).abs().max() > 1e-6
        model.encoder.embed.position.weight[:] = model.encoder.embed.position.weight[0].clone()
        assert (model(patches.flip(1)) - model(patches)).abs().max() < 1e-10


@pytest.mark.item("S4-tok-c", "X-PARAMS")
def test_the_published_size_of_an_image_classifier():
    """ViT-B/16: 224 x 224 pixels are 196 patches and a class token; 86,567,656 numbers."""
    digits = example("digits")
    a = digits.vision(768, 12, 12, (224 // 16) ** 2)
    with torch.device("meta"):
        model = digits.ImageClassifier(a, 3 * 16**2, 1000)
    assert a.n_ctx == 197
    assert sum(p.numel() for p in model.parameters()) == 86_567_656
    assert vision_parameters(768, 12, 3072, 16, 3, 196, 1000) == 86_567_656


@pytest.mark.slow
@pytest.mark.item("S4-tok-c")
def test_digits(figures: Path):
    results = example("digits").main()
    assert results["accuracy_learned"] >= 0.97
    drawn(figures, "digits")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-att-b")
def test_alignment_bahdanau(figures: Path):
    results = example("alignment_bahdanau").main()
    assert results["attention_24"] > results["one vector_24"] + 0.2
    assert results["near"] > 0.9
    assert results["error"] < 1e-5
    drawn(figures, "alignment_bahdanau")
    drawn(figures, "alignment_bahdanau_lengths")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-draw-c")
def test_steering_direction(figures: Path):
    results = example("steering_direction").main()
    assert results["calm"] <= 0.2 <= results["unsteered"] <= 0.8 <= results["loud"]
    assert results["probe"] > results["probe_shuffled"] + 0.2
    drawn(figures, "steering")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-draw-c")
def test_fact_traced(figures: Path):
    results = example("fact_traced").main()
    assert results["accuracy"] >= 0.99
    assert results["before"] >= 0.5 <= results["behind"]
    assert results["carried"] >= 0.5
    assert results["elsewhere"] <= 0.05
    drawn(figures, "fact_traced")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.item("S4-att-o")
def test_tasks_in_superposition(figures: Path):
    results = example("tasks_in_superposition").main()
    assert results["second"] == sorted(results["second"])
    assert min(p + q for p, q in zip(results["first"], results["second"], strict=True)) > 0.9
    assert min(results["first"][4], results["second"][3]) > 0.25
    drawn(figures, "tasks_in_superposition")
