"""docs/experiments answers one question a page, names machines that its index describes, and stays short."""

import re

from doc_pages import EXPERIMENTS, page

INDEX = page("docs/experiments/index.md")


def test_the_index_has_every_page_with_its_question():
    shown = dict(re.findall(r"^\| (.*\?) \| \[.*?\]\(([\w-]+\.md)\) \|$", INDEX, re.MULTILINE))
    asked = {path.name: path.read_text(encoding="utf-8").splitlines()[0] for path in EXPERIMENTS}
    del asked["index.md"]
    assert {f"# {question}": name for question, name in shown.items()} == {q: name for name, q in asked.items()}


def test_pages_begin_with_an_answer_and_are_dated():
    for path in EXPERIMENTS:
        if path.name != "index.md":
            text = path.read_text(encoding="utf-8")
            assert text.split("\n\n")[1].startswith("**"), path.name
            assert re.search(r"2\d{3}-\d\d-\d\d", text), path.name


def test_pages_are_short():
    lines = [line for path in EXPERIMENTS for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) <= 1200
    assert max(map(len, lines)) <= 120
