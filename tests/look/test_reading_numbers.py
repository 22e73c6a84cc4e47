"""Bars, ranks, units and names mean the same on every page, and what is chosen or cut off is seen."""

import re
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import Browser, Page
from tests.look.conftest import TEXT, ready, small_model
from tests.look.test_pages_of_lens import settle_panels

from pellucid.lens.show.pages import show
from pellucid.lens.show.panels import bars_panel
from pellucid.look.app import look_files

#: of rows of bars: the width of each in per cent, and the number beside it
ROWS = """(box) => [...box.querySelectorAll(".fill")].map((fill) =>
  [parseFloat(fill.style.width), fill.parentElement.nextElementSibling.textContent])"""


@pytest.fixture
def tab(browser: Browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


def open_inspector(tab: Page, url: str, name: str, **state: object) -> None:
    tab.goto(f"{url}/#" + urlencode({"page": name, "a": TEXT, **state}))
    ready(tab)
    settle_panels(tab)


@pytest.fixture
def prompt_page(tab: Page, tmp_path):
    """The page about 42 tokens of a small model."""
    model = small_model()
    ids = torch.tensor(model.tokenizer.encode(TEXT * 4)[:42])
    figure = show(model.trace(ids))
    figure.panels.append(bars_panel("Shares", ["one", "two"], torch.tensor([0.25, 0.5]), most=1))
    figure.panels.append(bars_panel("Amounts", ["one", "two"], torch.tensor([0.04, 12.34])))
    tab.goto(figure.save(tmp_path / "page.html").as_uri())
    tab.wait_for_selector("html[data-ready]")
    return tab


def test_a_bar_of_a_share_is_its_share_of_the_whole(prompt_page):
    for section, selector in (("Tokens", ".two .bars"), ("Attention inside the text", ".reads .bars")):
        for width, said in prompt_page.locator(f"section[aria-label='{section}'] {selector}").first.evaluate(ROWS):
            share = 0 if said.startswith("<") else float(said.split()[0]) * (1 if said.endswith("%") else 100)
            assert width == pytest.approx(share, abs=0.06 if share else 0.05), (section, said)
    assert prompt_page.locator("section[aria-label=Shares] .bars").evaluate(ROWS) == [[25, "0.250"], [50, "0.500"]]
    widths, said = zip(*prompt_page.locator("section[aria-label=Amounts] .bars").evaluate(ROWS), strict=True)
    assert widths[1] == 100
    assert said == ("0.0", "12.3")


@pytest.mark.parametrize("position", [0, 20, 41])
def test_the_chosen_token_is_marked_in_the_attribution(prompt_page, position):
    """All of 42 tokens are named above their columns, and the line below says which of them is chosen."""
    panel = prompt_page.locator("section[aria-label='Direct logit attribution']")
    prompt_page.locator("section[aria-label=Tokens] button.chip").nth(position).click()
    assert panel.locator("figcaption .chip").first.inner_text() == (
        prompt_page.locator("section[aria-label=Tokens] button.chip").nth(position).inner_text()
    )
    assert f" at {position};" in panel.locator("h3").inner_text()
    names = """(canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, 30).data.some((value) => value)"""
    assert panel.locator("canvas").evaluate(names)


def test_numbers_beside_each_other_share_their_decimals(tab: Page, inspector):
    open_inspector(tab, inspector.url, "tokens")
    columns = "#surprisal tbody tr:not(:first-child) td:nth-child({})"
    bits, ranks, entropies = (tab.locator(columns.format(k)).all_inner_texts() for k in (4, 5, 6))
    for column in (bits, entropies):
        assert len({len(text.partition(".")[2]) for text in column}) == 1, column
    assert min(int(text.replace(",", "")) for text in ranks) >= 1
    open_inspector(tab, inspector.url, "attention", layer=0, head=0)
    for box in tab.locator(".bars").all():
        numbers = box.locator(".number").all_inner_texts()
        assert len({len(text.partition(".")[2]) for text in numbers}) == 1, numbers
    rows = tab.locator("#one-head .bars").evaluate(ROWS)
    assert all(width == pytest.approx(100 * float(said), abs=0.6) for width, said in rows)


def test_ranks_count_from_one_and_numbers_have_units(tab: Page, inspector):
    open_inspector(tab, inspector.url, "stream", pos=3, stat="rank")
    assert tab.locator("#lens .scale").inner_text().endswith("1")
    said = tab.locator("#lens").inner_text()
    assert "rank + 1" not in said
    assert re.search(r"entropy [\d.e-]+\u00a0bits", said)
    assert min(int(number) for number in re.findall(r"rank (\d+)", said)) >= 1
    assert "\u00a0logits" in tab.locator("#logit .figures").first.inner_text()
    open_inspector(tab, inspector.url, "read", pos=11)
    kept = tab.locator("[data-name='cache.bytes']").first
    assert kept.inner_text() == f"{int(kept.get_attribute('data-value')):,}"
    assert "," in kept.inner_text()
    open_inspector(tab, inspector.url, "experiment", b=TEXT.replace("cat", "dog"))
    assert tab.locator("[data-name='patch.own']").inner_text().endswith("\u00a0logits")


def test_the_composition_graph_names_its_heads_and_axes(tab: Page, inspector):
    """Canvases have no text to read, so what is written on them is written down."""
    tab.add_init_script("""
      window.written = [];
      const write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        if (this.canvas.dataset?.name === "composition") window.written.push(text);
        return write.call(this, text, ...where);
      };""")
    open_inspector(tab, inspector.url, "circuits")
    tab.wait_for_selector("canvas[data-name=composition]")
    written = set(tab.evaluate("window.written"))
    assert {"head", "layer", "0", "1", "0.0", "0.1", "1.0", "1.1"} <= written


def test_a_formula_that_is_cut_is_seen_to_scroll(tab: Page, inspector):
    open_inspector(tab, inspector.url, "read", open='["blocks.0"]')
    tab.wait_for_selector(".equation math")
    tab.locator(".equation").evaluate_all("(all) => all.forEach((e) => { e.style.width = '60px'; })")
    cut = tab.locator(".equation").evaluate_all(
        """(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => {
          const css = getComputedStyle(e);
          const shadows = css.backgroundImage.split("gradient").length;
          return [css.overflowX, css.scrollbarWidth, css.backgroundAttachment, shadows];
        })"""
    )
    assert cut
    assert all(one == ["auto", "thin", "local, local, scroll, scroll", 5] for one in cut)
    assert b"scrolls" in look_files().contents["read.js"]
