"""The lessons: built from models that learned what they should, small, and whole without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, page
from test_links import FETCHED, STYLES
from tests.browsing import running_browser

LESSONS = ("induction", "fact", "steering", "ngrams", "positions")


def test_the_page_links_to_every_lesson():
    assert tuple(re.findall(r'<a href="lessons/(\w+)\.html">\d\. ', page("docs/lessons.md"))) == LESSONS


def test_an_option_is_no_folder(tmp_path: Path):
    command = [sys.executable, str(ROOT / "docs" / "build_lessons.py")]
    for words, code in ((["--help"], 0), ([], 2), (["--fast"], 2), (["there", "unknown"], 2)):
        assert subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, timeout=120).returncode == code
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("the character model is trained once")
def test_every_lesson_is_built_and_opens_from_disk(tmp_path: Path, needs_browser: str):
    """`make lessons`; the claims of the texts are asserted while it builds."""
    command = [sys.executable, str(ROOT / "docs" / "build_lessons.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in tmp_path.iterdir()} == set(LESSONS)
    with running_browser(needs_browser) as browser:
        for name in LESSONS:
            path = tmp_path / f"{name}.html"
            text = path.read_text(encoding="utf-8")
            assert path.stat().st_size < 1_000_000
            assert not FETCHED.search(text)
            assert not STYLES.search(text)
            tab = browser.new_page(viewport={"width": 390, "height": 844})
            complaints: list[str] = []
            tab.on("pageerror", lambda error, said=complaints: said.append(str(error)))
            tab.on("console", lambda message, said=complaints: said.append(message.text))
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]")
            assert tab.locator("h1").inner_text().startswith("Lesson")
            answer = tab.locator(".question p").first
            assert not answer.is_visible()
            tab.locator(".question summary").first.click()
            assert answer.is_visible()
            assert not complaints
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            tab.close()
