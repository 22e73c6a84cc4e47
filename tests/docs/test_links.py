"""Links between pages lead somewhere, and no page asks for anything from outside."""

import re
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT

#: what a browser fetches by itself: scripts, styles, fonts, pictures, frames
FETCHED = re.compile(
    r"""(?:src|data-src|srcset)\s*=\s*["']?(?:https?:)?//|@import\s+["']?(?:url\()?["']?(?:https?:)?//"""
)
STYLES = re.compile(r"""<link[^>]+href\s*=\s*["']?(?:https?:)?//|url\(\s*["']?(?:https?:)?//""")


def anchors(text: str) -> set[str]:
    """What a link may name after #: headings as GitHub and the site spell them, and anchors written as HTML."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    spelled = {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings
    }
    return spelled | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", [*PAGES, ROOT / "examples" / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path):
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_paths_in_backticks_exist(path: Path):
    """Of the source, the tests, the examples and the pages."""
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|docs|tests|examples|requirements)/[\w./-]+)`", text)
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize(
    "path", [*PAGES, *(ROOT / "docs").glob("*.css"), *(ROOT / "docs").glob("*.rst")], ids=lambda p: p.name
)
def test_the_sources_fetch_nothing(path: Path):
    text = path.read_text(encoding="utf-8")
    assert not FETCHED.search(text)
    assert not STYLES.search(text)
    assert not re.search(r"!\[[^\]]*\]\((?:https?:)?//", text)
