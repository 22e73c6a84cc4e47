"""Prints how large the house is: lines of each language, and in how many files an option of the architecture is named.

    make counts

Lines are a thermometer: what they measure is how much a maintainer reads. Pages that a script writes do not count.
"""

import ast
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pellucid.architecture import field_options

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pellucid"
#: pages of docs/ that a script of docs/ writes
GENERATED_PAGES = ("docs/families.md", "docs/mathematics.md")
#: what is counted: a name, the folders, the endings
LANGUAGES = {
    "Python in src": ("src", (".py",)),
    "Python in tests": ("tests", (".py",)),
    "JavaScript": ("src", (".js",)),
    "C++": ("src", (".cpp", ".h")),
    "docs": ("docs", (".md", ".rst")),
}
N_SHOWN = 8


def tracked_files(folder: str, endings: tuple[str, ...]) -> list[Path]:
    """The files of a folder that git tracks, but for the generated pages."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, check=True).stdout
    names = [name for name in listed.decode().split("\0") if name.endswith(endings) and name not in GENERATED_PAGES]
    return [ROOT / name for name in names if (ROOT / name).exists()]


def count_lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in files)


def options_named_in(tree: ast.Module) -> set[str]:
    """What a file names as an option is named: the end of an attribute, such as a.norm.kind or a.block, or a string.

    A name that is put together, or read by getattr, is not seen.
    """
    attributes, strings = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            attributes.add(node.attr if owner in ("a", "architecture", "model") else f"{owner}.{node.attr}")
    # a string without a dot, such as "block", may be any word
    return attributes | {text for text in strings if "." in text}


def main() -> None:
    for name, (folder, endings) in LANGUAGES.items():
        files = tracked_files(folder, endings)
        print(f"{name:18}{count_lines(files):>8,} lines in {len(files):>4} files")
    files: dict[str, list[str]] = {option: [] for option, _ in field_options()}
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.is_relative_to(SOURCE / "hub" / "tables"):
            for option in files.keys() & options_named_in(ast.parse(path.read_text(encoding="utf-8"))):
                files[option].append(path.relative_to(SOURCE).as_posix())
    sizes = [len(named) for named in files.values()]
    print(f"\n{len(sizes)} options of the architecture with a few values, besides the tables of families:")
    print(f"each is named in {statistics.median(sizes):g} files (median; {statistics.mean(sizes):.1f} on average)")
    for option, named in sorted(files.items(), key=lambda item: -len(item[1]))[:N_SHOWN]:
        print(f"{option:26}{len(named):>4}")


if __name__ == "__main__":
    main()
