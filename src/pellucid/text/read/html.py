"""Extract the text of an HTML page: no tags, scripts or styles, one line for each block."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from pellucid.text.read.chunks import DocumentError, TextChunk, piece_of_text

#: elements whose content is not shown
HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "object", "iframe"))
#: elements that begin and end a line; those of PARAGRAPHS also leave an empty line
LINES = (
    "address article aside body br caption dd div dt fieldset figcaption footer form header hr html legend li main nav "
    "option section summary tbody tfoot thead title tr"
)
PARAGRAPHS = "blockquote details dl figure h1 h2 h3 h4 h5 h6 head ol p pre table ul"
BREAKS = {str(tag): "\n" for tag in LINES.split()} | {str(tag): "\n\n" for tag in PARAGRAPHS.split()}
CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"[ \t\n\r\f]+")
#: characters of HTML between two yields, and the longest tag, comment or script
STEP, LONGEST = 1 << 16, 1 << 25


def read_html(pieces: Iterator[TextChunk], name: str = "the page") -> Iterator[TextChunk]:
    """The page's text in chunks. An unclosed tag hides nothing after the block that it is in.

    Raises DocumentError, with the name, for a tag, comment or script longer than LONGEST characters.
    """
    page = _Page()
    for piece in pieces:
        for start in range(0, len(piece.text), STEP):
            page.feed_closed(piece.text[start : start + STEP])
            if page.pending > LONGEST:
                raise DocumentError(
                    f"{name}: a tag, comment or script does not end for {LONGEST:,} characters, from line "
                    f"{page.getpos()[0]} on; close it"
                )
            if text := page.take():
                yield piece_of_text(text)
        if piece.replaced:
            yield TextChunk("", 0, piece.replaced)
    page.end()
    if text := page.take(last=True):
        yield piece_of_text(text)


class _Page(HTMLParser):
    """Collects text. White space becomes one space, except in <pre>; newlines separate blocks."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self._found: list[str] = []
        self._hidden: list[str] = []
        self._as_it_is = 0
        #: the newlines, or the space, to write before the next word; nothing precedes the first word
        self._gap, self._begun = "", False
        #: the input from a < without a following > on
        self._open: list[str] = []

    def feed_closed(self, text: str) -> None:
        """Feed the input up to the first < without a following >, which the parser would otherwise scan again every
        time.
        """
        closed = text.rfind(">") + 1
        if self._open and not closed:
            self._open.append(text)
            return
        opened = text.find("<", closed)
        opened = len(text) if opened < 0 else opened
        self.feed("".join(self._open) + text[:opened])
        self._open = [text[opened:]] if text[opened:] else []

    @property
    def pending(self) -> int:
        """The number of characters of a tag, comment or script that has not ended."""
        return len(self.rawdata) + sum(map(len, self._open))

    def end(self) -> None:
        """At the end of input, a < without a following > begins no tag."""
        if self._open:
            self.feed("".join(self._open).replace("<", "&lt;"))
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in HIDDEN:
            self._hidden.append(tag)
        elif tag == "body":  # a page that never ends its head
            self._hidden.clear()
        self._as_it_is += tag == "pre"
        self._border(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._border(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        self._as_it_is -= tag == "pre" and self._as_it_is > 0
        self._border(tag)

    def handle_data(self, data: str) -> None:
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
        self._gap = max(self._gap.strip(" "), BREAKS.get(tag, ""), key=len) or self._gap
        if tag in CELLS and "\n" not in self._gap:
            self._gap = "\t"
