"""What the site adds to Sphinx: mathematics as MathML, which browsers show by themselves, docstrings as reST, and help.

Nothing on the pages is fetched from outside: no script or font for mathematics is needed.
"""

import os
import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

#: a line that describes a parameter or field: its name or names, two blanks or more, the description
DESCRIBED = re.compile(r"^([\w*./\[\]()]+(?:, [\w*./\[\]()]+)*) {2,}(\S.*)$")


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_display_math, None))
    app.connect("env-get-outdated", lambda *_: ["commands"])  # their help may have changed
    app.connect("source-read", append_help)
    app.connect("autodoc-process-docstring", rewrite_docstring)
    app.connect("doctree-read", register_anchors)
    app.connect("build-finished", copy_lessons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def append_help(app: Any, docname: str, source: list[str]) -> None:
    """Put the help of all commands on the page Commands. Sphinx's event: the text is changed in place."""
    if docname == "commands":
        import build_commands

        source[0] += build_commands.sections()


def copy_lessons(app: Any, error: Exception | None) -> None:
    """Put the pages of `make lessons` beside the site's own, which link to them."""
    lessons = Path(os.environ.get("PELLUCID_LESSONS") or Path(__file__).resolve().parent.parent / "build" / "lessons")
    if error is None and app.builder.name == "html":
        pages = sorted(lessons.glob("*.html"))
        if not pages:
            raise FileNotFoundError(f"{lessons} has no lessons, which docs/lessons.md links to: run make lessons")
        (Path(app.outdir) / "lessons").mkdir(exist_ok=True)
        for page in pages:
            shutil.copy(page, Path(app.outdir) / "lessons" / page.name)


def register_anchors(app: Any, doctree: Any) -> None:
    """Let links find the `<a id="...">` that a page writes as HTML, as they find headings."""
    from docutils.nodes import raw

    for node in doctree.findall(raw):
        for anchor in re.findall(r'<a id="([^"]+)">', node.astext()):
            label = (app.env.docname, anchor)
            app.env.domains.standard_domain.anonlabels[anchor] = label
            app.env.domains.standard_domain.labels[anchor] = (*label, anchor)


def visit_inline_math(writer: Any, node: Any) -> None:
    """Write $...$ as MathML."""
    from docutils.nodes import SkipNode

    writer.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def visit_display_math(writer: Any, node: Any) -> None:
    """Write $$...$$ as a centred formula, which scrolls by itself where the screen is narrower."""
    from docutils.nodes import SkipNode

    writer.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>\n')
    raise SkipNode


def mathml(latex: str, display: str) -> str:
    """The formula, with its LaTeX as the label that a screen reader falls back to."""
    from latex2mathml.converter import convert

    element = convert(latex, display=display)
    return element.replace("<math ", f'<math aria-label="{escape(latex, quote=True)}" ', 1)


def rewrite_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Autodoc's event: the lines are changed in place."""
    lines[:] = as_rest("\n".join(lines)).splitlines()


def as_rest(docstring: str) -> str:
    """A docstring of this project as reST.

    Paragraphs stay; a block that is indented becomes literal; lines `name    description` become a list of definitions.
    """
    parts = []
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        rows = block.splitlines()
        if all(row.startswith("    ") for row in rows):
            parts.append("::\n\n" + "\n".join(rows))
        elif DESCRIBED.match(rows[0]):
            parts.append(_definitions(rows))
        else:
            parts.append("\n".join(_marked_up(row.strip()) for row in rows))
    return "\n\n".join(parts) + "\n"


def _definitions(rows: list[str]) -> str:
    """Lines `name    description`, each with the indented lines that continue it, as a list of definitions."""
    lines = []
    for row in rows:
        described = DESCRIBED.match(row)
        if described:
            lines.append(f"``{described[1]}``\n    {_marked_up(described[2])}")
        else:
            lines.append("    " + _marked_up(row.strip()))
    return "\n".join(lines)


def _marked_up(text: str) -> str:
    """A line with its `code` as reST's, and with nothing else that reST would read as markup."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(f"`{piece}`" if piece.startswith("`") and len(piece) > 2 else _escaped(piece) for piece in pieces)


def _escaped(text: str) -> str:
    return re.sub(r"([\\*|_`])", r"\\\1", text)
