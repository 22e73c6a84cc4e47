"""Pictures of the pages: what is drawn stays what somebody has looked at.

    python -m tests.look.test_pictures [NAME ...]

makes the pictures again, in tests/look/pictures. Look at each of them before it is committed.
"""

import base64
import shutil
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.browsing import running_browser, visiting
from tests.look.conftest import looking, ready

from pellucid.language_model import known_answer
from pellucid.look.session import Session

PICTURES = Path(__file__).parent / "pictures"
#: pixels across in a picture that is kept
WIDTHS = {"wide": 320, "narrow": 195}
#: the mean difference of a colour, and the share of pixels in which one differs by more than CLEARLY, from 0 to 255
MEAN, SHARE, CLEARLY = 1.0, 0.01, 24
TEXT = "&a=Anna+Smith+met+Ivan+Lee.+Anna"
STATES = {
    "read": f'#page=read&open=["embed","blocks.1","output"]{TEXT}',
    "tokens": f"#page=tokens{TEXT}",
    "attention": f"#page=attention&layer=1&head=0{TEXT}",
    "stream": f"#page=stream{TEXT}",
    "circuits": f"#page=circuits&layer=1&head=0{TEXT}",
    "experiment": "#page=experiment&a=Rome+is+the+capital+of&b=Paris+is+the+capital+of",
    "training": f"#page=training{TEXT}",
}
#: what is where depends on the size alone, and the colours on the scheme: each page has both in two pictures
NAMES = [f"{page}-{seen}" for page in STATES for seen in ("wide-light", "narrow-dark")]
#: true when nothing is waited for and the page keeps its height
STILL = """() => new Promise((done) => {
  const height = document.body.scrollHeight, waits = () => document.querySelector("[data-waiting]");
  setTimeout(() => done(!waits() && document.body.scrollHeight === height), 400);
})"""
#: the colours of a picture that is made smaller, so that the exact edges of letters do not matter
SHRINK = """async ([bytes, width]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${bytes}`;
  await image.decode();
  const height = Math.round((image.height * width) / image.width);
  const pen = new OffscreenCanvas(width, height).getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, 0, 0, width, height);
  return [height, Array.from(pen.getImageData(0, 0, width, height).data.filter((_, k) => k % 4 < 3))];
}"""


def photograph(browser: Browser, url: str, name: str) -> np.ndarray:
    """One page as it is drawn, made smaller: uint8 [height, width, 3]."""
    page_name, size, scheme = name.split("-")
    with visiting(browser) as open_page:
        tab = open_page(f"{url}/{STATES[page_name]}", size, scheme)
        ready(tab)
        tab.wait_for_load_state("networkidle")
        tab.wait_for_function(STILL)
        shot = tab.screenshot()
    helper = browser.new_page()
    height, colours = helper.evaluate(SHRINK, [base64.b64encode(shot).decode(), WIDTHS[size]])
    helper.close()
    return np.array(colours, dtype=np.uint8).reshape(height, WIDTHS[size], 3)


def with_few_colours(picture: np.ndarray) -> np.ndarray:
    """The picture with 32 values of each colour, which make small files; both that are compared have them."""
    return (picture & 0xF8) | 4


def write_png(path: Path, picture: np.ndarray) -> None:
    """A PNG of 8 bits for each of three colours, its rows unfiltered."""
    height, width, _ = picture.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], axis=1)
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)}
    chunks |= {b"IDAT": zlib.compress(rows.tobytes(), 9), b"IEND": b""}
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks.items():
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(content)


def read_png(path: Path) -> np.ndarray:
    """What `write_png` wrote."""
    content, at, data = path.read_bytes(), 8, b""
    width, height = struct.unpack(">II", content[16:24])
    while at < len(content):
        length = struct.unpack(">I", content[at : at + 4])[0]
        if content[at + 4 : at + 8] == b"IDAT":
            data += content[at + 8 : at + 8 + length]
        at += 12 + length
    return np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, -1)[:, 1:].reshape(height, width, 3)


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The mean difference of all colours, and the share of pixels that differ clearly in one of them."""
    apart = np.abs(a.astype(np.int16) - b.astype(np.int16))
    return float(apart.mean()), float((apart.max(-1) > CLEARLY).mean())


@pytest.fixture(scope="module")
def known():
    with looking(Session(known_answer(), name="known-answer")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_looks_as_it_did(known, browser, name):
    kept, now = read_png(PICTURES / f"{name}.png"), with_few_colours(photograph(browser, known.url, name))
    assert now.shape == kept.shape
    mean, share = difference(now, kept)
    assert mean <= MEAN, f"{name}: colours differ by {mean:.2f} on average; look at the page"
    assert share <= SHARE, f"{name}: {share:.1%} of the pixels differ; look at the page"


@pytest.mark.parametrize("name", NAMES)
def test_a_change_that_somebody_would_see_is_found(name):
    """A panel that is missing, a page that is shifted, and another colour are further away than the tolerances."""
    kept = read_png(PICTURES / f"{name}.png")
    blank, shifted = kept.copy(), np.roll(kept, 3, axis=0)
    blank[kept.shape[0] // 2 :] = kept[-1, -1]
    tinted = kept.copy()
    tinted[..., 2] += 16 if kept.mean() < 128 else 240  # 16 less, where colours are light
    assert difference(kept, kept) == (0, 0)
    for changed in (blank, shifted, tinted):
        mean, share = difference(kept, changed)
        assert mean > MEAN or share > SHARE


def make_pictures(names: list[str]) -> None:
    """Write the pictures of these names, all unless named."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no Chromium is installed: install chromium or google-chrome")
    PICTURES.mkdir(exist_ok=True)
    with looking(Session(known_answer(), name="known-answer")) as running, running_browser(program) as browser:
        for name in names or NAMES:
            picture = photograph(browser, running.url, name)
            write_png(PICTURES / f"{name}.png", with_few_colours(picture))
            print(f"{name}: {(PICTURES / f'{name}.png').stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    make_pictures(sys.argv[1:])
