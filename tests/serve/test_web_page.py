"""The page at `/` as somebody uses it, in a browser, and as the files it is."""

import html
import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import resources
from pathlib import Path

import httpx
import openai
import pytest
import torch
from playwright.sync_api import Locator, Page
from tests.browsing import SIZES, visiting
from tests.serve.conftest import RunningServer, serving, small_network

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.language_model import LanguageModel
from pellucid.model import Transformer
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.opening import EngineOptions, engine_for
from pellucid.serve.page_routes import PAGE_PATHS
from pellucid.text.chat_template import CHATML_MARKERS, ChatTemplate
from pellucid.text.read.conversations import read_conversations
from pellucid.text.tokenizers.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer
from some_cases import one_in

KEY = "a key of its own"
MARKUP = "<script>window.ran=1</script>"
PICTURE = " <img src=x onerror=window.ran=1>"


@pytest.fixture(scope="module")
def web() -> Iterator[RunningServer]:
    """A model whose vocabulary has whole elements of HTML."""
    tokenizer = BPETokenizer.train([MARKUP, PICTURE] * 200, 320, "none")
    torch.manual_seed(0)
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=64, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    network = Transformer(a).double().eval()
    with torch.no_grad():
        network.embed.token.weight.mul_(0.6)
    with serving(BatchingEngine(network, tokenizer, max_rows=4, max_tokens=10**6)) as running:
        yield running


def serving_conversations(
    web: RunningServer, n_ctx: int, max_tokens: int | None = None
) -> AbstractContextManager[RunningServer]:
    """A model with the tokenizer of `web` and a chat template."""
    tokenizer = web.engine.tokenizer.with_special(*CHATML_MARKERS)
    torch.manual_seed(0)
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=n_ctx, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    network = Transformer(a).double().eval()
    return serving(BatchingEngine(network, tokenizer, max_tokens=max_tokens), template=ChatTemplate())


@pytest.fixture
def visit(browser):
    """Open the page of a server."""
    # the browser itself names answers of status 400 and 401, which the page shows in its own way
    with visiting(browser, allowed="status of 40[01]") as open_page:
        yield open_page


def write(page: Page, prompt: str, **options: object) -> None:
    """Fill the form, press the button, and wait for the end."""
    page.wait_for_selector("html[data-ready]")
    for name, value in {"prompt": prompt, "seed": 5, "max-tokens": 12, **options}.items():
        page.fill(f"#{name}", str(value))
    page.click("#send")
    page.wait_for_selector("#status:has-text('tokens written')")


def pieces(page: Page, box: str) -> list[str]:
    """The texts of a box's tokens but special ones; characters that cannot be seen are themselves again."""
    texts = page.locator(f"{box} .token:not(.special)").evaluate_all(
        """(tokens) => tokens.map((token) => {
          const copy = token.cloneNode(true);
          for (const mark of copy.querySelectorAll("[aria-hidden]")) mark.remove();
          return copy.textContent;
        })"""
    )
    for mark, character in {"\u2192": "\t", "\u240d": "\r"}.items():
        texts = [text.replace(mark, character) for text in texts]
    return [re.sub(r"\\u(00[0-9a-f]{2})", lambda hidden: chr(int(hidden[1], 16)), text) for text in texts]


