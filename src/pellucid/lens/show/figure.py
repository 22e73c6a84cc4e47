"""One self-contained HTML page: data, style and script in one file that loads nothing from the network."""

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, singledispatch
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

#: the modules of a saved page, each after those that it imports; all but the last are shared with the inspector
SCRIPTS = (
    "preact.js",
    "common.js",
    "terms.js",
    "parts.js",
    "charts.js",
    "matrix.js",
    "plane.js",
    "trace_panels.js",
    "saved.js",
)
#: style sheets; saved.css alone is not shared with the inspector
STYLES = ("common.css", "look.css", "saved.css", "common_print.css")
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
<script type="text/plain" id="figure">{data}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""


PanelName = Literal["tokens", "attention", "lens", "attribution", "heads"]


class Figure:
    """A picture of panels, shown by itself in a notebook and written to a file by `save`.

    title, facts  the heading, and pairs of a word and a value below it
    tokens        the tokens at the positions of the panels
    vocabulary    the size of the vocabulary; position, head: the initial selection
    height        of the frame in a notebook, in pixels
    panels        plain data, each with the `kind` that the script draws; arrays as the inspector's server sends them
    """

    def __init__(
        self,
        title: str,
        panels: Sequence[Mapping[str, Any]],
        *,
        tokens: Sequence[str] = (),
        facts: Sequence[tuple[str, str]] = (),
        vocabulary: int = 0,
        position: int = 0,
        head: tuple[int, int] = (0, 0),
        height: int = 640,
    ):
        self.title, self.panels, self.tokens, self.facts = title, list(panels), list(tokens), list(facts)
        self.vocabulary, self.position, self.head, self.height = vocabulary, position, head, height

    @property
    def data(self) -> dict[str, Any]:
        """The data of the script."""
        return {
            "title": self.title,
            "facts": self.facts,
            "tokens": self.tokens,
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
            data=embedded(self.data),
            script=script(),
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


def embedded(value: Any) -> str:
    """JSON as compressed bytes in base64, which no text in it can make markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # without a time in its header, the same figure gives the same bytes
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def asset(name: str) -> str:
    """The text of a file of this module's folder, or of one that pages share."""
    folder = ("lens", "show") if name.startswith("saved") else ("web",)
    return resources.files("pellucid").joinpath(*folder, name).read_text(encoding="utf-8").strip()


@cache
def script() -> str:
    """The modules of a page as one: without imports and exports, in one scope but for the foreign one."""
    preact, *own = [asset(name) for name in SCRIPTS]
    body, _, exported = preact.rpartition("export{")
    names = re.findall(r"(\w+) as (\w+)", exported)
    pairs = ",".join(f"{name}:{inner}" for inner, name in names)
    scoped = f"const {{{','.join(name for _, name in names)}}}=(()=>{{{body}return{{{pairs}}}}})();"
    passing = re.compile(r"^(import [^;]*;\n|export \{[^;]*;\n|export )", re.MULTILINE)
    return "\n".join([scoped, *(passing.sub("", module) for module in own)])
