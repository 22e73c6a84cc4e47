"""docs/mathematics.md is what its sources say now, and the sources name nothing that is not there."""

import re

from doc_pages import script

from pellucid.tensor_names import TABLE

BUILD = script("build_mathematics")


def test_the_page_is_not_stale():
    written = BUILD.PAGE.read_text(encoding="utf-8")
    assert written == BUILD.page(), "docs/mathematics.md does not say what its sources say: make docs"


def test_markers_name_items_and_errata_that_exist():
    for test in BUILD.marked_tests():
        assert set(test.items) <= set(BUILD.items()), test.id
        assert set(test.errata) <= set(BUILD.errata()), test.id


def test_every_item_is_shown_or_waits():
    shown = {item for test in BUILD.marked_tests() for item in test.items}
    assert [name for name, item in BUILD.items().items() if name not in shown and "waits" not in item] == []
    assert sum(numbers[0] for numbers in BUILD.totals().values()) == len(BUILD.items()) == 259


def test_every_name_of_a_tensor_is_in_the_table_of_names():
    """With its axes, its equation and its other spellings."""
    section = BUILD.page().partition("## The names of tensors")[2].partition("\n## ")[0]
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    shown = [tuple(re.sub(r"\\(.)", r"\1", cell).strip(" `") for cell in line) for line in lines]
    spelled = [(r.name, r.axes, r.equation, r.symbol, r.transformer_lens) for r in TABLE]
    assert shown == [tuple(" ".join(cell.split()) for cell in row) for row in spelled]


def test_links_lead_somewhere():
    page = BUILD.page()
    for target in set(re.findall(r"\]\((\.\./[^)#]+)\)", page)):
        assert (BUILD.PAGE.parent / target).exists(), target
    anchors = set(re.findall(r'<a id="([^"]+)">', page))
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_every_row_has_the_cells_of_its_table():
    """A bar that is not escaped would open a cell of its own."""
    widths = None
    for line in BUILD.page().splitlines():
        if not line.startswith("|"):
            widths = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        widths = widths or cells
        assert cells == widths, line


def test_citations_and_definitions_are_read_from_docstrings():
    text = """A = softmax(Z)   Z [i, j] -> [i, j].   S0 (3.5), S1 1.1.2 w, S4 "Deep". Errata E-01, E-09 to E-11."""
    assert BUILD.definition(text) == ("A = softmax(Z)", "Z [i, j] -> [i, j]")
    assert BUILD.citations(text) == ["S0 (3.5)", "S1 1.1.2", 'S4 "Deep"']
    assert BUILD.cited_errata(text) == ["E-01", "E-09", "E-10", "E-11"]


def test_the_functions_that_a_test_uses_are_found_through_its_helpers():
    by_id = {test.id: test for test in BUILD.marked_tests()}
    direct = by_id["conformance/test_reference_attention.py::test_only_the_circuits_matter"]
    assert ("attention", "multi_head_sum") in direct.functions
    through_helper = by_id["conformance/test_engine_forward.py::test_every_named_tensor_is_the_reference_s"]
    assert ("transformer", "forward") in through_helper.functions
