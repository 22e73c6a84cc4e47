"""docs/look.md: its Python runs from top to bottom with the results that it names, and its commands are commands."""

import ast
from pathlib import Path

import pytest
from doc_pages import blocks, commands, page, run_command, shortened

TEXT = page("docs/look.md")


def test_its_python_gives_what_it_says():
    names: dict = {}
    shown = []
    for _, content in blocks(TEXT, "python"):
        lines = content.splitlines()
        for node in ast.parse(content).body:
            code = ast.unparse(node)
            if not isinstance(node, ast.Expr):
                exec(code, names)
                continue
            value, comment = eval(code, names), lines[(node.end_lineno or 0) - 1].partition("  # ")[2]
            try:
                expected = ast.literal_eval(comment.split(" : ")[0])
            except (SyntaxError, ValueError):
                continue  # a sentence
            shown.append((code, rounded(value), expected))
    assert [(code, value) for code, value, _ in shown] == [(code, expected) for code, _, expected in shown]
    assert len(shown) >= 3
    assert names["patching"].recovered[:, 0].tolist() == pytest.approx([1, 1], abs=1e-3)
    assert names["trace"].show()._repr_html_().startswith("<iframe")
    assert names["inspector"].url.startswith("http://127.0.0.1:")
    assert names["inspector"]._repr_html_().startswith("<iframe")


def rounded(value: object) -> object:
    """Numbers in lists and pairs with three digits behind the point."""
    if isinstance(value, float):
        return round(value, 3)
    return type(value)(rounded(item) for item in value) if isinstance(value, list | tuple) else value


def test_its_commands_run(desk_with_runs: Path, capfd: pytest.CaptureFixture[str]):
    """Those that look are opened and not served; the training is cut short."""
    listed = [command for _, content in blocks(TEXT, "sh") for command in commands(shortened(content))]
    assert len(listed) == 3
    for command in listed:
        assert run_command(command) == 0, command


def test_every_page_of_the_inspector_is_described():
    rows = [line.split("|")[1].strip() for line in TEXT.splitlines() if line.startswith("| ")]
    for title in ("Read", "Tokens", "Attention", "Stream", "Circuits", "Experiment", "Training"):
        assert title in rows
