"""Every command and every line of Python on the pages runs, with lengths cut short."""

import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from doc_pages import ROOT, blocks, page, run_page
from tests.some_cases import one_in


def test_tutorial(desk: Path, capfd: pytest.CaptureFixture[str]):
    names = run_page(page("docs/tutorial.md"))
    assert names["parts"].total == pytest.approx(names["parts"].logit, abs=1e-5)
    assert (desk / "page.html").exists()
    assert (desk / "runs" / "my_texts" / "report.html").exists()


@pytest.mark.parametrize("name", ["install", "other-software", "sources", "features"])
def test_a_page_about_runs_that_are_there(name: str, desk_with_runs: Path, capfd: pytest.CaptureFixture[str]):
    run_page(page(f"docs/{name}.md"))


@pytest.mark.slow
def test_training(desk: Path, capfd: pytest.CaptureFixture[str]):
    names = run_page(page("docs/training.md"))
    score = names["score"]
    assert names["bits"] / score.n_bytes == pytest.approx(score.bits_per_byte, rel=1e-12)
    assert (desk / "runs" / "masked" / "report.html").exists()
    table = page("docs/training.md").partition("## What a run writes")[2].partition("\n## ")[0]
    written = re.findall(r"^\| `([\w.]+)/?` \| .* \|$", table, re.MULTILINE)
    assert len(written) == 10
    assert not [file for file in written if not (desk / "runs" / "my_texts" / file).exists()]


RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page("docs/recipes.md"), re.DOTALL | re.MULTILINE))


def test_there_are_eight_recipes():
    assert len(RECIPES) == 8
    assert all(list(blocks(text, "sh", "python")) for text in RECIPES.values())


@pytest.fixture
def series(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download cache in which the tiny GPT-2 is the revisions of Pythia that the page names."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--EleutherAI--pythia-70m"
    for i, revision in enumerate(("step1", "step512", "step1000", "step143000")):
        shutil.copytree(prepared / "gpt2", repository / "snapshots" / f"{i:040x}")
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / revision).write_text(f"{i:040x}")


@pytest.mark.parametrize("name", one_in(4, RECIPES))
def test_a_recipe(name: str, desk_with_runs: Path, series: None, capfd: pytest.CaptureFixture[str]):
    """Each by itself, in a folder of its own."""
    run_page(RECIPES[name])


def test_every_block_names_its_language():
    """A block without one is not executed: it is output, or `make`."""
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        if path.name == "mathematics.md":
            continue
        plain = re.findall(r"^```\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        assert not [block for block in plain if re.match(r"pellucid |import |from |>>>", block)], path
