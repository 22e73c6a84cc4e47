"""The README is short, and each of its commands, figures and links is checked here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, blocks, page, run_page, shortened
from transformers import AutoModelForCausalLM

import pellucid
from pellucid.hub import FAMILIES

README = page("README.md")


@pytest.fixture
def ran(desk: Path, capfd: pytest.CaptureFixture[str]) -> dict:
    """The names that its blocks leave, all run in the order in which they stand."""
    return run_page(README)


@pytest.mark.item("S1-1.1-m", "S4-learn-a")
def test_commands(desk: Path, ran: dict):
    """In the order they stand: later ones use the runs of earlier ones."""
    assert len([line for _, block in blocks(README, "sh") for line in block.splitlines()]) == 7
    for file in ("runs/my_texts/recipe.json", "page.html", "trace.html", "adapted.gguf"):
        assert (desk / file).exists(), file
    attribution = ran["trace"].attribute(" the", by="head")
    assert attribution.total == pytest.approx(attribution.logit, abs=1e-4)
    own = (desk / "exported" / "modeling_pellucid.py").exists()
    opened = AutoModelForCausalLM.from_pretrained(desk / "exported", trust_remote_code=own)
    assert opened.config.vocab_size == pellucid.load(desk / "exported").architecture.n_vocab


@pytest.mark.item("S1-1.1-a")
def test_python(desk: Path):
    """The first block of Python in a process of its own, as somebody would paste it."""
    code = next(content for _, content in blocks(README, "python"))
    done = subprocess.run([sys.executable, "-c", shortened(code)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+\.\d+\s*$", done.stdout)


def test_the_first_screen():
    """What it is, a picture, the command, a sample and the benchmark come first, and the whole is short."""
    lines = README.splitlines()
    assert len(lines) <= 120
    first = "\n".join(lines[:45])
    order = ["Language models you can see through", "docs/figures/look_attention.png", "pellucid train my_texts/"]
    order += ["wrote", "benchmarks.time_to_quality", "make demo"]
    assert [first.index(part) for part in order] == sorted(first.index(part) for part in order)


def test_the_figures_of_the_benchmark_are_those_that_were_measured():
    """Seconds and losses, those of the rows of the page that has the measurement."""
    row = r"{} +(\d+) +\d+/\d+ +[\d,]+ +\d+ +(\d\.\d{{4}})"
    names = ("ours, 1 minutes", "half an n-gram of order 7", "nanoGPT, 2,000 steps")
    found = [re.search(row.format(name), page("docs/experiments/quality.md")) for name in names]
    (seconds, ours), (_, mixed), (of_nanogpt, nanogpt) = (match.groups() for match in found if match)
    assert f"{float(ours):.3f} nats per character in {seconds} s" in README
    assert f"{float(mixed):.3f} with an n-gram" in README
    assert f"{float(nanogpt):.3f} in {of_nanogpt} s" in README
    assert "benchmarks.time_to_quality" in README
    assert "default" in README
    assert (ROOT / "benchmarks" / "time_to_quality.py").exists()


def test_the_counts_are_right():
    """Of families, of the items of the source texts, of short scripts, and of claims."""
    assert f"{len(FAMILIES)} families" in README
    total = re.search(r"\| total \| \*\*(\d+)\*\*", page("docs/mathematics.md"))
    assert total is not None
    assert f"{total[1]} items of five source texts" in README
    assert len(list((ROOT / "examples" / "short").glob("*.py"))) == 5
    table = page("examples/README.md").partition("## Sixteen claims")[2]
    assert len(re.findall(r"^\| `\w+\.py`", table, re.MULTILINE)) == 16


def test_make_targets_exist():
    """Every `make` command of the README and of the pages about setting up is a target of the Makefile."""
    assert shutil.which("make")
    pages = README + page("CONTRIBUTING.md") + page("docs/install.md")
    targets = set(re.findall(r"^make ([\w-]+)", pages, re.MULTILINE)) | set(re.findall(r"`make ([\w-]+)", pages))
    assert {"demo", "test", "check", "site", "types"} <= targets
    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_checks_are_of_what_is_written():
    """The laws that the README names for `pellucid verify` are among those that it tries."""
    from pellucid.verify.checks import MODEL_CHECKS, REFERENCE_CHECKS

    assert "gradient = reference" in REFERENCE_CHECKS
    assert {"causality", "cached = uncached", "a tap changes nothing"} <= MODEL_CHECKS.keys()


def test_the_changelog_begins_with_what_is_not_released_and_the_last_release():
    """A page for a release. An old list of changes once came back into it when two versions were joined."""
    text = page("CHANGELOG.md")
    assert re.findall("^## (.*)", text, re.MULTILINE)[:2] == ["Unreleased", pellucid.__version__]
    assert f"version: {pellucid.__version__}\n" in page("CITATION.cff")
    assert len(text.splitlines()) <= 150
