"""The pages Attention, Stream and Circuits in a browser: their numbers are the trace's and the weights'."""

import math
import re

import httpx
import pytest
import torch
from tests.browsing import SIZES, visiting
from tests.look.conftest import TEXT, looking, shown_numbers
from tests.look.families import FAMILIES, QUICK, TOKENIZER, random_model

from drawing import make_network
from pellucid.architecture import MLP, Architecture
from pellucid.language_model import LanguageModel
from pellucid.lens.analysis.heads import head_scores
from pellucid.lens.analysis.logit_lens import follow_tokens
from pellucid.look.session import Session
from pellucid.text.ids import IdTokenizer
from some_cases import one_in

PAGES = ("attention", "stream", "circuits")


def open_page(visit, inspector, name, size="wide", scheme="light", **state):
    """A page when every panel has its numbers."""
    asked = "&".join(f"{key}={value}" for key, value in {"page": name, **state}.items())
    page = visit(f"{inspector.url}/#{asked}", size, scheme)
    settle_panels(page)
    return page


def settle_panels(page) -> None:
    """Wait until no panel waits."""
    page.wait_for_selector("main .panel")
    page.wait_for_timeout(60)
    page.locator("main [role=status]").first.wait_for(state="detached")
    page.wait_for_timeout(60)
    page.locator("main [role=status]").first.wait_for(state="detached")


def same(shown, computed):
    return shown == pytest.approx(float(computed), rel=1e-6, abs=1e-9)


@pytest.fixture(scope="module")
def t(model):
    return model.trace(TEXT)


def test_attention_shows_the_numbers_of_the_trace(visit, inspector, t):
    page = open_page(visit, inspector, "attention", a=TEXT, layer=1, head=1, pos=6, key_at=3)
    shown = shown_numbers(page)
    scores = head_scores(t, kinds=("previous", "first", "duplicate", "induction", "entropy")).scores
    for kind, values in scores.items():
        assert same(shown[f"score.{kind}"], values[1, 1])
    pattern = t["blocks.1.attn.pattern"][0, 1, 6]
    best = pattern.argmax()
    assert same(shown[f"row.{int(best)}"], pattern[best])
    reasons = t.why(1, 1, 6)
    assert same(shown["why.score"], reasons.scores[3])
    assert same(shown["why.attention"], pattern[3])
    page.click("text=the score itself")
    shown = shown_numbers(page, "#why")
    for label, value in zip(reasons.labels, reasons.values[:, 3], strict=True):
        assert same(shown[f"why.{label}"], value)
    # another view, and a click on a cell
    page.click("text=value-weighted")
    settle_panels(page)
    shown = shown_numbers(page, "#one-head")
    moved = t.value_weighted(1)[0, 1, 6]
    assert same(shown[f"row.{int(moved.argmax())}"], moved.max())
    page.click("text=A \u2212 B")
    assert "Give a second prompt" in page.inner_text("#one-head [data-reason]")


def test_the_copied_code_of_a_panel_gives_its_numbers(visit, inspector, model):
    page = open_page(visit, inspector, "attention", a=TEXT, layer=1, head=0, pos=5, key_at=2)
    page.click("#why .tools button")
    names = {"model": model}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    values = names["values"].double()  # terms in float32, which cancel: their rounding is relative to their sizes
    assert shown_numbers(page)["why.score"] == pytest.approx(float(values.sum()), abs=1e-6 * float(values.abs().sum()))


@pytest.mark.slow
def test_the_difference_of_two_prompts(visit, inspector, model, t):
    other = TEXT.replace("cat", "dog")
    page = open_page(visit, inspector, "attention", a=TEXT, b=other, layer=0, head=1, pos=7, see="difference")
    difference = (t["blocks.0.attn.pattern"] - model.trace(other)["blocks.0.attn.pattern"])[0, 1, 7]
    most = int(difference.abs().argmax())
    assert same(shown_numbers(page)[f"row.{most}"], difference[most])


