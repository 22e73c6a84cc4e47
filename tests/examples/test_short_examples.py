"""The five short scripts for users, each on tiny sizes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import pellucid

SHORT = Path(__file__).parents[2] / "examples" / "short"
SCRIPTS = sorted(path.stem for path in SHORT.glob("*.py"))
SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 48, "n_ctx": 32}


def script(name: str) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(name, SHORT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, shakespeare: str) -> Path:
    """A folder with a text, a chapter, a run, and a tiny GPT-2 in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "text.txt").write_text(shakespeare[:20_000], encoding="utf-8")
    (folder / "chapter.txt").write_text(shakespeare[20_000:21_000], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        fields = SIZES | {"sample_every": 0, "compile": "no"}
        pellucid.train(str(folder / "text.txt"), steps=2, out=folder / "run", preset="gpt2", fields=fields)
        pellucid.convert(folder / "run", folder / "gpt2")
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELLUCID_CACHE", str(tiny / "cache"))


def test_there_are_five_and_each_is_short():
    readme = (SHORT.parent / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 5
    for name in SCRIPTS:
        assert len((SHORT / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 40
        assert f"`short/{name}.py`" in readme


def test_train_on_my_text(tiny: Path, tmp_path: Path):
    """A hundredth of a minute is over before the first step ends."""
    run = script("train_on_my_text").main(str(tiny / "text.txt"), 0.01, str(tmp_path / "run"), SIZES)
    assert (run / "report.html").exists()


def test_attribute_a_prediction(tiny: Path, tmp_path: Path):
    total, logit = script("attribute_a_prediction").main(str(tiny / "gpt2"), "to be or not to be")
    assert total == pytest.approx(logit, abs=1e-4)
    assert (tmp_path / "attribution.html").exists()


def test_patch_two_prompts(tiny: Path, tmp_path: Path):
    best = script("patch_two_prompts").main(str(tiny / "gpt2"), "to be", "to me", "b", "m")
    assert len(best) == 2
    assert (tmp_path / "patching.html").exists()


def test_lora(tiny: Path, tmp_path: Path):
    """Two steps at a small rate hardly move it, and the adapters are written."""
    files = (str(tiny / "text.txt"), str(tiny / "chapter.txt"))
    before, after = script("lora").main(str(tiny / "gpt2"), *files, steps=2, rank=2, out=str(tmp_path / "run"))
    assert before != after
    assert after == pytest.approx(before, rel=0.1)
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").exists()


def test_compare_with_ngrams(tiny: Path):
    bits = script("compare_with_ngrams").main(str(tiny / "run"), str(tiny / "chapter.txt"))
    assert set(bits) == {"uniform", "unigram", "bigram", "trigram", "5-gram", "this model"}
    assert list(bits.values()) == sorted(bits.values(), reverse=True)
