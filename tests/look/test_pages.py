"""Every page of the inspector: it fits, it is quiet, its terms are explained, and its copied code runs."""

import re
import subprocess
from importlib import resources

import pytest
from tests.browsing import SIZES, visiting
from tests.look.conftest import encoder_decoder, ready, small_model

from pellucid.architecture import MLP, Attention, Norm, Positions
from pellucid.look.app import look_files
from pellucid.look.session import Session
from some_cases import one_in

PAGES = ("read", "tokens", "attention", "stream", "circuits", "experiment", "training")
#: architectures that draw other steps than GPT-2
FAMILIES = {
    "llama": {
        "positions": Positions(kind="rotary"),
        "norm": Norm(kind="rms"),
        "mlp": MLP(d_ff=8, form="gated", activation="silu"),
        "attention": Attention(n_heads=4, n_kv_heads=2, bias="none"),
    },
    "parallel, alibi": {"block": "parallel", "positions": Positions(kind="alibi")},
    "post-norm": {"block": "post", "final_norm": "none", "ngrams": (2,), "ngram_rows": 64},
    "bert": {
        "block": "post",
        "final_norm": "none",
        "embed_norm": "norm",
        "readout": "bert",
        "attention": Attention(n_heads=2, mask="bidirectional"),
    },
    "no readout": {"readout": "none", "attention": Attention(n_heads=2, mask="bidirectional")},
}


def settled(page) -> None:
    """Wait until nothing is being computed."""
    ready(page)
    page.wait_for_timeout(50)
    page.locator("[data-waiting]").first.wait_for(state="detached")


def test_every_term_on_the_pages_is_explained():
    folder = resources.files("pellucid").joinpath("look", "page")
    explained = set(re.findall(r'^  "?([\w -]+?)"?: "', folder.joinpath("terms.js").read_text(), re.MULTILINE))
    for file in folder.iterdir():
        if file.name.endswith(".js"):
            asked = set(re.findall(r'<\$\{Term\} t="([^"]+)"', file.read_text()))
            assert asked <= explained, file.name
    assert len(explained) > 20


def test_a_term_says_what_it_means_on_hover_and_on_focus(inspector, visit):
    page = visit(f"{inspector.url}/#page=tokens")
    settled(page)
    page.locator("main .term").first.hover()
    assert "model" in page.locator(".explanation:not([hidden])").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".explanation").is_hidden()
    page.locator("main .term").last.focus()
    assert page.locator(".explanation").is_visible()


def fits(page) -> bool:
    """Whether the page needs no scrolling sideways."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def resize(page, size: str) -> None:
    page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
    page.wait_for_timeout(60)


@pytest.fixture(scope="module")
def tab(inspector, browser):
    """One narrow, dark window, in which the pages are opened one after another, as a reader does."""
    with visiting(browser) as open_page:
        page = open_page(f"{inspector.url}/#read_top_k=3&page=training", "narrow", "dark")
        ready(page)
        yield page


def turn_to(tab, name: str) -> None:
    """Choose a page, and wait until its panels have their numbers."""
    tab.click(f".tabs a:has-text('{name}')")
    tab.wait_for_function("(name) => document.title.toLowerCase().startsWith(name)", arg=name)
    settled(tab)
    tab.wait_for_selector("main section.panel")
    settled(tab)


@pytest.mark.parametrize("name", one_in(3, PAGES))
def test_a_page_fits_has_two_themes_keeps_the_address_and_its_copied_code_runs(inspector, tab, name):
    turn_to(tab, name)
    current = tab.locator("[aria-current=page]")
    assert current.inner_text().lower() == name
    assert "read_top_k=3" in tab.evaluate("location.hash")
    assert fits(tab)
    box = current.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= SIZES["narrow"][0]
    for panel in tab.locator("main section.panel:has([data-value])").all():
        said = panel.inner_text()
        assert "Copy as Python" in said, said
        assert "Not shown" in said, said
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.click(".theme")
    resize(tab, "wide")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert fits(tab)
    trace = inspector.model.trace(inspector.session.results["example"])
    assert name == "training" or tab.locator("main [data-value]").count() > 3
    for code in tab.locator("[data-code]").evaluate_all("(all) => all.map((e) => e.dataset.code)"):
        exec(code, {"model": inspector.model, "trace": trace})
    tab.click(".theme")
    resize(tab, "narrow")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_a_page_that_is_opened_later_finds_what_the_address_holds_for_it(tab):
    turn_to(tab, "tokens")
    turn_to(tab, "read")
    assert tab.locator("#sampling .slider:nth-child(2) b").inner_text() == "3"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAMILIES, "encoder-decoder"])
def test_every_page_shows_every_kind_of_model(look_into, visit, kind):
    """Narrow and wide by turns: each page is seen in both by the kinds together."""
    model = encoder_decoder() if kind == "encoder-decoder" else small_model(**FAMILIES[kind])
    inspector = look_into(Session(model, name=kind))
    for number, name in enumerate(PAGES, [*FAMILIES, "encoder-decoder"].index(kind)):
        size, scheme = (("wide", "dark"), ("narrow", "light"))[number % 2]
        page = visit(f"{inspector.url}/#page={name}", size, scheme)
        settled(page)
        assert fits(page), (name, size)


def test_the_scripts_are_type_checked(tmp_path, needs_typescript):
    for name, content in look_files().contents.items():
        if name.endswith(".js"):
            (tmp_path / name).write_bytes(content)
    options = ["--noEmit", "--allowJs", "--checkJs", "--strict", "false", "--target", "es2022", "--module", "es2022"]
    scripts = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run(
        [needs_typescript, *options, "--lib", "es2023,dom,dom.iterable", *scripts],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
