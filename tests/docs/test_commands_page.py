"""docs/commands.md has what --help prints, and docs/training.md every preset."""

import importlib.util
import re
from pathlib import Path

from pellucid.presets import PRESETS

ROOT = Path(__file__).parents[2]


def make_builder():
    spec = importlib.util.spec_from_file_location("build_commands", ROOT / "docs" / "build_commands.py")
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    return builder


def test_the_page_is_fresh():
    builder = make_builder()
    page = builder.page()
    assert page.count("usage: pellucid ") == page.count("\n## ") == 18
    assert builder.PAGE.read_text(encoding="utf-8") == page


def test_the_table_of_presets_has_all_of_them_with_their_sizes():
    """A row of several presets has the sizes of each, or the least and the most of them."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| presets \|.*?\n\n", page, re.DOTALL | re.MULTILINE)
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
