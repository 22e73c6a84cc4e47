"""The site's page of commands has what --help prints, and docs/training.md every preset."""

import os
import re
import subprocess
import sys

import pytest
from doc_pages import ROOT, page, script

from pellucid.cli import COMMANDS
from pellucid.cli.command_groups import COMMAND_GROUPS
from pellucid.presets import PRESETS


def test_the_site_s_page_has_the_help_of_every_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    source = [page("docs/commands.md")]
    script("site_extension").append_help(None, "commands", source)
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", source[0], re.DOTALL | re.MULTILINE))
    of_groups = [f"{group} {name}" for group, (commands, _) in COMMAND_GROUPS.items() for name in commands]
    assert list(sections) == [*COMMANDS, *of_groups]
    for name in ("plan", of_groups[0]):  # in a process of its own, as a user would ask
        command = [sys.executable, "-m", "pellucid", *name.split(), "--help"]
        done = subprocess.run(command, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True)
        assert letters(sections[name]) == letters(done.stdout)
    commands = script("build_commands")
    for name, section in sections.items():
        assert letters(section) == letters(commands.help_of(*name.split())), name
        assert re.findall(r"^- `(.*?)`: ", section, re.MULTILINE), name


def letters(text: str) -> str:
    """The letters and digits alone, without the marks of Markdown and the frames of a terminal."""
    return "".join(filter(str.isalnum, text.replace("```sh", "")))


def test_help_becomes_markdown():
    """A box is a list, whose options and patterns are code; what looks like markup is text."""
    printed = """usage: pellucid x [-h] A

Do *this*
and that.

╭─ options ────────────────────────────────────╮
│ What counts,                                 │
│ and how.                                     │
│ ──────────────────────────────────────────── │
│ --long-name N  Read '*.md', not a_b, unless  │
│                --other is given.             │
│ -h, --help     show this                     │
╰──────────────────────────────────────────────╯

examples:
  pellucid x --long-name 2"""
    assert (
        script("build_commands").as_markdown(printed)
        == r"""```
usage: pellucid x [-h] A
```

Do \*this\* and that.

**options**: What counts, and how.

- `--long-name N`: Read `'*.md'`, not a\_b, unless `--other` is given.
- `-h, --help`: show this

examples:

```sh
pellucid x --long-name 2
```"""
    )


def test_other_pages_of_the_site_stay_as_they_are():
    source = [page("docs/index.md")]
    script("site_extension").append_help(None, "index", source)
    assert source == [page("docs/index.md")]


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
