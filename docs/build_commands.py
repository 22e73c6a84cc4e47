"""What `--help` prints of every command: the site appends it to docs/commands.md.

python docs/build_commands.py       writes the whole page to build/commands.md, for readers without the site
"""

import contextlib
import io
import os
from pathlib import Path
from unittest.mock import patch

from pellucid.cli import COMMANDS, main
from pellucid.cli.command_groups import COMMAND_GROUPS

HEAD = Path(__file__).parent / "commands.md"
WHOLE = Path(__file__).parent.parent / "build" / "commands.md"


def help_of(*words: str) -> str:
    """What a command prints with `--help` in a window of 100 columns."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, patch.dict(os.environ, {"COLUMNS": "100"}):
        main([*words, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def sections() -> str:
    """A section with the help of each command, in Markdown."""
    names = [(name,) for name in COMMANDS] + [
        (group, name) for group, (commands, _) in COMMAND_GROUPS.items() for name in commands
    ]
    return "".join(f"\n## {' '.join(words)}\n\n```\n{help_of(*words)}\n```\n" for words in names)


if __name__ == "__main__":
    WHOLE.parent.mkdir(exist_ok=True)
    WHOLE.write_text(HEAD.read_text(encoding="utf-8") + sections(), encoding="utf-8")
