"""Collects the Python of README.md and of the pages into files that pyright reads: `make types`.

    python docs/collect_python.py FOLDER

One file for each page that has Python, with every line at its line number, so that pyright's messages lead to the page;
and a pyrightconfig.json. In the pages an expression may stand alone on a line: its value is what the reader looks at.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *IN_DOCS]


#: a call in the midst of a sentence
INLINE = re.compile(r"`(pellucid\.[\w.]+\([^`]*\)[^`]*)`")


def python_of(text: str) -> str:
    """The lines of `python` blocks, and calls of `pellucid` in sentences, each in its line; other lines are empty."""
    lines, language, calls = [], None, False
    for line in text.splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
            lines.append("")
        elif language is None and (inline := INLINE.findall(line)):
            lines.append("; ".join(inline))
            calls = True
        else:
            lines.append(line if language == "python" else "")
    if calls:  # the first line of a page is its title
        lines[0] = "from pathlib import Path; import pellucid"
    return "\n".join(lines).rstrip() + "\n"


def collect(folder: Path) -> list[Path]:
    """Write the files into the folder, and return those that hold Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    files = []
    for page in PAGES:
        code = python_of(page.read_text(encoding="utf-8"))
        if code.strip():
            files.append(folder / f"{page.stem.replace('-', '_')}.py")
            files[-1].write_text(code, encoding="utf-8")
    settings = {
        "typeCheckingMode": "basic",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src")],
        "reportUnusedExpression": "none",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings, indent=1) + "\n")
    return files


if __name__ == "__main__":
    print(f"{len(collect(Path(sys.argv[1])))} pages have Python")