def test_the_page_is_plain_files_without_inline_script():
    names = [path.removeprefix("/page/") for path in PAGE_PATHS if path != "/"]
    folder = resources.files("pellucid.serve").joinpath("page")
    assert {file.name for file in folder.iterdir()} == {*names} - {"common.css", "common.js"}
    for name in names:
        room = folder if not name.startswith("common") else resources.files("pellucid").joinpath("web")
        text = room.joinpath(name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        fetching, building = ("http:", "https:", "//cdn", "@import", " url("), ("eval(", "document.write")
        for way in (*fetching, *building, "innerHTML", "outerHTML", "insertAdjacent"):
            assert way not in text, (name, way)
    markup = folder.joinpath("index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", markup, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=", markup)


def test_the_files_need_no_key_and_say_what_may_run():
    engine = BatchingEngine(small_network(), ByteTokenizer())
    with serving(engine, key=KEY) as guarded, httpx.Client(base_url=guarded.url) as c:
        for path in PAGE_PATHS:
            answer = c.get(path)
            assert answer.status_code == 200, path
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
        assert c.get("/page/main.js").headers["content-type"].startswith("text/javascript")
        assert c.get("/page/another").status_code == 401
        assert c.get("/page/..%2Fengine.py").status_code == 401
        assert c.get("/page/another", headers={"Authorization": f"Bearer {KEY}"}).status_code == 404
        assert c.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_a_text_is_written_on_from_and_branches(web, visit):
    """Two continuations are those of the interface; an alternative has its probability, and is written on from."""
    page, prompt = visit(web.url), f"a{MARKUP}né"
    write(page, prompt, samples=2)
    with openai.OpenAI(base_url=f"{web.url}/v1", api_key="none") as client:
        answer = client.completions.create(model="small", prompt=prompt, max_tokens=12, seed=5, n=2, logprobs=8)
    written = [pieces(page, f".samples section:nth-child({i})") for i in (1, 2)]
    assert ["".join(texts) for texts in written] == [c.text for c in answer.choices]
    # the two bytes of é are one piece, and nothing was expected before the first token
    assert pieces(page, ".given")[-2:] == ["n", "é"]
    page.fill("#max-tokens", "1")
    page.fill("#samples", "1")
    page.click("#send")
    page.wait_for_selector("#status:has-text('1 token written')")
    assert page.inner_text(".samples .head .quiet").startswith("1 token, ")
    write(page, prompt, samples=2)
    tokens = page.locator(".samples section:nth-child(1) .token")
    colours = tokens.evaluate_all("(tokens) => tokens.map((t) => t.style.backgroundColor)")
    assert len({*colours}) > 3

    first = answer.choices[0].logprobs
    tokens.first.hover()
    page.wait_for_selector("#alternatives:not([hidden])")
    rows = page.locator("#alternatives .number").all_inner_texts()
    likeliest = max(first.top_logprobs[0].values())
    assert rows[0] == f"{100 * 2.718281828**likeliest:.1f} %"
    assert len(rows) == len(first.top_logprobs[0])

    allowed = page.locator("#alternatives button:not([disabled])")
    chosen = allowed.first.text_content().replace("\u00b7", " ")
    assert not {*chosen} & {*"\u2192\u240d\u21b5\\"}, "choose another seed: this alternative cannot be seen"
    allowed.first.click()
    assert page.input_value("#prompt") == prompt + chosen
    assert page.locator("#alternatives").is_hidden()
    page.wait_for_selector("#status:has-text('tokens written')")
    assert "".join(pieces(page, ".given")) == prompt + chosen
    page.click("#back")
    assert page.input_value("#prompt") == prompt
    assert pieces(page, ".samples section:nth-child(1)") == written[0]


def test_the_text_of_tokens_is_never_markup(web, visit):
    page = visit(web.url)
    write(page, MARKUP + PICTURE, temperature=0, stop="no such text")
    assert MARKUP + PICTURE in "".join(pieces(page, ".given"))
    page.locator(".given .token").last.click()
    page.wait_for_selector("#alternatives:not([hidden])")
    for box in ("#results", "#alternatives"):
        assert page.locator(f"{box} script, {box} img").count() == 0
        assert "&lt;" in page.inner_html(box)
    assert page.evaluate("window.ran") is None
    assert html.escape(MARKUP) in page.inner_html(".given")


@pytest.mark.parametrize(("size", "scheme"), one_in(2, [("narrow", "dark"), ("wide", "light")]))
def test_the_page_fits_its_window_and_has_both_themes(web, visit, size, scheme):
    page = visit(web.url, size, scheme)
    write(page, f"{MARKUP} a b", samples=3)
    last = page.locator(".samples section:last-child .token").last
    last.click()
    box = page.locator("#alternatives").bounding_box()
    width = SIZES[size][0]
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    side_by_side = page.locator(".samples section").evaluate_all("(all) => new Set(all.map((s) => s.offsetTop)).size")
    assert side_by_side == (1 if size == "wide" else 3)

    def colours() -> list[str]:
        return [page.evaluate("getComputedStyle(document.body).backgroundColor"), last.evaluate("(t) => t.style.color")]

    before = colours()
    page.keyboard.press("Escape")
    page.click(".theme")
    page.wait_for_timeout(60)
    assert page.evaluate("document.documentElement.dataset.theme") != scheme
    assert colours()[0] != before[0]


def test_everything_is_done_with_the_keyboard(web, visit):
    page = visit(web.url)
    page.wait_for_selector("html[data-ready]")
    page.focus("#prompt")
    page.keyboard.type("ab")
    page.fill("#max-tokens", "6")
    page.fill("#seed", "1")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#status:has-text('tokens written')")
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        # focus is seen wherever it is
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", seen
        if seen.count("token") == 2:
            break
    assert {"temperature", "top-p", "samples", "seed", "stop", "send", "curl", "python"} <= {*seen}
    page.keyboard.press("ArrowRight")
    assert page.locator("#alternatives").is_visible()
    assert page.locator(".samples .token").nth(1).evaluate("(t) => t === document.activeElement")
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('alternatives').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert page.locator("#alternatives").is_hidden()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert len(page.input_value("#prompt")) > 2
    assert page.evaluate("document.activeElement.id") == "back"


@pytest.mark.slow
def test_an_answer_can_be_stopped_and_a_refusal_is_shown(web, visit):
    page = visit(web.url)
    page.wait_for_selector("html[data-ready]")
    page.fill("#max-tokens", "1000000")
    page.fill("#temperature", "0")
    page.click("#send")
    page.locator(".samples .token").nth(1).wait_for()
    page.click("#halt")
    page.wait_for_selector("#status:has-text('Stopped')")
    for _ in range(200):
        if not web.engine.busy:
            break
        time.sleep(0.02)
    assert not web.engine.busy
    assert page.locator("#halt").is_hidden()
    page.fill("#prompt", "x y" * 200)
    page.click("#send")
    page.wait_for_selector("#error:has-text('this model\\'s context is 64')")


@pytest.mark.slow
def test_a_server_with_a_key_asks_for_it(visit):
    engine = BatchingEngine(small_network(), ByteTokenizer())
    with serving(engine, key=KEY) as guarded:
        page = visit(guarded.url)
        for given, asked in (("another", "This server asks for a key"), (KEY, "That key is not the server's")):
            page.wait_for_selector(f'#key-title:has-text("{asked}")')
            assert page.locator("#ask").is_hidden()
            page.fill("#key", given)
            page.keyboard.press("Enter")
        write(page, "ab")
        assert page.evaluate("Object.values(sessionStorage)") == [KEY]
        assert page.evaluate("localStorage.length") == 0
        page.click("#curl")
        page.wait_for_selector("#status:has-text('Copied')")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert KEY not in copied
        assert '"Authorization: Bearer $PELLUCID_API_KEY"' in copied
        page.reload()
        page.wait_for_selector("html[data-ready]")
        page.click("#forget")
        assert page.locator("#ask").is_hidden()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_conversation_is_held_and_branches(web, visit, capsys):
    """Answers are those of the interface, also to a second message and after a branch; the first one counts on."""
    with serving_conversations(web, n_ctx=256) as chatty:
        client = openai.OpenAI(base_url=f"{chatty.url}/v1", api_key="none")

        def answers(messages: list, n: int = 1, **options: object) -> list[str]:
            given = {"model": "small", "messages": messages, "n": n, "seed": 5, "max_tokens": 8, "stop": "zz"}
            answer = client.chat.completions.create(**given, extra_body=options)
            return [choice.message.content for choice in answer.choices]

        def said() -> list[str]:
            every = pieces(page, ".samples section:nth-child(1)"), pieces(page, ".samples section:nth-child(2)")
            return ["".join(texts) for texts in every]

        page = visit(chatty.url)
        page.wait_for_selector("html[data-ready]")
        page.check("input[value=chat]")
        for name, value in {"seed": 5, "max-tokens": 8, "samples": 2, "stop": "zz", "system": "Be brief."}.items():
            page.fill(f"#{name}", str(value))
        messages = [{"role": "system", "content": "Be brief."}]
        for message in ("Good morning", MARKUP):
            page.fill("#message", message)
            page.click("#send")
            page.wait_for_selector("#status:has-text('tokens written')")
            page.wait_for_selector("#halt", state="hidden")
            messages.append({"role": "user", "content": message})
            assert said() == answers(messages, 2)
            messages.append({"role": "assistant", "content": said()[0]})
        assert page.locator("#results script").count() == 0

        page.fill("#samples", "1")
        page.locator(".samples .token").nth(1).click()
        allowed = page.locator("#alternatives button:not([disabled])")
        chosen = allowed.last.text_content().replace("\u00b7", " ")
        first = pieces(page, ".samples section:nth-child(1)")[0]
        allowed.last.click()
        page.wait_for_selector(".begun")
        page.wait_for_selector("#halt", state="hidden")
        begun = [*messages[:-1], {"role": "assistant", "content": first + chosen}]
        assert said()[0] == answers(begun, continue_final_message=True)[0]
        page.click("#python")
        page.wait_for_selector("#status:has-text('Python')")
        code, names = page.evaluate("navigator.clipboard.readText()"), {}
        exec(code, names)
        names["client"].close()
        assert names["answer"].choices[0].message.content == said()[0]
        page.click("#back")
        assert page.locator(".begun").count() == 0
        page.click("#afresh")
        assert page.locator("#results *").count() == 0
        client.close()


def test_a_new_conversation_forgets_an_answer_that_is_being_written(web, visit):
    with serving_conversations(web, n_ctx=64, max_tokens=10**6) as chatty:
        page = visit(chatty.url)
        page.wait_for_selector("html[data-ready]")
        page.check("input[value=chat]")
        for name, value in {"message": "First", "max-tokens": 1000000, "temperature": 0}.items():
            page.fill(f"#{name}", str(value))
        page.click("#send")
        page.locator(".samples .token").nth(1).wait_for()
        page.click("#afresh")
        page.wait_for_selector("#halt", state="hidden")
        page.fill("#max-tokens", "4")
        page.fill("#message", "Second")
        with page.expect_request("**/v1/chat/completions") as asked:
            page.click("#send")
        assert [message["content"] for message in asked.value.post_data_json["messages"]] == ["Second"]
        page.wait_for_selector("#halt", state="hidden")


def hold_conversation(page: Page, *messages: str) -> list[dict[str, str]]:
    """Start to converse, send messages, and return all messages with their answers, as the last request had them."""
    page.wait_for_selector("html[data-ready]")
    page.check("input[value=chat]")
    page.fill("#max-tokens", "6")
    for message in messages:
        page.fill("#message", message)
        with page.expect_request("**/v1/chat/completions") as asked:
            page.click("#send")
        page.wait_for_selector("#status:has-text('tokens written')")
        page.wait_for_selector("#halt", state="hidden")
    answer = "".join(pieces(page, ".samples section"))
    return [*asked.value.post_data_json["messages"], {"role": "assistant", "content": answer}]


def exported(page: Page, row: Locator, name: str) -> str:
    """The file that a button of a stored conversation gives."""
    with page.expect_download() as given:
        row.get_by_role("button", name=name).click()
    return Path(given.value.path()).read_text(encoding="utf-8")


def test_conversations_are_stored_in_the_browser(web, visit, tmp_path):
    """They are there after the page is left, go on where they ended, are exported, and are deleted."""
    with serving_conversations(web, n_ctx=256) as chatty:
        page = visit(chatty.url)
        page.wait_for_selector("html[data-ready]")
        page.check("input[value=chat]")
        assert page.locator("#stored").is_hidden()  # there are none
        page.fill("#system", "Be brief.")
        first = hold_conversation(page, "Good morning", MARKUP)
        page.click("#afresh")
        hold_conversation(page, "Another\none")
        page.reload()
        page.wait_for_selector("html[data-ready]")
        page.check("input[value=chat]")
        assert page.inner_text("#stored-title") == "Conversations in this browser: 2"
        page.click("#stored-title")
        rows = page.locator("#stored li")
        assert rows.locator(".title").all_inner_texts() == ["Another one", "Good morning"]
        (tmp_path / "chats.jsonl").write_text(exported(page, rows.nth(1), "JSON"), encoding="utf-8")
        assert read_conversations(tmp_path).rows == [first]  # what train reads
        markdown = exported(page, rows.nth(1), "Markdown")
        turns = re.findall(r"^## (\w+)\n\n(.*?)\n(?=\n## |\Z)", markdown, re.DOTALL | re.MULTILINE)
        assert [{"role": role, "content": content} for role, content in turns] == first

        rows.nth(1).locator(".title").click()
        page.wait_for_selector("#results .turn")
        assert page.locator("#results .turn").count() == 4
        assert page.locator("#results script").count() == 0
        assert page.input_value("#system") == "Be brief."
        longer = hold_conversation(page, "And then?")
        assert longer[:-2] == first
        page.click("#stored-title")
        assert rows.locator(".title").all_inner_texts() == ["Good morning", "Another one"]
        assert json.loads(exported(page, rows.first, "JSON"))["messages"] == longer

        page.once("dialog", lambda dialog: dialog.dismiss())
        rows.first.get_by_role("button", name="Delete").click()
        assert rows.count() == 2
        page.once("dialog", lambda dialog: dialog.accept())
        rows.first.get_by_role("button", name="Delete").click()
        assert rows.locator(".title").all_inner_texts() == ["Another one"]
        assert page.locator("#results *").count() == 0  # what was deleted is not shown either
        assert page.evaluate("localStorage.length") == 1


def test_a_browser_that_stores_nothing_says_so(web, browser):
    refusal = """for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, { get() { throw new DOMException("refused", "SecurityError"); } });
    }"""
    with serving_conversations(web, n_ctx=256) as chatty, visiting(browser, before=refusal) as visit:
        page = visit(chatty.url)
        held = hold_conversation(page, "Good morning")
        assert page.inner_text("#stored-title") == "Conversations in this tab: 1"
        page.click("#stored-title")
        assert "lost when the tab is closed" in page.inner_text("#stored-note")
        assert json.loads(exported(page, page.locator("#stored li"), "JSON"))["messages"] == held


def test_a_full_browser_is_an_error_that_is_shown(web, visit):
    with serving_conversations(web, n_ctx=256) as chatty:
        page = visit(chatty.url)
        page.wait_for_selector("html[data-ready]")
        # 5,242,880 characters are what a browser gives to a page
        page.evaluate("localStorage.setItem('other', 'x'.repeat(5242870))")
        hold_conversation(page, "Good morning")
        assert "did not store this conversation" in page.inner_text("#error")
        assert page.locator(".samples .token").count()


def test_a_message_is_sent_by_enter_and_a_failure_leaves_no_empty_box(web, visit):
    """The composer stands below the conversation and keeps the focus; early turns give way to the context."""
    with serving_conversations(web, n_ctx=64, max_tokens=100) as chatty:
        page = visit(chatty.url)
        page.wait_for_selector("html[data-ready]")
        page.check("input[value=chat]")
        page.fill("#max-tokens", "101")
        page.fill("#message", "First")
        page.click("#send")
        page.wait_for_selector("#error:has-text('max_completion_tokens = 101')")
        assert page.inner_text("#error").startswith("max_completion_tokens")
        assert page.locator("#results *").count() == 0
        assert page.input_value("#message") == "First"
        page.fill("#max-tokens", "8")
        for n in (1, 2, 3):
            page.fill("#message", "")
            page.focus("#message")
            page.keyboard.type(f"Message {n}")
            page.keyboard.press("Shift+Enter")
            page.keyboard.type("of two lines")
            with page.expect_request("**/v1/chat/completions") as asked:
                page.keyboard.press("Enter")
            body = asked.value.post_data_json
            assert body["messages"][-1]["content"] == f"Message {n}\nof two lines"
            assert body["truncation"] == "auto"
            page.wait_for_selector("#status:has-text('tokens written')")
            page.wait_for_selector("#halt", state="hidden")
            assert page.input_value("#message") == ""
            assert page.evaluate("document.activeElement.id") == "message"
        assert "left out at the beginning: " in page.inner_text("#status")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        answer, composer = (page.locator(box).bounding_box() for box in (".samples", "#composer"))
        assert answer["y"] + answer["height"] <= composer["y"]
        shown = page.inner_text("#results")
        page.fill("#message", "x y " * 100)
        page.keyboard.press("Enter")
        page.wait_for_selector("#error:has-text('context')")
        assert page.inner_text("#results") == shown


def test_an_encoder_reads_the_given_text_and_an_alternative_changes_the_answer(visit):
    tokenizer, source = CharTokenizer.train(["a source"]), "a source"
    decoder = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=32, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    network = make_network(replace(decoder, encoder=decoder.with_fields({"attention.mask": "bidirectional"})))
    engine = engine_for(LanguageModel(network, tokenizer, {}), EngineOptions(max_tokens=100))
    with serving(engine) as pairs, openai.OpenAI(base_url=f"{pairs.url}/v1", api_key="none") as client:
        page, given = visit(pairs.url), {"model": "small", "max_tokens": 12, "seed": 18}
        write(page, source, seed=18)
        assert page.locator("#echo").is_hidden()
        first = pieces(page, ".samples section")
        assert "".join(first) == client.completions.create(prompt=source, **given).choices[0].text
        page.locator(".samples .token").nth(2).click()
        allowed = page.locator("#alternatives button:not([disabled])")
        begun = "".join(first[:2]) + allowed.last.text_content().replace("\u00b7", " ")
        with page.expect_request("**/v1/completions") as asked:
            allowed.last.click()
        body = asked.value.post_data_json
        assert (body["source"], body["prompt"]) == (source, begun)
        page.wait_for_selector("#status:has-text('tokens written')")
        assert page.locator(".begun").text_content() == begun
        said = client.completions.create(prompt=begun, extra_body={"source": source}, **given).choices[0].text
        assert "".join(pieces(page, ".samples section")) == said
        page.click("#python")
        page.wait_for_selector("#status:has-text('Python')")
        names = {}
        exec(page.evaluate("navigator.clipboard.readText()"), names)
        names["client"].close()
        assert names["answer"].choices[0].text == said
        page.click("#back")
        assert page.input_value("#prompt") == source
        assert pieces(page, ".samples section") == first


def test_the_answer_to_an_earlier_key_does_not_discard_a_later_one(visit):
    with serving(BatchingEngine(small_network(), ByteTokenizer()), key=KEY) as guarded:
        page, held = visit(guarded.url), []
        page.wait_for_selector("#key-form:not([hidden])")
        page.route("**/v1/models", lambda route: route.continue_() if held else held.append(route))
        for given in ("another", KEY):
            page.fill("#key", given)
            page.keyboard.press("Enter")
        page.wait_for_selector("html[data-ready]")
        with page.expect_response("**/v1/models"):
            held[0].continue_()
        page.wait_for_timeout(50)
        assert page.evaluate("Object.values(sessionStorage)") == [KEY]
        assert page.locator("#ask").is_visible()


def test_what_is_copied_gives_the_same_text(web, visit, capsys):
    """As Python it runs, and as curl its body asks for the same; quotes and line ends go through."""
    page, prompt = visit(web.url), """it's "so"\n\\ $HOME né"""
    write(page, prompt, seed="", stop="zz\\n")
    shown = "".join(pieces(page, ".samples"))
    page.click("#python")
    page.wait_for_selector("#status:has-text('Python')")
    code, names = page.evaluate("navigator.clipboard.readText()"), {}
    exec(code, names)
    names["client"].close()
    assert names["answer"].choices[0].text == prompt + shown
    assert capsys.readouterr().out == prompt + shown + "\n"
    page.click("#curl")
    page.wait_for_selector("#status:has-text('curl')")
    program, url, *arguments = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert (program, url) == ("curl", f"{web.url}/v1/completions")
    body = json.loads(arguments[arguments.index("-d") + 1])
    assert body["stop"] == ["zz\n"]
    assert httpx.post(url, json=body).json()["choices"][0]["text"] == prompt + shown
