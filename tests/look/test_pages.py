"""Every page of the inspector: it fits, it is quiet, its terms are explained, and its copied code runs."""

import re
import subprocess

import numpy as np
import pytest
from tests.browsing import SIZES, visiting
from tests.look.conftest import TEXT, encoder_decoder, ready, small_model

from drawing import make_network
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.language_model import LanguageModel
from pellucid.look.app import look_files
from pellucid.look.session import Session
from pellucid.predictors.ngram import NGram
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
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
    sources = {name: text.decode() for name, text in look_files().contents.items() if name.endswith(".js")}
    explained = set(re.findall(r'^  "?([\w \'-]+?)"?:(?: "|$)', sources.pop("terms.js"), re.MULTILINE))
    for name, source in sources.items():
        asked = set(re.findall(r'<\$\{Term\} t="([^"]+)"', source))
        assert asked <= explained, name
    # those of the kinds of heads are put together
    kinds = re.search(r"^const KINDS = \{([^}]+)\}", sources["training.js"], re.MULTILINE)[1]
    used = {f"{kind} head" for kind in re.findall(r'"(.+?)"', kinds)}
    assert used <= explained
    assert not [term for term in explained - used if f'"{term}"' not in "".join(sources.values())]
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


def run_copied(page, model) -> None:
    """Run the code behind every button of a page; it needs the model alone."""
    for code in page.locator("[data-code]").evaluate_all("(all) => all.map((e) => e.dataset.code)"):
        exec(code, {"model": model})


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
    assert name == "training" or tab.locator("main [data-value]").count() > 3
    run_copied(tab, inspector.model)
    tab.click(".theme")
    resize(tab, "narrow")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_a_page_that_is_opened_later_finds_what_the_address_holds_for_it(tab):
    turn_to(tab, "tokens")
    turn_to(tab, "read")
    assert tab.locator("#sampling .slider:nth-child(2) b").inner_text() == "3"


def test_the_code_of_a_step_and_of_a_shuffled_text_makes_its_trace_itself(inspector, visit):
    page = visit(f"{inspector.url}/#shuffle=0")
    page.locator(".step button:has-text('definition')").first.click()
    page.wait_for_selector("#order [data-code]")
    page.wait_for_selector("#cache [data-code]")
    settled(page)
    assert page.locator(".source [data-code]").count() == 1
    run_copied(page, inspector.model)


def test_every_page_answers_after_a_longer_and_a_shorter_prompt(look_into, visit):
    """With everything open whose numbers belong to the tokens of one prompt."""
    model = small_model()
    session, tokenizer = Session(model, name="small"), model.tokenizer
    ids = np.array(tokenizer.encode(TEXT * 4))
    session.results["ngrams"] = {order: NGram.train(ids, tokenizer.n_vocab, order) for order in (1, 2, 3)}
    opened = 'ngrams=true&shuffle=0&onPrompt=true&towards=the+dog&split=["blocks.0.attn_out","blocks.0.attn.head.0"]'
    page = visit(f"{look_into(session).url}/#a=the+cat+sat&{opened}")
    for name in PAGES:
        turn_to(page, name)
        for prompt in (TEXT, "the dog", "the cat sat"):
            page.fill("#prompt", prompt)
            page.press("#prompt", "Enter")
            n = len(tokenizer.encode(prompt))
            page.wait_for_function("(n) => document.querySelectorAll('.prompt .chip').length === n", arg=n)
            settled(page)
            assert page.locator("main section.panel").count()
    turn_to(page, "stream")
    page.fill("#target", "#5")
    page.press("#target", "Enter")
    page.wait_for_selector("#logit .figures:not(:has-text('less that of'))")
    page.fill("#against", "#6")
    page.press("#against", "Enter")
    page.wait_for_selector("#logit .figures:has-text('less that of')")
    settled(page)


def test_panels_that_leave_the_edits_out_say_so(inspector, visit):
    page = visit(f'{inspector.url}/#edits=[{{"op":"zero","name":"blocks.0.attn.z","head":[1]}}]')
    page.wait_for_selector("#order :text('without the edits')")
    turn_to(page, "training")
    page.wait_for_selector("#heads :text('without the edits')")


def test_the_slider_of_checkpoints_is_where_it_was_moved_to_while_one_loads(look_into, visit):
    def opened(step: int):
        model = small_model(seed=step)
        model.provenance["step"] = step
        return model

    page = visit(look_into(Session(opened(40), load=opened, steps=(10, 20, 30, 40))).url)
    held, slider = [], page.locator(".bar .slider input")
    page.route("**/api/model?checkpoint=*", lambda route: held.append(route))
    slider.focus()
    for step, place in ((30, "2"), (20, "1")):
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(450)  # while it waits, the page is drawn again five times a second
        assert slider.input_value() == place
        assert page.locator(".bar .slider b").inner_text() == str(step)
    assert "checkpoint=20" in page.evaluate("location.hash")
    held[-1].continue_()
    page.wait_for_function("!document.querySelector('[data-waiting]')")


def test_the_arrows_scroll_what_scrolls_and_the_tour_has_the_keyboard(inspector, visit):
    page = visit(f"{inspector.url}/#pos=2&read_key=1")
    page.locator(".step button:has-text('definition')").first.click()
    page.locator("[data-product] summary").first.click()
    for scrolled in (".source pre", ".terms"):
        page.locator(scrolled).first.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(50)
        assert "pos=2" in page.evaluate("location.hash")
    page.click("text=Take the tour")
    page.wait_for_function("document.activeElement.className === 'tour'")
    page.keyboard.press("Escape")
    page.locator(".tour").wait_for(state="detached")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('pos=3')")


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


def test_one_layer_is_no_layers(look_into, visit):
    network = make_network(Architecture(n_vocab=257, n_ctx=8, d_model=8, n_layers=1, attention=Attention(n_heads=1)))
    page = visit(look_into(Session(LanguageModel(network, ByteTokenizer(), {}), name="small")).url)
    assert " parameters, 1 layer × 1 head, " in page.inner_text("body")


def test_an_emptied_prompt_is_the_one_that_is_shown(inspector, visit):
    page = visit(f"{inspector.url}/#a=ROMEO")
    page.fill("#prompt", "")
    page.press("#prompt", "Enter")
    page.wait_for_function("document.querySelector('#prompt').value === 'ROMEO'")
