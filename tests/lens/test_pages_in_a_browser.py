"""The page about a prompt as somebody uses it: what is chosen is in sight, on a wide screen and on a telephone."""

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
#: statements that run in the page, and what they use
DRIVER = """async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms)), box = (e) => {
    const { top, bottom, left, right } = e.getBoundingClientRect();
    return { top, bottom, left, right };
  };
  const section = (name) => document.querySelector(`section[aria-label="${name}"]`);
  await wait(100);
  %s
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Twelve blocks of twelve heads, on 60 tokens."""
    a = Architecture(n_vocab=97, n_ctx=64, d_model=24, n_layers=12).with_fields({"n_heads": 12})
    network = make_network(a, dtype=torch.float32)
    figure = inspect_page(trace(of_ids(network), draw_tokens(a, 1, 60)))
    return figure.save(tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def ask(browser, path):
    """Run statements in the page, on a screen of a size, and return what they return."""
    opened = []

    def run(size, script):
        width, height = SIZES[size]
        tab = browser.new_page(viewport={"width": width, "height": height})
        opened.append(tab)
        complaints = []
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]")
        found = tab.evaluate(DRIVER % script)
        assert not complaints
        return found

    yield run
    for tab in opened:
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", one_in(2, SIZES))
def test_a_chosen_head_is_in_sight_where_it_was_pressed(ask, size):
    """The last of 12 x 12: after a press, its pattern is in the window beside the pressed head, which has not moved."""
    found = ask(
        size,
        """
        const tiles = document.querySelector("canvas[data-name=thumbnails]"), wide = tiles.clientWidth / 12;
        const high = tiles.clientHeight / 12, head = () => {
          const { left, top } = tiles.getBoundingClientRect();
          return { left: left + 11 * wide, right: left + 12 * wide, top: top + 11 * high, bottom: top + 12 * high };
        };
        scrollBy(0, head().bottom - innerHeight + 10);
        await wait(100);
        const stood = head(), at = { clientX: stood.left + wide / 3, clientY: stood.top + high / 3, bubbles: true };
        tiles.dispatchEvent(new MouseEvent("click", at));
        await wait(200);
        return { stood, head: head(), picture: box(document.querySelector(".one canvas")),
          label: tiles.getAttribute("aria-label"), title: document.querySelector(".one h3").textContent,
          width: document.documentElement.scrollWidth, height: innerHeight };
        """,
    )
    assert found["label"] == "The patterns of 144 heads"
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
          below: button.closest("tr").nextElementSibling === detail, said: detail.textContent, height: innerHeight,
          width: document.documentElement.scrollWidth };
        button.click();
        await wait(100);
        return { ...result, closed: document.querySelector("tr.detail") === null,
          picked: document.querySelectorAll("tr.picked").length };
        """,
    )
    assert found["below"]
    assert found["open"] == "true"
    assert "Head 5 of block 7" in found["said"]
    assert "at 59 reads" in found["said"]
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
        const [frame, say] = [".frame", "figcaption"].map((part) => section("Logit lens").querySelector(part));
        const result = { left: frame.scrollLeft, said: say.textContent };
        const chips = document.querySelectorAll("button.chip");
        chips[59].click();
        await wait(200);
        const last = { left: frame.scrollLeft, most: frame.scrollWidth - frame.clientWidth, said: say.textContent };
        chips[2].click();
        await wait(200);
        return { ...result, last, third: { left: frame.scrollLeft, said: say.textContent } };
        """,
    )
    assert found["left"] == 0
    assert found["said"].startswith("layer 11 at 0: ")
    assert found["last"]["left"] > found["last"]["most"] - 500
    assert found["last"]["said"].startswith("layer 11 at 59: ")
    assert found["third"]["left"] < 200
    assert found["third"]["said"].startswith("layer 11 at 2: ")


@pytest.mark.slow
def test_the_theme_can_be_chosen(ask):
    """Colours of the page and of what is drawn change with the button, and back."""
    found = ask(
        "wide",
        """
        const colours = async () => {
          await wait(100);
          const pen = document.querySelector("canvas[data-name=thumbnails]").getContext("2d");
          const pixel = pen.getImageData(30, 3, 1, 1);
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