def test_stream_shows_the_numbers_of_the_trace(visit, inspector, t):
    page = open_page(visit, inspector, "stream", a=TEXT, pos=4, point=1)
    shown, lens = shown_numbers(page), t.lens(mid=False)
    best = int(lens.tokens[1, 0, 4, 0])
    assert same(shown[f"lens.1.4.{best}"], lens.probabilities[1, 0, 4, 0])
    assert same(shown["lens.rank"], lens.rank[1, 0, 4] + 1)
    assert same(shown["lens.kl"], lens.kl[1, 0, 4] / math.log(2))
    target = int(lens.target[0, 4])
    followed = follow_tokens(t, [target], pos=4, mid=False)
    assert same(shown[f"follow.rank.{target}"], followed.rank[1, 0] + 1)
    first, second = t.probs[0, 4].topk(2).indices.tolist()
    parts = t.attribute(first, second, pos=4)
    assert same(shown["logit.value"], parts.logit)
    for label, value in zip(parts.labels, parts.values, strict=True):
        assert same(shown[f"logit.{label}"], value)
    assert same(shown["norm.embed"], t["embed"][0, 4].norm())
    # down to a head, and to the token that it read
    page.click("#logit button:has-text('attention 1')")
    page.click("#logit button:has-text('head 1.1')")
    settle_panels(page)
    heads, sources = t.attribute(first, second, pos=4, by="head"), t.attribute(first, second, pos=4, by="source")
    shown = shown_numbers(page, "#logit")
    assert same(shown["split.blocks.1.attn_out.blocks.1.attn.head.0"], heads["blocks.1.attn.head.0"])
    label = "blocks.1.attn.head.1 <- 2"
    assert same(shown[f"split.blocks.1.attn.head.1.{label}"], sources[label])


def test_under_an_error_there_is_no_earlier_answer(browser, inspector):
    with visiting(browser, allowed="status of 400") as open_window:
        page = open_page(open_window, inspector, "stream", a=TEXT, pos=4)
        page.wait_for_selector("#logit [data-name='logit.value']")
        page.fill("#target", "no token")
        page.press("#target", "Enter")
        page.wait_for_selector("#logit [role=alert]:has-text('give a text that is one')")
        assert shown_numbers(page, "#logit") == {}
        assert page.locator("#logit .tools [data-code]").count() == 0


def test_circuits_shows_the_numbers_of_the_weights(visit, inspector, model):
    page = open_page(visit, inspector, "circuits", a=TEXT, layer=1, head=1, pos=0, neuron=9, reads="V")
    shown, circuits = shown_numbers(page), model.circuits()
    head, token = circuits[1, 1], int(model.trace(TEXT).ids[0, 0])
    assert same(shown["head.copying"], circuits.copying()[1, 1])
    assert same(shown["head.ov_norm"], head.ov.norm())
    for name, rows in {"promotes": head.promotes(token, 12), "looks_for": head.looks_for(token, 12)}.items():
        assert [same(shown[f"{name}.{k}"], value) for k, (_, value) in enumerate(rows)] == [True] * 12
    assert same(shown["qk.0"], head.qk().singular_values()[0])
    composition = circuits.compose("V")
    assert same(shown["compose.baseline"], composition.baseline)
    assert same(shown["neuron.value.0"], circuits.neuron(1, 9).writes(8)[0][1])
    assert same(shown["neighbour.0"], model.embeddings().neighbours(token, 16)[0][1])
    assert "Not shown" in page.inner_text("#positions")


def test_routes_refuse_what_they_cannot_answer(inspector):
    trace = httpx.post(f"{inspector.url}/api/trace", json={"text": TEXT}).json()["id"]
    for path, status, reason in [
        (f"t/{trace}/attention/cross", 400, "this model has attn"),
        (f"t/{trace}/attention/attn/7/0/matrix", 400, "there are 2 of 2"),
        (f"t/{trace}/attention/attn/0/0/matrix?view=other", 400, "view"),
        (f"t/{trace}/attention/attn/0/0/why?query=0&key=5", 400, "may not read key 5"),
        (f"t/{trace}/stream/follow?tokens=[1]", 400, "expected 1 to 12 texts"),
        (f"t/{trace}/stream/follow?tokens=[", 400, ""),
        (f"t/{trace}/stream/logit?token=%23999999", 400, "numbered from 0"),
        (f"t/{trace}/stream/logit?token=no+token", 400, "give a text that is one"),
        (f"t/{trace}/stream/logit/part?token=%233&label=embed", 400, "has no parts"),
        ("w/head/0/9", 400, "there are 2 blocks of 2 heads"),
        ("w/head/0/0/token?token=%23999999", 400, "numbered from 0"),
        ("w/compose/X", 400, "kind"),
        ("w/heads?part=cross", 400, "has no encoder"),
        ("w/neuron/0/99", 400, "numbered from 0"),
        ("w/embed/embed/neighbours?token=%23-1", 400, ""),
        ("w/heads?checkpoint=7", 400, "checkpoints"),
    ]:
        answer = httpx.get(f"{inspector.url}/api/{path}")
        assert (answer.status_code, reason in answer.text) == (status, True), (path, answer.text)


