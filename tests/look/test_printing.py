"""Pages as they are printed: light, in their colours, without controls, and whole where a window shows a part."""

import re

import pytest
from playwright.sync_api import Browser, Page
from tests.look.conftest import TEXT, ready, small_model

from pellucid.lens.show.figure import Figure, asset
from pellucid.lens.show.pages import show
from pellucid.look.app import look_files
from pellucid.report.page import style

#: what is wrong with a page that a printer would get: controls, what stays in sight, what is cut, what is dark
FAULTS = """() => {
  const seen = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility());
  const css = (e) => getComputedStyle(e);
  const cut = (e) => e.scrollWidth > e.clientWidth + 2 && css(e).overflowX !== "visible";
  const controls = "input[type=range], .theme, .screen, .now button, .tools .act:not([aria-pressed=true])";
  const name = (e) => `${e.tagName.toLowerCase()}.${e.className}`;
  const names = (wrong) => [...new Set(seen.filter(wrong).map(name))];
  const [r, g, b] = css(document.body).backgroundColor.match(/[0-9]+/g).map(Number);
  return {
    stays: names((e) => ["sticky", "fixed"].includes(css(e).position)),
    scrolls: names((e) => e.matches("div, p, pre, figure") && e.clientWidth && cut(e)),
    controls: names((e) => e.matches(controls)),
    colourless: names((e) => css(e).printColorAdjust !== "exact"),
    wide: names((e) => e.matches("canvas, svg, section") && e.getBoundingClientRect().right > innerWidth + 1),
    dark: r + g + b < 700 ? ["body"] : [],
  };
}"""
#: the canvases that have a ramp's lowest colour or its middle as the dark theme has them
DARK = """() => [...document.querySelectorAll("canvas")].filter((c) => {
  if (!c.width || !c.checkVisibility()) return false;
  const words = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
  return words.includes(0xff372b22) || words.includes(0xff3b2f26);
}).map((c) => c.getAttribute("aria-label") ?? c.className)"""


def as_printed(page: Page) -> None:
    """What a browser does before it prints, on A4 with the margins of the style sheet."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 703, "height": 1017})


def on_screen_again(page: Page) -> None:
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_every_page_has_the_rules_of_printing():
    """One sheet for all of them, and last, so that its rules win."""
    sheet = asset("common_print.css")
    assert "@media print" in sheet
    assert style().endswith(sheet)
    figure = Figure("a", [], tokens=["a"]).html
    assert sheet in figure
    files = look_files().contents
    assert files["common_print.css"].decode().strip() == sheet
    linked = re.findall(r'href="page/(\w+\.css)"', files["index.html"].decode())
    assert linked[-1] == "common_print.css"
    # a narrow window's rules would also hold on paper, which is narrower than a screen
    for own in (asset("saved.css"), files["look.css"].decode(), style()):
        assert not re.search(r"@media \((max-width|prefers)", own)


@pytest.fixture
def tab(browser: Browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


def test_a_prompts_page_is_printed_whole_and_light(tab: Page, tmp_path):
    """The logit lens of 60 tokens is wider than a window: on paper all of it is there, in strips."""
    trace = small_model().trace((TEXT * 5)[:240])
    path = show(trace).save(tmp_path / "page.html")
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready]")
    assert tab.evaluate(FAULTS)["stays"]  # the line with the chosen token, on the screen
    assert tab.evaluate(DARK)
    as_printed(tab)
    assert not any((faults := tab.evaluate(FAULTS)).values()), faults
    assert tab.evaluate(DARK) == []
    widths = "(all) => all.map((c) => [c.width / devicePixelRatio, c.getBoundingClientRect().width])"
    strips = tab.locator("section[aria-label='Logit lens'] .strips canvas").evaluate_all(widths)
    gutter, cell = 78, 74
    n = len(trace.tokens)
    assert sum(width - gutter for width, _ in strips) == pytest.approx(n * cell)
    assert all(shown <= 690 for _, shown in strips)
    on_screen_again(tab)
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not tab.locator(".strips canvas").first.is_visible()


@pytest.mark.parametrize("name", ["read", "tokens", "attention", "stream", "circuits", "experiment", "training"])
def test_the_inspectors_pages_are_printed_light_and_without_controls(tab: Page, inspector, name):
    tab.goto(f"{inspector.url}/#page={name}&a={TEXT}")
    ready(tab)
    tab.wait_for_selector("main .panel")
    tab.wait_for_timeout(300)
    tab.wait_for_function("() => !document.querySelector('[data-waiting]')")
    assert bool(tab.evaluate(DARK)) >= (name in ("attention", "circuits"))
    as_printed(tab)
    assert not any((faults := tab.evaluate(FAULTS)).values()), faults
    assert tab.evaluate(DARK) == []
    assert tab.locator(".tabs a").evaluate_all("(all) => all.filter((a) => a.checkVisibility()).length") == 1
    # the first panel stands below the title, and does not leave it alone on a page
    assert tab.evaluate("getComputedStyle(document.querySelector('.prompts')).breakAfter") == "avoid"
