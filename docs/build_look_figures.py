"""The pictures of docs/look.md and of the README: screenshots of the inspector on the model with known answers.

    python docs/build_look_figures.py [NAME ...]

needs a Chromium (chromium or google-chrome on PATH); it writes docs/figures/look_NAME.png.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from pellucid.language_model import known_answer

FIGURES = Path(__file__).resolve().parent / "figures"
A, B = "Rome is the capital of", "Paris is the capital of"
REPEATED = "Anna Smith met Ivan Lee. Anna"


def address(page: str, **state: str) -> str:
    """The part of the address behind the #."""
    return f"#page={page}&" + "&".join(f"{name}={value.replace(' ', '+')}" for name, value in state.items())


#: by name: the page's state, what is waited for, and the height of the picture
PICTURES = {
    "attention": (address("attention", a=REPEATED, layer="1", head="0"), "main section", 1180),
    "experiment": (address("experiment", a=A, b=B), "[data-done='10'][data-total='10']", 900),
}


def photograph(tab: Page, url: str, name: str) -> Path:
    """Open one page, wait for its numbers, and take its picture."""
    state, waited_for, height = PICTURES[name]
    tab.set_viewport_size({"width": 1080, "height": height})
    tab.goto("about:blank")
    tab.goto(f"{url}/{state}")
    tab.wait_for_selector("html[data-ready]:not([data-ready=''])")
    tab.wait_for_selector(waited_for)
    tab.wait_for_load_state("networkidle")
    tab.wait_for_timeout(1500)
    path = FIGURES / f"look_{name}.png"
    tab.screenshot(path=path)
    return path


def main(names: list[str]) -> None:
    """Take the pictures of these pages, all unless named."""
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        raise SystemExit("no Chromium is installed: install chromium or google-chrome")
    inspector = known_answer().look()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(color_scheme="light").new_page()
        for name in names or PICTURES:
            path = photograph(tab, inspector.url.partition("#")[0].rstrip("/"), name)
            print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")
        browser.close()
    inspector.close()


if __name__ == "__main__":
    main(sys.argv[1:])
