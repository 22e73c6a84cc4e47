"""What `--help` says of every command, as Markdown that fits any window: the site appends it to docs/commands.md.

python docs/build_commands.py       writes the whole page to build/commands.md, for readers without the site
"""

import contextlib
import io
import os
import re
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
    return "".join(f"\n## {' '.join(words)}\n\n{as_markdown(help_of(*words))}\n" for words in names)


def as_markdown(printed: str) -> str:
    """The help of a command: usage and examples as code, each box of options as a list."""
    usage, rest = printed.split("\n\n", 1)
    rest, _, examples = rest.partition("\nexamples:\n")
    parts = [f"```\n{usage}\n```"]
    for block in re.split(r"\n\n|(?<=╯)\n|\n(?=╭)", rest.strip()):
        parts.append(_options(block) if block.startswith("╭") else escaped(" ".join(block.split())))
    if examples:
        parts.append("examples:\n\n```sh\n" + "\n".join(line.strip() for line in examples.splitlines()) + "\n```")
    return "\n\n".join(parts)


def _options(box: str) -> str:
    """A box as its title, what it says of all options, and a list of them."""
    head, *framed, _ = box.splitlines()
    title = head.strip("╭─╮ ")
    rows = [row.strip("│")[1:].rstrip() for row in framed]
    separator = next((i for i, row in enumerate(rows) if row and not row.strip("─")), -1)
    about = " ".join(" ".join(rows[: max(separator, 0)]).split())
    options: list[list[str]] = []
    for row in rows[separator + 1 :]:
        if row.startswith(" ") or not row:  # the description goes on
            options[-1].append(row.strip())
        else:
            options.append([part.strip() for part in re.split(r" {2,}", row, maxsplit=1)])
    listed = [f"- `{name}`: {escaped(' '.join(filter(None, texts)))}" for name, *texts in options]
    return f"**{title}**" + (f": {escaped(about)}" if about else "") + "\n\n" + "\n".join(listed)


def escaped(text: str) -> str:
    """Text with its options and 'patterns' as code, and without anything else that Markdown would read as markup."""
    pieces = re.split(r"('[^'\s]+'|--[a-z][\w-]*)", text)
    plain = (re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", piece) for piece in pieces[::2])
    code = (f"`{piece}`" for piece in [*pieces[1::2], ""])
    return "".join(part for both in zip(plain, code, strict=True) for part in both).removesuffix("``")


if __name__ == "__main__":
    WHOLE.parent.mkdir(exist_ok=True)
    WHOLE.write_text(HEAD.read_text(encoding="utf-8") + sections(), encoding="utf-8")
