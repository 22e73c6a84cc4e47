"""Extract the text of an HTML page: no tags, scripts or styles, one line for each block.

The page is parsed by libxml2 (lxml), which divides it into tags and text as browsers do (WHATWG HTML, 13.2.5).
"""

import logging
import re
from collections.abc import Iterator, Mapping

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from pellucid.text.read.chunks import DocumentError, TextChunk, piece_of_text
from pellucid.text.read.decompress import import_data_extra

#: the parts of a page that can be read: all that a reader sees, or the main text
HTML_PARTS = ("all", "main")
#: elements whose content is not shown; that of <object> is shown where the object cannot be
HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "iframe"))
#: elements that end an unclosed <svg> (WHATWG HTML, 13.2.6.5), and those of it that hold HTML
BREAKOUT = (
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strike strong sub sup table tt u ul var"
)
BREAKOUT_TAGS = frozenset(BREAKOUT.split())
HTML_IN_SVG = frozenset(("foreignobject", "desc", "title"))
#: elements that begin and end a line; those of PARAGRAPHS also leave an empty line
LINES = (
    "address article aside body br caption dd div dt fieldset figcaption footer form head header hr html legend li "
    "main nav option section summary tbody tfoot thead title tr"
)
PARAGRAPHS = "blockquote details dl figure h1 h2 h3 h4 h5 h6 ol p pre table ul"
BREAKS = {str(tag): "\n" for tag in LINES.split()} | {str(tag): "\n\n" for tag in PARAGRAPHS.split()}
CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"[ \t\n\r\f]+")
#: characters of HTML between two yields
STEP = 1 << 16
#: characters of the longest tag or comment
LONGEST_TAG = 1 << 25
#: the most elements inside one another
DEEPEST = 1 << 12


def read_html(pieces: Iterator[TextChunk], name: str = "the page") -> Iterator[TextChunk]:
    """The page's text in chunks.

    Raises DocumentError, with the name, for a tag or comment longer than LONGEST_TAG characters, and for more than
    DEEPEST elements inside one another, which take a time that grows with their square. A script or style that is not
    closed hides the rest of the page, as in browsers.
    """
    if etree.LIBXML_VERSION < (2, 14):
        version = ".".join(map(str, etree.LIBXML_VERSION))
        raise DocumentError(f"{name}: pages need lxml with libxml2 2.14, not {version}: pip install 'lxml>=6'")
    page = _Page()
    parser = etree.HTMLParser(target=page, huge_tree=True)
    waiting, line = 0, 1
    parser.feed("<!doctype html>")
    for piece in pieces:
        for start in range(0, len(piece.text), STEP):
            step = piece.text[start : start + STEP]
            parser.feed(step)
            waiting = 0 if page.moved else waiting + len(step)
            if waiting > LONGEST_TAG:
                raise DocumentError(
                    f"{name}: a tag or comment does not end for {LONGEST_TAG:,} characters, from line {line} on; "
                    "close it"
                )
            if page.deepest > DEEPEST:
                raise DocumentError(f"{name}: more than {DEEPEST:,} elements are open inside one another; close them")
            line += step.count("\n") if page.moved else 0
            page.moved = False
            if text := page.take():
                yield piece_of_text(text)
        if piece.replaced:
            yield TextChunk("", 0, piece.replaced)
    parser.close()
    if text := page.take(last=True):
        yield piece_of_text(text)


def main_text_of(page: str, name: str) -> str:
    """The main text of a page, a line for each paragraph, without menus, banners, comments and footers, by trafilatura;
    "" where no part of the page is clearly that. Raises DocumentError without the package.
    """
    trafilatura = import_data_extra("trafilatura", f"the main text of {name}")
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it warns of every page without a main text
    text = trafilatura.extract(page, include_comments=False)
    return f"{text}\n" if text else ""


class _Page:
    """Collects text. White space becomes one space, except in <pre>; newlines separate blocks."""

    def __init__(self) -> None:
        self._found: list[str] = []
        #: the open elements, and the positions of those among them that hide their content
        self._open: list[str] = []
        self._hidden: list[int] = []
        self._as_it_is = 0
        #: the newlines, or the space, to write before the next word; nothing precedes the first word
        self._gap, self._begun = "", False
        #: whether the parser passed a tag, text or comment since this was last False
        self.moved = False
        self.deepest = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.moved = True
        if tag == "body":  # a page that never ends its head
            self._hidden.clear()
        while tag in BREAKOUT_TAGS and self._hidden and self._open[self._hidden[-1]] == "svg":
            self._hidden.pop()
        if tag in HIDDEN or (tag in HTML_IN_SVG and self._hidden):
            self._hidden.append(len(self._open))
        self._open.append(tag)
        self.deepest = max(self.deepest, len(self._open))
        self._as_it_is += tag == "pre"
        self._border(tag)

    def end(self, tag: str) -> None:
        self.moved = True
        self._open.pop()
        if self._hidden and self._hidden[-1] == len(self._open):
            self._hidden.pop()
        self._as_it_is -= tag == "pre"
        self._border(tag)

    def comment(self, text: str) -> None:
        self.moved = True

    def close(self) -> None:
        pass

    def data(self, data: str) -> None:
        self.moved = True
        if self._hidden:
            return
        if self._as_it_is:
            self._write(data)
            return
        words = _SPACE.sub(" ", data)
        if words.startswith(" ") and not self._gap:
            self._gap = " "
        if words.strip(" "):
            self._write(words.strip(" "))
            self._gap = " " if words.endswith(" ") else ""

    def take(self, last: bool = False) -> str:
        """The text collected since the last call; the last chunk ends with a newline."""
        text = "".join(self._found) + ("\n" if last and self._begun else "")
        self._found.clear()
        return text

    def _write(self, text: str) -> None:
        self._found.append((self._gap if self._begun else "") + text)
        self._gap, self._begun = "", True

    def _border(self, tag: str) -> None:
        if self._hidden:
            return
        if tag in BREAKS:
            self._gap = max(self._gap.strip(" \t"), BREAKS[tag], key=len)
        if tag in CELLS and "\n" not in self._gap:
            self._gap = "\t"
