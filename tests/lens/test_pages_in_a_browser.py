"""The page about a prompt as somebody uses it: what is chosen is in sight, on a wide screen and on a telephone."""

import html
import json
import re
import subprocess

import pytest
import torch
from tests.some_cases import one_in

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.lens import trace
from pellucid.lens.show.pages import inspect_page
from pellucid.text_model import of_ids
from running import draw_tokens

#: a desktop and a telephone, in CSS pixels
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--virtual-time-budget=6000", "--window-size=1300,1000"]
#: a frame of the size, in which the page runs and from which it reports
FRAME = """<!doctype html><pre id="result"></pre><iframe src="page.html" width="{}" height="{}"></iframe>
<script>addEventListener("message", (e) => {{ document.getElementById("result").textContent = e.data; }});</script>"""
#: no frame is painted here, so the next one comes at once
AT_ONCE = "<script>window.requestAnimationFrame = (f) => setTimeout(f, 0);</script>"
DRIVER = """<script>(async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms)), box = (e) => {
    const { top, bottom, left, right } = e.getBoundingClientRect();
    return { top, bottom, left, right };
  };
  const section = (name) => document.querySelector(`section[aria-label="${name}"]`);
  while (!document.documentElement.dataset.ready) await wait(20);
  let result;
  try { result = await (async () => { %s })(); } catch (error) { result = { error: String(error) }; }
  parent.postMessage(JSON.stringify(result), "*");
})();</script>"""


@pytest.fixture(scope="module")
def page():
    """Twelve blocks of twelve heads, on 60 tokens."""
    a = Architecture(n_vocab=97, n_ctx=64, d_model=24, n_layers=12).with_fields({"n_heads": 12})
    network = make_network(a, dtype=torch.float32)
    return inspect_page(trace(of_ids(network), draw_tokens(a, 1, 60))).html


@pytest.fixture
def ask(needs_browser, page, tmp_path):
    """Run statements in the page, on a screen of a size, and return what they return."""

    def run(size, script):
        driven = page.replace("<body>", f"<body>{AT_ONCE}").replace("</body>", f"{DRIVER % script}</body>")
        (tmp_path / "page.html").write_text(driven, encoding="utf-8")
        (tmp_path / "frame.html").write_text(FRAME.format(*SIZES[size]), encoding="utf-8")
        command = [
            needs_browser,
            *FLAGS,
            "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}",
            str(tmp_path / "frame.html"),
        ]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        found = json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', shown, re.S)[1]))
        assert "error" not in found, found
        return found

    return run


@pytest.mark.slow
@pytest.mark.parametrize("size", one_in(2, SIZES))
def test_a_chosen_head_is_in_sight_where_it_was_pressed(ask, size):
    """The last of 12 x 12: after a press, its pattern is in the window beside the pressed head, which has not moved."""
    found = ask(
        size,
        """
        const thumbs = document.querySelectorAll(".thumb"), head = thumbs[11 * 12 + 11], before = [];
        head.focus();
        await wait(100);
        const stood = box(head);
        head.click();
        await wait(200);
        return { stood, head: box(head), picture: box(document.querySelector(".stage canvas")), n: thumbs.length,
          title: document.querySelector(".stage h3").textContent, width: document.documentElement.scrollWidth,
          height: innerHeight };
        """,
    )
    assert found["n"] == 144
    assert found["title"] == "Head 11 of block 11"
    assert found["head"] == found["stood"]
    for name in ("head", "picture"):
        assert found[name]["top"] >= 0, name
        assert found[name]["bottom"] <= found["height"], name
    one, other = found["head"], found["picture"]
    apart = one["left"] >= other["right"] or one["right"] <= other["left"] or one["top"] >= other["bottom"]
    assert apart, "the picture covers the head"
    assert found["width"] <= SIZES[size][0]


@pytest.mark.parametrize("size", one_in(2, SIZES))
def test_a_head_of_the_table_shows_its_pattern_below_its_row(ask, size):
    found = ask(
        size,
        """
        const button = [...document.querySelectorAll("td button")].find((b) => b.textContent === "7.5");
        button.scrollIntoView({ block: "center" });
        button.click();
        await wait(300);
        const detail = document.querySelector("tr.detail"), open = button.getAttribute("aria-expanded");
        const result = { button: box(button), detail: box(detail), canvas: box(detail.querySelector("canvas")), open,
          below: button.closest("tr").nextSibling === detail, said: detail.textContent, height: innerHeight,
          width: document.documentElement.scrollWidth };
        button.click();
        await wait(100);
        return { ...result, closed: document.querySelector("tr.detail") === null,
          picked: document.querySelectorAll("tr.picked").length };
        """,
    )
    assert found["below"]
    assert found["open"] == "true"
    assert "Head 5 of block 7: what" in found["said"]
    for name in ("button", "canvas"):
        assert 0 <= found[name]["top"] < found[name]["bottom"] <= found["height"], name
        assert 0 <= found[name]["left"] < found[name]["right"] <= SIZES[size][0], name
    assert found["closed"]
    assert found["picked"] == 1
    assert found["width"] <= SIZES[size][0]


@pytest.mark.parametrize("size", one_in(2, SIZES))
def test_the_lens_opens_at_the_first_token(ask, size):
    """And follows a token that is chosen elsewhere, the last one too, which was chosen from the beginning."""
    found = ask(
        size,
        """
        const wide = section("Logit lens").querySelector(".wide"), say = section("Logit lens").querySelector(".say");
        const result = { left: wide.scrollLeft, said: say.textContent };
        const chips = document.querySelectorAll("button.chip");
        chips[59].click();
        await wait(100);
        const last = { left: wide.scrollLeft, most: wide.scrollWidth - wide.clientWidth, said: say.textContent };
        chips[2].click();
        await wait(100);
        return { ...result, last, third: { left: wide.scrollLeft, said: say.textContent } };
        """,
    )
    assert found["left"] == 0
    assert found["said"].startswith("block 11, position 0: ")
    assert found["last"]["left"] > found["last"]["most"] - 500
    assert found["last"]["said"].startswith("block 11, position 59: ")
    assert found["third"]["left"] < 200
    assert found["third"]["said"].startswith("block 11, position 2: ")


@pytest.mark.slow
def test_the_theme_can_be_chosen(ask):
    """Colours of the page and of what is drawn change with the button, and back."""
    found = ask(
        "wide",
        """
        const colours = async () => {
          await wait(100);
          const pixel = document.querySelector(".thumb canvas").getContext("2d").getImageData(9, 0, 1, 1);
          return { ground: getComputedStyle(document.body).backgroundColor, pixel: [...pixel.data],
            theme: document.documentElement.dataset.theme, button: document.querySelector(".theme").textContent };
        };
        const states = [await colours()];
        for (let k = 0; k < 2; k++) {
          document.querySelector(".theme").click();
          states.push(await colours());
        }
        return { states };
        """,
    )
    first, second, third = found["states"]
    assert first == third
    assert {first["theme"], second["theme"]} == {"light", "dark"}
    assert first["ground"] != second["ground"]
    assert first["pixel"] != second["pixel"]
    assert [state["button"] for state in (first, second)] == [f"{s['theme'].title()} theme" for s in (second, first)]
