"""One self-contained HTML page: data, style and script in one file that loads nothing from the network."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, singledispatch
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

SCRIPTS = (
    "common.js",
    "common_elements.js",
    "core.js",
    "tokens.js",
    "attention.js",
    "lens.js",
    "tables.js",
    "start.js",
)
#: style sheets; those that begin with common are shared with the server's pages and the report
STYLES = ("common.css", "page.css", "common_print.css")
#: the page makes no request, whatever a token's text is
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main id="page"><noscript>This figure is drawn by its own script, which this browser does not run.</noscript></main>
<script type="application/json" id="figure">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


PanelName = Literal["tokens", "attention", "lens", "attribution", "heads"]


class Figure:
    """A picture of panels, shown by itself in a notebook and written to a file by `save`.

    title, facts  the heading, and pairs of a word and a value below it
    tokens        the tokens at the positions of the panels; `words` the tokens that panels refer to by index
    source        the tokens of the encoder's input
    vocabulary    the size of the vocabulary; position, head: the initial selection
    height        of the frame in a notebook, in pixels
    panels        plain data, each with the `kind` that the script draws
    """

    def __init__(
        self,
        title: str,
        panels: Sequence[Mapping[str, Any]],
        *,
        tokens: Sequence[str] = (),
        source: Sequence[str] = (),
        facts: Sequence[tuple[str, str]] = (),
        words: Sequence[str] = (),
        vocabulary: int = 0,
        position: int = 0,
        head: tuple[int, int] = (0, 0),
        height: int = 640,
    ):
        self.title, self.panels, self.tokens, self.facts = title, list(panels), list(tokens), list(facts)
        self.source, self.words, self.vocabulary, self.position = list(source), list(words), vocabulary, position
        self.head, self.height = head, height

    @property
    def data(self) -> dict[str, Any]:
        """The data of the script."""
        return {
            "title": self.title,
            "facts": self.facts,
            "tokens": self.tokens,
            "source": self.source,
            "words": self.words,
            "vocabulary": self.vocabulary,
            "position": self.position,
            "head": self.head,
            "panels": self.panels,
        }

    @property
    def html(self) -> str:
        """The whole page."""
        return PAGE.format(
            policy=POLICY,
            title=html.escape(self.title),
            style="\n".join(asset(name) for name in STYLES),
            data=as_json(self.data),
            script="\n".join(asset(name) for name in SCRIPTS),
        )

    def save(self, path: str | Path) -> Path:
        """Write the page; an existing file is replaced."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8", newline="\n")
        return path

    def _repr_html_(self) -> str:
        # a frame separates the page's style from the notebook's
        page = html.escape(self.html, quote=True)
        style = f"width:100%;height:{self.height}px;border:0;resize:vertical"
        title = html.escape(self.title)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}" title="{title}"></iframe>'

    def __repr__(self) -> str:
        kinds = ", ".join(panel["kind"] for panel in self.panels)
        return f"Figure({self.title!r}: {kinds}); .save(path) writes it"


class ShowOptions(TypedDict, total=False):
    """The options of a picture; each kind of result takes those of its method `show`.

    panels, row, title  of a trace: the panels, the text of the batch, and the heading
    k                   of an attribution: the number of parts
    offset              of a head with rotary positions: the distance from query to key
    """

    panels: Sequence[PanelName]
    row: int
    title: str
    k: int
    offset: int | None


@singledispatch
def show(result: object, **options: Unpack[ShowOptions]) -> Figure:
    """The picture of a result: of a trace, an attribution, a patching, an ablation, heads, circuits, a composition.

    Raises TypeError for an object that has no picture, and for an option that its picture does not have.
    """
    raise TypeError(
        f"there is no picture of a {type(result).__name__}: pass a trace, or a result of attribute, why, patch, "
        "ablate, heads, circuits or compose"
    )


def as_json(value: Any) -> str:
    """Compact JSON that is safe inside a script element: no text in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    unsafe = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    for character, escaped in unsafe.items():
        text = text.replace(character, escaped)
    # lone surrogates cannot be written as UTF-8
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def asset(name: str) -> str:
    """The text of a file in this module's folder, or of one that pages share, a module, without import and export."""
    if name.startswith("common"):
        text = resources.files("pellucid").joinpath("web", name).read_text(encoding="utf-8")
        return re.sub(r"^(export |import .*\n)", "", text, flags=re.MULTILINE).strip()
    return resources.files("pellucid.lens.show").joinpath(name).read_text(encoding="utf-8").strip()
