"""Writes docs/commands.md: what `--help` prints of every command, and the exit codes."""

import contextlib
import io
import os
from pathlib import Path
from unittest.mock import patch

from pellucid.cli import COMMANDS, main
from pellucid.cli.tokenizer import TOKENIZER_COMMANDS

PAGE = Path(__file__).parent / "commands.md"
HEAD = """# Commands

This page is written by `python docs/build_commands.py`: it has what `pellucid COMMAND --help` prints.
[Training](training.md) explains the choices of `pellucid train`; `pellucid train --help-fields` lists every field that
`--set` takes.

| exit code | meaning |
|---|---|
| 0 | the command did what it was asked to do |
| 1 | a comparison failed (`verify`, `convert`) |
| 2 | the input or the options are wrong; the message says what was given and what was expected |
| 3 | training stopped: losses or gradients were not finite, several steps in a row, or the last held-out loss was not |
| 130, 143 | Ctrl-C or SIGTERM; training has saved first, and `--resume` continues. `serve` and `look` end with 0 |
"""


def help_of(*words: str) -> str:
    """What a command prints with `--help` in a window of 100 columns."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, patch.dict(os.environ, {"COLUMNS": "100"}):
        main([*words, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def page() -> str:
    """All of it."""
    names = [(name,) for name in COMMANDS] + [("tokenizer", name) for name in TOKENIZER_COMMANDS]
    return HEAD + "".join(f"\n## {' '.join(words)}\n\n```\n{help_of(*words)}\n```\n" for words in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
