"""What the tests of README and docs share: the blocks of a page, made short, and run as a reader would run them."""

import contextlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from pellucid.cli import main

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *EXPERIMENTS, *DECISIONS]

#: what takes minutes on a page, and what is run in its place
SHORTER = {
    r"(--resume .*)--minutes [\d.]+": r"\1--steps=4",
    r"(pellucid features .*)--minutes [\d.]+": r"\1--steps=3",
    r"--minutes [\d.]+": "--steps 3 --set n_layers=1 --set d_model=48 --set n_ctx=32",
    r"--steps \d+": "--steps 3",
    r"--vocabulary \d+": "--vocabulary 300",
    r"But, soft![^\"]*": "But",
    r"n_layers=\d+": "n_layers=1",
    r"d_model=\d+": "d_model=48",
    r"n_ctx=\d+": "n_ctx=32",
    r"minutes=[\d.]+": "steps=3, fields={'n_layers': 1, 'd_model': 48, 'n_ctx': 32}",
    r"max_tokens=\d+": "max_tokens=5",
    r"--max-tokens \d+": "--max-tokens 5",
    r"^(pellucid plan small.*)": r"\1 --no-measure --batch 1 --precision float32",
    r"^(pellucid (?:generate|chat) (?:(?!--max-tokens).)*?)(?= +#|$)": r"\1 --max-tokens 5",
    r"^(pellucid train [^-\n]*--objective source-target.*)": r"\1 --set n_layers=1 --set d_model=48 --set n_ctx=32",
}


def script(name: str) -> ModuleType:
    """docs/NAME.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    """The text of a page, such as README.md or docs/tutorial.md."""
    return (ROOT / name).read_text(encoding="utf-8")


def shortened(text: str) -> str:
    """The text with every training and every generated text cut short."""
    for pattern, replacement in SHORTER.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def blocks(text: str, *languages: str) -> Iterator[tuple[str, str]]:
    """The language and the content of each fenced block in one of these languages, in the order of the page."""
    for language, content in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language in languages:
            yield language, content


def commands(content: str) -> list[str]:
    """The commands of a block, each with the lines that continue it by a backslash or within quotation marks."""
    lines, complete = content.replace("\\\n", " ").splitlines(), []
    for line in lines:
        if complete and complete[-1].count('"') % 2:
            complete[-1] += "\n" + line
        elif line.strip() and not line.startswith("#"):
            complete.append(line)
    return complete


def run_command(command: str) -> int:
    """The exit code of a `pellucid` command, run in this process: a new one would mostly import."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "pellucid", command
    if arguments[0] == "look":  # it would answer until somebody stops it
        with mock.patch("pellucid.look.server.run_look", lambda session, listening, **_: listening.close()):
            return main([*arguments, "--port", "0"])
    if ">" in arguments:  # a shell would write what is printed into the file
        arguments, file = arguments[: arguments.index(">")], arguments[arguments.index(">") + 1]
        with open(file, "w") as output, contextlib.redirect_stdout(output):
            return main(arguments)
    return main(arguments)


def run_page(text: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the page's `sh` and `python` blocks in their order, in the present folder; return the names they defined."""
    names = {} if names is None else names
    for language, content in blocks(text, "sh", "python"):
        if language == "python":
            exec(compile(shortened(content), "<page>", "exec"), names)
            continue
        for command in commands(shortened(content)):
            assert run_command(command) == 0, command
    return names