@pytest.mark.slow
def test_heads_are_chosen_with_the_keyboard_and_the_pointer(visit, inspector, t):
    page = open_page(visit, inspector, "attention", a=TEXT, pos=6)
    page.focus("canvas[data-name=thumbnails]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("h2:text-is('Head 1.1')")
    settle_panels(page)
    matrix = page.locator("canvas[data-name=attention]")
    box = matrix.bounding_box()
    matrix.click(position={"x": box["width"] * 0.5, "y": box["height"] * 0.9})
    settle_panels(page)
    address = page.evaluate("location.hash")
    assert "layer=1&head=1" in address
    query, key = (int(re.search(rf"\b{name}=(\d+)", address)[1]) for name in ("pos", "key_at"))
    assert same(shown_numbers(page)["why.attention"], t["blocks.1.attn.pattern"][0, 1, query, key])


@pytest.fixture(scope="module", params=[f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES])
def family(request):
    model = random_model(request.param, torch.float32)
    with looking(Session(model, name=request.param)) as inspector:
        yield inspector


@pytest.mark.parametrize("name", one_in(3, PAGES))
def test_every_family_draws_every_panel_or_says_why_not(visit, family, name):
    page = open_page(visit, family, name, layer=1)
    assert page.locator("main [role=alert]").count() == 0
    assert page.locator("main canvas").count() >= 2
    encoder = family.model.architecture.encoder is not None
    for part in ("encoder", "cross") if encoder and name != "stream" else ():
        page = open_page(visit, family, name, layer=1, part=part, weights=part)
        assert page.locator("main [role=alert]").count() == 0
    for panel in page.locator("main section.panel").all():
        said = panel.inner_text()
        assert panel.locator("[data-reason]").count() or ("Copy as Python" in said and "Not shown" in said), said
    narrow = open_page(visit, family, name, "narrow")
    for opened, size in ((page, "wide"), (narrow, "narrow")):
        assert opened.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
        assert opened.locator("main [role=alert]").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"n_layers": 0}, {"readout": "none"}], ids=str)
def test_what_a_model_lacks_is_said(look_into, visit, fields):
    network = make_network(FAMILIES["gpt2"].with_fields(fields), dtype=torch.float32).eval()
    inspector = look_into(Session(LanguageModel(network, TOKENIZER, {})))
    for name in PAGES:
        page = open_page(visit, inspector, name)
        assert page.locator("main [role=alert]").count() == 0
        said = "This model has no readout" if "readout" in fields else "This network has no layers"
        assert (said in page.inner_text("main")) == (name == "stream" if "readout" in fields else name != "stream")


def test_a_rank_has_all_of_its_digits(look_into, visit):
    network = make_network(Architecture(n_vocab=5000, n_ctx=8, d_model=8, n_layers=1, mlp=MLP(d_ff=8)))
    model = LanguageModel(network, IdTokenizer(5000), {})
    rank = model.trace("1 2 3 4").lens(mid=False).rank[1, 0]
    pos = int(rank.argmax())
    assert rank[pos] >= 1000
    page = open_page(visit, look_into(Session(model, name="ids")), "stream", a="1+2+3+4", pos=pos, point=1, stat="rank")
    said = f"{int(rank[pos]) + 1:,}"
    assert page.inner_text("[data-name='lens.rank']") == said
    assert f"rank of the next token {said}" in page.inner_text("figcaption >> nth=0")
