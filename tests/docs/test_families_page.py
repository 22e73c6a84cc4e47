"""docs/families.md says what the tables say; the differences on it are measured when it is written."""

import re

from doc_pages import ROOT, script


def test_the_page_is_fresh():
    builder = script("build_families")
    page = builder.PAGE.read_text(encoding="utf-8")
    end = builder.left_out() + builder.without_effect()
    head, table, lines = page.removesuffix(end).partition(builder.TABLE)
    assert table
    lines = lines.splitlines()
    assert head.startswith(builder.HEAD)
    locked = re.search(r"^transformers==(\S+)$", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)
    assert locked
    measured = rf"Measured on \d{{4}}-\d\d-\d\d with transformers {re.escape(locked[1])} and torch \S+\.\n"
    assert re.fullmatch(measured, head.removeprefix(builder.HEAD))
    assert page.count("\n| gpt2 | GPT2LMHeadModel | none | both |") == 1
    assert page.endswith(end)
    assert [line.rsplit("|", 3)[0] + "|" for line in lines] == builder.rows()
    for line in lines:
        exact, published = (float(cell) for cell in line.split("|")[-3:-1])
        assert exact <= 1e-8, line
        assert published <= 5e-5, line
