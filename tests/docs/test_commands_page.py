"""docs/commands.md has what --help prints, and docs/training.md every preset."""

import re

from doc_pages import page, script

from pellucid.presets import PRESETS


def test_the_page_is_fresh():
    builder = script("build_commands")
    fresh = builder.page()
    assert fresh.count("usage: pellucid ") == fresh.count("\n## ") == 18
    assert builder.PAGE.read_text(encoding="utf-8") == fresh


def test_the_table_of_presets_has_all_of_them_with_their_sizes():
    """A row of several presets has the sizes of each, or the least and the most of them."""
    (table,) = re.findall(r"^\| presets \|.*?\n\n", page("docs/training.md"), re.DOTALL | re.MULTILINE)
    named = []
    for names, sizes in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE):
        of_row = re.findall(r"`(.*?)`", names)
        named += of_row
        true = [(a.n_layers, a.d_model, a.n_ctx) for a in (PRESETS[name] for name in of_row)]
        if " and " in sizes:  # the sizes of each
            shown = [tuple(map(int, part.split(", "))) for part in sizes.split(" and ")]
        else:  # one number for all, or the least and the most
            ranges = [sorted({int(n) for n in part.split(" to ")}) for part in sizes.split(", ")]
            assert ranges == [sorted({min(of_all), max(of_all)}) for of_all in zip(*true, strict=True)], names
            continue
        assert shown == true, names
    assert sorted(named) == sorted(PRESETS)
