"""What the inspector's pages cost in a browser: 12 layers of 12 heads on 1,000 tokens, random weights.

    python -m benchmarks.inspector

For each page: the milliseconds until something is painted (first contentful paint) and from a click on a token to the
first change on the screen, the seconds until every panel has its numbers, and for each canvas the milliseconds of
script that one movement of the pointer takes (Chromium's profiler, everything but idle time and the browser's own
painting). Needs Chromium and playwright. The first visit of a page includes the model's work; the second finds the
trace kept. The model with known answers is visited too: it shows what the page itself costs.
"""

import argparse
import shutil
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from playwright.sync_api import Page, sync_playwright

from pellucid.architecture import Architecture, Attention
from pellucid.language_model import LanguageModel, known_answer
from pellucid.look.app import make_look_app
from pellucid.look.session import Session
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.serve.server import server_config
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

CANVASES = {
    "read": [],
    "tokens": [],
    "attention": ["thumbnails", "attention"],
    "stream": ["lens", "norms"],
    "circuits": ["heads", "composition", "cloud"],
}
MOVEMENTS = 60
MOVE = """async ([name, n]) => {
  const canvas = document.querySelector(`canvas[data-name=${name}]`);
  canvas.scrollIntoView({ block: "center" });
  const box = canvas.getBoundingClientRect();
  for (let k = 0; k < n; k++) {
    const x = box.left + box.width * (0.15 + 0.7 * k / n), y = box.top + box.height * (0.3 + 0.4 * k / n);
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done, 0));
  }
}"""
#: milliseconds from a click on a token to the first frame in which something has changed
CLICK = """(at) => new Promise((done) => {
  const chips = document.querySelectorAll(".prompt .chips button"), chip = chips[at % chips.length];
  const begun = performance.now();
  const watch = new MutationObserver(() => {
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun), 0));
  });
  watch.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  chip.click();
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
NOT_SCRIPT = {"(idle)", "(program)", "(root)"}


@contextmanager
def running(model: LanguageModel) -> Iterator[str]:
    """The address of an inspector of this model."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(server_config(make_look_app(Session(model, name="benchmark"))))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


def visit(page: Page, url: str) -> float:
    """Seconds until no panel waits."""
    begun = time.perf_counter()
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("main .panel")
    for _ in range(3):
        page.wait_for_timeout(50)
        page.locator("main [role=status]").first.wait_for(state="detached")
    return time.perf_counter() - begun


def clicks(page: Page) -> list[float]:
    """Milliseconds from a click on a token until something has changed on the screen, in order."""
    times = []
    for at in (1, 4, 2, 5, 3):
        times.append(page.evaluate(CLICK, at))
        page.wait_for_timeout(300)
        page.locator("main [role=status]").first.wait_for(state="detached")
    return sorted(times)


def show_page(page: Page, name: str, address: str) -> None:
    """Two visits of a page, and clicks on it."""
    first, again, paint = visit(page, address), visit(page, address), page.evaluate(PAINT)
    times = clicks(page)
    print(
        f"{name}: painted after {paint:.0f} ms, complete after {first:.1f} s the first time, {again:.1f} s again; "
        f"a click shows after {times[len(times) // 2]:.0f} ms (at most {times[-1]:.0f})",
        flush=True,
    )


def script_per_movement(page: Page, canvas: str) -> float:
    """Milliseconds of script for one movement of the pointer over a canvas."""
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    page.evaluate(MOVE, [canvas, 10])
    profiler.send("Profiler.start")
    page.evaluate(MOVE, [canvas, MOVEMENTS])
    profile = profiler.send("Profiler.stop")["profile"]
    names = {node["id"]: node["callFrame"]["functionName"] for node in profile["nodes"]}
    spent = zip(profile["samples"], profile["timeDeltas"], strict=True)
    return sum(delta for node, delta in spent if names[node] not in NOT_SCRIPT) / 1000 / MOVEMENTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--pages", nargs="*", default=[*CANVASES], choices=[*CANVASES], help="of the large model")
    parser.add_argument("--no-known", action="store_true", help="leave out the model with known answers")
    arguments = parser.parse_args()
    n = arguments.tokens
    tokenizer = ByteTokenizer()
    sizes = {"n_vocab": tokenizer.n_vocab, "n_ctx": 1024, "d_model": 192, "n_layers": 12}
    network = initialise(Transformer(Architecture(**sizes, attention=Attention(n_heads=12))), 0).eval()
    text = ("the cat sat on the mat, and a dog ran by. " * 30)[:n]
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with running(LanguageModel(network, tokenizer, {})) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        for name in arguments.pages:
            show_page(page, name, f"{url}/#page={name}&a={urllib.parse.quote(text)}")
            for canvas in CANVASES[name]:
                print(f"    {canvas}: {script_per_movement(page, canvas):.2f} ms of script for a movement", flush=True)
        with running(known_answer()) as small:
            for name in () if arguments.no_known else (*CANVASES, "experiment", "training"):
                show_page(page, f"known answers, {name}", f"{small}/#page={name}")
        browser.close()


if __name__ == "__main__":
    main()
