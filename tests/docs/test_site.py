"""The site: built without a warning, whole, and with nothing fetched from outside. `make site` installs its tools."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from doc_pages import ROOT, script
from test_lessons import LESSONS
from test_links import FETCHED, STYLES
from tests.browsing import SIZES, running_browser

from pellucid.cli import COMMANDS
from pellucid.cli.command_groups import COMMAND_GROUPS

N_COMMANDS = len(COMMANDS) + sum(len(commands) for commands, _ in COMMAND_GROUPS.values())


@pytest.fixture(scope="module")
def site(needs_site_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, built as `make site` builds them."""
    folder, lessons = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("lessons")
    for name in LESSONS:  # building them takes minutes, and what is tested here is that the links lead to them
        (lessons / f"{name}.html").write_text("<h1>A lesson</h1>", encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PELLUCID_LESSONS": str(lessons)},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("the site is built once")
class TestSite:
    def test_every_page_is_there(self, site: Path):
        written = {path.stem for path in site.glob("*.html")}
        assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= written
        assert "api" in written
        assert (site / "commands.html").read_text(encoding="utf-8").count("usage: pellucid ") == N_COMMANDS

    def test_nothing_is_fetched(self, site: Path, pages: dict[Path, str]):
        for path, text in pages.items():
            assert not FETCHED.search(text), path.name
            assert not STYLES.search(text), path.name
        for style in site.rglob("*.css"):
            assert not STYLES.search(style.read_text(encoding="utf-8")), style.name

    def test_every_link_leads_somewhere(self, pages: dict[Path, str]):
        ids = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in pages.items()}
        for path, text in pages.items():
            for link in map(unescape, re.findall(r'<a [^>]*href="([^"]+)"', text)):
                if re.match(r"\w+:", link):
                    continue
                file, _, anchor = unquote(link).partition("#")
                target = (path.parent / file).resolve() if file else path
                assert target.exists(), f"{path.name}: {link}"
                if anchor and target in ids:
                    assert anchor in ids[target], f"{path.name}: {link}"

    def test_code_fits_its_box_on_a_desktop_and_on_a_telephone(self, site: Path, needs_browser: str):
        with running_browser(needs_browser) as browser:
            for width, height in SIZES.values():
                tab = browser.new_page(viewport={"width": width, "height": height})
                for path in site.rglob("*.html"):
                    tab.goto(path.as_uri())
                    wide = "(boxes) => boxes.filter((b) => b.scrollWidth > b.clientWidth).map((b) => b.textContent)"
                    assert tab.locator("pre").evaluate_all(wide) == [], (path.name, width)
                    assert tab.evaluate("document.documentElement.scrollWidth") <= width, (path.name, width)
                tab.close()

    @pytest.mark.parametrize("words", ["windows", "compare runs", "delete"])
    def test_the_search_finds_words_of_the_commands(self, site: Path, needs_browser: str, words: str):
        """The words of help texts are in the index, which a browser reads from disk."""
        with running_browser(needs_browser) as browser:
            tab = browser.new_page()
            tab.goto(f"{(site / 'search.html').as_uri()}?q={quote(words)}")
            tab.wait_for_selector("#search-results :text('Search finished')")
            links = tab.locator("#search-results li a").evaluate_all("(all) => all.map((a) => a.getAttribute('href'))")
            assert "commands.html" in [link.partition("#")[0].partition("?")[0] for link in links]

    def test_mathematics_is_mathml(self, site: Path):
        """It needs no script; the font of its signs ships with the site."""
        training = (site / "training.html").read_text(encoding="utf-8")
        assert training.count("<math ") >= 3
        assert "<mfrac>" in training
        assert "$$" not in training
        assert (site / "_static" / "STIXTwoMath-Regular.ttf").exists()

    def test_the_reference_has_the_public_names(self, site: Path):
        import pellucid

        reference = (site / "api.html").read_text(encoding="utf-8")
        shown = set(re.findall(r'id="pellucid\.(?:\w+\.)*(\w+)"', reference))
        assert not [name for name in pellucid.__all__ if name not in shown and name != "__version__"]


def test_docstrings_become_rest():
    """Paragraphs stay as they are, lines that describe a parameter become definitions, indented ones literal."""
    extension = script("site_extension")
    docstring = (
        "Score a text* by `score`.\n\nstride    moves\n          the window\nn_ctx     its length\n\n    y = x\n"
    )
    assert extension.as_rest(docstring) == (
        "Score a text\\* by ``score``.\n\n"
        "``stride``\n    moves\n    the window\n``n_ctx``\n    its length\n\n"
        "::\n\n    y = x\n"
    )
