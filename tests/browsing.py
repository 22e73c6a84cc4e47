"""A browser for tests of pages; a complaint of a page's script and a request of another server fail the test."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

#: a desktop and a telephone, in CSS pixels
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """A browser without a window; one event loop at a time, so it belongs to one module."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, *, allowed: str = r"(?!)", before: str = "") -> Iterator[Callable[..., Page]]:
    """A function that opens an address in a new window of one of SIZES and a colour scheme.

    The script `before` runs before those of the page. At the end, a complaint or a foreign request of any of the pages
    fails, but for what matches `allowed`.
    """
    contexts = []

    def open_page(url: str, size: str = "wide", scheme: str = "light") -> Page:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append((context, complaints := []))
        if before:
            context.add_init_script(before)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a busy machine is no fault of the page
        origin = re.match(r"http://[^/#]+", url)[0]
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda asked: None if asked.url.startswith(origin) else complaints.append(asked.url))
        page.goto(url)
        return page

    yield open_page
    for context, complaints in contexts:
        context.close()
        # a message of its own: pytest shows the values of an assert in test modules alone
        assert not (left := [text for text in complaints if not re.search(allowed, text)]), left
